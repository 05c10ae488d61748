"""Those who talk to the daemon during a soak, and what must be found of what they said.

Every writer numbers its messages and goes on to the next one only when the one before is acknowledged; it sends a
message again, with the same idempotency key, until it is. After every fault of the daemon, a session therefore holds
of each of its writers the messages 1, 2, 3 and so on up to the last acknowledged one, and perhaps the one after it.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import anyio
import orjson

from benchmarks.unix_http import Connection, Reply

PER_SESSION = 2
"""Writers in each session: they must not get into each other's way."""

SPOKEN_BEFORE = 160
"""Messages of each writer before anything is measured: windows and remembered keys are full then."""

REQUEST_LIMIT_S = 40.0
PAUSE_AFTER_FAILURE_S = 0.1
READ_EVERY_S = 0.2
WHOLE_TRANSCRIPT_EVERY = 40
"""How many reads of a window there are for each read of a whole transcript."""

LONGEST_NUMBERS = 40
"""Characters of a message that identify its writer."""

OK, CREATED = 200, 201
NOT_NOW = frozenset({429, 503, 507})
LOST_CONNECTION = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, TimeoutError)
_FILLER = (
    "the quick brown fox jumps over the lazy dog and tells everybody about it, \u00e9\u6f22\U0001f642 included. " * 16
)


class Book:
    """What was acknowledged to whom, and everything that is not as it must be.

    Attributes:
        acknowledged: the number of its last acknowledged message, for each writer.
        refused: replies that said "not now", by status.
        interrupted: requests whose connection ended before the reply.
        recognized: messages that were sent again and had been stored already.
        latencies: seconds of each acknowledged request since they were last taken.
        longest_wait_s: the longest that a writer waited for one acknowledgement, outages included.
        looks: how often a window or a transcript was compared.
        problems: one sentence each.
    """

    def __init__(self, writers: int) -> None:
        self.acknowledged = [0] * writers
        self.refused: Counter[int] = Counter()
        self.interrupted = 0
        self.recognized = 0
        self.latencies: list[float] = []
        self.longest_wait_s = 0.0
        self.looks = 0
        self.problems: list[str] = []

    @property
    def total(self) -> int:
        """How many messages were acknowledged."""
        return sum(self.acknowledged)

    def sessions(self) -> dict[str, list[int]]:
        """The writers of each session."""
        sessions: dict[str, list[int]] = defaultdict(list)
        for writer in range(len(self.acknowledged)):
            sessions[session_of(writer)].append(writer)
        return sessions

    def promised(self, writers: Iterable[int]) -> dict[int, int]:
        """What was acknowledged to these writers until now."""
        return {writer: self.acknowledged[writer] for writer in writers}


def session_of(writer: int) -> str:
    """The id of the session that a writer talks in."""
    return f"soak_{writer // PER_SESSION}"


# --- writing ---------------------------------------------------------------------------------------------------------


class Writer:
    """A writer that talks in one session until it is stopped."""

    def __init__(self, number: int, book: Book, socket: Path, *, per_second: float, seed: str) -> None:
        self._number = number
        self._book = book
        self._socket = socket
        self._per_second = per_second
        self._chance = random.Random(f"{seed} {number}")
        self._connection: Connection | None = None
        self._path = f"/v1/sessions/{session_of(number)}/messages"

    async def begin(self) -> None:
        """Fill the window, so that memory has no reason to grow later."""
        messages = [self._message(number) for number in range(1, SPOKEN_BEFORE + 1)]
        await self._say({"messages": messages}, SPOKEN_BEFORE)

    async def talk(self, stop: anyio.Event) -> None:
        """One message after the other."""
        while not stop.is_set():
            number = self._book.acknowledged[self._number] + 1
            await self._say(self._message(number), number)
            with anyio.move_on_after(self._chance.expovariate(self._per_second)):
                await stop.wait()
        await self._disconnect()

    def _message(self, number: int) -> dict[str, object]:
        filler = _FILLER[: self._chance.randint(1, 1000)]
        text = f"w{self._number} {number} {filler}"
        return {"role": "user", "content": text, "idempotency_key": f"w{self._number}-{number}"}

    async def _say(self, document: object, number: int) -> None:
        """Send it until it is acknowledged."""
        began = time.perf_counter()
        while (reply := await self._post(document)) is None or reply.status in NOT_NOW:
            if reply is not None:
                self._book.refused[reply.status] += 1
            await anyio.sleep(PAUSE_AFTER_FAILURE_S)
        if reply.status != CREATED:
            self._book.problems.append(f"w{self._number}: message {number} was answered with {reply.status}")
            return
        self._book.recognized += sum(entry["duplicate"] for entry in orjson.loads(reply.body)["entries"])
        self._book.acknowledged[self._number] = number
        self._book.longest_wait_s = max(self._book.longest_wait_s, time.perf_counter() - began)

    async def _post(self, document: object) -> Reply | None:
        """One attempt; None when the connection ended."""
        started = time.perf_counter()
        try:
            with anyio.fail_after(REQUEST_LIMIT_S):
                if self._connection is None:
                    self._connection = await Connection.open(self._socket)
                reply = await self._connection.post(self._path, document)
        except LOST_CONNECTION:
            self._book.interrupted += self._connection is not None
            await self._disconnect()
            return None
        if reply.status == CREATED:
            self._book.latencies.append(time.perf_counter() - started)
        else:
            await self._disconnect()  # a reply that came before the body was read ends the connection
        return reply

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.__aexit__(None, None, None)


# --- reading ---------------------------------------------------------------------------------------------------------


async def read_along(book: Book, socket: Path, stop: anyio.Event, *, seed: str) -> None:
    """Look again and again whether what was acknowledged until then is there."""
    chance = random.Random(f"{seed} reader")
    sessions = list(book.sessions().items())
    while not stop.is_set():
        session_id, writers = chance.choice(sessions)
        try:
            with anyio.fail_after(REQUEST_LIMIT_S):
                async with await Connection.open(socket) as connection:
                    await _look(
                        book, connection, session_id, writers, whole=not chance.randrange(WHOLE_TRANSCRIPT_EVERY)
                    )
        except LOST_CONNECTION:
            pass  # the daemon is being restarted
        with anyio.move_on_after(READ_EVERY_S):
            await stop.wait()


async def _look(book: Book, connection: Connection, session_id: str, writers: list[int], *, whole: bool) -> None:
    promised = book.promised(writers)
    reply = await connection.get(f"/v1/sessions/{session_id}/{'transcript' if whole else 'messages'}")
    if reply.status != OK:
        if reply.status not in NOT_NOW:
            book.problems.append(f"{session_id}: reading it was answered with {reply.status}")
        return
    if whole:
        entries = [orjson.loads(line) for line in reply.body.splitlines()]
        found = [entry["message"]["content"] for entry in entries if entry["type"] == "message"]
    else:
        found = [message["content"] for message in orjson.loads(reply.body)["messages"]]
    book.looks += 1
    book.problems += [f"{session_id}: {fault}" for fault in faults(found, promised, is_whole=whole)]


def faults(texts: Iterable[str], promised: Mapping[int, int], *, is_whole: bool) -> Iterator[str]:
    """What is lost, doubled, or out of order in a session, one sentence each.

    Args:
        texts: of its messages, oldest first.
        promised: the last acknowledged number of each of its writers, before the texts were read.
        is_whole: whether these are all its messages, and not only the newest.
    """
    numbers: dict[int, list[int]] = defaultdict(list)
    for text in texts:
        writer, number, _ = text.split(" ", 2)
        numbers[int(writer.removeprefix("w"))].append(int(number))
    for stranger in numbers.keys() - promised.keys():
        yield f"w{stranger} never talked in it, and has {len(numbers[stranger])} messages there"
    for one, last in promised.items():
        found = numbers[one]
        if not found:
            if is_whole and last:
                yield f"w{one} was acknowledged {last} messages, and there are none"
            continue
        expected = 1 if is_whole else found[0]
        for place, number_found in enumerate(found):
            if number_found != expected + place:
                yield f"w{one}: where message {expected + place} should be there is {number_found}"
                break
        if found[-1] < last:
            yield f"w{one} was acknowledged {last} messages, and the last one there is {found[-1]}"


def faults_in_database(book: Book, database: Path) -> tuple[int, list[str]]:
    """Read the writers' messages out of the database with nothing but SQLite; how many there are, and all faults."""
    texts: dict[str, list[str]] = defaultdict(list)
    rows = "SELECT session_id, encoded FROM entries JOIN sessions ON entries.session = sessions.id"
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        for session_id, encoded in connection.execute(f"{rows} ORDER BY entries.session, entries.sequence"):
            entry = orjson.loads(encoded)
            if entry["type"] == "message":
                texts[session_id].append(entry["message"]["content"][:LONGEST_NUMBERS])
    number, problems = 0, []
    for session_id, writers in book.sessions().items():
        found = texts.get(session_id, [])
        number += len(found)
        found_faults = faults(found, book.promised(writers), is_whole=True)
        problems += [f"{session_id} in the database: {fault}" for fault in found_faults]
    return number, problems
