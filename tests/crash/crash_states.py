"""Every state that a crash may leave, as far as a budget goes: record a real life, enumerate, recover, look.

    tally = run_crash_states(1_000, "some seed", store="jsonl:", scratch=Path("/tmp/somewhere"))

A life is a manager that opens, talks, checkpoints, deletes and closes, by chance. Each of its system calls is recorded
(`recording`), what a power cut after each of them may leave is made up from that (`faulty_disk`), and a new manager
opens it (`verifier`). Some of these states are lived in: their recovery is recorded too, and crashes once more (R16).

The stores `jsonl:` and `none:` can be recorded, `sqlite:` cannot: it writes with its own C code. Injected faults and
real power cuts are for that one.
"""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from tests.crash.faulty_disk import Mark, State, contents, write_state
from tests.crash.recording import Marks, Recorder, Recording, without_syncs
from tests.crash.trials import Tally
from tests.crash.verifier import Ledger, verify
from tests.crash.writer import Talker, described

RECORDED_STORES = ("jsonl:", "none:")
SESSIONS = 12
"""More than are synced one by one."""

STEPS = 20
STATES_OF_A_LIFE = 100
STEPS_AFTER_A_CRASH = 8
STATES_AFTER_A_CRASH = 6
LIVED_IN, LIVED_IN_WHEN_TORN = 0.05, 0.5
"""The share of crash states that are lived in until they crash too, and of those from which something was torn off."""

Plant = Callable[[], AbstractContextManager[object]]
"""Makes a mistake in what is recorded; what recovers from it is as it is."""


class Moment(NamedTuple):
    """A crash: after how many operations, and what it left."""

    point: int
    state: State


# --- one life --------------------------------------------------------------------------------------------------------


class Life:
    """One manager's life, of one task only: whoever repeats the seed repeats every system call."""

    def __init__(self, marks: Marks, *, store: str, chance: random.Random) -> None:
        self._marks = marks
        self._store = store
        self._chance = chance
        self._accepted: list[dict[str, Any]] = []

    async def live(self, workspace: Path, steps: int) -> None:
        """Open, do so many things, and close."""
        settings = SessionSettings(store=self._store, flush_interval_s=3600.0)
        async with SessionManager(workspace, settings=settings) as manager:
            self._manager = manager
            self._marks.write("open")
            self._talker = Talker(manager, self._marks, self._chance)
            actions = [self._say, self._say_together, self._take_turn, self._retitle, self._clear]
            weights = [6, 3, 3, 1, 1]
            if self._store == "none:":
                actions, weights = [self._accept], [10]
            for action in self._chance.choices([*actions, self._delete, self._flush], [*weights, 2, 4], k=steps):
                await action(self._chance.randrange(SESSIONS))
        self._marks.write("closed")

    async def _say(self, number: int) -> None:
        await self._talker.say(await self._manager.get_or_create("crash", number))

    async def _say_together(self, number: int) -> None:
        """Several messages to up to all sessions, which are saved with one sync."""
        numbers = {number, *self._chance.sample(range(SESSIONS), self._chance.randint(1, SESSIONS - 1))}
        sessions = [await self._manager.get_or_create("crash", one) for one in sorted(numbers)]
        texts = [(session, self._talker.text()) for session in sessions for _ in range(self._chance.randint(1, 2))]
        entries = [(session, session.append(Message.user(text))) for session, text in texts]
        for session, entry in entries:
            await session.saved()
            self._talker.account("entry", session, entry)

    async def _take_turn(self, number: int) -> None:
        await self._talker.take_turn(await self._manager.get_or_create("crash", number))

    async def _retitle(self, number: int) -> None:
        await self._talker.retitle(await self._manager.get_or_create("crash", number))

    async def _clear(self, number: int) -> None:
        await self._talker.clear(await self._manager.get_or_create("crash", number))

    async def _delete(self, number: int) -> None:
        await self._talker.delete(await self._manager.get_or_create("crash", number))

    async def _accept(self, number: int) -> None:
        """Messages that nobody saves before the next flush."""
        for one in {number, *self._chance.choices(range(SESSIONS), k=self._chance.randint(0, SESSIONS))}:
            session = await self._manager.get_or_create("crash", one)
            line = described(session, session.append(Message.user(self._talker.text())))
            self._marks.write("accepted", **line)
            self._accepted.append(line)

    async def _flush(self, number: int) -> None:
        del number
        accepted, self._accepted = self._accepted, []
        assert (await self._manager.flush()).failed == 0
        for line in accepted:
            self._marks.write("entry", **line)


def record_life(root: Path, *, store: str, seed: str, steps: int, plant: Plant = nullcontext) -> Recording:
    """Record a life in the directory `workspace` of another one, which may hold what a crash left."""
    with Recorder(root) as recorder, plant():
        life = Life(Marks(recorder), store=store, chance=random.Random(seed))
        anyio.run(life.live, root / "workspace", steps)
    return recorder.recording


# --- its crashes -----------------------------------------------------------------------------------------------------


def crashes_of(recording: Recording, chance: random.Random) -> Iterator[Moment]:
    """Different crashes: one at every moment in an order of chance, then another one at each, as long as there are any.

    Once somebody was told that something is safe, it may not be lost: a moment before that says nothing new.
    """
    operations = recording.operations
    points = [
        point for point in range(len(operations) + 1) if point == len(operations) or not _is_promise(operations[point])
    ]
    chance.shuffle(points)
    waiting = [(point, _states_at(recording, point, chance)) for point in points]
    seen = set()
    while waiting:
        going_on = []
        for point, states in waiting:
            for state in states:
                crash = (contents(state), len(recording.marks(point)))
                if crash not in seen:
                    seen.add(crash)
                    going_on.append((point, states))
                    yield Moment(point, state)
                    break
        waiting = going_on


def _is_promise(operation: object) -> bool:
    """Whether this only adds to what must be there; who says that he is about to delete something takes away."""
    return isinstance(operation, Mark) and operation.line["kind"] != "leaving"


def _states_at(recording: Recording, point: int, chance: random.Random) -> Iterator[State]:
    disk = recording.at(point)
    states = list(disk.telling())
    states += [disk.any(chance) for _ in range(2 * len(states))]
    chance.shuffle(states)
    yield from states


# --- and what becomes of them ----------------------------------------------------------------------------------------


class CrashStates:
    """Lives and crashes of one store, until the budget is used up.

    Args:
        scratch: a directory to work in.
        store: one of `RECORDED_STORES`.
        seed: of everything that is left to chance.
        plant: a mistake to make, to see whether it is found.
        on_state: called after every state that was looked at.
    """

    def __init__(
        self,
        scratch: Path,
        *,
        store: str,
        seed: str,
        plant: Plant = nullcontext,
        on_state: Callable[[], object] = lambda: None,
    ) -> None:
        self.tally = Tally()
        self._scratch = scratch
        self._store = store
        self._seed = seed
        self._plant = plant
        self._on_state = on_state
        self._names = count(1)

    def live_and_crash(self, life: int, budget: int) -> None:
        """One life, so many of its crashes, and some lives after these."""
        limit = self.tally.trials + budget
        seed = f"{self._seed} {life}"
        chance = random.Random(seed)
        root = self._new_directory()
        root.mkdir()
        recording = record_life(root, store=self._store, seed=seed, steps=STEPS, plant=self._plant)
        shutil.rmtree(root)
        problems = len(self.tally.problems)
        for moment in crashes_of(recording, chance):
            if self.tally.trials >= limit or len(self.tally.problems) > problems:
                break  # what the same life leaves after a mistake says nothing new
            story = f"{seed!r}, {moment.point} of {len(recording.operations)}"
            ledger = self._ledger_at(recording, moment.point, Ledger())
            evidence = self._look(moment.state, ledger, story)
            if chance.random() < (LIVED_IN_WHEN_TORN if evidence else LIVED_IN):
                allowed = min(STATES_AFTER_A_CRASH, limit - self.tally.trials)
                self._live_on(moment.state, ledger, evidence, story, allowed)

    def _live_on(self, state: State, ledger: Ledger, evidence: Mapping[bytes, str], story: str, budget: int) -> None:
        """Recover from a crash, go on, and crash again; what the crash had torn must be kept all along."""
        chance = random.Random(story)
        root = self._new_directory()
        write_state(state, root)
        recording = record_life(root, store=self._store, seed=story, steps=STEPS_AFTER_A_CRASH, plant=self._plant)
        shutil.rmtree(root)
        for _, moment in zip(range(budget), crashes_of(recording, chance), strict=False):
            then = f"{story}, then {moment.point} of {len(recording.operations)}"
            left = self._ledger_at(recording, moment.point, ledger)
            leaving = {session_id for session_id, _ in left.leaving | left.deleted}
            kept = self._look(moment.state, left, then)
            self.tally.problems += [
                f"{then}: what was torn off session {session_id} is gone"
                for piece, session_id in evidence.items()
                if piece not in kept and session_id not in leaving
            ]

    def _ledger_at(self, recording: Recording, point: int, before: Ledger) -> Ledger:
        """What was promised by then; and count the crash."""
        lines = [mark.line for mark in recording.marks(point)]
        self.tally.crashes += 1
        self.tally.in_recovery += all(line["kind"] != "open" for line in lines)
        ledger = copy.deepcopy(before)
        ledger.learn(lines)
        return ledger

    def _look(self, state: State, ledger: Ledger, story: str) -> dict[bytes, str]:
        """Recover from a state and compare; the ledger adopts what is found. Returns what was torn, and off whom."""
        root = self._new_directory()
        write_state(state, root)
        promises = sum(map(len, ledger.promises.values()))
        with without_syncs():
            problems = anyio.run(partial(verify, root / "workspace", ledger, store=self._store))
        self.tally.trials += 1
        self.tally.acknowledged += promises
        self.tally.problems += [f"crash at {story}: {problem}" for problem in problems]
        torn = {
            piece.read_bytes(): piece.stem.split("-", 2)[-1]
            for piece in (root / "workspace" / "transcripts" / "torn").glob("*.jsonl")
        }
        shutil.rmtree(root)
        self._on_state()
        return torn

    def _new_directory(self) -> Path:
        return self._scratch / f"{next(self._names):06d}"


def run_crash_states(
    budget: int, seed: str, *, store: str, scratch: Path, on_state: Callable[[], object] = lambda: None
) -> Tally:
    """Look at so many crash states of one store; what they came to. A seed repeats them.

    Args:
        budget: how many states; each takes about 20 ms.
        seed: of everything that is left to chance.
        store: one of `RECORDED_STORES`.
        scratch: an empty directory to work in.
        on_state: called after every state, for a progress bar.
    """
    states = CrashStates(scratch, store=store, seed=seed, on_state=on_state)
    life = 0
    while states.tally.trials < budget:
        states.live_and_crash(life, min(budget - states.tally.trials, STATES_OF_A_LIFE))
        life += 1
    return states.tally
