"""The words that answer a tool's call which waits for a person, in whatever chat."""

from __future__ import annotations

from collections.abc import Mapping

from miniclaw_sessions.agent.answered import end_of_turn, obeyed_before
from miniclaw_sessions.agent.approving import Approval, calls_to_approve
from miniclaw_sessions.channels.base import Incoming
from miniclaw_sessions.errors import DuplicateMessage
from miniclaw_sessions.protocol.messages import Message
from miniclaw_sessions.session import Session

WORDS = {**dict.fromkeys(("yes", "y", "ok"), True), **dict.fromkeys(("no", "n"), False)}
"""What is an answer while a call waits for one, and a word like any other else."""


async def what_is_said(session: Session, incoming: Incoming) -> Message | Approval | None:
    """What the turn of a delivery begins with: its message, or where that is an answer to a question, the approval.

    Raises:
        DuplicateMessage: the answer was delivered before, and its turn is over.
        StoreUnavailable: the store cannot be read.
    """
    message = incoming.message
    if incoming.approvals is not None:
        return await decision(session, incoming, incoming.approvals)
    word = "" if message is None else message.text.strip().rstrip(".!").casefold()
    if word not in WORDS:
        return message
    if await calls_to_approve(session) or await obeyed_before(session, incoming.message_id):
        return await decision(session, incoming, WORDS[word])
    return message


async def decision(session: Session, incoming: Incoming, answers: Mapping[str, bool] | bool) -> Approval | None:
    """What the turn of an answer begins with; None: it had begun when the process was killed, and goes on.

    Raises:
        DuplicateMessage: it was delivered before, and its turn is over.
        StoreUnavailable: the store cannot be read.
    """
    key = incoming.message_id
    if key is not None and (entry_id := await obeyed_before(session, key)) is not None:
        if await end_of_turn(session, entry_id) is not None:
            raise DuplicateMessage(session.session_id, key, entry_id)
        return None
    author = None if incoming.message is None else incoming.message.author
    return Approval(session, answers=answers, author=author, key=key)
