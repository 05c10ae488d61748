"""Copilot CLI's sessions, after the events of its SDK (`session-events.ts`) and its older files of 2025-10."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ID = "0cb916db-26aa-40f2-86b5-1ba81b225fd2"
OLD_ID = "7d7c0d5e-3b0a-4d3a-9d0e-8a5b8a2f4c11"


def event(number: int, kind: str, *, after: int | None = -1, **data: Any) -> dict[str, Any]:
    parent = number - 1 if after == -1 else after
    return {
        "type": kind,
        "data": data,
        "id": f"00000000-0000-4000-8000-{number:012}",
        "timestamp": f"2026-05-06T08:41:{number:02}.000Z",
        "parentId": None if parent is None or number == 1 else f"00000000-0000-4000-8000-{parent:012}",
    }


CALL = {"toolCallId": "call_1", "name": "bash", "arguments": {"command": "ls"}, "type": "function"}
EVENTS = [
    event(1, "session.start", sessionId=ID, version=1, producer="copilot-agent", copilotVersion="1.0.41",
          startTime="2026-05-06T08:41:00.000Z", selectedModel="claude-sonnet-4.5", context={"cwd": "/home/ada"}),
    event(2, "user.message", content="What is a geyser?", transformedContent="<now>…</now>\n\nWhat is a geyser?"),
    event(3, "assistant.turn_start", turnId="0"),
    event(4, "assistant.message", messageId="m1", content="I look.", toolRequests=[CALL], reasoningText="Hot water.",
          outputTokens=40),
    event(5, "tool.execution_start", toolCallId="call_1", toolName="bash", arguments={"command": "ls"}),
    event(6, "tool.execution_complete", toolCallId="call_1", success=True, result={"content": "geyser.txt"}),
    event(7, "assistant.message", messageId="m2", content="A hot spring that erupts."),
    event(8, "assistant.turn_end", turnId="0"),
    event(9, "session.title_changed", title="Geysers"),
]  # fmt: skip
SUBAGENT = [
    *EVENTS[:5],
    event(6, "assistant.message", messageId="s1", content="The subagent looks.", parentToolCallId="call_1"),
    event(7, "assistant.message", messageId="s2", content="The subagent found it.", parentToolCallId="call_1"),
    event(8, "tool.execution_complete", toolCallId="call_1", success=True, result={"content": "found"}),
    event(9, "assistant.message", messageId="m2", content="A hot spring that erupts."),
]
REWOUND = [
    *EVENTS,
    event(10, "user.message", after=1, content="What is a fjord?"),
    event(11, "assistant.message", messageId="m3", content="An inlet."),
]
HISTORY = {
    "sessionId": OLD_ID,
    "startTime": "2025-10-08T21:10:16.398Z",
    "chatMessages": [
        {"role": "user", "content": "What is an oasis?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "oasis.txt"},
        {"role": "assistant", "content": "Water in a desert."},
    ],
    "timeline": [],
}


def put(home: Path) -> int:
    """A session in each of the three places; how many there are."""
    root = home / ".copilot"
    for name, session_id in ((f"session-state/{ID}/events.jsonl", ID), ("session-state/early.jsonl", "early")):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        first = {**EVENTS[0], "data": {**EVENTS[0]["data"], "sessionId": session_id}}
        path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in [first, *EVENTS[1:]]))
    (root / f"session-state/{ID}/workspace.yaml").write_text(f"id: {ID}\n")
    history = root / f"history-session-state/session_{OLD_ID}_1759957816398.json"
    history.parent.mkdir(parents=True, exist_ok=True)
    history.write_text(json.dumps(HISTORY, indent=2))
    return 3
