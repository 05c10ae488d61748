"""What a manager keeps its sessions in: a directory (`workspace`), or a shared store alone (`sharing.database`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from miniclaw_sessions.core.persistence.archive import Archive
from miniclaw_sessions.core.persistence.checking import CheckReport
from miniclaw_sessions.core.persistence.checkpoints import Checkpoints
from miniclaw_sessions.core.persistence.losses import Loss
from miniclaw_sessions.core.persistence.mending import Mended
from miniclaw_sessions.core.persistence.recovery import Progress, Recovered, RecoveryReport
from miniclaw_sessions.core.stores.base import Store
from miniclaw_sessions.core.stores.wrapping import WatchedStore


class Storage(Protocol):
    """An async context manager; each implementation says what `__aenter__` raises.

    Attributes:
        store: the transcripts, once it is open.
        sessions: the recovered sessions; their new owner empties this.
        on_disk: the sessions that were not loaded, and when each was last used, in seconds since the epoch; 0: that
            is not known.
        report: what recovery found and did.
    """

    store: WatchedStore
    sessions: dict[str, Recovered]
    on_disk: dict[str, float]
    report: RecoveryReport

    async def __aenter__(self) -> Self:
        """Open it."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        ...

    @property
    def where(self) -> str:
        """Where it is, for people; no password."""
        ...

    @property
    def checkpoints(self) -> Checkpoints:
        """What the flusher writes to."""
        ...

    @property
    def archive(self) -> Archive:
        """Where expired sessions go."""
        ...

    @property
    def losses(self) -> Mapping[str, Loss]:
        """Sessions whose older messages were lost with a former store, until that is acknowledged."""
        ...

    async def acknowledge_losses(self, session_id: str | None) -> int:
        """Forget a session's loss, or all of them, durably. Returns how many there were.

        Raises:
            StoreUnavailable: that could not be written.
        """
        ...

    async def load(self, session_ids: Sequence[str]) -> tuple[dict[str, Recovered], RecoveryReport]:
        """Load some sessions, and return those of them that exist, and what was done for them."""
        ...

    async def was_mirrored(self, session_id: str) -> bool:
        """Whether `note_mirrored` was called with it, in any process.

        Raises:
            StoreUnavailable: it cannot be read.
        """
        ...

    async def note_mirrored(self, session_id: str) -> None:
        """Remember that a session mirrors another program's, also when it is deleted.

        Raises:
            StoreUnavailable: it could not be written.
        """
        ...

    async def check(self, store: Store, on_progress: Callable[[Progress], None]) -> CheckReport:
        """Look for damage everywhere. Changes nothing.

        Args:
            store: the transcripts, as the manager reads them.
            on_progress: called with the progress.
        """
        ...

    async def repair(self, store: Store) -> Mended:
        """Write what checkpoints have whole over what is damaged in the store."""
        ...

    @property
    def log_remains(self) -> str:
        """The report if the store cannot remove deleted content at once."""
        ...

    async def purge(self, session_id: str) -> list[str]:
        """Leave nothing of a deleted session beside the store. Returns what may still hold it, one sentence each.

        Raises:
            StoreUnavailable: it could not be done.
        """
        ...
