"""What a store that several processes write keeps beside the transcripts, and what it decides for all of them.

Such a store stands alone: there is no directory beside it. So it has the checkpoints, the archive and the marker of
encryption too; it says which sessions there are and which of them are idle; and whatever is removed, one process
removes it. Time is the server's, because the clocks of many machines differ.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from miniclaw_sessions.core.stores.base import Checkpoint, SessionHead, Store, StoredEntry, StoredHead
from miniclaw_sessions.core.stores.wrapping import innermost


class ListPosition(NamedTuple):
    """Where a session stands in a list, the most recently used first: when it was last used, and its id."""

    last_accessed: datetime
    session_id: str


_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\%_"})


class IdPart(msgspec.Struct, frozen=True):
    """What is true of ids that begin with a text, or have it as a part, in upper or lower case.

    A plain function of an id does as well; what a database can look for itself is not sent here to be judged.
    """

    text: str
    at_beginning: bool = False

    def __call__(self, session_id: str) -> bool:
        """Whether it is true of this id."""
        wanted, folded = self.text.casefold(), session_id.casefold()
        return folded.startswith(wanted) if self.at_beginning else wanted in folded

    @property
    def pattern(self) -> str:
        """The same for a database."""
        return f"{'' if self.at_beginning else '%'}{self.text.lower().translate(_SPECIAL)}%"


class Use(NamedTuple):
    """That a session was used, and how many seconds ago."""

    session_id: str
    incarnation: str
    used_s: float


class Changes(NamedTuple):
    """What has happened in a store of several processes since a point in time.

    Attributes:
        at: the time of the store's clock when it was asked; the next question begins here.
        changed: sessions to which entries were added since, in any order, and perhaps some others.
        deleted: the incarnations of sessions that were deleted since, or have expired.
    """

    at: datetime
    changed: list[StoredHead]
    deleted: set[str]


Archiving = Callable[[SessionHead, AsyncIterator[StoredEntry]], tuple[str, AsyncIterator[bytes]]]
"""The name of the file that an archive has of a session, and its bytes in pieces."""


class SharedStore(Store):
    """A store that several processes write at the same time. Raises as every store does."""

    # --- lists -------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def newest(
        self, *, limit: int, channel: str | None = None, pattern: str = "%", behind: ListPosition | None = None
    ) -> list[ListPosition]:
        """Some sessions, the most recently used first.

        Args:
            limit: at most this many.
            channel: only this channel's.
            pattern: only those whose id in lower case is `LIKE` this; what stands for itself has a backslash before it.
            behind: only those that stand behind this position.
        """

    @abstractmethod
    async def used(self, uses: Sequence[Use], *, backwards: bool = False) -> None:
        """Write down that sessions were used; one that is not there, or is another incarnation, is left out.

        Args:
            uses: when each was used last.
            backwards: also in the place of a later time, as of a session that has just been copied from elsewhere.
        """

    @abstractmethod
    async def changes(self, since: datetime, late_s: float) -> Changes:
        """What has happened since a point in time; what that costs follows how much it was.

        Args:
            since: when the store was asked before (`Changes.at`, or `now`).
            late_s: for how many seconds before that what was not visible then is looked for. A transaction is seen when
                it ends, with the time at which it began; one that took longer is not found.
        """

    # --- checkpoints -------------------------------------------------------------------------------------------------

    @abstractmethod
    async def write_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Keep what sessions lead to, and when they were used, unless a checkpoint that goes further is there already.

        A session that is not there, or is another incarnation, is left out: absence is deletion.
        """

    @abstractmethod
    async def checkpoints(self, session_ids: Sequence[str]) -> list[Checkpoint]:
        """The sound ones of these sessions, of whatever incarnation."""

    @abstractmethod
    async def now(self) -> datetime:
        """The time of the clock by which sessions are idle."""

    # --- expiry ------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def idle(
        self, idle_s: float, *, limit: int, channel: str | None = None, but_channels: Sequence[str] = ()
    ) -> list[str]:
        """Sessions that nobody has used for so many seconds, and whose turn nobody has, the idlest first.

        Args:
            idle_s: for how long.
            limit: at most this many.
            channel: only this channel's.
            but_channels: none of these channels'.
        """

    @abstractmethod
    async def expire(self, session_ids: Iterable[str], idle_s: float, archiving: Archiving | None) -> dict[str, int]:
        """Remove those that are still idle, each together with the writing of its archived copy.

        However many processes do this at the same time, one of them removes a session, and archives it once.

        Args:
            session_ids: which, as `idle` has given them.
            idle_s: for how many seconds nobody may have used them.
            archiving: what is kept of each; None: nothing.

        Returns:
            Which were removed by this call, and how many bytes their entries had.
        """

    # --- the archive -------------------------------------------------------------------------------------------------

    @abstractmethod
    async def archived(self, session_id: str | None = None) -> list[str]:
        """The names of archived files, of one session or all, in order; with the archive's own names in a directory."""

    @abstractmethod
    async def write_archived(self, session_id: str, name: str, pieces: AsyncIterator[bytes]) -> None:
        """Keep an archived file, whole or not at all."""

    @abstractmethod
    def read_archived(self, session_id: str, name: str) -> AsyncIterator[bytes]:
        """The bytes of an archived file, piece by piece; none where there is no such file."""

    @abstractmethod
    async def delete_archived(self, session_id: str, names: Sequence[str] | None = None) -> int:
        """Remove some archived files of a session, or all; how many there were."""

    # --- what is true of all of it -----------------------------------------------------------------------------------

    @abstractmethod
    async def read_property(self, name: str) -> bytes | None:
        """What is written down under a name, or None."""

    @abstractmethod
    async def properties(self, prefix: str) -> list[str]:
        """The names that begin so, under which something is written down."""

    @abstractmethod
    async def write_property(self, name: str, value: bytes, *, replace: bool = False) -> bytes:
        """Write something down under a name, unless there is something already; what is there now.

        Args:
            name: the name.
            value: what is to be there.
            replace: put it in the place of what is there.
        """


def as_shared(store: Store) -> SharedStore:
    """The store itself, of which it is known that it is shared, however it is wrapped.

    Raises:
        TypeError: it says that it is, and is none.
    """
    inner = innermost(store)
    if not isinstance(inner, SharedStore):
        raise TypeError(f"{inner!r} says that it is shared, and is no SharedStore")
    return inner
