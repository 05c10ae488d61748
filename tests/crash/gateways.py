"""Three gateways on one database, killed and paused at random, and what must be true of the database then.

Every entry that a gateway has seen acknowledged is there once, at the place that it had; every question is there once,
in order; every question was answered once; and what stands between two messages was never written by somebody whose
turn another one had taken.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import anyio
import msgspec

from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.stores.postgresql.store import PostgreSQLStore
from miniclaw_sessions.core.stores.reading import read_all
from tests.crash.gateway import LEASE_S, Orders
from tests.crash.launcher import Launcher, Writer
from tests.crash.rack import wait_for

COUNT = 3
_WHO = re.compile(r"(reply|step|found) (?:to|for) question (\d+) by (\d+) (\w\S*)")


class Gateways:
    """A context manager; the gateways answer within the block.

    Args:
        launcher: of `tests.crash.gateway`.
        directory: for what they leave.
        url: of the store.
        chats: how many there are.
        seed: of everything that is left to chance here.

    Attributes:
        kills, pauses: how many there were.
    """

    def __init__(self, launcher: Launcher, directory: Path, url: str, *, chats: int, seed: str) -> None:
        self.kills = self.pauses = 0
        self.acknowledged = directory / "acknowledged"
        self._launcher = launcher
        self._directory = directory
        self._url = url
        self._chats = chats
        self._stop = directory / "stop"
        self._chance = random.Random(seed)
        self._running: list[Writer] = []

    def __enter__(self) -> Self:
        self.acknowledged.touch()
        self._running = [self._start(number) for number in range(COUNT)]
        return self

    def __exit__(self, *_: object) -> None:
        for gateway in self._running:
            if not gateway.has_ended:
                gateway.kill()

    def acknowledgements(self) -> int:
        """How many there are so far."""
        return self.acknowledged.read_bytes().count(b"\n")

    def wait_for_acknowledgements(self, more: int) -> None:
        """Return when so many more have come.

        Raises:
            TimeoutError: they do not: the gateways stand still.
        """
        wanted = self.acknowledgements() + more
        wait_for(lambda: self.acknowledgements() >= wanted, f"{more} acknowledgements")

    def kill_one(self) -> None:
        """Kill a gateway, and start it again."""
        number = self._chance.randrange(COUNT)
        self._running[number].kill()
        self._running[number] = self._start(number)
        self.kills += 1

    def kill_all(self) -> None:
        """Kill all of them, and start none."""
        for gateway in self._running:
            gateway.kill()

    @contextmanager
    def one_paused(self) -> Iterator[None]:
        """Let a gateway stand still within the block, and somewhat longer; often longer than its turns last."""
        gateway = self._running[self._chance.randrange(COUNT)]
        os.kill(gateway.pid, signal.SIGSTOP)
        try:
            yield
            time.sleep(self._chance.uniform(0.1, 2.0 * LEASE_S))
        finally:
            with suppress(ProcessLookupError):
                os.kill(gateway.pid, signal.SIGCONT)
        self.pauses += 1

    def live_through_kills_and_pauses(self) -> None:
        """Kill and pause gateways while they answer, three times, and let them finish.

        Raises:
            AssertionError: as `finish`.
        """
        for _ in range(3):
            self.wait_for_acknowledgements(100)
            self.kill_one()
            with self.one_paused():
                self.wait_for_acknowledgements(100)
        self.finish()

    def finish(self) -> None:
        """Let every question be answered, and no new one be asked.

        Raises:
            AssertionError: a gateway has failed; its log says why.
        """
        self._stop.touch()
        wait_for(lambda: all(gateway.has_ended for gateway in self._running), "the gateways to finish")
        for gateway in self._running:
            assert gateway.wait() == 0, gateway.log.read_text()[-4000:]

    def problems(self) -> list[str]:
        """What is wrong in the database now: a sentence each."""
        return anyio.run(
            problems_of, self._url, self._chats, self.acknowledged.read_text().splitlines(), self._directory
        )

    def _start(self, number: int) -> Writer:
        orders = Orders(
            url=self._url,
            workspace=str(self._directory / f"gateway-{number}"),
            chats=self._chats,
            acknowledged=str(self.acknowledged),
            stop=str(self._stop),
        )
        log = self._directory / f"gateway-{number}.log"
        return self._launcher.start(msgspec.structs.asdict(orders), log=log)


async def problems_of(url: str, chats: int, acknowledged: Sequence[str], evidence: Path) -> list[str]:
    """What contradicts the promises; the transcripts that do are written to a directory."""
    noted: dict[int, list[list[str]]] = defaultdict(list)
    for line in acknowledged:
        whose, *what = line.split()
        noted[int(whose)].append(what)
    async with PostgreSQLStore(url) as store:
        problems = await store.check()
        for chat in range(chats):
            stored = [one async for one in read_all(store, f"chat_{chat}")]
            entries = [msgspec.structs.replace(decode_entry(one.encoded), sequence=one.sequence) for one in stored]
            said = [entry for entry in entries if isinstance(entry, MessageEntry)]
            found = [*_lost(said, noted[chat]), *_not_answered_once(said), *_written_by_two(said)]
            problems += [f"chat {chat}: {problem}" for problem in found]
            if found:
                (evidence / f"chat-{chat}.jsonl").write_bytes(b"\n".join(one.encoded for one in stored))
    return problems


def _lost(said: Sequence[MessageEntry], noted: Sequence[Sequence[str]]) -> Iterator[str]:
    places = {entry.id: entry.sequence for entry in said}
    if len(places) < len(said):
        yield f"{len(said) - len(places)} entries are there twice"
    replies = {match.group(3, 4) for entry in said if (match := _WHO.match(entry.message.text)) and match[1] == "reply"}
    for what in noted:
        if what[0] == "REPLY":
            if (what[1], what[2]) not in replies:
                yield f"an acknowledged reply of turn {what[1]} is lost"
        elif (place := places.get(what[0])) is None:
            yield f"acknowledged entry {what[0]}, which was entry number {what[1]}, is lost"
        elif place != int(what[1]):
            yield f"acknowledged entry {what[0]} was entry number {what[1]} and is number {place}"


def _not_answered_once(said: Sequence[MessageEntry]) -> Iterator[str]:
    questions = [entry.message.text for entry in said if entry.message.is_user]
    if questions != [f"question {number}" for number in range(1, len(questions) + 1)]:
        yield f"its questions are not there once and in order: {questions}"
    replies = [entry.message.text for entry in said if entry.message.is_assistant and not entry.message.tool_calls]
    answered = Counter(int(match[2]) for text in replies if (match := _WHO.match(text)))
    for number in range(1, len(questions) + 1):
        if answered[number] != 1:
            yield f"question {number} was answered {answered[number]} times"


def _written_by_two(said: Sequence[MessageEntry]) -> Iterator[str]:
    """Turns have rising numbers, each has one owner, and none writes when a later one has begun."""
    newest, owners = 0, dict[int, str]()
    for entry in said:
        if match := _WHO.match(entry.message.text):
            fence, owner = int(match[3]), match[4]
            if fence < newest:
                yield f"entry number {entry.sequence} was written in turn {fence}, after turn {newest} had begun"
            if owners.setdefault(fence, owner) != owner:
                yield f"turn {fence} had two owners"
            newest = max(newest, fence)
