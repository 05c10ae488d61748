"""Where expired sessions go before they are deleted: a JSON Lines file each, a header and every entry.

A directory has them, or the database that several processes share.

The file is streamed, so that a long transcript never has to fit in memory, and is durable before anything is deleted.
It has the form of a transcript of the store `jsonl:`, which the format `jsonl` reads: so a session comes back.
With keys it is encrypted, in pieces; `miniclaw-sessions decrypt` reads it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from anyio import CancelScope, Lock, to_thread

from miniclaw_sessions.core.persistence.own_task import in_own_task
from miniclaw_sessions.core.persistence.whole_files import opened_file
from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.entries import FOLLOWED, METADATA, Custom
from miniclaw_sessions.core.stores.base import SessionHead, StoredEntry
from miniclaw_sessions.core.stores.encrypted import open_entry
from miniclaw_sessions.core.stores.jsonl.lines import header_of
from miniclaw_sessions.disk import Directory, write_all
from miniclaw_sessions.encryption import KeyRing, PieceSealer
from miniclaw_sessions.errors import InvalidMessage, NotEncrypted, StoreUnavailable

SUFFIX = ".jsonl"
_PIECE_BYTES = 1 << 18
_FOLLOWED = FOLLOWED.encode()
_TIME = "%Y%m%dT%H%M%S.%fZ"


class Archive(Protocol):
    """What expired sessions are kept in. Every method may raise `StoreUnavailable`."""

    async def has(self, session_id: str) -> bool:
        """True if there is an archived file of the session."""
        ...

    async def newest(self, session_id: str) -> str | None:
        """The name of the newest archived file of a session; None without one."""
        ...

    async def names(self) -> list[str]:
        """The names of all archived files, in order; each begins with its time and ends with its session's id."""
        ...

    async def forget(self, session_id: str, *, look_again: bool = False) -> int:
        """Delete all archived files of a session, durably. Returns how many there were.

        Args:
            session_id: which session.
            look_again: list them again; another process may have added one.
        """
        ...

    async def delete(self, name: str) -> bool:
        """Delete one archived file, durably. Returns False if there was none."""
        ...

    def read(self, name: str) -> AsyncIterator[bytes]:
        """The content of an archived file, decrypted, piece by piece.

        Raises:
            WrongKey, DamagedSeal: it does not open with the keys that are held.
        """
        ...


@in_own_task
async def write_archived_file(path: Path, name: str, blocks: AsyncIterator[bytes]) -> None:
    """Write an archived file as it comes, durably, into a directory that is made if need be.

    A write that is under way is waited for when the caller is cancelled: the thread would go on with a descriptor that
    is another file's by then.

    Raises:
        OSError: it could not be written; no file is left.
    """
    directory = await to_thread.run_sync(Directory, path)
    try:
        temporary, fd = await to_thread.run_sync(directory.open_temporary)
        try:
            async for piece in in_pieces(blocks):
                await to_thread.run_sync(write_all, fd, piece)
            await to_thread.run_sync(partial(directory.publish, temporary, fd, name))
        except BaseException:
            with CancelScope(shield=True):
                await to_thread.run_sync(directory.discard, temporary)
            raise
        finally:
            os.close(fd)
    finally:
        directory.close()


class ArchiveDirectory:
    """The directory of expired sessions."""

    def __init__(self, path: Path, encryption: KeyRing | None = None) -> None:
        self.path = path
        self._encryption = encryption
        self._known: dict[str, set[str]] | None = None  # by session id; read when it is first asked for
        self._listing = Lock(fast_acquire=True)

    def __repr__(self) -> str:
        return f"<ArchiveDirectory {self.path}>"

    async def write(self, head: SessionHead, entries: AsyncIterator[bytes], at: datetime) -> str:
        """Write a session's entries to a file of their own, durably. Returns the file's name.

        Raises:
            OSError: it could not be written; no file is left.
        """
        name = name_of(head, at)
        await write_archived_file(self.path, name, sealed(self._encryption, name, encoded_lines(head, entries)))
        async with self._listing:  # a list that is on its way may lack it
            if self._known is not None:
                self._known.setdefault(head.session_id, set()).add(name)
        return name

    async def has(self, session_id: str) -> bool:
        """True if an archived file of the session is here. Looks into the directory the first time only.

        Raises:
            StoreUnavailable: the directory cannot be listed.
        """
        return session_id in await self._names()

    async def newest(self, session_id: str) -> str | None:
        """The name of the newest archived file of a session; None without one. Raises as `has`."""
        return max((await self._names()).get(session_id, ()), default=None)

    async def names(self) -> list[str]:
        """The names of all archived files, in order. Raises as `has`."""
        return sorted(name for names in (await self._names()).values() for name in names)

    async def forget(self, session_id: str, *, look_again: bool = False) -> int:
        """Delete all archived files of a session, durably. Returns how many there were.

        Args:
            session_id: which session.
            look_again: list the directory again; another process may have added one.

        Raises:
            StoreUnavailable: one cannot be deleted.
        """
        if look_again:
            self._known = None
        names = (await self._names()).pop(session_id, ())
        return await self._remove(names) if names else 0

    async def delete(self, name: str) -> bool:
        """Delete one archived file, durably. Returns False if there was none. Raises as `forget`."""
        known = await self._names()
        session_id = session_of(name)
        names = known.pop(session_id, set())
        if left := names - {name}:
            known[session_id] = left
        await self._remove([name])
        return name in names

    async def _names(self) -> dict[str, set[str]]:
        async with self._listing:  # of two lists, the older one would bring back what was deleted since
            if self._known is None:
                try:
                    self._known = await to_thread.run_sync(self._listed)
                except OSError as error:
                    raise StoreUnavailable(f"cannot look into the archive {self.path}: {error.strerror}") from error
            return self._known

    def _listed(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for name in os.listdir(self.path) if self.path.is_dir() else ():
            if name.endswith(SUFFIX) and "-" in name:
                found.setdefault(session_of(name), set()).add(name)
        return found

    async def _remove(self, names: Collection[str]) -> int:
        def remove() -> int:
            with Directory(self.path) as directory:
                return directory.remove(names)

        try:
            return await to_thread.run_sync(remove)
        except OSError as error:
            self._known = None
            raise StoreUnavailable(f"the archive {self.path} keeps what was to go: {error.strerror}") from error

    async def read(self, name: str) -> AsyncIterator[bytes]:
        """The content of an archived file, decrypted, piece by piece.

        Raises:
            StoreUnavailable: it cannot be read.
            WrongKey, DamagedSeal: it does not open with the keys that are held.
        """
        file = self.path / name
        pieces = _plain(file) if self._encryption is None else _opened(self._encryption, file)
        try:
            while (piece := await to_thread.run_sync(next, pieces, None)) is not None:
                yield piece
        except OSError as error:
            raise StoreUnavailable(f"cannot read the archived session {file}: {error.strerror}") from error


def name_of(head: SessionHead, at: datetime) -> str:
    """The name of the file of a session that is archived at this time."""
    return f"{at:{_TIME}}-{head.session_id}{SUFFIX}"


def time_of(name: str) -> datetime | None:
    """When an archived file was made, from its name; None where that does not say it."""
    try:
        return datetime.strptime(name.partition("-")[0], _TIME).replace(tzinfo=UTC)
    except ValueError:
        return None


def session_of(name: str) -> str:
    """The id of the session that an archived file is of, from its name."""
    return name.removesuffix(SUFFIX).partition("-")[2]


async def lines_in(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The lines of an archived file, without their ends."""
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


async def followed_place(archive: Archive, name: str) -> object:
    """How far the file was read that an archived session kept up with (`FOLLOWED`), or None. Reads it to its end.

    Raises:
        StoreUnavailable: it cannot be read.
        WrongKey, DamagedSeal: it does not open with the keys that are held.
    """
    place: object = None
    async for line in lines_in(archive.read(name)):
        if _FOLLOWED in line:
            with suppress(InvalidMessage):
                entry = decode_entry(line)
                if isinstance(entry, Custom) and entry.custom_type == METADATA:
                    place = entry.data.get(FOLLOWED, place)
    return place


def _plain(file: Path) -> Iterator[bytes]:
    with file.open("rb") as data:
        yield from iter(partial(data.read, _PIECE_BYTES), b"")


def _opened(keys: KeyRing, file: Path) -> Iterator[bytes]:
    try:
        yield from opened_file(keys, file)
    except NotEncrypted:  # from before the workspace was encrypted
        yield from _plain(file)


async def encoded_lines(head: SessionHead, entries: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of an archived file: the header, and an entry each."""
    yield header_of(head).rstrip() + b"\n"
    async for entry in entries:
        yield entry + b"\n"


async def opened_entries(
    keys: KeyRing | None, head: SessionHead, entries: AsyncIterator[StoredEntry]
) -> AsyncIterator[bytes]:
    """Entries as they are stored; a damaged one stays damaged, and does not keep its session from expiring."""
    async for stored in entries:
        entry = stored if keys is None else open_entry(keys, head.session_id, stored)
        yield entry.encoded


async def in_pieces(blocks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in pieces of some size, so that a row of them is neither tiny nor huge."""
    held = bytearray()
    async for block in blocks:
        held += block
        if len(held) >= _PIECE_BYTES:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


async def sealed(keys: KeyRing | None, name: str, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The bytes to write: the lines, sealed if there are keys."""
    sealer = None if keys is None else PieceSealer(keys, name)
    async for line in lines:
        yield line if sealer is None else sealer.feed(line)
    if sealer is not None:
        yield sealer.finish()
