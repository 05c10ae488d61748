"""The channels that the settings turn on, found without the daemon knowing any of them; see `plugins`."""

from __future__ import annotations

from functools import partial

from miniclaw_sessions.channels.base import Channel
from miniclaw_sessions.config import Settings
from miniclaw_sessions.errors import PluginFailed
from miniclaw_sessions.plugins import in_time, load

_OPTIONAL = ("aclose", "announce", "attach", "shows_twice", "webhook")


def make_channels(settings: Settings) -> tuple[list[Channel], list[PluginFailed]]:
    """Make the channels of all tables `[channels.NAME]`; it blocks.

    Returns:
        Those that can be made, and why others cannot.

    Raises:
        ConfigError: a table is of no channel, or its settings are wrong.
    """
    tables = settings.plugins.get("channels", {})
    channels: list[Channel] = []
    failed: list[PluginFailed] = []
    for table in tables.values():
        try:
            plugin = load(table)
            channel: Channel = plugin.made("name", "receive", "send", "typing")
            in_time(partial(_check, channel, table.name), f"{plugin.title} cannot be used")
        except PluginFailed as error:
            failed.append(error)
        else:
            channels.append(channel)
    return channels, failed


def _check(channel: Channel, name: str) -> None:
    """Look once at what is looked at later, where a stranger's mistake would end more than the channel.

    Raises:
        PluginFailed: something is wrong.
    """
    if channel.name != name:  # two of them would write into one chat
        raise PluginFailed(f"a channel calls itself {channel.name!r}, and not by its table's name")
    for part in _OPTIONAL:
        getattr(channel, part, None)
    timeout_s = getattr(channel, "send_timeout_s", 1)
    if not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise PluginFailed(f"the channel {name!r} has a send_timeout_s that is no number of seconds: {timeout_s!r}")
