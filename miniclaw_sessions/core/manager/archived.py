"""Bringing an expired session back from the archive, under its old key, with all that is sound in its file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress

import msgspec
from anyio import to_thread

from miniclaw_sessions.core.manager.registry import SessionRegistry
from miniclaw_sessions.core.persistence.archive import Archive, lines_in, session_of
from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.entries import Entry, LeafMove, moves_leaf
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session import Journal, Session
from miniclaw_sessions.core.session.copying import adopt_all, as_restored, copy_branch, storable
from miniclaw_sessions.core.stores.base import SessionHead
from miniclaw_sessions.core.stores.jsonl.lines import head_in
from miniclaw_sessions.encryption import DamagedSeal
from miniclaw_sessions.errors import (
    ImportRefused,
    InvalidKey,
    InvalidMessage,
    NotArchived,
    SchemaTooNew,
    SessionExists,
    SessionHeld,
    StoreCorrupt,
)
from miniclaw_sessions.log import get_logger

LINES_AT_ONCE = 256
"""How many lines a thread decodes in one go."""

log = get_logger(__name__)


async def restore(registry: SessionRegistry, archive: Archive, session_id: str) -> Session:
    """Make a session of its newest archived file, and delete the file; its time to live starts again.

    Raises:
        NotArchived: the archive has no such session.
        SessionExists: there is a session of this id already.
        ImportRefused, DamagedSeal, WrongKey: the file is damaged or sealed with another key; it stays.
        SessionLimit, StoreError: the session could not be made; the file stays.
    """
    file = await archive.newest(session_id)
    if file is None:
        raise NotArchived(session_id)
    async with aclosing(lines_in(archive.read(file))) as lines:
        head = _head_in(await anext(lines, b""), session_id)
        key = _key_of(session_id) if head is None else head.key
        created_at = None if head is None else head.created_at
        async with registry.new_journal(key, purpose="restore", created_at=created_at) as journal:
            if await archive.newest(session_id) != file:  # it was deleted before the key was reserved
                raise NotArchived(session_id)
            entries = ArchivedEntries()
            if journal.home.store.keeps_entries:
                await adopt_all(journal, as_restored(entries.read(lines, journal)))
            else:  # no transcript is kept: the messages of the branch that they end with
                whole = Session.new(window=journal.conversation.window.capacity).journal
                await adopt_all(whole, entries.read(lines, journal))
                await copy_branch(whole, journal)
            if head is None and not entries.taken:
                raise ImportRefused(f"the archived file {file} holds nothing that is an entry of a session")
            journal.checkpoint.touch()
    await archive.delete(file)  # the next step: who waited for the key finds the session, and no copy of it
    log.info("restored from the archive", action="session.restored", session_id=session_id, set_aside=entries.set_aside)
    return Session.of(journal)


async def restore_if_archived(registry: SessionRegistry, archive: Archive, session_id: str) -> None:
    """Let a chat that speaks again after it expired go on where it ended."""
    if not await archive.has(session_id):
        return
    try:
        with suppress(SessionExists, NotArchived):  # another task or process restores it
            await restore(registry, archive, session_id)
    except (ImportRefused, DamagedSeal) as error:
        sentence = "an archived session is damaged; it stays in the archive, and the chat begins without it"
        log.error(sentence, action="session.not_restored", session_id=session_id, error=str(error))


async def forget_copies(registry: SessionRegistry, archive: Archive, session_id: str) -> int | None:
    """Delete the archived files of a session that there is not, and return their number; None: it is there, or may be.

    No task restores it meanwhile. Raises ManagerClosed and StoreUnavailable.
    """

    async def forget() -> int | None:
        return None if session_id in registry.cache else await archive.forget(session_id)

    return await registry.alone_with(session_id, forget)


async def forget_copy(registry: SessionRegistry, archive: Archive, file: str) -> bool:
    """Delete one archived file once no task restores it. Returns False if it was gone by then.

    Raises:
        SessionHeld: its chat has a session again, which is under legal hold.
        ManagerClosed, StoreError, ...: as `SessionRegistry.load`, and where the file cannot be deleted.
    """
    session_id = session_of(file)
    await registry.load(session_id)  # nothing is loaded while the file goes

    async def forget() -> bool:
        journal = registry.cache.get(session_id)
        if journal is not None and journal.legal_hold is not None:
            raise SessionHeld(session_id, journal.legal_hold)
        return await archive.delete(file)

    return await registry.alone_with(session_id, forget)


def _head_in(line: bytes, session_id: str) -> SessionHead | None:
    """Who the session is, from the first line of its file; None where that is damaged."""
    try:
        return head_in(line, session_id)
    except SchemaTooNew as error:
        raise ImportRefused(str(error)) from None
    except StoreCorrupt:
        return None


def _key_of(session_id: str) -> SessionKey:
    try:
        return SessionKey.parse(session_id)
    except InvalidKey:  # it is shortened: only the file's first line has the key
        raise ImportRefused(f"the archived file of {session_id} has lost the line that names its chat") from None


class ArchivedEntries:
    """Decodes the entries of one archived file; what is damaged is left out, and the tree stays whole.

    Attributes:
        taken: how many lines were entries.
        set_aside: how many lines were left out or replaced.
    """

    def __init__(self) -> None:
        self.taken = 0
        self.set_aside = 0
        self._known: set[int] = set()  # hashes of ids: there may be millions
        self._instead: dict[str, str | None] = {}  # which entry is meant by an id that names none, or a move
        self._leaf_id: str | None = None
        self._before_damage: str | None = None

    async def read(self, lines: AsyncIterator[bytes], journal: Journal) -> AsyncIterator[Entry]:
        """The entries in order; one that the session cannot store leaves a note in its place."""
        some: list[bytes] = []
        async for line in lines:
            some.append(line)
            if len(some) >= LINES_AT_ONCE:
                for entry in await to_thread.run_sync(self._decoded, some, journal):
                    yield entry
                some = []
        for entry in await to_thread.run_sync(self._decoded, some, journal):
            yield entry

    def _decoded(self, lines: Sequence[bytes], journal: Journal) -> list[Entry]:
        entries = [entry for line in lines if line.strip() and (entry := self._entry(line)) is not None]
        fitting, problems = storable(journal, entries)
        self.taken += len(entries)
        self.set_aside += len(problems)
        return fitting

    def _entry(self, line: bytes) -> Entry | None:
        entry = _decoded(line)
        if entry is None or hash(entry.id) in self._known:
            self._set_aside()
            return None
        parent_id = self._parent_of(entry)
        if isinstance(entry, LeafMove):
            target_id = self._meant(entry.target_id)
            if target_id is not None and hash(target_id) not in self._known:
                self._set_aside()
                self._instead[entry.id] = parent_id  # its children follow its parent
                return None
            entry = msgspec.structs.replace(entry, target_id=target_id)
            self._instead[entry.id] = self._leaf_id = target_id
        elif moves_leaf(entry):
            self._leaf_id = entry.id
        self._known.add(hash(entry.id))
        return entry if parent_id == entry.parent_id else msgspec.structs.replace(entry, parent_id=parent_id)

    def _parent_of(self, entry: Entry) -> str | None:
        """The entry's parent; where no line before it has it, the entry before the damaged line, or none."""
        parent_id = self._meant(entry.parent_id)
        if parent_id is not None and hash(parent_id) not in self._known:
            parent_id = self._before_damage
            self._instead[str(entry.parent_id)] = parent_id
        return parent_id

    def _meant(self, entry_id: str | None) -> str | None:
        return entry_id if entry_id is None else self._instead.get(entry_id, entry_id)

    def _set_aside(self) -> None:
        self.set_aside += 1
        self._before_damage = self._leaf_id


def _decoded(line: bytes) -> Entry | None:
    """The entry of a line; with replacement characters where its text is damaged; None where it is no entry."""
    with suppress(InvalidMessage):
        return decode_entry(line)
    with suppress(InvalidMessage):
        return decode_entry(line.decode("utf-8", errors="replace").encode())
    return None
