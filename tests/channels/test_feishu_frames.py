"""Our frames of the long connection are those of `protobuf`, and whatever else comes is an error and no more."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.channels.feishu.frames import Frame, Parts, decode, encode
from tests.channels.feishu_frames import ProtobufFrame, parsed, protobuf_frame

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
UNSIGNED, SIGNED = st.integers(0, 2**64 - 1), st.integers(-(2**31), 2**31 - 1)
FRAMES = st.builds(
    Frame,
    method=SIGNED,
    service=SIGNED,
    headers=st.dictionaries(TEXTS, TEXTS, max_size=4),
    payload=st.binary(max_size=300),
    sequence=UNSIGNED,
    log_id=UNSIGNED,
    encoding=TEXTS,
    payload_type=TEXTS,
    new_log_id=TEXTS,
)


@given(FRAMES)
def test_a_frame_is_read_by_protobuf_and_read_from_it(frame: Frame) -> None:
    theirs = parsed(encode(frame))
    assert {one.key: one.value for one in theirs.headers} == frame.headers
    assert (theirs.SeqID, theirs.LogID, theirs.service, theirs.method) == (
        frame.sequence,
        frame.log_id,
        frame.service,
        frame.method,
    )
    assert (theirs.payload_encoding, theirs.payload_type, theirs.payload, theirs.LogIDNew) == (
        frame.encoding,
        frame.payload_type,
        frame.payload,
        frame.new_log_id,
    )
    assert decode(theirs.SerializeToString()) == frame


@given(st.binary(max_size=60))
def test_bytes_that_are_no_frame_are_an_error_and_nothing_else(data: bytes) -> None:
    with suppress(ValueError):
        assert isinstance(decode(data), Frame)


@given(FRAMES, st.data())
def test_a_frame_that_was_cut_is_an_error_or_a_shorter_one(frame: Frame, data: st.DataObject) -> None:
    whole = encode(frame)
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with suppress(ValueError):
        assert decode(part) != frame or part == whole.rstrip(b"\0")


def test_fields_that_are_not_known_are_passed_over() -> None:
    unknown = b"\x50\x07" + b"\x5a\x02ab" + b"\x61" + b"8 bytes!" + b"\x6d" + b"four"  # one of each kind
    data = unknown + protobuf_frame(headers={"type": "event"}, method=1, payload=b"{}")
    assert decode(data) == Frame(method=1, headers={"type": "event"}, payload=b"{}")
    assert ProtobufFrame.FromString(data).payload == b"{}"


def test_an_event_in_several_frames_is_put_together_in_their_order() -> None:
    parts = Parts()

    def part(number: int, payload: bytes, name: str = "event") -> Frame:
        headers = {"message_id": name, "sum": "3", "seq": str(number)}
        return Frame(method=1, headers=headers, payload=payload)

    assert parts.whole(part(2, b"c")) is None
    assert parts.whole(part(0, b"a")) is None
    assert parts.whole(part(0, b"x", "another")) is None
    assert parts.whole(part(0, b"a")) is None, "it came twice"
    whole = parts.whole(part(1, b"b"))
    assert whole is not None
    assert whole.payload == b"abc"
    assert parts.whole(Frame(method=1, payload=b"alone")) == Frame(method=1, payload=b"alone")


def test_parts_whose_others_never_come_are_forgotten() -> None:
    parts = Parts()
    for number in range(100):
        assert parts.whole(Frame(method=1, headers={"message_id": str(number), "sum": "2", "seq": "0"})) is None
    assert len(parts._known) < 40


@pytest.mark.parametrize("headers", [{"sum": "two"}, {"sum": "2", "seq": "first"}])
def test_parts_that_are_not_numbered_are_an_error(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        Parts().whole(Frame(method=1, headers=headers))
