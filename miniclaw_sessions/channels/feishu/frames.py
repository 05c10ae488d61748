"""The frames of Feishu's long connection: one message of Protocol Buffers, version 2, with few and fixed fields.

Feishu publishes the format only with its libraries. Its own for Python loads 11,000 modules before the first frame can
be read, so the fields are read and written here. A test compares every frame with what `protobuf` itself makes of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

CONTROL = 0
"""The `method` of a frame that keeps the connection alive: `type` among its headers is `ping` or `pong`."""

DATA = 1
"""The `method` of a frame that holds an event or a callback, and of the reply to it."""

_MASK = 2**64 - 1
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_FIXED = {_FIXED_64: 8, _FIXED_32: 4}
_LONGEST_VARINT = 10  # bytes
_MOST_UNFINISHED = 32  # events of which some parts have come
_SEQUENCE, _LOG, _SERVICE, _METHOD, _HEADER, _ENCODING, _KIND, _PAYLOAD, _NEW_LOG = range(1, 10)
_KEY, _VALUE = 1, 2


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One frame.

    Attributes:
        method: `CONTROL` or `DATA`.
        service: which of Feishu's services it is of; the endpoint's address names it.
        headers: such as `type` and `message_id`.
        payload: JSON; of an event that comes in several frames, a part of it.
        sequence: its number, which a reply repeats, as it does the fields below.
        log_id: for Feishu's own records.
        encoding: of the payload; empty: as it is.
        payload_type: of the payload.
        new_log_id: for Feishu's own records.
    """

    method: int
    service: int = 0
    headers: Mapping[str, str] = {}
    payload: bytes = b""
    sequence: int = 0
    log_id: int = 0
    encoding: str = ""
    payload_type: str = ""
    new_log_id: str = ""


class Parts:
    """Puts together the events that come in several frames."""

    def __init__(self) -> None:
        self._known: dict[str, dict[int, bytes]] = {}

    def whole(self, frame: Frame) -> Frame | None:
        """The frame with all of its event, once the last part has come; None: there are more to come.

        Raises:
            ValueError: its headers are none of an event.
        """
        count, number = int(frame.headers.get("sum", "1")), int(frame.headers.get("seq", "0"))
        if count <= 1:
            return frame
        name = frame.headers.get("message_id", "")
        parts = self._known.setdefault(name, {})
        parts[number] = frame.payload
        if len(parts) < count:
            while len(self._known) > _MOST_UNFINISHED:
                del self._known[next(iter(self._known))]
            return None
        del self._known[name]
        return msgspec.structs.replace(frame, payload=b"".join(parts[place] for place in sorted(parts)))


def encode(frame: Frame) -> bytes:
    """A frame's bytes."""
    numbers = {_SEQUENCE: frame.sequence, _LOG: frame.log_id, _SERVICE: frame.service, _METHOD: frame.method}
    parts = [_varint(field << 3 | _VARINT) + _varint(number & _MASK) for field, number in numbers.items()]
    for key, value in frame.headers.items():
        parts.append(_sized(_HEADER, _sized(_KEY, key.encode()) + _sized(_VALUE, value.encode())))
    texts = {_ENCODING: frame.encoding, _KIND: frame.payload_type}
    parts += [_sized(field, text.encode()) for field, text in texts.items() if text]
    parts += [_sized(_PAYLOAD, frame.payload)] if frame.payload else []
    parts += [_sized(_NEW_LOG, frame.new_log_id.encode())] if frame.new_log_id else []
    return b"".join(parts)


def decode(data: bytes) -> Frame:
    """The frame in these bytes; fields that are not known are passed over.

    Raises:
        ValueError: they are no frame.
    """
    numbers: dict[int, int] = {}
    texts: dict[int, bytes] = {}
    headers: dict[str, str] = {}
    for field, value in _fields(data):
        if isinstance(value, int):
            numbers[field] = value
        elif field == _HEADER:
            header = {name: text for name, text in _fields(value) if isinstance(text, bytes)}
            headers[header.get(_KEY, b"").decode()] = header.get(_VALUE, b"").decode()
        else:
            texts[field] = value
    if _METHOD not in numbers:
        raise ValueError("a frame has a method, and this one has none")
    return Frame(
        method=_signed(numbers[_METHOD]),
        service=_signed(numbers.get(_SERVICE, 0)),
        headers=headers,
        payload=texts.get(_PAYLOAD, b""),
        sequence=numbers.get(_SEQUENCE, 0),
        log_id=numbers.get(_LOG, 0),
        encoding=texts.get(_ENCODING, b"").decode(),
        payload_type=texts.get(_KIND, b"").decode(),
        new_log_id=texts.get(_NEW_LOG, b"").decode(),
    )


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Each field's number with its value."""
    place = 0
    while place < len(data):
        tag, place = _read_varint(data, place)
        field, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            number, place = _read_varint(data, place)
            yield field, number
            continue
        if wire == _BYTES:
            size, place = _read_varint(data, place)
        elif wire in _FIXED:
            size = _FIXED[wire]
        else:
            raise ValueError(f"a field of the wire type {wire} is none of a frame")
        if size > len(data) - place:
            raise ValueError("a frame ends within a field")
        yield field, data[place : place + size]
        place += size


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    number = 0
    for count, byte in enumerate(data[place : place + _LONGEST_VARINT]):
        number |= (byte & 0x7F) << 7 * count
        if byte < 0x80:  # noqa: PLR2004 - the bit that says that another byte follows
            return number & _MASK, place + count + 1
    raise ValueError("a frame ends within a number")


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits in each byte
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def _sized(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(data)) + data


def _signed(number: int) -> int:
    """The int32 that was widened to 64 bits."""
    low = number & 0xFFFF_FFFF
    return low - 2**32 if low >= 2**31 else low
