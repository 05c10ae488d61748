"""Goose's sessions, after `session_manager.rs` (schema 16), `storage.rs`, `legacy.rs` and `conversation/message.rs`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.programs.databases import make

PLACE = Path(".local/share/goose/sessions")
AT = 1_788_189_023


def said(role: str, at: int, *content: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "id": f"msg_{role}_{at}",
        "role": role,
        "created": AT + at,
        "content": list(content),
        "metadata": {"userVisible": True, "agentVisible": True, **metadata},
    }


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(call_id: str, command: str) -> dict[str, Any]:
    value = {"name": "developer__shell", "arguments": {"command": command}}
    return {"type": "toolRequest", "id": call_id, "toolCall": {"status": "success", "value": value}}


def result(call_id: str, value: Any) -> dict[str, Any]:
    return {"type": "toolResponse", "id": call_id, "toolResult": {"status": "success", "value": value}}


USAGE = {"inputTokens": 10_165, "outputTokens": 61, "totalTokens": 10_226, "cost": 0.03141}
MODEL = {"provider": "anthropic", "requestedModel": "claude-sonnet-4-5"}
ID = "20260831_1"

HEADER = {
    "id": ID,
    "name": "A lagoon",
    "working_dir": "/home/ada/project",
    "created_at": "2026-08-31 15:10:23",
    "updated_at": "2026-08-31 15:12:00",
    "extension_data": {},
    "accumulated_cost": 0.03141,
}
SESSION = [
    HEADER,
    said("user", 0, text("What is a lagoon?")),
    said(
        "assistant",
        2,
        {"type": "thinking", "thinking": "Let me look.", "signature": "sig"},
        text("I look."),
        call("call_1", "ls"),
        inference=MODEL,
        usage=USAGE,
    ),
    said("user", 3, result("call_1", {"content": [text("README.md\nsrc")], "isError": False})),
    said("assistant", 5, text("Shallow water behind a bar."), inference=MODEL),
]
COMPACTED = [
    HEADER,
    *({**line, "metadata": {**line["metadata"], "agentVisible": False}} for line in SESSION[1:]),
    said("user", 6, text("A lagoon was explained."), userVisible=False),
    said("assistant", 6, text("I go on from the summary."), userVisible=False),
    said("user", 9, text("And a fjord?")),
]
OLD_ID = "20250514_101500"
OLD = [  # before 1.10: the whole file is written again with each message
    {
        "working_dir": "/home/ada",
        "description": "Say hello",
        "message_count": 4,
        "total_tokens": 687,
        "input_tokens": 673,
        "output_tokens": 14,
        "accumulated_total_tokens": 1373,
    },
    {"role": "user", "created": 1_747_178_328, "content": [text("Is there an isthmus here?")]},
    {"role": "assistant", "created": 1_747_178_330, "content": [call("toolu_1", "ls -la")]},
    {"role": "user", "created": 1_747_178_331, "content": [result("toolu_1", [text("total 0")])]},
    {"role": "assistant", "created": 1_747_178_333, "content": [text("There is none.")]},
]

OLD_SAID = ["Is there an isthmus here?", "", "total 0", "There is none."]

SCHEMA = """
CREATE TABLE schema_version (version INTEGER PRIMARY KEY, applied_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP);
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, name TEXT NOT NULL DEFAULT '', description TEXT NOT NULL DEFAULT '',
    user_set_name BOOLEAN DEFAULT FALSE, session_type TEXT NOT NULL DEFAULT 'user', working_dir TEXT NOT NULL,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP, updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    extension_data TEXT DEFAULT '{}', accumulated_cost REAL, provider_name TEXT, model_config_json TEXT,
    parent_session_id TEXT
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, message_id TEXT, session_id TEXT NOT NULL REFERENCES sessions(id),
    role TEXT NOT NULL, content_json TEXT NOT NULL, created_timestamp INTEGER NOT NULL,
    timestamp TIMESTAMP DEFAULT CURRENT_TIMESTAMP, tokens INTEGER, metadata_json TEXT
);
"""


def row_of(session_id: str, line: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "messages", {
        "session_id": session_id,
        "message_id": line.get("id"),
        "role": line["role"],
        "content_json": line["content"],
        "created_timestamp": line["created"],
        "metadata_json": line.get("metadata", {}),
    }


def put_database(home: Path, lines: list[dict[str, Any]] = SESSION, place: Path = PLACE) -> Path:
    header, *messages = lines
    rows = [("sessions", header), *(row_of(header["id"], line) for line in messages)]
    empty = ("sessions", {**header, "id": "20260831_2"})  # opened, and nothing said
    return make(home / place / "sessions.db", SCHEMA, [*rows, empty], is_wal=True)


def put_file(home: Path, name: str = OLD_ID) -> Path:
    path = home / PLACE / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in OLD))
    return path


def put(home: Path) -> int:
    """Both forms; how many sessions there are."""
    put_database(home)
    put_file(home)
    return 2
