"""What a chat was asked last, as far as its network has taken the question: a bare word answers nothing else.

The note is in the chat's own session. So it holds after a restart and at every gateway, and a question that was shown
elsewhere, as on the page or in a linked chat, is shown here before a word here answers it.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from miniclaw_sessions.agent.events import TurnSuspended
from miniclaw_sessions.channels.base import Answered, Outgoing
from miniclaw_sessions.core.protocol.entries import OWN_METADATA
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import SessionsError

ASKED = OWN_METADATA + "asked"
"""The metadata with the `approval_id`s of the calls that a chat was asked about last."""


async def note_asked(own: Session, outgoing: Outgoing) -> None:
    """Note what a network has taken, where it is a question; where the store fails, the question is shown again."""
    if isinstance(outgoing, Answered) and isinstance(outgoing.event, TurnSuspended):
        ids = [one.waiting.approval_id for one in outgoing.event.pending]
        with suppress(SessionsError):
            own.journal.note({ASKED: ids})
            await own.saved()


def asks_something_else(own: Session) -> None:
    """A question of another kind is shown now: a bare word answers that one."""
    if ASKED in own.journal.conversation.state.metadata:
        own.journal.note({ASKED: None})


def shown_in(own: Session, question: Collection[str] | None) -> Collection[str]:
    """The calls of an open question, by their `approval_id`s, that this chat was asked about last."""
    asked = own.journal.conversation.state.metadata.get(ASKED)  # `Session.metadata` copies all of it
    return [one for one in question or () if isinstance(asked, list) and one in asked]
