"""A message that its author has given another wording, as chat networks let him."""

from __future__ import annotations

from msgspec import UNSET

from miniclaw_sessions.errors import DuplicateMessage
from miniclaw_sessions.protocol.entries import MessageEntry
from miniclaw_sessions.protocol.messages import Message
from miniclaw_sessions.session import Session
from miniclaw_sessions.session.turn import Opening, Place, begins_turn


class Reworded(Opening):
    """Another wording of the user's newest message, said where that was said; what was said since stays on its branch.

    A message that was never heard has nothing to go back to: the new wording is a message like any other. Of an older
    one, or with the words that stand there already, it is a DuplicateMessage: the chat has gone on since, and nobody
    expects what was said to be thrown away for a word of it; and networks tell of edits that change no word.

    Args:
        session: the chat's.
        message: the new wording.
        replaced: the message's own id.
    """

    __slots__ = ("_message", "_replaced", "_session")

    def __init__(self, session: Session, message: Message, replaced: str) -> None:
        super().__init__(lambda _, __: [message], at=self._look)
        self._session, self._message, self._replaced = session, message, replaced

    async def _look(self) -> Place:
        """Where it was said, found while nobody else has the turn."""
        session = self._session
        known = await session.journal.find_by_key(self._replaced)
        if known is None:
            return UNSET
        place = (await session.tree.get_entry(known.id)).parent_id
        async for entry in session.tree.walk():
            if isinstance(entry, MessageEntry) and begins_turn(entry):
                if entry.parent_id == place and entry.message.content != self._message.content:
                    return place  # that of any wording of it
                break
        raise DuplicateMessage(session.session_id, self._replaced, known.id)
