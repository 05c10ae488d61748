"""Giving a store again what it had acknowledged and has lost, while the session is in memory.

Another program may have removed a transcript, cut it, or put an older copy in its place. The newest messages are in the
window: where these are all that is missing, they are written again, as they were, and what waits follows them. Where
they are not, nothing is written behind the gap: the session is refused until the right file is put back, or a
start goes on from what there is.
"""

from __future__ import annotations

from collections.abc import Callable

from miniclaw_sessions.core.history.window import Kept
from miniclaw_sessions.core.persistence.committer import CommitQueue, Shrunk
from miniclaw_sessions.core.protocol.entries import place_of_parent
from miniclaw_sessions.core.protocol.messages import Role
from miniclaw_sessions.core.session.journal import Journal
from miniclaw_sessions.core.stores.base import Append, Store, stored_entry
from miniclaw_sessions.errors import StoreConflict, StoreUnavailable
from miniclaw_sessions.log import get_logger

log = get_logger(__name__)


async def restore_lost(find: Callable[[str], Journal | None], refused: CommitQueue, conflict: StoreConflict) -> Shrunk:
    """Write what the store lacks of a session's acknowledged entries; what waits stays as it is.

    Args:
        find: the live session of an id.
        refused: whose append was refused.
        conflict: why.

    Raises:
        StoreConflict: the store lacks nothing, or has another session of this name: it was refused for something else.
        StoreUnavailable: not all that is missing is in memory, or the store cannot take it now.
    """
    journal = find(refused.head.session_id)
    if journal is None or journal.queue is not refused:
        raise conflict
    store = journal.home.store
    stored = await store.head(journal.session_id)
    last = 0 if stored is None else stored.last_sequence
    is_other = stored is not None and stored.head.incarnation != refused.head.incarnation
    if is_other or last >= refused.committed:
        raise conflict
    missing = [one for one in journal.conversation.window.kept if last < one.sequence <= refused.committed]
    if not _is_whole(journal, missing, last) or not await _follows(store, journal, missing, last):
        raise StoreUnavailable(
            f"cannot append to session {journal.session_id}: the store ends at entry {last}, {refused.committed} "
            "were acknowledged, and not all that is missing is in memory. Another program has removed or replaced it: "
            "put back what was there, and it goes on; or start again, and the session goes on from what is there and "
            "its snapshot"
        )
    (outcome,) = await store.append([Append(refused.head, [stored_entry(one.entry) for one in missing])])
    if outcome is not None:
        raise outcome
    log.warning(
        "the store had lost what it had acknowledged; it was given that again from memory",
        action="session.given_back",
        session_id=journal.session_id,
        entries=len(missing),
    )
    return Shrunk(0, 0)


def _is_whole(journal: Journal, missing: list[Kept], last: int) -> bool:
    """Whether the window has every entry from a place on, each as it was said."""
    evicted = journal.conversation.window.newest_evicted
    if any(one.role is Role.BRANCH_SUMMARY or (one.calls_tools and one.sequence <= evicted) for one in missing):
        return False  # it was no message, or some of its calls may have left the window
    return [one.sequence for one in missing] == list(range(last + 1, journal.queue.committed + 1))


async def _follows(store: Store, journal: Journal, missing: list[Kept], last: int) -> bool:
    """Whether what the store has is what the missing entries were said behind, and not another history."""
    if last == 0:
        return True
    known = next((one.id for one in journal.conversation.window.kept if one.sequence == last), None)
    if known is None and place_of_parent(missing[0].entry) == last:
        known = missing[0].parent_id
    newest = await store.read(journal.session_id, after=last - 1, limit=1)
    return known is not None and [one.entry_id for one in newest] == [known]
