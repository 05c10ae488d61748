"""Whether a store still has what it acknowledged after its power was cut, or its writer was killed.

Sessions with 20 messages each are made in good order and become durable, as they would in time. Then a live writer goes
on in them and notes each acknowledgement outside of the file system. At a moment of chance it is stopped, the power of
its file system is cut, and after the next mount the store's own API reads everything back.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import msgspec

from benchmarks.peers.catalogue import Peer
from benchmarks.peers.environments import PROJECT, Environments, NotAvailable
from benchmarks.peers.measurements import worker_environment
from benchmarks.peers.worker import BEGINNING
from tests.crash.filesystem import LoopFilesystem, MountSpace, reason_not_to_mount, stop

SESSIONS = tuple(f"session-{number}" for number in range(4))
ACT_LIMIT_S = 60.0
MOST_ACKNOWLEDGED = 150
FILE_SYSTEMS = ("ext4", "xfs")
KILL = "kill -9"


class Outcome(msgspec.Struct, frozen=True):
    """What became of one store in all trials of one kind.

    Attributes:
        kind: the file system whose power was cut, or `kill -9`.
        trials: how many.
        harmful: in how many of them something was lost.
        acknowledged: messages acknowledged before, the 80 of each beginning not counted.
        lost: how many of them were not there afterwards.
        old: messages that had long been saved.
        old_lost: how many of those were not there afterwards.
        unreadable: trials after which the store or one of its sessions could not be read.
        error: what its reader said, the last time; without any trial, why there was none.
    """

    kind: str
    trials: int = 0
    harmful: int = 0
    acknowledged: int = 0
    lost: int = 0
    old: int = 0
    old_lost: int = 0
    unreadable: int = 0
    error: str = ""


def reason_not_to_cut() -> str | None:
    """Why no power can be cut here, or None."""
    return reason_not_to_mount(*FILE_SYSTEMS)


def cut_all(
    peers: Sequence[Peer], environments: Environments, trials: int, seed: str, say: Callable[[str], None]
) -> dict[str, list[Outcome]]:
    """Run this many trials of each kind with each of these stores."""
    outcomes: dict[str, list[Outcome]] = {}
    with MountSpace() as space:
        for peer in peers:
            try:
                interpreter = environments.interpreter(peer)
            except NotAvailable:
                continue
            with Server(peer, interpreter) as server:
                for kind in (*FILE_SYSTEMS, KILL):
                    say(f"{peer.name}, {kind}")
                    try:
                        outcome = _trials(server, space, kind, trials, seed)
                    except RuntimeError as error:
                        outcome = Outcome(kind, error=str(error))
                    outcomes.setdefault(peer.name, []).append(outcome)
    return outcomes


def _trials(server: Server, space: MountSpace, kind: str, trials: int, seed: str) -> Outcome:
    chance = random.Random(f"{seed} {kind}")
    outcome = Outcome(kind)
    with ExitStack() as stack:
        filesystem = None if kind == KILL else stack.enter_context(LoopFilesystem(space, kind))
        scratch = space.new_directory("notes")
        place = filesystem.path if filesystem else space.new_directory("killed")
        for number in range(trials):
            store, notes = place / str(number), scratch / f"{number}.txt"
            _write_and_cut(server, filesystem, store, notes, chance)
            with server.act("read_back", store, scratch) as reader:
                reader.wait()
                outcome = tally(outcome, notes, reader.result())
            shutil.rmtree(store, ignore_errors=True)
    return outcome


def _write_and_cut(
    server: Server, filesystem: LoopFilesystem | None, store: Path, notes: Path, chance: random.Random
) -> None:
    """Make a store, go on in it, cut the power or kill the writer, and boot again."""
    with server.act("begin", store, notes.parent) as begun:
        if begun.wait():
            raise RuntimeError(f"{server.peer.name} could not begin: {begun.result()}")
    if filesystem is not None:
        filesystem.sync()
    with server.act("go_on", store, notes.parent, acknowledgements=str(notes)) as writer:
        writer.wait_for(notes, chance.randint(1, MOST_ACKNOWLEDGED))
        time.sleep(chance.uniform(0.0, 0.01))
        if filesystem is not None:
            stop(writer.pid)
            filesystem.shut_down()
        writer.kill()
    if filesystem is not None:
        filesystem.remount()


def _noted(notes: Path) -> set[tuple[str, int]]:
    """What was acknowledged; a last line that the kill cut short was not noted."""
    lines = notes.read_text().split("\n")[:-1] if notes.exists() else []
    return {(session, int(number)) for session, number in (line.split() for line in lines)}


def tally(so_far: Outcome, notes: Path, result: Mapping[str, Any]) -> Outcome:
    """What one more trial came to; the reader found numbers in each session, or had an error instead."""
    noted = _noted(notes)
    found: Mapping[str, Any] = result.get("found", {})
    there = {(session, number) for session, numbers in found.items() if isinstance(numbers, list) for number in numbers}
    old = {(session, number) for session in SESSIONS for number in range(BEGINNING)}
    errors = [text for text in (result.get("error"), *found.values()) if isinstance(text, str)]
    lost, old_lost = len(noted - there), len(old - there)
    return Outcome(
        so_far.kind,
        so_far.trials + 1,
        so_far.harmful + bool(lost or old_lost),
        so_far.acknowledged + len(noted),
        so_far.lost + lost,
        so_far.old + len(old),
        so_far.old_lost + old_lost,
        so_far.unreadable + bool(errors),
        errors[-1] if errors else so_far.error,
    )


# --- the process that forks writers ----------------------------------------------------------------------------------


class Server:
    """A worker that has imported the store, and forks a process for each act; a context manager."""

    def __init__(self, peer: Peer, interpreter: Path) -> None:
        self.peer = peer
        self._interpreter = interpreter

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [self._interpreter, "-m", "benchmarks.peers.worker", self.peer.adapter, "serve"],
            cwd=PROJECT,
            env=worker_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=ACT_LIMIT_S)
        self._process.stdout.close()

    @contextlib.contextmanager
    def act(self, name: str, directory: Path, scratch: Path, **orders: str) -> Iterator[Act]:
        """Let a process do something in a directory; it is killed when the block ends."""
        result = scratch / f"{directory.name}-{name}.json"
        self._tell({"act": name, "directory": str(directory), "result": str(result), "sessions": SESSIONS, **orders})
        act = Act(self, self.listen()["pid"], result)
        limit = threading.Timer(ACT_LIMIT_S, os.kill, (act.pid, signal.SIGKILL))  # or a reader that hangs would stay
        limit.start()
        try:
            yield act
        finally:
            limit.cancel()
            act.kill()

    def _tell(self, orders: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(orders) + "\n")
        self._process.stdin.flush()

    def listen(self) -> Any:
        """Receive one line.

        Raises:
            RuntimeError: the process has ended.
        """
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"the worker of {self.peer.name} ended")
        return json.loads(line)


class Act:
    """A process that does one thing."""

    def __init__(self, server: Server, pid: int, result: Path) -> None:
        self.pid = pid
        self._server = server
        self._result = result
        self._status: int | None = None

    def wait(self) -> int:
        """Its exit status, when it has ended."""
        if self._status is None:
            self._status = int(self._server.listen()["status"])
        return self._status

    def kill(self) -> None:
        """End it, if it has not ended."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def result(self) -> Any:
        """What it found, or its error."""
        if not self._result.exists():
            return {"error": f"ended with status {self._status}"}
        return json.loads(self._result.read_text(encoding="utf-8"))

    def wait_for(self, notes: Path, lines: int) -> None:
        """Return when it has recorded this many acknowledgements.

        Raises:
            RuntimeError: it ended, or does not get on.
        """
        deadline = time.monotonic() + ACT_LIMIT_S
        while not notes.exists() or notes.read_bytes().count(b"\n") < lines:
            if not Path(f"/proc/{self.pid}").exists():
                raise RuntimeError(f"{self._server.peer.name} ended: {self.result()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self._server.peer.name} acknowledged too little within {ACT_LIMIT_S} s")
            time.sleep(0.001)
