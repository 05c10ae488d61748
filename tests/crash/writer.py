"""A gateway in small: many tasks talk in some twenty sessions until somebody cuts the power.

Everything that was acknowledged is written down, after the acknowledgement arrived, in a file on another file system.
Two more kinds of lines keep the account fair: `leaving` before a deletion, because a deletion that was cut may or may
not have happened, and `accepted` for what must be saved if the writer says that it closed well.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import structlog

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import SessionDeleted, StoreError
from miniclaw_sessions.files.transfer.backup import back_up
from tests.crash.acknowledgements import Acknowledgements

SESSIONS = 20
TASKS = 24
ALPHABET = 'abcdefghij klmnopqrstuvwxyz\n\t"\\éß漢字🙂\u2028\u0085\u001c'
UNSAVED_STATUS = 3
"""The exit status when closing raised: something was not saved, and the writer says so."""


def digest(text: str) -> str:
    """What stands for a text in the account."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def main(orders: Mapping[str, Any]) -> int:
    """Open, talk, close; the exit status says whether everything was saved."""
    log_past_the_injected_calls()
    if orders["traced"]:
        wait_for_tracer()
    acknowledgements = Acknowledgements(Path(orders["acknowledgements"]))
    try:
        anyio.run(talk, orders, acknowledgements)
    except StoreError as error:
        acknowledgements.write("unsaved", error=str(error))
        return UNSAVED_STATUS
    acknowledgements.write("closed")
    return 0


def wait_for_tracer() -> None:
    """Return when a tracer has attached: what is done before that is done without any fault."""
    while "TracerPid:\t0\n" in Path("/proc/self/status").read_text():
        time.sleep(0.001)


async def talk(orders: Mapping[str, Any], acknowledgements: Acknowledgements) -> None:
    """Let all tasks talk, each `steps` times (None: until killed), and close."""
    settings = SessionSettings(store=orders["store"], **orders["settings"])
    acknowledgements.write("opening")
    async with SessionManager(orders["workspace"], settings=settings) as manager:
        acknowledgements.write("open")
        talkers = [
            Talker(manager, acknowledgements, random.Random(f"{orders['seed']} {number}"))
            for number in range(int(orders.get("tasks", TASKS)))
        ]
        async with anyio.create_task_group() as tasks:
            for talker in talkers:
                tasks.start_soon(talker.talk, orders["steps"])
            if manager.settings.store == "none:":
                tasks.start_soon(report_flushes, manager, talkers, acknowledgements)
            if "backup" in orders:
                tasks.start_soon(report_backup, manager, Path(orders["backup"]), acknowledgements)
        acknowledgements.write("closing")


class Talker:
    """One task: does something at random in a session at random, and accounts for it."""

    def __init__(self, manager: SessionManager, acknowledgements: Acknowledgements, chance: random.Random) -> None:
        self.accepted: list[dict[str, Any]] = []
        self.is_done = False
        self._manager = manager
        self._acknowledgements = acknowledgements
        self._chance = chance
        self._is_durable = manager.settings.store != "none:"
        self._clock = SystemClock()

    async def talk(self, steps: int | None) -> None:
        """Do this many things; without a number, go on for ever."""
        actions: list[Callable[[Session], Awaitable[None]]] = [self.say, self.take_turn, self.retitle, self.clear]
        weights = [80, 10, 5, 3] if self._is_durable else [100, 0, 0, 0]
        while steps is None or steps > 0:
            steps = None if steps is None else steps - 1
            session = await self._manager.get_or_create("crash", self._chance.randrange(SESSIONS))
            try:
                if self._is_durable and self._chance.random() < 0.01:
                    await self.delete(session)
                else:
                    await self._chance.choices(actions, weights)[0](session)
            except SessionDeleted:
                continue  # by another task
        self.is_done = True

    async def say(self, session: Session) -> None:
        """One message, acknowledged."""
        text = self.text()
        if self._is_durable:
            self.account("entry", session, await session.add_message(Message.user(text)))
            return
        entry = session.append(Message.user(text))
        self.accepted.append(described(session, entry))
        await anyio.sleep(0.002)  # nothing else would slow this down

    async def take_turn(self, session: Session) -> None:
        """A question, a tool call with its result, and the answer: the last three are one unit."""
        unit = self._clock.new_id()
        call = ToolCall(f"call-{unit}", "weather", '{"city": "Bern"}')
        answers = [
            Message.assistant(f"unit {unit} 1/3 {self.text()}", (call,)),
            Message.tool_result(call, f"unit {unit} 2/3 {self.text()}"),
            Message.assistant(f"unit {unit} 3/3 {self.text()}"),
        ]
        async with session.turn(Message.user(self.text())) as turn:
            self.account("entry", session, turn.message)
            for answer in answers:
                turn.append(answer)
        for entry in session.entries():
            if f"unit {unit} " in entry.message.text:
                self.account("entry", session, entry)

    async def retitle(self, session: Session) -> None:
        """A new title, acknowledged."""
        title = self.text()[:60]
        session.update(title=title)
        sequence = session.last_sequence
        await session.saved()
        self._write("entry", session, sequence=sequence, what="session_info", digest=digest(title))

    async def clear(self, session: Session) -> None:
        """An empty window, acknowledged."""
        session.clear()
        sequence = session.last_sequence
        await session.saved()
        self._write("entry", session, sequence=sequence, what="leaf", digest="")

    async def delete(self, session: Session) -> None:
        """The session is gone for good; somebody will soon make a new one of the same name."""
        self._write("leaving", session)
        if await self._manager.delete(session.session_id):
            self._write("deleted", session)

    def text(self) -> str:
        """A text that occurs only once, of any length and with every kind of character."""
        filler = "".join(self._chance.choices(ALPHABET, k=self._chance.choice([0, 10, 100, 1000])))
        return f"{self._clock.new_id()} {filler}"

    def account(self, kind: str, session: Session, entry: MessageEntry) -> None:
        """Write down an entry."""
        self._acknowledgements.write(kind, **described(session, entry))

    def _write(self, kind: str, session: Session, **fields: Any) -> None:
        self._acknowledgements.write(
            kind, session=session.session_id, incarnation=session.journal.incarnation, **fields
        )


def described(session: Session, entry: MessageEntry) -> dict[str, Any]:
    """A message entry in the account's words."""
    return {
        "session": session.session_id,
        "incarnation": session.journal.incarnation,
        "sequence": entry.sequence,
        "what": "message",
        "id": entry.id,
        "digest": digest(entry.message.text),
    }


async def report_flushes(manager: SessionManager, talkers: list[Talker], acknowledgements: Acknowledgements) -> None:
    """Without a store only a flush saves: write down what had been accepted before one that failed nowhere."""
    while not all(talker.is_done for talker in talkers):
        before = [line for talker in talkers for line in talker.accepted]
        for talker in talkers:
            talker.accepted = []
        if (await manager.flush()).failed == 0:
            for line in before:
                acknowledgements.write("entry", **line)
        await anyio.sleep(0.005)


async def report_backup(manager: SessionManager, target: Path, acknowledgements: Acknowledgements) -> None:
    """Back up while everybody talks: what stands in the account before the first line must be in it."""
    await anyio.sleep(0.05)
    acknowledgements.write("backing_up")
    await back_up(manager, target)
    acknowledgements.write("backed_up")


def log_past_the_injected_calls() -> None:
    """Log one JSON object per line, with a system call into which no test injects faults."""
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.JSONRenderer()],
        logger_factory=_VectorLogger,
        cache_logger_on_first_use=True,
    )


class _VectorLogger:
    def __init__(self, *_: object) -> None:
        pass

    def msg(self, line: str) -> None:
        os.writev(1, [line.encode() + b"\n"])

    debug = info = warning = error = critical = exception = msg
