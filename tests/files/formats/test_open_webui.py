"""Open WebUI's chats, out of its database and as exports (tests/programs/open_webui.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from miniclaw_sessions.core.protocol.messages import ImagePart, ThinkingPart, Usage
from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.formats.codec import Sample
from miniclaw_sessions.files.formats.open_webui import OPEN_WEBUI, OPEN_WEBUI_EXPORT
from miniclaw_sessions.files.formats.registry import recognize
from tests.agents import out_of
from tests.files.formats.codec_files import check, read
from tests.programs import open_webui
from tests.programs.databases import make

BRANCH = ["What is permafrost?", "", "-40 C", "Frozen ground.", "And thermokarst?", "Land that sinks."]
ALL = [*BRANCH, "I look.", "-20 C", "Frozen soil."]


def test_a_chat_out_of_the_database_is_read_with_its_branches(tmp_path: Path) -> None:
    open_webui.put(tmp_path)
    (lines,) = out_of("open-webui", tmp_path / ".open-webui/webui.db")
    found = read(OPEN_WEBUI, lines)
    check(found)
    assert sorted(found.said) == sorted(ALL)
    assert [message.text for message in found.context] == BRANCH
    asked, called, result, answer, again, last = found.context
    assert called.tool_calls is not None
    assert (called.tool_calls[0].name, called.tool_calls[0].arguments) == ("weather", '{"city":"Yakutsk"}')
    assert isinstance(called.content[0], ThinkingPart)
    assert (result.tool_call_id, answer.model) == ("c1", "deepseek-r1")
    assert (called.usage, answer.usage) == (None, Usage(20, 12, 10, total_tokens=42))
    assert any(isinstance(part, ImagePart) for part in again.content)
    assert (found.facts.source_id, found.facts.title) == (open_webui.ID, "Permafrost")
    assert asked.timestamp is not None
    assert asked.timestamp.timestamp() == open_webui.AT
    assert last.model == "deepseek-r1"


def test_thoughts_and_calls_in_the_text_are_what_they_are() -> None:
    found = read(OPEN_WEBUI, [*open_webui.LINES[:2], open_webui.LINES[3]])
    check(found)
    called, result, answer = found.messages[1:]
    assert isinstance(called.content[0], ThinkingPart)
    assert called.content[0].thinking == "Cold & dry."
    assert called.tool_calls is not None
    assert (called.tool_calls[0].id, called.tool_calls[0].arguments) == ("c2", '{"city": "Nome"}')
    assert (result.text, result.tool_call_id, answer.text) == ("-20 C", "c2", "Frozen soil.")


def test_messages_that_newer_versions_have_in_a_table_are_read(tmp_path: Path) -> None:
    history = {"messages": {}, "currentId": "a3"}
    rows: list[tuple[str, dict[str, Any]]] = [("chat", open_webui.row({"title": "", "history": history}))]
    for one in open_webui.MESSAGES:
        words = '"Frozen soil."' if one["id"] == "a2" else f'"{one["content"]}"'
        row = {"id": f"{open_webui.ID}-{one['id']}", "chat_id": open_webui.ID, "role": one["role"], "done": 1}
        row |= {"parent_id": one["parentId"], "content": words, "created_at": one["timestamp"]}
        rows.append(("chat_message", row))
    path = make(tmp_path / "webui.db", open_webui.SCHEMA + open_webui.NEWER, rows)
    (lines,) = out_of("open-webui", path)
    found = read(OPEN_WEBUI, lines)
    check(found)
    said = [message.text for message in found.context]
    assert said == ["What is permafrost?", "Frozen ground.", "And thermokarst?", "Land that sinks."]


def test_the_answer_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    writing = open_webui.said("a4", "a3", "assistant", "I am just say", 9, done=False)
    open_webui.put(tmp_path, [*open_webui.MESSAGES, writing])
    (lines,) = out_of("open-webui", tmp_path / ".open-webui/webui.db")
    assert "I am just say" not in read(OPEN_WEBUI, lines).said


def test_an_export_of_one_chat_is_one_and_of_several_is_refused() -> None:
    row = open_webui.row(open_webui.chat())
    documents: list[Any] = [[row], row, {"chat": row["chat"]}]
    for document in documents:
        assert recognize(Sample(document=document)) is OPEN_WEBUI_EXPORT
        found = read(OPEN_WEBUI_EXPORT, [document])
        check(found)
        assert [message.text for message in found.context] == BRANCH
    with pytest.raises(ImportRefused, match="2 chats"):
        read(OPEN_WEBUI_EXPORT, [[row, row]])


@pytest.mark.parametrize("document", [None, [], {}, {"chat": {}}, [{"chat": 5}], [5]])
def test_what_is_no_export_is_refused(document: object) -> None:
    with pytest.raises(ImportRefused, match="no chat with a history"):
        read(OPEN_WEBUI_EXPORT, [document])


def test_a_circle_and_a_parent_that_is_missing_cost_no_message() -> None:
    messages = [
        open_webui.said("x", "y", "user", "one", 1),
        open_webui.said("y", "x", "assistant", "two", 2),
        open_webui.said("z", "gone", "user", "three", 3),
    ]
    found = read(OPEN_WEBUI_EXPORT, [open_webui.row(open_webui.chat(messages, "z"))])
    check(found)
    assert sorted(found.said) == ["one", "three", "two"]


def test_the_oldest_chats_are_a_list() -> None:
    messages = [{"id": role, "role": role, "content": role} for role in ("user", "assistant")]
    chat = {"title": "Old", "history": {"messages": {}}, "messages": messages}
    found = read(OPEN_WEBUI_EXPORT, [open_webui.row(chat)])
    assert [message.text for message in found.context] == ["user", "assistant"]
