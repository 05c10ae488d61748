"""What a turn costs besides the model: the agent loop with the default store, beside the bare call of the same model.

Every step of a turn is on the disk before the next one begins: a plain turn waits for two commits, one with tools for
four. The model answers at once, so that nothing but our own work is measured. Where openai-agents is installed, the
same turns are taken with it and the session that it brings, as well.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from benchmarks.workload import WORDS, Row, fresh, in_process
from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import RESERVE_TOKENS, AgentSession
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.protocol.messages import ToolCall
from miniclaw_sessions.testing.provider import ScriptedProvider

TARGET_MS = 2.0
CONTEXT_TOKENS = 32_768
HISTORY = 50
"""How many messages of the history every model is sent: our window's, and as many of another's session."""

Take = Callable[[Message], Awaitable[object]]


KINDS = {"window": "", "budget": f", compacted at {CONTEXT_TOKENS - RESERVE_TOKENS:,} tokens"}


def measure(directory: Path, *, quick: bool) -> list[Row]:
    """The rows of this benchmark."""
    numbers = in_process(_run, fresh(directory, "turns"), 100 if quick else 500)
    target = f"{TARGET_MS:g} ms besides the model"
    rows = []
    for name, calls in (("plain turn", 0), ("turn with two tool calls", 2)):
        bare = numbers[f"bare {calls}"]
        for kind, suffix in KINDS.items():
            ours = numbers[f"{kind} {calls}"]
            rows.append(Row(f"{name}{suffix} (floor: the model)", "ms", ours, bare, target, ours - bare < TARGET_MS))
        if (theirs := numbers.get(f"openai-agents {calls}")) is not None:
            rows.append(Row(f"{name}, openai-agents with its SQLiteSession", "ms", theirs, bare))
    return rows


def _run(directory: Path, turns: int) -> dict[str, float]:
    return anyio.run(partial(_measured, directory, turns))


async def _measured(directory: Path, turns: int) -> dict[str, float]:
    """All kinds of turns one after the other again and again, so that a slow spell of the machine hits all of them."""
    seconds: dict[str, list[float]] = {}
    async with SessionManager(directory / "ours") as manager:
        takes: dict[str, Take] = {}
        for calls in (0, 2):
            agent = Agent(ScriptedProvider(partial(_answer, calls)), tools=[_tool()])
            takes[f"bare {calls}"] = partial(_bare, calls)
            takes[f"window {calls}"] = partial(agent.reply, session=await manager.get_or_create("window", calls))
            session = await manager.get_or_create("budget", calls)
            kept = AgentSession(agent, session, context_window=CONTEXT_TOKENS, summarizer=_summarize)
            takes[f"budget {calls}"] = kept.reply
            if (theirs := _openai_agents(directory, calls)) is not None:
                takes[f"openai-agents {calls}"] = theirs
        for number in range(turns):
            for name, take in takes.items():
                started = time.perf_counter()
                await take(Message.user(f"question {number}: {WORDS}"))
                seconds.setdefault(name, []).append(time.perf_counter() - started)
    return {name: statistics.median(values[turns // 5 :]) * 1e3 for name, values in seconds.items()}


async def _bare(calls: int, message: Message) -> None:
    """As often as the loop asks it, with nothing but the message."""
    provider = ScriptedProvider(partial(_answer, calls))
    context = [message]
    for _ in range(2 if calls else 1):
        async with aclosing(provider.generate(context, ())) as events:
            async for _event in events:
                pass
        context = [message, *(Message.tool_result(ToolCall(str(one), "echo"), "x") for one in range(calls))]


def _answer(calls: int, context: list[Message]) -> Message:
    if context[-1].is_tool_result or not calls:
        return Message.assistant(f"answer: {WORDS * 3}")
    return Message.assistant("", tuple(ToolCall(f"call_{one}", "echo", '{"say": "x"}') for one in range(calls)))


async def _summarize(messages: Sequence[Message]) -> str:
    return f"{len(messages)} messages: {WORDS * 5}"


def _tool() -> Tool:
    async def echo(arguments: dict[str, Any]) -> str:
        return str(arguments["say"])

    return Tool("echo", "Say it again.", {"type": "object", "properties": {"say": {"type": "string"}}}, echo)


# --- openai-agents ---------------------------------------------------------------------------------------------------


def _openai_agents(directory: Path, calls: int) -> Take | None:
    """The same turn with openai-agents, if it is installed."""
    try:
        from agents import Agent as Assistant  # noqa: PLC0415 - an optional dependency
        from agents import (  # noqa: PLC0415 - same
            Model,
            ModelResponse,
            Runner,
            SQLiteSession,
            Usage,
            function_tool,
            set_tracing_disabled,
        )
        from agents.memory import SessionSettings  # noqa: PLC0415 - same
        from agents.testing import assistant_message, function_call  # noqa: PLC0415 - same
    except ImportError:
        return None
    set_tracing_disabled(True)  # it would be sent over the network

    class Scripted(Model):
        async def get_response(self, system_instructions: object, input: Any, *_: object, **__: object) -> Any:  # noqa: A002 - the protocol's name
            del system_instructions
            is_answer = not calls or input[-1].get("type") == "function_call_output"
            asked = [function_call("echo", {"say": "x"}, call_id=f"call_{one}") for one in range(calls)]
            output = [assistant_message(f"answer: {WORDS * 3}")] if is_answer else asked
            return ModelResponse(output=output, usage=Usage(), response_id=None)

        def stream_response(self, *_: object, **__: object) -> Any:
            raise NotImplementedError

    async def echo(say: str) -> str:
        return say

    assistant = Assistant(name="assistant", model=Scripted(), tools=[function_tool(echo)])
    settings = SessionSettings(limit=HISTORY)
    session = SQLiteSession(f"session-{calls}", directory / "openai-agents.db", session_settings=settings)

    async def take(message: Message) -> None:
        await Runner.run(assistant, message.text, session=session)

    return take
