"""What the long command runs, in pieces that any process can do: each takes some seconds and begins from nothing."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec

from tests.crash.crash_states import RECORDED_STORES, run_crash_states
from tests.crash.evidence import Evidence
from tests.crash.filesystem import LoopFilesystem, Space
from tests.crash.gateways import Gateways
from tests.crash.injection import cases_of
from tests.crash.launcher import PROJECT, Launcher
from tests.crash.rack import RACK_BYTES, Rack, nothing
from tests.crash.stage import Stage
from tests.crash.trials import Crashes, Tally, mixed_moments

STORES = ("sqlite:", "jsonl:", "none:")
ACTS: Mapping[str, Sequence[str]] = {
    "sqlite:": ("create", "open", "wake", "close", "flush_many", "flush", "commit", "delete"),
    "jsonl:": ("create", "open", "wake", "close", "flush_many", "flush", "commit", "delete"),
    "none:": ("create", "open", "wake", "close", "flush_many", "flush", "delete"),
}
"""Those with the most points first: what takes long should not begin last."""

TRIALS_OF_A_LIFE = 25
"""So many trials a workspace lives through before a new one is begun, whose creation is cut too."""

STATES_AT_ONCE = 500

CHATS = 200
"""So many chats three gateways answer."""

EVENTS_OF_A_RACK = 20
"""So many promotions and power cuts a rack lives through before a new one is begun."""

ACKNOWLEDGED_BETWEEN = 150
"""So many acknowledgements there are at most between one event and the next."""

SETTINGS: Sequence[Mapping[str, object]] = ({}, {"max_cached": 3})
"""The writers' settings, in turns: all sessions in memory, and hardly any, so that most are loaded again and again."""


class Result(Tally, kw_only=True):
    """What a piece came to; of the pieces of one run the results are added up.

    Attributes:
        tier: of reliability's four: A needs nothing, B strace, C mounts, D a systemd to boot.
        name: the run that this is a part of.
        seconds: how long it took, in one process.
    """

    tier: str
    name: str
    seconds: float = 0.0

    def add(self, other: Result) -> None:
        """Add what another piece of the same run came to."""
        for count in self.__struct_fields__:
            if count not in ("tier", "name"):
                setattr(self, count, getattr(self, count) + getattr(other, count))


class Tools:
    """What a piece works with.

    Args:
        space: where it may make directories and mounts.
        evidence: keeps what failed.
        plan: is called with how many trials there will be, by pieces that do not know it before.
        tell: is called with how many trials were done.
        is_stopped: whether the piece should end early.
    """

    def __init__(
        self,
        space: Space,
        evidence: Evidence,
        *,
        plan: Callable[[int], None],
        tell: Callable[[int], None],
        is_stopped: Callable[[], bool],
    ) -> None:
        self.space = space
        self.evidence = evidence
        self.plan = plan
        self.tell = tell
        self.is_stopped = is_stopped
        self._launchers: dict[str, Launcher] = {}

    def launcher(self, module: str) -> Launcher:
        """A launcher of writers, started when it is first asked for: that takes a second."""
        if module not in self._launchers:
            self._launchers[module] = Launcher(module).__enter__()
        return self._launchers[module]

    def home(self, stack: ExitStack, kind: str | None) -> LoopFilesystem | Path:
        """A file system of this kind, or a directory (None), until the stack unwinds.

        When it unwinds because something failed, the writers are ended first: they would keep it from being unmounted.
        """
        home = stack.enter_context(LoopFilesystem(self.space, kind)) if kind else self.space.new_directory("home")
        stack.push(lambda error, *_: self.close() if error else None)
        return home

    @contextmanager
    def cleaning_up(self) -> Iterator[None]:
        """Whatever is made in the space within the block is gone after it."""
        outer, self.space = self.space, Space(self.space.new_directory("piece"))
        try:
            yield
        finally:
            shutil.rmtree(self.space.path, ignore_errors=True)
            self.space = outer

    def close(self) -> None:
        """End the launchers and their writers; whoever asks for one again gets a new one."""
        while self._launchers:
            self._launchers.popitem()[1].__exit__()


class Piece(msgspec.Struct, kw_only=True, tag=True):
    """A part of a run.

    Attributes:
        tier: see `Result`.
        bar: the progress bar that it moves.
        name: the run that it is a part of.
        planned: how many trials it will be; 0: nobody knows yet.
    """

    tier: str
    bar: str
    name: str
    planned: int = 0

    def run(self, tools: Tools) -> Result:
        """Do it."""
        raise NotImplementedError

    def came_to(self, tally: Tally) -> Result:
        """The result that a tally tells."""
        return Result(tier=self.tier, name=self.name, **msgspec.structs.asdict(tally))


class CrashPiece(Piece, kw_only=True):
    """One life of a workspace, from its creation on, through many power cuts or (kind None) kills."""

    store: str
    kind: str | None
    seed: str
    settings: Mapping[str, object] = {}

    def run(self, tools: Tools) -> Result:
        """Crash, and crash again, until it is enough or something is wrong."""
        with ExitStack() as stack:
            home = tools.home(stack, self.kind)
            crashes = Crashes(
                tools.launcher("tests.crash.writer"),
                (home.path if isinstance(home, LoopFilesystem) else home) / "workspace",
                tools.space.new_directory("scratch"),
                tools.evidence,
                filesystem=home if isinstance(home, LoopFilesystem) else None,
                store=self.store,
                seed=self.seed,
                settings=self.settings,
            )
            for moment in ["creating", *mixed_moments(self.seed, self.planned - 1)]:
                if tools.is_stopped() or crashes.run(moment):
                    break  # what follows on a damaged directory says nothing new
                tools.tell(1)
        return self.came_to(crashes.tally)


class FaultPiece(Piece, kw_only=True):
    """Every fault at every point of one act."""

    store: str
    kind: str | None
    act: str

    def run(self, tools: Tools) -> Result:
        """One series of cases after the other."""
        result = self.came_to(Tally())
        with ExitStack() as stack:
            stage = Stage(
                tools.launcher("tests.crash.actor"),
                tools.home(stack, self.kind),
                tools.space.new_directory("scratch"),
                act=self.act,
                store=self.store,
                evidence=tools.evidence,
            )
            points = stage.points()
            tools.plan(sum((number + 1) * len(cases_of(call)) for call, number in points.items()))
            for first in [case for call in points for case in cases_of(call)]:
                for outcome in stage.series(first):
                    result.trials += outcome.struck
                    result.problems += outcome.problems
                    tools.tell(1)
                    if tools.is_stopped():
                        return result
        return result


class RackPiece(Piece, kw_only=True):
    """One life of three gateways and a rack of three servers, through promotions and (with a kind) power cuts."""

    kind: str | None
    seed: str

    def run(self, tools: Tools) -> Result:
        """Let one thing happen after the other, and look at the end what is in the database."""
        chance = random.Random(self.seed)
        result = self.came_to(Tally())
        scratch = tools.space.new_directory("gateways")
        with ExitStack() as stack:
            home: LoopFilesystem | Path = tools.space.new_directory("rack")
            if self.kind is not None:
                home = stack.enter_context(LoopFilesystem(tools.space, self.kind, size=RACK_BYTES))
            rack = stack.enter_context(Rack(home))
            launcher = tools.launcher("tests.crash.gateway")
            gateways = stack.enter_context(Gateways(launcher, scratch, rack.url, chats=CHATS, seed=self.seed))
            for number in range(self.planned):
                if tools.is_stopped():
                    break
                gateways.wait_for_acknowledgements(chance.randint(1, ACKNOWLEDGED_BETWEEN))
                with gateways.one_paused() if chance.random() < 0.5 else nullcontext():
                    if chance.random() < 0.4:
                        gateways.kill_one()
                    if number % 2 and self.kind is not None:
                        rack.cut_power(gateways.kill_one if chance.random() < 0.4 else nothing)
                        result.crashes += 1
                    else:
                        rack.promote()
                        result.promotions += 1
                result.trials += 1
                tools.tell(1)
            gateways.wait_for_acknowledgements(ACKNOWLEDGED_BETWEEN)
            gateways.finish()
            result.problems = gateways.problems()
            result.kills, result.pauses = gateways.kills, gateways.pauses
            result.acknowledged = gateways.acknowledgements()
            if result.problems:
                logs = [server.directory / "log" for server in rack.servers]
                for log in logs:
                    shutil.copy(log, scratch / f"{log.parent.name}.log")
                tools.evidence.keep(f"{self.name} {self.seed}", scratch, (), result.problems)
        return result


class StatesPiece(Piece, kw_only=True):
    """Crash states that a faulty disk in this process may leave."""

    store: str
    seed: str

    def run(self, tools: Tools) -> Result:
        """Let them be enumerated."""
        scratch = tools.space.new_directory("states")
        tell = partial(tools.tell, 1)
        return self.came_to(run_crash_states(self.planned, self.seed, store=self.store, scratch=scratch, on_state=tell))


class SuitePiece(Piece, kw_only=True):
    """Tests that pytest runs, such as those that boot a systemd."""

    paths: Sequence[str]

    def run(self, tools: Tools) -> Result:
        """Run them and count."""
        report = tools.space.new_directory("suite") / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junit-xml={report}", *self.paths]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        result = self.came_to(Tally())
        if not report.exists():
            result.problems.append(f"{self.name}: {done.stdout}{done.stderr}")
            return result
        for case in ET.parse(report).iter("testcase"):
            outcomes = {child.tag for child in case}
            result.trials += "skipped" not in outcomes
            result.skipped += "skipped" in outcomes
            if outcomes & {"failure", "error"}:
                result.problems.append(f"{self.name}: {case.get('name')} failed")
        tools.tell(1)
        return result


AnyPiece = CrashPiece | FaultPiece | RackPiece | StatesPiece | SuitePiece


def run_piece(piece: AnyPiece, tools: Tools) -> Result:
    """Do a piece; what the harness itself trips over is a problem, too, and ends nothing but this piece."""
    started = time.monotonic()
    try:
        with tools.cleaning_up():
            result = piece.run(tools)
    except Exception:  # noqa: BLE001 - an hour of other pieces must not be lost with this one
        result = Result(tier=piece.tier, name=piece.name)
        result.problems.append(f"{piece.name}: the harness failed\n{traceback.format_exc()}")
    result.seconds = time.monotonic() - started
    return result


# --- what is to be done ----------------------------------------------------------------------------------------------


class Choice(msgspec.Struct, kw_only=True, frozen=True):
    """What the command line asks for; a number of 0 is none."""

    promotions: int = 0
    cuts: int = 0
    kills: int = 0
    states: int = 0
    faults: bool = False
    units: bool = False
    kinds: tuple[str, ...] = ()
    stores: tuple[str, ...] = STORES
    seed: str = ""


def pieces_of(choice: Choice) -> list[AnyPiece]:
    """Everything that was chosen, in pieces; those that take long first."""
    pieces: list[AnyPiece] = []
    if choice.units:
        pieces.append(
            SuitePiece(tier="D", bar="booted systemd", name="booted systemd", planned=1, paths=["tests/systemd"])
        )
    if choice.faults:
        kind = choice.kinds[0] if choice.kinds else None
        pieces += [_faults(act, kind, store) for store in choice.stores for act in ACTS[store]]
    pieces += _racks(choice.promotions, "ext4" if choice.kinds else None, choice.seed)
    for store in choice.stores:
        pieces += _lives(choice.kills, None, store, choice.seed)
        pieces += [life for kind in choice.kinds for life in _lives(choice.cuts, kind, store, choice.seed)]
        pieces += _states(choice.states, store, choice.seed) if store in RECORDED_STORES else []
    return pieces


def _faults(act: str, kind: str | None, store: str) -> FaultPiece:
    return FaultPiece(tier="B", bar=f"faults, {store}", name=f"faults, {act}, {store}", store=store, kind=kind, act=act)


def _lives(number: int, kind: str | None, store: str, seed: str) -> list[CrashPiece]:
    tier, bar = ("A", "kills") if kind is None else ("C", f"cuts, {kind}")
    return [
        CrashPiece(
            tier=tier,
            bar=bar,
            name=f"{bar}, {store}",
            planned=min(TRIALS_OF_A_LIFE, number - start),
            store=store,
            kind=kind,
            seed=f"{seed} {kind} {store} {start}",
            settings=SETTINGS[start // TRIALS_OF_A_LIFE % len(SETTINGS)],
        )
        for start in range(0, number, TRIALS_OF_A_LIFE)
    ]


def _racks(promotions: int, kind: str | None, seed: str) -> list[RackPiece]:
    """As many power cuts as promotions, where power can be cut."""
    number = promotions if kind is None else 2 * promotions
    return [
        RackPiece(
            tier="E",
            bar="three gateways",
            name="three gateways, postgresql:",
            planned=min(EVENTS_OF_A_RACK, number - start),
            kind=kind,
            seed=f"{seed} rack {start}",
        )
        for start in range(0, number, EVENTS_OF_A_RACK)
    ]


def _states(number: int, store: str, seed: str) -> list[StatesPiece]:
    return [
        StatesPiece(
            tier="A",
            bar="crash states",
            name=f"crash states, {store}",
            planned=min(STATES_AT_ONCE, number - start),
            store=store,
            seed=f"{seed} {start}",
        )
        for start in range(0, number, STATES_AT_ONCE)
    ]


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))
