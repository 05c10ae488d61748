"""Moving a workspace's transcripts from one store to another, while nobody has it open."""

from __future__ import annotations

from pathlib import Path

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.persistence.marker import check_marker
from miniclaw_sessions.persistence.own_task import in_own_task
from miniclaw_sessions.stores import open_store, store_place
from miniclaw_sessions.stores.copying import Copied, copy_store
from miniclaw_sessions.transfer.copying import Report, held, in_thread


@in_own_task
async def migrate(
    workspace: Path, settings: SessionSettings, to: str, keys: KeyRing | None, on_progress: Report = lambda *_: None
) -> Copied:
    """Copy every transcript into another store, which must be empty; the old one stays, and is not changed.

    Afterwards set `sessions.store` to the new URL. What is encrypted stays encrypted.

    Args:
        workspace: the directory.
        settings: say which store it has.
        to: the URL of the new store.
        keys: those of the workspace, to be sure that it is the right one.
        on_progress: told how it advances.

    Raises:
        ConfigError: one of the two keeps no entries, both are the same, there is something in the new one, or the old
            one lacks what is still to be salvaged.
        NotAWorkspace: there is none, or the directory is another program's; it was not touched.
        DirectoryInUse: a process has the workspace.
        StoreError: the old store cannot be read, or the new one not be written; run it again with an empty one.
    """
    place, new_place = store_place(settings.store, workspace), store_place(to, workspace)
    if place == new_place or not (place.durable and new_place.durable):
        raise ConfigError(f"cannot migrate from {settings.store} to {to}: name two different stores that keep entries")
    async with held(workspace, settings.store):
        await in_thread(check_marker, workspace, keys)
        servers = settings.postgresql
        async with (
            open_store(place, workspace, postgresql=servers) as source,
            open_store(new_place, workspace, postgresql=servers) as target,
        ):
            if await target.session_ids():
                raise ConfigError(f"cannot migrate to {to}: there are sessions in it already; nothing was changed")
            copied = await copy_store(source, target, lambda done: on_progress("copying the store", done, None))
            if await target.session_ids() != await source.session_ids():
                raise ConfigError(f"the copy in {to} is not complete; remove it, and run this again")
    return copied
