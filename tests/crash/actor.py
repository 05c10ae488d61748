"""A writer that does one thing while it is watched, for faults injected into exactly that.

It says `ready`, waits for a byte in a pipe (a signal would need a write, which may be the very call that fails), acts,
says `acted` and waits to be killed or cut. A step that fails is tried again until it succeeds, as a gateway would: it
says `refused`, and only success is acknowledged.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import SessionsError, StoreError
from tests.crash.acknowledgements import Acknowledgements
from tests.crash.writer import UNSAVED_STATUS, described, log_past_the_injected_calls

SESSIONS = 12
RETRY_LIMIT_S = 5.0

OPENING_ACTS = ("create", "open", "wake")
"""Opening is the act: of a directory in which nothing is yet, or of one in which something must be recovered.

`wake` recovers as little as possible at first, and then one session after the other, with room for few in memory.
"""

RESIDENT = {"wake": 3}

Act = Callable[["Actor"], Awaitable[None]]


def main(orders: Mapping[str, Any]) -> int:
    """Prepare, act, and wait for the end."""
    log_past_the_injected_calls()
    acknowledgements = Acknowledgements(Path(orders["acknowledgements"]))
    try:
        anyio.run(perform, orders, acknowledgements)
    except StoreError as error:
        acknowledgements.write("unsaved", error=str(error))
        return UNSAVED_STATUS
    acknowledgements.write("closed")
    acknowledgements.write("acted")
    while True:
        signal.pause()


async def perform(orders: Mapping[str, Any], acknowledgements: Acknowledgements) -> None:
    """Do one act between `ready` and `acted`."""
    act = orders["act"]
    go = os.open(orders["go"], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if act in OPENING_ACTS:
        acknowledgements.write("ready")
        await anyio.wait_readable(go)
    manager = await opened(orders, acknowledgements)
    held: list[Session] = []  # in memory until the end: what loading them may meet is the act `wake`
    if act not in OPENING_ACTS:
        if act != "prepare":
            held += [await manager.find(f"crash_{number}") for number in range(SESSIONS)]
        acknowledgements.write("ready")
        await anyio.wait_readable(go)
    if act in ACTS:
        await ACTS[act](Actor(manager, acknowledgements))
    if act not in ("close", "prepare"):
        acknowledgements.write("acted")
        await anyio.sleep_forever()
    await manager.close()
    held.clear()


async def opened(orders: Mapping[str, Any], acknowledgements: Acknowledgements) -> SessionManager:
    """The manager, opened, if need be at a later attempt: an error while starting must change nothing."""
    deadline = time.monotonic() + RETRY_LIMIT_S
    while True:
        resident = RESIDENT.get(orders["act"], SessionSettings().max_cached)
        settings = SessionSettings(store=orders["store"], flush_interval_s=3600.0, max_cached=resident)
        try:
            return await SessionManager(orders["workspace"], settings=settings).__aenter__()
        except (SessionsError, OSError) as error:
            acknowledgements.write("refused", error=str(error))
            if time.monotonic() > deadline:
                raise
            await anyio.sleep(0.01)


class Actor:
    """The acts."""

    def __init__(self, manager: SessionManager, acknowledgements: Acknowledgements) -> None:
        self._manager = manager
        self._acknowledgements = acknowledgements
        self._clock = SystemClock()

    async def prepare(self) -> None:
        """A few sessions of a few messages each, saved when the manager closes."""
        for number in range(SESSIONS):
            session = await self._manager.get_or_create("crash", number)
            for _ in range(3):
                self._append(session)

    async def wake(self) -> None:
        """Ask for every session there is."""
        for number in range(SESSIONS):
            await self._until_it_succeeds(partial(self._manager.get_or_create, "crash", number))

    async def commit(self) -> None:
        """Acknowledge one message, then several at once."""
        await self._commit(range(1))
        await self._commit(range(5))

    async def flush(self) -> None:
        """Checkpoint a few sessions, which are synced one by one."""
        await self._flush(3)

    async def flush_many(self) -> None:
        """Checkpoint many sessions, which are synced together."""
        await self._flush(SESSIONS)

    async def delete(self) -> None:
        """Delete a session, and make another one of its name."""
        session = await self._manager.get_or_create("crash", 1)
        life = {"session": session.session_id, "incarnation": session.journal.incarnation}
        self._acknowledgements.write("leaving", **life)
        await self._until_it_succeeds(lambda: self._manager.delete(session.session_id))
        self._acknowledgements.write("deleted", **life)

    async def close(self) -> None:
        """Accept a few messages and leave the rest to closing."""
        for number in range(3):
            session = await self._manager.get_or_create("crash", number)
            self._append(session)

    async def _commit(self, numbers: range) -> None:
        sessions = [await self._manager.get_or_create("crash", number) for number in numbers]
        lines = [self._append(session) for session in sessions]
        for session, line in zip(sessions, lines, strict=True):
            await self._until_it_succeeds(session.saved)
            self._acknowledgements.write("entry", **line)

    async def _flush(self, number: int) -> None:
        lines = [self._append(await self._manager.get_or_create("crash", n)) for n in range(number)]

        async def flush() -> None:
            if (await self._manager.flush()).failed:
                raise StoreError("some snapshots could not be written")

        await self._until_it_succeeds(flush)
        for line in lines:
            self._acknowledgements.write("entry", **line)

    def _append(self, session: Session) -> dict[str, Any]:
        entry = session.append(Message.user(f"{self._clock.new_id()} {'x' * 300}"))
        line = described(session, entry)
        self._acknowledgements.write("accepted", **line)
        return line

    async def _until_it_succeeds(self, step: Callable[[], Awaitable[object]]) -> None:
        deadline = time.monotonic() + RETRY_LIMIT_S
        while True:
            try:
                await step()
            except SessionsError as error:
                self._acknowledgements.write("refused", error=str(error))
                if time.monotonic() > deadline:
                    raise
                await anyio.sleep(0.01)
            else:
                return


ACTS: Mapping[str, Act] = {
    "prepare": Actor.prepare,
    "wake": Actor.wake,
    "commit": Actor.commit,
    "flush": Actor.flush,
    "flush_many": Actor.flush_many,
    "delete": Actor.delete,
    "close": Actor.close,
}
