"""The lines of transcript files: whatever is written reads back, and damage costs only itself."""

from __future__ import annotations

import json
import os
import zlib
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.base import SessionHead, StoredEntry
from miniclaw_sessions.core.stores.jsonl import file as placing_module
from miniclaw_sessions.core.stores.jsonl import file as transcript_file
from miniclaw_sessions.core.stores.jsonl.file import (
    Placing,
    Transcript,
    entries_after,
    lines_before,
    place_of,
    place_of_newest,
)
from miniclaw_sessions.core.stores.jsonl.lines import NotOurs, entry_in, head_in, header_of, lines_of
from miniclaw_sessions.errors import SchemaTooNew, StoreCorrupt, StoreError
from miniclaw_sessions.testing import sample_entries, sample_head

ids = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
sequences = st.integers(1, 2**63 - 1)
encodings = st.one_of(
    st.binary(max_size=100),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3), max_leaves=5
    ).map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries(
        {"id": ids, "sequence": sequences},
        optional={"type": st.sampled_from(["message", "session", "opaque", 5]), "json": st.none(), "base64": ids},
    ).map(lambda value: json.dumps(value, ensure_ascii=False).encode()),
)


# --- entries ---------------------------------------------------------------------------------------------------------


@given(ids, sequences, encodings)
def test_any_entry_comes_back_from_one_line_as_it_was(entry_id: str, sequence: int, encoded: bytes) -> None:
    entry = StoredEntry(sequence, entry_id, encoded)
    line = lines_of([entry])
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert not line.endswith(b" \n")
    assert entry_in(line) == entry
    assert {"id": entry_id, "sequence": sequence}.items() <= json.loads(line).items()


@given(ids, sequences)
def test_bytes_that_say_their_place_are_written_as_they_are_with_a_checksum(entry_id: str, sequence: int) -> None:
    encoded = json.dumps({"id": entry_id, "sequence": sequence, "type": "message"}).encode()
    line = lines_of([StoredEntry(sequence, entry_id, encoded)])
    assert line == encoded[:-1] + b',"crc32":"%08x"}\n' % zlib.crc32(encoded)
    assert entry_in(encoded) == entry_in(line)  # of an older version


def _is_text(data: bytes) -> bool:
    return data.decode(errors="replace").encode() == data


@given(st.data())
def test_no_flipped_bit_in_a_line_ever_gives_another_entry(data: st.DataObject) -> None:
    (entry,) = sample_entries(5, 5)
    line = bytearray(lines_of([entry])[:-1])
    bit = data.draw(st.integers(0, 8 * len(line) - 1))
    line[bit // 8] ^= 1 << bit % 8
    read = entry_in(bytes(line))
    if read is not None and _is_text(read.encoded):  # the checksum's own name was hit; what is no text nobody decodes
        checksum = f"{zlib.crc32(entry.encoded):08x}"
        said = {name: value for name, value in json.loads(read.encoded).items() if value != checksum}
        assert said == json.loads(entry.encoded)
        assert (read.sequence, read.entry_id) == (entry.sequence, entry.entry_id)


@pytest.mark.parametrize(
    ("encoded", "written"),
    [
        (b'{"a":1}', {"json": {"a": 1}}),
        (b'{"id":"x","sequence":8}', {"json": {"id": "x", "sequence": 8}}),
        (b'{"a":1}\n', {"base64": "eyJhIjoxfQo="}),
        (b"\xff", {"base64": "/w=="}),
        (b"", {}),
    ],
)
def test_other_bytes_are_wrapped_and_stay_readable_where_they_are_json(
    encoded: bytes, written: dict[str, object]
) -> None:
    line = lines_of([StoredEntry(7, "x", encoded)])
    said = json.loads(line)
    assert said.pop("crc32")
    assert said == {"type": "opaque", "id": "x", "sequence": 7, **written}


def test_what_no_line_can_hold_is_refused_without_quoting_it() -> None:
    for entry in (StoredEntry(2**80, "a", b"private"), StoredEntry(1, "\ud800", b"private"), StoredEntry(0, "a", b"p")):
        with pytest.raises(StoreError) as caught:
            lines_of([entry])
        assert "private" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"\n", b"{", b"[1]", b"null", b"\x00", b'{"id":"a"}', b'{"sequence":1}', b'{"id":1,"sequence":1}'),
        *(
            b'{"id":"a","sequence":0}',
            b'{"id":"a","sequence":1.5}',
            b'{"id":"a","sequence":"1"}',
            b'{"id":"a","sequence":1}x',
        ),
        *(b'{"id":"a","sequence":1,"type":1}', b'{"type":"opaque","id":"a","sequence":1,"base64":"?"}'),
        b'{"id":"a","sequence":1,"deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"id":"a","sequence":1,"cut":"hello',
        b'{"id":"a","sequence":1,"hole":"\x00\x00"}',
    ],
)
def test_a_damaged_line_is_no_entry_and_no_error(line: bytes) -> None:
    assert entry_in(line) is None


# --- headers ---------------------------------------------------------------------------------------------------------


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=200),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=200),
    st.datetimes(),
    st.integers(-14, 14),
)
def test_any_head_comes_back_from_its_line(channel: str, chat_id: str, local: datetime, hours: int) -> None:
    key = SessionKey.of(channel, chat_id)
    head = SessionHead(key.session_id, key, "one", local.replace(tzinfo=timezone(timedelta(hours=hours))))
    line = header_of(head)
    assert line.count(b"\n") == 1
    assert head_in(line, key.session_id) == head


def test_the_longest_names_fit_into_what_is_read_of_a_header() -> None:
    key = SessionKey.of("\x01" * 4096, "\x7f" * 4096)
    assert len(header_of(SessionHead(key.session_id, key, "i" * 100, sample_head().created_at))) < 64 * 1024


def test_a_header_is_told_from_damaged_foreign_and_newer_ones() -> None:
    line = header_of(sample_head())
    with pytest.raises(NotOurs, match="telegram_1"):
        head_in(line, "telegram_2")
    with pytest.raises(NotOurs, match="import"):
        head_in(b'{"type":"session","version":3,"id":"x","timestamp":"2026-01-01T00:00:00Z"}', "telegram_1")
    with pytest.raises(SchemaTooNew, match="format 2"):
        head_in(b'{"type":"session","version":2,"incarnation":{"new":"shape"}}', "telegram_1")
    for end in range(len(line) - 1):
        with pytest.raises(StoreCorrupt) as caught:
            head_in(line[:end], "telegram_1")
        assert not isinstance(caught.value, NotOurs)


# --- places ----------------------------------------------------------------------------------------------------------

DAMAGE = [
    b"",
    b"junk",
    b"\x00\x00",
    b'{"id":"a","sequence":1',
    b'{"id":"liar","sequence":1}',
    b'{"id":"liar","sequence":99}',
]


def placed(data: bytes, step: int) -> tuple[list[StoredEntry], int]:
    placing = Placing(0, 0)
    found = [one for begin in range(0, len(data), step) for one in placing.feed(data[begin : begin + step])]
    found += placing.finish(2**62)
    assert all(data[end - 1 : end] == b"\n" for _, end in found)
    return [entry for entry, _ in found], placing.without_place


@given(st.sets(st.integers(1, 30), min_size=1), st.integers(1, 400))
def test_holes_in_the_numbering_stay_holes(kept: set[int], step: int) -> None:
    entries = [entry for entry in sample_entries(1, 30) if entry.sequence in kept]
    assert placed(lines_of(entries), step) == (entries, 0)


@given(st.dictionaries(st.integers(2, 11), st.sampled_from(DAMAGE), max_size=4), st.integers(1, 400))
def test_damaged_lines_cost_only_themselves(damaged: dict[int, bytes], step: int) -> None:
    entries = sample_entries(1, 12)
    lines = [damaged.get(entry.sequence, entry.encoded) for entry in entries]
    found, _ = placed(b"\n".join(lines) + b"\n", step)
    sound = [entry for entry in entries if entry.sequence not in damaged]
    assert [entry for entry in found if not entry.entry_id.startswith("damaged")] == sound
    assert all(damaged[entry.sequence] in DAMAGE for entry in found if entry.entry_id.startswith("damaged"))
    assert [entry.sequence for entry in found] == sorted({entry.sequence for entry in found})


@given(st.lists(st.sampled_from([*DAMAGE, *(entry.encoded for entry in sample_entries(1, 5))]), max_size=12))
def test_whatever_lines_there_are_sequences_ascend_and_no_line_is_forgotten(lines: list[bytes]) -> None:
    found, without_place = placed(b"".join(line + b"\n" for line in lines), 1000)
    assert [entry.sequence for entry in found] == sorted({entry.sequence for entry in found})
    assert len(found) + without_place == sum(bool(line) for line in lines)


def test_a_line_without_an_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing_module, "LONGEST_LINE", 1000)
    placing = Placing(0, 0)
    placing.feed(b"x" * 1000)
    with pytest.raises(StoreCorrupt, match="byte 0"):
        placing.feed(b"x")


# --- the file --------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b""))), st.binary(max_size=9), st.data())
def test_lines_are_found_from_the_end_whatever_the_blocks(lines: list[bytes], rest: bytes, data: st.DataObject) -> None:
    rest = rest.replace(b"\n", b"")
    content = b"".join(line + b"\n" for line in lines) + rest
    start = data.draw(st.sampled_from([0, *(len(b"\n".join(lines[:n])) + 1 for n in range(1, len(lines) + 1))]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transcript_file, "_FIRST_BLOCK", data.draw(st.integers(1, 40)))
        patch.setattr(transcript_file, "_BLOCK", data.draw(st.integers(1, 40)))
        fd = os.memfd_create("lines")
        try:
            os.write(fd, content)
            found = list(lines_before(fd, start, len(content)))
        finally:
            os.close(fd)
    assert b"".join(line for _, line in reversed(found)) == content[start:]
    assert all(content[offset : offset + len(line)] == line for offset, line in found)
    assert [line.removesuffix(b"\n") for _, line in reversed(found)] == content[start:].removesuffix(b"\n").split(
        b"\n"
    ) or not found


@given(
    st.sets(st.integers(1, 200), min_size=1, max_size=60),
    st.dictionaries(st.integers(1, 200), st.sampled_from(DAMAGE), max_size=5),
    st.integers(0, 220),
)
def test_every_page_is_part_of_the_whole(kept: set[int], damaged: dict[int, bytes], after: int) -> None:
    entries = [entry for entry in sample_entries(1, 200) if entry.sequence in kept]
    header = header_of(sample_head())
    lines = [damaged.get(entry.sequence, entry.encoded) for entry in entries[:-1]]
    content = header + b"".join(line + b"\n" for line in [*lines, entries[-1].encoded])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transcript_file, "NEAR", 300)
        fd = os.memfd_create("transcript")
        try:
            os.write(fd, content)
            transcript = Transcript(
                sample_head(), start=len(header), length=len(content), last_sequence=entries[-1].sequence
            )
            whole, _ = placed(content[len(header) :], 1000)
            assert list(entries_after(fd, transcript, after)) == [entry for entry in whole if entry.sequence > after]
            offset, last = place_of_newest(fd, transcript, after)
            placing = Placing(offset, last)
            newest = [one.entry for one in (*placing.feed(content[offset:]), *placing.finish(2**62))]
            assert newest == whole[len(whole) - len(newest) :]
            assert len(newest) >= min(after, len(whole))
        finally:
            os.close(fd)


def test_the_place_of_an_entry_is_found_near_it(tmp_path: Path) -> None:
    header, entries = header_of(sample_head()), sample_entries(1, 20_000)
    content = header + lines_of(entries)
    (tmp_path / "file").write_bytes(content)
    transcript = Transcript(sample_head(), start=len(header), length=len(content), last_sequence=20_000)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        for number in (1, 2, 5_000, 12_345, 19_999):
            offset, last = place_of(fd, transcript, number)
            assert last == number - 1
            assert content[offset:].lstrip(b" ").startswith(entries[number - 1].encoded[:-1])
    finally:
        os.close(fd)
