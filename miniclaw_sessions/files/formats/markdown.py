"""A session as Markdown that people like to read: one way only, it is never read back.

`render_entry` gives one piece, so that a transcript of any length can be written as it is read; `MarkdownWriter` says
where the conversation went back and took another way.
What strangers and models said stands in block quotes and fences that it cannot end, so that no text can pass itself off
as another message; control characters are shown, not obeyed.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from miniclaw_sessions.core.history.first_words import NAMES, first_words, named, speaker
from miniclaw_sessions.core.protocol.entries import (
    METADATA,
    BranchSummary,
    Compaction,
    Custom,
    Entry,
    Label,
    LeafMove,
    MessageEntry,
    ModelChange,
    SessionInfo,
    ThinkingLevelChange,
    moves_leaf,
)
from miniclaw_sessions.core.protocol.json_values import in_utc
from miniclaw_sessions.core.protocol.messages import (
    ImagePart,
    OtherPart,
    Part,
    Role,
    TextPart,
    ThinkingPart,
)
from miniclaw_sessions.files.formats.attached import attached, size_in_words, text_of_file
from miniclaw_sessions.files.formats.codec import Format, SessionFacts, without
from miniclaw_sessions.printable import printable


def render_entry(entry: Entry) -> str:
    """One entry with a blank line before it; empty for what has nothing to show."""
    if isinstance(entry, MessageEntry):
        message = entry.message
        about = [named(message), *(["failed"] if message.is_error else [])]
        about += [str(detail) for detail in (message.author, message.model) if detail]
        when = (message.timestamp or entry.timestamp).strftime("%Y-%m-%d %H:%M:%S")
        parts = message.content if isinstance(message.content, tuple) else (TextPart(message.content),)
        is_output = message.role in (Role.TOOL_RESULT, Role.BASH_EXECUTION)
        blocks = [f"## {' · '.join(map(_inline, about))} · {when}"]
        blocks += [shown for part in parts if (shown := _part(part, is_output=is_output))]
        for call in message.tool_calls or ():
            blocks += [f"**Calls {_inline(call.name)}**", _fence(call.arguments, "json")]
            blocks += [] if call.output is None else [_fence(call.output)]
        return "\n" + "\n\n".join(blocks) + "\n"
    name, text = _event(entry)
    if not name:
        return ""
    summary = f"\n{_quote(entry.summary)}\n" if isinstance(entry, Compaction | BranchSummary) else ""
    return f"\n*{name}: {_inline(text)}*\n{summary}"


def _event(entry: Entry) -> tuple[str, str]:
    """What an entry that is not a message says, as a name and a text; an empty name when it says nothing to people."""
    said = "", ""
    match entry:
        case ModelChange(provider=provider, model_id=model):
            said = "Model", f"{provider} {model}".strip()
        case ThinkingLevelChange(thinking_level=level):
            said = "Thinking", level
        case SessionInfo(name=name):
            said = "Title", name
        case Label(label=label, target_id=target):
            said = "Label", f"{label or '(removed)'} on {target}"
        case LeafMove(target_id=target):
            said = ("Branch", f"the conversation goes on from {target}") if target else ("Cleared", "a new beginning")
        case Compaction(tokens_before=tokens):
            said = "Compaction", f"{tokens} tokens before"
        case BranchSummary(from_id=origin):
            said = "Branch summary", f"from {origin}"
        case Custom(custom_type=kind, data=data) if kind == METADATA:
            said = "Metadata", ", ".join(f"{name} = {_plain(value)}" for name, value in data.items())
    return said


def _part(part: Part, *, is_output: bool) -> str:
    match part:
        case TextPart() if (text_file := text_of_file(part)) is not None:
            name, text = text_file
            return f"*File: {_inline(name)}*\n\n{_fence(text)}"
        case TextPart(text=text):
            return (_fence(text) if is_output else _quote(text)) if text else ""
        case ThinkingPart(thinking=thinking):
            return f"*Thinking*\n\n{_quote(thinking)}" if thinking else ""
        case ImagePart():
            return f"*Image: {_inline(part.media_type or part.url or 'of unknown type')}*"
        case OtherPart() if (file := attached(part)) is not None:
            return f"*File: {_inline(file.name)} ({size_in_words(file.size)})*"
        case OtherPart(fields=fields):
            return f"*Content of type {_inline(_plain(fields.get('type')))}*"


def _quote(text: str) -> str:
    return "\n".join(f"> {line}" if line else ">" for line in printable(text, lines=True).split("\n"))


def _fence(text: str, language: str = "") -> str:
    """A fenced block whose fence is longer than any run of backticks inside it."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{printable(text, lines=True)}\n{fence}"


def _inline(text: str) -> str:
    """Text on one line in which Markdown sees nothing to interpret."""
    return re.sub(r"([\\`*_\[\]<>#|~&])", r"\\\1", printable(text))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# --- a whole session -------------------------------------------------------------------------------------------------

_LONGEST_NAME = 60


class MarkdownWriter:
    """Writes a session as it comes: all entries in the order of logging, with a line wherever the conversation jumps.

    Such a line names the entry from which the conversation goes on by its speaker, its time and its first words; labels
    and branch summaries name theirs in the same way. After a session with branches stands where it goes on. Of an entry
    that was written, only its id and this name are kept.
    """

    def __init__(self, facts: SessionFacts) -> None:
        self._facts = facts
        self._names: dict[str, str] = {}
        self._standing_at: str | None = None  # the entry that the next one follows if nothing else is said
        self._is_branched = False

    def begin(self) -> bytes:
        """The title and the facts."""
        facts = self._facts
        name = facts.session_id or facts.source_id or "Conversation"
        known = {
            "Session": name,
            "Channel": facts.channel or None,
            "Chat": facts.chat_id or None,
            "Created": facts.created_at and in_utc(facts.created_at).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        pairs = [
            *known.items(),
            *without(facts.metadata, "title").items(),
        ]  # if both have a name, both rows are written
        rows = [f"- **{_inline(name)}**: {_inline(_plain(value))}" for name, value in pairs if value is not None]
        return "\n".join([f"# {_inline(facts.title or name)}", "", *rows, ""]).encode()

    def feed(self, entry: Entry) -> bytes:
        """One entry; before it, where the conversation went back to, if it did."""
        if isinstance(entry, LeafMove):
            return self._stand_at(entry.target_id).encode()
        turn = self._stand_at(entry.parent_id) if self._names else ""
        is_remark = isinstance(entry, Label) and entry.parent_id in self._names
        self._names[entry.id] = self._names[entry.parent_id or ""] if is_remark else _named(entry)
        if moves_leaf(entry):
            self._standing_at = entry.id
        match entry:
            case Label(label=label, target_id=target) if target in self._names:
                text = f"\n*Label: {_inline(label or '(removed)')} on {self._name(target)}*\n"
            case BranchSummary(from_id=origin, summary=summary) if origin in self._names:
                text = f"\n*Branch summary: from {self._name(origin)}*\n\n{_quote(summary)}\n"
            case _:
                text = render_entry(entry)
        return (turn + text).encode()

    def finish(self) -> bytes:
        """Where the conversation goes on, if it has branches."""
        if not self._is_branched:
            return b""
        leaf_id = self._facts.leaf_id if self._facts.leaf_id in self._names else self._standing_at
        where = "its beginning" if leaf_id is None else self._name(leaf_id)
        return f"\n---\n\n*The conversation stands at {where}*\n".encode()

    def _stand_at(self, entry_id: str | None) -> str:
        """The line that says so; none where the conversation stands there already."""
        if entry_id == self._standing_at:
            return ""
        self._standing_at = entry_id
        self._is_branched = True
        if entry_id is None:
            return "\n---\n\n*Cleared: a new beginning*\n"
        return f"\n---\n\n*The conversation goes back to {self._name(entry_id)}*\n"

    def _name(self, entry_id: str) -> str:
        return _inline(self._names.get(entry_id) or f"an entry that is not here: {entry_id}")


def _named(entry: Entry) -> str:
    """An entry in a few words: who, when, how it begins."""
    when, who = entry.timestamp, speaker(entry).capitalize()
    if isinstance(entry, MessageEntry):
        when = entry.message.timestamp or when
        who = NAMES.get(entry.message.role) or who
    said = first_words(entry)
    cut = said if len(said) <= _LONGEST_NAME else f"{said[: _LONGEST_NAME - 1]}…"
    return f"{who} · {when:%Y-%m-%d %H:%M:%S} · “{cut}”"


MARKDOWN = Format(
    name="markdown",
    about="Markdown for people, in the order of logging; written only",
    suffix=".md",
    writer=MarkdownWriter,
)
