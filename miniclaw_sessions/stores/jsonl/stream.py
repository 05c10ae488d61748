"""One transcript's file, read from some entry on, a block at a time, without holding up the event loop."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Self

import aiofiles
from aiofiles.threadpool.binary import AsyncBufferedReader
from anyio import CancelScope

from miniclaw_sessions.errors import StoreCorrupt
from miniclaw_sessions.stores.jsonl.file import Transcript
from miniclaw_sessions.stores.jsonl.placing import Placed, Placing

BLOCK = 128 * 1024
"""Bytes that are read at a time: some 300 messages, which take the event loop less than a millisecond."""

Open = Callable[[str, int], int]
"""Opens a file for reading by name and flags; returns its descriptor."""

Find = Callable[[int], tuple[int, int]]
"""Finds where to begin in a file that is open: an offset, and the sequence of the entry before it."""


class Stream:
    """Iterates over lists of entries, each as they come with one block of the file.

    `placing` tells, when the iteration is over, how many lines there was no place for.
    """

    placing: Placing
    _file: AsyncBufferedReader

    def __init__(self, transcript: Transcript, find: Find) -> None:
        self.transcript = transcript
        self._find = find
        self._left = 0
        self._is_finished = False

    async def open(self, open_file: Open) -> None:
        """Open the file and find the place, in one call of a worker thread.

        Raises:
            OSError: it cannot be opened or read.
            StoreCorrupt: no end of a line is found in it.
        """

        def open_at_place(name: str, flags: int) -> int:
            fd = open_file(name, flags)
            try:
                offset, last = self._find(fd)
                os.lseek(fd, offset, os.SEEK_SET)
            except BaseException:
                os.close(fd)
                raise
            self.placing = Placing(offset, last)
            self._left = self.transcript.length - offset
            return fd

        with CancelScope(shield=True):  # or nobody would close it
            self._file = await aiofiles.open(self.transcript.name, "rb", opener=open_at_place)

    async def close(self) -> None:
        """Close the file; waits for a read that a cancelled caller has left running."""
        with CancelScope(shield=True):
            await self._file.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Placed]:
        if self._left > 0:
            block = await self._file.read(min(BLOCK, self._left))
            if not block:
                raise StoreCorrupt(f"{self.transcript.name} has become shorter; another program has written it")
            self._left -= len(block)
            return self.placing.feed(block)
        if self._is_finished:
            raise StopAsyncIteration
        self._is_finished = True
        return self.placing.finish()
