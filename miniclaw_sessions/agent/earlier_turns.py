"""What was said before, answered once more from where it was said: as it was, or in another wording.

What has been said since stays on its branch. Going back and what is said there are one unit, committed when no other
task has the turn: a crash leaves the conversation as it was, or with a message that waits for its answer.
"""

from __future__ import annotations

from msgspec import UNSET

from miniclaw_sessions.agent.events import TurnFinished, TurnStopped
from miniclaw_sessions.core.protocol.entries import COMMAND, Custom, MessageEntry, moves_leaf
from miniclaw_sessions.core.protocol.messages import ABORTED, Message, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import Opening, Place, begins_turn, is_reply
from miniclaw_sessions.errors import DuplicateMessage, NothingToResume
from miniclaw_sessions.files.formats.attached import without_words

REWORDED = "reworded"
"""The type of the entry that says, before a message, of which other one it is another wording."""


def once_more(session: Session) -> Opening:
    """The user's newest message, which is answered once more. Raises `NothingToResume` without one."""

    async def place() -> Place:
        if (newest := await _newest(session)) is None:
            raise NothingToResume(f"session {session.session_id} has no message that could be answered again")
        return newest.id

    return Opening(at=place, mark=(COMMAND, {"word": "/retry"}))


def in_place_of(session: Session, entry_id: str, message: Message, *, summary: str = "") -> Opening:
    """A message in place of another one. Raises `EntryNotFound` if that is missing.

    Args:
        session: the conversation.
        entry_id: what it stands in place of.
        message: what is said.
        summary: the summary, for the model, of the branch that is left; empty: none.
    """

    async def place() -> Place:
        return (await session.tree.get_entry(entry_id)).parent_id

    return Opening([message], at=place, summary=summary)


def reworded(session: Session, message: Message, replaced: str) -> Opening:
    """Another wording of the user's newest message, as chat networks let people edit what they have said.

    A message that was never heard has nothing to go back to: the new wording is a message like any other. Of an older
    one, or with the words that stand there already, it is a DuplicateMessage: the chat has gone on since, and must
    not be thrown away for a changed word; and networks report edits that change no word.

    Args:
        session: the conversation.
        message: the new wording.
        replaced: the message's own id, its idempotency key.
    """

    async def place() -> Place:
        if (known := await session.journal.find_by_key(replaced)) is None:
            return UNSET
        newest = await _newest(session)
        if newest is None or without_words(newest.message.content) == message.content:
            raise DuplicateMessage(session.session_id, replaced, known.id)
        opening.mark = (REWORDED, {"replaces": replaced})
        if newest.id == known.id:
            return newest.parent_id
        above = None if newest.parent_id is None else await session.tree.get_entry(newest.parent_id)
        if not isinstance(above, Custom) or (above.custom_type, above.data) != opening.mark:
            raise DuplicateMessage(session.session_id, replaced, known.id)
        return above.parent_id  # it is another wording already

    opening = Opening([message], at=place)
    return opening


async def _newest(session: Session) -> MessageEntry | None:
    """The newest message of a user, on the branch of the leaf."""
    async for entry in session.tree.walk():
        if isinstance(entry, MessageEntry) and begins_turn(entry):
            return entry
    return None


async def end_of_turn(session: Session, entry_id: str) -> TurnFinished | TurnStopped | None:
    """The end of the turn of a user's message; None where it has none, because the chat went on without a reply.

    Args:
        session: in which it was said.
        entry_id: the message's entry, or one that follows it in its turn.

    Raises:
        EntryNotFound: the session has no such entry.
        StoreUnavailable: the store cannot be read.
    """
    place = (await session.tree.get_entry(entry_id)).sequence
    chain, usage = {entry_id}, Usage()
    async for entry in session.tree.read_entries(after=place):
        if entry.parent_id not in chain or not moves_leaf(entry):
            continue
        chain.add(entry.id)
        if not isinstance(entry, MessageEntry):
            continue
        if begins_turn(entry):
            return None
        usage += entry.message.usage or Usage()
        if is_reply(entry.message):
            end = TurnStopped if entry.message.stop_reason == ABORTED else TurnFinished
            return end(entry.message, usage)
    return None
