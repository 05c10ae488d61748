"""The channels that the settings name, found without the daemon knowing any of them.

A channel is named by the entry point under which its package declares it, or by where it is made:

    [project.entry-points."miniclaw_sessions.channels"]      # in the package's pyproject.toml
    telegram = "my_package.telegram:TelegramChannel"

    channels.load = ["telegram", "my_package.matrix:MatrixChannel"]

What is named is called without arguments and gives a `Channel`; its own settings and secrets it reads itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

from miniclaw_sessions.channels.base import Channel
from miniclaw_sessions.errors import ConfigError

GROUP = "miniclaw_sessions.channels"
"""The group of entry points that packages declare their channels in."""


def load_channels(names: Sequence[str]) -> list[Channel]:
    """Make the channels of these names.

    Raises:
        ConfigError: a name is none of a channel, or it cannot be made.
    """
    declared = {point.name: point for point in entry_points(group=GROUP)}
    return [_made(name, declared) for name in names]


def _made(name: str, declared: dict[str, EntryPoint]) -> Channel:
    point = EntryPoint(name, name, GROUP) if ":" in name else declared.get(name)
    if point is None:
        known = ", ".join(sorted(declared)) or "none is installed"
        raise ConfigError(f"channels.load names {name!r}, which is no channel ({known}); or write it as module:class")
    try:
        channel = point.load()()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"the channel {name!r} of channels.load cannot be made: {error}") from error
    lacking = [part for part in ("name", "receive", "send", "typing") if not hasattr(channel, part)]
    if lacking:
        raise ConfigError(f"{name!r} of channels.load is no channel: it has no {', '.join(lacking)}")
    made: Channel = channel
    return made
