"""Where a manager's sessions lie: the one place that asks whether a store is shared."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.config import DEFAULT_WORKSPACE, SessionSettings
from miniclaw_sessions.core.manager.cache import NamesOnDisk, SessionCache
from miniclaw_sessions.core.manager.local import LocalMode
from miniclaw_sessions.core.manager.mode import Mode
from miniclaw_sessions.core.persistence.recovery import Progress
from miniclaw_sessions.core.persistence.workspace import Workspace
from miniclaw_sessions.core.sharing.census import StoredNames
from miniclaw_sessions.core.sharing.database import Database
from miniclaw_sessions.core.sharing.mode import SharedMode
from miniclaw_sessions.core.stores import names_server, open_store
from miniclaw_sessions.core.stores.base import Store
from miniclaw_sessions.encryption import KeyRing


class Choice(NamedTuple):
    """Where sessions lie.

    Attributes:
        store: the store, or its URL.
        directory: the workspace; None: all is in the store, which several processes share.
    """

    store: str | Store
    directory: Path | None

    @property
    def name(self) -> str:
        """The kind of the store, in a word."""
        return self.store.partition(":")[0] if isinstance(self.store, str) else type(self.store).__name__


def choose(workspace: str | Path | None, store: str | Store) -> Choice:
    """Decide by what a user has named.

    Args:
        workspace: a directory, or the URL of a shared store, which is then the store.
        store: the store, or its URL.
    """
    if isinstance(workspace, str) and names_server(workspace):
        store = workspace
    is_shared = names_server(store) if isinstance(store, str) else store.shared
    directory = Path(workspace or DEFAULT_WORKSPACE).expanduser().resolve()
    return Choice(store, None if is_shared else directory)


def mode_of(  # noqa: PLR0913 - what a user may choose
    choice: Choice,
    settings: SessionSettings,
    *,
    clock: Clock,
    encryption: KeyRing | None,
    on_progress: Callable[[Progress], None],
    create: bool,
    wait_s: float,
) -> tuple[Mode, SessionCache]:
    """The mode and the cache of sessions that lie there; nothing is opened yet. Arguments are those of a manager."""
    if choice.directory is None:

        def new_database() -> Database:
            store = choice.store
            opened = open_store(store, postgresql=settings.postgresql) if isinstance(store, str) else store
            return Database(opened, settings, clock=clock, encryption=encryption)

        names = StoredNames()
        cache = SessionCache(settings.max_cached, names)
        shared = SharedMode(
            new_database, names, cache.in_memory, cache.making, clock=clock, lease_s=settings.turn_lease_s
        )
        return shared, cache
    workspace = partial(Workspace, choice.directory, settings, choice.store, clock=clock, encryption=encryption)
    cache = SessionCache(settings.max_cached, NamesOnDisk())
    return LocalMode(partial(workspace, on_progress=on_progress, create=create, wait_s=wait_s), cache), cache
