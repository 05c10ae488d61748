"""Open WebUI's chats, after its `models/chats.py` and `models/chat_messages.py` (0.6 to 0.8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.programs.databases import make

ID = "6f0c2a9e-4b1d-4f6e-9a55-0d7f2f0c1b21"
AT = 1_788_191_000


def said(message_id: str, parent: str | None, role: str, content: Any, at: int, **fields: Any) -> dict[str, Any]:
    message = {"id": message_id, "parentId": parent, "childrenIds": [], "role": role, "content": content}
    return {**message, "timestamp": AT + at, **fields}


def text(words: str, kind: str = "output_text") -> list[dict[str, Any]]:
    return [{"type": kind, "text": words}]


OUTPUT = [
    {"type": "reasoning", "id": "r1", "content": text("Cold and dry."), "summary": None},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Yakutsk"}'},
    {"type": "function_call_output", "call_id": "c1", "output": text("-40 C", "input_text")},
    {"type": "message", "id": "m1", "role": "assistant", "content": text("Frozen ground.")},
]
DETAILS = (
    '<details type="reasoning" done="true" duration="3">\n<summary>Thought for 3 seconds</summary>\n'
    "&gt; Cold &amp; dry.\n</details>\nI look.\n"
    '<details type="tool_calls" done="true" id="c2" name="weather" arguments="{&quot;city&quot;: &quot;Nome&quot;}" '
    'result="&quot;-20 C&quot;">\n<summary>Tool Executed</summary>\n</details>\nFrozen soil.'
)
USAGE = {
    "prompt_tokens": 30,
    "completion_tokens": 12,
    "total_tokens": 42,
    "prompt_tokens_details": {"cached_tokens": 10},
}
MESSAGES = [
    said("q1", None, "user", "What is permafrost?", 0),
    said("a1", "q1", "assistant", "Frozen ground.", 1, model="deepseek-r1", done=True, output=OUTPUT, usage=USAGE),
    said("a2", "q1", "assistant", DETAILS, 2, model="llama3.1", done=True),
    said("q2", "a1", "user", "And thermokarst?", 3, files=[{"type": "image", "url": "data:image/png;base64,QUJD"}]),
    said("a3", "q2", "assistant", "Land that sinks.", 4, model="deepseek-r1", done=True),
]


def chat(messages: list[dict[str, Any]] = MESSAGES, current: str = "a3") -> dict[str, Any]:
    by_id = {message["id"]: message for message in messages[::-1]}  # a child may stand before its parent
    history = {"messages": by_id, "currentId": current}
    return {"title": "Permafrost", "models": ["deepseek-r1"], "history": history, "messages": []}


def row(content: dict[str, Any], chat_id: str = ID) -> dict[str, Any]:
    return {
        "id": chat_id,
        "user_id": "u1",
        "title": "Permafrost",
        "chat": content,
        "created_at": AT,
        "updated_at": AT + 5,
        "share_id": None,
        "archived": 0,
        "pinned": 0,
        "meta": {},
        "folder_id": None,
    }


HEADER = {"chat": row({"title": "Permafrost", "history": {"currentId": "a3"}})}
LINES = [HEADER, *({"message": one} for one in MESSAGES)]
SCHEMA = """
CREATE TABLE "chat" (
    id VARCHAR(255) NOT NULL PRIMARY KEY, user_id VARCHAR(255) NOT NULL, title TEXT NOT NULL, chat JSON,
    created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL, share_id TEXT, archived BOOLEAN, pinned BOOLEAN,
    meta JSON DEFAULT '{}', folder_id TEXT
);
"""
NEWER = """
CREATE TABLE chat_message (
    id TEXT NOT NULL PRIMARY KEY, chat_id TEXT NOT NULL, user_id TEXT, role TEXT NOT NULL, parent_id TEXT, content JSON,
    output JSON, model_id TEXT, files JSON, sources JSON, embeds JSON, meta JSON, done BOOLEAN, status_history JSON,
    error JSON, usage JSON, context_summary TEXT, created_at BIGINT, updated_at BIGINT
);
"""


def put(home: Path, messages: list[dict[str, Any]] = MESSAGES, place: str = ".open-webui") -> int:
    """Its database; how many chats there are."""
    make(home / place / "webui.db", SCHEMA, [("chat", row(chat(messages)))])
    return 1
