"""A store whose disk is full after some commits."""

from __future__ import annotations

from collections.abc import Sequence

from miniclaw_sessions.core.stores.base import Append
from miniclaw_sessions.errors import StoreError, StoreFull
from miniclaw_sessions.testing.faults import FaultyStore


class FullAfter(FaultyStore):
    """A real store. Once `commits` is set, it takes that many commits and refuses all others."""

    commits: int | None = None

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        if self.commits == 0:
            self.fail(StoreFull("no space"))
        if self.commits:
            self.commits -= 1
        return await super().append(appends)
