"""Document 003's files: reading and writing them whole, and lines to make them of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.files.formats.codec import SessionFacts
from miniclaw_sessions.files.formats.entry_line import ENTRY_LINE
from tests.files.formats import codec_files
from tests.files.formats.codec_files import NOW, Read

HEADER = {"type": "session", "id": "sess-1", "version": 1, "timestamp": "2024-01-01T10:00:00Z"}
BASE: dict[str, Any] = {"id": "e1", "parent_id": None, "timestamp": NOW}


def read(*lines: Any) -> Read:
    return codec_files.read(ENTRY_LINE, lines)


def written(entries: Sequence[Entry], facts: SessionFacts | None = None) -> list[bytes]:
    return codec_files.written(ENTRY_LINE, entries, facts)


def objects(lines: Iterable[bytes]) -> list[Any]:
    return [json.loads(line) for line in lines]


def there_and_back(*lines: Any) -> list[Any]:
    """The lines as they are written after they were read; nothing in them may have been wrong."""
    result = read(*lines)
    assert result.findings == []
    return objects(written(result.entries, result.facts))


def entry(kind: str, entry_id: str, parent_id: str | None, **payload: Any) -> dict[str, Any]:
    return {"type": kind, "id": entry_id, "parent_id": parent_id, "timestamp": "2024-01-01T10:00:01Z", **payload}


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """A line whose payload stands beside its id, as it is written: under the name of its type."""
    kind = flat["type"]
    payload = {name: flat[name] for name in FLAT[kind]}
    return {**{name: value for name, value in flat.items() if name not in payload}, kind: payload}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": {"content": content}}


def said(entry_id: str, parent_id: str | None, role: str = "user", *parts: Any) -> dict[str, Any]:
    return entry("message", entry_id, parent_id, message={"role": role, "content": list(parts) or [text("Hello")]})


def use(call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "tool_use": {"id": call_id, "name": "read_file", "input": arguments}}


def result(call_id: str, content: str, *, is_error: bool = False) -> dict[str, Any]:
    return {
        "type": "tool_result",
        "tool_result": {"tool_use_id": call_id, "is_error": is_error, "content": content},
    }


FLAT: dict[str, dict[str, Any]] = {
    "model_change": {"provider": "openai", "model_id": "gpt-x"},
    "thinking_level": {"thinking_level": "high"},
    "label": {"target_id": "e0", "label": "needs_review"},
    "session_info": {"name": "Holiday"},
    "compaction": {"summary": "They met.", "first_kept_entry_id": "e0", "tokens_before": 1500},
    "branch_summary": {"summary": "A dead end.", "from_id": "e0"},
    "custom": {"custom_type": "artifact", "data": {"label": {"a": 1}, "custom": None}},
}
"""S3.17 to S3.24: the payload of every type but message."""


SEVERAL = [
    HEADER,
    said("m1", None),
    said("m2", "m1", "assistant", use("c1"), use("c2"), use("c3")),
    said("m3", "m2", "tool", result("c1", "one"), result("c2", "two", is_error=True), result("c3", "three")),
    said("m4", "m3", "assistant", text("Done")),
    said("m5", "m3", "assistant", text("Done otherwise")),
    entry("leaf", "l1", None, target_id="m3"),
    entry("label", "b1", "m5", label={"target_id": "m3", "label": "here"}),
]
