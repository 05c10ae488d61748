"""Sixty turns in one conversation: killed again and again, compacted, moved from service to service, never refused.

The services are the strict local servers, which check every request as the real ones do, and the reasoning in it. The
process is killed from outside at any moment, and by itself at exact ones: while a reply streams, while tools run, while
a summary is made, right after an acknowledgement.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from miniclaw_sessions.agent.agent import Unanswered
from miniclaw_sessions.core.history.branch import resolve
from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import Compaction, Entry, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, ToolCall, Usage
from tests.agent.providers.all_providers import SERVICES
from tests.agent.sixty_turns import WINDOW, calls_of, label, question
from tests.crash.launcher import PROJECT, Launcher
from tests.legality import is_legal

pytestmark = [pytest.mark.anyio, pytest.mark.proof]

TURNS = 60
STRETCHES = ("openai", "anthropic", "google", "openai-responses", "anthropic")
SEED = 4

DEATHS = {
    "asked": 4,  # the user's message is acknowledged
    "said": 50,  # a reply streams in
    "replied": 5,  # it is complete, and not saved
    "tool": 16,  # its calls are saved, and run
    "result": 16,  # some of them have ended
    "answered": 3,  # the reply is acknowledged
    "to summarize": 1,
    "summarizing": 4,
    "summarized": 1,  # and not saved
    "compacted": 1,
    "": 90,  # from outside, after so many notes
}
"""The places where a process is killed, and at the how manieth note of the kind at most."""

PLACES = {
    "asked": "request",
    "said": "stream",
    "replied": "step",
    "tool": "tools",
    "result": "tools",
    "to summarize": "compaction",
    "summarizing": "compaction",
    "summarized": "compaction",
    "compacted": "request",
}
"""Where in a turn a process was that gave no further note; after any other note it is between two turns."""

BETWEEN = "between turns"


@contextmanager
def strict_servers() -> Iterator[str]:
    """The address of the services, which run in a process of their own with the conversation's script."""
    command = ["tests.agent.providers.strict_server", "--script", "tests.agent.sixty_turns:answer"]
    limits = ["--context-tokens", str(WINDOW)]
    with subprocess.Popen(
        [sys.executable, "-m", *command, *limits], stdout=subprocess.PIPE, text=True, cwd=PROJECT
    ) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.terminate()


def report_of(url: str) -> Any:
    return json.load(urllib.request.urlopen(f"{url}/report"))


def services_of(stretches: Sequence[str], turns: int) -> list[str]:
    """Which service answers each turn."""
    return [stretches[number * len(stretches) // turns] for number in range(turns)]


class Lives:
    """The process's lives one after the other, and what they told."""

    def __init__(self, launcher: Launcher, folder: Path, url: str, services: Sequence[str]) -> None:
        self.answered: dict[int, str] = {}
        self.killed: Counter[str] = Counter()
        self._launcher = launcher
        self._log = folder / "log"
        self._pipe = folder / "told"
        os.mkfifo(self._pipe)
        self._next = 1
        self._orders = {
            "workspace": str(folder / "workspace"),
            "told": str(self._pipe),
            "url": url,
            "services": list(services),
            "unanswered": "run",
            "dies_at": None,
            "resumes": None,
            "until": len(services),
        }

    @property
    def next(self) -> int:
        """The first turn whose reply nobody was told."""
        return self._next

    def live(self, *, killed_after: int | None = None, **orders: Any) -> bool:
        """One life; `killed_after` so many notes it is killed from outside, wherever it is by then.

        Returns:
            Whether it was killed.
        """
        process = self._launcher.start({**self._orders, "next": self._next, **orders}, log=self._log)
        with self._pipe.open() as told:
            lines = list(islice(told, killed_after))  # or fewer, if it ends before
            status = process.wait() if killed_after is None else process.kill()
            lines += told
        assert status in (0, -signal.SIGKILL), self._log.read_text()
        notes = [json.loads(line) for line in lines]
        for note in notes:
            self._learn(note)
        if status:
            self.killed[PLACES.get(notes[-1]["is"] if notes else "", BETWEEN)] += 1
        return status != 0

    def _learn(self, note: dict[str, Any]) -> None:
        if "turn" in note:
            assert note["turn"] in (self._next, self._next - 1)
            self._next = note["turn"] + 1
        assert note.get("status", "done") == "done", "a compaction failed"
        if note["is"] == "answered":
            self.answered[note["turn"]] = note["text"]


def live_and_die(lives: Lives, services: Sequence[str], chance: random.Random) -> None:
    """Die everywhere, and while tools run in the last turn with each service: the next one goes on with that turn."""
    changes = changes_in(services)
    to_come = list(changes)
    deck: list[str] = []
    while (turn := lives.next) <= len(services):
        if turn in to_come:
            to_come.remove(turn)
            lives.live(dies_at=("tool", 1))
            continue
        deck = deck or chance.sample(list(DEATHS), len(DEATHS))
        kind = deck.pop()
        number = chance.randint(1, DEATHS[kind])
        resumes = services[turn] if turn in changes else chance.choice([services[turn - 1], None])
        was_killed = lives.live(
            until=to_come[0] - 1 if to_come else len(services),
            resumes=resumes,
            unanswered=chance.choice(list(Unanswered)).value,
            dies_at=(kind, number) if kind else None,
            killed_after=None if kind else number,
        )
        if not was_killed:
            deck.append(kind)


def changes_in(services: Sequence[str]) -> list[int]:
    """The turns after which another service answers."""
    return [turn for turn in range(1, len(services)) if services[turn - 1] != services[turn]]


# --- what is left ----------------------------------------------------------------------------------------------------


async def stored(workspace: Path) -> list[Entry]:
    """The session's entries as the store has them, which is sound; and their usage is counted."""
    async with SessionManager(workspace) as manager:
        session = await manager.get_or_create("telegram", 1)
        path = list(await session.tree.get_branch())
        checked = await manager.check()
        assert (checked.sound, checked.problems) == (True, [])
        replies = [message.usage for message in messages_of(path) if message.is_assistant]
        assert all(usage is not None and usage.total > usage.output_tokens > 0 for usage in replies)
        summaries = [entry.usage for entry in path if isinstance(entry, Compaction)]
        assert session.total_usage.total == sum((usage or Usage()).total for usage in (*replies, *summaries))
    return path


def messages_of(path: Sequence[Entry]) -> list[Message]:
    return [entry.message for entry in path if isinstance(entry, MessageEntry)]


def turns_of(messages: Sequence[Message]) -> list[list[Message]]:
    """The messages of each turn, the user's first."""
    starts = [place for place, message in enumerate(messages) if message.is_user]
    return [list(messages[start:end]) for start, end in zip(starts, [*starts[1:], None], strict=True)]


def assert_legal_everywhere(path: Sequence[Entry]) -> None:
    """A process that stopped at any entry leaves something that can be sent."""
    for end in range(1, len(path) + 1):
        assert is_legal(build_context(resolve(path[:end]).messages())) == []


def assert_turn(number: int, turn: Sequence[Message], told: str | None) -> None:
    """The question, steps whose calls are answered one by one, the reply: nothing twice, nothing lost, all in order."""
    asked, *steps, reply = turn
    assert asked.text == question(number)
    assert reply.text.startswith(f"answer {number} ")
    assert told in (None, reply.text)
    unanswered: list[ToolCall] = []
    for message in steps:
        if message.is_tool_result:
            call = unanswered.pop(0)
            assert message.tool_call_id == call.id
            assert message.is_error or message.text.startswith(label(json.loads(call.arguments)))
        else:
            assert unanswered == []
            assert message.tool_calls
            unanswered = list(message.tool_calls)
    assert unanswered == []
    assert [len(message.tool_calls or ()) for message in steps if message.is_assistant] == calls_of(number)


# --- the tests -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher("tests.agent.sixty_turns_process") as launcher:
        yield launcher


@pytest.fixture
def url() -> Iterator[str]:
    """The address of the services, which are asked afterwards what they had to refuse: nothing."""
    with strict_servers() as url:
        yield url
        report = report_of(url)
        print(f"{report['requests']} requests")  # noqa: T201 - for whoever reads how much was tried
        assert (report["problems"], report["losses"]) == ([], [])


@pytest.mark.timeout(300)  # a busy machine takes its time to kill and to start some forty processes
async def test_sixty_turns_are_never_refused_however_often_the_process_is_killed(
    launcher: Launcher, url: str, tmp_path: Path
) -> None:
    services = services_of(STRETCHES, TURNS)
    lives = Lives(launcher, tmp_path, url, services)
    live_and_die(lives, services, random.Random(SEED))

    path = await stored(tmp_path / "workspace")
    compactions = [entry for entry in path if isinstance(entry, Compaction)]
    print(f"seed {SEED}, {len(path)} entries, {len(compactions)} compactions, killed in: {dict(lives.killed)}")  # noqa: T201
    turns = turns_of(messages_of(path))
    assert len(turns) == TURNS
    for number, turn in enumerate(turns, 1):
        assert_turn(number, turn, lives.answered.get(number))
    assert_legal_everywhere(path)
    assert len(compactions) >= 3
    assert {compaction.reason for compaction in compactions} == {"threshold"}, "a service had to refuse its size"

    within = [turn for turn in changes_in(services) if len({m.model for m in turns[turn - 1] if m.is_assistant}) == 2]
    assert within == changes_in(services), "the service was to change in the middle of a turn"
    in_turns = lives.killed.total() - lives.killed[BETWEEN]
    assert in_turns >= 15
    assert min(lives.killed[place] for place in (*PLACES.values(), BETWEEN)) >= 1


@pytest.mark.parametrize("service", SERVICES)
async def test_each_service_is_talked_to_for_ten_turns(
    launcher: Launcher, url: str, tmp_path: Path, service: str
) -> None:
    lives = Lives(launcher, tmp_path, url, [service] * 10)
    assert not lives.live()
    path = await stored(tmp_path / "workspace")
    for number, turn in enumerate(turns_of(messages_of(path)), 1):
        assert_turn(number, turn, lives.answered[number])
    assert lives.next == 11
    assert_legal_everywhere(path)
