"""A file's signs leave out no format that would recognize it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.formats.codec import Format, Sample
from miniclaw_sessions.files.formats.registry import OURS, all_formats, recognize
from miniclaw_sessions.files.transfer.incoming import parsed_lines
from tests.files.formats.codec_files import json_values, places
from tests.files.formats.pi_files import DATA
from tests.files.formats.test_contract import EXAMPLES, NEAR

EVENTS = [{"type": name} for name in ("agent_start", "turn_start", "message_start", "message_end", "agent_end")]
PIECES = [
    *(piece for example in EXAMPLES.values() for piece in example.pieces),
    *(line for lines, _ in NEAR for line in lines),
    *EVENTS,
    *({"type": name, "data": {}} for name in ("header", "event")),
    {"line_type": "later", "data": {}},
]
LISTS = [value for piece in PIECES if isinstance(piece, dict) for value in piece.values() if isinstance(value, list)]


def one_by_one(sample: Sample) -> Format:
    """What the row of formats makes of a sample where each one is asked."""
    for form in all_formats():
        if form.recognize(sample):
            return form
    raise ImportRefused("this is not a session in any known format")


def outcome(look: Callable[[Sample], Format], sample: Sample) -> str:
    try:
        return look(sample).name
    except ImportRefused as error:
        return str(error).partition(" (")[0]


def check(sample: Sample) -> None:
    assert outcome(recognize, sample) == outcome(one_by_one, sample)


@st.composite
def changed(draw: st.DrawFn, pieces: list[Any]) -> Any:
    """A piece of a file of which some fields are lost, renamed or hold something else."""
    piece = copy.deepcopy(draw(st.sampled_from(pieces)))
    for _ in range(draw(st.integers(0, 3))):
        if not (held := [*places(piece)]):
            break
        holder, key = draw(st.sampled_from(held[:40]))
        match draw(st.sampled_from(["lose", "replace", "add"])):
            case "lose":
                del holder[key]
            case "replace":
                holder[key] = draw(json_values)
            case "add" if isinstance(holder, dict):
                name = draw(st.sampled_from(sorted({word for ours in OURS for word in " ".join(ours.signs).split()})))
                holder[name.partition("=")[0]] = name.partition("=")[2] or draw(json_values)
    return piece


@given(st.lists(changed(PIECES), max_size=4))
def test_lines_are_recognized_as_if_every_format_were_asked(lines: list[Any]) -> None:
    check(Sample(lines=lines))


@given(changed(PIECES) | changed(LISTS), st.lists(changed(PIECES), max_size=2) | st.none())
def test_documents_are_recognized_as_if_every_format_were_asked(document: Any, lines: list[Any] | None) -> None:
    """Lines of a document may be objects by themselves; a document may be one line."""
    check(Sample(document=document, lines=[document] if lines is None else lines))


def test_what_only_the_document_has_says_nothing_of_its_lines() -> None:
    line = {"type": "message", "id": "x", "parent_id": None, "message": {"role": "user", "content": "hi"}}
    assert recognize(Sample(lines=[line], document={"parentId": 1, "x": line})).name == "jsonl"


@pytest.mark.parametrize("title", ["description", "name"])
@pytest.mark.parametrize("told", ["message_count", "extension_data", "accumulated_total_tokens"])
def test_a_header_of_goose_is_known_by_its_title_and_one_more_name(title: str, told: str) -> None:
    assert recognize(Sample(lines=[{"working_dir": "/home/ada", title: "Say hello", told: 7}])).name == "goose"


@pytest.mark.parametrize("count", range(1, len(EVENTS) + 1))
def test_an_event_stream_is_refused_as_what_it_is(count: int) -> None:
    with pytest.raises(ImportRefused, match="event stream"):
        recognize(Sample(lines=EVENTS[:count]))


def test_real_files_are_recognized_as_if_every_format_were_asked() -> None:
    files = [path for path in DATA.rglob("*") if path.suffix in (".json", ".jsonl")]
    assert files
    for path in files:
        data = path.read_bytes()
        check(Sample(lines=parsed_lines(data, is_whole=True)))
        with suppress(orjson.JSONDecodeError):
            check(Sample(document=orjson.loads(data)))


def test_a_format_of_ours_has_the_name_by_which_it_is_listed() -> None:
    for ours in OURS:
        form = ours.load()
        assert form.name == ours.name
        assert (form.is_read, form.is_written) == (ours.is_read, ours.is_written)
