"""Cancelling every public call at every step: natively and by scope, once and twice, with others at the same keys.

What must hold afterwards, whatever was cancelled: every message that was acknowledged is there, once, now and after a
restart; every key can be used; `check` finds nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import orjson
from anyio.lowlevel import checkpoint

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.manager.reading import read_transcript
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import SessionDeleted, SessionExists, SessionNotFound, SessionsError, StoreConflict
from miniclaw_sessions.files.formats.entry_line import ENTRY_LINE
from miniclaw_sessions.files.transfer.exporting import export_session
from miniclaw_sessions.files.transfer.importing import import_stream

STORES = ("sqlite:", "jsonl:", "none:", "memory:")
DURABLE = ("sqlite:", "jsonl:")
NEEDS_TRANSCRIPT = {"branch", "compact"}
"""Calls that leave messages behind in the transcript, which `none:` has not."""

WAYS = ("native", "scope")
PATIENCE_S = 60.0
"""A wait that is longer than this, on any machine, is a wait for ever."""

WINDOW = 500
"""Larger than what one round says: where there is no transcript, the window is all there is."""

Call = Callable[["Round"], Awaitable[object]]


@dataclass
class Round:
    """One workspace, one call that is cancelled, and what was acknowledged meanwhile.

    Attributes:
        manager: open.
        acknowledged: the texts that were acknowledged and must be there, by session id.
        said: how many there were.
    """

    manager: SessionManager
    acknowledged: dict[str, list[str]] = field(default_factory=dict)
    said: int = 0

    async def say(self, chat_id: str, session: Session | None = None) -> None:
        """Say something in a chat, and note it once it is acknowledged."""
        session = session or await self.manager.get_or_create("fuzz", chat_id)
        self.said += 1
        text = f"message {self.said}"
        await session.add_message(Message.user(text))
        self.acknowledged.setdefault(session.session_id, []).append(text)

    def forget(self, session_id: str) -> None:
        """The session was asked to be deleted: what was said before may go, what is said from now on may not."""
        self.acknowledged.pop(session_id, None)


async def _file(lines: int) -> AsyncIterator[bytes]:
    yield b'{"type":"session","version":1,"id":"elsewhere","session_id":"fuzz_new","channel":"fuzz","chat_id":"new"}\n'
    for number in range(lines):
        entry = {"type": "message", "id": f"e{number}", "parent_id": f"e{number - 1}" if number else None}
        yield orjson.dumps({**entry, "message": {"role": "user", "content": f"imported {number}"}}) + b"\n"
        await checkpoint()


async def _session(here: Round, chat_id: str = "old") -> Session:
    return await here.manager.get_or_create("fuzz", chat_id)


async def _turn(here: Round) -> None:
    async with (await _session(here)).turn(Message.user("question")) as turn:
        turn.append(Message.assistant("answer"))
        await turn.save()


async def _delete(here: Round) -> None:
    here.forget("fuzz_old")
    await here.manager.delete("fuzz_old")


async def _export(here: Round) -> None:
    async for _ in export_session(here.manager, "fuzz_old", ENTRY_LINE):
        await checkpoint()


async def _transcript(here: Round) -> None:
    async for _ in read_transcript(here.manager, "fuzz_old"):
        await checkpoint()


async def _summarize(messages: Sequence[Message]) -> str:
    await checkpoint()
    return f"{len(messages)} messages"


async def _put(here: Round) -> None:
    foreign = Session.new("fuzz_new")
    foreign.append(Message.user("from elsewhere"))
    await here.manager.put(foreign)


async def _branch(here: Round) -> None:
    session = await _session(here, "tree")
    await session.tree.branch(session.entries()[0].id)


async def _save_turn(here: Round) -> None:
    await (await _session(here)).save_turn([Message.user("q"), Message.assistant("a")], Usage(input_tokens=1))


async def _fork(here: Round) -> None:
    await (await _session(here)).fork(SessionKey.of("fuzz", "new"))


async def _compact(here: Round) -> None:
    await (await _session(here)).compact(_summarize)


async def _context(here: Round) -> None:
    await (await _session(here)).get_context()


CALLS: dict[str, Call] = {
    "get_or_create": lambda here: here.manager.get_or_create("fuzz", "new"),
    "get": lambda here: here.manager.get("fuzz", "old"),
    "find": lambda here: here.manager.find("fuzz_cold"),
    "continue_recent": lambda here: here.manager.continue_recent(),
    "list": lambda here: here.manager.list(),
    "count": lambda here: here.manager.count(),
    "search": lambda here: here.manager.search("said"),
    "usage": lambda here: here.manager.usage(),
    "history": lambda here: here.manager.get_session_history("fuzz", "cold"),
    "flush": lambda here: here.manager.flush(),
    "check": lambda here: here.manager.check(),
    "repair": lambda here: here.manager.repair(),
    "sweep": lambda here: here.manager.sweep(),
    "import": lambda here: import_stream(here.manager, _file(40), name="new"),
    "export": _export,
    "read_transcript": _transcript,
    "delete": _delete,
    "put": _put,
    "add_message": lambda here: here.say("old"),
    "save_turn": _save_turn,
    "turn": _turn,
    "fork": _fork,
    "compact": _compact,
    "get_context": _context,
    "branch": _branch,
}
"""Every public coroutine of a manager and a session, and what it does here to the sessions old, cold, tree and new."""


@dataclass(frozen=True)
class Plan:
    """What one round does."""

    store: str
    call: str
    way: str
    times: int
    step: int
    late: bool = False
    """Somebody else comes when the call was cancelled, and not together with it."""

    def __str__(self) -> str:
        with_whom = "before others come" if self.late else "beside others"
        return f"{self.call} on {self.store} cancelled {self.way} {self.times}x at step {self.step} {with_whom}"


def plans(count: int, seed: int) -> list[Plan]:
    """So many plans, the same for the same seed; every call is in them if there are enough."""
    chance = random.Random(seed)
    calls = [name for _ in range(count // len(CALLS) + 1) for name in chance.sample(sorted(CALLS), len(CALLS))]
    return [
        Plan(
            store=chance.choice(DURABLE if call in NEEDS_TRANSCRIPT else STORES),
            call=call,
            way=chance.choice(WAYS),
            times=chance.choice((1, 2)),
            step=min(int(chance.choice((chance.expovariate(1 / 12), chance.uniform(0, 150)))), 200),
            late=chance.random() < 0.6,
        )
        for call in calls[:count]
    ]


async def play(plan: Plan, workspace: Path) -> list[str]:
    """Play one plan. Returns what is wrong afterwards, nothing if all is well."""
    settings = SessionSettings(store=plan.store, window=WINDOW, max_cached=3, ttl_days=0)
    problems: list[str] = []
    with anyio.fail_after(PATIENCE_S):
        async with SessionManager(workspace, settings=settings) as manager:
            here = Round(manager)
            await prepare(here)
            await _cancel(plan, here)
            problems += await usable(here)
            problems += await lost(here, manager)
            problems += [f"check: {problem}" for problem in (await manager.check()).problems]
        if plan.store != "memory:":
            async with SessionManager(workspace, settings=settings) as manager:
                problems += [f"after a restart: {problem}" for problem in await lost(here, manager)]
                problems += [f"check after a restart: {problem}" for problem in (await manager.check()).problems]
    return problems


async def prepare(here: Round) -> None:
    for chat_id in ("cold", "old", "tree", "a", "b"):
        for _ in range(3):
            await here.say(chat_id)
    await here.manager.flush()  # those that were used longest ago leave the memory
    await here.say("old")
    await here.say("tree")


async def _cancel(plan: Plan, here: Round) -> None:
    """Begin the call and somebody else's beside it, and cancel the call where the plan says."""
    scope = anyio.CancelScope()

    async def call() -> None:
        with scope, suppress(SessionsError):
            await CALLS[plan.call](here)

    task = asyncio.create_task(call())
    other = None if plan.late else asyncio.create_task(somebody_else(here))
    for _ in range(plan.step):
        await checkpoint()
    for _ in range(plan.times):
        if plan.way == "native":
            task.cancel()
        else:
            scope.cancel()
        await checkpoint()
    other = other or asyncio.create_task(somebody_else(here))
    try:
        with suppress(asyncio.CancelledError):
            await task
    finally:
        await other


async def somebody_else(here: Round) -> None:
    """Talk in the same chats meanwhile; a session that is deleted or made under one's hands is asked for again."""
    for chat_id in ("new", "old", "tree", "cold"):
        await insist(here, chat_id)


async def insist(here: Round, chat_id: str) -> None:
    while True:
        try:
            await here.say(chat_id)
        except (SessionDeleted, StoreConflict, SessionExists):
            await checkpoint()
        else:
            return


async def usable(here: Round) -> list[str]:
    """Every key can be used, at once."""
    for chat_id in ("new", "old", "tree", "cold"):
        await insist(here, chat_id)
    reserved = list(here.manager._registry._reserved)  # a stuck key is what is looked for
    return [f"the key {key} is stuck" for key in reserved]


async def lost(here: Round, manager: SessionManager) -> list[str]:
    problems = []
    for session_id, expected in here.acknowledged.items():
        try:
            there = [
                entry.message.text
                async for entry in read_transcript(manager, session_id)
                if hasattr(entry, "message") and entry.message.text.startswith("message ")
            ]
        except SessionNotFound:
            problems.append(f"{session_id} is gone with {len(expected)} acknowledged messages")
            continue
        problems += [
            f"{session_id}: {text!r} is there {there.count(text)} times" for text in expected if there.count(text) != 1
        ]
    return problems
