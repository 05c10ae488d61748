"""Where a measurement finds its server: a store's directory is its database, `<directory of the socket>/<name>`."""

from __future__ import annotations

from pathlib import Path

OWNER = "miniclaw"
"""The role, which needs no password."""


def url_of(directory: Path, scheme: str = "postgresql") -> str:
    """The database's URL."""
    return f"{scheme}://{OWNER}@/{directory.name}?host={directory.parent}"
