"""Any store, with its entries encrypted: its files show which sessions exist, but not their content.

Heads, sequences and entry ids stay readable, so the promises of the inner store hold here too. An entry is bound to
its session, its sequence and its id. An entry that its key does not open is damaged. An entry whose key is not held, or
that is not sealed at all, is not damage: reading it raises an error, and nothing is concluded from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from miniclaw_sessions.core.history.search import Found, Search
from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.stores.base import (
    LOST,
    Append,
    Store,
    StoredEntry,
    StoredSession,
    damaged,
    idempotency_key_in,
    is_damaged,
    without_mark,
)
from miniclaw_sessions.core.stores.checking import check_transcripts
from miniclaw_sessions.core.stores.scanning import scan
from miniclaw_sessions.core.stores.wrapping import WrappingStore
from miniclaw_sessions.encryption import DamagedSeal, KeyRing, is_sealed, of_entry
from miniclaw_sessions.errors import InvalidMessage, StoreError

NOT_INDEXED = "the workspace is encrypted and has no index, which would reveal what was said: every message was opened"


class EncryptedStore(WrappingStore):
    """A store around another one. Reading may also raise `WrongKey` and `NotEncrypted`, which are StoreErrors."""

    def __init__(self, store: Store, keys: KeyRing) -> None:
        super().__init__(store)
        self._keys = keys

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        """Encrypt and append, with one sync if the inner store syncs."""
        sealed = []
        for item in appends:
            entries = [seal_entry(self._keys, item.head.session_id, stored) for stored in item.entries]
            sealed.append(msgspec.structs.replace(item, entries=entries))
        return await self._store.append(sealed)

    async def load(self, session_ids: Sequence[str]) -> list[StoredSession]:
        """Sessions with the entries behind their checkpoints. The checkpoints stay sealed; their reader opens them."""
        return [
            msgspec.structs.replace(one, entries=self._opened(one.stored.head.session_id, one.entries))
            for one in await self._store.load(session_ids)
        ]

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """The entries after a sequence, oldest first."""
        return self._opened(session_id, await self._store.read(session_id, after=after, limit=limit))

    async def read_newest(self, session_id: str, limit: int) -> list[StoredEntry]:
        """The newest entries, oldest first."""
        return self._opened(session_id, await self._store.read_newest(session_id, limit))

    async def find(self, session_id: str, entry_id: str) -> StoredEntry | None:
        """The entry with this id, or None."""
        stored = await self._store.find(session_id, entry_id)
        return None if stored is None else open_entry(self._keys, session_id, stored)

    async def find_by_idempotency_key(self, session_id: str, key: str) -> StoredEntry | None:
        """The oldest entry with this key, or None; the inner store has a digest of it, made with the secret key."""
        for digest in self._keys.digests(key, session_id):
            stored = await self._store.find_by_idempotency_key(session_id, digest)
            if stored is not None:
                return open_entry(self._keys, session_id, stored)
        return None

    async def mend(self, session_id: str, candidates: Sequence[StoredEntry]) -> int:
        """Seal the right entries as the damaged ones were sealed, so that the inner store's checksums judge them."""
        mended = 0
        for entry in candidates:
            page = await self._store.read(session_id, after=entry.sequence - 1, limit=1)
            if page and page[0].sequence == entry.sequence and is_damaged(page[0].encoded):
                mended += await self._store.mend(session_id, self._resealed(session_id, entry, page[0].encoded))
        return mended

    def _resealed(self, session_id: str, entry: StoredEntry, stored: bytes) -> list[StoredEntry]:
        if stored == LOST:
            return [seal_entry(self._keys, session_id, entry)]
        place, key = of_entry(session_id, entry.sequence, entry.entry_id), entry.idempotency_key
        sealed = self._keys.seal_like(without_mark(stored), entry.encoded, place)
        digests = [None] if key is None else self._keys.digests(key, session_id)
        return [] if sealed is None else [StoredEntry(entry.sequence, entry.entry_id, sealed, one) for one in digests]

    async def search(self, search: Search) -> Found:
        """Open and read every entry: the files have no index, because it would reveal the content."""
        return await scan(self, search, NOT_INDEXED)

    async def index(self, limit: int) -> int:
        """Index nothing."""
        del limit
        return 0

    async def check(self) -> list[str]:
        """Check the inner store, then each entry: whether it opens, and its content is sound."""
        return await check_transcripts(self, self.heads(), self._store.check(), opens_seals=True)

    def _opened(self, session_id: str, page: Sequence[StoredEntry]) -> list[StoredEntry]:
        return [open_entry(self._keys, session_id, stored) for stored in page]


def encrypted(store: Store, keys: KeyRing | None) -> Store:
    """The store, encrypted if there are keys and the store keeps entries."""
    return store if keys is None or not store.keeps_entries else EncryptedStore(store, keys)


def seal_entry(keys: KeyRing, session_id: str, stored: StoredEntry) -> StoredEntry:
    """The entry with its content encrypted."""
    place = of_entry(session_id, stored.sequence, stored.entry_id)
    key = stored.idempotency_key
    digest = None if key is None else keys.digests(key, session_id)[0]
    return StoredEntry(stored.sequence, stored.entry_id, keys.seal(stored.encoded, place), digest)


def open_entry(keys: KeyRing, session_id: str, stored: StoredEntry) -> StoredEntry:
    """The entry with its content decrypted; an entry that does not open is returned as `damaged`.

    Raises:
        WrongKey: the entry is sealed with a key that is not held.
        NotEncrypted: the entry is sound, and not sealed.
        SchemaTooNew: a newer version sealed it.
    """
    if not is_sealed(stored.encoded) and not _is_entry(stored.encoded):
        return stored if is_damaged(stored.encoded) else damaged(stored)
    place = of_entry(session_id, stored.sequence, stored.entry_id)
    try:
        content = keys.open(stored.encoded, place, f"entry {stored.sequence} of session {session_id}")
    except DamagedSeal:
        return damaged(stored)
    return StoredEntry(stored.sequence, stored.entry_id, content, idempotency_key_in(content))


def _is_entry(encoded: bytes) -> bool:
    try:
        decode_entry(encoded)
    except InvalidMessage:
        return False
    return True
