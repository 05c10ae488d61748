"""Cursor's databases, after what public repositories have found in them (2024 to Cursor 3.17)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.programs.databases import make

ID = "98251e54-8aed-4515-b2b4-08895453eedd"
OLD_ID = "3f1d9a52-1c2f-4d8a-8a51-64d2f5a0b7c1"
TAB_ID = "5f0e0a3c-9a1d-4b1b-a2c8-7c1d2e3f4a5b"
PLACE = Path(".config/Cursor/User")
AT = 1_788_192_000_000


def bubble(bubble_id: str, kind: int, second: int, text: str = "", **fields: Any) -> dict[str, Any]:
    rest = {"richText": "", "context": {}, "images": [], "tokenCount": {"inputTokens": 0, "outputTokens": 0}}
    at = f"2026-08-31T16:00:{second:02}.627Z"
    return {"_v": 3, "type": kind, "bubbleId": bubble_id, "text": text, "createdAt": at, **rest, **fields}


TOOL = {
    "tool": 15,
    "name": "run_terminal_command_v2",
    "toolCallId": "toolu_012X",
    "params": '{"command":"ls"}',
    "rawArgs": "",
    "status": "completed",
    "result": "karst.txt\n",
}
MODEL: dict[str, Any] = {"modelInfo": {"modelName": "claude-4.5-sonnet"}}
BUBBLES = [
    bubble("b1", 1, 1, "What is karst?"),
    bubble("b2", 2, 2, thinking={"text": "Limestone.", "signature": "sig"}, **MODEL),
    bubble("b3", 2, 3, toolFormerData=TOOL, tokenCount={"inputTokens": 20, "outputTokens": 9}, **MODEL),
    bubble("b4", 2, 4, "Dissolved limestone.", **MODEL),
]
COMPOSER: dict[str, Any] = {
    "_v": 17,
    "composerId": ID,
    "name": "Karst",
    "createdAt": AT,
    "lastUpdatedAt": AT + 9_000,
    "status": "completed",
    "modelConfig": {"modelName": "default"},
    "fullConversationHeadersOnly": [{"bubbleId": one["bubbleId"], "type": one["type"]} for one in BUBBLES],
}
LINES = [{"composer": {**COMPOSER, "fullConversationHeadersOnly": None}}, *({"bubble": one} for one in BUBBLES)]
OLD = {
    "composerId": OLD_ID,
    "name": "Dolines",
    "createdAt": AT,
    "conversation": [
        {"type": 1, "bubbleId": "o1", "text": "What is a doline?"},
        {"type": 2, "bubbleId": "o2", "text": "A sinkhole."},
    ],
}
TAB = {
    "tabId": TAB_ID,
    "chatTitle": "Poljes",
    "lastSendTime": AT,
    "bubbles": [
        {"type": "user", "id": "t1", "text": "What is a polje?"},
        {"type": "ai", "id": "t2", "rawText": "A large flat plain."},
    ],
}
ITEMS = "CREATE TABLE ItemTable (key TEXT UNIQUE ON CONFLICT REPLACE, value BLOB);"
SCHEMA = ITEMS + "CREATE TABLE cursorDiskKV (key TEXT UNIQUE ON CONFLICT REPLACE, value BLOB);"
HEADERS = (
    "CREATE TABLE composerHeaders (composerId TEXT PRIMARY KEY, createdAt INTEGER, lastUpdatedAt INTEGER, value TEXT);"
)


def keyed(key: str, value: Any) -> tuple[str, dict[str, Any]]:
    return "cursorDiskKV", {"key": key, "value": json.dumps(value).encode()}


def put(home: Path, place: Path = PLACE, composer: dict[str, Any] = COMPOSER, *, has_headers: bool = True) -> int:
    """The databases of the program and of a workspace; how many chats there are."""
    draft = {"composerId": "draft", "createdAt": AT, "fullConversationHeadersOnly": []}
    rows = [keyed(f"bubbleId:{ID}:{one['bubbleId']}", one) for one in BUBBLES]
    rows += [keyed(f"composerData:{ID}", composer), keyed(f"composerData:{OLD_ID}", OLD)]
    rows += [keyed("composerData:draft", draft), keyed(f"checkpointId:{ID}:c1", {"files": []})]
    if has_headers:
        rows.append(("composerHeaders", {"composerId": ID, "createdAt": AT, "lastUpdatedAt": AT + 9_000}))
    make(home / place / "globalStorage/state.vscdb", SCHEMA + (HEADERS if has_headers else ""), rows)
    listed = {"allComposers": [{"composerId": ID, "name": "Karst"}]}  # since 0.46 only what there is
    items = {"workbench.panel.aichat.view.aichat.chatdata": {"tabs": [TAB]}, "composer.composerData": listed}
    rows = [("ItemTable", {"key": key, "value": json.dumps(value)}) for key, value in items.items()]
    make(home / place / "workspaceStorage/0123abcd/state.vscdb", SCHEMA, rows)
    return 3
