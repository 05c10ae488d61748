"""The known programs and where each keeps its sessions; docs/reference/discovery.md has the source of each fact."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.files.discovery.open_files import blocks, opened

_BEGINNING_BYTES = 65_536
_LINK = "it is a link, and links are not followed"


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
    form: str | None = None
    names: re.Pattern[str] = re.compile(r"(?:.*/)?([^/]+)\.jsonl")
    inside: re.Pattern[bytes] | None = None
    marks: tuple[bytes, ...] = ()
    not_read: tuple[re.Pattern[str], str] | None = None
    older: Callable[[Mapping[str, str], Path, Collection[str]], Sequence[ProgramSession]] = lambda *_: ()


def _pi(environ: Mapping[str, str], home: Path) -> list[Path]:
    agent = Path(environ.get("PI_CODING_AGENT_DIR") or home / ".pi/agent")
    return [Path(environ.get("PI_CODING_AGENT_SESSION_DIR") or agent / "sessions")]


def _inside(
    *places: str, of: Sequence[str] = ("",), variables: Sequence[str] = ()
) -> Callable[[Mapping[str, str], Path], list[Path]]:
    """These places in the directory that the first set variable names; else in each directory `of` the home."""

    def paths(environ: Mapping[str, str], home: Path) -> list[Path]:
        named = next(filter(None, map(environ.get, variables)), None)
        roots = [home / name for name in of] if named is None else [Path(named)]
        return [root / place for root in roots for place in places]

    return paths


_openclaw = _inside(
    "agents",
    of=(".openclaw", ".clawdbot", ".moltbot", ".moldbot"),
    variables=("OPENCLAW_STATE_DIR", "CLAWDBOT_STATE_DIR"),
)


def _openclaw_databases(environ: Mapping[str, str], home: Path) -> list[Path]:
    return [path for root in _openclaw(environ, home) for path in sorted(root.glob("*/agent/openclaw-agent.sqlite"))]


def _opencode_data(environ: Mapping[str, str], home: Path) -> Path:
    return (Path(environ.get("XDG_DATA_HOME") or home / ".local/share") / "opencode").expanduser()


def _opencode(environ: Mapping[str, str], home: Path) -> list[Path]:
    data, named = _opencode_data(environ, home), environ.get("OPENCODE_DB")
    return [data / named] if named else sorted(data.glob("opencode*.db"))


def _opencode_older(environ: Mapping[str, str], home: Path, known: Collection[str]) -> list[ProgramSession]:
    """Before version 1.2 it had its sessions in JSON files; later ones copy these into the database, and keep them."""
    data, found = _opencode_data(environ, home), []
    for place, below in (("storage", "session/*/*.json"), ("project", "*/storage/session/info/*.json")):
        if missing := sum(file.stem not in known for file in (data / place).glob(below)):
            sessions = f"{missing} {'session is' if missing == 1 else 'sessions are'}"
            problem = f"{sessions} in JSON files, as opencode had them before 1.2, and not in its database: {_MOVED}"
            found.append(ProgramSession("opencode", data / place, 0, 0, problem=problem))
    return found


def _llm(environ: Mapping[str, str], home: Path) -> list[Path]:
    if named := environ.get("LLM_USER_PATH"):
        return [Path(named) / "logs.db"]
    if sys.platform == "darwin":
        directory = home / "Library/Application Support"
    else:
        directory = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    return [directory / "io.datasette.llm/logs.db"]


_MOVED = "start a later opencode once, which copies them there"
_FIRST_CODEX = "it is one document, as the first versions of Codex wrote them, and that form is not read"
_OF_PI = (b'"type":"message"',)

PROGRAMS: tuple[Program, ...] = (
    Program(name="pi", places=_pi, form="pi", names=re.compile(r"(?:.*/)?(?:[^/]*_)?([^/_]+)\.jsonl"), marks=_OF_PI),
    Program(
        name="claude-code",
        places=_inside("projects", of=(".claude", ".config/claude"), variables=("CLAUDE_CONFIG_DIR",)),
        form="claude-code",
        marks=(b'"type":"user"', b'"type":"assistant"'),
    ),
    Program(
        name="codex",
        places=_inside("sessions", "archived_sessions", of=(".codex",), variables=("CODEX_HOME",)),
        form="codex",
        names=re.compile(r"(?:.*/)?(?:rollout-[^/]*?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})|([^/]+))\.jsonl"),
        not_read=(re.compile(r"(?:.*/)?rollout-[^/]*\.json"), _FIRST_CODEX),
        marks=(b'"payload":{"type":"message"', b'"payload":{"type":"function_call'),
    ),
    Program(
        name="nanobot",
        places=_inside(".nanobot/workspace/sessions", ".nanobot/sessions"),
        is_rewritten=True,
        form="nanobot",
        names=re.compile(r"([^/]+)\.jsonl"),
        marks=(b'"role": ', b'"role":"'),
    ),
    Program(
        name="openclaw",
        places=_openclaw,
        databases=_openclaw_databases,
        form="pi",
        names=re.compile(r"[^/]+/sessions/([^/]+)\.jsonl"),
        marks=_OF_PI,
    ),
    Program(name="opencode", databases=_opencode, form="opencode", older=_opencode_older),
    Program(
        name="gemini-cli",
        places=_inside(".gemini/tmp", variables=("GEMINI_CLI_HOME",)),
        names=re.compile(r"[^/]+/chats/(?:[^/]+/)?([^/]+)\.jsonl?"),
        inside=re.compile(rb'"sessionId":\s*"([^"\\\\]+)"'),
        marks=(b'"type":"gemini"', b'"type":"user"', b'"type": "gemini"', b'"type": "user"'),
    ),
    Program(name="llm", databases=_llm, form="llm"),
)


def programs_named(names: Sequence[str]) -> list[Program]:
    """The programs of these names; all of them for none, and for `*`.

    Raises:
        ConfigError: one is not known.
    """
    known = {program.name: program for program in PROGRAMS}
    if "*" in names:
        return list(PROGRAMS)
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"the sessions of {unknown[0]!r} are not known; there are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)] if names else list(PROGRAMS)


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
