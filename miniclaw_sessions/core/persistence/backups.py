"""`backups.json`: where backups of the workspace were made, so that a deletion can name them.

Everything here blocks.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import msgspec

from miniclaw_sessions.disk import Directory
from miniclaw_sessions.log import get_logger

NAME = "backups.json"

MOST = 100
"""How many are remembered, the newest."""

_LARGEST = 1 << 24

log = get_logger(__name__)


class KnownBackup(msgspec.Struct, frozen=True):
    """Where a backup was made, and when that began."""

    path: str
    made_at: datetime

    @property
    def may_exist(self) -> bool:
        """Whether it is there, or its disk is not mounted. A backup that was moved is not found."""
        path = Path(self.path)
        return path.exists() or not path.parent.exists()


def note_backup(workspace: Path, path: Path, made_at: datetime) -> None:
    """Remember, durably, that a backup is made there; those that were removed are forgotten.

    Raises:
        OSError: it could not be written.
    """
    path = path.absolute()
    others = [one for one in known_backups(workspace) if one.path != str(path)]
    encoded = msgspec.json.encode([*others, KnownBackup(str(path), made_at)][-MOST:])
    with Directory(workspace) as directory:
        failure = directory.replace([(NAME, lambda: encoded)])[0]
    if failure is not None:
        raise failure


def known_backups(workspace: Path) -> list[KnownBackup]:
    """The backups that there may still be, oldest first.

    Raises:
        OSError: the record cannot be read.
    """
    try:
        with Directory(workspace, is_ours=False) as directory:
            known = msgspec.json.decode(directory.read(NAME, limit=_LARGEST), type=list[KnownBackup])
    except FileNotFoundError:
        return []
    except (msgspec.MsgspecError, UnicodeDecodeError):
        log.error("the record of backups is damaged", action="backup.record_damaged", file=NAME)
        return []
    return [one for one in known if one.may_exist]
