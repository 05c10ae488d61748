"""Running the calls of one reply: all at the same time, each within its time, every one answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import anyio
import msgspec

from miniclaw_sessions.agent.events import AgentEvent, PendingCall, ToolFinished, ToolStarted
from miniclaw_sessions.agent.hooks import Generation, Hooks, calling_tools_in
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.protocol.entries import FINGERPRINT
from miniclaw_sessions.core.protocol.json_values import parse_json
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.core.session.turn import INTERRUPTED, Turn
from miniclaw_sessions.errors import ConfigError, InvalidMessage
from miniclaw_sessions.log import get_logger

MAX_ERROR_LENGTH = 2000
"""Characters of a tool's error that a model is shown."""

MALFORMED = "malformed_arguments"
"""In the `extra` of a call: the arguments that were not JSON."""

Tell = Callable[[AgentEvent], None]

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
        tell: Tell,
        *,
        approved: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> list[PendingCall]:
        """Run all calls at the same time; the turn gets their results in the order of the calls.

        When this is cancelled, those that had ended keep their result and the others are answered with an error.

        Args:
            calls: what the model has called.
            turn: gets the results.
            generation: the turn, as hooks see it.
            tell: called when a tool begins, and when it has ended.
            approved: the calls that a person has agreed to, with the data of what he was asked (`FINGERPRINT`).

        Returns:
            The calls that wait for an answer from outside; they have no result yet.
        """
        results: list[Message | PendingCall | None] = [None] * len(calls)

        async def run(index: int, call: ToolCall) -> None:
            tell(ToolStarted(call))
            calling_tools_in(generation)
            results[index] = result = await self._run(call, turn, generation, approved.get(call.id))
            if isinstance(result, Message):
                tell(ToolFinished(call, result))

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
            changed = await self._hooks.after_tool(generation, call, result)
            result = _for_call(call, changed or result)
            turn.check(result)
        except SuspendTurn as suspended:
            return self._pending(call, suspended, turn)
        except _UncallableError as error:
            return error_result(call, str(error))
        except InvalidMessage as error:
            return error_result(call, f"the result cannot be stored: {error}")
        except Exception as error:  # noqa: BLE001 - a tool may raise anything
            log.warning(
                "a tool failed; the model gets the error",
                action="tool.failed",
                session_id=turn.session_id,
                tool=call.name,
                error_type=type(error).__name__,
            )
            return error_result(call, str(error) or type(error).__name__)
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
        tool, arguments = self._chosen(chosen)
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

    def _chosen(self, call: ToolCall) -> tuple[Tool, dict[str, object]]:
        """The tool and the arguments that a call asks for."""
        by_name = {tool.name: tool for tool in self.tools}
        tool = by_name.get(call.name)
        if tool is None:
            known = ", ".join(by_name) or "none"
            raise _UncallableError(f"there is no tool {call.name!r}; the tools are: {known}")
        if MALFORMED in (call.extra or {}):
            raise _UncallableError("the arguments were not valid JSON; call the tool again with a JSON object")
        arguments = parse_json(call.arguments.encode()) if call.arguments.strip() else {}
        if not isinstance(arguments, dict):
            raise _UncallableError("the arguments were not a JSON object; call the tool again with one")
        return tool, arguments


class _UncallableError(Exception):
    """A call that no tool can answer; the text is for the model."""


def error_result(call: ToolCall, text: str) -> Message:
    """The result, for the model, of a call that failed."""
    shown = text[:MAX_ERROR_LENGTH].encode(errors="replace").decode()  # a lone surrogate could not be stored
    return Message.tool_result(call, f"error: {shown}", is_error=True)


def _for_call(call: ToolCall, result: Message) -> Message:
    """A hook's result always answers the call that it was asked about."""
    if result.tool_call_id == call.id and result.is_tool_result:
        return result
    return Message.tool_result(call, result.content, is_error=result.is_error)
