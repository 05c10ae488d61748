"""The settings as they were loaded, and where what they name lies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from miniclaw_sessions.config.settings import Settings


class LoadedSettings(msgspec.Struct, frozen=True):
    """The settings, and for each dotted name (`sessions.window`) where its value came from."""

    settings: Settings
    sources: Mapping[str, str]

    @property
    def workspace(self) -> Path:
        """The workspace directory, with `~` resolved."""
        return Path(self.settings.workspace).expanduser()

    @property
    def shared_store(self) -> str | None:
        """The URL of the store that several processes share, where all is in there and nothing in a directory."""
        return store if names_server(store := self.settings.sessions.store) else None

    @property
    def directory(self) -> Path | None:
        """The workspace directory, which there is; beside a shared store only if one was named."""
        return self.workspace if self.shared_store is None or self.sources["workspace"] != "default" else None


def names_server(text: str) -> bool:
    """Whether this is the URL of a store on a server, which several processes share, and not of one in a directory."""
    return text.startswith("postgresql:")


def socket_path(loaded: LoadedSettings, environ: Mapping[str, str]) -> Path | None:
    """Where the daemon's Unix socket lies: as set, else in a service's runtime directory, else in the workspace.

    Returns:
        None when the socket is switched off, or there is no directory for it.
    """
    chosen = loaded.settings.listen.socket
    if chosen == "none":
        return None
    if chosen:
        return Path(chosen).expanduser()
    runtime = environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    directory = Path(runtime) if runtime else loaded.directory
    return None if directory is None else directory / "miniclaw.sock"
