"""Where each program keeps its sessions; docs/reference/discovery.md has the source of each fact."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.discovery.database import monotonic
from miniclaw_sessions.files.discovery.open_files import blocks, opened
from miniclaw_sessions.files.discovery.program import ProgramSession

LOOK_AGAIN_S = 10.0
"""How long the projects that were found in a home are believed to be all of them."""

_PROJECTS: dict[Path, tuple[float, list[Path]]] = {}
_PROJECT_DEPTH = 2
_MOST_DIRECTORIES = 2_000
_LIST_BYTES = 4_194_304
_MONGODB = "LibreChat keeps its conversations in MongoDB, which is not read: export them there, and import the files"
_BLOBS = "their databases (store.db) are in a binary form that is not documented, and not read"
_MOVED = "start a later opencode once, which copies them there"


def pi(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Pi's directory."""
    agent = Path(environ.get("PI_CODING_AGENT_DIR") or home / ".pi/agent")
    return [Path(environ.get("PI_CODING_AGENT_SESSION_DIR") or agent / "sessions")]


def inside(
    *places: str, of: Sequence[str] = ("",), variables: Sequence[str] = ()
) -> Callable[[Mapping[str, str], Path], list[Path]]:
    """These places in the directory that the first set variable names; else in each directory `of` the home."""

    def paths(environ: Mapping[str, str], home: Path) -> list[Path]:
        named = next(filter(None, map(environ.get, variables)), None)
        roots = [home / name for name in of] if named is None else [Path(named)]
        return [root / place for root in roots for place in places]

    return paths


openclaw = inside(
    "agents",
    of=(".openclaw", ".clawdbot", ".moltbot", ".moldbot"),
    variables=("OPENCLAW_STATE_DIR", "CLAWDBOT_STATE_DIR"),
)


def openclaw_databases(environ: Mapping[str, str], home: Path) -> list[Path]:
    """The database of each agent."""
    return [path for root in openclaw(environ, home) for path in sorted(root.glob("*/agent/openclaw-agent.sqlite"))]


def _opencode_data(environ: Mapping[str, str], home: Path) -> Path:
    return (_data(environ, home) / "opencode").expanduser()


def opencode(environ: Mapping[str, str], home: Path) -> list[Path]:
    """The database that is named, or all of them."""
    data, named = _opencode_data(environ, home), environ.get("OPENCODE_DB")
    return [data / named] if named else sorted(data.glob("opencode*.db"))


def opencode_older(environ: Mapping[str, str], home: Path, known: Collection[str]) -> list[ProgramSession]:
    """Before version 1.2 it had its sessions in JSON files; later ones copy these into the database, and keep them."""
    data, found = _opencode_data(environ, home), []
    for place, below in (("storage", "session/*/*.json"), ("project", "*/storage/session/info/*.json")):
        if missing := sum(file.stem not in known for file in (data / place).glob(below)):
            sessions = f"{missing} {'session is' if missing == 1 else 'sessions are'}"
            problem = f"{sessions} in JSON files, as opencode had them before 1.2, and not in its database: {_MOVED}"
            found.append(ProgramSession("opencode", data / place, 0, 0, problem=problem))
    return found


def llm(environ: Mapping[str, str], home: Path) -> list[Path]:
    """The log of the command `llm`."""
    if named := environ.get("LLM_USER_PATH"):
        return [Path(named) / "logs.db"]
    return [_configuration(environ, home) / "io.datasette.llm/logs.db"]


def goose(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Goose's directories: macOS has had both."""
    if root := environ.get("GOOSE_PATH_ROOT"):
        return [Path(root) / "data/sessions"]
    return [_data(environ, home) / "goose/sessions", home / "Library/Application Support/Block/goose/sessions"]


def goose_databases(environ: Mapping[str, str], home: Path) -> list[Path]:
    """The database in each of Goose's directories."""
    return [place / "sessions.db" for place in goose(environ, home)]


def crush(environ: Mapping[str, str], home: Path) -> list[Path]:
    """The database of each project that Crush lists, and of the home itself."""
    data = Path(environ.get("CRUSH_GLOBAL_DATA") or _data(environ, home) / "crush").expanduser()
    projects = [one for one in listed(data / "projects.json", "projects") if isinstance(one, dict)]
    named = [
        Path(str(project.get("path") or "/"), directory) / "crush.db"
        for project in projects
        if isinstance(directory := project.get("data_dir"), str) and directory
    ]
    return list(dict.fromkeys([home / ".crush/crush.db", *named]))


def cursor(environ: Mapping[str, str], home: Path) -> list[Path]:
    """The program's own database, and those of its workspaces, which the first versions had their chats in."""
    user = _configuration(environ, home) / "Cursor/User"
    return [user / "globalStorage/state.vscdb", *sorted(user.glob("workspaceStorage/*/state.vscdb"))]


def cursor_command_line(environ: Mapping[str, str], home: Path, known: Collection[str]) -> list[ProgramSession]:  # noqa: ARG001
    """The chats of Cursor's command line, which are in a form that is not read."""
    place = home / ".cursor/chats"
    chats = sum(1 for _ in place.glob("*/*/store.db"))
    problem = f"{chats} {'chat' if chats == 1 else 'chats'} of Cursor's command line: {_BLOBS}"
    return [ProgramSession("cursor", place, 0, 0, problem=problem)] if chats else []


def amp(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Amp's threads; its newer versions keep them on its server."""
    return [
        Path(environ["AMP_THREADS_DIR"]) if environ.get("AMP_THREADS_DIR") else _data(environ, home) / "amp/threads"
    ]


def open_webui(environ: Mapping[str, str], home: Path) -> list[Path]:
    """The database where Open WebUI's own instructions put it, and within an installed package."""
    named = [Path(environ["DATA_DIR"])] if environ.get("DATA_DIR") else []
    known = [home / ".open-webui", home / "open-webui/backend/data", home / "open-webui/data"]
    tools = [_data(environ, home) / tool for tool in ("uv/tools/open-webui", "pipx/venvs/open-webui")]
    package = "lib/python3*/site-packages/open_webui/data"
    inside = [path for root in (home / ".local", *tools) for path in sorted(root.glob(package))]
    desktop = _configuration(environ, home) / "open-webui/data"
    return [place / "webui.db" for place in (*named, *known, desktop, *inside)]


def librechat(environ: Mapping[str, str], home: Path, known: Collection[str]) -> list[ProgramSession]:  # noqa: ARG001
    """LibreChat's MongoDB, where its `docker-compose.yml` places it."""
    place = home / "LibreChat/data-node"
    return [ProgramSession("librechat", place, 0, 0, problem=_MONGODB)] if (place / "WiredTiger").exists() else []


def aider(environ: Mapping[str, str], home: Path) -> list[Path]:  # noqa: ARG001 - the environment says nothing of it
    """The home and the projects in it that have a history, at most two directories deep, as Aider lists none."""
    known = _PROJECTS.get(home)
    if known is None or monotonic() >= known[0] + LOOK_AGAIN_S:
        found, waiting, looked_at = list[Path](), [(home, 0)], 0
        while waiting and looked_at < _MOST_DIRECTORIES:
            directory, depth = waiting.pop(0)
            looked_at += 1
            with suppress(OSError), os.scandir(directory) as listed_there:
                for entry in listed_there:
                    if entry.name == ".aider.chat.history.md":
                        found.append(directory)
                    elif (
                        depth < _PROJECT_DEPTH
                        and not entry.name.startswith(".")
                        and entry.is_dir(follow_symlinks=False)
                    ):
                        waiting.append((Path(entry.path), depth + 1))
        known = _PROJECTS[home] = monotonic(), sorted(found)
    return known[1]


def listed(path: Path, name: str) -> list[Any]:
    """The list of this name in a program's own JSON file; empty if it cannot be read."""
    try:
        with opened(path) as fd:
            document = msgspec.json.decode(b"".join(blocks(fd, 0, _LIST_BYTES)))
    except (ImportRefused, msgspec.DecodeError, RecursionError):
        return []
    found = document.get(name) if isinstance(document, dict) else None
    return found if isinstance(found, list) else []


def _data(environ: Mapping[str, str], home: Path) -> Path:
    return Path(environ.get("XDG_DATA_HOME") or home / ".local/share")


def _configuration(environ: Mapping[str, str], home: Path) -> Path:
    named = environ.get("XDG_CONFIG_HOME") or home / ".config"
    return home / "Library/Application Support" if sys.platform == "darwin" else Path(named)
