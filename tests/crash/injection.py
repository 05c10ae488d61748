"""Faults at one system call of one act: what strace makes of a healthy machine.

A fault is injected into a writer that is already running, at the N-th call of a kind in each of its threads. The call
is not carried out, so a sync that was injected has synced nothing; the power cut that ends each case makes that count.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

SYNCS = ("fsync", "fdatasync", "syncfs")
CALLS = (*SYNCS, "rename", "renameat", "renameat2", "write", "pwrite64", "unlink", "unlinkat", "linkat", "ftruncate")
OPENS = "openat"
FAULTS = ("EIO", "ENOSPC", "SIGKILL")
LIMIT_S = 20.0


class Point(NamedTuple):
    """The `number`-th system call `call` of a thread."""

    call: str
    number: int


def reason_not_to_trace() -> str | None:
    """Why nothing can be injected here, or None when it can."""
    if not sys.platform.startswith("linux"):
        return "this is not Linux"
    if shutil.which("strace") is None:
        return "strace is not installed"
    probe = subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, text=True, check=False)
    return f"strace may not trace: {probe.stderr.strip()}" if probe.returncode else None


@contextmanager
def traced(pid: int, trace: Path, *options: str) -> Iterator[None]:
    """Let strace watch every thread of a process, from before this returns until the block ends or the process dies."""
    strace = subprocess.Popen(
        ["strace", "-f", "-y", "-o", str(trace), *options, "-p", str(pid)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert strace.stderr is not None
    try:
        said = strace.stderr.readline()
        assert "attached" in said, f"strace did not attach: {said}{strace.stderr.read() if strace.poll() else ''}"
        yield
    finally:
        strace.send_signal(signal.SIGINT)
        strace.wait(timeout=LIMIT_S)
        strace.stderr.close()


def watching() -> list[str]:
    """The options that record all calls at which something could fail."""
    return ["-e", f"trace={','.join((*CALLS, OPENS))}"]


def injecting(point: Point, fault: str, *, directory: Path) -> list[str]:
    """The options that inject a fault at a point; opens are counted in one directory only, not where Python imports."""
    what = "signal=KILL" if fault == "SIGKILL" else f"error={fault}"
    options = ["-e", f"trace={point.call}", "-e", f"inject={point.call}:{what}:when={point.number}"]
    return [*options, "-P", str(directory)] if point.call == OPENS else options


def lying_about_syncs() -> list[str]:
    """The options that turn every sync into a lie: it reports success and does nothing."""
    return ["-e", f"trace={','.join(SYNCS)}", "-e", f"inject={','.join(SYNCS)}:retval=0"]


def count_injected(trace: Path) -> int:
    """How many calls were not carried out."""
    return trace.read_text(errors="replace").count("(INJECTED)")


def points_of(trace: Path, root: Path) -> list[Point]:
    """Every point at which something could fail, from the thread that was busiest with each call.

    Opens count in the snapshots' directory only; elsewhere Python opens modules whenever it likes.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for line in trace.read_text(errors="replace").splitlines():
        call = re.match(r"(\d+) +(\w+)\(([^ ]*)", line)
        if call and (call[2] != OPENS or f"<{root}/workspace/sessions>" in call[3]):
            counts[call[1], call[2]] += 1
    busiest: dict[str, int] = {}
    for (_, name), number in counts.items():
        busiest[name] = max(number, busiest.get(name, 0))
    return [Point(name, number) for name, last in sorted(busiest.items()) for number in range(1, last + 1)]
