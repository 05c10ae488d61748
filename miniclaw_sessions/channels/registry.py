"""The channels that the settings turn on, found without the daemon knowing any of them; see `plugins`."""

from __future__ import annotations

from miniclaw_sessions.channels.base import Channel
from miniclaw_sessions.config import Settings
from miniclaw_sessions.errors import PluginFailed
from miniclaw_sessions.plugins import load


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
            channel: Channel = load(table).made("name", "receive", "send", "typing")
        except PluginFailed as error:
            failed.append(error)
            continue
        if channel.name in tables:
            channels.append(channel)
        else:  # two of them would write into one chat
            failed.append(PluginFailed(f"a channel calls itself {channel.name!r}, and not by its table's name"))
    return channels, failed
