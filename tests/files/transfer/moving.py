"""A workspace of many sessions moves from store to store, and the command that moves it is killed on the way.

    python -m tests.files.transfer.moving                   # 10,000 sessions, SQLite -> PostgreSQL -> SQLite, ten kills
    python -m tests.files.transfer.moving --sessions 1000 --begin jsonl

Every run is the command itself in a process of its own, and every kill is SIGKILL to it, once the target has so many
sessions. What both ends say of every session is compared here, without the code that compares them there.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg
import msgspec

from miniclaw_sessions.core.stores import open_store
from miniclaw_sessions.core.stores.base import Append, StoredEntry
from miniclaw_sessions.testing.store_kit import sample_entries, sample_head
from tests.postgresql import running_server

BATCH = 200
LOOK_S = 0.02


class Run(msgspec.Struct):
    """One move, uninterrupted or the last of many."""

    way: str
    kills: int
    seconds: float
    cpu_seconds: float
    peak_mb: float
    report: dict[str, Any]


def entries_of(number: int) -> list[StoredEntry]:
    """A session's entries: of different number and size, every third with a key of its sender's."""
    entries = sample_entries(1, 1 + number % 40, prefix=f"e{number}", text=f"{number} " + "said so " * (number % 97))
    return [
        msgspec.structs.replace(entry, idempotency_key=f"key {entry.entry_id}") if entry.sequence % 3 == 0 else entry
        for entry in entries
    ]


async def fill(url: str, workspace: Path, sessions: int) -> int:
    """Make the sessions; how many bytes they said."""
    size = 0
    async with open_store(url, workspace) as store:
        for start in range(0, sessions, BATCH):
            numbers = range(start, min(start + BATCH, sessions))
            appends = [
                Append(sample_head(number, incarnation=f"of {number}"), entries_of(number)) for number in numbers
            ]
            assert await store.append(appends) == [None] * len(appends)
            size += sum(len(entry.encoded) for append in appends for entry in append.entries)
    return size


async def said(url: str, workspace: Path) -> dict[str, str]:
    """Of each session, a digest of all that the store says of it."""
    found = {}
    async with open_store(url, workspace) as store:
        async for stored in store.heads():
            head, entries = stored.head, await store.read(stored.head.session_id)
            whole = repr((head, stored.last_sequence, [msgspec.structs.astuple(entry) for entry in entries]))
            found[head.session_id] = hashlib.sha256(whole.encode()).hexdigest()
    return found


def move(source: str, target: str, workspace: Path) -> subprocess.Popen[bytes]:
    """Start the command."""
    arguments = ["migrate", "--from", source, "--to", target, "--json", "--workspace", str(workspace)]
    return subprocess.Popen(
        [sys.executable, "-m", "miniclaw_sessions", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "HOME": str(workspace)},
    )


async def count(target: str, workspace: Path) -> int:
    """How many sessions the target has by now; none where it is not made yet."""
    if target.startswith("postgresql:"):
        connection = await asyncpg.connect(target)
        try:
            return int(await connection.fetchval("SELECT count(*) FROM sessions"))
        except asyncpg.UndefinedTableError:
            return 0
        finally:
            await connection.close()
    async with open_store(target, workspace, read_only=True) as store:
        return len(await store.session_ids())


def kill_at(process: subprocess.Popen[bytes], target: str, workspace: Path, sessions: int) -> bool:
    """Kill the command as soon as the target has so many sessions; whether it was running then."""
    while process.poll() is None:
        if asyncio.run(count(target, workspace)) >= sessions:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            return process.returncode == -signal.SIGKILL
        time.sleep(LOOK_S)
    process.communicate()
    return False


def finish(process: subprocess.Popen[bytes], way: str, kills: int, began: float) -> Run:
    """Let the command come to its end."""
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        output, errors = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, errors.decode()
    return Run(
        way=way,
        kills=kills,
        seconds=time.monotonic() - began,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_mb=usage.ru_maxrss / 1024,
        report=json.loads(output),
    )


def moved(source: str, target: str, workspace: Path, *, sessions: int, kills: int) -> Run:
    """Move everything, and kill the command so often on the way; the last run goes to its end."""
    done = 0
    for number in range(1, kills + 1):
        done += kill_at(move(source, target, workspace), target, workspace, sessions * number // (kills + 1))
    way = f"{'a workspace' if source.startswith('/') else source.partition(':')[0]} -> {target.partition(':')[0]}"
    began = time.monotonic()
    return finish(move(source, target, workspace), way, done, began)


def run(sessions: int, kills: Sequence[int], begin: str) -> list[Run]:
    """There and back, for each of these numbers of kills on either way, with a database of its own."""
    runs = []
    with tempfile.TemporaryDirectory(prefix="moving") as name, running_server() as server:
        home = Path(name) / "home"
        home.mkdir(mode=0o700)
        (home / ".lock").touch(0o600)  # as whoever made a workspace leaves it
        asyncio.run(fill(f"{begin}:", home, sessions))
        whole = asyncio.run(said(f"{begin}:", home))
        assert len(whole) == sessions
        for times in kills:
            url = server.url(asyncio.run(server.new_database()))
            back = Path(name) / f"back{times}"
            runs.append(moved(str(home), url, home, sessions=sessions, kills=times))
            assert asyncio.run(said(url, home)) == whole
            back.mkdir(mode=0o700)
            runs.append(moved(url, "sqlite:", back, sessions=sessions, kills=times))
            assert asyncio.run(said("sqlite:", back)) == whole
    return runs


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--begin", choices=["sqlite", "jsonl"], default="sqlite")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    size = sum(len(entry.encoded) for number in range(options.sessions) for entry in entries_of(number)) / 1e6
    for one in run(options.sessions, [0, options.kills], options.begin):
        entries, written = one.report["entries"], one.report["written"]
        told = (
            f"{one.way}: {options.sessions:,} sessions, {entries:,} entries, {size:.0f} MB; {one.kills} kills; the "
            f"last run wrote {written:,} entries in {one.seconds:.1f} s ({one.cpu_seconds:.1f} s of CPU): "
            f"{options.sessions / one.seconds:,.0f} sessions/s, {size / one.seconds:.1f} MB/s, {one.peak_mb:.0f} MB of "
            "memory; every transcript is identical\n"
        )
        sys.stdout.write(told)


if __name__ == "__main__":
    main()
