"""The stores of transcripts: one contract (`stores.base`), several implementations, chosen by a URL.

Importing this package loads no database library; `open_store` imports the one store that is asked for.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from miniclaw_sessions.config import PostgreSQLSettings, masked, names_server
from miniclaw_sessions.core.stores.base import Store, StorePlace
from miniclaw_sessions.errors import ConfigError, PluginFailed, to_install

__all__ = [
    "SALVAGE",
    "SALVAGE_PART",
    "STORE_URLS",
    "names_server",
    "open_store",
    "refuse_another_store",
    "salvage_in",
    "store_place",
    "stores_in",
]

STORE_URLS = (
    *("none:", "memory:", "sqlite:", "sqlite:///absolute/path/to/file.db"),
    *("jsonl:", "jsonl:///absolute/path/to/directory"),
    "postgresql://user@host/database",
)
"""The possible values of the setting `store`."""

SALVAGE = ".salvage"
"""The directory in a workspace with a store that was set aside, until the new store has all that can be read of it."""

SALVAGE_PART = SALVAGE + ".new"
"""The same directory while it is copied or removed."""

_KINDS = {
    "none": StorePlace("none", durable=False),
    "memory": StorePlace("memory", durable=False),
    "sqlite": StorePlace("sqlite", Path("sessions.db")),
    "jsonl": StorePlace("jsonl", Path("transcripts"), is_directory=True),
}
"""The kinds of stores, each with its default path in a workspace."""


def open_store(
    url: str | StorePlace,
    workspace: Path = Path(),
    *,
    postgresql: PostgreSQLSettings | None = None,
    read_only: bool = False,
) -> Store:
    """The store that a URL names, not yet opened: enter it as an async context manager.

    Args:
        url: `none:` (no transcript), `memory:`, `sqlite:` (`sessions.db` in the workspace), `sqlite:///absolute/path`,
            `jsonl:` (the directory `transcripts` in the workspace), `jsonl:///absolute/path`, or
            `postgresql://user@host:port/database?option=value`, which several processes may share; one whose scheme an
            installed package declares (`plugins`); or a `StorePlace`.
        workspace: the directory that `sqlite:` and `jsonl:` are relative to; a server's store has none.
        postgresql: settings of the connection, which the URL overrides; None: the defaults.
        read_only: change nothing and lock nothing, while another process may write the store.

    Raises:
        ConfigError: the URL names no store.
    """
    place = store_place(url, workspace) if isinstance(url, str) else url
    if place.plugin:
        return _of_another_package(place, workspace, read_only=read_only)
    if place.url is not None:
        return _on_a_server(place.url, postgresql or PostgreSQLSettings(), read_only=read_only)
    if place.path is not None:
        return _in_files(place, place.path, read_only=read_only)
    if place.kind == "memory":
        from miniclaw_sessions.core.stores.memory import MemoryStore  # noqa: PLC0415 - only the chosen store is imported

        return MemoryStore()
    from miniclaw_sessions.core.stores.none import NoStore  # noqa: PLC0415 - same

    return NoStore()


def _in_files(place: StorePlace, path: Path, *, read_only: bool) -> Store:
    if place.kind == "sqlite" and read_only:
        from miniclaw_sessions.core.stores.sqlite.reader import SQLiteReader  # noqa: PLC0415 - only the chosen store is imported

        return SQLiteReader(path)
    if place.kind == "sqlite":
        from miniclaw_sessions.core.stores.sqlite.store import SQLiteStore  # noqa: PLC0415 - same

        return SQLiteStore(path)
    if read_only:
        from miniclaw_sessions.core.stores.jsonl.reader import JSONLReader  # noqa: PLC0415 - same

        return JSONLReader(path)
    from miniclaw_sessions.core.stores.jsonl.store import JSONLStore  # noqa: PLC0415 - same

    return JSONLStore(path)


def _of_another_package(place: StorePlace, workspace: Path, *, read_only: bool) -> Store:
    """A plug-in's store. Nothing works without it, so it is imported here and not in a thread."""
    from miniclaw_sessions.plugins import find  # noqa: PLC0415 - only a plug-in's store needs it

    point = find("stores", place.kind, "sessions.store")
    try:
        store: Store = point.load()(place.plugin, workspace, read_only=read_only)
    except ConfigError:
        raise
    except Exception as error:
        raise PluginFailed(f"the store {place.kind!r} cannot be made: {type(error).__name__}: {error}") from error
    if not hasattr(store, "append"):
        raise PluginFailed(f"the store {place.kind!r} is none: it has no append")
    return store


def _on_a_server(url: str, settings: PostgreSQLSettings, *, read_only: bool) -> Store:
    try:
        from miniclaw_sessions.core.stores.postgresql.store import PostgreSQLStore  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise ConfigError(f"a postgresql: store needs asyncpg: {to_install('postgresql')}") from error
    return PostgreSQLStore(url, settings, read_only=read_only)


def store_place(url: str, workspace: Path) -> StorePlace:
    """The place that a URL names.

    Raises:
        ConfigError: the URL names no store.
    """
    scheme, colon, rest = url.partition(":")
    kind = _KINDS.get(scheme, StorePlace(""))
    if kind.kind and colon and not rest:
        return msgspec.structs.replace(kind, path=kind.path and workspace / kind.path)
    if kind.path is not None and rest.startswith("///") and not rest.endswith("/") and "\0" not in rest:
        return msgspec.structs.replace(kind, path=Path(rest.removeprefix("//")))
    if scheme == "postgresql" and rest.startswith("//"):
        return StorePlace("postgresql", url=url)
    if colon and not kind.kind:
        from miniclaw_sessions.plugins import declared  # noqa: PLC0415 - only for a URL that is none of ours

        if scheme in declared("stores"):
            return StorePlace(scheme, shown=_without_password(url), plugin=url)
    raise ConfigError(f"store = {_without_password(url)!r} is no store; it can be {', '.join(STORE_URLS)}")


def stores_in(workspace: Path) -> list[StorePlace]:
    """The stores at their default paths in a workspace. Blocks.

    Empty while a store is being salvaged: it is not there then, and another one would be taken for it.
    """
    if (workspace / SALVAGE).exists():
        return []
    places = (store_place(f"{kind}:", workspace) for kind in _KINDS)
    return [place for place in places if place.files()]


def salvage_in(workspace: Path) -> list[Path]:
    """The directories of a salvage that was cut off; the next start finishes it and removes them. Blocks.

    Until then the store may lack most of the transcripts.
    """
    return [path for name in (SALVAGE, SALVAGE_PART) if (path := workspace / name).exists()]


def refuse_another_store(place: StorePlace, workspace: Path) -> None:
    """Refuse to begin an empty store if the workspace has its transcripts in another one. Blocks.

    Raises:
        ConfigError: it has another store; the error names its URL.
    """
    if place.path is None or place.is_there():
        return
    for other in stores_in(workspace):
        raise ConfigError(
            f"the transcripts of {workspace} are in {other.path}, and there is no {place.path}, which sessions.store "
            f"names; nothing was changed. Set sessions.store (MINICLAW_SESSIONS_STORE) to '{other.kind}:', `migrate` "
            "from there, or move away what is old"
        )


def _without_password(url: str) -> str:
    """The URL without a password: the error is printed and logged."""
    scheme, separator, rest = url.partition("://")
    return str(masked(f"{scheme}{separator}...@{rest.rpartition('@')[2]}" if separator and "@" in rest else url))
