"""Encrypting the entries of a store anew, or decrypting them: into a new store beside it, which then takes its place.

Nothing of the store is touched before all of the new one is safe. Then its files change places one by one, the old one
removed and the new one moved there: cut off in between, the same is done again, and ends the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

from anyio import to_thread

from miniclaw_sessions.disk import Directory
from miniclaw_sessions.encryption import KeyRing, is_sealed
from miniclaw_sessions.errors import ConfigError, SessionsError
from miniclaw_sessions.persistence.whole_files import BESIDE
from miniclaw_sessions.stores import open_store
from miniclaw_sessions.stores.base import Append, Store, StoredEntry, StoredHead
from miniclaw_sessions.stores.encrypted import open_entry, seal_entry
from miniclaw_sessions.stores.reading import read_all

GROUP = 2_000
"""How many entries are written to the new store with one sync."""

DAMAGED = b"damaged: "
"""Stands before what is damaged and is left in a workspace that is decrypted: without a key it would ask for one."""

OnRead = Callable[[int], None]
"""Called with how many entries are done."""


class StoreCopy:
    """A store and its copy beside it.

    Attributes:
        place: the store's file or directory.
        is_directory: which of the two.
        changed: how many entries were not as they should be, and are in the copy.
    """

    def __init__(self, url: str, workspace: Path, keys: KeyRing, *, decrypt: bool) -> None:
        """Nothing is opened yet.

        Raises:
            ConfigError: no store goes by this URL.
        """
        files = open_store(url, workspace).files if url.startswith("sqlite:") else ()
        place = url.partition(":")[2].removeprefix("//")
        self.changed = 0
        self._damaged: set[str] = set()
        self.is_directory = url.startswith("jsonl:")
        self.place = files[0] if files else Path(place) if place else workspace / "transcripts"
        self._beside = self.place.with_name(self.place.name + BESIDE)
        self._url = url
        self._workspace = workspace
        self._keys = keys
        self._decrypt = decrypt

    @property
    def damaged(self) -> list[str]:
        """The entries that do not open, one sentence each."""
        return sorted(self._damaged)

    @property
    def is_there(self) -> bool:
        """Whether there is a store at all that lies on a disk."""
        return self._url.startswith(("sqlite:", "jsonl:")) and self.place.exists()

    async def needed(self, on_read: OnRead) -> bool:
        """Read every entry: whether there is one that is not as it should be. Changes nothing.

        Raises:
            WrongKey: an entry needs a key that is not held.
            StoreError: the store cannot be read.
        """
        wrong, done = False, 0
        async with open_store(self._url, self._workspace) as store:
            async for stored_head in store.heads():
                session_id = stored_head.head.session_id
                async for stored in read_all(store, session_id):
                    wrong = self._as_it_should_be(session_id, stored) is not None or wrong
                    done += 1
                    on_read(done)
        return wrong

    async def make(self, on_read: OnRead) -> None:
        """Make the copy; whatever an earlier run has left of one is removed.

        Raises:
            WrongKey: an entry needs a key that is not held.
            StoreError: the store cannot be read, or the copy not be written.
            SessionsError: the copy is not complete.
        """
        await to_thread.run_sync(_remove_directory, self._beside)
        await to_thread.run_sync(lambda: Directory(self._beside).close())
        url = f"jsonl://{self._beside}" if self.is_directory else f"sqlite://{self._beside / self.place.name}"
        async with open_store(self._url, self._workspace) as store, open_store(url, self._workspace) as copy:
            await self._copy(store, copy, on_read)
            theirs = {stored.head.session_id: stored async for stored in store.heads()}
            if theirs != {stored.head.session_id: stored async for stored in copy.heads()}:
                raise SessionsError(
                    f"the copy of {self.place} is not complete, and nothing was changed: is another program writing to "
                    "the store? Run this again"
                )

    def swap(self) -> None:
        """Let the files of the copy take the place of the store's; nothing happens where there is no copy. Blocks.

        Raises:
            ConfigError: another program has the database open.
            OSError: it could not be done; do it again.
        """
        if not self._beside.exists():
            return
        home = self.place if self.is_directory else self.place.parent
        with Directory(self._beside) as new, Directory(home, is_ours=self.is_directory) as old:
            if not self.is_directory and f"{self.place.name}-wal" in old.names():
                raise ConfigError(f"another program has {self.place} open; end it, and run this again")
            for name in new.names():
                if name != ".lock":
                    old.remove([name])
                    new.move(name, old, name)
        _remove_directory(self._beside)

    async def _copy(self, store: Store, copy: Store, on_read: OnRead) -> None:
        gathered: dict[str, Append] = {}
        count = done = 0
        async for stored_head in store.heads():
            async for item in self._pages(store, stored_head):
                if count + len(item.entries) > GROUP or item.head.session_id in gathered:
                    await _append(copy, gathered)
                    gathered, count = {}, 0
                gathered[item.head.session_id] = item
                count += len(item.entries)
                done += len(item.entries)
                on_read(done)
        await _append(copy, gathered)

    async def _pages(self, store: Store, stored_head: StoredHead) -> AsyncIterator[Append]:
        """A session's entries as they are to be; a page without any if it has none."""
        page: list[StoredEntry] = []
        async for stored in read_all(store, stored_head.head.session_id):
            changed = self._as_it_should_be(stored_head.head.session_id, stored)
            self.changed += changed is not None
            page.append(stored if changed is None else changed)
            if len(page) == GROUP // 4:
                yield Append(stored_head.head, page, after_loss=True)
                page = []
        if page or not stored_head.last_sequence:
            yield Append(stored_head.head, page, after_loss=True)

    def _as_it_should_be(self, session_id: str, stored: StoredEntry) -> StoredEntry | None:
        """The entry as it should be, or None if it is.

        What does not open is kept as it is, in what does: whoever reads it finds it damaged, and needs no old key.
        """
        was_sealed = is_sealed(stored.encoded)
        opened = open_entry(self._keys, session_id, stored) if was_sealed else stored
        is_damaged = was_sealed and opened.encoded.startswith(DAMAGED)
        if is_damaged:
            self._damaged.add(f"entry {stored.sequence} of session {session_id} is damaged")
        if is_damaged:
            opened = stored
        if not self._decrypt:
            is_right = was_sealed and not is_damaged and self._keys.is_current(stored.encoded)
            return None if is_right else seal_entry(self._keys, session_id, opened)
        if is_damaged:
            return StoredEntry(stored.sequence, stored.entry_id, DAMAGED + stored.encoded)
        return opened if was_sealed else None


async def _append(store: Store, gathered: dict[str, Append]) -> None:
    for outcome in await store.append(list(gathered.values())):
        if outcome is not None:
            raise outcome


def _remove_directory(path: Path) -> None:
    """Remove a directory of ours that holds nothing but files, durably; one that is not there is fine."""
    if not path.exists():
        return
    with Directory(path) as directory:
        directory.remove(directory.names())
    path.rmdir()
    with Directory(path.parent, is_ours=False) as parent:
        parent.sync()
