"""An entry in a few words on one line: its speaker, and its beginning. Safe to print with any content."""

from __future__ import annotations

import re
from collections import Counter

from miniclaw_sessions.core.protocol.entries import (
    SUSPENDED,
    BranchSummary,
    Compaction,
    Custom,
    Entry,
    Label,
    MessageEntry,
    ModelChange,
    SessionInfo,
    ThinkingLevelChange,
)
from miniclaw_sessions.core.protocol.json_values import parse_json
from miniclaw_sessions.core.protocol.messages import (
    ImagePart,
    Message,
    OtherPart,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
)
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.printable import printable

MAX_CHARACTERS = 160
"""Characters of a text that are taken for a line."""

_MARKS = (
    (re.compile(r"^[ \t]*(?:```.*|#{1,6}[ \t]+|>[ \t]?)", re.MULTILINE), ""),
    (re.compile(r"!?\[([^\]\n]*)\]\([^)\s]*\)"), r"\1"),
    (re.compile(r"(\*\*|`)(?=\S)(.+?)(?<=\S)\1"), r"\2"),
)
"""Marks of Markdown, and their replacements on one line: fences, headings, quotes, links, bold and code."""

NAMES = {
    Role.SYSTEM: "System",
    Role.USER: "User",
    Role.ASSISTANT: "Assistant",
    Role.TOOL_RESULT: "Tool result",
    Role.BASH_EXECUTION: "Shell",
    Role.CUSTOM: "Note",
    Role.BRANCH_SUMMARY: "Summary of a branch that was left",
    Role.COMPACTION_SUMMARY: "Summary of what came before",
}
"""Names of the roles, for people."""

_SPEAKERS = {
    Role.TOOL_RESULT: "tool",
    Role.BASH_EXECUTION: "shell",
    Role.CUSTOM: "note",
    Role.BRANCH_SUMMARY: "summary",
    Role.COMPACTION_SUMMARY: "compaction",
}
_KINDS: dict[type, str] = {
    ModelChange: "model",
    ThinkingLevelChange: "thinking",
    SessionInfo: "title",
    Label: "label",
    Compaction: "compaction",
    BranchSummary: "summary",
}


def named(message: Message) -> str:
    """The speaker as a heading: a role, and a name if there is one. The name may contain anything."""
    who = NAMES.get(message.role) or message.role_text or message.role.value
    return f"{who}: {message.name}" if message.name else who


def speaker(entry: Entry) -> str:
    """The speaker or the kind of an entry: `user`, `assistant`, `tool`, `compaction`, `title`, `unknown`."""
    match entry:
        case MessageEntry(message=message):
            return _SPEAKERS.get(message.role) or one_line(message.role_text or message.role.value)
        case Custom(custom_type=kind):
            return "waits for an answer" if kind == SUSPENDED else one_line(kind)
        case _:
            return _KINDS.get(type(entry), "unknown")


def first_words(entry: Entry) -> str:
    """The beginning of an entry; an entry without text is described in brackets."""
    text = ""
    match entry:
        case MessageEntry(message=message):
            return _words_of(message)
        case ModelChange(provider=provider, model_id=model):
            text = f"{provider} {model}"
        case ThinkingLevelChange(thinking_level=level):
            text = level
        case SessionInfo(name=name):
            text = name
        case Label(label=label):
            text = label or "(removed)"
        case Compaction(summary=summary) | BranchSummary(summary=summary):
            text = summary
    return one_line(text)


def call_words(call: ToolCall) -> str:
    """The object of a tool call: its first text argument, or else all arguments."""
    try:
        arguments = parse_json(call.arguments.encode())
    except (InvalidMessage, UnicodeEncodeError):
        return one_line(call.arguments)
    if not isinstance(arguments, dict):
        return one_line(call.arguments)
    texts = (value for value in arguments.values() if isinstance(value, str) and value.strip())
    return one_line(next(texts, call.arguments if arguments else ""))


def one_line(text: str) -> str:
    """The beginning of a text from any source, with white space as single spaces."""
    beginning = " ".join(text[: 2 * MAX_CHARACTERS].split())
    is_whole = len(text) <= 2 * MAX_CHARACTERS and len(beginning) <= MAX_CHARACTERS
    return printable(beginning) if is_whole else f"{printable(beginning[: MAX_CHARACTERS - 1])}…"


def _words_of(message: Message) -> str:
    beginning = _first_text(message)[: 3 * MAX_CHARACTERS]
    for marks, rest in _MARKS:
        beginning = marks.sub(rest, beginning)
    text = one_line(beginning)
    calls = message.tool_calls or ()
    if not calls:
        return text or _described(message)
    if len(calls) == 1:
        return f"{text} → {one_line(calls[0].name)} {call_words(calls[0])}".strip()
    names = Counter(call.name for call in calls)
    listed = ", ".join(name if count == 1 else f"{count} {name}" for name, count in names.items())
    return f"{text} → {one_line(listed)}".strip()


def _first_text(message: Message) -> str:
    command = (message.extra or {}).get("command")
    if message.role is Role.BASH_EXECUTION and isinstance(command, str):
        return f"$ {command}"
    if isinstance(message.content, str):
        return message.content
    return next((part.text for part in message.content if isinstance(part, TextPart) and part.text.strip()), "")


def _described(message: Message) -> str:
    parts = () if isinstance(message.content, str) else message.content
    for part in parts:
        match part:
            case ImagePart():
                return "Picture"
            case OtherPart(fields={"type": "file", "file": {"filename": str(name)}}):
                return one_line(name)
            case ThinkingPart():
                return "(thinking)"
    return f"({one_line(message.stop_reason or 'nothing')})"
