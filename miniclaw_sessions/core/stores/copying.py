"""Copying a store into another one, entry by entry: the only way in which a transcript gets from one store to another.

Backup, restore, rekeying, migration and the salvage of a damaged store all use it. It works for stores of every kind,
encrypted or not: everything that the contract of `stores.base` covers is copied, byte for byte.

Each session is copied by itself and read back: the digest of its entries in the source must be the digest of its
entries in the target. Entries that the target has already are not written again, so a copy that was cut off continues
where it stopped. Nothing in the target is overwritten: a session that differs from the source's, or has newer entries,
is left as it is and reported.

`session.copying` builds sessions from entries of other origins, such as a fork or an import, in the same batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
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
    in_batches,
    is_damaged,
)
from miniclaw_sessions.core.stores.reading import Transcripts, read_all
from miniclaw_sessions.errors import SessionUnavailable, StoreConflict, StoreCorrupt, StoreError

GROUP = 2_000
"""Entries that are written at once from store to store."""

PASSES = 5
"""How many passes look for new entries in a source that is used meanwhile."""

OnProgress = Callable[[int, int | None], None]
"""Called with the number of copied sessions and their total (None: not counted)."""

T = TypeVar("T")


class Alike(msgspec.Struct, frozen=True, gc=False):
    """A session that is equal in source and target: its incarnation and end, and whether this copy wrote some of it."""

    incarnation: str
    last_sequence: int
    is_new: bool


class Copied(msgspec.Struct, kw_only=True):
    """The result of a copy.

    Attributes:
        sessions: number of sessions that are equal in source and target.
        entries: number of entries in these. Damaged entries are copied as they are, and not counted.
        written: number of entries that the target lacked and that were written.
        meanwhile: number of sessions that changed in the source during the copy; the changes that were noticed are
            copied as well.
        others: number of sessions that only the target has.
        problems: damage in the source, one sentence each.
        different: sessions that differ in the target, one sentence each; they were left as they are.
        unreadable: ids of the sessions that cannot be read in the source; `problems` names them.
        alike: the sessions that are equal in both, by their ids.
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
    source: Transcripts,
    target: Store,
    on_progress: OnProgress = lambda *_: None,
    *,
    total: int | None = None,
    delete_others: bool = False,
    before_deletion: Callable[[str], Awaitable[object]] | None = None,
) -> Copied:
    """Copy every session, and compare. The source may be used meanwhile; changes in it are copied as well.

    Args:
        source: the store to copy.
        target: may have sessions already.
        on_progress: called after each session.
        total: the number of sessions, if it is known.
        delete_others: delete sessions from the target that the source does not have.
        before_deletion: called with the id of a session that is about to be deleted from the target.

    Raises:
        StoreError: the source cannot be read, or the target cannot be written. What was copied by then stays in the
            target, and the same call continues from there.
    """
    copy = _Copy(source, target, delete_others=delete_others, before_deletion=before_deletion or _nothing)
    await copy.run(lambda done: on_progress(done, total))
    return copy.report()


async def compare_stores(source: Transcripts, target: Store) -> Copied:
    """What a copy would write, by the heads of both stores: `sessions` and `written` count what the target lacks.

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


class Digest:
    """A checksum of a session's entries: their sequences, ids, idempotency keys and bytes, and how many there are."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def feed(self, entry: StoredEntry) -> None:
        """Add the next entry; the key of a damaged one is left out, because it may be lost."""
        text = None if is_damaged(entry.encoded) else entry.idempotency_key or idempotency_key_in(entry.encoded)
        key = None if text is None else text.encode("utf-8", "surrogatepass")
        entry_id = entry.entry_id.encode("utf-8", "surrogatepass")
        lengths = pack("<qqqq", entry.sequence, len(entry_id), -1 if key is None else len(key), len(entry.encoded))
        self._hash.update(b"".join((lengths, entry_id, key or b"", entry.encoded)))

    def value(self) -> bytes:
        """The digest of all entries so far."""
        return self._hash.digest()


class _Session:
    """A session that is being copied."""

    def __init__(self, stored: StoredHead, there: int | None) -> None:
        """Nothing is read yet.

        Args:
            stored: the session in the source.
            there: the last sequence of the session in the target; None: it is not there.
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
        """Whether the target had all entries before."""
        return self.there is not None and self.written == 0


class _Piece(NamedTuple):
    """An entry that the target lacks, and its session; None: the session has no entries."""

    session: _Session
    entry: StoredEntry | None


class _Kept(NamedTuple):
    """The result of one session."""

    alike: Alike
    entries: int
    problems: tuple[str, ...]


class _Copy:
    """One copy: a pass over all sessions, and further passes over those that changed meanwhile."""

    def __init__(
        self,
        source: Transcripts,
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
        """The result so far."""
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
        """Pass after pass, until the source stops changing, or `PASSES` are done."""
        await self._pass(self._first, on_progress)
        for number in range(2, PASSES + 2):
            gone = await self._delete_replaced()
            if number > PASSES:  # a session that took a name since then began after the copy, and need not be in it
                break
            before = len(self._meanwhile), self._written
            await self._pass(self._changed, lambda _: None)
            if not gone and before == (len(self._meanwhile), self._written):
                break

    async def _pass(
        self, choose: Callable[[StoredHead, StoredHead | None], _Session | None], on_progress: Callable[[int], None]
    ) -> None:
        """Walk through both stores, and copy the chosen sessions."""
        self._others = 0
        self._named = set(await self._source.session_ids())
        left = set(self._named)
        pieces = self._pieces(choose, left, on_progress)
        async for batch in in_batches(pieces, lambda piece: len(piece.entry.encoded) if piece.entry else 0, most=GROUP):
            await self._append(batch)
            await self._compare_all()
        await self._compare_all()
        self._unreadable = await _unreadable(self._source, left)

    # --- which sessions ----------------------------------------------------------------------------------------------

    def _first(self, stored: StoredHead, there: StoredHead | None) -> _Session | None:
        """Choose every session but those that differ in the target."""
        if difference := _difference(stored, there):
            self._different[stored.head.session_id] = difference
            return None
        return _Session(stored, None if there is None else there.last_sequence)

    def _changed(self, stored: StoredHead, there: StoredHead | None) -> _Session | None:
        """Choose the sessions that are new or have new entries since they were copied."""
        session_id = stored.head.session_id
        if session_id in self._different:
            return None
        copy = self._copies.get(session_id)
        if copy is not None and copy.alike.last_sequence >= stored.last_sequence:
            return None
        self._meanwhile.add(session_id)
        return self._first(stored, there)

    async def _delete_replaced(self) -> bool:
        """Delete copied sessions that are gone from the source, or have another incarnation there by now.

        The pages that were read of such a session may even belong to both incarnations. Returns whether there were any.
        """
        gone = set(self._copies)
        replaced = set[str]()
        async for stored in self._source.heads():
            copy = self._copies.get(stored.head.session_id)
            if copy is not None and copy.alike.incarnation == stored.head.incarnation:
                gone.discard(stored.head.session_id)
            elif copy is not None:
                replaced.add(stored.head.session_id)
        if gone - replaced:  # a session that became unreadable is not gone
            gone -= set(await self._source.session_ids()) - replaced
        for session_id in gone:
            there, alike = await self._target.head(session_id), self._copies.pop(session_id).alike
            self._different.pop(session_id, None)
            if there is not None and there.head.incarnation == alike.incarnation:
                await self._delete(StoredHead(there.head, alike.last_sequence))
            self._meanwhile.add(session_id)
        return bool(gone)

    async def _delete(self, known: StoredHead) -> bool:
        """Delete a session from the target, unless it has gone on there; then note that, and return False."""
        session_id = known.head.session_id
        await self._before_deletion(session_id)
        try:
            await self._target.delete(session_id, known=known)
        except StoreConflict as conflict:
            self._different[session_id] = str(conflict)
            return False
        return True

    # --- reading, writing, comparing ---------------------------------------------------------------------------------

    async def _pieces(
        self,
        choose: Callable[[StoredHead, StoredHead | None], _Session | None],
        left: set[str],
        on_progress: Callable[[int], None],
    ) -> AsyncIterator[_Piece]:
        """The entries to write. Each session that was read from the source is removed from `left`."""
        done = 0
        async for stored, there in _side_by_side(self._source.heads(), self._target.heads()):
            own = there
            if there is not None and self._deletes_others and there.head.session_id not in self._different:
                may_be_in_source = there.head.session_id in self._named if stored is None else _are_one(stored, there)
                if not may_be_in_source and await self._delete(there):
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
                    if session.written:  # the copy would keep a part of it
                        raise
                    continue  # it stays in `left`
                if session.is_there:
                    await self._compare(session)
                else:
                    self._read.append(session)
            left.discard(stored.head.session_id)
            done += 1
            on_progress(done)

    async def _entries(self, session: _Session) -> AsyncIterator[_Piece]:
        """The entries of a session that the target lacks; all entries of the source are read for the digest."""
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
        except StoreCorrupt as error:  # the entries before it are sound
            session.problems.append(f"session {session_id}: {error}")
        if session.there is None and not session.written:
            yield _Piece(session, None)

    async def _is_beginning(self, session: _Session) -> bool:
        """Whether the target's entries are the first of the source's; otherwise nothing may be appended to them."""
        head = session.stored.head
        if session.is_beginning:
            return True
        if await self._digest_of_copy(head, session.there or 0) == session.digest.value():
            session.is_beginning = True
            return True
        self._differs(session)
        return False

    def _differs(self, session: _Session) -> None:
        """Note that a session differs.

        A session that this copy wrote is also noted as copied: another session may have taken its name in the source
        while it was read. Then the next pass deletes it and copies that one (`_delete_replaced`).
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
            if isinstance(outcome, StoreConflict):  # another program uses the target
                self._different[session.stored.head.session_id] = str(outcome)
            elif outcome is not None:
                raise StoreError(f"the copy is not complete: {outcome}") from outcome
            else:
                self._written += sum(entry is not None for _, entry in pieces)

    async def _compare_all(self) -> None:
        """Compare the sessions that were read to their end, once they are written."""
        read, self._read = self._read, []
        for session in read:
            await self._compare(session)

    async def _compare(self, session: _Session) -> None:
        """Read a copied session back, and compare its digest with the source's."""
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
    """Do nothing before a deletion."""


async def _unreadable(source: Transcripts, left: set[str]) -> dict[str, str]:
    """The sessions that a source lists but cannot read, and that are not deleted since; a sentence for each."""
    still = left.intersection(await source.session_ids()) if left else ()
    return {
        session_id: f"session {session_id} cannot be read in the source, and is not in the copy; see `check`"
        for session_id in sorted(still)
        if await _is_refused(source, session_id)
    }


async def _is_refused(source: Transcripts, session_id: str) -> bool:
    """Whether a session cannot be read. If it can, it was made again since, or is gone."""
    try:
        await source.read(session_id, limit=1)
    except (StoreCorrupt, SessionUnavailable):
        return True
    return False


def _are_one(stored: StoredHead | None, there: StoredHead) -> bool:
    return stored is not None and stored.head.incarnation == there.head.incarnation


def _difference(stored: StoredHead, there: StoredHead | None) -> str:
    """Why the target's session cannot be a beginning of the source's; empty if it may be one."""
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


async def _goes_on(source: Transcripts, target: Store, stored: StoredHead, there: StoredHead) -> bool:
    """Whether the source has the target's newest entry at the same sequence."""
    session_id, last = stored.head.session_id, there.last_sequence
    if last == 0:
        return True
    pages = [await one.read(session_id, after=last - 1, limit=1) for one in (source, target)]
    ours, theirs = ([(entry.sequence, entry.entry_id) for entry in page] for page in pages)
    return ours == theirs


async def _side_by_side(
    ours: AsyncIterator[StoredHead], theirs: AsyncIterator[StoredHead]
) -> AsyncIterator[tuple[StoredHead | None, StoredHead | None]]:
    """The sessions of two stores, merged by session_id: the head in each, or None."""
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
