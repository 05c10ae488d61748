"""One chat through all adapters in random orders, each turn a process of its own, killed at random.

After each of them nothing that was acknowledged is lost or doubled, the order is kept, and what the next model is asked
with is legal, whoever wrote it, with whatever ids, and however he ended. Whatever fails tells its seed:
`CROSSING_SEED=... pytest ...` plays that conversation again. google-adk cannot be installed beside the others: its
turns run in an environment of their own.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("strands")
from miniclaw_sessions.adapters.chats import read_messages
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import Compaction, MessageEntry
from miniclaw_sessions.core.protocol.messages import message_from_dict
from tests.adapters import frameworks
from tests.adapters.crossing_process import WINDOW
from tests.adapters.steps import CHANNEL, CHAT, WITHOUT_FRAMEWORK
from tests.adapters.test_google_adk import google_adk_python
from tests.adapters.turns import AMBIGUOUS, IDS, Key, Turn, keys_in, keys_of, problems_in
from tests.crash.launcher import Launcher
from tests.sampled import PART

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

TURNS = 30
ANY = int(os.environ["CROSSING_ANY_SEED"])
SEEDS = [int(os.environ["CROSSING_SEED"])] if "CROSSING_SEED" in os.environ else [*range(max(1, 5 // PART)), ANY]

NOT_FOR: dict[str, frozenset[str]] = {  # what a framework refuses itself, or sends as it was given
    "openai-agents": AMBIGUOUS | {"none", "very long", "repeated"},
    **dict.fromkeys(
        ("pydantic-ai", "langchain", "langgraph", "strands", "agent-framework", "llama-index", "google-adk"),
        AMBIGUOUS | {"none"},
    ),
}

STEPS = [*frameworks.STEPS, "google-adk", *WITHOUT_FRAMEWORK]

NEVER_REPEATS = [name for name, kinds in NOT_FOR.items() if "repeated" in kinds]
"""Frameworks whose own calls all have ids of their own here; so the others' must have others."""


class Plan:
    """A conversation, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(f"crossing {seed}")
        self.store = self._chance.choice(["sqlite:", "jsonl:"])
        self.ambiguous: set[Key] = set()
        self._framework = ""

    def orders(self, number: int) -> dict[str, Any]:
        """Of one process."""
        chance = self._chance
        if not self._framework or chance.random() < 0.75:  # else whoever was killed goes on himself
            self._framework = chance.choice(STEPS)
        framework = self._framework
        kind = chance.choice([kind for kind in IDS if kind not in NOT_FOR.get(framework, ())])
        labels = [
            [f"{number}.{place}.{call}" for call in range(chance.randrange(1, 4))]
            for place in range(chance.randrange(3))
        ]
        if kind in AMBIGUOUS:
            self.ambiguous.update(key for ids in labels for label in ids for key in keys_in(f"result {label}"))
        turn = Turn(
            number=number,
            rounds=tuple(tuple(IDS[kind](label) for label in ids) for ids in labels),
            picture=chance.random() < 0.3,
            thinks=chance.random() < 0.3,
            resumes=chance.choice([None, "run", "close"]),
        )
        dies = chance.choice(["", "", "notes", "notes", "rounds"])
        return {
            "framework": framework,
            "ids": kind,
            "over_client": chance.random() < 0.3,
            "turn": msgspec.to_builtins(turn),
            "store": self.store,
            "notes": chance.randrange(1, 12) if dies == "notes" else 0,
            "rounds": chance.randrange(20, 900) if dies == "rounds" else 0,
        }


@pytest.fixture(scope="module")
def launchers(pytestconfig: pytest.Config) -> Iterator[dict[str, Launcher]]:
    """What starts the processes of each step."""
    module = "tests.adapters.crossing_process"
    with Launcher(module) as here, Launcher(module, python=google_adk_python(pytestconfig)) as there:
        yield {step: there if step == "google-adk" else here for step in STEPS}


@pytest.mark.parametrize("seed", SEEDS, ids=[*map(str, SEEDS[:-1]), "any"])
async def test_nothing_is_lost_doubled_or_illegal_whoever_goes_on_and_however_he_ended(
    launchers: Mapping[str, Launcher], tmp_path: Path, seed: int
) -> None:
    plan, conversation = Plan(seed), Conversation(tmp_path)
    killed = 0
    for number in range(TURNS):
        orders = plan.orders(number)
        where = f"CROSSING_SEED={seed}, turn {number}: {orders}"
        launcher = launchers[orders["framework"]]
        status = launcher.start({**orders, **conversation.files}, log=tmp_path / "log").wait()
        assert status == 0 or (status == -9 and (orders["notes"] or orders["rounds"])), (
            f"{where}\n{(tmp_path / 'log').read_text()[-4000:]}"
        )
        killed += status == -9
        problems = await conversation.problems(plan, orders["framework"])
        assert problems == [], where
    assert killed >= TURNS // 10, "hardly anybody was killed: this proved nothing"


class Conversation:
    """What became of a conversation, and what its processes wrote down."""

    def __init__(self, directory: Path) -> None:
        self._workspace, self._account = directory / "w", directory / "account"
        self.files = {"workspace": str(self._workspace), "account": str(self._account)}
        self._read = 0
        self._acknowledged: set[Key] = set()
        self._left: set[Key] = set()  # what was on branches that the conversation has left
        self._goes_back = False
        self._compacted = 0  # the turn until which a summary tells what was said

    async def problems(self, plan: Plan, framework: str) -> list[str]:
        """Everything that is wrong after another process."""
        problems = [problem for note in self._notes() for problem in self._problems_of(note, plan, framework)]
        settings = SessionSettings(store=plan.store, window=WINDOW)
        async with SessionManager(self._workspace, settings=settings) as manager:
            session = await manager.get_or_create(CHANNEL, CHAT)
            stored = [e.message async for e in session.tree.read_entries() if isinstance(e, MessageEntry)]
            problems += [f"check: {problem}" for problem in (await manager.check()).problems]
            path = await session.tree.get_branch()
            context = build_context(await read_messages(session))
        counts = Counter(keys_of(stored))
        branch = Counter(keys_of([entry.message for entry in path if isinstance(entry, MessageEntry)]))
        if self._goes_back:
            self._left |= counts.keys() - branch.keys()
            self._goes_back = False
        if not any(isinstance(entry, Compaction) for entry in path):
            self._compacted = 0
        problems += [f"not on the branch: {key}" for key in self._acknowledged - self._left - branch.keys()]
        problems += [f"lost: {key}" for key in self._acknowledged - counts.keys()]
        once = {**counts, **{key: branch[key] for key in self._left}}  # a call may run again on another branch
        problems += [f"stored twice: {key}" for key, count in once.items() if count > 1]
        return problems + list(problems_in(context, self._expected(plan), "the session's context"))

    def _expected(self, plan: Plan) -> set[Key]:
        """What everybody should be shown, at least."""
        return {key for key in self._acknowledged - self._left - plan.ambiguous if key[0] >= self._compacted}

    def _notes(self) -> Iterator[Mapping[str, Any]]:
        if not self._account.exists():
            return
        lines = self._account.read_bytes().splitlines()
        yield from map(json.loads, lines[self._read :])
        self._read = len(lines)

    def _problems_of(self, note: Mapping[str, Any], plan: Plan, framework: str) -> Iterator[str]:
        for text in note.get("acknowledged", ()):
            if text.startswith("compacted"):
                self._compacted = int(text.split()[1])
            self._goes_back |= text.startswith("went back")
        self._acknowledged.update(key for text in note.get("acknowledged", ()) for key in keys_in(text))
        if "asked" in note:
            shown = [message_from_dict(message) for message in note["asked"]]
            yield from problems_in(shown, self._expected(plan), "what a model was asked with")
            ids = [call.id for message in shown for call in message.tool_calls or ()]
            if framework in NEVER_REPEATS and len(set(ids)) < len(ids):
                yield f"what a model was asked with has two calls of one id: {ids}"
