"""What else a daemon does during a soak, all of it at once and for the whole time.

People chat, one program follows all sessions, others import and export files, branch, search, count what was spent,
look at the page, back the workspace up, and make sessions that soon expire. Each counts what it asked in vain while the
daemon was away or its disk full, and notes a problem where an answer was wrong. There are no more sessions in the end
than in the beginning, so memory must stay flat.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import anyio
import orjson

from benchmarks.soak_writers import LOST_CONNECTION, NOT_NOW, OK, Book, session_of
from benchmarks.unix_http import Connection
from miniclaw_sessions import connect
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.errors import (
    ManagerClosed,
    MessageUnderWay,
    SessionDeleted,
    SessionExists,
    SessionNotFound,
    SessionsError,
    StoreUnavailable,
    TurnCutOff,
    Unreachable,
)
from miniclaw_sessions.service.client import Client

CHATTERS = 4
CATCH_UP_S = 30.0
BRIEF_DAYS = 0.0003
"""Half a minute: so long a session of the channel `brief` lives."""

SETTINGS = f"""
[sessions]
sweep_interval_s = 10.0

[sessions.retention.brief]
ttl_days = {BRIEF_DAYS}
archive_days = {BRIEF_DAYS}
"""
"""What the daemon is configured with, so that something expires while it is looked at."""

_FOR_NOW = (Unreachable, StoreUnavailable, ManagerClosed, MessageUnderWay, TurnCutOff)
_PAUSES_S = {
    "chat": 0.5,
    "branch": 1.0,
    "search": 0.5,
    "import": 2.0,
    "expire": 1.0,
    "usage": 2.0,
    "look": 1.0,
    "page": 1.0,
    "back up": 20.0,
}
_TREE, _WHOLE_TREE = "soak-tree_1", 50
_PAGE = ("/", "/v1/sessions?limit=100&last_words=true", "/health", "/v1/tokens")


class Company:
    """All of them, on one daemon.

    Attributes:
        done: how often each thing was done, and `followed`: entries that were seen by the one that follows all.
        put_off: how often each was asked in vain, because the daemon was away or could not write.
    """

    def __init__(self, book: Book, socket: Path, scratch: Path) -> None:
        self.done: Counter[str] = Counter()
        self.put_off: Counter[str] = Counter()
        self._book = book
        self._socket = socket
        self._backup = scratch / "backup"
        self._file = scratch / "imported.jsonl"
        self._said = [0] * CHATTERS
        self._numbers = itertools.count(1)
        self._followed: dict[str, int] = {}

    async def keep(self, stop: anyio.Event) -> None:
        """Do all of it until it is stopped; then look whether what was said in the chats is there."""
        self._file.write_text(_a_file())
        acts = {
            "branch": self._branch,
            "search": self._search,
            "import": self._import,
            "expire": self._expire,
            "usage": self._usage,
            "look": self._look,
            "page": self._page,
            "back up": self._back_up,
        }
        async with connect(f"unix:{self._socket}", patience_s=120) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow, client)
            async with anyio.create_task_group() as acting:
                for name, act in acts.items():
                    acting.start_soon(self._repeat, name, act, client, stop)
                for number in range(CHATTERS):
                    acting.start_soon(self._repeat, "chat", _numbered(self._chat, number), client, stop)
            await self._compare(client)
            tasks.cancel_scope.cancel()

    async def _repeat(
        self, name: str, act: Callable[[Client], Awaitable[None]], client: Client, stop: anyio.Event
    ) -> None:
        while not stop.is_set():
            try:
                await act(client)
                self.done[name] += 1
            except _FOR_NOW + LOST_CONNECTION:
                self.put_off[name] += 1
            except SessionsError as error:
                self._book.problems.append(f"{name}: {type(error).__name__}: {error}")
            with anyio.move_on_after(_PAUSES_S[name]):
                await stop.wait()

    def _expect(self, holds: object, problem: str) -> None:
        if not holds:
            self._book.problems.append(problem)

    # --- what they do ------------------------------------------------------------------------------------------------

    async def _chat(self, client: Client, number: int) -> None:
        """One question, asked until it is answered; its key says that it is the same one."""
        question = f"question {self._said[number] + 1} of chatter {number}"
        kinds = []
        session = client.session(f"talk_{number}")
        async with session.chat(question, idempotency_key=question) as events:
            kinds = [event.kind async for event in events]
        if kinds[-1:] != ["done"]:
            raise TurnCutOff
        self._said[number] += 1

    async def _branch(self, client: Client) -> None:
        """A message on a branch of its own, with a label, and a copy of the session that is deleted again."""
        number = next(self._numbers)
        if number % _WHOLE_TREE == 0:  # what is read and copied whole must not grow
            await client.delete(_TREE)
        session = await client.open(_TREE)
        entry = await session.add_message({"role": "user", "content": f"branch {number}"})
        await session.tree.set_label(entry.id, "tried")
        with suppress(SessionExists):  # a copy of a time before the daemon was killed
            await session.fork("soak-tree_copy")
        await client.delete("soak-tree_copy")
        await session.tree.branch(None)

    async def _search(self, client: Client) -> None:
        found = await client.search("quick fox", channel="soak", limit=20)
        self._expect(found.results, "a search found nothing of what is said all the time")

    async def _import(self, client: Client) -> None:
        """A file becomes a session, which is exported and deleted."""
        session_id = "soak-imported_1"
        try:
            await client.import_file(self._file, session_id=session_id)
            exported = [piece async for piece in client.export(session_id, "pi")]
            self._expect(b"a word of the file" in b"".join(exported), "an export lacks what the file had")
        except SessionExists:
            pass  # of a time before the daemon was killed
        with suppress(SessionNotFound, SessionDeleted):
            await client.delete(session_id)

    async def _expire(self, client: Client) -> None:
        """A session that nobody comes back to, and a sweep."""
        session = await client.get_or_create("brief", next(self._numbers))
        await session.add_message({"role": "user", "content": "soon forgotten"})
        await client.sweep()

    async def _usage(self, client: Client) -> None:
        await client.usage()
        await client.statistics()

    async def _look(self, client: Client) -> None:
        """Read one session in every way."""
        session = client.session(session_of(0))
        context = await session.get_context()
        self._expect(context.messages, "a context is empty")
        await session.history(limit=50, before=100)
        with suppress(SessionNotFound):  # it has just been deleted
            await client.session(_TREE).tree.shape()

    async def _page(self, client: Client) -> None:
        """What the page asks for, each time by a connection of its own."""
        del client
        async with await Connection.open(self._socket) as connection:
            for path in (*_PAGE, *["/v1/sessions/talk_0/outline"] * bool(self._said[0])):
                reply = await connection.get(path)
                if reply.status in NOT_NOW:
                    raise Unreachable
                self._expect(reply.status == OK, f"{path} was answered with {reply.status}")

    async def _back_up(self, client: Client) -> None:
        """A whole backup, read again, and deleted."""
        shutil.rmtree(self._backup, ignore_errors=True)
        made = await client.back_up(self._backup)
        self._expect(not made.problems, f"a backup found {made.problems}")
        shutil.rmtree(self._backup)

    async def _follow(self, client: Client) -> None:
        """Every entry of the writers, which must come once and in order, over every restart."""
        async with client.follow_all(channel="soak") as events:
            async for event in events:
                if event.entry is None:
                    continue
                before, now = self._followed.get(event.session_id), event.entry.sequence
                follows = before is None or now == before + 1
                self._expect(follows, f"{event.session_id}: who follows it got entry {now} behind {before}")
                self._followed[event.session_id] = now
                self.done["followed"] += 1

    # --- what is there in the end ------------------------------------------------------------------------------------

    async def _compare(self, client: Client) -> None:
        """Every question is there once and answered once, and whoever follows has seen the end of each session."""
        for number, said in enumerate(self._said):
            transcript = [entry async for entry in client.session(f"talk_{number}").tree.walk()]
            messages = [entry.message for entry in reversed(transcript) if isinstance(entry, MessageEntry)]
            asked = [message.text for message in messages if message.is_user]
            answers = sum(message.is_assistant for message in messages)
            expected = [f"question {which} of chatter {number}" for which in range(1, said + 1)]
            problem = f"talk_{number}: {said} questions were answered, and {len(asked)} are there"
            self._expect(asked[:said] == expected, problem)
            self._expect(said <= answers <= said + 1, f"talk_{number}: {said} questions have {answers} answers")
        for session_id in self._followed:
            end = (await client.session(session_id).info()).committed_sequence
            with anyio.move_on_after(CATCH_UP_S):
                while self._followed[session_id] < end:  # noqa: ASYNC110 - it is counted elsewhere
                    await anyio.sleep(0.1)
            last = self._followed[session_id]
            self._expect(last == end, f"{session_id}: who follows it is at entry {last} of {end}")


def _numbered(act: Callable[[Client, int], Awaitable[None]], number: int) -> Callable[[Client], Awaitable[None]]:
    return lambda client: act(client, number)


def _a_file() -> str:
    """A session file of pi with some hundred messages."""
    lines: list[dict[str, object]] = [
        {"type": "session", "version": 3, "id": "soak", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/"}
    ]
    before = None
    for number in range(200):
        message = {"role": "user", "content": f"a word of the file, number {number}"}
        entry = {"type": "message", "id": f"{number:08x}", "parentId": before, "timestamp": "2026-01-01T00:00:00.000Z"}
        lines.append({**entry, "message": {**message, "timestamp": 1767225600000 + number}})
        before = f"{number:08x}"
    return "".join(orjson.dumps(line).decode() + "\n" for line in lines)
