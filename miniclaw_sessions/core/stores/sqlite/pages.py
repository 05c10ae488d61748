"""The rows in the leaf pages of a database file, read without the pages that lead to them.

One damaged page in the middle of a table's tree would cost all rows below it. The rows found here may be garbage: the
caller checks their checksums. The format: https://sqlite.org/fileformat2.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from miniclaw_sessions.core.stores.sqlite.files import PAGE_BYTES, database_files

_LEAF_OF_TABLE = 0x0D
_MOST_IN_LEAF = PAGE_BYTES - 35
_LEAST_IN_LEAF = (PAGE_BYTES - 12) * 32 // 255 - 23
_IN_OVERFLOW = PAGE_BYTES - 4
_FIRST_PAGE_HEADER = 100
_INTEGER_BYTES = (0, 1, 2, 3, 4, 6, 8)
_FLOAT, _ZERO, _ONE, _FIRST_BLOB = 7, 8, 9, 12

Row = tuple[int | str | bytes | None, ...]


class Pages:
    """A database file with our page size, read only; a context manager.

    Attributes:
        are_up_to_date: whether the database has no log that may hold other rows, or deletions of these.
    """

    def __init__(self, path: Path) -> None:
        log = database_files(path)[1]
        self.are_up_to_date = not log.exists() or not log.stat().st_size
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._data.close()

    def cells(self) -> Iterator[int]:
        """The offsets in the file at which rows may begin, of any table."""
        for page in range(0, len(self._data) - PAGE_BYTES + 1, PAGE_BYTES):
            begin = page or _FIRST_PAGE_HEADER
            if self._data[begin] == _LEAF_OF_TABLE:
                count = min(self._number(begin + 3, 2), PAGE_BYTES // 4)
                yield from (page + self._number(begin + 8 + 2 * cell, 2) % PAGE_BYTES for cell in range(count))

    def row(self, cell: int) -> Row:
        """The number of a row, and its columns without the first, which is the number.

        Raises:
            ValueError, IndexError: there is no row.
        """
        size, place = self._varint(self._data, cell)
        number, place = self._varint(self._data, place)
        payload = self._payload(place, size)
        end, place = self._varint(payload, 0)
        kinds = []
        while place < end:
            kind, place = self._varint(payload, place)
            kinds.append(kind)
        values: list[int | str | bytes | None] = []
        for kind in kinds:
            value, place = _value(kind, payload, place)
            values.append(value)
        if place != len(payload):
            raise ValueError("it is no record")
        return (number, *values[1:])

    def _payload(self, place: int, size: int) -> bytes:
        """The bytes of a record, including those in overflow pages."""
        here = size
        if size > _MOST_IN_LEAF:
            here = _LEAST_IN_LEAF + (size - _LEAST_IN_LEAF) % _IN_OVERFLOW
            here = here if here <= _MOST_IN_LEAF else _LEAST_IN_LEAF
        payload = bytearray(self._data[place : place + here])
        following = self._number(place + here, 4) if here < size else 0
        while following and len(payload) < size:
            page = (following - 1) * PAGE_BYTES
            payload += self._data[page + 4 : page + 4 + min(_IN_OVERFLOW, size - len(payload))]
            following = self._number(page, 4)
        if len(payload) != size:
            raise ValueError("it goes on where nothing is")
        return bytes(payload)

    def _number(self, place: int, length: int) -> int:
        return int.from_bytes(self._data[place : place + length], "big")

    @staticmethod
    def _varint(data: bytes | mmap.mmap, place: int) -> tuple[int, int]:
        value = 0
        for byte in range(8):
            value = value << 7 | data[place + byte] & 0x7F
            if data[place + byte] < 0x80:  # noqa: PLR2004 - the last byte has no eighth bit
                return value, place + byte + 1
        return value << 8 | data[place + 8], place + 9


def _value(kind: int, payload: bytes, place: int) -> tuple[int | str | bytes | None, int]:
    """The value of this kind at a place, and the place behind it; a number with a fraction is not decoded."""
    if kind >= _FIRST_BLOB:
        end = place + (kind - _FIRST_BLOB) // 2
        return (payload[place:end].decode() if kind % 2 else payload[place:end]), end
    if kind in {_ZERO, _ONE}:
        return kind - _ZERO, place
    if kind == _FLOAT:
        return None, place + 8
    end = place + (_INTEGER_BYTES[kind] if kind < len(_INTEGER_BYTES) else 0)
    return (int.from_bytes(payload[place:end], "big", signed=True) if 0 < kind < _FLOAT else None), end
