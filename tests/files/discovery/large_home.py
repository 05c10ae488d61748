"""A home with gigabytes of other programs' sessions is taken in, and what that takes is measured.

    python -m tests.files.discovery.large_home                    # 10 GB, in files of up to 1 GB
    python -m tests.files.discovery.large_home --gigabytes 0.3 --largest 0.2

The command runs in a process of its own, without a daemon; its peak of memory is what the kernel says of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

GIGABYTE = 1_000_000_000
_TOOL_OUTPUT = "".join(f"line {number} of what a tool printed, {number * 7919 % 104729}\n" for number in range(400))
_LARGE = 12_000  # bytes of about every third message: an agent's tools print more than it says


class Run(msgspec.Struct):
    """What taking it in took."""

    gigabytes: float
    sessions: int
    messages: int
    peak_mb: float
    seconds: float


def pi_lines(session: str) -> Iterator[bytes]:
    """A session of pi's without an end."""
    yield _line({"type": "session", "version": 3, "id": session, "timestamp": _time(0), "cwd": "/home/ada"})
    parent = None
    number = 0
    while True:
        entry_id = f"{number:08x}"
        message = {"role": "user", "content": _text(number), "timestamp": 1767225600000 + number}
        yield _line(
            {"type": "message", "id": entry_id, "parentId": parent, "timestamp": _time(number), "message": message}
        )
        parent, number = entry_id, number + 1


def claude_lines(session: str) -> Iterator[bytes]:
    """A session of Claude Code's without an end."""
    parent = None
    number = 0
    while True:
        uuid = f"00000000-0000-4000-8000-{number:012x}"
        common = {"uuid": uuid, "parentUuid": parent, "sessionId": session, "timestamp": _time(number)}
        if number % 2:
            content = [{"type": "text", "text": _text(number)}]
            message = {"id": f"m{number}", "role": "assistant", "content": content, "stop_reason": "end_turn"}
            yield _line({**common, "type": "assistant", "message": message})
        else:
            yield _line({**common, "type": "user", "message": {"role": "user", "content": _text(number)}})
        parent, number = uuid, number + 1


def codex_lines(session: str) -> Iterator[bytes]:
    """A session of Codex's without an end."""
    yield _line({"timestamp": _time(0), "type": "session_meta", "payload": {"id": session, "cwd": "/home/ada"}})
    number = 0
    while True:
        role = ("user", "assistant")[number % 2]
        content = [{"type": f"{('in', 'out')[number % 2]}put_text", "text": _text(number)}]
        payload = {"type": "message", "role": role, "content": content}
        yield _line({"timestamp": _time(number), "type": "response_item", "payload": payload})
        number += 1


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def _time(number: int) -> str:
    return (
        f"2026-01-{1 + number // 86400 % 28:02}T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}.000Z"
    )


def _text(number: int) -> str:
    size = _LARGE if number % 3 == 0 else 300
    start = number * 131 % 4_000
    return f"message {number}: {_TOOL_OUTPUT[start : start + size]}"


def fill(home: Path, gigabytes: float, largest: float) -> int:
    """Write the sessions of three programs; how many there are."""
    left, number = int(gigabytes * GIGABYTE), 0
    while left > 0:
        size = min(left, int(largest * GIGABYTE) >> (number // 3 % 4))
        session = f"00000000-0000-4000-8000-{number:012}"
        match number % 3:
            case 0:
                path, lines = home / f".pi/agent/sessions/--x--/2026_{session}.jsonl", pi_lines(session)
            case 1:
                path, lines = home / f".claude/projects/x/{session}.jsonl", claude_lines(session)
            case _:
                path, lines = (
                    home / f".codex/sessions/2026/rollout-2026-01-01T00-00-00-{session}.jsonl",
                    codex_lines(session),
                )
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            while file.tell() < size:
                file.write(next(lines))
            left -= file.tell()
        number += 1
    return number


_MEASURED = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, end="")
sys.exit(status)
"""
"""Runs a command, and says its peak behind what it says. The test's own process has other children, and the kernel
counts for a child what its parent had in memory when it began."""


def take_in(home: Path, workspace: Path, gigabytes: float) -> Run:
    """Run the command, and measure it."""
    command = [
        sys.executable,
        "-c",
        _MEASURED,
        sys.executable,
        "-m",
        "miniclaw_sessions",
        "--workspace",
        str(workspace),
    ]
    began = time.monotonic()
    result = subprocess.run(
        [*command, "import", "--discover", "--all", "--json"],
        env={**os.environ, "HOME": str(home)},
        stdout=subprocess.PIPE,
        check=True,
    )
    seconds = time.monotonic() - began
    said, peak_kb = result.stdout.rsplit(b"\n", 1)
    imported = json.loads(said)["imported"]
    peak_mb = int(peak_kb) / 1024
    return Run(gigabytes, len(imported), sum(one["messages"] for one in imported), peak_mb, seconds)


def measure(directory: Path, gigabytes: float, largest: float) -> Run:
    """Write a home and take it in, both within a directory."""
    sessions = fill(directory / "home", gigabytes, largest)
    run = take_in(directory / "home", directory / "workspace", gigabytes)
    assert run.sessions == sessions
    return run


def main() -> None:
    """As the module says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--largest", type=float, default=1.0, help="gigabytes of the largest file")
    parser.add_argument("--directory", type=Path, help="where it is written; a temporary directory by default")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=wanted.directory) as directory:
        run = measure(Path(directory), wanted.gigabytes, wanted.largest)
    sys.stdout.write(msgspec.json.encode(run).decode() + "\n")


if __name__ == "__main__":
    main()
