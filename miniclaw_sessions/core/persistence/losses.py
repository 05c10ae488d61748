"""`losses.json`: sessions whose older messages were lost together with a store, until a person acknowledges it.

A rebuild from the snapshots goes on with the newest messages and is sound; that the older ones are gone would otherwise
only be a line in an old log. Everything here blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import msgspec
import orjson

from miniclaw_sessions.disk import Directory
from miniclaw_sessions.log import get_logger

NAME = "losses.json"
_LARGEST = 1 << 28

log = get_logger(__name__)


class Loss(msgspec.Struct, frozen=True):
    """What one session has lost: how many messages, and when that was found."""

    messages: int
    at: datetime

    def sentence(self, session_id: str) -> str:
        """The sentence for a person."""
        return (
            f"{session_id}: {self.messages} older messages were lost with a former store, as was found at "
            f"{self.at:%Y-%m-%d %H:%M} UTC; restore a backup, or acknowledge it"
        )


class Losses:
    """The unacknowledged losses of a workspace."""

    def __init__(self, workspace: Path) -> None:
        """Read them.

        Raises:
            OSError: the file cannot be read.
        """
        self._workspace = workspace
        self.known: dict[str, Loss] = _read(workspace)

    def note(self, found: Mapping[str, Loss]) -> None:
        """Keep further losses in mind, durably; a session's first one counts on.

        Raises:
            OSError: they could not be written.
        """
        news = {session_id: loss for session_id, loss in found.items() if session_id not in self.known}
        if news:
            self._write({**self.known, **news})

    def acknowledge(self, session_id: str | None = None) -> int:
        """Forget a session's loss, or all of them, durably. Returns how many there were.

        Raises:
            OSError: that could not be written.
        """
        left = {} if session_id is None else {one: loss for one, loss in self.known.items() if one != session_id}
        count = len(self.known) - len(left)
        if count:
            self._write(left)
        return count

    def _write(self, losses: dict[str, Loss]) -> None:
        encoded = orjson.dumps(losses, default=msgspec.structs.asdict, option=orjson.OPT_UTC_Z)
        with Directory(self._workspace) as directory:
            if losses:
                failure = directory.replace([(NAME, lambda: encoded)])[0]
                if failure is not None:
                    raise failure
            else:
                directory.remove([NAME])
        self.known = losses


def _read(workspace: Path) -> dict[str, Loss]:
    try:
        with Directory(workspace, is_ours=False) as directory:
            data = directory.read(NAME, limit=_LARGEST, tighten=False)
    except FileNotFoundError:
        return {}
    try:
        return msgspec.json.decode(data, type=dict[str, Loss])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        log.error("the record of what was lost is damaged", action="recovery.losses_damaged", file=NAME)
        return {}
