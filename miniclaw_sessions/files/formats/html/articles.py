"""One row of a session's tree as an article of the page: the message with its tool calls, their results folded in.

No message becomes markup: texts go through `prose`, and the only addresses are anchors of the page itself and images
that it contains. An image elsewhere is named and not loaded, because its server would learn of the reader.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from miniclaw_sessions.core.history.first_words import NAMES, call_words, first_words, named, speaker
from miniclaw_sessions.core.protocol.entries import (
    BranchSummary,
    Compaction,
    Custom,
    Entry,
    Label,
    MessageEntry,
    OtherEntry,
)
from miniclaw_sessions.core.protocol.images import inlined
from miniclaw_sessions.core.protocol.json_values import in_utc
from miniclaw_sessions.core.protocol.messages import (
    ImagePart,
    Message,
    OtherPart,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
    Usage,
)
from miniclaw_sessions.files.formats.attached import attached, text_of_file, uploaded
from miniclaw_sessions.files.formats.html.attachments import file_named, file_shown, text_shown
from miniclaw_sessions.files.formats.html.prose import escaped, preformatted, prose
from miniclaw_sessions.files.formats.outline import Row
from miniclaw_sessions.files.formats.tool_calls import parsed

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp"})
"""The images that are shown; no SVG, which is a document of its own."""

_SPEAKERS = {Role.SYSTEM: "system", Role.USER: "user", Role.ASSISTANT: "assistant"}
_USUAL_ENDS = (None, "stop", "toolUse", "end_turn", "tool_use")
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]+")
_FETCHED_CHARACTERS = 65_536
"""A longer image is not repeated each time that the page reads the newest articles."""


def anchor(entry_id: str) -> str:
    """The name of an entry within the page, the same in an `id` and after a `#`; plain ids stay as they are."""
    return "entry-" + quote(entry_id, safe="", errors="surrogatepass")


def kind_of(entry: Entry) -> str:
    """The class of an entry, which decides how it looks: user, assistant, tool, system, summary, note."""
    match entry:
        case MessageEntry(message=message):
            if message.role in (Role.BRANCH_SUMMARY, Role.COMPACTION_SUMMARY):
                return "summary"
            return _SPEAKERS.get(message.role, "tool")
        case Compaction() | BranchSummary():
            return "summary"
        case _:
            return "note"


def article(  # noqa: PLR0913 - options, each with a name
    row: Row,
    *,
    number: int,
    parent: int | None,
    ways: Iterable[tuple[int, Row]],
    currency: str,
    carries: bool = True,
    is_step: bool = False,
) -> str:
    """One row of the tree.

    Args:
        row: the entry, with what is folded into it.
        number: of the row in the tree.
        parent: the number of the row that it follows.
        ways: at a fork, the rows with which the conversation goes on, and their numbers.
        currency: what costs are in.
        carries: whether the files of messages are within it; or else a page fetches them from where it says.
        is_step: whether it goes on with what the assistant did just before, below one heading.
    """
    entry = row.entry
    kinds = [
        kind_of(entry),
        *(["goes-on"] if is_step else []),
        *(["first"] if row.begins else []),
        *(["leaf"] if row.is_leaf else []),
    ]
    up = "" if parent is None else f' data-up="{parent}"'
    body = _message(row, entry, carries=carries) if isinstance(entry, MessageEntry) else _event(entry, carries=carries)
    labels = [piece for piece in row.folded if isinstance(piece, Label)]
    marks = "".join(f'<span id="{anchor(label.id)}"></span>' for label in labels)
    return (
        f'<article id="{anchor(entry.id)}" class="{" ".join(kinds)}" data-n="{number}"{up}>'
        f"{_head(row, currency)}{body}{marks}{_ways(ways)}</article>\n"
    )


def moment(time: datetime) -> str:
    """A time in UTC, to the minute; to the second when the pointer is on it."""
    utc = in_utc(time)
    exact = f"{utc:%Y-%m-%d %H:%M:%S}"
    return f'<time datetime="{exact.replace(" ", "T")}Z" title="{exact} UTC">{utc:%Y-%m-%d %H:%M}</time>'


def tokens_and_cost(usage: Usage, currency: str) -> str:
    """What was used, in a few words; empty when nothing was counted."""
    shown = [f"{usage.total:,} tokens"] if usage.total else []
    shown += [f"cost {usage.cost:.4g} {currency}"] if usage.cost else []
    return " · ".join(shown)


# --- the head and the ways on ----------------------------------------------------------------------------------------


def _head(row: Row, currency: str) -> str:
    entry = row.entry
    label = "" if row.label is None else f'<span class="label">{escaped(row.label)}</span>'
    details, time = "", entry.timestamp
    if isinstance(entry, MessageEntry):
        message = entry.message
        name, time = named(message), message.timestamp or time
        facts = [message.author, message.model, tokens_and_cost(message.usage, currency) if message.usage else None]
        facts += [] if message.stop_reason in _USUAL_ENDS else [message.stop_reason]
        details = "".join(f"<span>{escaped(fact)}</span>" for fact in facts if fact)
    else:
        name = NAMES[Role.BRANCH_SUMMARY] if isinstance(entry, BranchSummary) else speaker(entry).capitalize()
    return (
        f'<header><a href="#{anchor(entry.id)}">{escaped(name)}</a>{label}'
        f'<span class="about">{details}{moment(time)}</span></header>\n'
    )


def _ways(ways: Iterable[tuple[int, Row]]) -> str:
    links = []
    for number, row in ways:
        taken = ' class="taken"' if row.is_current else ""
        said = f"<b>{escaped(speaker(row.entry))}</b> {escaped(first_words(row.entry))}"
        links.append(f'<li><a href="#{anchor(row.entry.id)}" data-way="{number}"{taken}>{said}</a></li>')
    return f'<nav class="ways"><p>{len(links)} ways on from here</p><ul>{"".join(links)}</ul></nav>' if links else ""


# --- messages --------------------------------------------------------------------------------------------------------


def _message(row: Row, entry: MessageEntry, *, carries: bool) -> str:
    message = entry.message
    is_output = message.role in (Role.TOOL_RESULT, Role.BASH_EXECUTION)
    body = _body(entry, is_output=is_output, carries=carries)
    extra = message.extra or {}
    command, output = extra.get("command"), extra.get("output")
    if message.role is Role.BASH_EXECUTION and isinstance(command, str):  # some sources keep it beside the output
        said = preformatted(output) if isinstance(output, str) and not message.text else ""
        body = preformatted(f"$ {command}", "command") + said + body
    results = [piece for piece in row.folded if isinstance(piece, MessageEntry)]
    calls = "".join(
        _call(call, [result for result in results if result.message.tool_call_id == call.id], carries=carries)
        for call in message.tool_calls or ()
    )
    failed = ' class="failed"' if message.is_error else ""
    return f"<div{failed}>{body}{calls}</div>"


def words(message: Message) -> str:
    """What a message says, for a person who may see no more: no thinking, no tool calls; its larger files by name."""
    return "".join(_worded(part) for part in _parts(message) if not isinstance(part, ThinkingPart))


def _worded(part: Part) -> str:
    if (file := attached(part)) is not None:
        return file_named(file.name, file.size)
    if isinstance(part, ImagePart) and len(data := inlined(part).data or "") > _FETCHED_CHARACTERS:
        return file_named("image", len(data) * 3 // 4)
    return _part(part, is_output=False, at=None)


def _body(entry: MessageEntry, *, is_output: bool, carries: bool) -> str:
    return "".join(
        _part(part, is_output=is_output, at=None if carries else _path(entry, place))
        for place, part in enumerate(_parts(entry.message))
    )


def _path(entry: Entry, place: int) -> str:
    """Where the page fetches a file, within its session."""
    return f"{quote(entry.id, safe='', errors='surrogatepass')}/files/{place}"


def _parts(message: Message) -> Sequence[Part]:
    return (TextPart(message.content),) if isinstance(message.content, str) else message.content


def _part(part: Part, *, is_output: bool, at: str | None) -> str:  # noqa: PLR0911 - one return for each type
    match part:
        case TextPart() if (file := text_of_file(part)) is not None:
            return text_shown(*file)
        case TextPart(text=text):
            return (preformatted(text) if is_output else prose(text)) if text else ""
        case ThinkingPart(thinking=thinking):
            text = prose(thinking) if thinking else "<p>Not shown by the model's provider.</p>"
            return f'<details class="thinking"><summary>Thinking</summary>{text}</details>'
        case ImagePart():
            part = inlined(part)
            media_type, data = part.media_type, part.data
            if data is not None and media_type in IMAGE_TYPES and _BASE64.fullmatch(data):
                if at is not None and len(data) > _FETCHED_CHARACTERS:
                    return f'<img alt="image" data-file="{escaped(at)}">'
                return f'<img alt="image" loading="lazy" src="data:{media_type};base64,{data}">'
            where = part.url if part.url is not None and not part.url.startswith("data:") else None
            return f'<p class="missing">Image: {escaped(where or media_type or "of unknown type")}</p>'
        case OtherPart() if (other := attached(part)) is not None:
            return file_shown(other, at)
        case OtherPart(fields=fields):
            return f'<p class="missing">Content of type {escaped(str(fields.get("type")))}</p>'


def _call(call: ToolCall, results: Sequence[MessageEntry], *, carries: bool) -> str:
    """A call with its arguments by name, texts as they read; anything but an object as it stands."""
    named = parsed(call.arguments, None)
    if isinstance(named, dict):
        texts = {name: value if isinstance(value, str) else _as_json(value) for name, value in named.items()}
        pairs = "\n".join(f"<dt>{escaped(name)}</dt>\n<dd>{preformatted(text)}</dd>" for name, text in texts.items())
        arguments = f"<dl>{pairs}</dl>" if pairs else ""
    else:
        arguments = preformatted(call.arguments, "argument") if call.arguments.strip() else ""
    has_failed = any(result.message.is_error for result in results)
    outputs = [] if call.output is None else [preformatted(call.output)]
    for result in results:
        parts = _body(result, is_output=True, carries=carries)
        outputs.append(f'<div class="result" id="{anchor(result.id)}">{parts or _NOTHING}</div>')
    return (
        f'<details class="call{" failed" if has_failed else ""}"><summary><b>{escaped(call.name)}</b> '
        f"<span>{escaped(call_words(call))}</span>{'<i>failed</i>' if has_failed else ''}</summary>\n"
        f"{arguments}{''.join(outputs) or _NO_RESULT}</details>"
    )


_NOTHING = '<p class="missing">Empty</p>'
_NO_RESULT = '<p class="missing">No result</p>'


def _as_json(value: Any) -> str:
    """JSON for reading; unlike the fast encoders it takes any text, even one that no file can hold."""
    return json.dumps(value, ensure_ascii=False, indent=2)


# --- everything else -------------------------------------------------------------------------------------------------


def _event(entry: Entry, *, carries: bool) -> str:
    match entry:
        case Custom(custom_type=kind, data=data) if (file := uploaded(kind, data)) is not None:
            return f"<div>{file_shown(file, None if carries else _path(entry, 0))}</div>"
        case Compaction(summary=summary):
            instead = f"<details><summary>What a model gets instead</summary>{prose(summary) or _NOTHING}</details>"
            after = "" if entry.tokens_after is None else f" became {entry.tokens_after:,}"
            reason = f" ({escaped(entry.reason)})" if entry.reason else ""
            kept = ""
            if entry.first_kept_entry_id is not None:
                kept = f' · <a href="#{anchor(entry.first_kept_entry_id)}">kept from here on</a>'
            return f"<div><p>{entry.tokens_before:,} tokens{after}{reason}{kept}</p>{instead}</div>"
        case BranchSummary(summary=summary):
            return f"<div>{prose(summary)}</div>"
        case Custom(data=data) if data:
            return _data(_as_json(data))
        case OtherEntry(encoded=encoded):
            return _data(bytes(encoded).decode("utf-8", "backslashreplace"))
        case _:
            return f"<div>{escaped(first_words(entry))}</div>"


def _data(text: str) -> str:
    return f"<div><details><summary>data</summary>{preformatted(text)}</details></div>"
