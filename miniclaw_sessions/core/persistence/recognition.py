"""The owner of a directory, decided before anything in it is locked, made private, moved or written.

A directory is ours if the lock file that every manager leaves there says so, or if it says how it is encrypted. Any
other directory is only taken if there is nothing in it, or what miniclaw's original leaves: a directory `sessions`
that is empty or has sound session files. Where one of them is not sound, it is not ours to set aside, and everything is
left as it is.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.core.persistence.backups import NAME as BACKUPS
from miniclaw_sessions.core.persistence.losses import NAME as LOSSES
from miniclaw_sessions.core.persistence.marker import NAME as MARKER
from miniclaw_sessions.core.persistence.mirrored import NAME as MIRRORED_IDS
from miniclaw_sessions.core.persistence.snapshot_file import DamagedSnapshot, decode_snapshot
from miniclaw_sessions.core.stores import SALVAGE, SALVAGE_PART
from miniclaw_sessions.disk import LOCK, Directory, is_temporary
from miniclaw_sessions.encryption import is_sealed
from miniclaw_sessions.errors import NotAWorkspace, SchemaTooNew

SESSIONS = "sessions"
_SUFFIX = ".json"
_LARGEST = 1 << 30
_A_PROCESS_ID = re.compile(rb"[0-9]{0,20}\n?")
_OURS = {
    *(SESSIONS, "transcripts", "archive", "quarantine", LOSSES, BACKUPS, MIRRORED_IDS, LOCK, SALVAGE, SALVAGE_PART),
    *("tokens.json", "token", "miniclaw.sock"),  # the gateway's
}
_DATABASE = re.compile(r"sessions\.db(-search)?(-wal|-shm|-journal|-damaged)?")


def recognize(path: Path, *, create: bool) -> None:
    """Refuse to use another program's directory as a workspace: it would become private, and ours. Changes nothing.

    Args:
        path: the directory.
        create: an empty one, one that does not exist yet, and one of plain session files may become a workspace.

    Raises:
        NotAWorkspace: it is not one, and must not or cannot become one.
        OSError: it cannot be looked at.
    """
    if is_ours(path):
        return
    if not create:
        raise NotAWorkspace(
            f"there is no workspace at {path}; `serve`, `chat` and `import` make one, --workspace names another"
        )
    if path.is_dir():
        _refuse_others(path)


def is_ours(path: Path) -> bool:
    """True if a manager has used this directory before."""
    if not path.is_dir():
        return False
    if (path / MARKER).is_file():
        return True
    with Directory(path, is_ours=False) as directory:
        try:
            fd = directory.open_file(LOCK)
        except OSError:
            return False
        try:
            status = os.fstat(fd)
            return status.st_nlink == 1 and _A_PROCESS_ID.fullmatch(os.read(fd, 64)) is not None
        finally:
            os.close(fd)


def _refuse_others(path: Path) -> None:
    names = sorted(os.listdir(path))
    if not names:
        return
    directory, files = path / SESSIONS, []
    if directory.is_dir() and not directory.is_symlink():
        names_of_files = (name for name in sorted(os.listdir(directory)) if name.endswith(_SUFFIX) and name[0] != ".")
        found = [directory / name for name in names_of_files]
        files = [file for file in found if stat.S_ISREG(file.lstat().st_mode)]
    others = [name for name in names if not _is_a_name_of_ours(name)]
    is_an_agents = directory.is_dir() and not os.listdir(directory)
    if others and not files and not is_an_agents:
        raise NotAWorkspace(
            f"{path} is neither empty nor a workspace ({others[0]} is not ours, no sessions are in `sessions`); "
            "nothing was changed. Choose an empty directory, or one that does not exist yet"
        )
    for file in files:
        _refuse_unsound(file)


def _is_a_name_of_ours(name: str) -> bool:
    return name in _OURS or _DATABASE.fullmatch(name) is not None or is_temporary(name)


def _refuse_unsound(file: Path) -> None:
    clock = SystemClock()
    with Directory(file.parent, is_ours=False) as directory:
        data = directory.read(file.name, limit=_LARGEST)
    if is_sealed(data):
        return
    try:
        decode_snapshot(data, stem=file.name.removesuffix(_SUFFIX), now=clock.now(), new_id=clock.new_id)
    except SchemaTooNew:
        return  # it says so when it is loaded
    except DamagedSnapshot as error:
        raise NotAWorkspace(
            f"{file.parent.parent} was never used by miniclaw-sessions, and {file.parent.name}/{file.name} in it is no "
            f"session ({error}); nothing was changed. If the directory is yours, move that file away; otherwise choose "
            "another one"
        ) from None
