"""Several processes that do pieces of the long run side by side.

`Workers` is the side of the command; run as a module this file is one of the processes. It reads a piece from its
standard input, does it, and writes down how far it is and what it came to. When its input ends, because the command has
ended or was interrupted, it finishes the trial that it is at and tells what it has so far.
"""

from __future__ import annotations

import logging
import os
import select
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Self

import msgspec
import structlog

from tests.crash.evidence import Evidence
from tests.crash.filesystem import Space
from tests.crash.launcher import PROJECT
from tests.crash.runs import AnyPiece, Result, Tools, run_piece

EXIT_LIMIT_S = 60.0


class Planned(msgspec.Struct, tag=True):
    """A piece has found out how many trials it will be, about."""

    trials: int


class Tried(msgspec.Struct, tag=True):
    """A piece has got further by so many trials."""

    trials: int


class Done(msgspec.Struct, tag=True):
    """A piece is done."""

    result: Result


class Told(msgspec.Struct):
    """What a worker said, about which piece."""

    piece: AnyPiece
    said: Planned | Tried | Done


class Workers:
    """So many processes; a context manager.

    Args:
        number: how many.
        space: where they may make directories and mounts.
        evidence: where they keep what failed.
    """

    def __init__(self, number: int, *, space: Path, evidence: Path) -> None:
        self._number = number
        self._command = [sys.executable, "-m", __name__, str(space), str(evidence)]

    def __enter__(self) -> Self:
        self._selector = selectors.DefaultSelector()
        self._workers = [_Worker(self._command) for _ in range(self._number)]
        for worker in self._workers:
            self._selector.register(worker.output, selectors.EVENT_READ, worker)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._selector.close()
        for worker in self._workers:
            worker.close()

    def run(self, pieces: Sequence[AnyPiece]) -> Iterator[Told]:
        """Let the pieces be done, each by whoever is free, and tell what is said about them."""
        waiting = deque(pieces)
        for worker in self._workers:
            if waiting:
                worker.begin(waiting.popleft())
        for told in self._listen():
            yield told
            if isinstance(told.said, Done) and waiting:
                next(worker for worker in self._workers if worker.piece is None).begin(waiting.popleft())

    def stop(self) -> None:
        """Ask all of them to end early."""
        for worker in self._workers:
            worker.input.close()

    def rest(self) -> Iterator[Told]:
        """What is still said after `stop`."""
        return self._listen()

    def _listen(self) -> Iterator[Told]:
        """Until nobody is at work."""
        while any(worker.piece is not None for worker in self._workers):
            for key, _ in self._selector.select():
                yield from key.data.hear()


class _Worker:
    """One process, as the command sees it."""

    def __init__(self, command: Sequence[str]) -> None:
        self.piece: AnyPiece | None = None
        self._heard = b""
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=PROJECT, start_new_session=True
        )

    @property
    def input(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def output(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def begin(self, piece: AnyPiece) -> None:
        self.piece = piece
        self.input.write(msgspec.json.encode(piece) + b"\n")
        self.input.flush()

    def hear(self) -> Iterator[Told]:
        heard = os.read(self.output.fileno(), 65536)
        if not heard:
            raise RuntimeError(f"a worker ended with status {self._process.wait()}; its error is above")
        *lines, self._heard = (self._heard + heard).split(b"\n")
        for line in lines:
            assert self.piece is not None
            told = Told(self.piece, msgspec.json.decode(line, type=Planned | Tried | Done))
            if isinstance(told.said, Done):
                self.piece = None
            yield told

    def close(self) -> None:
        self._process.wait(timeout=EXIT_LIMIT_S)
        self.output.close()


# --- the process -----------------------------------------------------------------------------------------------------


def main(space: str, evidence: str) -> None:
    """Do what is asked until nobody asks any more."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    tools = Tools(
        Space(Path(space)),
        Evidence(Path(evidence)),
        plan=lambda trials: _tell(Planned(trials)),
        tell=lambda trials: _tell(Tried(trials)),
        is_stopped=_has_input_ended,
    )
    try:
        for line in sys.stdin.buffer:
            piece: AnyPiece = msgspec.json.decode(line, type=AnyPiece)
            _tell(Done(run_piece(piece, tools)))
    finally:
        tools.close()


def _has_input_ended() -> bool:
    """While a piece is being done nothing else is asked, so whatever there is to read is the end."""
    return bool(select.select([0], [], [], 0)[0])


def _tell(said: Planned | Tried | Done) -> None:
    os.write(1, msgspec.json.encode(said) + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
