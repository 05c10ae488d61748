"""The contract of a store that several processes write: what it keeps besides transcripts, and decides for all of them.

Such a store needs no directory. It also keeps the checkpoints, the archive and the marker of encryption; it lists the
sessions and finds the idle ones; and exactly one process removes what has expired. Times are the server's, because the
clocks of many machines differ.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from miniclaw_sessions.core.stores.base import Checkpoint, SessionHead, Store, StoredEntry, StoredHead
from miniclaw_sessions.core.stores.positions import ListPosition
from miniclaw_sessions.core.stores.wrapping import innermost


class Use(NamedTuple):
    """A use of a session, and how many seconds ago it was."""

    session_id: str
    incarnation: str
    used_s: float


class Changes(NamedTuple):
    """The changes in a shared store since a point in time.

    Attributes:
        at: the time of the store's clock at the query; pass it as `since` of the next one.
        changed: sessions with new entries, in any order; it may contain others.
        deleted: the incarnations of sessions that were deleted or have expired.
    """

    at: datetime
    changed: list[StoredHead]
    deleted: set[str]


Archiving = Callable[[SessionHead, AsyncIterator[StoredEntry]], tuple[str, AsyncIterator[bytes]]]
"""Makes the archived copy of a session: its file name, and its bytes in pieces."""


class SharedStore(Store):
    """A store that several processes write at the same time. Its methods raise the errors of `Store`."""

    # --- lists -------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def newest(
        self, *, limit: int, channel: str | None = None, pattern: str = "%", behind: ListPosition | None = None
    ) -> list[ListPosition]:
        """A part of the list of sessions, the most recently used first.

        Args:
            limit: at most this many.
            channel: only sessions of this channel.
            pattern: only ids that are `LIKE` this in lower case; a backslash escapes special characters.
            behind: only sessions behind this position.
        """

    @abstractmethod
    async def used(self, uses: Sequence[Use], *, backwards: bool = False) -> None:
        """Record uses of sessions. A session that is not there, or has another incarnation, is left out.

        Args:
            uses: the last use of each session.
            backwards: replace a later time as well, for a session that was just copied from another store.
        """

    @abstractmethod
    async def changes(self, since: datetime, late_s: float) -> Changes:
        """The changes since a point in time; the cost depends on their number.

        Args:
            since: the time of the previous query (`Changes.at`, or `now`).
            late_s: look this many seconds further back. A transaction becomes visible when it ends, with the time at
                which it began; one that took longer than this is missed.
        """

    # --- checkpoints -------------------------------------------------------------------------------------------------

    @abstractmethod
    async def write_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Write checkpoints and the times of use, unless a newer checkpoint is there already.

        A session that is not there, or has another incarnation, is left out: it was deleted.
        """

    @abstractmethod
    async def checkpoints(self, session_ids: Sequence[str]) -> list[Checkpoint]:
        """The sound checkpoints of these sessions, of any incarnation."""

    @abstractmethod
    async def now(self) -> datetime:
        """The time of the store's clock, which decides which sessions are idle."""

    # --- expiry ------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def idle(
        self, idle_s: float, *, limit: int, channel: str | None = None, but_channels: Sequence[str] = ()
    ) -> list[str]:
        """Sessions that were not used for `idle_s` seconds and have no running turn, the longest idle first.

        Args:
            idle_s: the seconds since the last use.
            limit: at most this many.
            channel: only sessions of this channel.
            but_channels: no sessions of these channels.
        """

    @abstractmethod
    async def expire(self, session_ids: Iterable[str], idle_s: float, archiving: Archiving | None) -> dict[str, int]:
        """Remove the sessions that are still idle, each in one step with writing its archived copy.

        If several processes do this at the same time, exactly one of them removes and archives a session.

        Args:
            session_ids: the sessions, from `idle`.
            idle_s: the seconds for which they must not have been used.
            archiving: makes the archived copy; None: no copy is kept.

        Returns:
            The sessions that this call removed, and the bytes of their entries.
        """

    # --- the archive -------------------------------------------------------------------------------------------------

    @abstractmethod
    async def archived(self, session_id: str | None = None) -> list[str]:
        """The names of archived files, of one session or all, in order; the names are those of an archive directory."""

    @abstractmethod
    async def write_archived(self, session_id: str, name: str, pieces: AsyncIterator[bytes]) -> None:
        """Write an archived file, completely or not at all."""

    @abstractmethod
    def read_archived(self, session_id: str, name: str) -> AsyncIterator[bytes]:
        """The bytes of an archived file, piece by piece; no piece if there is no such file."""

    @abstractmethod
    async def delete_archived(self, session_id: str, names: Sequence[str] | None = None) -> int:
        """Remove some or all archived files of a session. Returns how many there were."""

    # --- properties of the store -------------------------------------------------------------------------------------

    @abstractmethod
    async def read_property(self, name: str) -> bytes | None:
        """The value of a property, or None."""

    @abstractmethod
    async def properties(self, prefix: str) -> list[str]:
        """The names of properties that begin with a prefix."""

    @abstractmethod
    async def write_property(self, name: str, value: bytes, *, replace: bool = False) -> bytes:
        """Set a property, unless it has a value already. Returns its value afterwards.

        Args:
            name: the name.
            value: the new value.
            replace: replace a value that is there.
        """


def as_shared(store: Store) -> SharedStore:
    """The innermost store, as a `SharedStore`.

    Raises:
        TypeError: it is not a `SharedStore`.
    """
    inner = innermost(store)
    if not isinstance(inner, SharedStore):
        raise TypeError(f"{inner!r} says that it is shared, and is no SharedStore")
    return inner
