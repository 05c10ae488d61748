"""The session files of a program, without following a link."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from miniclaw_sessions.files.discovery.open_files import blocks, opened
from miniclaw_sessions.files.discovery.program import Program, ProgramSession

_BEGINNING_BYTES = 65_536
_LINK = "it is a link, and links are not followed"


def files_of(program: Program, environ: Mapping[str, str], home: Path) -> Iterator[ProgramSession]:
    """The session files of a program that has files; blocks.

    Links are not followed: they may lead out of the home, or in a circle. What cannot be read says why.
    """
    places = dict.fromkeys(place.expanduser() for place in program.places(environ, home))
    waiting = [(place, "") for place in places][::-1]
    while waiting:  # directories may be nested deeper than calls
        directory, below = waiting.pop()
        found, inner = _in_directory(program, directory, below)
        yield from found
        if program.depth is None or below.count("/") < program.depth:
            waiting += inner[::-1]


def _in_directory(program: Program, directory: Path, below: str) -> tuple[list[ProgramSession], list[tuple[Path, str]]]:
    """The session files in a directory, and the directories in it with what stands before their files' names."""
    found: list[ProgramSession] = []
    inner: list[tuple[Path, str]] = []
    try:
        with os.scandir(directory) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return found, inner
    except OSError as error:
        return [_unread(program, directory, error)], inner
    names = {entry.name for entry in entries}
    for entry in entries:
        name, path = f"{below}{entry.name}", Path(entry.path)
        try:
            if entry.is_dir(follow_symlinks=False):
                inner.append((path, f"{name}/"))
            elif entry.is_symlink() and entry.is_dir():
                found.append(ProgramSession(program.name, path, 0, 0, problem=_LINK))
            elif program.names.fullmatch(name) and f"{entry.name}l" not in names:  # else it goes on as .jsonl
                found.append(_source(program, path, entry.stat(follow_symlinks=False)))
            elif program.not_read is not None and program.not_read[0].fullmatch(name):
                found.append(ProgramSession(program.name, path, 0, 0, problem=program.not_read[1]))
        except FileNotFoundError:
            continue
        except OSError as error:
            found.append(_unread(program, path, error))
    return found, inner


def _unread(program: Program, path: Path, error: OSError) -> ProgramSession:
    return ProgramSession(program.name, path, 0, 0, problem=error.strerror or "it cannot be read")


def _source(program: Program, path: Path, status: os.stat_result) -> ProgramSession:
    problem = ""
    if stat.S_ISLNK(status.st_mode):
        problem = _LINK
    elif not stat.S_ISREG(status.st_mode):
        problem = "it is not a regular file"
    elif not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        problem = "Permission denied"  # checked at each look, because a change of it leaves the file's time as it is
    return ProgramSession(program.name, path, status.st_size, status.st_mtime_ns, status.st_ino, problem=problem)


def id_in(program: Program, source: ProgramSession, environ: Mapping[str, str], home: Path) -> str:
    """The session's own id, as its file's name, its beginning or the database says it. Blocks.

    Raises:
        ImportRefused: its beginning cannot be read.
    """
    if source.inner:
        return source.inner
    if program.is_named_by_directory:
        return source.path.parent.name or source.path.stem
    if program.inside is not None:
        with opened(source.path) as fd:
            found = program.inside.search(next(blocks(fd, 0, _BEGINNING_BYTES), b""))
        if found is not None:
            return found[1].decode(errors="replace")
    for place in program.places(environ, home):
        try:
            named = program.names.fullmatch(source.path.relative_to(place.expanduser()).as_posix())
        except ValueError:
            continue
        if named is not None:
            return next(filter(None, named.groups()), source.path.stem)
    return source.path.stem
