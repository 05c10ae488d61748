"""Checking a shared store: its tables, every entry, and every checkpoint against the entries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from miniclaw_sessions.core.history.state import Snapshot
from miniclaw_sessions.core.persistence.checking import CheckReport, problems_of_checkpoint
from miniclaw_sessions.core.persistence.recovery import Progress
from miniclaw_sessions.core.stores.base import Store, StoredHead
from miniclaw_sessions.core.stores.reading import PAGE


async def check_database(
    store: Store,
    checkpoints: Callable[[Sequence[str]], Awaitable[Sequence[Snapshot]]],
    on_progress: Callable[[Progress], None],
) -> CheckReport:
    """Look at every entry of a shared store, and compare every checkpoint with the entries. Changes nothing.

    Args:
        store: the transcripts.
        checkpoints: what the checkpoints of some sessions say, those that are sound.
        on_progress: called with the progress.
    """
    problems = await store.check()
    total, sessions, entries = await store.count(), 0, 0
    async for page in _pages_of(store.heads()):
        sessions, entries = sessions + len(page), entries + sum(one.last_sequence for one in page.values())
        for snapshot in await checkpoints(list(page)):
            problems += await problems_of_checkpoint(store, snapshot, page[snapshot.state.session_id])
        on_progress(Progress("checking", sessions, max(total, sessions)))
    return CheckReport(sessions=sessions, entries=entries, problems=problems)


async def _pages_of(heads: AsyncIterator[StoredHead]) -> AsyncIterator[dict[str, StoredHead]]:
    page: dict[str, StoredHead] = {}
    async for stored in heads:
        page[stored.head.session_id] = stored
        if len(page) == PAGE:
            yield page
            page = {}
    if page:
        yield page
