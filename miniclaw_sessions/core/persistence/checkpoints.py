"""Where the newest snapshots of sessions are kept beside their entries: in files (`snapshots`), or in a shared store.

The flusher writes both the same way, and the bytes are the same (`snapshot_file`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from miniclaw_sessions.core.history.state import Snapshot


class Written(NamedTuple):
    """What became of one snapshot: `error` is None when it survives a power cut."""

    session_id: str
    size: int
    error: Exception | None


class Checkpoints(Protocol):
    """What the flusher writes to."""

    async def write(self, snapshots: Sequence[Snapshot]) -> list[Written]:
        """Write a group of snapshots durably and together."""
        ...

    async def remove(self, session_id: str) -> int:
        """Delete the checkpoints of a session that is being deleted, durably. Returns how many there were."""
        ...
