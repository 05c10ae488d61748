"""A message that its author has given another wording, as chat networks let him."""

from __future__ import annotations

from miniclaw_sessions.errors import DuplicateMessage
from miniclaw_sessions.session import Session


async def go_back(session: Session, replaced: str, key: str | None) -> None:
    """Let the chat go on from before a message; what was said since stays on its branch.

    That is so for the user's newest message. A message that was never heard has nothing to go back to.

    Args:
        session: the chat's.
        replaced: the message's own id.
        key: that of the new wording.

    Raises:
        DuplicateMessage: the chat has gone on since; nobody expects what was said to be thrown away for a word of it.
        StoreUnavailable: the store cannot be read.
    """
    find = session.journal.find_by_key
    known = await find(replaced)
    if known is None or (key is not None and await find(key) is not None):  # the turn itself knows what to do
        return
    newest = next((entry for entry in reversed(session.entries()) if entry.message.is_user), None)
    if newest is None or newest.parent_id != known.parent_id:  # another wording follows the same entry
        raise DuplicateMessage(session.session_id, replaced, known.id)
    await session.tree.branch(known.parent_id)
