"""Where transcripts live: one contract (`stores.base`), several homes, chosen by a URL.

Importing this package loads no database library; `open_store` imports the one store that is asked for.
"""

from __future__ import annotations

from pathlib import Path

from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.stores.base import Store

__all__ = ["STORE_URLS", "open_store", "store_place"]

STORE_URLS = (
    *("none:", "memory:", "sqlite:", "sqlite:///absolute/path/to/file.db"),
    *("jsonl:", "jsonl:///absolute/path/to/directory"),
)
"""What the setting `store` may be."""


_DEFAULT_PLACES = {"sqlite": "sessions.db", "jsonl": "transcripts"}


def open_store(url: str, workspace: Path, *, read_only: bool = False) -> Store:
    """The store that a URL names, not yet opened: enter it as an async context manager.

    Args:
        url: `none:` (no transcript), `memory:`, `sqlite:` (`sessions.db` in the workspace), `sqlite:///absolute/path`,
            `jsonl:` (the directory `transcripts` in the workspace) or `jsonl:///absolute/path`.
        workspace: the directory that `sqlite:` and `jsonl:` are relative to.
        read_only: change nothing and lock nothing, beside whoever writes it.

    Raises:
        ConfigError: no store goes by this URL.
    """
    kind, place = store_place(url, workspace)
    if kind == "sqlite" and read_only:
        from miniclaw_sessions.stores.sql.reader import SQLiteReader  # noqa: PLC0415 - only the chosen store is imported

        return SQLiteReader(place)
    if kind == "sqlite":
        from miniclaw_sessions.stores.sql.sqlite import SQLiteStore  # noqa: PLC0415 - same

        return SQLiteStore(place)
    if kind == "jsonl" and read_only:
        from miniclaw_sessions.stores.jsonl.reader import JSONLReader  # noqa: PLC0415 - same

        return JSONLReader(place)
    if kind == "jsonl":
        from miniclaw_sessions.stores.jsonl.store import JSONLStore  # noqa: PLC0415 - same

        return JSONLStore(place)
    if kind == "memory":
        from miniclaw_sessions.stores.memory import MemoryStore  # noqa: PLC0415 - same

        return MemoryStore()
    from miniclaw_sessions.stores.none import NoStore  # noqa: PLC0415 - same

    return NoStore()


def store_place(url: str, workspace: Path) -> tuple[str, Path]:
    """What a URL means: the kind of the store, and its file or directory; the workspace itself where it has none.

    Raises:
        ConfigError: no store goes by this URL.
    """
    match url.partition(":"):
        case ("none" | "memory" as kind, ":", ""):
            return kind, workspace
        case ("sqlite" | "jsonl" as kind, ":", ""):
            return kind, workspace / _DEFAULT_PLACES[kind]
        case ("sqlite" | "jsonl" as kind, ":", place) if _is_absolute_path(place):
            return kind, Path(place.removeprefix("//"))
    raise ConfigError(f"store = {_without_password(url)!r} is no store; it can be {', '.join(STORE_URLS)}")


def _is_absolute_path(place: str) -> bool:
    return place.startswith("///") and not place.endswith("/") and "\0" not in place


def _without_password(url: str) -> str:
    """The URL without what may be a password: this error is printed and logged."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}...@{rest.rpartition('@')[2]}" if separator and "@" in rest else url
