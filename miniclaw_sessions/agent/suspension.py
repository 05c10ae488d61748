"""Calls that a person must agree to: what is asked, and the turn that goes on with the answer, also after a restart.

A tool with `needs_approval` does not run when the model calls it: the turn is suspended, and its call waits, with what
the tool was when it was asked for. `Approval` is what such a turn goes on with. The answer is logged before anything
runs: what a crash interrupts then is not run again unless a person agrees once more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from miniclaw_sessions.agent.events import PendingCall
from miniclaw_sessions.core.history.pairing import open_calls
from miniclaw_sessions.core.protocol.entries import SUSPENDED
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import Opening, Place, Turn, is_reply
from miniclaw_sessions.errors import NothingToResume
from miniclaw_sessions.printable import printable

REFUSED = "error: The user did not agree to this call; it was not made. Do not make it again unless you are told to."
"""The result, for the model, of a call that a person has refused."""

MAX_ARGUMENTS = 1_000
"""Characters of a call's arguments that a question shows; it says how many it leaves out."""


def question(calls: Sequence[tuple[str, str]], words: str = "yes or no") -> str:
    """What a person is asked about calls, each the tool's name and the arguments, and with which words he answers."""
    shown = "\n".join(f"- {printable(name)} {_cut(printable(arguments))}" for name, arguments in calls)
    return f"May I do this?\n{shown}\nAnswer {words}{', for all of them' if len(calls) > 1 else ''}."


def _cut(arguments: str) -> str:
    more = len(arguments) - MAX_ARGUMENTS
    return arguments if more <= 0 else f"{arguments[:MAX_ARGUMENTS]} … and {more} characters more, not shown here"


class Approval(Opening):
    """What a suspended turn goes on with: a person's yes or no to calls that wait for it.

    Args:
        session: whose turn.
        answers: yes or no for each call by its `approval_id`; those that are left out wait on. Where one of them waits
            no more, none counts: what waits by now is another question, and is asked again.
        author: whose answer it is; kept in the transcript.

    Attributes:
        approved: the calls that run, with what was asked about them; filled when the turn begins.
    """

    __slots__ = ("_answers", "_author", "_pending", "_session", "approved")

    def __init__(self, session: Session, *, answers: Mapping[str, bool], author: str | None = None) -> None:
        super().__init__(self._said, at=self._look)
        self.approved: dict[str, Mapping[str, Any]] = {}
        self._session = session
        self._answers = answers
        self._author = author
        self._pending: list[PendingCall] = []

    async def _look(self) -> Place:
        """Look at the waiting calls while holding the turn; the conversation stays where it is."""
        self._pending = await pending_calls(self._session)
        return UNSET

    def _said(self, _: Sequence[Message], waiting: Collection[str]) -> list[Message]:
        asked = {one.waiting.approval_id: one for one in self._pending if one.needs_approval and one.call.id in waiting}
        if not asked:
            raise NothingToResume(f"session {self._session.session_id} has no call that waits for an approval")
        counts = self._answers.keys() <= asked.keys()
        decided = {asked[one].call.id: agreed for one, agreed in self._answers.items() if counts}
        self.approved.update({one.call.id: one.data for one in asked.values() if decided.get(one.call.id)})
        refused = [one.call for one in asked.values() if decided.get(one.call.id) is False]
        still = [one for one in self._pending if one.call.id not in decided]
        answer = {"approved": [*self.approved], "refused": [call.id for call in refused], "author": self._author}
        self.mark = (SUSPENDED, {"calls": documents_of(still), "answer": answer})
        return [Message.tool_result(call, REFUSED, is_error=True) for call in refused]


async def calls_to_approve(session: Session) -> list[PendingCall]:
    """The calls of a session that wait for a person's yes or no.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    return [one for one in await pending_calls(session) if one.needs_approval]


# --- the calls that wait ---------------------------------------------------------------------------------------------


async def log_pending(turn: Turn, pending: Sequence[PendingCall]) -> list[PendingCall]:
    """Log which calls of a turn wait for an answer from outside, and for what, unless that is logged already.

    Returns:
        The calls, with the question that they belong to.
    """
    if all(one.question for one in pending):
        return list(pending)
    entry_id = await turn.tree.append_custom_entry(SUSPENDED, {"calls": documents_of(pending)})
    return [msgspec.structs.replace(one, question=one.question or entry_id) for one in pending]


def documents_of(pending: Sequence[PendingCall]) -> list[dict[str, Any]]:
    """Calls that wait, as they are logged."""
    return [msgspec.to_builtins(one.waiting) for one in pending]


async def pending_calls(session: Session) -> list[PendingCall]:
    """The calls of a suspended turn that wait for an answer from outside.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    window = session.journal.conversation.window.kept
    if not window or is_reply(window[-1].message):  # as it is nearly always; then nothing is read
        return []
    waiting = await session.tree.get_waiting()
    return [
        PendingCall(call, one.reason, one.data, one.question)
        for call in open_calls(session.messages())
        if (one := waiting.get(call.id)) is not None
    ]
