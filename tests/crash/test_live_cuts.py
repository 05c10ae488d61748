"""Cuts: followers whose connections break at random lose nothing, and are given nothing twice.

Meanwhile the daemon is killed and started again; on a shared store, it is another one that they come back to.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.sharing.feed import THOROUGH_EVERY_S
from miniclaw_sessions.service.client import connect, following
from tests.sampled import repeated
from tests.service.gateway.daemons import Process

PATIENCE_S = 120.0
"""A daemon that was killed may take that long to answer again on a busy machine."""

pytestmark = [pytest.mark.anyio, pytest.mark.proof]

CUTS = int(os.environ.get("LIVE_CUTS", repeated(150)))
"""How many; a thousand of them take a minute or two."""

SESSIONS = 20
KILLS = 2
LONGEST = 1200
"""At most so many bytes of a stream come through before a cut; of what lies in a gap, some dozens of times as many."""

Seen = list[tuple[str, int]]


class Cutter:
    """Stands before one daemon after the other, and cuts every connection after a random number of bytes.

    Attributes:
        cuts: how many connections were cut.
        is_cutting: False: from now on connections hold, so that all that is still to come has a way.
    """

    def __init__(self, sockets: list[Path]) -> None:
        self.cuts = 0
        self.is_cutting = True
        self._cut = anyio.Event()
        self._sockets = sockets
        self._random = random.Random(1)

    async def reached(self, cuts: int) -> None:
        """Wait until so many connections were cut."""
        while self.cuts < cuts:
            self._cut = anyio.Event()
            await self._cut.wait()

    @asynccontextmanager
    async def listening(self, at: Path) -> AsyncIterator[None]:
        server = await asyncio.start_unix_server(self._serve, at)
        try:
            yield
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._sockets.append(self._sockets.pop(0))
        with suppress(OSError):
            asked = await reader.read(65536)
            is_stream = b"/follow" in asked or b"/v1/events" in asked
            left = self._random.randrange(1, LONGEST if is_stream else 50 * LONGEST)
            back, forth = await asyncio.open_unix_connection(self._sockets[0])

            async def ask() -> None:
                forth.write(asked)
                while data := await reader.read(65536):
                    forth.write(data)
                forth.close()

            asking = asyncio.create_task(ask())
            with suppress(OSError):
                while left > 0 and (data := await back.read(self._random.randrange(1, 1000))):
                    writer.write(data[:left] if self.is_cutting else data)
                    left -= len(data) if self.is_cutting else 0
                    await writer.drain()
            asking.cancel()
            forth.transport.abort()
        self.cuts += 1
        self._cut.set()
        writer.transport.abort()


async def follow_one(at: Path, seen: Seen) -> None:
    async with (
        connect(f"unix:{at}", patience_s=PATIENCE_S) as client,
        aclosing(client.session("a_0").follow(after=0)) as entries,
    ):
        async for entry in entries:
            if isinstance(entry, MessageEntry):
                seen.append(("a_0", entry.sequence))


async def follow_all(at: Path, seen: Seen) -> None:
    async with connect(f"unix:{at}", patience_s=PATIENCE_S) as client, client.follow_all(ends={}) as events:
        async for event in events:
            if isinstance(event.entry, MessageEntry):
                seen.append((event.session_id, event.entry.sequence))


async def write(socket: Path, chats: list[int], is_over: anyio.Event) -> None:
    """Append to sessions in turn, through a client that sends again what was not acknowledged."""
    async with connect(f"unix:{socket}", patience_s=PATIENCE_S) as client:
        count = 0
        while not is_over.is_set():
            for chat in chats:
                await client.session(f"a_{chat}").add_message(Message.user(f"message {count}"))
            count += 1
            await anyio.sleep(0.4)


class Scene:
    """Some write, through the daemons themselves, and some follow, through the cutter.

    Attributes:
        one: what was seen by who follows one session.
        every: what was seen by who follows all of them.
        is_over: set: nobody begins to write any more.
        is_written: all that was ever begun to be written is acknowledged.
    """

    def __init__(self, sockets: list[Path]) -> None:
        self.sockets = sockets
        self.cutter = Cutter(list(sockets))
        self.one: Seen = []
        self.every: Seen = []
        self.is_over = anyio.Event()
        self.is_written = anyio.Event()

    async def play(self, at: Path, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Write until it is over, and follow until it is cancelled."""
        first, last = self.sockets[0], self.sockets[-1]
        async with connect(f"unix:{first}", patience_s=PATIENCE_S) as client:
            for chat in range(SESSIONS):
                await (await client.get_or_create("a", chat)).add_message(Message.user("the first"))
        async with self.cutter.listening(at), anyio.create_task_group() as tasks:
            tasks.start_soon(follow_one, at, self.one)
            tasks.start_soon(follow_all, at, self.every)
            task_status.started()
            async with anyio.create_task_group() as writing:
                writing.start_soon(write, first, list(range(SESSIONS // 2)), self.is_over)
                writing.start_soon(write, first, list(range(SESSIONS // 2, SESSIONS)), self.is_over)
                if last != first:
                    writing.start_soon(write, last, list(range(0, SESSIONS, 3)), self.is_over)
            self.is_written.set()


async def settled(scene: Scene) -> None:
    """Compare with what is stored, when all of it has come; what comes twice or is missing never settles."""
    await scene.is_written.wait()
    scene.cutter.is_cutting = False
    one, every, stored = scene.one, scene.every, Seen()
    async with connect(f"unix:{scene.sockets[0]}", patience_s=PATIENCE_S) as client:
        for row in await client.list():
            entries = [entry async for entry in (client.session(row.session_id)).transcript()]
            stored += [(row.session_id, place + 1) for place in range(len(entries))]
    with anyio.move_on_after(2 * THOROUGH_EVERY_S):
        while len(every) < len(stored) or len(one) < sum(name == "a_0" for name, _ in stored):  # noqa: ASYNC110 - a list
            await anyio.sleep(0.05)
    missing, doubled = Counter(stored) - Counter(every), Counter(every) - Counter(stored)
    assert (missing, doubled) == ({}, {}), "all sessions: each entry once"
    assert one == sorted(place for place in stored if place[0] == "a_0"), "one session: each entry once, in order"
    for session_id in {name for name, _ in stored}:
        places = [place for name, place in every if name == session_id]
        assert places == sorted(places), f"{session_id}: in order"


async def test_over_cuts_and_kills_of_the_daemon_nothing_is_missing_and_nothing_comes_twice(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_PAUSE_S", 0.002)
    scene = Scene([short_path / "w" / "miniclaw.sock"])
    async with anyio.create_task_group() as tasks:
        for life in range(KILLS + 1):
            async with Process(short_path) as daemon:
                await daemon.notice("READY=1")
                if life == 0:
                    await tasks.start(scene.play, short_path / "c")
                await scene.cutter.reached(CUTS * (life + 1) // (KILLS + 1))
                if life < KILLS:
                    daemon.send(signal.SIGKILL)
                    await daemon.exited()
                    continue
                scene.is_over.set()
                await settled(scene)
                tasks.cancel_scope.cancel()
    assert scene.cutter.cuts >= CUTS


async def test_followers_that_come_back_to_another_gateway_miss_nothing_and_get_nothing_twice(
    postgresql_url: str, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_PAUSE_S", 0.002)
    homes = [short_path / "1", short_path / "2"]
    for home in homes:
        home.mkdir()
    async with (
        Process(homes[0], MINICLAW_SESSIONS_STORE=postgresql_url) as first,
        Process(homes[1], MINICLAW_SESSIONS_STORE=postgresql_url) as second,
    ):
        await first.notice("READY=1")
        await second.notice("READY=1")
        scene = Scene([first.socket, second.socket])
        async with anyio.create_task_group() as tasks:
            await tasks.start(scene.play, short_path / "c")
            await scene.cutter.reached(CUTS)
            scene.is_over.set()
            await settled(scene)
            tasks.cancel_scope.cancel()
