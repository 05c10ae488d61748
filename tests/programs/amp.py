"""Amp's threads, after those that public repositories have described (January to March 2026)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ID = "T-0199aaaa-bbbb-7ccc-8ddd-eeeeffff0001"
AT = 1_768_178_184_664
USAGE = {
    "model": "claude-opus-4-5-20251101",
    "inputTokens": 12,
    "outputTokens": 80,
    "cacheReadInputTokens": 3_400,
    "cacheCreationInputTokens": 900,
    "timestamp": "2026-01-12T00:38:10.000Z",
}


def said(number: int, role: str, *content: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"role": role, "messageId": number, "content": list(content), **fields}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


CALL = {"type": "tool_use", "complete": True, "id": "toolu_01", "name": "Bash", "input": {"cmd": "ls"}}
RUN = {"status": "done", "result": {"output": "esker.txt\n", "exitCode": 0}}
MESSAGES = [
    said(0, "user", text("What is an esker?"), meta={"sentAt": AT + 1_000}),
    said(
        1,
        "assistant",
        {"type": "thinking", "thinking": "A ridge.", "signature": "sig", "provider": "anthropic"},
        text("I look."),
        CALL,
        state={"type": "complete", "stopReason": "tool_use"},
        usage=USAGE,
    ),
    said(2, "user", {"type": "tool_result", "toolUseID": "toolu_01", "run": RUN}),
    said(3, "assistant", text("A ridge of gravel."), state={"type": "complete", "stopReason": "end_turn"}),
]
DOCUMENT = {
    "v": 42,
    "id": ID,
    "created": AT,
    "title": "Eskers",
    "agentMode": "smart",
    "messages": MESSAGES,
    "env": {"initial": {"trees": [{"uri": "file:///home/ada/project"}]}},
}


def put(home: Path) -> int:
    """A thread; how many there are."""
    path = home / f".local/share/amp/threads/{ID}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(DOCUMENT, indent=2))
    return 1
