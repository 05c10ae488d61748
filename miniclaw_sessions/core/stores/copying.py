"""Copying a store into another one, entry by entry: the one way in which a transcript gets from one store to another.

Backup, restoring, rekeying, migrating and salvaging what is left of a damaged store all do this. Of which kinds the two
are, and whether either is encrypted, is theirs: whatever the contract of `stores.base` covers is copied, byte for byte.

Each session is copied by itself, and read back: a digest of all that the source gave of it must be the digest of what
the target gives. What the target has already is not written again, so whoever is cut off begins again and goes on where
he was. Nothing of the target is overwritten: a session that is not the source's, or has gone on since, is left as it is
and told.

What is made of entries from elsewhere, such as a fork or an import, is put together by `session.copying`, in the same
batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from itertools import groupby
from struct import pack
from typing import NamedTuple, TypeVar

import msgspec

from miniclaw_sessions.core.stores.base import (
    Append,
    SessionHead,
    Store,
    StoredEntry,
    StoredHead,
    idempotency_key_in,
    is_damaged,
)
from miniclaw_sessions.core.stores.reading import Source, read_all
from miniclaw_sessions.errors import SessionUnavailable, StoreConflict, StoreCorrupt, StoreError

BATCH_ENTRIES = 500
BATCH_BYTES = 4_194_304
"""When one of these is reached, what was gathered is written, with one sync."""

GROUP = 2_000
"""How many entries are written at once from store to store."""

PASSES = 5
"""How often a source that is used meanwhile is gone through for what is new in it."""

OnProgress = Callable[[int, int | None], None]
"""Called with how many sessions are done, and how many there are (None: that is not counted)."""

T = TypeVar("T")


class Alike(msgspec.Struct, frozen=True, gc=False):
    """A session that source and target have alike: which one, up to which sequence, and whether some of it is new."""

    incarnation: str
    last_sequence: int
    is_new: bool


class Copied(msgspec.Struct, kw_only=True):
    """What became of a copy.

    Attributes:
        sessions: how many the source and the target have alike.
        entries: how many entries these have; what is damaged is copied too, stays so, and is not counted.
        written: how many entries were written, for the target lacked them.
        meanwhile: how many sessions changed in the source while the copy was made; as far as that was seen, they are
            copied as they are now.
        others: how many sessions only the target has.
        problems: what is damaged in the source, one sentence each.
        different: sessions that the target has otherwise, one sentence each; they were left as they are.
        unreadable: the sessions that cannot be read in the source, by their ids; `problems` names them.
        alike: the sessions that both have alike, by their ids.
    """

    sessions: int = 0
    entries: int = 0
    written: int = 0
    meanwhile: int = 0
    others: int = 0
    problems: list[str] = msgspec.field(default_factory=list)
    different: list[str] = msgspec.field(default_factory=list)
    unreadable: list[str] = msgspec.field(default_factory=list)
    alike: dict[str, Alike] = msgspec.field(default_factory=dict)


async def copy_store(  # noqa: PLR0913 - both stores, and how to copy
    source: Source,
    target: Store,
    on_progress: OnProgress = lambda *_: None,
    *,
    total: int | None = None,
    delete_others: bool = False,
    before_deletion: Callable[[str], Awaitable[object]] | None = None,
) -> Copied:
    """Copy every session, and compare. The source may go on being used; what changes in it meanwhile is followed.

    Args:
        source: what is copied.
        target: may have sessions already.
        on_progress: told how it advances.
        total: how many sessions there are, if that is known.
        delete_others: leave no session in the target that is not one of the source.
        before_deletion: called with the id of a session that is about to be deleted from the target.

    Raises:
        StoreError: the source cannot be read, or the target not be written. What the target has by then stays in it,
            and the same call goes on from there.
    """
    copy = _Copy(source, target, delete_others=delete_others, before_deletion=before_deletion or _nothing)
    await copy.run(lambda done: on_progress(done, total))
    return copy.report()


async def compare_stores(source: Source, target: Store) -> Copied:
    """What a copy would write, as the heads of both tell: `sessions` and `written` are what the target lacks.

    Raises:
        StoreError: one of them cannot be read.
    """
    plan = Copied()
    named = set(await source.session_ids())
    left = set(named)
    async for stored, there in _side_by_side(source.heads(), target.heads()):
        left.discard("" if stored is None else stored.head.session_id)
        if stored is None:
            plan.others += there is not None and there.head.session_id not in named
        elif difference := _difference(stored, there):
            plan.different.append(difference)
        elif there is not None and not await _goes_on(source, target, stored, there):
            plan.different.append(_not_the_same(stored.head.session_id))
        elif there is None or there.last_sequence < stored.last_sequence:
            plan.sessions += 1
            plan.written += stored.last_sequence - (0 if there is None else there.last_sequence)
        plan.entries += 0 if stored is None else stored.last_sequence
    plan.problems = [*(await _unreadable(source, left)).values()]
    return plan


async def in_batches(
    items: AsyncIterator[T], size: Callable[[T], int], *, most: int = BATCH_ENTRIES
) -> AsyncGenerator[list[T], None]:
    """The items, as many at a time as are written with one sync; no batch is empty.

    Args:
        items: as they come.
        size: how many bytes one has.
        most: how many there are in a batch.
    """
    batch: list[T] = []
    total = 0
    async for item in items:
        batch.append(item)
        total += size(item)
        if len(batch) >= most or total >= BATCH_BYTES:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


class Digest:
    """A checksum of a session's entries: their sequences, ids, idempotency keys and bytes, and how many there are."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def feed(self, entry: StoredEntry) -> None:
        """Look at the next entry; the key of a damaged one may be lost with it."""
        text = None if is_damaged(entry.encoded) else entry.idempotency_key or idempotency_key_in(entry.encoded)
        key = None if text is None else text.encode("utf-8", "surrogatepass")
        entry_id = entry.entry_id.encode("utf-8", "surrogatepass")
        lengths = pack("<qqqq", entry.sequence, len(entry_id), -1 if key is None else len(key), len(entry.encoded))
        self._hash.update(b"".join((lengths, entry_id, key or b"", entry.encoded)))

    def value(self) -> bytes:
        """Of all that was fed."""
        return self._hash.digest()


class _Session:
    """One session on its way."""

    def __init__(self, stored: StoredHead, there: int | None) -> None:
        """Nothing is read yet.

        Args:
            stored: as the source has it.
            there: up to which sequence the target has it; None: it does not have it.
        """
        self.stored = stored
        self.there = there
        self.digest = Digest()
        self.is_beginning = False
        self.entries = 0
        self.written = 0
        self.problems: list[str] = []

    @property
    def is_there(self) -> bool:
        """Whether the target had all of it."""
        return self.there is not None and self.written == 0


class _Piece(NamedTuple):
    """An entry that the target lacks, and whose it is; None: the session has none."""

    session: _Session
    entry: StoredEntry | None


class _Kept(NamedTuple):
    """What is known of a session that was copied."""

    alike: Alike
    entries: int
    problems: tuple[str, ...]


class _Copy:
    """One run of it: a pass over all sessions, and further ones over what changed meanwhile."""

    def __init__(
        self,
        source: Source,
        target: Store,
        *,
        delete_others: bool,
        before_deletion: Callable[[str], Awaitable[object]],
    ) -> None:
        self._source = source
        self._target = target
        self._deletes_others = delete_others
        self._before_deletion = before_deletion
        self._copies: dict[str, _Kept] = {}
        self._different: dict[str, str] = {}
        self._others = 0
        self._written = 0
        self._meanwhile: set[str] = set()
        self._named: set[str] = set()
        self._unreadable: dict[str, str] = {}
        self._read: list[_Session] = []  # to the end, and not yet compared

    def report(self) -> Copied:
        """What became of it."""
        copies = {session_id: copy for session_id, copy in self._copies.items() if session_id not in self._different}
        return Copied(
            sessions=len(copies),
            entries=sum(copy.entries for copy in copies.values()),
            written=self._written,
            meanwhile=len(self._meanwhile),
            others=self._others,
            problems=[
                *(problem for copy in copies.values() for problem in copy.problems),
                *self._unreadable.values(),
            ],
            different=[self._different[session_id] for session_id in sorted(self._different)],
            unreadable=list(self._unreadable),
            alike={session_id: copy.alike for session_id, copy in copies.items()},
        )

    async def run(self, on_progress: Callable[[int], None]) -> None:
        """Pass after pass, until nothing changes any more, or it does so all the time."""
        await self._pass(self._first, on_progress)
        for number in range(2, PASSES + 2):
            gone = await self._delete_replaced()
            if number > PASSES:  # what has taken a name since began after the copy did, and need not be in it
                break
            before = len(self._meanwhile), self._written
            await self._pass(self._changed, lambda _: None)
            if not gone and before == (len(self._meanwhile), self._written):
                break

    async def _pass(
        self, choose: Callable[[StoredHead, StoredHead | None], _Session | None], on_progress: Callable[[int], None]
    ) -> None:
        """Go through both stores, and copy what is chosen."""
        self._others = 0
        self._named = set(await self._source.session_ids())
        left = set(self._named)
        pieces = self._pieces(choose, left, on_progress)
        async for batch in in_batches(pieces, _size_of, most=GROUP):
            await self._append(batch)
            await self._compare_all()
        await self._compare_all()
        self._unreadable = await _unreadable(self._source, left)

    # --- which sessions ----------------------------------------------------------------------------------------------

    def _first(self, stored: StoredHead, there: StoredHead | None) -> _Session | None:
        """All but those that are somebody else's."""
        if difference := _difference(stored, there):
            self._different[stored.head.session_id] = difference
            return None
        return _Session(stored, None if there is None else there.last_sequence)

    def _changed(self, stored: StoredHead, there: StoredHead | None) -> _Session | None:
        """Those that were not there, or have gone on, since they were copied."""
        session_id = stored.head.session_id
        if session_id in self._different:
            return None
        copy = self._copies.get(session_id)
        if copy is not None and copy.alike.last_sequence >= stored.last_sequence:
            return None
        self._meanwhile.add(session_id)
        return self._first(stored, there)

    async def _delete_replaced(self) -> bool:
        """Delete from the target what was copied and is no more in the source, or another session of that name by now.

        The pages that were read of such a one may even be of two sessions.
        """
        gone = set(self._copies)
        replaced = set[str]()
        async for stored in self._source.heads():
            copy = self._copies.get(stored.head.session_id)
            if copy is not None and copy.alike.incarnation == stored.head.incarnation:
                gone.discard(stored.head.session_id)
            elif copy is not None:
                replaced.add(stored.head.session_id)
        if gone - replaced:  # what cannot be read any more is still there
            gone -= set(await self._source.session_ids()) - replaced
        for session_id in gone:
            there = await self._target.head(session_id)
            if there is not None and there.head.incarnation == self._copies[session_id].alike.incarnation:
                await self._delete(session_id)
            del self._copies[session_id]
            self._different.pop(session_id, None)
            self._meanwhile.add(session_id)
        return bool(gone)

    async def _delete(self, session_id: str) -> None:
        await self._before_deletion(session_id)
        await self._target.delete(session_id)

    # --- reading, writing, comparing ---------------------------------------------------------------------------------

    async def _pieces(
        self,
        choose: Callable[[StoredHead, StoredHead | None], _Session | None],
        left: set[str],
        on_progress: Callable[[int], None],
    ) -> AsyncIterator[_Piece]:
        """What to write. Each session that was read from the source is taken out of `left`."""
        done = 0
        async for stored, there in _side_by_side(self._source.heads(), self._target.heads()):
            own = there
            if there is not None and self._deletes_others and self._is_other(stored, there):
                await self._delete(there.head.session_id)
                own = None
            if stored is None:
                self._others += own is not None and own.head.session_id not in self._named
                continue
            session = choose(stored, own)
            if session is not None:
                try:
                    async for piece in self._entries(session):
                        yield piece
                except SessionUnavailable:
                    if session.written:  # a part of it would be left in the copy
                        raise
                    continue  # it stays in `left`
                if session.is_there:
                    await self._compare(session)
                else:
                    self._read.append(session)
            left.discard(stored.head.session_id)
            done += 1
            on_progress(done)

    def _is_other(self, stored: StoredHead | None, there: StoredHead) -> bool:
        """Whether the source certainly has not this session, but another one of its name, or none."""
        return there.head.session_id not in self._named if stored is None else not _are_one(stored, there)

    async def _entries(self, session: _Session) -> AsyncIterator[_Piece]:
        """What the target lacks of a session; all that the source has is read."""
        stored = session.stored
        session_id = stored.head.session_id
        try:
            async for entry in read_all(self._source, session_id):
                if entry.sequence > stored.last_sequence:
                    break
                if session.there and entry.sequence > session.there and not await self._is_beginning(session):
                    return
                session.digest.feed(entry)
                if is_damaged(entry.encoded):
                    session.problems.append(f"entry {entry.sequence} of session {session_id} is damaged")
                else:
                    session.entries += 1
                if session.there is None or entry.sequence > session.there:
                    session.written += 1
                    yield _Piece(session, entry)
        except StoreCorrupt as error:  # what came before it is right
            session.problems.append(f"session {session_id}: {error}")
        if session.there is None and not session.written:
            yield _Piece(session, None)

    async def _is_beginning(self, session: _Session) -> bool:
        """Whether what the target has is what the source says first; nothing is to be written behind something else."""
        head = session.stored.head
        if session.is_beginning:
            return True
        if await self._digest_of_copy(head, session.there or 0) == session.digest.value():
            session.is_beginning = True
            return True
        self._differs(session)
        return False

    def _differs(self, session: _Session) -> None:
        """Note that both have a session otherwise.

        One that this very copy has written stays known: another session may have taken its name in the source while it
        was read, and then the next pass copies that one (`_delete_replaced`).
        """
        head = session.stored.head
        self._different[head.session_id] = _not_the_same(head.session_id)
        if session.there is None:
            alike = Alike(head.incarnation, session.stored.last_sequence, is_new=True)
            self._copies.setdefault(head.session_id, _Kept(alike, 0, ()))

    async def _append(self, batch: list[_Piece]) -> None:
        groups = [(session, list(pieces)) for session, pieces in groupby(batch, key=lambda piece: piece.session)]
        appends = [
            Append(session.stored.head, [entry for _, entry in pieces if entry is not None], after_loss=True)
            for session, pieces in groups  # the gaps are known
        ]
        for (session, pieces), outcome in zip(groups, await self._target.append(appends), strict=True):
            if isinstance(outcome, StoreConflict):  # somebody else uses the target
                self._different[session.stored.head.session_id] = str(outcome)
            elif outcome is not None:
                raise StoreError(f"the copy is not complete: {outcome}") from outcome
            else:
                self._written += sum(entry is not None for _, entry in pieces)

    async def _compare_all(self) -> None:
        """Compare what was read to its end, once it is written too."""
        read, self._read = self._read, []
        for session in read:
            await self._compare(session)

    async def _compare(self, session: _Session) -> None:
        """Read a copied session back, and see that it is what the source gave."""
        head, last = session.stored.head, session.stored.last_sequence
        if head.session_id in self._different:
            return
        if await self._digest_of_copy(head, last) == session.digest.value():
            known = self._copies.get(head.session_id)
            is_new = not session.is_there or (known is not None and known.alike.is_new)
            alike = Alike(head.incarnation, last, is_new)
            self._copies[head.session_id] = _Kept(alike, session.entries, tuple(session.problems))
        else:
            self._differs(session)

    async def _digest_of_copy(self, head: SessionHead, last_sequence: int) -> bytes:
        digest = Digest()
        async for entry in read_all(self._target, head.session_id):
            if entry.sequence > last_sequence:
                break
            digest.feed(entry)
        return digest.value()


async def _nothing(session_id: str) -> None:
    """Do nothing about it."""


async def _unreadable(source: Source, left: set[str]) -> dict[str, str]:
    """Of the sessions that a source has named and not given, those that are not gone since: a sentence for each."""
    still = left.intersection(await source.session_ids()) if left else ()
    return {
        session_id: f"session {session_id} cannot be read in the source, and is not in the copy; see `check`"
        for session_id in sorted(still)
        if await _is_refused(source, session_id)
    }


async def _is_refused(source: Source, session_id: str) -> bool:
    """Whether a session cannot be read; one that can was made again since the others were given, or is gone."""
    try:
        await source.read(session_id, limit=1)
    except (StoreCorrupt, SessionUnavailable):
        return True
    return False


def _are_one(stored: StoredHead | None, there: StoredHead) -> bool:
    return stored is not None and stored.head.incarnation == there.head.incarnation


def _difference(stored: StoredHead, there: StoredHead | None) -> str:
    """Why the target's session is no beginning of the source's; nothing if it may be one."""
    session_id = stored.head.session_id
    if there is None:
        return ""
    if not _are_one(stored, there):
        return f"session {session_id} is another one in the target, which was made by itself; delete one of the two"
    if there.last_sequence > stored.last_sequence:
        return (
            f"session {session_id} has gone on in the target: it ends at {there.last_sequence} there, and at "
            f"{stored.last_sequence} in the source"
        )
    return ""


def _not_the_same(session_id: str) -> str:
    return f"session {session_id} is not the same in the target: its checksum is another one"


async def _goes_on(source: Source, target: Store, stored: StoredHead, there: StoredHead) -> bool:
    """Whether the target's newest entry is what the source has in its place."""
    session_id, last = stored.head.session_id, there.last_sequence
    if last == 0:
        return True
    pages = [await one.read(session_id, after=last - 1, limit=1) for one in (source, target)]
    ours, theirs = ([(entry.sequence, entry.entry_id) for entry in page] for page in pages)
    return ours == theirs


def _size_of(piece: _Piece) -> int:
    return 0 if piece.entry is None else len(piece.entry.encoded)


async def _side_by_side(
    ours: AsyncIterator[StoredHead], theirs: AsyncIterator[StoredHead]
) -> AsyncIterator[tuple[StoredHead | None, StoredHead | None]]:
    """The sessions of two stores, each name once, in order: what each of them has of it."""
    one, other = await anext(ours, None), await anext(theirs, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one.head.session_id < other.head.session_id):
            yield one, None
            one = await anext(ours, None)
        elif one is None or other.head.session_id < one.head.session_id:
            yield None, other
            other = await anext(theirs, None)
        else:
            yield one, other
            one, other = await anext(ours, None), await anext(theirs, None)
