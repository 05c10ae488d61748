"""OpenAI's Responses and Conversations items, from and to canonical messages.

`from_items` followed by `to_items` gives back the same items, of any kind: what the canonical form has no field
for is kept under `extra["openai-items"]`, and an item that is no message, call, result or reasoning travels whole, as a
part of type `openai_item`. `to_items` of any other legal context gives exactly what the service accepts; the `extra` of
other formats is never sent. The items of one response (reasoning, messages, calls) become one message.

Not everything goes into items: that a result is an error is lost, as is thinking of other services.

`to_messages` is `from_items` for programs that store items for others: the store gives back exactly what was
given, also where that is something that no message can hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from miniclaw_sessions.core.protocol.encoding import decode_message, encode_message
from miniclaw_sessions.core.protocol.images import NOT_SHOWABLE, address_of, image_at, is_showable
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
from miniclaw_sessions.core.protocol.parts import MAX_TOKENS, REASONING
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.attached import Attached, attached
from miniclaw_sessions.files.formats.codec import (
    has_kept,
    in_order,
    keeping,
    kept_but,
    kept_fields,
    object_in,
    objects_in,
    taken,
    taken_apart,
    without,
)
from miniclaw_sessions.files.formats.message_list import NOTHING_TO_SHOW, MessageList, Request, message_list_format
from miniclaw_sessions.files.formats.tool_calls import CallIds, fitting_name

KEPT = "openai-items"
"""The key of `extra` under which fields without a canonical place are kept.

A message or part with it came from items, and is written with these fields and no others: no default is added.
"""

WHOLE_ITEM = "openai_item"
"""The type of a part that is a whole item; its field `item` holds it, verbatim."""

WHOLE_CONTENT = "openai_content"
"""The type of a part that is one part of a message item's content; its field `content` holds it, verbatim."""

OF_AGENTS = "openai-agents"
"""The key of `extra` that every message of the Agents SDK has: `adapters.openai_agents` marks them with it."""

_SUMMARY = "miniclaw.summary:"  # the beginning of the content of a compaction that was made here; the summary follows
_VERBATIM = "json"  # kept on a message that says nothing: an item that no message can hold
_BEGINS = "message"  # kept on the first part of a message item of a reply: the other fields of that item
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LONGEST_NAME = 64
_ROLES = {"user": Role.USER, "system": Role.SYSTEM, "developer": Role.SYSTEM}
_OF_THE_CLIENT = frozenset(
    {"mcp_approval_response", "item_reference", "additional_tools", "configuration_update", "compaction_trigger"}
)  # items that no model makes, beside those whose type ends in _output
_TYPES_OF_ITEMS = ("function_call", "function_call_output", "reasoning", "item_reference", "custom_tool_call")
_TYPES_OF_PARTS = ("input_text", "output_text", "input_image", "input_file")  # no sets: a type may be a list


# --- writing ---------------------------------------------------------------------------------------------------------


def to_items(messages: Sequence[Message], *, for_request: bool = False) -> list[dict[str, Any]]:
    """A legal context, or what `from_items` gave, as items.

    Args:
        messages: what `build_context` returns; other roles than its four are written as the user's.
        for_request: whether to leave out reasoning that nothing of the model's follows, as it ends a response that was
            cut off. The service gives such reasoning and refuses it; by default what it gave comes back whole.
    """
    return ItemsRequest(for_request=for_request).all_of(messages)


class ItemsRequest(Request):
    """`to_items`, message by message."""

    def __init__(self, *, for_request: bool = True) -> None:
        self._ids = CallIds(_ID)
        self._for_request = for_request
        self._reasoning: list[dict[str, Any]] = []  # that nothing follows yet

    def add(self, message: Message) -> list[dict[str, Any]]:
        """The items of the next message."""
        if message.is_assistant:
            items = _Reply(message, self._ids).items()
        elif message.is_tool_result:
            is_ours, call_id = has_kept(message.extra, KEPT), message.tool_call_id
            call_id = call_id if is_ours else self._ids.of_result(call_id or "")
            result = {"type": "function_call_output", "call_id": call_id, "output": _write_content(message)}
            items = [{**kept_fields(message.extra, KEPT), **result}]
        elif is_verbatim(message):
            try:
                items = [json.loads(kept_fields(message.extra, KEPT)[_VERBATIM])]
            except (ValueError, RecursionError):  # anyone can write such a message
                items = []
        elif not self._for_request and is_compaction(message):
            items = [compaction_item(message.text, **kept_fields(message.extra, KEPT))]
        else:
            items = _write_said(message)
        if not self._for_request:
            return items
        written: list[dict[str, Any]] = []
        for item in items:
            if item.get("type") == "reasoning":  # the service refuses one that no item of the model's follows
                self._reasoning.append(item)
                continue
            written += [*self._reasoning, item] if _is_made_by_model(item) else [item]
            self._reasoning = []
        return written


def _write_said(message: Message) -> list[dict[str, Any]]:
    """The user's or the system's message; a whole item that stands for one is that item."""
    match message.content:
        case (OtherPart(fields={"type": "openai_item", "item": dict(item)}),):
            return [] if _would_command(item) else [item]
    kept = kept_fields(message.extra, KEPT)
    role = "user"
    if message.role is Role.SYSTEM:
        role = "developer" if kept.get("role") == "developer" else "system"
    fields = without(kept, "role", "content", "type")
    if kept.get("type") == "message":
        fields["type"] = "message"
    content = _write_content(message)
    if content or has_kept(message.extra, KEPT):
        return [{**fields, "role": role, "content": content}]
    return [{"role": role, "content": NOTHING_TO_SHOW}] if role == "user" else []


def _would_command(item: Mapping[str, Any]) -> bool:
    """Whether a whole item is a message with authority: what a user's message carries must not become one."""
    return item.get("type", "message") == "message" and item.get("role") in ("system", "developer")


def _write_content(message: Message) -> str | list[dict[str, Any]]:
    if isinstance(message.content, str):
        return message.content
    written: list[dict[str, Any]] = []
    for part in message.content:
        match part:
            case TextPart(text=text):
                kept = kept_fields(part.extra, KEPT)
                written.append({**kept, "type": "text" if kept.get("type") == "text" else "input_text", "text": text})
            case ImagePart():
                url = address_of(part)
                if has_kept(part.extra, KEPT):
                    written.append({**kept_fields(part.extra, KEPT), "type": "input_image", "image_url": url})
                elif is_showable(url):
                    written.append({"type": "input_image", "detail": "auto", "image_url": url})
                else:
                    written.append({"type": "input_text", "text": NOT_SHOWABLE})
            case OtherPart(fields={"type": "openai_content", "content": dict(content)}):
                written.append(content)
            case OtherPart() if (file := attached(part)) is not None:
                written.append(_write_file(file))
    return written


def _write_file(file: Attached) -> dict[str, Any]:
    if file.is_sound:  # Responses have no part for one
        return {"type": "input_text", "text": f"(a file of type {file.media_type}, which cannot be shown)"}
    return {"type": "input_file", "filename": file.name, "file_data": file.address}


class _Reply:
    """The items of one assistant's message."""

    def __init__(self, message: Message, ids: CallIds) -> None:
        self._message = message
        self._ids = ids
        self._items: list[dict[str, Any]] = []
        self._open: list[dict[str, Any]] | None = None  # the content of the message item that further parts belong to
        self._plain: dict[str, Any] | None = None  # the item that further text without an item of its own belongs to

    def items(self) -> list[dict[str, Any]]:
        for piece in in_order(self._message):
            match piece:
                case TextPart() if has_kept(piece.extra, KEPT):
                    content = {"type": "output_text", **kept_but(piece.extra, KEPT, _BEGINS, "text")}
                    content["refusal" if content["type"] == "refusal" else "text"] = piece.text
                    self._content(content, kept_fields(piece.extra, KEPT).get(_BEGINS))
                case OtherPart(fields={"type": "openai_content", "content": dict(content), **rest}):
                    self._content(content, rest.get(_BEGINS))
                case TextPart() if piece.text.strip() or has_kept(self._message.extra, KEPT):
                    self._text(piece.text)
                case ToolCall() if has_kept(piece.extra, KEPT):
                    self._ids.keep(piece.id)
                    call = {"call_id": piece.id, "name": piece.name, "arguments": piece.arguments}
                    self._item({**kept_fields(piece.extra, KEPT), "type": "function_call", **call})
                case ToolCall():
                    call = {"call_id": self._ids.of_call(piece.id), "name": fitting_name(piece.name, _LONGEST_NAME)}
                    call["arguments"] = piece.arguments if piece.arguments.strip() else "{}"
                    self._item({"type": "function_call", **call})
                case ThinkingPart() if has_kept(piece.extra, KEPT):
                    encrypted = {} if piece.signature is None else {"encrypted_content": piece.signature}
                    self._item({**kept_fields(piece.extra, KEPT), **encrypted, "type": "reasoning"})
                case OtherPart(fields={"type": "openai_item", "item": dict(item)}) if not _would_command(item):
                    self._item(item)
        return self._items

    def _item(self, item: dict[str, Any]) -> None:
        self._items.append(item)
        self._open = self._plain = None

    def _content(self, content: dict[str, Any], begins: Any) -> None:
        if isinstance(begins, dict) or self._open is None:
            fields = begins if isinstance(begins, dict) else {}
            parts: list[dict[str, Any]] = []
            self._item({**fields, "role": "assistant", "content": parts})
            self._open = parts
        self._open.append(content)

    def _text(self, text: str) -> None:
        if self._plain is not None:
            self._plain["content"] += text
            return
        fields = dict(kept_fields(self._message.extra, KEPT)) if isinstance(self._message.content, str) else {}
        if fields.get("type") != "message":
            fields.pop("type", None)
        self._item({**fields, "role": "assistant", "content": text})
        self._plain = self._items[-1]


# --- reading ---------------------------------------------------------------------------------------------------------


def from_items(items: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Items of any shape as canonical messages, in their order.

    Raises:
        InvalidMessage: an item is not an object.
    """
    reader = _ItemReader()
    return [message for item in items for message in reader.feed(item)] + reader.finish()


def from_response(response: Mapping[str, Any]) -> list[Message]:
    """The output of a response, its model, usage and reason to stop with the last message of the assistant.

    Raises:
        InvalidMessage: it has no list of output items.
    """
    output = response.get("output")
    if not isinstance(output, list):
        raise InvalidMessage("a response must have a list of output items")
    messages = from_items(output)
    last = next((index for index in reversed(range(len(messages))) if messages[index].is_assistant), None)
    if last is not None:
        model = response.get("model")
        reasons = (object_in(response, "incomplete_details").get("reason"), response.get("status"))
        messages[last] = msgspec.structs.replace(
            messages[last],
            model=model if isinstance(model, str) else None,
            usage=_read_usage(response.get("usage")),
            stop_reason=next((text for text in reasons if isinstance(text, str)), None),
        )
    return messages


def _read_usage(usage: Any) -> Usage | None:
    """The counts; input tokens that came from the cache are counted apart from the others."""
    match usage:
        case {"input_tokens": int(given), "output_tokens": int(said)}:
            cached = object_in(usage, "input_tokens_details").get("cached_tokens")
            cached = cached if isinstance(cached, int) else 0
            total = usage.get("total_tokens")
            total = total if isinstance(total, int) else None
            return Usage(
                given - cached, said, cached, total_tokens=total, extra=reasoned(usage.get("output_tokens_details"))
            )
        case _:
            return None


def reasoned(details: Any) -> dict[str, Any] | None:
    """The `extra` of a usage: how many of the output tokens the model thought with, by the service's details."""
    tokens = details.get("reasoning_tokens") if isinstance(details, dict) else None
    return {REASONING: min(tokens, MAX_TOKENS)} if isinstance(tokens, int) and tokens > 0 else None


def to_messages(items: Sequence[Any]) -> list[Message]:
    """Items as messages that give them back exactly, also after a store.

    An item that no message can hold is kept as its JSON, in a message that no model is sent.

    Raises:
        TypeError, ValueError: an item is not JSON.
    """
    messages = _held(items)
    if messages is None:
        messages = []
        for is_held, group in groupby(items, key=lambda item: _held([item]) is not None):
            several = list(group)
            messages += (_held(several) if is_held else None) or [  # a custom message without content: in no context
                Message(Role.CUSTOM, "", extra={KEPT: {_VERBATIM: json.dumps(item)}}) for item in several
            ]
    return messages


def is_verbatim(message: Message) -> bool:
    """Whether a message is an item that no message can hold."""
    return message.role is Role.CUSTOM and isinstance(kept_fields(message.extra, KEPT).get(_VERBATIM), str)


def compaction_item(summary: str, **fields: Any) -> dict[str, Any]:
    """The item that stands for a conversation whose summary was made here. It is not encrypted: the client has it all.

    Args:
        summary: what a model learns of the conversation.
        fields: what else the item has.
    """
    return {**fields, "type": "compaction", "encrypted_content": _SUMMARY + summary}


def summary_within(item: Mapping[str, Any]) -> str | None:
    """The summary in an item of `compaction_item`; None: it is none, such as one that a service has encrypted."""
    match item:
        case {"type": "compaction", "encrypted_content": str(content)} if content.startswith(_SUMMARY):
            return content.removeprefix(_SUMMARY) or None
        case _:
            return None


def is_compaction(message: Message) -> bool:
    """Whether a message was an item of `compaction_item`."""
    return message.role is Role.COMPACTION_SUMMARY and has_kept(message.extra, KEPT)


def _held(items: Sequence[Any]) -> list[Message] | None:
    """The messages for these items; None if they would not come back from the store as they are."""
    try:
        messages = from_items(items)
        stored = [decode_message(encode_message(message)) for message in messages]
    except (InvalidMessage, TypeError, ValueError, OverflowError):
        return None
    return messages if to_items(stored) == items else None


class _ItemReader:
    """Gathers the items of a response until an item comes that no model makes."""

    def __init__(self) -> None:
        self._pieces: list[Part | ToolCall] = []
        self._plain: Message | None = None  # an assistant's message that is text alone; only calls may follow it

    def feed(self, item: Mapping[str, Any]) -> list[Message]:
        """The messages that are complete with this item."""
        if not isinstance(item, Mapping):
            raise InvalidMessage("an item must be a JSON object")
        match item:
            case {"role": "assistant", "content": str(text)} if text and item.get("type", "message") == "message":
                done, rest = self.finish(), without(item, "role", "content")
                self._plain = Message(Role.ASSISTANT, text, extra=keeping(rest, KEPT) if text.strip() else {KEPT: rest})
                return done
            case {"role": "user" | "system" | "developer"} if (said := _read_said(item)) is not None:
                return [*self.finish(), said]
            case {"type": "function_call_output", "call_id": str(call_id), "output": output} if call_id and _is_content(
                output
            ):
                extra = {KEPT: without(item, "type", "call_id", "output")}
                result = Message(Role.TOOL_RESULT, _read_content(output), tool_call_id=call_id, extra=extra)
                return [*self.finish(), result]
        if (summary := summary_within(item)) is not None:
            rest = without(item, "type", "encrypted_content")
            return [*self.finish(), Message(Role.COMPACTION_SUMMARY, summary, extra={KEPT: rest})]
        if not _is_made_by_model(item):
            return [*self.finish(), Message(Role.USER, (_whole(item),))]
        pieces = _read_made(item)
        done = [] if self._plain is None or all(isinstance(piece, ToolCall) for piece in pieces) else self.finish()
        self._pieces += pieces
        return done

    def finish(self) -> list[Message]:
        """What was gathered."""
        parts, calls = taken_apart(self._pieces)
        plain, self._plain, self._pieces = self._plain, None, []
        if plain is not None:
            return [msgspec.structs.replace(plain, tool_calls=calls)]
        return [Message(Role.ASSISTANT, parts, tool_calls=calls)] if parts or calls else []


def _is_made_by_model(item: Mapping[str, Any]) -> bool:
    kind = item.get("type", "message")
    if kind == "message":
        return item.get("role") == "assistant"
    return not isinstance(kind, str) or not (kind.endswith("_output") or kind in _OF_THE_CLIENT)


def _read_said(item: Mapping[str, Any]) -> Message | None:
    """A user's or the system's message; None if it is of another shape."""
    if item.get("type", "message") != "message" or not _is_content(item.get("content")):
        return None
    content = item["content"]
    known = ("content",) if item["role"] == "developer" else ("content", "role")
    rest = without(item, *known)
    return Message(_ROLES[item["role"]], _read_content(content), extra=keeping(rest, KEPT) if content else {KEPT: rest})


def _is_content(content: Any) -> bool:
    return isinstance(content, str) or (isinstance(content, list) and all(isinstance(part, dict) for part in content))


def _read_content(content: str | list[dict[str, Any]]) -> str | tuple[Part, ...]:
    if isinstance(content, str):
        return content
    read: list[Part] = []
    for part in content:
        match part:
            case {"type": "input_text" | "text" as kind, "text": str(text), **rest}:
                kept = rest if kind == "input_text" else {**rest, "type": kind}
                read.append(TextPart(text, extra=keeping(kept, KEPT)))
            case {"type": "input_image", "image_url": str(url), **rest}:
                is_plain = rest == {"detail": "auto"} and is_showable(url)
                read.append(image_at(url, None if is_plain else {KEPT: rest}))
            case _:
                read.append(OtherPart({"type": WHOLE_CONTENT, "content": part}))
    return tuple(read)


def _read_made(item: Mapping[str, Any]) -> list[Part | ToolCall]:
    """The pieces of an item that a model made."""
    match item:
        case {"type": "function_call", "call_id": str(call_id), "name": str(name), "arguments": str(arguments)}:
            rest = without(item, "type", "call_id", "name", "arguments")
            return [ToolCall(call_id, name, arguments, extra={KEPT: rest})]
        case {"type": "reasoning", "summary": list(summary)}:
            content = item.get("content")
            shown = content if isinstance(content, list) and content else summary
            texts = [part.get("text") for part in shown if isinstance(part, dict)]
            rest = without(item, "type")
            said, signature = (text for text in texts if isinstance(text, str)), taken(rest, "encrypted_content", str)
            return [ThinkingPart("\n\n".join(said), signature, extra={KEPT: rest})]
        case {"role": "assistant", "content": [first, *others] as content} if _is_content(content):
            begins = {_BEGINS: without(item, "role", "content")}
            return [_read_output(first, begins), *(_read_output(part, {}) for part in others)]
        case _:
            return [_whole(item)]


def _read_output(part: dict[str, Any], begins: dict[str, Any]) -> Part:
    match part:
        case {"type": "output_text", "text": str(text), **rest} if _BEGINS not in rest:
            return TextPart(text, extra={KEPT: {**rest, **begins}})
        case {"type": "refusal", "refusal": str(text), **rest} if _BEGINS not in rest and "text" not in rest:
            return TextPart(text, extra={KEPT: {**rest, **begins, "type": "refusal"}})
        case _:
            return OtherPart({"type": WHOLE_CONTENT, "content": part, **begins})


def _whole(item: Mapping[str, Any]) -> OtherPart:
    return OtherPart({"type": WHOLE_ITEM, "item": dict(item)})


# --- files -----------------------------------------------------------------------------------------------------------


def _is_list_of_items(found: MessageList) -> bool:
    """Whether a list has what only items have: a type on each that is no message, or their names of content parts."""
    if found.field in ("input", "output"):
        return all("role" in item or isinstance(item.get("type"), str) for item in found.messages)
    parts = (part for item in found.messages if "role" in item for part in objects_in(item, "content"))
    return any(item.get("type") in _TYPES_OF_ITEMS for item in found.messages) or any(
        part.get("type") in _TYPES_OF_PARTS for part in parts
    )


OPENAI_ITEMS = message_list_format(
    name="openai-items",
    about="OpenAI Responses and Conversations items: a list of them, a request or a response; times, and that a result "
    "is an error, are lost",
    fields=["input", "output", "items"],
    before={"instructions": lambda text: {"role": "system", "content": text}},
    is_ours=_is_list_of_items,
    reader=_ItemReader,
    request=ItemsRequest,
)
