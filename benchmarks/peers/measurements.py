"""What is measured of each store, in turns with all others, each time in a fresh process with its own interpreter."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.peers.catalogue import Peer
from benchmarks.peers.environments import PROJECT, Environments, NotAvailable, version

WORKER_LIMIT_S = 900.0
IN_MEMORY = Path("/dev/shm")
"""Stores are prepared where a sync costs nothing, if there is such a place."""


class Plan(msgspec.Struct, frozen=True):
    """How much is done.

    Attributes:
        rounds: how often each measurement is repeated; the medians are reported.
        single: messages appended to one session.
        concurrent: messages appended to each of 100 sessions.
        append_limit_s: appending ends after this time at the latest, done or not.
        sizes: lengths of the sessions that are read and appended to.
        size_limit_s: how long one such thing is repeated.
        many: sessions that are opened again.
        imports: how often the import is timed in each round.
    """

    rounds: int = 3
    single: int = 2_000
    concurrent: int = 200
    append_limit_s: float = 1.5
    sizes: tuple[int, ...] = (50, 100, 1_000, 10_000)
    size_limit_s: float = 0.3
    many: int = 1_000
    imports: int = 1

    @property
    def shape(self) -> str:
        """Names what the prepared stores have in them."""
        return f"{self.sizes[-1]}-{self.many}"


QUICK = Plan(
    rounds=1, single=200, concurrent=20, append_limit_s=0.5, sizes=(50, 100, 1_000), size_limit_s=0.1, many=100
)


class Measured(msgspec.Struct, frozen=True):
    """What was found about one store.

    Attributes:
        peer: the store.
        version: of its package.
        reason: why it was not measured, or None.
        numbers: each measurement's median, by the name that `COLUMNS` has.
        refused: appends that raised an error and were tried again.
    """

    peer: Peer
    version: str = ""
    reason: str | None = None
    numbers: dict[str, float] = {}
    refused: int = 0


Samples = dict[str, list[float]]
Say = Callable[[str], None]


class Bench:
    """Measures stores.

    Args:
        environments: where the interpreters come from.
        directory: a directory on the disk that matters; what is written there is removed again.
        plan: how much is done.
        say: called with a sentence for each step.
    """

    def __init__(self, environments: Environments, directory: Path, plan: Plan, say: Say) -> None:
        self._environments = environments
        self._directory = directory
        self._plan = plan
        self._say = say

    def measure(self, peers: Sequence[Peer]) -> list[Measured]:
        """All of these, in turns, so that a slow spell of the machine hits all of them."""
        ready: dict[str, Subject] = {}
        found: dict[str, Measured] = {}
        for peer in peers:
            try:
                ready[peer.name] = self._prepare(peer)
            except NotAvailable as reason:
                found[peer.name] = Measured(peer, reason=str(reason))
        for round_ in range(self._plan.rounds):
            for name, subject in list(ready.items()):
                self._say(f"{name}, round {round_ + 1} of {self._plan.rounds}")
                try:
                    subject.measure(round_)
                except NotAvailable as reason:
                    found[name] = Measured(subject.peer, subject.version, reason=str(reason))
                    del ready[name]
        found |= {name: subject.result() for name, subject in ready.items()}
        return [found[peer.name] for peer in peers]

    def steps(self, peers: Sequence[Peer]) -> int:
        """How often `say` will be called at most."""
        return len(peers) * (1 + self._plan.rounds)

    def _prepare(self, peer: Peer) -> Subject:
        self._say(f"{peer.name}, " + ("preparing" if self._environments.is_ready(peer) else "installing"))
        interpreter = self._environments.interpreter(peer)
        subject = Subject(peer, interpreter, self._directory / peer.adapter.replace(":", "-"), self._plan)
        subject.prepare(self._kept_store(peer))
        return subject

    def _kept_store(self, peer: Peer) -> Path | None:
        """Only for peers: what ours writes changes from one commit to the next."""
        if self._environments.directory is None or peer.requirement is None:
            return None
        return self._environments.stores(peer, self._plan.shape)


class Subject:
    """One store under measurement."""

    def __init__(self, peer: Peer, interpreter: Path, directory: Path, plan: Plan) -> None:
        self.peer = peer
        self.version = version(interpreter, peer)
        self._interpreter = interpreter
        self._directory = directory
        self._plan = plan
        self._samples: Samples = {}
        self._refused = 0

    def prepare(self, kept: Path | None) -> None:
        """Have the stores to read from: made once, kept if `kept` says where, and copied to the disk that matters."""
        self._directory.mkdir(parents=True)
        self._prepared = kept or self._directory / "prepared"
        if not self._prepared.exists():
            copying = self._prepared.with_name(f"{self._prepared.name}.copying")
            shutil.rmtree(copying, ignore_errors=True)
            with _place_in_memory(self._directory) as place:
                self._work("fill", place / "stores", stores={"sizes": self._sizes, "many": self._many})
                shutil.copytree(place / "stores", copying)
            copying.rename(self._prepared)
        self._copy("many")

    def measure(self, round_: int) -> None:
        """Everything, once."""
        limit_s = self._plan.append_limit_s
        for sessions, per_session in ((1, self._plan.single), (100, self._plan.concurrent)):
            place = self._directory / f"appends-{sessions}-{round_}"
            done = self._work("appends", place, sessions=sessions, per_session=per_session, limit_s=limit_s)
            self._note(f"appends_{sessions}", done["per_s"])
            self._refused += done["refused"]
            shutil.rmtree(place)
        place = self._copy("sizes")
        done = self._work("sizes", place, sizes=self._plan.sizes, limit_s=self._plan.size_limit_s)
        for kind in ("latest", "append"):
            for size, cost in done[f"{kind}_us"].items():
                self._note(f"{kind}_{size}", cost)
        done = self._work("cold_open", self._directory / "many", sessions=list(self._many))
        self._note("open", done["ms"])
        self._note("memory", done["memory_mb"])
        for _ in range(self._plan.imports):
            self._note("import", self._import_ms())

    def result(self) -> Measured:
        """The medians."""
        numbers = {name: statistics.median(values) for name, values in self._samples.items()}
        return Measured(self.peer, self.version, None, numbers, self._refused)

    @property
    def _sizes(self) -> dict[str, int]:
        return {f"of-{size}": size for size in self._plan.sizes}

    @property
    def _many(self) -> dict[str, int]:
        return {f"session-{number}": 50 for number in range(self._plan.many)}

    def _note(self, name: str, value: float) -> None:
        self._samples.setdefault(name, []).append(value)

    def _copy(self, name: str) -> Path:
        place = self._directory / name
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self._prepared / name, place)
        os.sync()  # or the disk would be busy with the copy while it is measured
        return place

    def _work(self, measurement: str, place: Path, **orders: Any) -> Any:
        """Let a worker do one thing, in a process of its own.

        Raises:
            NotAvailable: it could not, or not in time; the text is the last line of its error.
        """
        result = self._directory / "result.json"
        result.unlink(missing_ok=True)
        text = json.dumps({"directory": str(place), "result": str(result), **orders})
        try:
            done = run_python(self._interpreter, "-m", "benchmarks.peers.worker", self.peer.adapter, measurement, text)
        except subprocess.TimeoutExpired as error:
            raise NotAvailable(f"{measurement}: not done within {WORKER_LIMIT_S:.0f} s") from error
        if not result.exists():
            lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            raise NotAvailable(f"{measurement}: {lines[-1][:200]}")
        return json.loads(result.read_text(encoding="utf-8"))

    def _import_ms(self) -> float:
        """What the import costs a program: a process that does it, less one that does nothing."""
        module = f"benchmarks.peers.adapters.{self.peer.adapter.partition(':')[0]}"
        seconds = []
        for code in (f"import {module}", "import benchmarks.peers.adapters.base"):
            started = time.perf_counter()
            run_python(self._interpreter, "-c", code)
            seconds.append(time.perf_counter() - started)
        return max(0.0, (seconds[0] - seconds[1]) * 1e3)


def run_python(interpreter: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python of some environment with this repository on its path."""
    return subprocess.run(
        [interpreter, *arguments],
        cwd=PROJECT,
        env=worker_environment(),
        capture_output=True,
        text=True,
        timeout=WORKER_LIMIT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def worker_environment() -> dict[str, str]:
    """The environment of a worker: nothing that one of the libraries would send somewhere, no proxies, no keys."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR")}
    return kept | {"PYTHONPATH": str(PROJECT), "PYTHONDONTWRITEBYTECODE": ""}


@contextlib.contextmanager
def _place_in_memory(otherwise: Path) -> Iterator[Path]:
    base = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else otherwise
    with tempfile.TemporaryDirectory(dir=base, prefix="peers-") as directory:
        yield Path(directory)
