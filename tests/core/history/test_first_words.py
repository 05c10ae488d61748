"""An entry in a few words, on one line whatever is in it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.core.history.first_words import MAX_CHARACTERS, call_words, first_words, one_line, speaker
from miniclaw_sessions.core.protocol.entries import Compaction, Custom, Entry, Label, MessageEntry, ModelChange
from miniclaw_sessions.core.protocol.messages import (
    ImagePart,
    Message,
    OtherPart,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
)
from miniclaw_sessions.printable import printable
from tests.growing import BEGINNING

BASE: dict[str, Any] = {"id": "e1", "parent_id": None, "timestamp": BEGINNING}
READ = ToolCall("c1", "read", '{"limit": 3, "path": "a/b.txt"}')


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (Message.user("  Hello\n\tthere "), "Hello there"),
        (
            Message.user("# A **bold** title\n> with `code`,\n```sh\n[a link](x) 2 ** 3 __init__"),
            "A bold title with code, a link 2 ** 3 __init__",
        ),
        (Message.user((ImagePart("image/png", data="AAAA"), TextPart("See"))), "See"),
        (Message.user((ImagePart("image/png", data="AAAA"),)), "Picture"),
        (
            Message.user((OtherPart({"type": "file", "file": {"filename": "report.pdf", "file_data": "x"}}),)),
            "report.pdf",
        ),
        (Message.assistant((ThinkingPart("hm"),)), "(thinking)"),
        (Message(Role.ASSISTANT, stop_reason="aborted"), "(aborted)"),
        (Message.user(""), "(nothing)"),
        (Message.assistant("Sure.", (READ,)), "Sure. → read a/b.txt"),
        (Message.assistant("", (READ, READ, ToolCall("c2", "bash"))), "→ 2 read, bash"),
        (Message(Role.BASH_EXECUTION, "x", extra={"command": "git status"}), "$ git status"),
    ],
)
def test_a_message_begins_so(message: Message, told: str) -> None:
    assert first_words(MessageEntry(**BASE, message=message)) == told


@pytest.mark.parametrize(
    ("entry", "who", "told"),
    [
        (Compaction(**BASE, summary="so\nfar"), "compaction", "so far"),
        (ModelChange(**BASE, provider="openai", model_id="gpt"), "model", "openai gpt"),
        (Label(**BASE, target_id="e0"), "label", "(removed)"),
        (Custom(**BASE, custom_type="plug\nin"), "plug in", ""),
        (MessageEntry(**BASE, message=Message(Role.OTHER, "x", extra={"role": "cr\x1bitic"})), "cr\\x1bitic", "x"),
    ],
)
def test_what_happened_is_named(entry: Entry, who: str, told: str) -> None:
    assert (speaker(entry), first_words(entry)) == (who, told)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [("", ""), ("{}", ""), ('{"n": 1}', '{"n": 1}'), ("[1]", "[1]"), ('{"half": "fin', '{"half": "fin')],
)
def test_a_call_without_text_is_told_by_its_arguments(arguments: str, told: str) -> None:
    assert call_words(ToolCall("c", "f", arguments)) == told


@given(text=st.text(max_size=50) | st.text(min_size=MAX_CHARACTERS - 2, max_size=3 * MAX_CHARACTERS))
def test_a_line_is_short_and_printable(text: str) -> None:
    line = one_line(text)
    assert line == printable(line)
    assert line.endswith("…") or line == printable(" ".join(text.split()))
    assert len(" ".join(text.split())) <= MAX_CHARACTERS or line.endswith("…")
