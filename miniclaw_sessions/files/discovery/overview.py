"""Every program's sessions: how many, how large, how new."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.discovery.databases import sessions_in
from miniclaw_sessions.files.discovery.open_files import count_marks, why
from miniclaw_sessions.files.discovery.program import Program, ProgramSession
from miniclaw_sessions.files.discovery.session_files import files_of

_LATEST = 2**63 - 1  # nanoseconds since 1970: a file may have a time that no calendar has


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


def find_sources(programs: Sequence[Program], environ: Mapping[str, str], home: Path) -> list[ProgramSession]:
    """Every session of some programs, also those that cannot be read. Blocks."""
    return [source for source, _ in _sources(programs, environ, home)]


def overview(
    program: Program, environ: Mapping[str, str], home: Path, on_read: Callable[[int], None] = lambda _: None
) -> Overview:
    """What a program has. Blocks until all of it is read; `on_read` gets the size of each piece that was read."""
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
    found.newest = datetime.fromtimestamp(min(newest, _LATEST) // 1_000_000_000, UTC) if newest else None
    with suppress(OSError, RuntimeError, ValueError):  # gone, unreadable or no path: `unread` says so
        found.bytes += sum(path.stat().st_size for path in databases)
        places = [*program.places(environ, home), *program.databases(environ, home)]
        found.places = [str(place) for place in map(Path.expanduser, places) if place.exists()]
    return found


def _sources(programs: Sequence[Program], environ: Mapping[str, str], home: Path) -> list[tuple[ProgramSession, int]]:
    """Every session, and how many messages it has if a database says so."""
    found: list[tuple[ProgramSession, int]] = []
    for program in programs:
        path, inside = home, list[tuple[ProgramSession, int]]()
        try:
            files = list(files_of(program, environ, home))
            for path in program.databases(environ, home):
                inside += _in_database(program, path.expanduser())
            known = {source.inner for source, _ in inside}
            found += [(file, 0) for file in files if not (program.is_moved and file.path.stem in known)] + inside
            found.extend((source, 0) for source in program.older(environ, home, known))
        except Exception as error:  # noqa: BLE001 - files of one program that fail must not stop the others
            found.append((ProgramSession(program.name, path, 0, 0, problem=why(error)), 0))
    return found


def _in_database(program: Program, path: Path) -> list[tuple[ProgramSession, int]]:
    try:
        sessions = sessions_in(program.name, path) if path.exists() else []
    except (ImportRefused, OSError) as error:
        return [(ProgramSession(program.name, path, 0, 0, problem=str(error)), 0)]
    return [
        (ProgramSession(program.name, path, one.messages, one.modified, inner=one.id), one.messages) for one in sessions
    ]
