"""One transcript file: its session, its end, and the places of entries in it. Everything here blocks.

Opening reads the first line and the last append, and nothing between them. What a crash left behind the last whole
append was never acknowledged: it is not part of the transcript, and must be removed before anything is appended (rule
R15). Sequences ascend along the file, so an entry is found by bisection, without an index.

A sound line has its own sequence. A damaged line costs only itself: it is returned as `damaged`, with a sequence that
its neighbours leave free. A line whose sequence contradicts its neighbours' is damaged too.
"""

from __future__ import annotations

import enum
import os
import stat
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from threading import Lock
from typing import BinaryIO, NamedTuple, Self, TypeVar

from anyio import to_thread

from miniclaw_sessions.core.stores.base import SessionHead, StoredEntry
from miniclaw_sessions.core.stores.jsonl.lines import (
    GOES_ON,
    LONGEST_LINE,
    MORE_FOLLOWS,
    NotOurs,
    damaged_in,
    entry_in,
    head_in,
    head_of_damaged,
    is_whole,
    states_key,
)
from miniclaw_sessions.disk import FILE_MODE, Directory
from miniclaw_sessions.errors import StoreCorrupt, StoreUnavailable

SUFFIX = ".jsonl"

NEAR = 64 * 1024
"""The bisection ends within this many bytes of an entry: reading on is as fast."""

T = TypeVar("T")

_HEADER_BYTES = 64 * 1024  # channel and chat id have up to 4,096 bytes each, which JSON may make six times as long
_FIRST_BLOCK = 4 * 1024
_BLOCK = 64 * 1024
_SEARCHED_BYTES = 1024 * 1024


class Rest(enum.Enum):
    """What is in a file behind the last whole append."""

    NOTHING = enum.auto()
    TORN = enum.auto()
    """Left by a crash. It is evidence: copy it before the file is truncated."""
    OURS = enum.auto()
    """Written by us just now, and perhaps not durable. Our caller still has it."""


class Stamp(NamedTuple):
    """Device, inode, size and time of a file: they change when another program writes or replaces it."""

    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """The stamp for a file's status."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class Transcript:
    """The state of one file: `length` bytes of it are whole appends, and `last_sequence` is their newest entry.

    `last_id` is the id of that entry, if it can be read, and `stamp` the file's stamp after its last use. `resume` is
    where the latest page ended: the sequence of an entry, and the offset behind it.
    """

    __slots__ = (
        *("head", "header_lost", "last_id", "last_sequence", "length", "name", "rest", "resume", "stamp", "start"),
    )

    def __init__(self, head: SessionHead, *, start: int, length: int, last_sequence: int, last_id: str = "") -> None:
        self.head = head
        self.name = head.session_id + SUFFIX
        self.start = start
        self.length = length
        self.last_sequence = last_sequence
        self.last_id = last_id
        self.stamp: Stamp | None = None
        self.rest = Rest.NOTHING
        self.header_lost = False
        self.resume = (0, start)

    def was_left_as(self, found: Stamp) -> bool:
        """Whether the file that has its name now seems to be unchanged, by its stamp."""
        if self.rest is Rest.NOTHING:
            return found == self.stamp and found.size == self.length
        return self.stamp is not None and found.inode == self.stamp.inode and found.size >= self.length

    def __repr__(self) -> str:
        return f"<Transcript {self.name} up to {self.last_sequence}, {self.length} bytes>"


def examine(directory: Directory, session_id: str) -> Transcript:
    """Examine a session's file: its first line and its end. Changes nothing but a mode that lets others read it.

    Raises:
        FileNotFoundError: there is no file.
        NotRegular, NotOurs: the name belongs to a file that must be left alone.
        SchemaTooNew: a newer version of this program wrote it.
        StoreCorrupt: it is so damaged that its session, or its end, is not known.
        OSError: it cannot be read.
    """
    fd = directory.open_file(session_id + SUFFIX)
    try:
        transcript = examine_open(fd, session_id)
        if stat.S_IMODE(os.fstat(fd).st_mode) != FILE_MODE:
            os.fchmod(fd, FILE_MODE)
    finally:
        os.close(fd)
    return transcript


def examine_open(fd: int, session_id: str) -> Transcript:
    """`examine` for an open file; changes nothing at all.

    Raises:
        NotOurs, SchemaTooNew, StoreCorrupt, OSError: as for `examine`.
    """
    stamp = Stamp.of(os.fstat(fd))
    size = stamp.size
    head, start, header_lost = _head(fd, session_id)
    length, last_sequence, last_id = _end_of_last_append(fd, start, size)
    if header_lost and not last_sequence:
        raise StoreCorrupt("its first line is damaged, and no whole append is left to identify its session")
    if header_lost and length < size:  # made of what is cut off, it would be another one at the next start
        head, _, _ = _head(fd, session_id, within=length)
    transcript = Transcript(head, start=start, length=length, last_sequence=last_sequence, last_id=last_id)
    transcript.stamp = stamp
    transcript.header_lost = header_lost
    transcript.rest = Rest.TORN if size > length else Rest.NOTHING
    return transcript


def _head(fd: int, session_id: str, *, within: int = _HEADER_BYTES) -> tuple[SessionHead, int, bool]:
    """The session's head, the offset of its entries, and whether the first line is lost and the head made from them.

    Raises:
        NotOurs, SchemaTooNew: as for `examine`.
        StoreCorrupt: the first line is lost, and no entry among the first bytes, as many as `within`, is sound.
    """
    beginning = os.pread(fd, _FIRST_BLOCK, 0)
    if b"\n" not in beginning:
        beginning = os.pread(fd, _HEADER_BYTES, 0)
    start = beginning.find(b"\n") + 1
    try:
        return head_in(beginning[:start], session_id), start, False
    except NotOurs:
        raise
    except StoreCorrupt:
        *lines, _ = os.pread(fd, min(within, _HEADER_BYTES), 0).split(b"\n")
        entries = [entry_in(line) for line in lines]
        first = next((entry for entry in entries if entry is not None), None)
        if first is None:
            raise
        return head_of_damaged(lines[0], session_id, first), 0 if first is entries[0] else start, True


def _end_of_last_append(fd: int, start: int, size: int) -> tuple[int, int, str]:
    """The end of the last whole append, the sequence of its last entry (0: none), and its id if it is sound.

    Only the last append can be torn, because each one was synced before the next one began. Power cuts leave it without
    its end, or with holes of NULs, perhaps with whole lines behind them (rule R14). Other damage has other causes: it
    stays in the file, and costs only its own line, which counts as one entry.
    """
    length, last, last_id, damaged_lines = size, 0, "", 0
    goes_on = False
    for offset, line in lines_before(fd, start, size):
        entry = entry_in(line) if line.endswith(b"\n") else None
        if last == 0:
            if line.endswith(MORE_FOLLOWS) and not damaged_lines:
                length = offset
            elif entry is not None:
                last, last_id = entry.sequence + damaged_lines, "" if damaged_lines else entry.entry_id
            elif is_whole(line):
                damaged_lines += 1
            else:
                length, damaged_lines = offset, 0
        elif not (goes_on or line.endswith(MORE_FOLLOWS)):
            break
        elif b"\0" in line:
            length, last, last_id, damaged_lines = offset, 0, "", 0
        goes_on = line.startswith(GOES_ON)
    return length, last or damaged_lines, last_id


def lines_before(fd: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The lines between two offsets of a file, the last one first, each with the offset at which it begins.

    Raises:
        StoreCorrupt: a line is longer than any that we write.
    """
    position, held, step = end, b"", _FIRST_BLOCK
    while position > start:
        step = min(step, position - start)
        position -= step
        held = os.pread(fd, step, position) + held
        cut = len(held)
        while (newline := held.rfind(b"\n", 0, max(cut - 1, 0))) >= 0:
            yield position + newline + 1, held[newline + 1 : cut]
            cut = newline + 1
        held = held[:cut]
        if len(held) > LONGEST_LINE:
            raise StoreCorrupt(f"the line that ends at byte {position + len(held)} is longer than any that was written")
        step = max(_BLOCK, len(held))  # doubles inside a long line
    if held:
        yield start, held


# --- which entry stands where ---------------------------------------------------------------------------------------


class Placed(NamedTuple):
    """An entry, and the offset in the file at which the line after it begins."""

    entry: StoredEntry
    end: int


class _Damaged(NamedTuple):
    line: bytes
    end: int


class Placing:
    """Makes entries from the bytes of a file, from the beginning of a line on.

    `without_place` counts damaged lines whose neighbours leave no sequence free for them.
    """

    def __init__(self, offset: int, last: int) -> None:
        """Begin at an offset, behind the entry with the sequence `last` (0: before the first entry)."""
        self.without_place = 0
        self._offset = offset
        self._unfinished: list[bytes] = []
        self._unfinished_length = 0
        self._last = last
        self._before: list[_Damaged] = []  # damaged lines between `_last` and `_sound`
        self._sound: Placed | None = None  # waits for the next sound line, which must have a greater sequence
        self._after: list[_Damaged] = []  # damaged lines behind `_sound`

    def feed(self, block: bytes) -> list[Placed]:
        """Add bytes. Returns the entries that are certain now.

        Raises:
            StoreCorrupt: a line is longer than any that we write.
        """
        placed: list[Placed] = []
        *lines, rest = block.split(b"\n")
        for line in lines:
            if self._unfinished:
                line = b"".join((*self._unfinished, line))  # noqa: PLW2901 - the same line, whole
                self._unfinished.clear()
                self._unfinished_length = 0
            self._offset += len(line) + 1
            self._take(line, placed)
        if rest:
            self._unfinished.append(rest)
            self._unfinished_length += len(rest)
            if self._unfinished_length > LONGEST_LINE:
                raise StoreCorrupt(f"the line at byte {self._offset} is longer than any that was written")
        return placed

    def finish(self, last_sequence: int) -> list[Placed]:
        """End the file. Returns the last entries, up to this sequence."""
        placed: list[Placed] = []
        self._accept_sound(placed)
        self._place_damaged(placed, last_sequence + 1)
        return placed

    def _take(self, line: bytes, placed: list[Placed]) -> None:
        entry = entry_in(line)
        waiting = self._sound.entry.sequence if self._sound is not None else self._last
        if entry is not None and entry.sequence > waiting:
            self._accept_sound(placed)
            self._sound = Placed(entry, self._offset)
        elif entry is None or entry.sequence <= self._last or waiting == self._last + 1:
            if line.strip():
                self._after.append(_Damaged(line, self._offset))
        else:  # the waiting line left a gap, and this one would be in order: the waiting one has a wrong sequence
            assert self._sound is not None  # noqa: S101 - or `waiting` would be `_last`
            self._before += [_Damaged(self._sound.entry.encoded, self._sound.end), *self._after]
            self._sound, self._after = Placed(entry, self._offset), []

    def _accept_sound(self, placed: list[Placed]) -> None:
        """Return the waiting entry, and before it the damaged lines for which a sequence is free."""
        if self._sound is not None:
            self._place_damaged(placed, self._sound.entry.sequence)
            placed.append(self._sound)
            self._last = self._sound.entry.sequence
            self._sound = None
        self._before, self._after = [*self._before, *self._after], []

    def _place_damaged(self, placed: list[Placed], before: int) -> None:
        places = range(self._last + 1, before)
        for sequence, one in zip(places, self._before, strict=False):
            placed.append(Placed(damaged_in(one.line, sequence), one.end))
        self.without_place += max(0, len(self._before) - len(places))
        self._before = []


# --- where an entry stands -------------------------------------------------------------------------------------------


def place_of(fd: int, transcript: Transcript, number: int) -> tuple[int, int]:
    """Where to begin reading for the entries after the sequence `number`: an offset, and the sequence before it."""
    if number <= 0:
        return transcript.start, 0
    resumed, offset = transcript.resume
    if resumed == number:
        return offset, number
    low, high = transcript.start, transcript.length
    with os.fdopen(fd, "rb", closefd=False) as file:
        while high - low > NEAR:
            middle = (low + high) // 2
            found = _first_sound_line(file, middle, high)
            if found is None or found[1] > number:
                high = middle
            else:
                low = found[0]
    return _begin_before(fd, transcript, high, lambda sequence: sequence <= number)


def place_of_newest(fd: int, transcript: Transcript, number: int) -> tuple[int, int]:
    """Where to begin reading for the newest `number` entries: an offset, and the sequence before it."""
    counted = count(1)
    return _begin_before(fd, transcript, transcript.length, lambda _: next(counted) >= number)


def _first_sound_line(file: BinaryIO, offset: int, end: int) -> tuple[int, int] | None:
    """The first sound line that begins between two offsets: its offset, and its sequence."""
    file.seek(offset)
    begin = offset + len(file.readline(LONGEST_LINE))
    while begin < end and (line := file.readline(LONGEST_LINE)):
        if (entry := entry_in(line)) is not None:
            return begin, entry.sequence
        begin += len(line)
    return None


def _begin_before(fd: int, transcript: Transcript, end: int, is_early_enough: Callable[[int], bool]) -> tuple[int, int]:
    """The last line before an offset at which reading may begin: its offset, and the sequence before its own.

    Its sequence must agree with its neighbours': after a wrong one, all following lines would be misjudged.
    """
    lowest = sys.maxsize
    chosen: tuple[int, int] | None = None
    for offset, line in lines_before(fd, transcript.start, end):
        if (entry := entry_in(line)) is None:
            continue
        if chosen is not None and entry.sequence <= chosen[1]:
            return chosen
        chosen = None
        if entry.sequence < lowest:
            lowest = entry.sequence
            if is_early_enough(lowest):
                chosen = offset, lowest - 1
    return transcript.start, 0


def entry_with_key(fd: int, transcript: Transcript, key: str) -> StoredEntry | None:
    """The first entry with this idempotency key, or None; searches the bytes of the file, about 1 ms for each MB."""
    needle = states_key(key)
    offset, held = transcript.start, b""
    while offset < transcript.length:
        block = os.pread(fd, min(_SEARCHED_BYTES, transcript.length - offset), offset)
        if not block:
            return None
        held += block
        offset += len(block)
        begin = 0
        while (hit := held.find(needle, begin)) >= 0:
            line = _line_around(fd, transcript, offset - len(held) + hit)
            entry = entry_in(line)
            if entry is not None and entry.idempotency_key == key:
                return entry
            begin = hit + 1
        held = held[-len(needle) :]
    return None


def _line_around(fd: int, transcript: Transcript, offset: int) -> bytes:
    begin = next(iter(lines_before(fd, transcript.start, offset)), (offset, b""))[0]
    with os.fdopen(fd, "rb", closefd=False) as file:
        file.seek(begin)
        return file.readline(LONGEST_LINE)


def entries_after(fd: int, transcript: Transcript, after: int) -> Iterator[StoredEntry]:
    """The entries after a sequence, read in blocks."""
    offset, last = place_of(fd, transcript, after)
    placing = Placing(offset, last)
    while offset < transcript.length:
        block = os.pread(fd, min(_BLOCK, transcript.length - offset), offset)
        if not block:
            raise has_become_shorter(transcript)
        offset += len(block)
        yield from (placed.entry for placed in placing.feed(block) if placed.entry.sequence > after)
    yield from (placed.entry for placed in placing.finish(transcript.last_sequence) if placed.entry.sequence > after)


def has_become_shorter(transcript: Transcript) -> StoreUnavailable:
    """The error for a file that became shorter while it was read."""
    return StoreUnavailable(
        f"cannot read {transcript.name} to its end: another program has made it shorter; try again later"
    )


# --- reading without holding up the event loop -----------------------------------------------------------------------

STREAMED_BYTES = 128 * 1024
"""The size of a block: some 300 messages, which take the event loop less than a millisecond."""

Open = Callable[[], tuple[int, Transcript] | None]
"""Opens a transcript for reading; returns None if it is missing."""

Find = Callable[[int, Transcript], tuple[int, int]]
"""Finds where to begin in an open file: an offset, and the sequence of the entry before it."""


class Stream:
    """Iterates over lists of entries, one list for each block of the file.

    Each step runs in a worker thread. If a cancellation leaves a step behind, that step closes the file at its end.

    Attributes:
        placing: after the iteration, has the number of damaged lines without a free sequence.
    """

    transcript: Transcript
    placing: Placing

    def __init__(self) -> None:
        self._fd = -1
        self._offset = 0
        self._is_finished = self._is_closed = False
        self._in_use = Lock()

    async def open(self, open_transcript: Open, find: Find) -> bool:
        """Open the file and find where to begin. Returns False if there is no such transcript.

        Raises:
            OSError: it cannot be opened or read.
            StoreCorrupt: it has no end of a line.
        """
        return await to_thread.run_sync(self._step, partial(self._open, open_transcript, find))

    def close(self) -> None:
        """Close the file, or let the running step close it."""
        self._is_closed = True
        self._close_unused()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Placed]:
        if self._offset < self.transcript.length:
            return self.placing.feed(await to_thread.run_sync(self._step, self._read))
        if self._is_finished:
            raise StopAsyncIteration
        self._is_finished = True
        return self.placing.finish(self.transcript.last_sequence)

    def _step(self, step: Callable[[], T]) -> T:
        try:
            with self._in_use:
                return step()
        finally:
            self._close_unused()

    def _open(self, open_transcript: Open, find: Find) -> bool:
        if (found := open_transcript()) is None:
            return False
        self._fd, self.transcript = found
        self._offset, last = find(*found)
        self.placing = Placing(self._offset, last)
        return True

    def _read(self) -> bytes:
        block = os.pread(self._fd, min(STREAMED_BYTES, self.transcript.length - self._offset), self._offset)
        if not block:
            raise has_become_shorter(self.transcript)
        self._offset += len(block)
        return block

    def _close_unused(self) -> None:
        if self._is_closed and self._in_use.acquire(blocking=False):
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)
            self._in_use.release()
