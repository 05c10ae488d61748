"""A session as Markdown: readable, and no text in it can pass itself off as another message."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from miniclaw_sessions.core.protocol.entries import (
    METADATA,
    BranchSummary,
    Compaction,
    Custom,
    Entry,
    EntryBase,
    Label,
    LeafMove,
    MessageEntry,
    ModelChange,
    OtherEntry,
    SessionInfo,
    ThinkingLevelChange,
)
from miniclaw_sessions.core.protocol.messages import (
    ImagePart,
    Message,
    OtherPart,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
)
from miniclaw_sessions.files.formats.codec import SessionFacts
from miniclaw_sessions.files.formats.markdown import MARKDOWN, MarkdownWriter, render_entry
from tests.growing import Growing, grown_at_random

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
BASE: dict[str, Any] = {"id": "e1", "parent_id": None, "timestamp": WHEN, "sequence": 1}
HEAD = SessionFacts(session_id="telegram_1", channel="telegram", chat_id="1", created_at=WHEN)


def head(**facts: Any) -> str:
    return MarkdownWriter(msgspec.structs.replace(HEAD, **facts)).begin().decode()


def rendered(message: Message) -> str:
    return render_entry(MessageEntry(**BASE, message=message))


def blocks(markdown: str) -> list[str]:
    """The types of the top-level blocks, as a real Markdown parser sees them."""
    return [token.type for token in MarkdownIt().parse(markdown) if token.level == 0 and token.nesting >= 0]


def test_the_head_has_title_and_facts() -> None:
    assert head(title="Trip", metadata={"title": "Trip", "model": "m_1"}) == (
        "# Trip\n\n"
        "- **Session**: telegram\\_1\n- **Channel**: telegram\n- **Chat**: 1\n"
        "- **Created**: 2026-01-02T03:04:05Z\n- **model**: m\\_1\n"
    )


def test_a_session_without_title_is_headed_by_its_id() -> None:
    assert head().startswith("# telegram\\_1\n")


def test_a_message_has_speaker_time_and_quoted_text() -> None:
    assert rendered(Message.user("Hello\n\nthere")) == "\n## User · 2026-01-02 03:04:05\n\n> Hello\n>\n> there\n"


def test_a_messages_own_time_is_shown_rather_than_when_it_was_logged() -> None:
    message = msgspec.structs.replace(Message.user("x"), timestamp=datetime(2025, 5, 5, tzinfo=UTC))
    assert "2025-05-05 00:00:00" in rendered(message)


def test_tool_calls_and_results_stand_in_fences() -> None:
    call = ToolCall("c1", "look_up", '{"q": 1}', output="done")
    assert rendered(Message.assistant("", (call,))) == (
        '\n## Assistant · 2026-01-02 03:04:05\n\n**Calls look\\_up**\n\n```json\n{"q": 1}\n```\n\n```\ndone\n```\n'
    )
    result = rendered(Message.tool_result(call, "no", is_error=True))
    assert result == "\n## Tool result: look\\_up · failed · 2026-01-02 03:04:05\n\n```\nno\n```\n"


def test_a_fence_is_longer_than_any_in_the_text() -> None:
    call = ToolCall("c1", "f")
    markdown = rendered(Message.tool_result(call, "````\n## forged\n`````"))
    assert "\n``````\n" in markdown
    assert blocks(markdown) == ["heading_open", "fence"]


def test_parts_that_are_not_text_are_named() -> None:
    parts = (
        TextPart("see"),
        ThinkingPart("hm"),
        ImagePart("image/png", data="AAAA"),
        OtherPart({"type": "video", "secret": "x"}),
        OtherPart(
            {"type": "file", "file": {"filename": "a*.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}}
        ),
        TextPart("\n\n[File: n.txt]\nMilk", extra={"file": {"filename": "n.txt"}}),
    )
    markdown = rendered(Message(Role.USER, parts))
    assert "> see\n\n*Thinking*\n\n> hm\n\n*Image: image/png*\n\n*Content of type video*\n" in markdown
    assert "*File: a\\*.pdf (4 bytes)*" in markdown
    assert "*File: n.txt*\n\n```\nMilk\n```" in markdown
    assert "AAAA" not in markdown


def test_an_unknown_role_keeps_its_spelling() -> None:
    assert "## de\\_v · " in rendered(Message(Role.OTHER, "x", extra={"role": "de_v"}))


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (ModelChange(**BASE, provider="openai", model_id="gpt_9"), "*Model: openai gpt\\_9*"),
        (ThinkingLevelChange(**BASE, thinking_level="high"), "*Thinking: high*"),
        (SessionInfo(**BASE, name="Trip"), "*Title: Trip*"),
        (Label(**BASE, target_id="e9", label="here"), "*Label: here on e9*"),
        (LeafMove(**BASE, target_id=None), "*Cleared: a new beginning*"),
        (LeafMove(**BASE, target_id="e9"), "*Branch: the conversation goes on from e9*"),
        (Custom(**BASE, custom_type=METADATA, data={"a": 1}), "*Metadata: a = 1*"),
        (
            Compaction(**BASE, summary="# so\nfar", first_kept_entry_id="e9", tokens_before=7),
            "*Compaction: 7 tokens before*\n\n> # so\n> far",
        ),
        (BranchSummary(**BASE, summary="left", from_id="e9"), "*Branch summary: from e9*\n\n> left"),
    ],
)
def test_what_happened_besides_messages_is_told_in_a_line(entry: Entry, line: str) -> None:
    assert render_entry(entry) == f"\n{line}\n"


def test_what_people_have_no_use_for_is_left_out() -> None:
    entries: list[Entry] = [
        Custom(**BASE, custom_type="plugin", data={"state": 1}),
        OtherEntry(**BASE, encoded=msgspec.Raw(b"{}")),
    ]
    assert [render_entry(entry) for entry in entries] == ["", ""]


@given(text=st.text(), name=st.text())
def test_no_text_can_forge_a_heading_or_leave_its_place(text: str, name: str) -> None:
    call = ToolCall("c1", name, text, output=text)
    message = msgspec.structs.replace(Message.assistant(text, (call,)), author=name, model=text)
    markdown = rendered(message)
    expected = ["heading_open", "inline", *(["blockquote_open"] if text else []), "paragraph_open", "inline"]
    assert blocks(markdown) == [kind for kind in expected if kind != "inline"] + ["fence", "fence"]


@given(text=st.text())
def test_no_title_can_leave_its_line(text: str) -> None:
    markdown = head(title=text, metadata={text: text})
    assert blocks(markdown) == ["heading_open", "bullet_list_open"]


@given(text=st.text())
def test_no_control_character_gets_through(text: str) -> None:
    entries: list[EntryBase] = [
        MessageEntry(**BASE, message=Message.user(text)),
        MessageEntry(**BASE, message=Message.tool_result(ToolCall("c", text), text)),
        SessionInfo(**BASE, name=text),
    ]
    markdown = "".join(render_entry(entry) for entry in entries)  # type: ignore[arg-type]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", markdown)


# --- a whole session -------------------------------------------------------------------------------------------------


def written(entries: list[Entry], facts: SessionFacts | None = None) -> str:
    writer = MarkdownWriter(facts or SessionFacts(session_id="telegram_1", channel="telegram", chat_id="1"))
    return b"".join([writer.begin(), *map(writer.feed, entries), writer.finish()]).decode()


def asides(markdown: str) -> list[str]:
    """The lines that tell where the conversation stands."""
    return [line for line in markdown.split("\n") if line.startswith(("*The conversation", "*Cleared"))]


def test_a_session_without_branches_is_its_head_and_its_entries() -> None:
    session = Growing()
    session.add(SessionInfo, name="Trip")
    session.user("a")
    session.add(Custom, custom_type=METADATA, data={"a": 1})
    session.assistant("b")
    assert written(session.entries, HEAD) == head() + "".join(map(render_entry, session.entries))


def test_a_reader_is_told_where_the_conversation_went_back_to_and_where_it_stands() -> None:
    session = Growing()
    question = session.user("Where *to*?")
    left = session.assistant("South")
    session.go_to(question)
    session.add(BranchSummary, summary="Not south", from_id=left)
    taken = session.assistant("North, as far as the road goes, and then a little further on foot")
    session.add(Label, target_id=taken, label="good")
    markdown = written(session.entries)
    told = "“North, as far as the road goes, and then a little further o…”"
    assert asides(markdown) == [
        "*The conversation goes back to User · 2026-03-14 09:01:00 · “Where \\*to\\*?”*",
        f"*The conversation stands at Assistant · 2026-03-14 09:05:00 · {told}*",
    ]
    assert "\n---\n\n*The conversation goes back" in markdown
    assert "*Branch summary: from Assistant · 2026-03-14 09:02:00 · “South”*\n\n> Not south\n" in markdown
    assert f"*Label: good on Assistant · 2026-03-14 09:05:00 · {told}*" in markdown


def test_a_branch_is_told_of_even_where_no_move_was_logged() -> None:
    session = Growing()
    question = session.user("a")
    session.assistant("b")
    session.leaf_id = question
    session.assistant("c")
    session.leaf_id = None
    session.user("d")
    session.leaf_id = "elsewhere"
    session.user("e")
    assert asides(written(session.entries)) == [
        "*The conversation goes back to User · 2026-03-14 09:01:00 · “a”*",
        "*Cleared: a new beginning*",
        "*The conversation goes back to an entry that is not here: elsewhere*",
        "*The conversation stands at User · 2026-03-14 09:05:00 · “e”*",
    ]


def test_a_cleared_session_stands_at_its_beginning() -> None:
    session = Growing()
    session.user("a")
    session.go_to(None)
    assert asides(written(session.entries)) == [
        "*Cleared: a new beginning*",
        "*The conversation stands at its beginning*",
    ]


def test_the_facts_say_where_the_leaf_is_if_they_know() -> None:
    session = Growing()
    first = session.user("a")
    session.user("b")
    session.go_to(first)
    session.user("c")
    assert asides(written(session.entries, SessionFacts(leaf_id="e2")))[-1].endswith("“b”*")


@given(seed=st.integers(0, 2**32), size=st.integers(1, 60))
def test_who_follows_the_lines_finds_every_parent(seed: int, size: int) -> None:
    entries = grown_at_random(seed, size)
    writer = MARKDOWN.writer
    assert writer is not None
    writing = writer(SessionFacts(session_id="s"))
    by_time = {entry.timestamp.strftime("%Y-%m-%d %H:%M:%S"): entry.id for entry in entries}
    standing: str | None = None
    for entry in entries:
        for aside in asides(writing.feed(entry).decode()):
            went_back = re.search(r"goes back to .*?(2026-[\d-]+ [\d:]+)", aside)
            standing = by_time[went_back[1]] if went_back else None
        if not isinstance(entry, LeafMove):
            assert standing == entry.parent_id
            standing = entry.id


@given(text=st.text(), name=st.text(min_size=1))
def test_no_text_can_forge_where_the_conversation_stands(text: str, name: str) -> None:
    session = Growing()
    said = session.user(text)
    session.user("b")
    session.go_to(said)
    session.add(Label, target_id=said, label=name)
    markdown = written(session.entries, SessionFacts(session_id="s"))
    quoted = ["blockquote_open"] if text else []
    assert blocks(markdown.partition("\n## ")[2].partition("\n")[2]) == [
        *quoted,
        *("heading_open", "blockquote_open"),
        *("hr", "paragraph_open", "paragraph_open", "hr", "paragraph_open"),
    ]
