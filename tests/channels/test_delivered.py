"""The note that a network has taken an answer, between two managers on one database; the rest is in the contract."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from miniclaw_sessions import SessionManager
from miniclaw_sessions.channels.delivered import BEAT_S, PATIENCE_S, SENDING, Note
from miniclaw_sessions.testing import FakeClock
from tests.channels.rooms import PATIENCE_S as LONG_S

pytestmark = pytest.mark.anyio


async def note(manager: SessionManager) -> Note:
    return Note(manager, await manager.get_or_create("room", "1"), "m1")


async def test_a_gateway_sends_what_another_one_has_made_only_when_that_one_shows_no_life(postgresql_url: str) -> None:
    here, there = FakeClock(), FakeClock()
    async with (
        SessionManager(store=postgresql_url, clock=here) as a,
        SessionManager(store=postgresql_url, clock=there) as b,
    ):
        sending, waiting, outcome = await note(a), await note(b), list[bool]()

        async def wait() -> None:
            outcome.append(await waiting.is_ours())

        async def sign() -> str:
            return str((await b.find("room_1")).metadata.get(SENDING))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            with anyio.fail_after(LONG_S):
                async with sending.sending():
                    for _ in range(3):
                        before = await sign()
                        while await sign() == before:
                            await here.advance(BEAT_S)
                        for _ in range(int(PATIENCE_S) - 1):
                            await there.advance(1.0)
                        assert outcome == []
                while not outcome:
                    await there.advance(1.0)
        assert outcome == [True]
        await waiting.write()
        assert await (await note(a)).is_ours() is False
        assert not (await a.find("room_1")).metadata.get(SENDING)


async def test_where_nobody_else_sends_nothing_is_waited_for_and_the_note_is_found_after_a_restart(
    tmp_path: Path,
) -> None:
    for is_first in (True, False):
        async with SessionManager(tmp_path, clock=FakeClock()) as manager:
            one = await note(manager)
            assert await one.is_ours() is is_first
            await one.write()
            session = await manager.find("room_1")
            assert (session.messages(), session.leaf_id) == ([], None), "the conversation does not change"
