"""Sessions as pi writes them: real files, and lines to make others of."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from miniclaw_sessions.core.protocol.entries import (
    METADATA,
    Compaction,
    Custom,
    Entry,
    LeafMove,
    MessageEntry,
    ModelChange,
)
from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall
from miniclaw_sessions.files.formats.codec import SessionFacts
from miniclaw_sessions.files.formats.pi import PI
from tests.files.formats import codec_files
from tests.files.formats.codec_files import Read

DATA = Path(__file__).parents[2] / "data"
LARGE = (DATA / "pi-v1-large-session.jsonl").read_bytes().splitlines()
RESUMED = (DATA / "pi-v3-resumed-session.jsonl").read_bytes().splitlines()
EVENTS = (DATA / "pi-v3-json-mode-stdout.jsonl").read_bytes().splitlines()
AT = "2026-02-03T04:05:06.789Z"
MOMENT = datetime(2026, 2, 3, 4, 5, 6, 789000, tzinfo=UTC)
SAID = 1770091506000
HEADER = {"type": "session", "version": 3, "id": "session-1", "timestamp": AT, "cwd": "/home/ada/ship"}


def written(result: Read) -> list[bytes]:
    return write(result.entries, result.facts)


def write(entries: Sequence[Entry], facts: SessionFacts) -> list[bytes]:
    return codec_files.written(PI, entries, facts)


def line(entry_id: str, parent: Any, entry_type: str, /, **fields: Any) -> dict[str, Any]:
    return {"type": entry_type, "id": entry_id, "parentId": parent, "timestamp": AT, **fields}


def said(entry_id: str, parent: Any, content: Any, **fields: Any) -> dict[str, Any]:
    return line(entry_id, parent, "message", message={"role": "user", "content": content, "timestamp": SAID, **fields})


def reply(entry_id: str, parent: str | None, *content: Any, **fields: Any) -> dict[str, Any]:
    usage = {"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 3}
    cost = {"input": 0.5, "output": 1, "cacheRead": 0, "cacheWrite": 0, "total": 1.5}
    message = {
        "role": "assistant",
        "content": list(content),
        "api": "test-api",
        "provider": "test",
        "model": "model-1",
        "usage": {**usage, "cost": cost},
        "stopReason": "stop",
        "timestamp": SAID,
        **fields,
    }
    return line(entry_id, parent, "message", message=message)


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def call(call_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "toolCall", "id": call_id, "name": "read", "arguments": {"path": "a"}, **fields}


def answer(entry_id: str, parent: str | None, call_id: str, **fields: Any) -> dict[str, Any]:
    known = {"role": "toolResult", "toolCallId": call_id, "toolName": "read", "content": [text("contents")]}
    return line(entry_id, parent, "message", message={**known, **fields, "isError": False, "timestamp": SAID})


def texts_of(result: Read) -> list[str]:
    return [message.text for message in result.context]


TREE = [
    line("m1", None, "model_change", provider="anthropic", modelId="claude-x"),
    line("t1", "m1", "thinking_level_change", thinkingLevel="high"),
    said("u1", "t1", "plain text"),
    reply(
        *("a1", "u1"),
        {"type": "thinking", "thinking": "hm", "thinkingSignature": "c2ln"},
        {"type": "thinking", "thinking": "", "thinkingSignature": "b3BhcXVl", "redacted": True},
        {"type": "text", "text": "I read.", "textSignature": '{"v":1,"id":"msg_1"}'},
        call("c1", thoughtSignature="sig"),
        call("c2", name="list", arguments={}),
        stopReason="toolUse",
        responseId="resp_1",
    ),
    answer("r1", "a1", "c1", details={"lines": [1, 2]}),
    answer("r2", "r1", "c2", content=[text("see"), {"type": "image", "data": "QUJD", "mimeType": "image/png"}]),
    reply("a2", "r2", text("Two"), call("c3"), text("calls apart"), call("c4", partialJson='{"pa'), text("!")),
    reply("a3", "a2", stopReason="error", errorMessage="overloaded"),
    line("n1", "a3", "session_info", name="A title"),
    line("l1", "n1", "label", targetId="u1", label="start"),
    line("l2", "l1", "label", targetId="u1"),
    line("b1", "t1", "branch_summary", fromId="t1", summary="tried a", details={"readFiles": ["a"]}, fromHook=False),
    line("b2", None, "branch_summary", fromId="root", summary="from the root", usage={"input": 1}),
    {"type": "custom", "customType": "my-state", "data": {"n": 1}, "id": "x1", "parentId": "b1", "timestamp": AT},
    {"type": "custom", "customType": "my-mark", "id": "x2", "parentId": "x1", "timestamp": AT},
    {"type": "custom", "customType": "my-list", "data": [1], "id": "x3", "parentId": "x2", "timestamp": AT},
    {
        "type": "custom_message",
        "customType": "ext",
        "content": [text("injected")],
        "display": True,
        "details": {"k": None},
        "id": "y1",
        "parentId": "x3",
        "timestamp": AT,
    },
    {
        "type": "custom_message",
        "customType": "ext",
        "content": "hidden",
        "display": False,
        "id": "y2",
        "parentId": "y1",
        "timestamp": AT,
    },
    line(
        *("s1", "y2", "message"),
        message={
            "role": "bashExecution",
            "command": "ls",
            "output": "a b",
            "exitCode": 0,
            "cancelled": False,
            "truncated": False,
            "timestamp": SAID,
            "excludeFromContext": True,
        },
    ),
    line(
        *("s2", "s1", "message"),
        message={
            "role": "custom",
            "customType": "ext",
            "content": "note",
            "display": True,
            "details": {"a": 1},
            "timestamp": SAID,
        },
    ),
    line("s3", "s2", "message", message={"role": "branchSummary", "summary": "b", "fromId": "u1", "timestamp": SAID}),
    line(
        *("s4", "s3", "message"),
        message={"role": "compactionSummary", "summary": "c", "tokensBefore": 7, "timestamp": SAID},
    ),
    line("s5", "s4", "message", message={"role": "system", "content": "be kind", "timestamp": SAID}),
    line(
        *("k1", "s5", "compaction"),
        summary="so far",
        firstKeptEntryId="s2",
        tokensBefore=50000,
        details={"readFiles": [], "modifiedFiles": ["b"]},
        fromHook=True,
    ),
    line(
        *("k2", "k1", "compaction"),
        summary="all",
        firstKeptEntryId=None,
        tokensBefore=9,
        retainedTail=[{"role": "user", "content": "the tail", "timestamp": SAID}],
        systemMessage={"role": "system", "content": "be kind"},
        usage={"input": 5},
    ),
    line("z1", "k2", "usage", kind="cache_warm", provider="p", model="m", usage={"input": 3}),
    line("z2", "z1", "context_edit", targetId="s5", replacement=None),
    said("u2", "z2", [text("after"), {"type": "image", "data": "QUJD", "mimeType": "image/png"}]),
]
SESSION = [HEADER, *TREE]


OLD_HEADER = {
    "type": "session",
    "id": "s",
    "timestamp": AT,
    "cwd": "/x",
    "provider": "openai",
    "modelId": "gpt",
    "thinkingLevel": "low",
    "branchedFrom": "/old.jsonl",
}


def old(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "timestamp": AT, **fields}


def old_user(content: str) -> dict[str, Any]:
    return old("message", message={"role": "user", "content": content, "timestamp": SAID})


def old_compaction(index: Any) -> dict[str, Any]:
    return old("compaction", summary="sum", firstKeptEntryIndex=index, tokensBefore=3)


OURS = write(
    [
        ModelChange(id="m", parent_id=None, timestamp=MOMENT, provider="p", model_id="m-1"),
        MessageEntry(id="a", parent_id="m", timestamp=MOMENT, message=Message.user("hi"), idempotency_key="k"),
        MessageEntry(
            id="b",
            parent_id="a",
            timestamp=MOMENT,
            message=Message.assistant("I look", (ToolCall("c", "look", '{"at":  1}', "seen"),)),
        ),
        Compaction(id="k", parent_id="b", timestamp=MOMENT, first_kept_entry_id="a", reason="manual", tokens_after=1),
        Custom(id="d", parent_id="k", timestamp=MOMENT, custom_type=METADATA, data={"a": [1]}),
        LeafMove(id="l", parent_id="k", timestamp=MOMENT, target_id="a"),
        MessageEntry(id="e", parent_id="a", timestamp=MOMENT, message=Message(Role.BRANCH_SUMMARY, "left")),
    ],
    SessionFacts(session_id="telegram_1", created_at=MOMENT, title="Ships"),
)
