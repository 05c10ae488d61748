"""A small file cannot fill the memory: what is imported has a bound on its elements, too (rule S10)."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions import SessionManager
from miniclaw_sessions.core.protocol.json_values import has_more_elements, parse_json
from miniclaw_sessions.errors import ImportRefused, InvalidMessage
from miniclaw_sessions.files.formats.codec import MAX_ELEMENTS
from miniclaw_sessions.files.transfer.importing import import_file

BOMB = b"[" + b"{}," * MAX_ELEMENTS + b"{}]"

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("a,[]{}\"\\:'\n", max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a,[{"\\', max_size=4), inner, max_size=4),
    max_leaves=30,
)


def elements_of(value: Any) -> int:
    """Objects, lists, and the commas in them."""
    if isinstance(value, (dict, list)):
        inner = value.values() if isinstance(value, dict) else value
        return 1 + max(0, len(value) - 1) + sum(map(elements_of, inner))
    return 0


@given(values)
def test_elements_are_counted_as_a_person_would(value: Any) -> None:
    encoded, number = json.dumps(value).encode(), elements_of(value)
    assert not has_more_elements(encoded, number)
    assert number == 0 or has_more_elements(encoded, number - 1)


@given(st.binary(max_size=60), st.integers(0, 10))
def test_whatever_is_no_json_is_counted_too(data: bytes, limit: int) -> None:
    assert has_more_elements(data, limit) in (True, False)


def test_a_bomb_is_refused_before_it_is_made() -> None:
    bomb = BOMB[-300_001:].replace(b"}", b"[", 1)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidMessage, match="more than 10000 elements"):
            parse_json(bomb, elements=10_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < len(bomb) / 10


@pytest.mark.anyio
@pytest.mark.proof
async def test_a_document_and_a_line_of_too_many_elements_are_not_taken_in(tmp_path: Path) -> None:
    async with SessionManager(tmp_path / "w", store="memory:") as manager:
        (tmp_path / "document.json").write_bytes(BOMB)
        with pytest.raises(ImportRefused, match=f"more than {MAX_ELEMENTS} elements"):
            await import_file(manager, tmp_path / "document.json")
        lines = [
            b'{"type":"session","version":1,"id":"s","timestamp":"2026-01-01T00:00:00Z"}',
            *(
                b'{"type":"message","id":"%d","parent_id":null,"timestamp":"2026-01-01T00:00:00Z",'
                b'"message":{"role":"user","content":"hello"%s}}' % (number, extra)
                for number, extra in enumerate([b"", b',"extra":' + BOMB, b""])
            ),
        ]
        (tmp_path / "lines.jsonl").write_bytes(b"\n".join(lines))
        report = await import_file(manager, tmp_path / "lines.jsonl")
        assert (report.messages, report.set_aside) == (2, 1)
        assert [finding.text for finding in report.findings] == [f"the JSON has more than {MAX_ELEMENTS} elements"]
