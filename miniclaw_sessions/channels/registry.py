"""The channels that the settings turn on, found without the daemon knowing any of them; see `plugins`."""

from __future__ import annotations

from miniclaw_sessions.channels.base import Channel
from miniclaw_sessions.config import Settings
from miniclaw_sessions.errors import PluginFailed
from miniclaw_sessions.plugins import each_made


def make_channels(settings: Settings) -> tuple[list[Channel], list[PluginFailed]]:
    """Make the channels of all tables `[channels.NAME]`; it blocks.

    Returns:
        Those that can be made, and why others cannot.

    Raises:
        ConfigError: a table is of no channel, or its settings are wrong.
    """
    tables = settings.plugins.get("channels", {})
    made, failed = each_made(tables.values(), "name", "receive", "send", "typing")
    misnamed = [one for one in made if one.name not in tables]  # two of them would write into one chat
    failed += [PluginFailed(f"a channel calls itself {one.name!r}, and not by its table's name") for one in misnamed]
    return [one for one in made if one not in misnamed], failed
