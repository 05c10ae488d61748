"""What is known of a program whose sessions are found, and what a session of it is."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec


class ProgramSession(msgspec.Struct, frozen=True):
    """A session of another program.

    Attributes:
        program: the name of its program.
        path: its file, or the database that it is in.
        size: of the file in bytes; in a database, how many messages the session has.
        modified: when it last changed, in nanoseconds since 1970, as its file or the database says.
        inode: differs if another file has taken its place.
        inner: its id in the database; empty for a file.
        problem: why it is not read, if that is known already.
    """

    program: str
    path: Path
    size: int
    modified: int
    inode: int = 0
    inner: str = ""
    problem: str = ""

    @property
    def shown(self) -> str:
        """Its path, as people see it and as its session keeps it."""
        path = os.fsencode(self.path).decode(errors="backslashreplace")
        return f"{path}#{self.inner}" if self.inner else path


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """One program.

    Attributes:
        name: as the command line has it.
        places: the directories where the files of its sessions are, for an environment and a home.
        databases: those that have its sessions in them, likewise.
        is_rewritten: whether the program rewrites its files; others only grow by lines.
        is_moved: whether its database has, under the same ids, what its older files had; these are left out then.
        depth: how many directories below its place a file may lie in each other; None: any number.
        is_named_by_directory: whether a session is called like the directory that its file is in.
        has_unique_ids: whether two databases never have the same id for two sessions.
        form: the name of the format that its files are read as; None: it is recognized.
        names: matches the path of a file below its place; the first group that matched is the session's id.
        not_read: matches files that are sessions in a form that is not read, and says why.
        older: finds sessions in an earlier form that is not read, for an environment, a home, and the ids of the
            sessions that were found already.
        inside: finds the session's id in the beginning of a file, if the name does not have it: the first group.
        marks: texts of which about every message has one, so that messages can be counted without being parsed.
    """

    name: str
    places: Callable[[Mapping[str, str], Path], Sequence[Path]] = lambda environ, home: ()  # noqa: ARG005
    databases: Callable[[Mapping[str, str], Path], Sequence[Path]] = lambda environ, home: ()  # noqa: ARG005
    is_rewritten: bool = False
    is_moved: bool = False
    depth: int | None = None
    is_named_by_directory: bool = False
    has_unique_ids: bool = True
    form: str | None = None
    names: re.Pattern[str] = re.compile(r"(?:.*/)?([^/]+)\.jsonl")
    inside: re.Pattern[bytes] | None = None
    marks: tuple[bytes, ...] = ()
    not_read: tuple[re.Pattern[str], str] | None = None
    older: Callable[[Mapping[str, str], Path, Collection[str]], Sequence[ProgramSession]] = lambda *_: ()
