"""Whether a file is one of pi's sessions, by its beginning.

Three kinds of files begin alike: pi's sessions (camelCase, `parentId`), the JSONL files of document 003 (snake_case,
`parent_id`), and the event stream of pi's JSON mode, whose header is a session's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.formats.codec import Sample
from miniclaw_sessions.files.formats.pi.entries import TYPES

EVENTS = frozenset(
    {
        *("agent_start", "agent_end", "turn_start", "turn_end"),
        *("message_start", "message_update", "message_end"),
        *("tool_execution_start", "tool_execution_update", "tool_execution_end"),
    }
)
"""The types of lines in which pi's JSON mode reports what it is doing."""

_ROLES = frozenset({"user", "assistant", "toolResult", "bashExecution", "hookMessage", "custom"})
_TREE_BEGAN = 2  # the first version whose header states it


def is_pi(sample: Sample) -> bool:
    """Whether these lines are the beginning of a session of pi's.

    Raises:
        ImportRefused: they are the event stream of pi's JSON mode.
    """
    lines = [line for line in sample.lines if isinstance(line, dict)]
    types = [line.get("type") for line in lines if isinstance(line.get("type"), str)]
    entries = sum(1 for line in lines if _is_entry(line))
    if "agent_start" in types and sum(1 for name in types if name in EVENTS) > entries:
        raise event_stream()
    if any("parent_id" in line or "parent_session" in line for line in lines):
        return False
    return entries > 0 or any(_is_header(line) for line in lines)


def event_stream() -> ImportRefused:
    """The refusal of pi's event stream, which says what it is and where the session is."""
    return ImportRefused(
        "this is the event stream that pi prints in its JSON mode, not a session file; "
        "the session itself is under ~/.pi/agent/sessions, in the file whose name ends with the id of its first line"
    )


def _is_header(line: Mapping[str, Any]) -> bool:
    version = line.get("version", _TREE_BEGAN)
    return line.get("type") == "session" and "cwd" in line and type(version) is int and version >= _TREE_BEGAN


def _is_entry(line: Mapping[str, Any]) -> bool:
    """An entry of pi's: with a parent, or one of version 1, whose message has a time in milliseconds."""
    kind = line.get("type")
    if not isinstance(kind, str) or kind not in TYPES:
        return False
    if "parentId" in line:
        return "id" in line
    match line:
        case {"timestamp": str(), "message": {"role": str(role), "timestamp": int()}}:
            return role in _ROLES and "id" not in line
        case _:
            return False
