"""No store at all: the bare card. The snapshots are all there is, and what came since the last flush can be lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import ClassVar

from miniclaw_sessions.errors import StoreError
from miniclaw_sessions.stores.base import Append, Store, StoredEntry, StoredHead


class NoStore(Store):
    """Acknowledges everything at once and keeps nothing."""

    durable: ClassVar[bool] = False
    keeps_entries: ClassVar[bool] = False

    def __repr__(self) -> str:
        return "<NoStore>"

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        """Acknowledge, and forget."""
        return [None] * len(appends)

    async def heads(self) -> AsyncIterator[StoredHead]:
        """No sessions."""
        no_sessions: Sequence[StoredHead] = ()
        for stored in no_sessions:
            yield stored

    async def session_ids(self) -> list[str]:
        """No sessions."""
        return []

    async def head(self, session_id: str) -> StoredHead | None:  # noqa: ARG002 - the contract's parameter
        """None."""
        return None

    async def read(
        self,
        session_id: str,  # noqa: ARG002 - the contract's parameter
        *,
        after: int = 0,  # noqa: ARG002 - same
        limit: int | None = None,  # noqa: ARG002 - same
    ) -> list[StoredEntry]:
        """Nothing."""
        return []

    async def read_newest(self, session_id: str, limit: int) -> list[StoredEntry]:  # noqa: ARG002 - same
        """Nothing."""
        return []

    async def find(self, session_id: str, entry_id: str) -> StoredEntry | None:  # noqa: ARG002 - same
        """Nothing."""
        return None

    async def find_by_idempotency_key(self, session_id: str, key: str) -> StoredEntry | None:  # noqa: ARG002 - same
        """Nothing."""
        return None

    async def mend(self, session_id: str, candidates: Sequence[StoredEntry]) -> int:  # noqa: ARG002 - same
        """Nothing to mend."""
        return 0

    async def delete(self, session_id: str) -> bool:  # noqa: ARG002 - same
        """There was none."""
        return False

    async def check(self) -> list[str]:
        """Nothing can be damaged."""
        return []
