"""Aider's chat history (tests/programs/aider.py)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from miniclaw_sessions.core.protocol.entries import Custom
from miniclaw_sessions.core.protocol.messages import Usage
from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.formats.aider import AIDER
from miniclaw_sessions.files.formats.codec import Outcome, Sample
from miniclaw_sessions.files.formats.registry import recognize
from tests.files.formats.codec_files import check, read
from tests.programs.aider import HISTORY

LINES = HISTORY.encode().split(b"\n")
SAID = [
    "What is a tundra?\nIn one sentence.",
    "A treeless plain.\n\n# Tundra\n\nIt freezes.",
    "/add notes.md",
    "And a taiga?",
    "A forest of conifers.",
]


def test_a_history_is_read_with_its_models_its_costs_and_its_times() -> None:
    found = read(AIDER, LINES)
    check(found)
    assert found.said == SAID
    first, second = found.messages[1], found.messages[4]
    assert (first.model, first.usage) == ("claude-sonnet-4-5", Usage(2_200, 23, cost=0.01))
    assert (second.model, second.usage) == ("gpt-4o", Usage(512, 9))
    assert first.timestamp == found.facts.created_at == datetime(2026, 5, 1, 10, tzinfo=UTC)
    notices = [entry.data["text"] for entry in found.entries if isinstance(entry, Custom)]
    assert "Added notes.md to the chat" in notices


def test_each_chat_is_a_branch_of_its_own() -> None:
    assert [message.text for message in read(AIDER, LINES).context] == SAID[3:]


def test_a_history_that_grows_keeps_its_ids_and_a_cost_that_comes_later_changes_none() -> None:
    whole = [entry.id for entry in read(AIDER, LINES).entries if not isinstance(entry, Custom)]
    for end in range(8, len(LINES)):
        some = [entry.id for entry in read(AIDER, LINES[:end]).entries if not isinstance(entry, Custom)]
        assert some[:-1] == whole[: max(len(some) - 1, 0)]
    without_cost = [line for line in LINES if b"Tokens" not in line]
    assert [entry.id for entry in read(AIDER, without_cost).entries if not isinstance(entry, Custom)] == whole


def test_it_is_recognized_by_its_first_line_alone() -> None:
    assert recognize(Sample(text=HISTORY)) is AIDER
    assert recognize(Sample(text="\ufeff" + HISTORY)) is AIDER
    for text in ("# A heading\n", "#### hello\n", "aider chat started at"):
        with pytest.raises(ImportRefused):
            recognize(Sample(text=text))


def test_damage_costs_only_itself() -> None:
    place = LINES.index(b"A treeless plain.")
    found = read(AIDER, [*LINES[:place], b"A tree\xffless plain.", *LINES[place + 1 :]])
    check(found)
    assert found.said[0] == SAID[0]
    assert found.said[1].startswith("A tree\N{REPLACEMENT CHARACTER}less plain.")
    assert found.outcomes == [(place + 1, Outcome.REPAIRED)]
    cut = read(AIDER, [*LINES[:place], b"\0" * 64, *LINES[place:]])
    assert cut.said == SAID
    impossible = read(AIDER, [b"# aider chat started at 2026-99-99 10:00:00", *LINES[2:]])
    check(impossible)
    assert impossible.said == SAID


def test_a_question_of_nothing_is_a_notice() -> None:
    found = read(AIDER, [*LINES, b"#### <blank>  "])
    check(found)
    assert found.said == SAID


@pytest.mark.parametrize("lines", [[], [b""], [b"hello", b"world"], [b"> hello"]])
def test_a_text_without_a_chat_is_refused(lines: list[bytes]) -> None:
    with pytest.raises(ImportRefused, match="no chat of Aider"):
        read(AIDER, lines)
