"""The store fails at any of a turn's commits: the reader is told, the session stays legal, and nothing is doubled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.events import ToolStarted, TurnFinished
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.stores.base import Append
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.errors import StoreError, StoreFull, StoreUnavailable
from miniclaw_sessions.testing import FakeClock, FaultyStore
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.agent.conversations import HELLO, assert_legal, calls, echo, roles, tool, transcript
from tests.legality import is_legal

pytestmark = pytest.mark.anyio

COMMITS = 4
"""Of the turn below: the user's message, the calls, their results, the reply."""


class FailsAt(FaultyStore):
    """Fails at one append and ever after, until it is healed."""

    def __init__(self, number: int, *, stored: bool) -> None:
        super().__init__(MemoryStore())
        self._number = number
        self._stored = stored

    def heal(self) -> None:
        self._number = -1
        super().heal()

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        if self.calls["append"] == self._number:
            self.fail_next(10_000, StoreFull("no space left"), stored=self._stored)
        return await super().append(appends)


@pytest.mark.parametrize("stored", [False, True], ids=["not stored", "stored and not told"])
@pytest.mark.parametrize("number", range(COMMITS + 1))
async def test_a_store_that_fails_in_mid_turn_ends_it_and_loses_nothing(
    tmp_path: Path, number: int, stored: bool
) -> None:
    store, clock = FailsAt(number, stored=stored), FakeClock()
    provider = ScriptedProvider([calls("echo", "echo"), "done"])
    agent = Agent(provider, tools=[tool("echo", echo)])
    events = []
    async with SessionManager(tmp_path, store=store, clock=clock) as manager:
        session = await manager.get_or_create("telegram", 1)

        async def read_all() -> None:
            async with agent.run(HELLO, session=session, idempotency_key="update-1") as told:
                async for event in told:
                    events.append(event)  # noqa: PERF401 - those before the error count, too

        if number < COMMITS:
            with pytest.raises(StoreUnavailable):
                await read_all()
        else:
            await read_all()
        assert any(isinstance(event, TurnFinished) for event in events) == (number == COMMITS)
        assert any(isinstance(event, ToolStarted) for event in events) == (number > 1)  # saved before they run
        assert not session.journal.turn_lock.is_held
        assert is_legal(session.messages()) == []
        assert roles(session)[:1] == ["user"]
        in_memory = roles(session)

        store.heal()
        await clock.advance(60)
        await session.saved()
        assert [f"{m.role.value}{'!' * m.is_error}" for m in await transcript(session)] == in_memory
        again = ScriptedProvider(["next"])
        await Agent(again).reply(Message.user("go on"), session=session)
        await assert_legal(session, provider, again)
        assert [message.text for message in again.contexts[0]].count("hello") == 1
