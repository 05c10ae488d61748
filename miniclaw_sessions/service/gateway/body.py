"""Request bodies: bounded, on time, and strict JSON (rules S8-S12).

What passes can be stored and read back equal. Refused are: too many bytes, too many elements, too deep nesting,
anything that is not UTF-8, a byte order mark, duplicate keys, NaN, infinities, numbers that no 64-bit integer or double
holds, and lone surrogates. Each of these is silently altered by one JSON parser or another.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any, NoReturn

import anyio
import orjson

from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.gateway.exchange import ClientGone, Exchange

MAX_DEPTH = 32
"""Levels of nesting; the interpreter's own limit differs between its versions."""

MAX_ELEMENTS = 100_000
"""Objects, lists and commas; three bytes of `{}` and a comma cost 70 bytes of memory each."""

MIN_RATE = 256
"""Bytes per second that a client must send of a long body while it is waited for."""

_MAX_INTEGER_DIGITS = 20
_DRAIN_S = 1.0
_DRAIN_FACTOR = 4
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{},"))


async def read_body(exchange: Exchange, *, limit: int) -> bytes:
    """The whole body, at most `limit` bytes.

    Raises:
        RequestError: it is too long (413).
        ClientGone: it did not come to its end.
    """
    chunks = exchange.pieces()
    declared = exchange.header(b"content-length")
    body = None if declared.isdigit() and int(declared) > limit else await _collect(chunks, limit)
    if body is None:
        if not exchange.header(b"expect"):  # a client that asked first is told without sending it
            await drain(chunks, most=limit * _DRAIN_FACTOR)
        raise RequestError(413, "body_too_large", f"the body is longer than {limit} bytes", close=True)
    return body


async def _collect(chunks: AsyncIterator[bytes], limit: int) -> bytes | None:
    """The body, or None as soon as it is longer than `limit`."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limit:
            return None
    return bytes(body)


async def body_pieces(exchange: Exchange, *, stall_s: float) -> AsyncGenerator[bytes, None]:
    """A body of any size, piece by piece: none is taken before the one before it was worked on.

    A client that is faster than that is slowed down by its own connection.

    Args:
        exchange: whose body it is.
        stall_s: how long a piece is waited for. After as long in sum, a client that was slower than `MIN_RATE` is
            given up, too: a few that send a byte now and then would keep all others out.

    Raises:
        RequestError: nothing, or too little, came for `stall_s` seconds, though it was waited for (408).
        ClientGone: it did not come to its end.
    """
    chunks = exchange.pieces()
    received, waited_s = 0, 0.0
    while True:
        begun = anyio.current_time()
        piece = None
        with anyio.move_on_after(stall_s) as patience:
            piece = await anext(chunks, None)
        waited_s += anyio.current_time() - begun
        if patience.cancelled_caught or (waited_s > stall_s and received < MIN_RATE * waited_s):
            raise RequestError(408, "timeout", f"too little of the body came in {waited_s:.3g} s", close=True)
        if piece is None:
            return
        received += len(piece)
        yield piece


async def drain(chunks: AsyncIterator[bytes], *, most: int) -> None:
    """Read on for a moment: a client that is still sending when the connection closes never sees the reply.

    Args:
        chunks: what is left of the body.
        most: how many bytes are read at most.
    """
    with suppress(RequestError, ClientGone), anyio.move_on_after(_DRAIN_S):
        async for chunk in chunks:
            most -= len(chunk)
            if most < 0:
                return


def parse_strictly(body: bytes) -> Any:
    """JSON from a stranger, as dicts and lists.

    Raises:
        RequestError: it is not strict JSON (400); the text says which rule it breaks and where.
    """
    if not body:
        _refuse("the body is empty; send JSON")
    _check_structure(body)
    try:
        text = body.decode("utf-8")
        parsed = _decoder.decode(text)
        if b"\\u" in body:
            orjson.loads(body)  # refuses lone surrogates, which the standard library lets through
    except UnicodeDecodeError as error:
        _refuse(f"the body is not UTF-8 (byte {error.start})")
    except ValueError as error:  # both parsers' errors; their text holds positions, not content
        _refuse(f"the body is not valid JSON: {error}")
    except RecursionError:
        _refuse(f"the JSON nests deeper than {MAX_DEPTH} levels")
    return parsed


def _check_structure(body: bytes) -> None:
    """Count elements and levels outside of strings, without parsing: a bomb is refused before it goes off."""
    if body.count(b"[") + body.count(b"{") + body.count(b",") <= MAX_DEPTH:
        return  # cannot be too deep or too many
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    structure = b"".join(unescaped.split(b'"')[::2]).translate(None, _NOT_STRUCTURE)
    if len(structure) - structure.count(b"]") - structure.count(b"}") > MAX_ELEMENTS:
        _refuse(f"the JSON has more than {MAX_ELEMENTS} elements; send it in parts")
    depth = 0
    for byte in structure.replace(b",", b""):
        depth += 1 if byte in b"[{" else -1
        if depth > MAX_DEPTH:
            _refuse(f"the JSON nests deeper than {MAX_DEPTH} levels")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        _refuse("the JSON names a key twice in one object")
    return fields


def _integer(digits: str) -> int:
    number = int(digits) if len(digits) <= _MAX_INTEGER_DIGITS else 2**64
    if not -(2**63) <= number < 2**64:
        _refuse("the JSON holds an integer that does not fit in 64 bits; send it as a string")
    return number


def _number(digits: str) -> float:
    number = float(digits)
    vanished = number == 0 and digits.lower().partition("e")[0].strip("-0.") != ""
    if vanished or not math.isfinite(number):
        _refuse("the JSON holds a number that a 64-bit float cannot hold; send it as a string")
    return number


def _constant(name: str) -> NoReturn:
    _refuse(f"the JSON holds {name}, which is not JSON")


def _refuse(message: str) -> NoReturn:
    raise RequestError(400, "invalid_json", message, param="body")


_decoder = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_number, parse_constant=_constant
)
