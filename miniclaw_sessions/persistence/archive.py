"""Where expired sessions go before they are deleted: a JSON Lines file each, a header and every entry.

The file is streamed, so that a long transcript never has to fit in memory, and is durable before anything is deleted.
It has the form of a transcript of the store `jsonl:`, which the format `jsonl` reads: so a session comes back.
With keys it is encrypted, in pieces; `miniclaw-sessions decrypt` reads it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

from anyio import to_thread

from miniclaw_sessions.disk import Directory
from miniclaw_sessions.encryption import KeyRing, PieceSealer
from miniclaw_sessions.errors import NotEncrypted, StoreUnavailable
from miniclaw_sessions.persistence.whole_files import opened_file
from miniclaw_sessions.stores.base import SessionHead
from miniclaw_sessions.stores.jsonl.lines import header_of

SUFFIX = ".jsonl"
_PIECE_BYTES = 1 << 18


class Archive:
    """The directory of expired sessions."""

    def __init__(self, path: Path, encryption: KeyRing | None = None) -> None:
        self.path = path
        self._encryption = encryption
        self._known: dict[str, set[str]] | None = None  # by session id; read when it is first asked for

    def __repr__(self) -> str:
        return f"<Archive {self.path}>"

    async def write(self, head: SessionHead, entries: AsyncIterator[bytes], at: datetime) -> Path:
        """Write a session's entries to a file of their own, durably. Returns the file's path.

        Raises:
            OSError: it could not be written; no file is left.
        """
        import aiofiles  # noqa: PLC0415 - only sweeping needs it, and importing this package must stay light

        directory = await to_thread.run_sync(Directory, self.path)
        try:
            temporary, fd = await to_thread.run_sync(directory.open_temporary)
            name = f"{at:%Y%m%dT%H%M%S.%fZ}-{head.session_id}{SUFFIX}"
            try:
                async with aiofiles.open(fd, "wb", closefd=False) as file:
                    async for block in _sealed(self._encryption, name, _lines(head, entries)):
                        await file.write(block)
                await to_thread.run_sync(partial(directory.publish, temporary, fd, name))
            except BaseException:
                directory.discard(temporary)
                raise
            finally:
                os.close(fd)
        finally:
            directory.close()
        if self._known is not None:
            self._known.setdefault(head.session_id, set()).add(name)
        return self.path / name

    async def has(self, session_id: str) -> bool:
        """True if an archived file of the session is here. Looks into the directory the first time only.

        Raises:
            StoreUnavailable: the directory cannot be listed.
        """
        return session_id in await self._names()

    async def newest(self, session_id: str) -> Path | None:
        """The newest archived file of a session, or None if there is none. Raises as `has`."""
        names = (await self._names()).get(session_id)
        return self.path / max(names) if names else None

    async def session_ids(self) -> list[str]:
        """The sessions that have an archived file, in order. Raises as `has`."""
        return sorted(await self._names())

    async def forget(self, session_id: str, *, anew: bool = False) -> int:
        """Delete all archived files of a session, durably. Returns how many there were.

        Args:
            session_id: which session.
            anew: look into the directory again; somebody else may have put one there.

        Raises:
            StoreUnavailable: one cannot be deleted.
        """
        if anew:
            self._known = None
        names = (await self._names()).pop(session_id, ())
        return await self._remove(names) if names else 0

    async def delete(self, file: Path) -> None:
        """Delete one archived file, durably. Raises as `forget`."""
        known = await self._names()
        session_id = _session_id(file.name)
        if left := known.get(session_id, set()) - {file.name}:
            known[session_id] = left
        else:
            known.pop(session_id, None)
        await self._remove([file.name])

    async def _names(self) -> dict[str, set[str]]:
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
                found.setdefault(_session_id(name), set()).add(name)
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

    async def read(self, file: Path) -> AsyncIterator[bytes]:
        """The content of an archived file, decrypted, piece by piece.

        Raises:
            StoreUnavailable: it cannot be read.
            WrongKey, DamagedSeal: it does not open with the keys that are held.
        """
        try:
            pieces = await to_thread.run_sync(self._pieces, file)
            while (piece := await to_thread.run_sync(next, pieces, None)) is not None:
                yield piece
        except OSError as error:
            raise StoreUnavailable(f"cannot read the archived session {file}: {error.strerror}") from error

    def _pieces(self, file: Path) -> Iterator[bytes]:
        if self._encryption is not None:
            return _opened(self._encryption, file)
        return _plain(file)


def _session_id(name: str) -> str:
    return name.removesuffix(SUFFIX).partition("-")[2]


def _plain(file: Path) -> Iterator[bytes]:
    with file.open("rb") as data:
        yield from iter(partial(data.read, _PIECE_BYTES), b"")


def _opened(keys: KeyRing, file: Path) -> Iterator[bytes]:
    try:
        yield from opened_file(keys, file)
    except NotEncrypted:  # from before the workspace was encrypted
        yield from _plain(file)


async def _lines(head: SessionHead, entries: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield header_of(head).rstrip() + b"\n"
    async for entry in entries:
        yield entry + b"\n"


async def _sealed(keys: KeyRing | None, name: str, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """What is to be written: the lines, or what becomes of them."""
    sealer = None if keys is None else PieceSealer(keys, name)
    async for line in lines:
        yield line if sealer is None else sealer.feed(line)
    if sealer is not None:
        yield sealer.finish()
