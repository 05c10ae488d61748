"""How long whole processes take to start: a bare interpreter, our commands, the import, and the daemon until READY.

Each is started again and again, all in turns. Time on the clock is what a person waits; processor time (user and
system, of the process) is the same on a shared machine, and is compared with the targets.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from signal import SIGTERM

import anyio
from anyio import to_thread

from benchmarks.daemon import Daemon
from benchmarks.workload import Row
from miniclaw_sessions.service.client import connect

ROUNDS = 15
BARE = ("-c", "pass")
MODULES = ("-c", "import asyncio, json, sqlite3")
PROGRAM = ("-m", "miniclaw_sessions")
"""As the installed script does it: both load the package's command line and nothing else."""

VERSION_MS, LIST_MS = 100.0, 250.0
IMPORTS = 2.0


def measure(directory: Path, *, quick: bool = False) -> list[Row]:
    """Milliseconds, ours beside a bare interpreter's, or the import of asyncio, json and sqlite3."""
    with tempfile.TemporaryDirectory(prefix="mc") as scratch:
        return anyio.run(_measure, directory, Path(scratch), 3 if quick else ROUNDS)


async def _measure(directory: Path, scratch: Path, rounds: int) -> list[Row]:
    with Daemon(directory / "startup", scratch) as daemon:
        ready = []
        for _ in range(rounds):
            ready.append(1_000 * await daemon.start())
            await daemon.end(SIGTERM)
        await daemon.start()
        async with connect(f"unix:{daemon.socket}") as client:
            for number in range(100):
                await client.get_or_create("bench", number)
        commands = {
            "a bare interpreter": BARE,
            "import asyncio, json, sqlite3": MODULES,
            "import miniclaw_sessions": ("-c", "import miniclaw_sessions"),
            "from miniclaw_sessions import SessionManager": ("-c", "from miniclaw_sessions import SessionManager"),
            "--version": (*PROGRAM, "--version"),
            "--help": (*PROGRAM, "--help"),
            "list of 100 through the daemon": (*PROGRAM, "list", "--socket", str(daemon.socket)),
            "show through the daemon": (*PROGRAM, "show", "bench_1", "--socket", str(daemon.socket)),
        }
        times = await to_thread.run_sync(_times, commands, rounds, _environment(scratch))
    rows = [_row(name, clock, own, times) for name, (clock, own) in times.items()]
    return [*rows, Row("the daemon until READY, an empty workspace", "ms", sorted(ready)[rounds // 2])]


def _row(name: str, clock: float, own: float, times: dict[str, tuple[float, float]]) -> Row:
    bare, modules = times["a bare interpreter"][1], times["import asyncio, json, sqlite3"][1]
    title = f"{name} ({clock:,.0f} ms on the clock)"
    if "import" in name:
        return Row(title, "ms CPU", own, modules, f"at most {IMPORTS:g} times", own <= IMPORTS * modules)
    if "daemon" in name:
        return Row(title, "ms CPU", own, bare, f"{LIST_MS:g} ms", own <= LIST_MS)
    return Row(title, "ms CPU", own, bare, f"{VERSION_MS:g} ms above", own <= bare + VERSION_MS)


def _environment(scratch: Path) -> dict[str, str]:
    """As after an installation, whose modules are compiled: a variable may forbid that here."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**own, "PYTHONPYCACHEPREFIX": str(scratch / "compiled")}


def _times(
    commands: dict[str, tuple[str, ...]], rounds: int, environment: dict[str, str]
) -> dict[str, tuple[float, float]]:
    """Milliseconds on the clock and of the processor: medians of all rounds but the first, which fills the caches."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(rounds + 1):
        for name, command in commands.items():
            found[name].append(_time(command, environment))
    return {
        name: (_median([clock for clock, _ in each[1:]]), _median([own for _, own in each[1:]]))
        for name, each in found.items()
    }


def _time(command: tuple[str, ...], environment: dict[str, str]) -> tuple[float, float]:
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, *command], env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    clock = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ended with status {process.returncode}")
    return 1_000 * clock, 1_000 * (used.ru_utime + used.ru_stime)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
