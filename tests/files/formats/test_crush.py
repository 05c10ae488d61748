"""Crush's sessions, out of its database (tests/programs/crush.py)."""

from __future__ import annotations

from pathlib import Path

from miniclaw_sessions.core.protocol.entries import Compaction
from miniclaw_sessions.core.protocol.messages import ImagePart, OtherPart, ThinkingPart
from miniclaw_sessions.files.formats.crush import CRUSH
from tests.agents import out_of
from tests.files.formats.codec_files import check, read
from tests.programs import crush


def test_a_session_out_of_the_database_is_read_as_it_went(tmp_path: Path) -> None:
    crush.put(tmp_path)
    (lines,) = out_of("crush", tmp_path / "project/.crush/crush.db")
    found = read(CRUSH, lines)
    check(found)
    asked, called, result, answer = found.messages
    assert (asked.text, answer.text) == ("What is a moraine?", "Debris of a glacier.")
    assert called.tool_calls is not None
    assert (called.tool_calls[0].name, called.tool_calls[0].arguments) == ("bash", '{"command": "ls"}')
    assert isinstance(called.content[0], ThinkingPart)
    assert (called.content[0].thinking, called.content[0].signature) == ("Stones.", "sig")
    assert (called.model, called.stop_reason) == ("claude-sonnet-4", "tool_use")
    assert (result.tool_call_id, result.text, result.name) == ("c1", "moraine.txt", "bash")
    assert (found.facts.source_id, found.facts.title) == (crush.ID, "Moraines")
    assert found.facts.header["cost"] == 0.0123
    assert read(CRUSH, crush.LINES).entries == found.entries


def test_a_summary_is_a_compaction_in_newer_and_older_databases() -> None:
    older = {**crush.SUMMARY}
    del older["is_summary_message"]
    session = {**crush.SESSION, "summary_message_id": "m5"}
    after = {"message": crush.row("m7", "user", 8, crush.part("text", text="And a fjord?"))}
    for lines in (
        [*crush.LINES, {"message": crush.SUMMARY}, after],
        [{"session": session}, *crush.LINES[1:], {"message": older}, after],
    ):
        found = read(CRUSH, lines)
        check(found)
        assert isinstance(found.entries[-2], Compaction)
        said = [message.text.rsplit("\n\n", 1)[-1] for message in found.context]
        assert said == ["Moraines were explained.", "And a fjord?"]


def test_the_answer_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    crush.put(tmp_path, messages=[*crush.MESSAGES, crush.UNFINISHED])
    (lines,) = out_of("crush", tmp_path / "project/.crush/crush.db")
    assert read(CRUSH, lines).said[-1] == "Debris of a glacier."


def test_an_image_is_one_and_what_nobody_knows_is_kept() -> None:
    image = crush.part("binary", Path="/reef.png", MIMEType="image/png", Data="QUJD")
    novelty = crush.part("hologram", of="a reef")
    found = read(CRUSH, [*crush.LINES, {"message": crush.row("m9", "user", 9, image, novelty)}])
    check(found)
    content = found.messages[-1].content
    assert not isinstance(content, str)
    shown, kept = content
    assert isinstance(shown, ImagePart)
    assert (shown.media_type, shown.data) == ("image/png", "QUJD")
    assert isinstance(kept, OtherPart)
    assert kept.fields == novelty
