"""Whatever sectors of an append to a transcript a power cut left, a torn append is told from a whole one (rule R14)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.base import SessionHead, StoredEntry
from miniclaw_sessions.core.stores.jsonl.file import Rest, examine
from miniclaw_sessions.core.stores.jsonl.lines import header_of, lines_of
from miniclaw_sessions.disk import Directory
from tests.crash.faulty_disk import SECTOR

KEY = SessionKey.of("telegram", "1")
HEAD = SessionHead(KEY.session_id, KEY, "incarnation", datetime(2026, 1, 1, tzinfo=UTC))


def entry(sequence: int, size: int) -> StoredEntry:
    encoded = b'{"type":"message","id":"%d","sequence":%d,"text":"' % (sequence, sequence)
    return StoredEntry(sequence, str(sequence), encoded.ljust(size - 2, b"x") + b'"}')


def holed(safe: bytes, appended: bytes) -> Iterator[bytes]:
    """The file after an append with every choice of its sectors missing, but not with none."""
    whole = safe + appended
    sectors = range(len(safe) // SECTOR, (len(whole) - 1) // SECTOR + 1)
    for missing in itertools.product((False, True), repeat=len(sectors)):
        content = bytearray(whole)
        for sector in itertools.compress(sectors, missing):
            begin, end = max(sector * SECTOR, len(safe)), min((sector + 1) * SECTOR, len(whole))
            content[begin:end] = bytes(end - begin)
        if any(missing):
            yield bytes(content)


def appends() -> Iterator[tuple[bytes, bytes]]:
    """What is safe and what is appended to it, so that some line ends before, at or behind the end of a sector."""
    safe = header_of(HEAD) + lines_of([entry(1, 80)])
    for padding in range(SECTOR):
        appended = lines_of([entry(2, 600 + padding), entry(3, 700), entry(4, 70)])
        ends = [len(safe) + place for place, byte in enumerate(appended) if byte == ord("\n")]
        if any((end + 2) % SECTOR <= 3 for end in ends):
            yield safe, appended


def test_no_hole_makes_a_torn_append_look_whole_wherever_its_sectors_begin(tmp_path: Path) -> None:
    path = tmp_path / f"{KEY.session_id}.jsonl"
    with Directory(tmp_path) as directory:
        for safe, appended in appends():
            for content in holed(safe, appended):
                path.write_bytes(content)
                found = examine(directory, KEY.session_id)
                assert (found.last_sequence, found.length, found.rest) == (1, len(safe), Rest.TORN), content
            path.write_bytes(safe + appended)
            assert examine(directory, KEY.session_id).last_sequence == 4


def test_no_cut_makes_a_torn_append_look_whole_wherever_it_is(tmp_path: Path) -> None:
    safe = header_of(HEAD) + lines_of([entry(1, 80)])
    appended = lines_of([entry(2, 90), entry(3, 100), entry(4, 70)])
    path = tmp_path / f"{KEY.session_id}.jsonl"
    with Directory(tmp_path) as directory:
        for length in range(len(appended)):
            path.write_bytes(safe + appended[:length])
            assert examine(directory, KEY.session_id).length == len(safe)
