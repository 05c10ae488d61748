"""Where a network's server is: a secret is sent there, so only by TLS, or to this machine."""

from __future__ import annotations

import re

from miniclaw_sessions.config.settings import show_value
from miniclaw_sessions.errors import ConfigError

_ORIGIN = re.compile(r"https://[^/\s]+/?|http://(?:localhost|127\.0\.0\.1|\[::1\])(?::\d+)?/?")


def check_origin(setting: str, address: str) -> None:
    """Refuse an address that is not encrypted, or has a path.

    Args:
        setting: which one has it, for the error.
        address: of a server.

    Raises:
        ConfigError: it is such an address.
    """
    if not _ORIGIN.fullmatch(address):
        raise ConfigError(f"{setting} is {show_value(address)}; set it to an https:// address without a path")
