"""The words that answer a tool's call which waits for a person, in whatever chat."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from miniclaw_sessions.agent.approving import Approval, calls_to_approve
from miniclaw_sessions.channels.base import Incoming
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session

WORDS = {**dict.fromkeys(("yes", "y", "ok"), True), **dict.fromkeys(("no", "n"), False)}
"""What is an answer where it is said to the bot while a call waits for one, and a word like any other else."""

Question = Collection[str]
"""The calls that a person was asked about, each by its `approval_id`; none: he was asked nothing."""


async def standing_question(session: Session) -> Question:
    """What a person is asked now.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    return [one.waiting.approval_id for one in await calls_to_approve(session)]


async def what_is_said(session: Session, incoming: Incoming, question: Question) -> Message | Approval | None:
    """What the turn of a delivery begins with: its message, or where that is an answer to a question, the approval.

    Args:
        session: to which it was said.
        incoming: the delivery.
        question: what stood when it was said: it answers nothing else.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    message = incoming.message
    if incoming.approvals is not None:
        return approval(session, incoming, incoming.approvals)
    word = "" if message is None else message.text.strip().rstrip(".!").casefold()
    is_answer = word in WORDS and incoming.is_addressed and incoming.replaces is None
    if not is_answer or not await calls_to_approve(session):
        return message
    return approval(session, incoming, dict.fromkeys(question, WORDS[word]))


def approval(session: Session, incoming: Incoming, answers: Mapping[str, bool]) -> Approval:
    """What the turn of an answer begins with; the turn knows one that was delivered before."""
    named = None if incoming.message is None else incoming.message.author
    return Approval(session, answers=answers, author=named or incoming.author)
