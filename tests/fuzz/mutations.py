"""Damage: what disks, editors, other programs and strangers do to bytes, chosen by a random generator.

`damaged` does a few things at once: to the bytes, to the lines, and, where the bytes are JSON, at random places of it.
The same generator state gives the same damage. Hypothesis can be that generator, and then makes a failure small.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

LONGEST = 65_536
"""Bytes. Damage that makes more of a case is cut off: size is the business of other tests."""

_GENTLY = 0.4
"""Of so many cases only one value is another: damage that is refused at once does not reach far."""

TOKENS: tuple[bytes, ...] = (
    *(b"\0", b"\0" * 512, b"\n", b"\r\n", b"\xef\xbb\xbf", b"\xff\xfe", b"\xff", b"\x80", b"\xc0\xaf", b"\xe2\x82"),
    *(b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\\ud800", b"\\udc00\\ud800", b"\\u0000", b"\xe2\x80\xa8", b"\xc2\x85"),
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"[" * 100, b"]" * 100, b'{"a":' * 100, b"[" * 2000, b"null"),
    *(b"-0", b"1e400", b"-1e400", b"1e-400", b"NaN", b"Infinity", b"9" * 19, b"9" * 20, b"9" * 400, b"0.1", b"true"),
    *(b"__proto__", b"../x", b"/x", b"%00", b"%2F", b"%", b"<0>", b"{}%s{0}", b"\x1b[31m", b"=", b"#", b"'''", b"~"),
)

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, -0.0, 1e308, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, -(2**63)),
    *("", " ", "x", "null", "x" * 300, "\ufeff", "\u0000", "\u2028", "é", "e\u0301", "😀", "a\nb", "<0>x", "../x", "~"),
    *("user", "assistant", "tool", "system", "message", "session", "compaction", "2026-13-01", "0000-01-01T00:00:00Z"),
    *("9999-12-31T23:59:59.999999999Z", "1969-12-31T23:59:59-23:59", [], {}, [[]], [{}], [None], {"": ""}, [1, "x"]),
    *({"type": "text"}, {"type": "text", "text": 1}, {"role": "user"}, {"id": None}, "\ud800"),
)
_LITERALS = ("1e400", "-1e400", "NaN", "Infinity", "9" * 400, "-0", "1e-400", "01", "[" * 100 + "]" * 100)

Damage = Callable[[Random, bytes, Sequence[bytes]], bytes]


def damaged(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """The bytes after one to four accidents; `others` are what pieces may come from."""
    if random.random() < _GENTLY:
        return _change_json(random, data, others)[:LONGEST]
    for _ in range(random.choice((1, 1, 2, 3, 4))):
        data = random.choice(_DAMAGES)(random, data, others)[:LONGEST]
    return data


def cut_at(data: Sequence[bytes], number: int) -> bytes:
    """All of the data, truncated at each of its offsets in turn: what comes at this number."""
    number %= sum(len(one) + 1 for one in data)
    for one in data:
        if number <= len(one):
            return one[:number]
        number -= len(one) + 1
    raise AssertionError("the number is below the sum")


# --- bytes -----------------------------------------------------------------------------------------------------------


def _span(random: Random, data: bytes) -> tuple[int, int]:
    start = random.randint(0, len(data))
    return start, min(len(data), start + random.choice((1, 2, 8, 64, 1000)))


def _flip(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    flipped = bytearray(data)
    for _time in range(random.choice((1, 1, 2, 8)) if data else 0):
        flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
    return bytes(flipped)


def _truncate(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data[: random.randint(0, len(data))]


def _behead(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data[random.randint(0, len(data)) :]


def _cut_out(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(random, data)
    return data[:start] + data[end:]


def _repeat(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(random, data)
    return data[:end] + data[start:end] * random.choice((1, 2, 50)) + data[end:]


def _splice(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = random.choice(others)
    return data[: random.randint(0, len(data))] + other[random.randint(0, len(other)) :]


def _append(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    return data + random.choice(others)


def _put_nuls(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(random, data)
    return data[:start] + bytes(end - start) + data[end:]


def _put_token(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(random, data)
    return data[:start] + random.choice(TOKENS) + data[random.choice((start, end)) :]


def _put_noise(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, _end = _span(random, data)
    return data[:start] + bytes(random.randrange(256) for _ in range(random.choice((1, 3, 20)))) + data[start:]


# --- lines -----------------------------------------------------------------------------------------------------------


def _lose_line(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    lines = data.splitlines(keepends=True)
    if lines:
        lines.pop(random.randrange(len(lines)))
    return b"".join(lines)


def _repeat_line(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    lines = data.splitlines(keepends=True)
    source = random.choice((data, random.choice(others))).splitlines(keepends=True)
    if source:
        lines.insert(random.randint(0, len(lines)), random.choice(source))
    return b"".join(lines)


def _swap_lines(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    lines = data.splitlines(keepends=True)
    if lines:
        lines.insert(random.randint(0, len(lines) - 1), lines.pop(random.randrange(len(lines))))
    return b"".join(lines)


# --- JSON ------------------------------------------------------------------------------------------------------------


def _change_json(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """The document, or one line of it, with something else at one place; other bytes when it is no JSON."""
    lines = data.split(b"\n")
    number = random.randrange(len(lines))
    for piece, around in ((data, (b"", b"")), (lines[number], _around(lines, number))):
        try:
            document = json.loads(piece)
        except (ValueError, RecursionError):
            continue
        return around[0] + _changed(random, document) + around[1]
    return _put_token(random, data, ())


def _around(lines: Sequence[bytes], number: int) -> tuple[bytes, bytes]:
    before = b"".join(line + b"\n" for line in lines[:number])
    return before, b"".join(b"\n" + line for line in lines[number + 1 :])


def _changed(random: Random, document: Any) -> bytes:
    root = [document]
    holder, key = random.choice(list(_places(root)))
    mark = "fuzz:literal"
    how = random.randrange(8)
    if how <= 2:
        holder[key] = random.choice(_VALUES)
    elif how == 3:
        holder[key] = mark
    elif how == 4:
        holder[key] = random.choice(([holder[key]], {"x": holder[key]}, [holder[key]] * 3, str(holder[key])[:1000]))
    elif how == 5:
        other, place = random.choice(list(_places(root)))
        holder[key] = json.loads(json.dumps(other[place]))
    elif isinstance(holder, dict):
        value = holder.pop(key)
        if how == 7:
            holder[random.choice((key + "x", "", "id", "type", "role", "content"))] = value
    elif holder is not root:
        holder.insert(key, random.choice(_VALUES))
    text = json.dumps(root[0], ensure_ascii=random.random() < 0.5, separators=random.choice(((",", ":"), (", ", ": "))))
    text = text.replace(f'"{mark}"', random.choice(_LITERALS))
    return text.encode("utf-8", "surrogatepass")


def _repeat_key(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """Some JSON object with one of its simple members twice."""
    members = list(re.finditer(rb'"\w+"\s*:\s*(?:"[^"\\]*"|\d+|null|true|false),', data))
    if not members:
        return data
    member = random.choice(members)
    return data[: member.start()] + member[0] + data[member.start() :]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a document, as its holder and its key or index in it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)


_DAMAGES: tuple[Damage, ...] = (
    *(_flip, _truncate, _behead, _cut_out, _repeat, _splice, _append, _put_nuls, _put_token, _put_token, _put_noise),
    *(_lose_line, _repeat_line, _swap_lines, _repeat_key),
    *(_change_json,) * 8,
)
