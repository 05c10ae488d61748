"""Where a network's server is: a secret is sent there, so only by TLS, or to this machine."""

from __future__ import annotations

import re

from miniclaw_sessions.config.settings import show_value
from miniclaw_sessions.errors import ConfigError

_ADDRESS = re.compile(r"(?:https://[^/\s?#]+|http://(?:localhost|127\.0\.0\.1|\[::1\])(?::\d+)?)(/[^\s?#]*)?")


def check_address(setting: str, address: str, *, may_have_path: bool = False) -> None:
    """Refuse an address that is not encrypted, or has a query, or a path that it may not have.

    Args:
        setting: which one has it, for the error.
        address: of a server.
        may_have_path: whether it may go on behind the server's name.

    Raises:
        ConfigError: it is such an address.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None or not (may_have_path or found[1] in (None, "/")):
        wanted = "an https:// address" if may_have_path else "an https:// address without a path"
        raise ConfigError(f"{setting} is {show_value(address)}; set it to {wanted}")
