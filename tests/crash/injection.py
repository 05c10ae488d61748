"""Faults at one system call of one act: what strace makes of a healthy machine.

A fault is injected into a writer that is already running, at the N-th call of a kind in each of its threads. The call
is not carried out, so a sync that was injected has synced nothing; the power cut that ends each case makes that count.
A short write is the exception: a part of it must really be written, which `short_writes` sees to.
"""

from __future__ import annotations

import enum
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.crash.short_writes import SHORT, count_shortened, shortened

SYNCS = ("fsync", "fdatasync", "syncfs")
WRITES = ("write", "pwrite64")
READS = ("read", "pread64", "getdents64")
OPENS = "openat"

KILL = "SIGKILL"
FAULTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(SYNCS, ("EIO", "ENOSPC", "EDQUOT", KILL)),
    **dict.fromkeys(("rename", "renameat", "renameat2"), ("EIO", "ENOSPC", "EDQUOT", KILL)),
    **dict.fromkeys(("link", "linkat", "mkdir", "mkdirat"), ("EIO", "ENOSPC", "EDQUOT", KILL)),
    **dict.fromkeys(WRITES, ("EIO", "ENOSPC", "EDQUOT", SHORT, KILL)),
    **dict.fromkeys(("unlink", "unlinkat", "ftruncate"), ("EIO", KILL)),
    **dict.fromkeys(READS, ("EIO",)),
    OPENS: ("EIO", "ENOSPC", "EDQUOT", "EMFILE", KILL),
}
"""The calls at which something may fail, and how each of them may."""

LIMIT_S = 60.0


class Duration(enum.Enum):
    """How long a fault lasts."""

    ONCE = "once"
    """One call fails, and the next one works."""

    UNTIL_NOTICED = "until noticed"
    """Every call fails from then on, until the writer is refused something; then the disk is well again."""

    UNTIL_THE_CUT = "until the cut"
    """Every call fails from then on, and the power is cut as soon as the writer is refused something."""


class Case(NamedTuple):
    """A fault at the `number`-th system call `call` of a thread."""

    call: str
    fault: str
    number: int = 1
    duration: Duration = Duration.ONCE

    def __str__(self) -> str:
        return f"{self.fault} at {self.call} {self.number}, {self.duration.value}"

    @property
    def when(self) -> str:
        """In strace's notation."""
        return f"{self.number}{'' if self.duration is Duration.ONCE else '+'}"


def cases_of(call: str) -> list[Case]:
    """The first case of every series of cases at this call: each fault, for each duration that it can have."""
    return [
        Case(call, fault, 1, duration)
        for fault in FAULTS[call]
        for duration in ([Duration.ONCE] if fault == KILL else Duration)
        if (fault, duration) != (SHORT, Duration.UNTIL_NOTICED)  # nothing is refused: it is only slow
    ]


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


def disturbed(pid: int, case: Case, trace: Path, workspace: Path) -> AbstractContextManager[None]:
    """Let a fault strike a process, until the block ends."""
    if case.fault == SHORT:
        return shortened(pid, trace, workspace, number=case.number, lasting=case.duration is not Duration.ONCE)
    return traced(pid, trace, *injecting(case, workspace))


def watching() -> list[str]:
    """The options that record all calls at which something could fail."""
    return ["-e", f"trace={','.join(f'?{call}' for call in FAULTS)}"]


def injecting(case: Case, workspace: Path) -> list[str]:
    """The options that inject a fault; opens and reads count in the workspace only, not where Python imports.

    Closing is watched, too: the trace must show that a descriptor whose sync failed is not synced again.
    """
    what = "signal=KILL" if case.fault == KILL else f"error={case.fault}"
    traced_calls = f"trace={case.call}" + (",close" if case.call in SYNCS else "")
    options = ["-e", traced_calls, "-e", f"inject={case.call}:{what}:when={case.when}"]
    if case.call not in (OPENS, *READS):
        return options
    return [*options, *(part for path in paths_in(workspace) for part in ("-P", str(path)))]


def paths_in(workspace: Path) -> list[Path]:
    """What may be opened in a workspace: its directories, its files, and those that SQLite makes beside its own."""
    there = [path for path in workspace.rglob("*") if path.is_dir() or path.is_file()]
    beside = [workspace / f"sessions.db{suffix}" for suffix in ("", "-wal", "-shm", "-journal")]
    directories = [workspace / name for name in ("sessions", "transcripts", "quarantine", ".lock")]
    return list(dict.fromkeys([workspace, *beside, *directories, *there]))


def lying_about_syncs() -> list[str]:
    """The options that turn every sync into a lie: it reports success and does nothing."""
    return ["-e", f"trace={','.join(SYNCS)}", "-e", f"inject={','.join(SYNCS)}:retval=0"]


def count_injected(trace: Path) -> int:
    """How many calls were not carried out, or only in part."""
    return trace.read_text(errors="replace").count("(INJECTED)") + count_shortened(trace)


def points_of(trace: Path, workspace: Path) -> Counter[str]:
    """How often the thread that was busiest with a call made it: so many points there are at which it could fail.

    Opens and reads count in the workspace only; elsewhere Python opens modules whenever it likes.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for line in trace.read_text(errors="replace").splitlines():
        call = re.match(r"(\d+) +(\w+)\((.*)", line)
        if call and (call[2] not in (OPENS, *READS) or f"{workspace}" in call[3]):
            counts[call[1], call[2]] += 1
    busiest: Counter[str] = Counter()
    for (_, name), number in counts.items():
        busiest[name] = max(number, busiest[name])
    return busiest


def synced_again(trace: Path) -> Sequence[str]:
    """The files of which a descriptor was synced again after its sync had failed: it may report success in vain (R5).

    Directories may be: what is synced of them is the file system's log, and a failure of that ends it as a whole. So
    may SQLite's files: it writes all of it again before it syncs again.
    """
    failed: dict[str, str] = {}
    found = []
    for line in trace.read_text(errors="replace").splitlines():
        call = re.match(r"\d+ +(\w+)\((\d+)<([^>]*)>", line)
        if call is None:
            continue
        name, descriptor, path = call[1], call[2], call[3]
        if name == "close":
            failed.pop(descriptor, None)
        elif descriptor in failed and not Path(path).is_dir() and not Path(path).name.startswith("sessions.db"):
            found.append(path)
        elif "(INJECTED)" in line:
            failed[descriptor] = path
    return found
