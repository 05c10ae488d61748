"""LibreChat's exports of a conversation, after `useExportConversation.ts` and its own examples of 2024 and later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ID = "27b593be-9500-479c-94cb-050cab8f5033"
ROOT = "00000000-0000-0000-0000-000000000000"


def said(message_id: str, parent: str, text: str, second: int, *, user: bool, **fields: Any) -> dict[str, Any]:
    return {
        "messageId": message_id,
        "conversationId": ID,
        "parentMessageId": parent,
        "createdAt": f"2026-05-28T18:08:{second:02}.014Z",
        "isCreatedByUser": user,
        "sender": "User" if user else "GPT-4",
        "model": None if user else "gpt-4o",
        "text": text,
        "error": False,
        "unfinished": False,
        **fields,
    }


CONTENT = [
    {"type": "think", "think": "A coral."},
    {"type": "text", "text": "I look."},
    {"type": "tool_call", "tool_call": {"id": "c1", "name": "web", "args": '{"q":"atoll"}', "output": "a ring"}},
    {"type": "text", "text": {"value": "A ring of coral."}},
]
MESSAGES = [
    said("m1", ROOT, "What is an atoll?", 1, user=True),
    said("m2", "m1", "A reef.", 2, user=False, finish_reason="incomplete"),
    said("m3", "m1", "", 3, user=False, content=CONTENT, finish_reason="stop"),
    said("m4", "m3", "Where?", 4, user=True),
    said("m5", "m4", "In the Pacific.", 5, user=False),
]
DOCUMENT = {
    "conversationId": ID,
    "endpoint": "openAI",
    "title": "Atolls",
    "exportAt": "08:12:16 GMT-0400 (Eastern Daylight Time)",
    "branches": True,
    "recursive": False,
    "options": {"model": "gpt-4o"},
    "messages": MESSAGES,
}


def nested(parent: str = ROOT) -> list[dict[str, Any]]:
    return [{**one, "children": nested(one["messageId"])} for one in MESSAGES if one["parentMessageId"] == parent]


def put(home: Path) -> Path:
    """An export; LibreChat itself has no file that is read."""
    path = home / "Downloads/Atolls.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(DOCUMENT))
    return path
