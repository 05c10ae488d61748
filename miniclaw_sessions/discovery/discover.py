"""What there is: every program's sessions, how many, how large, how new."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from miniclaw_sessions.discovery.databases import sessions_in
from miniclaw_sessions.discovery.programs import Program, Source, files_of
from miniclaw_sessions.discovery.reading import count_marks
from miniclaw_sessions.errors import ImportRefused


class Overview(msgspec.Struct, kw_only=True):
    """What one program has.

    Attributes:
        messages: about how many; they are counted without being understood.
        bytes: of its files and databases.
        newest: when the newest of its sessions changed.
        unread: what cannot be read, and why.
    """

    program: str
    sessions: int = 0
    messages: int = 0
    bytes: int = 0
    newest: datetime | None = None
    places: list[str] = []
    unread: list[dict[str, str]] = []


def find_sources(programs: Sequence[Program], environ: Mapping[str, str], home: Path) -> list[Source]:
    """Every session of some programs, also those that cannot be read. Blocks."""
    return [source for source, _ in _sources(programs, environ, home)]


def overview(
    program: Program, environ: Mapping[str, str], home: Path, on_read: Callable[[int], None] = lambda _: None
) -> Overview:
    """What a program has. Blocks, for as long as it takes to read it all; `on_read` is told how much was read."""
    found = Overview(program=program.name, unread=[])
    newest = 0
    databases: set[Path] = set()
    for source, messages in _sources([program], environ, home):
        problem, counted = source.problem, messages
        if not problem and not source.inner:
            try:
                counted = count_marks(source.path, program.marks, on_read)
            except ImportRefused as error:
                problem = str(error)
        if problem:
            found.unread.append({"path": source.shown, "reason": problem})
            continue
        if source.inner:
            databases.add(source.path)
        found.sessions += 1
        found.messages += counted
        found.bytes += 0 if source.inner else source.size
        newest = max(newest, source.modified)
    found.bytes += sum(path.stat().st_size for path in databases if path.exists())
    found.newest = datetime.fromtimestamp(newest // 1_000_000_000, UTC) if newest else None
    there = (place.expanduser() for place in program.places(environ, home))
    found.places = [str(place) for place in there if place.exists()]
    return found


def _sources(programs: Sequence[Program], environ: Mapping[str, str], home: Path) -> list[tuple[Source, int]]:
    """Every session, and how many messages it has where a database says so."""
    found: list[tuple[Source, int]] = []
    for program in programs:
        if program.kind != "database":
            found += [(source, 0) for source in files_of(program, environ, home)]
            continue
        for path in (place.expanduser() for place in program.places(environ, home)):
            try:
                if path.exists():
                    found += [
                        (Source(program.name, path, one.messages, one.modified, inner=one.id), one.messages)
                        for one in sessions_in(program.name, path)
                    ]
            except (ImportRefused, OSError) as error:
                found.append((Source(program.name, path, 0, 0, problem=str(error)), 0))
    return found
