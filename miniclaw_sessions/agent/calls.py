"""The calls of a model: running them, the wait for an answer from outside, and a person's yes or no.

All calls of one reply run at the same time, each within its time, and each is answered. A tool that raises
`SuspendTurn`, or that has `needs_approval`, suspends the turn: its call waits, with what the tool was when it was
called. `Approval` is what such a turn goes on with, also after a restart. The answer is logged before anything runs:
what a crash interrupts then is not run again unless a person agrees once more.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import anyio
import msgspec
from msgspec import UNSET

from miniclaw_sessions.agent.events import AgentEvent, PendingCall, ToolFinished, ToolStarted
from miniclaw_sessions.agent.hooks import Generation, Hooks, calling_tools_in
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.history.pairing import open_calls
from miniclaw_sessions.core.protocol.entries import FINGERPRINT, SUSPENDED
from miniclaw_sessions.core.protocol.json_values import parse_json
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import INTERRUPTED, Opening, Place, Turn, is_reply
from miniclaw_sessions.errors import ConfigError, InvalidMessage, NothingToResume
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.printable import printable

MAX_ERROR_LENGTH = 2000
"""Characters of a tool's error that a model is shown."""

MALFORMED = "malformed_arguments"
"""In the `extra` of a call: the arguments that were not JSON."""

REFUSED = "error: The user did not agree to this call; it was not made. Do not make it again unless you are told to."
"""The result, for the model, of a call that a person has refused."""

MAX_ARGUMENTS = 1_000
"""Characters of a call's arguments that a question shows; it says how many it leaves out."""

OnEvent = Callable[[AgentEvent], None]

log = get_logger(__name__)


class SuspendTurn(Exception):
    """A tool raises it when the answer comes from outside, later: a person must agree, a job must end.

    The turn ends and says so; `Agent.resume` goes on with the answer, also after a restart.

    Args:
        reason: what is waited for.
        data: JSON that the tool needs to recognize the answer.
    """

    def __init__(self, reason: str = "", data: Mapping[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.data = dict(data or {})


class ToolRunner:
    """The tools of an agent.

    Args:
        tools: by distinct names.
        timeout_s: seconds after which a tool is cancelled, and its call answered with an error.
        hooks: called around each tool.
        changing: gives those that come and go, by names that none of the others has.

    Raises:
        ConfigError: two tools have one name.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        timeout_s: float,
        hooks: Hooks,
        changing: Callable[[], Iterable[Tool]] = tuple,
    ) -> None:
        self.fixed = tuple(tools)
        self.changing = changing
        self.timeout_s = timeout_s
        self._hooks = hooks
        if len({tool.name for tool in self.fixed}) < len(self.fixed):
            raise ConfigError("an agent cannot have two tools of one name; rename one")

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What there is now, by distinct names."""
        return tuple({tool.name: tool for tool in (*self.changing(), *self.fixed)}.values())

    async def run_all(
        self,
        calls: Sequence[ToolCall],
        turn: Turn,
        generation: Generation,
        on_event: OnEvent,
        *,
        approved: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> list[PendingCall]:
        """Run all calls at the same time; the turn gets their results in the order of the calls.

        When this is cancelled, those that had ended keep their result and the others are answered with an error.

        Args:
            calls: what the model has called.
            turn: gets the results.
            generation: the turn, as hooks see it.
            on_event: called when a tool begins, and when it has ended.
            approved: the calls that a person has agreed to, with the data of what he was asked (`FINGERPRINT`).

        Returns:
            The calls that wait for an answer from outside; they have no result yet.
        """
        results: list[Message | PendingCall | None] = [None] * len(calls)

        async def run(index: int, call: ToolCall) -> None:
            on_event(ToolStarted(call))
            calling_tools_in(generation)
            results[index] = result = await self._run(call, turn, generation, approved.get(call.id))
            if isinstance(result, Message):
                on_event(ToolFinished(call, result))

        try:
            async with anyio.create_task_group() as tasks:
                for index, call in enumerate(calls):
                    tasks.start_soon(run, index, call, name=f"tool {call.name}")
        finally:
            for call, result in zip(calls, results, strict=True):
                if not isinstance(result, PendingCall):
                    turn.append(result or Message.tool_result(call, INTERRUPTED, is_error=True))
        return [result for result in results if isinstance(result, PendingCall)]

    async def _run(
        self, call: ToolCall, turn: Turn, generation: Generation, approved: Mapping[str, Any] | None
    ) -> Message | PendingCall:
        """One call's result; every failure becomes an error result that the model sees."""
        try:
            chosen = await self._hooks.before_tool(generation, call)
            result = chosen if isinstance(chosen, Message) else await self._answer(call, chosen or call, approved)
            result = await self._hooks.after_tool(generation, call, result) or result
            if result.tool_call_id != call.id or not result.is_tool_result:  # a hook's result answers this call, too
                result = Message.tool_result(call, result.content, is_error=result.is_error)
            turn.check(result)
        except SuspendTurn as suspended:
            return self._pending(call, suspended, turn)
        except _UncallableError as error:
            return error_result(call, str(error))
        except InvalidMessage as error:
            return error_result(call, f"the result cannot be stored: {error}")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool may raise anything, and ends no program
            log.warning(
                "a tool failed; the model gets the error",
                action="tool.failed",
                session_id=turn.session_id,
                tool=call.name,
                error_type=type(error).__name__,
            )
            text = repr(error) if isinstance(error, SystemExit) else str(error) or type(error).__name__
            return error_result(call, text)
        return result

    @staticmethod
    def _pending(call: ToolCall, suspended: SuspendTurn, turn: Turn) -> PendingCall | Message:
        """What is waited for, provided that it can be logged: a restart must find it."""
        extra = {"reason": suspended.reason, "data": suspended.data}
        try:
            turn.check(msgspec.structs.replace(Message.tool_result(call, ""), extra=extra))
        except InvalidMessage as error:
            return error_result(call, f"the call cannot wait for an answer with this data: {error}")
        return PendingCall(call, suspended.reason, suspended.data)

    async def _answer(self, call: ToolCall, chosen: ToolCall, approved: Mapping[str, Any] | None) -> Message:
        by_name = {tool.name: tool for tool in self.tools}
        tool = by_name.get(chosen.name)
        if tool is None:
            known = ", ".join(by_name) or "none"
            raise _UncallableError(f"there is no tool {chosen.name!r}; the tools are: {known}")
        if MALFORMED in (chosen.extra or {}):
            raise _UncallableError("the arguments were not valid JSON; call the tool again with a JSON object")
        arguments = parse_json(chosen.arguments.encode()) if chosen.arguments.strip() else {}
        if not isinstance(arguments, dict):
            raise _UncallableError("the arguments were not a JSON object; call the tool again with one")
        if (name := _given_twice(chosen.arguments)) is not None:
            raise _UncallableError(f"the arguments name {name[:100]!r} twice; call the tool again with each name once")
        asked = {FINGERPRINT: tool.fingerprint, "name": chosen.name, "arguments": chosen.arguments}
        if tool.needs_approval and approved is None:
            raise SuspendTurn(f"may {tool.name} be called?", asked)
        if approved not in (None, asked):
            raise _UncallableError(
                f"{tool.name}, or this call, has changed since a person agreed to it; it was not made"
            )
        timeout_s = self.timeout_s if tool.timeout_s is None else tool.timeout_s
        with anyio.move_on_after(timeout_s) as scope:
            return Message.tool_result(call, await tool.run(arguments))
        if scope.cancelled_caught:
            raise _UncallableError(f"no answer within {timeout_s:g} seconds")
        raise _UncallableError("the tool ended without a result")


def _given_twice(arguments: str) -> str | None:
    """A name that the arguments give twice: the question to a person would show one value, and the other would run."""
    twice: list[str] = []

    def see(pairs: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in pairs]
        twice.extend(name for name, times in Counter(names).items() if times > 1)

    if arguments.strip():
        json.loads(arguments, object_pairs_hook=see)
    return twice[0] if twice else None


class _UncallableError(Exception):
    """A call that no tool can answer; the text is for the model."""


def error_result(call: ToolCall, text: str) -> Message:
    """The result, for the model, of a call that failed."""
    shown = text[:MAX_ERROR_LENGTH].encode(errors="replace").decode()  # a lone surrogate could not be stored
    return Message.tool_result(call, f"error: {shown}", is_error=True)


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


# --- a person's yes or no --------------------------------------------------------------------------------------------


def question(calls: Sequence[tuple[str, str]], words: str = "yes or no") -> str:
    """What a person is asked about calls, each the tool's name and the arguments, and with which words he answers."""
    lines = ["May I do this?"]
    for name, arguments in calls:
        shown = printable(arguments)
        more = len(shown) - MAX_ARGUMENTS
        if more > 0:
            shown = f"{shown[:MAX_ARGUMENTS]} … and {more} characters more, not shown here"
        lines.append(f"- {printable(name)} {shown}")
    lines.append(f"Answer {words}{', for all of them' if len(calls) > 1 else ''}.")
    return "\n".join(lines)


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
        super().__init__(at=self._look)
        self.approved: dict[str, Mapping[str, Any]] = {}
        self._session = session
        self._answers = answers
        self._author = author
        self._pending: list[PendingCall] = []

    async def _look(self) -> Place:
        """Look at the waiting calls while holding the turn; the conversation stays where it is."""
        self._pending = await pending_calls(self._session)
        return UNSET

    def messages(self, before: Sequence[Message], waiting: Collection[str]) -> list[Message]:  # noqa: ARG002 - see `Opening`
        """The results of the calls that are refused."""
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
