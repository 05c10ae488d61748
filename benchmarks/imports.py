"""Importing a transcript of a gigabyte: how fast, and in how much memory."""

from __future__ import annotations

import json
import resource
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import anyio

from benchmarks.workload import Row, fresh, in_process
from miniclaw_sessions import SessionManager, export_session, import_file
from miniclaw_sessions.files.formats.registry import format_named

MEGABYTE = 1_000_000
LIMIT_MB = 200


def measure(directory: Path, *, quick: bool) -> list[Row]:
    """The rows of this benchmark."""
    place = fresh(directory, "import")
    size = (100 if quick else 1_000) * MEGABYTE
    file = place / "transcript.jsonl"
    _write_transcript(file, size)
    numbers = in_process(_run, place / "w", file)
    file.unlink()
    megabytes = size / MEGABYTE
    return [
        Row(f"import of a pi transcript of {megabytes:,.0f} MB", "MB per s", megabytes / numbers["import"]),
        Row("peak memory meanwhile", "MB", numbers["peak"], None, f"under {LIMIT_MB}", numbers["peak"] < LIMIT_MB),
        Row("opening it again", "ms", numbers["open"] * 1e3),
        Row("export of it", "MB per s", megabytes / numbers["export"]),
    ]


def _run(workspace: Path, file: Path) -> dict[str, float]:
    return anyio.run(partial(_measured, workspace, file))


async def _measured(workspace: Path, file: Path) -> dict[str, float]:
    numbers: dict[str, float] = {}
    async with SessionManager(workspace) as manager:
        started = time.perf_counter()
        report = await import_file(manager, file)
        numbers["import"] = time.perf_counter() - started
        if report.set_aside or report.repaired:
            raise AssertionError(f"a sound file was not taken in whole: {report.findings[:3]}")
    numbers["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started = time.perf_counter()
    async with SessionManager(workspace) as manager:
        numbers["open"] = time.perf_counter() - started
        started = time.perf_counter()
        written = 0
        async for chunk in export_session(manager, report.session_id, format_named("pi")):
            written += len(chunk)
        numbers["export"] = time.perf_counter() - started
    return numbers


def _write_transcript(file: Path, size: int) -> None:
    """A session of pi's form, with questions, tool calls and results of 2 KB on average."""
    began = datetime(2026, 1, 1, tzinfo=UTC)
    header = {"type": "session", "version": 3, "id": "large", "timestamp": _time(began), "cwd": "/srv"}
    parent: str | None = None
    with file.open("w") as out:
        written = out.write(json.dumps(header, separators=(",", ":")) + "\n")
        number = 0
        while written < size:
            entry = _entry(number, parent, began + timedelta(seconds=number))
            parent = f"{number:08x}"
            written += out.write(json.dumps(entry, separators=(",", ":")) + "\n")
            number += 1


def _entry(number: int, parent: str | None, moment: datetime) -> dict[str, object]:
    text = f"{number} " + "what was said at some length " * 60
    milliseconds = int(moment.timestamp() * 1000)
    message: dict[str, object]
    if number % 4 == 0:
        message = {"role": "user", "content": text}
    elif number % 4 == 1:
        usage = {"input": 10, "output": 20, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 30}
        call = {"type": "toolCall", "id": f"call_{number}", "name": "read", "arguments": {"path": text[:1500]}}
        message = {"role": "assistant", "content": [call], "model": "m", "usage": usage, "stopReason": "toolUse"}
    elif number % 4 == 2:
        content = [{"type": "text", "text": text}]
        message = {"role": "toolResult", "toolCallId": f"call_{number - 1}", "toolName": "read", "content": content}
        message["isError"] = False
    else:
        message = {"role": "assistant", "content": [{"type": "text", "text": text}], "model": "m", "stopReason": "stop"}
    message["timestamp"] = milliseconds
    return {
        "type": "message",
        "id": f"{number:08x}",
        "parentId": parent,
        "timestamp": _time(moment),
        "message": message,
    }


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")
