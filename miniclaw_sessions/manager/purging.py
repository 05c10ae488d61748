"""What is done beside a deletion, so that the words of a session are in no file of the workspace any more."""

from __future__ import annotations

from anyio import to_thread

from miniclaw_sessions.errors import StoreUnavailable
from miniclaw_sessions.persistence.archive import Archive
from miniclaw_sessions.persistence.backups import known_backups
from miniclaw_sessions.persistence.workspace import Workspace
from miniclaw_sessions.stores.base import Store


async def purge(session_id: str, workspace: Workspace, archive: Archive, store: Store) -> list[str]:
    """Leave nothing of what a deleted session said in any file of the workspace that is in use.

    The store's log is emptied; archived copies, and damaged ones that were set aside, go. Backups are
    named where they are known; forks and exports are others' business. To be called again where something remains.

    Returns:
        What may still hold its words, one sentence each.

    Raises:
        StoreUnavailable: it could not be done.
    """
    quarantine = workspace.snapshots.quarantine
    await archive.forget(session_id, anew=True)
    try:
        await to_thread.run_sync(quarantine.forget, f"{session_id}.jsonl")
        await to_thread.run_sync(quarantine.forget, f"{session_id}.json")
        stores = await to_thread.run_sync(quarantine.stores)
        backups = await to_thread.run_sync(known_backups, workspace.path)
    except OSError as error:
        raise StoreUnavailable(f"cannot clear {workspace.path} of it: {error.strerror}; delete it again") from error
    remains = [f"quarantine/{name} was set aside damaged, and may have its words; remove it" for name in stores]
    remains += [
        f"the backup in {one.path}, made {one.made_at:%Y-%m-%d %H:%M} UTC, may have its words; remove it"
        for one in backups
    ]
    if not await store.purge():
        remains.append("the store's log, because somebody is reading it: it is emptied by the next deletion")
    return remains
