"""The words that answer a tool's call which waits for a person, in whatever chat."""

from __future__ import annotations

from collections.abc import Mapping

from miniclaw_sessions.agent.answered import end_of_turn
from miniclaw_sessions.agent.approving import Approval, answered_by, calls_to_approve
from miniclaw_sessions.channels.base import Incoming
from miniclaw_sessions.errors import DuplicateMessage
from miniclaw_sessions.protocol.messages import Message
from miniclaw_sessions.session import Session

COMMANDS = {"/approve": True, "/deny": False}
"""What a person answers with at any time."""

WORDS = {**dict.fromkeys(("yes", "y", "ok"), True), **dict.fromkeys(("no", "n"), False)}
"""What is an answer as well, while a call waits for one."""


async def what_is_said(session: Session, incoming: Incoming) -> Message | Approval | None:
    """What the turn of a delivery begins with: its message, or where that is an answer to a question, the approval.

    Raises:
        DuplicateMessage: the answer was delivered before, and its turn is over.
        StoreUnavailable: the store cannot be read.
    """
    message, key = incoming.message, incoming.message_id
    word = "" if message is None else message.text.strip().rstrip(".!").casefold()
    answers: Mapping[str, bool] | bool | None = incoming.approvals
    if answers is None:
        answers = COMMANDS.get(word.partition("@")[0], WORDS.get(word))
    if answers is None:
        return message
    if key is not None and (entry_id := await answered_by(session, key)) is not None:
        if await end_of_turn(session, entry_id) is not None:
            raise DuplicateMessage(session.session_id, key, entry_id)
        return None  # the process was killed while the turn went on: it goes on again
    if word in WORDS and incoming.approvals is None and not await calls_to_approve(session):
        return message
    return Approval(session, answers=answers, author=None if message is None else message.author, key=key)
