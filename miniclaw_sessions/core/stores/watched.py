"""A store that remembers what is wrong with it: what a call met is in health, until it is known to be well."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from miniclaw_sessions.core.stores.base import LOST, Append, Store, StoredEntry, StoredHead, StoredSession, is_damaged
from miniclaw_sessions.core.stores.wrapping import WrappingStore
from miniclaw_sessions.errors import StoreCorrupt, StoreError, StoreUnavailable

LISTED = 10
"""At most this many sessions with damaged entries are named."""

T = TypeVar("T")


class WatchedStore(WrappingStore):
    """A store that remembers that it is damaged or cannot be reached, for those who ask how it is.

    It is put around a store as soon as that is open, so that what the start meets is remembered as well. Damage is
    forgotten when a check of the whole store finds none. An entry that is `LOST` is none: `losses.json` has it.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._damage: str | None = None  # of the store, as an error or a check has said it
        self._damaged_sessions: dict[str, int] = {}  # a damaged entry of each, by its place
        self._unreachable: dict[bool, StoreUnavailable] = {}  # for appending, and for all else

    @property
    def unreachable(self) -> StoreUnavailable | None:
        """Why the last call of a kind failed, where the store is a server's; files have nothing that comes and goes."""
        return next(iter(self._unreachable.values()), None)

    @property
    def problems(self) -> list[str]:
        """What is damaged, one sentence each; none where no call has met damage."""
        found = self._damage or next(iter(self.damage), None)
        problems = [] if found is None else [f"the store is damaged: {found}"]
        named = list(self._damaged_sessions.items())[:LISTED]
        problems += [
            f"the store is damaged: entry {place} of session {session_id} cannot be read; `check` names all that is"
            for session_id, place in named
        ]
        if more := len(self._damaged_sessions) - len(named):
            problems.append(f"{more} more sessions have damaged entries")
        return problems

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        """Append; a server that takes nothing of all that it was given cannot be reached for appending."""
        outcomes = await super().append(appends)
        refused = [outcome for outcome in outcomes if isinstance(outcome, StoreUnavailable)]
        if self.shared and refused and len(refused) == len(outcomes):
            self._unreachable[True] = refused[0]
        return outcomes

    async def heads(self) -> AsyncIterator[StoredHead]:
        """All sessions; damage that is met on the way is remembered."""
        try:
            async for stored in super().heads():
                yield stored
        except StoreCorrupt as error:
            self._damage = str(error)
            raise

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """Read; damaged entries are remembered."""
        page = await super().read(session_id, after=after, limit=limit)
        self._look_at(session_id, page)
        return page

    async def read_newest(self, session_id: str, limit: int) -> list[StoredEntry]:
        """Read; damaged entries are remembered."""
        page = await super().read_newest(session_id, limit)
        self._look_at(session_id, page)
        return page

    async def load(self, session_ids: Sequence[str]) -> list[StoredSession]:
        """Load; damaged entries are remembered."""
        loaded = await super().load(session_ids)
        for one in loaded:
            self._look_at(one.stored.head.session_id, one.entries)
        return loaded

    async def mend(self, session_id: str, candidates: Sequence[StoredEntry]) -> int:
        """Mend; what is damaged still is met when it is read again."""
        mended = await super().mend(session_id, candidates)
        if mended:
            self._damaged_sessions.pop(session_id, None)
        return mended

    async def delete(self, session_id: str, *, known: StoredHead | None = None) -> bool:
        """Delete; what was damaged of the session is gone with it."""
        was_there = await super().delete(session_id, known=known)
        self._damaged_sessions.pop(session_id, None)
        return was_there

    async def check(self) -> list[str]:
        """Check; what is found is remembered, in the place of whatever was met before.

        What the inner store says itself (`damage`) is not: it knows when that is right again.
        """
        problems = await super().check()
        self._damaged_sessions.clear()
        known = set(self.damage)
        lasting = [problem for problem in problems if problem not in known]
        more = f" (and {len(lasting) - 1} more problems: see `check`)" if len(lasting) > 1 else ""
        self._damage = f"{lasting[0]}{more}" if lasting else None
        return problems

    def _look_at(self, session_id: str, entries: Iterable[StoredEntry]) -> None:
        damaged = (one.sequence for one in entries if is_damaged(one.encoded) and one.encoded != LOST)
        if (place := next(damaged, None)) is not None:
            self._damaged_sessions.setdefault(session_id, place)

    async def _forward(self, method: str, call: Callable[[], Awaitable[T]]) -> T:
        try:
            result = await call()
        except StoreCorrupt as error:
            self._damage = str(error)
            raise
        except StoreUnavailable as error:
            if self.shared:
                self._unreachable[method == "append"] = error
            raise
        self._unreachable.pop(method == "append", None)
        if method == "still_there":  # it looked whether all can be done
            self._unreachable.clear()
        return result
