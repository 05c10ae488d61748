"""The words that answer a tool's call which waits for a person, in whatever chat."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress

from miniclaw_sessions.agent.approving import Approval, calls_to_approve
from miniclaw_sessions.channels.base import Incoming
from miniclaw_sessions.errors import EntryNotFound, InvalidMessage
from miniclaw_sessions.protocol.entries import Custom
from miniclaw_sessions.protocol.messages import Message
from miniclaw_sessions.session import Session

WORDS = {**dict.fromkeys(("yes", "y", "ok"), True), **dict.fromkeys(("no", "n"), False)}
"""What is an answer while a call waits for one, and a word like any other else."""

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
    if word not in WORDS or not (await calls_to_approve(session) or await _was_an_answer(session, incoming)):
        return message
    return approval(session, incoming, dict.fromkeys(question, WORDS[word]))


def approval(session: Session, incoming: Incoming, answers: Mapping[str, bool]) -> Approval:
    """What the turn of an answer begins with; the turn knows one that was delivered before."""
    return Approval(session, answers=answers, author=None if incoming.message is None else incoming.message.author)


async def _was_an_answer(session: Session, incoming: Incoming) -> bool:
    """Whether the word was delivered before, and was no message then."""
    key = incoming.message_id
    known = None if key is None else await session.journal.find_by_key(key)
    with suppress(EntryNotFound, InvalidMessage):  # one that is not kept, or damaged, was a message as far as we know
        return known is not None and isinstance(await session.tree.get_entry(known.id), Custom)
    return False
