"""Anthropic's Messages API, from and to canonical messages.

`to_anthropic` expects what `history.context.build_context` returns, and gives exactly what the service accepts: system
messages apart, user and assistant in turn, the results of parallel calls first in one user message, thinking with its
signature at its place. `from_anthropic` reads requests and replies, and keeps every field that the canonical form has
no place for (`cache_control`, citations, a reply's id) under `extra["anthropic"]`, from where `to_anthropic` writes
back what a request may hold; the `extra` of other formats is never sent.

The rules come from the service's documentation (Messages API, "Handle tool calls", "Extended thinking") and from what
it answers to requests that break them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from miniclaw_sessions.core.protocol.images import inlined
from miniclaw_sessions.core.protocol.messages import (
    ImagePart,
    Message,
    OtherPart,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
)
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.attached import PDF, attached
from miniclaw_sessions.files.formats.blocks import read_block, read_usage, written_part
from miniclaw_sessions.files.formats.codec import (
    has_kept,
    in_order,
    kept_apart,
    kept_but,
    kept_fields,
    marked,
    taken_apart,
    text_of,
)
from miniclaw_sessions.files.formats.message_list import (
    NOTHING_TO_SHOW,
    MessageList,
    OneByOne,
    Request,
    message_list_format,
)
from miniclaw_sessions.files.formats.tool_calls import CallIds, arguments_object, fitting_name

KEPT = "anthropic"
"""The key of `extra` under which fields without a canonical place are kept.

On a message it also says that the parts of unknown type in it are this service's own, and may be sent back to it.
"""

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LONGEST_NAME = 128
_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_BLOCKS_OF_A_USER = ("document", "search_result")  # blocks that only this service knows, from any source
_ERROR_BLOCKS = frozenset({"text"})  # the service refuses any other block in a result that is an error
_THINKING = frozenset({"thinking", "redacted_thinking"})
_OTHER_SERVICES = frozenset({"google", "openai-items", "codex"})  # their mark is on thinking not signed here
_OUR_API = "anthropic-messages"
_MESSAGE_FIELDS = ("role", "content", "model", "stop_reason", "usage")
_REPLY_FIELDS = ("id", "type", "stop_sequence", "stop_details", "container", "diagnostics", "context_management")


# --- writing ---------------------------------------------------------------------------------------------------------


class _Turn:
    """What one role says before it is the other's turn: one message for the service."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.blocks: list[dict[str, Any]] = []
        self.texts: list[str | None] = []
        self.fields: dict[str, Any] = {}

    def add(self, message: Message, blocks: Iterable[dict[str, Any]]) -> None:
        self.blocks += blocks
        self.texts.append(message.content if isinstance(message.content, str) and not message.tool_calls else None)
        if not message.is_tool_result:  # what is kept of a result belongs to its block
            self.fields = {**kept_but(message.extra, KEPT, *_MESSAGE_FIELDS, *_REPLY_FIELDS), **self.fields}

    def written(self, *, is_last: bool) -> dict[str, Any]:
        """The message: text alone as text, the results before everything else."""
        content: str | list[dict[str, Any]] = sorted(self.blocks, key=lambda block: block["type"] != "tool_result")
        if len(self.texts) == 1 and self.texts[0] is not None and self.blocks[0]["type"] == "text":
            content = self.blocks[0]["text"]
        if is_last and self.role == "assistant":  # the service refuses a request that ends in its white space
            if isinstance(content, str):
                content = content.rstrip()
            elif content[-1]["type"] == "text":
                content = [*content[:-1], {**content[-1], "text": content[-1]["text"].rstrip()}]
        return {**self.fields, "role": self.role, "content": content}


def to_anthropic(messages: Sequence[Message]) -> dict[str, Any]:
    """A legal context as the `messages`, and where there is one the `system`, of a request.

    All system messages go to `system`, in their order, from any place. Text blocks without text are left out, and
    so is thinking that the service did not sign. Images in a result that is an error follow the results.

    Args:
        messages: what `build_context` returns; other roles than its four are written as the user's.
    """
    request = _Request()
    return {"messages": request.all_of(messages), **request.system_fields()}


class _Request(Request):
    def __init__(self) -> None:
        self._ids = CallIds(_ID)
        self._turn: _Turn | None = None
        self._system: list[Message] = []

    def add(self, message: Message) -> list[dict[str, Any]]:
        if message.role is Role.SYSTEM:
            self._system.append(message)
            return []
        blocks = _write_result(message, self._ids) if message.is_tool_result else self._blocks_of(message)
        if not blocks:
            return []
        role, before = "assistant" if message.is_assistant else "user", self._turn
        if before is not None and before.role == role:
            before.add(message, blocks)
            return []
        self._turn = _Turn(role)
        self._turn.add(message, blocks)
        return [] if before is None else [before.written(is_last=False)]

    def end(self) -> list[dict[str, Any]]:
        return [] if self._turn is None else [self._turn.written(is_last=True)]

    def system_fields(self) -> dict[str, Any]:
        if len(self._system) == 1 and isinstance(text := self._system[0].content, str):
            return {"system": text} if text.strip() else {}
        parts = [part for message in self._system for part in in_order(message) if isinstance(part, TextPart)]
        system = [block for part in parts if (block := _write_text(part)) is not None]
        return {"system": system} if system else {}

    def _blocks_of(self, message: Message) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        for piece in in_order(message):
            block = None
            match piece:
                case ToolCall():
                    call_id, name = self._ids.of_call(piece.id), fitting_name(piece.name, _LONGEST_NAME)
                    call = {"type": "tool_use", "id": call_id, "name": name, "input": arguments_object(piece.arguments)}
                    block = {**kept_fields(piece.extra, KEPT), **call}
                case ThinkingPart() if message.is_assistant and _is_signed_here(message, piece):
                    block = written_part(piece, KEPT)
                case ImagePart() if message.is_assistant:
                    pass
                case _:
                    block = _write_shown(message, piece)
            blocks += [] if block is None else [block]
        if message.is_assistant:
            while blocks and blocks[-1]["type"] in _THINKING:  # the service refuses a message that ends in thinking
                blocks.pop()
            return blocks
        return blocks or [{"type": "text", "text": NOTHING_TO_SHOW}]


def _write_shown(message: Message, part: Part) -> dict[str, Any] | None:
    """A block that may stand in a user's message and in a result alike."""
    match part:
        case TextPart():
            return _write_text(part)
        case ImagePart():
            image = inlined(part)
            if image.data is not None and (image.media_type or "image/png") not in _IMAGE_TYPES:
                return {"type": "text", "text": f"(an image of type {image.media_type}, which cannot be shown)"}
            block = written_part(replace(image, media_type=image.media_type or "image/png"), KEPT) or {"source": {}}
            source = block["source"]
            is_file = source.get("type") == "url" and not str(source.get("url")).startswith(("https://", "http://"))
            return block if source and not is_file else {"type": "text", "text": "(an image that is not at hand)"}
        case OtherPart(fields=fields):
            known = has_kept(message.extra, KEPT) or (
                not message.is_assistant and fields.get("type") in _BLOCKS_OF_A_USER
            )
            if known and isinstance(fields.get("type"), str):
                return fields
            return _write_file(part)
        case _:
            return None


def _write_file(part: OtherPart) -> dict[str, Any] | None:
    if (file := attached(part)) is None:
        return None
    if file.media_type != PDF:
        return {"type": "text", "text": f"(a file of type {file.media_type}, which cannot be shown)"}
    source = {"type": "base64", "media_type": file.media_type, "data": file.data}
    return {"type": "document", "source": source, "title": file.name}


def _write_text(part: TextPart) -> dict[str, Any] | None:
    return written_part(part, KEPT) if part.text.strip() else None  # refused


def _is_signed_here(message: Message, part: ThinkingPart) -> bool:
    """Whether the signature can be this service's: it refuses a request with another's, or without one."""
    extra = message.extra or {}
    if part.signature is None or _OTHER_SERVICES & {*(part.extra or {}), *extra}:
        return False
    source = extra.get("pi") if isinstance(extra.get("pi"), dict) else extra  # pi says which API a reply came from
    return source is None or source.get("api", _OUR_API) == _OUR_API


def _write_result(message: Message, ids: CallIds) -> list[dict[str, Any]]:
    """The result, and behind it the blocks that the service does not take in an error."""
    block = {
        **kept_but(message.extra, KEPT, "content", "is_error"),
        "type": "tool_result",
        "tool_use_id": ids.of_result(message.tool_call_id or ""),
    }
    if message.is_error:
        block["is_error"] = True
    elif kept_fields(message.extra, KEPT).get("is_error") is False:
        block["is_error"] = False
    if isinstance(message.content, str):
        return [{**block, "content": message.content}]
    written = (_write_shown(message, part) for part in message.content)
    shown = [inner for inner in written if inner is not None]
    content = [inner for inner in shown if not message.is_error or inner["type"] in _ERROR_BLOCKS]
    behind = [inner for inner in shown if message.is_error and inner["type"] not in _ERROR_BLOCKS]
    return [{**block, "content": content} if content else block, *behind]


# --- reading ---------------------------------------------------------------------------------------------------------


def from_anthropic(messages: Iterable[Mapping[str, Any]], system: Any = None) -> list[Message]:
    """The messages of a request, or replies, as canonical ones; `from_anthropic(**to_anthropic(messages))` reads back.

    A user's message with results becomes one message for each of them, and one for the rest of it. A reply's model,
    usage and stop reason are taken over.

    Args:
        messages: the `messages` of a request; replies may stand among them.
        system: the `system` of the request, text or text blocks.

    Raises:
        InvalidMessage: a message has another role than the service knows, or a block has a wrong shape.
    """
    read = [] if system is None else _read(_system_message(system))
    for fields in messages:
        read += _read(fields)
    return read


def _system_message(system: Any) -> dict[str, Any]:
    return {"role": "system", "content": system}


def _read(fields: Mapping[str, Any]) -> list[Message]:
    parts: str | tuple[Part, ...]
    role = fields.get("role")
    content = fields.get("content")
    if not isinstance(content, str | list):
        raise InvalidMessage('"content" must be text or a list of blocks')
    extra = kept_apart(fields, _MESSAGE_FIELDS if role == "assistant" else {"role", "content"}, KEPT)
    match role:
        case "assistant":
            parts, calls = (content, None) if isinstance(content, str) else taken_apart(map(_read_block, content))
            reply = Message(
                Role.ASSISTANT,
                parts,
                tool_calls=calls,
                model=text_of(fields, "model"),
                usage=read_usage(fields.get("usage"), KEPT),
                stop_reason=text_of(fields, "stop_reason"),
                extra=marked(extra, parts, KEPT),
            )
            return [reply]
        case "user":
            if isinstance(content, str):
                return [Message(Role.USER, content, extra=extra)]
            results = [_read_result(block) for block in content if _type_of(block) == "tool_result"]
            rest = [block for block in content if _type_of(block) != "tool_result"]
            if rest or extra or not results:
                parts = _read_parts(rest)
                results.append(Message(Role.USER, parts, extra=marked(extra, parts, KEPT)))
            return results
        case "system":
            parts = _read_parts(content)
            return [Message(Role.SYSTEM, parts, extra=marked(extra, parts, KEPT))]
        case _:
            raise InvalidMessage("a message's role is none of user, assistant and system")


def _read_result(block: Mapping[str, Any]) -> Message:
    match block:
        case {"tool_use_id": str(call_id), **rest}:
            content = rest.get("content")
        case _:
            raise InvalidMessage("a tool result needs the id of its call")
    if not isinstance(content, str | list | None):
        raise InvalidMessage("a tool result's content must be text or a list of blocks")
    parts = content if isinstance(content, str) else _read_parts(content or [])
    is_error = rest.get("is_error") is True
    known = {"type", "tool_use_id", "content", *(["is_error"] if is_error or rest.get("is_error") is None else [])}
    return Message(
        Role.TOOL_RESULT,
        parts,
        tool_call_id=call_id,
        is_error=is_error,
        extra=marked(kept_apart(block, known, KEPT), parts, KEPT),
    )


def _read_parts(content: str | list[Any]) -> str | tuple[Part, ...]:
    if isinstance(content, str):
        return content
    parts: list[Part] = []
    for block in content:
        piece = _read_block(block)
        parts.append(OtherPart(dict(block)) if isinstance(piece, ToolCall) else piece)
    return tuple(parts)


def _read_block(block: Any) -> Part | ToolCall:
    piece = read_block(block, KEPT)
    if piece is None or (isinstance(piece, ToolCall) and not isinstance(block["input"], dict)):
        raise InvalidMessage("a content block has no type, or lacks what one of its type must have")
    return piece


def _type_of(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else None


# --- files -----------------------------------------------------------------------------------------------------------


def _is_ours(found: MessageList) -> bool:
    """Whether a list has what only this service's have: its blocks, or a system text beside the messages."""
    if not all(fields.get("role") in ("user", "assistant") for fields in found.messages):
        return False
    if any("messageId" in fields for fields in found.messages):  # a thread of Amp, whose results are others
        return False
    blocks = [
        block for fields in found.messages if isinstance(fields.get("content"), list) for block in fields["content"]
    ]
    return (
        bool(found.before)
        or "anthropic_version" in found.header
        or any(_type_of(block) in ("tool_use", "tool_result", "redacted_thinking") for block in blocks)
        or any(_type_of(block) == "thinking" and "signature" in block for block in blocks)
        or any(_type_of(block) in ("image", "document") and isinstance(block.get("source"), dict) for block in blocks)
    )


ANTHROPIC = message_list_format(
    name="anthropic",
    about="Anthropic Messages API: a list of messages or a request with one; times, and the places of system messages "
    "behind the first, are lost",
    fields=["messages"],
    before={"system": _system_message},
    is_ours=_is_ours,
    reader=lambda: OneByOne(_read),
    request=_Request,
)
