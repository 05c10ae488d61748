"""Crush's sessions, after its migrations (`internal/db/migrations`, 2026-01) and `internal/message/content.go`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.programs.databases import make

ID = "0b5e9c1e-6a0f-4c39-9f55-5c3b0f9d2a11"
AT = 1_788_190_000


def part(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data}


def row(entry_id: str, role: str, at: int, *parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    row = {"id": entry_id, "session_id": ID, "role": role, "parts": list(parts), "model": None, "provider": None}
    return {**row, "created_at": AT + at, "updated_at": AT + at, "finished_at": None, "is_summary_message": 0, **fields}


def call(call_id: str, command: str) -> dict[str, Any]:
    arguments = json.dumps({"command": command})
    return part("tool_call", id=call_id, name="bash", input=arguments, provider_executed=False, finished=True)


def result(call_id: str, text: str) -> dict[str, Any]:
    fields = {"tool_call_id": call_id, "name": "bash", "content": text, "data": "", "mime_type": "", "metadata": ""}
    return part("tool_result", **fields, is_error=False)


MODEL = {"model": "claude-sonnet-4", "provider": "anthropic"}
SESSION = {
    "id": ID,
    "parent_session_id": None,
    "title": "Moraines",
    "message_count": 4,
    "prompt_tokens": 120,
    "completion_tokens": 30,
    "cost": 0.0123,
    "updated_at": AT + 9,
    "created_at": AT,
    "summary_message_id": None,
    "todos": None,
}
THINKING = part("reasoning", thinking="Stones.", signature="sig", thought_signature="", tool_id="", responses_data=None)
END = part("finish", reason="end_turn", time=AT + 6)
MESSAGES = [
    row("m1", "user", 0, part("text", text="What is a moraine?")),
    row("m2", "assistant", 1, THINKING, part("text", text="I look."), call("c1", "ls"),
        part("finish", reason="tool_use", time=AT + 2), **MODEL),
    row("m3", "tool", 2, result("c1", "moraine.txt")),
    row("m4", "assistant", 2, part("text", text="Debris of a glacier."), END, **MODEL),
]  # fmt: skip
LINES = [{"session": SESSION}, *({"message": message} for message in MESSAGES)]
SUMMARY = {**row("m5", "assistant", 5, part("text", text="Moraines were explained."), END), "is_summary_message": 1}
UNFINISHED = row("m6", "assistant", 9, part("text", text="I am just say"), **MODEL)

SCHEMA = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, parent_session_id TEXT, title TEXT NOT NULL, message_count INTEGER NOT NULL DEFAULT 0,
    prompt_tokens INTEGER NOT NULL DEFAULT 0, completion_tokens INTEGER NOT NULL DEFAULT 0,
    cost REAL NOT NULL DEFAULT 0.0,
    updated_at INTEGER NOT NULL, created_at INTEGER NOT NULL, summary_message_id TEXT, todos TEXT
);
CREATE TABLE messages (
    id TEXT PRIMARY KEY, session_id TEXT NOT NULL, role TEXT NOT NULL, parts TEXT NOT NULL default '[]', model TEXT,
    created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, finished_at INTEGER, provider TEXT,
    is_summary_message INTEGER DEFAULT 0 NOT NULL,
    FOREIGN KEY (session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
"""


def put(home: Path, project: str = "project", messages: list[dict[str, Any]] = MESSAGES) -> int:
    """A project with its database, in the list of projects; how many sessions there are."""
    directory = home / project / ".crush"
    make(directory / "crush.db", SCHEMA, [("sessions", SESSION), *(("messages", one) for one in messages)], is_wal=True)
    listed = home / ".local/share/crush/projects.json"
    listed.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(listed.read_text())["projects"] if listed.exists() else []
    known.append({"path": str(home / project), "data_dir": str(directory), "last_accessed": "2026-08-31T15:10:23Z"})
    listed.write_text(json.dumps({"projects": known}))
    return 1
