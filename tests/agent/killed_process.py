"""A process that works in one session until it is killed; `tests/crash/launcher.py` starts it.

What others were told is written down in a file, after they were told it: `asked` when the model is asked, which means
that the user's message is acknowledged, and `answered` when the turn is finished. What the tool does is written in
another file: it cannot be undone, and happens as often as the tool runs.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from miniclaw_sessions.agent.agent import Agent, TurnFinished, Unanswered
from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.errors import NothingToResume
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.agent.conversations import tool
from tests.crash.writer import log_past_the_injected_calls
from tests.killing import kill_after

CALLS = 3
STEPS = 2


def main(orders: Mapping[str, Any]) -> int:
    """Resume what was left, and say more, until `turns` were taken, or until killed: after so many `rounds` of the
    event loop, wherever that is, or when tools have done so many `marks`.
    """
    log_past_the_injected_calls()
    anyio.run(Worker(orders).work)
    return 0


class Worker:
    """One life of the process."""

    def __init__(self, orders: Mapping[str, Any]) -> None:
        self._orders = orders
        self._chance = random.Random(orders["seed"])
        self._clock = SystemClock()
        self._marks = 0
        self._told = _append_to(Path(orders["told"]))
        self._done = _append_to(Path(orders["done"]))

    async def work(self) -> None:
        """Take turns while the killer counts."""
        agent = Agent(ScriptedProvider(self._answer), tools=[tool("mark", self._mark)])
        async with SessionManager(self._orders["workspace"], store=self._orders["store"]) as manager:
            agent.session = await manager.get_or_create("telegram", 1)
            async with anyio.create_task_group() as tasks:
                if self._orders["rounds"] is not None:
                    tasks.start_soon(kill_after, self._orders["rounds"])
                await self._take_turns(agent)
                tasks.cancel_scope.cancel()

    async def _take_turns(self, agent: Agent) -> None:
        if self._orders["is_last"] or self._chance.random() < 0.7:
            try:
                async with agent.resume(unanswered=Unanswered(self._orders["unanswered"])) as events:
                    async for event in events:
                        self._note_end(event)
            except NothingToResume:
                pass
        for _ in range(self._orders["turns"]):
            async with agent.run(Message.user(f"user {self._clock.new_id()}")) as events:
                async for event in events:
                    self._note_end(event)

    def _answer(self, context: list[Message]) -> Message:
        place = next(place for place in reversed(range(len(context))) if context[place].is_user)
        asked, steps = context[place], sum(message.is_assistant for message in context[place + 1 :])
        _write(self._told, {"asked": asked.text})
        if steps == STEPS:
            return Message.assistant(f"re: {asked.text}")
        unit = self._clock.new_id()
        calls = [ToolCall(f"{unit}-{n}", "mark", json.dumps({"as": f"{unit}-{n}"})) for n in range(CALLS)]
        return Message.assistant("", tuple(calls))

    async def _mark(self, arguments: dict[str, Any]) -> str:
        await checkpoint()
        _write(self._done, arguments["as"])
        self._marks += 1
        if self._marks == self._orders["marks"]:
            os.kill(os.getpid(), signal.SIGKILL)
        await checkpoint()
        return f"marked {arguments['as']}"

    def _note_end(self, event: object) -> None:
        if isinstance(event, TurnFinished):
            _write(self._told, {"answered": event.message.text})


def _append_to(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _write(descriptor: int, line: object) -> None:
    os.write(descriptor, json.dumps(line).encode() + b"\n")
