"""What encryption at rest costs: sealing beside the bare cipher, acknowledged appends beside the same without it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from benchmarks.appends import run_acknowledged
from benchmarks.workload import Row, fresh, in_process, in_turns
from miniclaw_sessions.encryption import KeyRing, of_snapshot

SIZE = 100_000
PLACE = of_snapshot("bench_1")


def measure(directory: Path, *, quick: bool) -> list[Row]:
    """The rows of this benchmark."""
    rounds, times = (1, 500) if quick else (5, 5_000)
    sealed, opened, bare = in_turns(rounds, *(partial(in_process, run, times) for run in (_seal, _open, _encrypt)))
    rows = [
        Row("seal a snapshot of 100 kB", "us", sealed, bare),
        Row("open a snapshot of 100 kB", "us", opened, bare),
    ]
    for writers in (1, 100):
        per_writer = (200 if quick else 1_000) if writers == 1 else (20 if quick else 200)
        ours, plain = in_turns(
            1 if quick else 5,
            partial(in_process, run_acknowledged, fresh(directory, "encrypted"), writers, per_writer, os.urandom(32)),
            partial(in_process, run_acknowledged, fresh(directory, "plain"), writers, per_writer),
        )
        rows.append(Row(f"acknowledged appends, {writers} writers, encrypted (floor: not)", "per s", ours, plain))
    return rows


def _microseconds(times: int, step: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - started) / times * 1e6


def _seal(times: int) -> float:
    keys, data = KeyRing([os.urandom(32)]), os.urandom(SIZE)
    return _microseconds(times, lambda: keys.seal(data, PLACE))


def _open(times: int) -> float:
    keys = KeyRing([os.urandom(32)])
    sealed = keys.seal(os.urandom(SIZE), PLACE)
    return _microseconds(times, lambda: keys.open(sealed, PLACE, "it"))


def _encrypt(times: int) -> float:
    cipher, data = AESGCM(os.urandom(32)), os.urandom(SIZE)
    return _microseconds(times, lambda: cipher.encrypt(os.urandom(12), data, PLACE))
