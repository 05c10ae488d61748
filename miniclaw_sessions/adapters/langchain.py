"""Sessions for LangChain: a `BaseChatMessageHistory` over one of ours.

    import asyncio

    from langchain_core.language_models import FakeListChatModel
    from langchain_core.messages import HumanMessage

    from miniclaw_sessions import SessionManager
    from miniclaw_sessions.adapters.langchain import MiniclawChatMessageHistory

    async def main() -> None:
        model = FakeListChatModel(responses=["Hello Ada!"])
        async with SessionManager("workspace") as manager:
            history = MiniclawChatMessageHistory(await manager.get_or_create("telegram", "123456789"))
            question = HumanMessage("I am Ada.")
            reply = await model.ainvoke([*await history.aget_messages(), question])
            await history.aadd_messages([question, reply])
            print([message.text for message in await history.aget_messages()])

    asyncio.run(main())

LangChain's messages come back as they were given: class, id, content blocks, usage, metadata, as far as they are JSON
(a tool's `artifact` must be JSON, and a number that JSON cannot express becomes null). The messages of other frameworks
come as plain messages with standard content blocks; their thinking, which only they can replay, is left out.

The synchronous methods work everywhere, and do as much as is possible there without blocking the event loop:

- from another thread than the session's loop they do what the asynchronous ones do, and wait for it;
- on the loop itself, `messages` is the session's window (its newest messages, `sessions.window` of them, behind the
  summary of what was compacted), and `add_messages` and `clear` are accepted at once and acknowledged later:
  `await session.saved()`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    messages_from_dict,
)
from pydantic_core import PydanticSerializationError

from miniclaw_sessions.adapters.chats import chat_of
from miniclaw_sessions.adapters.home_loop import HomeLoop, at_home
from miniclaw_sessions.core.protocol.images import address_of, image_at
from miniclaw_sessions.core.protocol.json_values import parse_json
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
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.codec import has_kept, kept_fields
from miniclaw_sessions.files.formats.histories import traced
from miniclaw_sessions.files.formats.tool_calls import arguments_object, arguments_text
from miniclaw_sessions.service.client import ClientSession

KEPT = "langchain"
"""The key of `extra` under which LangChain's fields without a canonical place are kept."""

WHOLE_BLOCK = "langchain_block"
"""The type of a part that is a content block without a canonical form; its field `block` holds it, verbatim."""

_NAME = re.compile(r"[^\s<|\\/>]{1,64}")  # services refuse any other name, and with it the whole request
_STRING = "str"  # kept as the `type` of a text that stood in a list of blocks without being one
_ROLES = {Role.USER: "human", Role.SYSTEM: "system", Role.ASSISTANT: "ai", Role.TOOL_RESULT: "tool"}
_CHAT_ROLES = {
    **dict.fromkeys(("user", "human"), Role.USER),
    **dict.fromkeys(("assistant", "ai", "model"), Role.ASSISTANT),
    **dict.fromkeys(("system", "developer"), Role.SYSTEM),
}


class MiniclawChatMessageHistory(BaseChatMessageHistory):
    """A session as LangChain's memory wants it. Any number of them may stand for the same session.

    Made on the event loop of the session's manager or client; it may then be used from any thread and loop. A call
    without a result is answered with an error, unless this very object added it last: then its result may still come.

    Args:
        session: whose conversation it is: of a manager, or of a client.

    Attributes:
        session: the session itself.
    """

    def __init__(self, session: Session | ClientSession) -> None:
        super().__init__()
        self.session: Any = session  # its class is the caller's affair
        self._chat = chat_of(session)
        self._home = HomeLoop()
        self._open_calls: set[str] = set()

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]  # the base declares an attribute, or a property
        """The conversation; on the session's own event loop, its window, which a client does not have."""
        if not self._home.is_elsewhere and isinstance(self.session, Session):
            return to_langchain(self.session.messages(), open_calls=self._open_calls)
        return self._home.wait(self.aget_messages)

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Append messages, all or none; on the session's own event loop they are accepted, elsewhere acknowledged.

        Raises:
            InvalidMessage: a message is not JSON, or is too large.
            StoreFull, StoreUnavailable, UnsavedLimit, SessionDeleted: as for `Session.add_messages`.
            RuntimeError: it is a client's session, and this is the client's own event loop.
        """
        canonical = from_langchain(messages)
        if not self._home.is_elsewhere and isinstance(self.session, Session):
            self.session.extend(canonical)
            self._note(canonical)
        else:
            self._home.wait(lambda: self._add(canonical))

    def clear(self) -> None:
        """Start over; on the session's own event loop that is accepted, elsewhere acknowledged.

        Raises:
            StoreUnavailable, UnsavedLimit, SessionDeleted: as for `Session.clear` and `Session.saved`.
            RuntimeError: as for `add_messages`.
        """
        if not self._home.is_elsewhere and isinstance(self.session, Session):
            self.session.clear()
        else:
            self._home.wait(self._chat.clear)

    @at_home
    async def aget_messages(self) -> list[BaseMessage]:
        """The conversation, oldest first, behind the summary of what was compacted.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        return to_langchain(await self._chat.messages(), open_calls=self._open_calls)

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Append messages, all or none, and return when they are acknowledged: the store has committed them.

        Raises:
            InvalidMessage, StoreFull, StoreUnavailable, UnsavedLimit, SessionDeleted: as for `add_messages`.
        """
        await self._add(from_langchain(messages))

    @at_home
    async def aclear(self) -> None:
        """Start over, acknowledged. The transcript keeps what was said. Raises as `clear` does."""
        await self._chat.clear()

    @at_home
    async def _add(self, messages: Sequence[Message]) -> None:
        if messages:
            await self._chat.append(messages)
            self._note(messages)

    def _note(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if message.is_tool_result:
                self._open_calls.discard(message.tool_call_id or "")
            else:
                self._open_calls = {call.id for call in message.tool_calls or ()}


# --- from LangChain --------------------------------------------------------------------------------------------------


def from_langchain(messages: Iterable[BaseMessage]) -> list[Message]:
    """LangChain's messages as canonical ones.

    Raises:
        InvalidMessage: a message is not JSON.
    """
    read: list[Message] = []
    for message in messages:
        fields = _fields(message)
        canonical = _canonical(message, fields)
        unsaid = {**_defaults(type(message)), **_plain(canonical)}
        kept = {name: value for name, value in fields.items() if unsaid.get(name) != value}
        read.append(msgspec.structs.replace(canonical, extra={KEPT: kept}))
    return read


def _fields(message: BaseMessage) -> dict[str, Any]:
    try:
        fields = parse_json(message.model_dump_json().encode())
    except (PydanticSerializationError, UnicodeEncodeError, ValueError) as error:
        raise InvalidMessage(
            f"a LangChain message of type {message.type} is not JSON; {type(error).__name__}"
        ) from None
    return dict(fields)


@cache
def _defaults(kind: type[BaseMessage]) -> Mapping[str, Any]:
    """What the fields of a class of messages are where nothing is said; only to be compared with."""
    return {name: field.get_default(call_default_factory=True) for name, field in kind.model_fields.items()}


def _canonical(message: BaseMessage, fields: Mapping[str, Any]) -> Message:
    """A message's content for other frameworks."""
    content, name = fields["content"], fields.get("name")
    if not isinstance(content, str):
        content = tuple(_read_block(block) for block in content)
    if isinstance(message, AIMessage):
        return _read_reply(message, content, name)
    if isinstance(message, ToolMessage):
        is_error = message.status == "error"
        return Message(Role.TOOL_RESULT, content, tool_call_id=message.tool_call_id, name=name, is_error=is_error)
    role = Role.CUSTOM  # a RemoveMessage, and what others could only take for a user's text
    if isinstance(message, HumanMessage):
        role = Role.USER
    elif isinstance(message, SystemMessage):
        role = Role.SYSTEM
    elif isinstance(message, ChatMessage):
        role = _CHAT_ROLES.get(message.role, role)
    return Message(role, content, name=name)


def _read_reply(message: AIMessage, content: str | tuple[Part, ...], name: str | None) -> Message:
    usage: Usage | None = None
    counted: Any = message.usage_metadata
    if counted is not None:
        details = counted.get("input_token_details") or {}
        read, written = details.get("cache_read") or 0, details.get("cache_creation") or 0
        uncached = counted["input_tokens"] - read - written  # LangChain's input tokens include those of the cache
        usage = Usage(uncached, counted["output_tokens"], read, written, total_tokens=counted["total_tokens"])
    metadata = message.response_metadata
    model, reason = metadata.get("model_name"), metadata.get("finish_reason") or metadata.get("stop_reason")
    return Message(
        Role.ASSISTANT,
        content,
        tool_calls=tuple(
            ToolCall(call["id"] or "", call["name"], arguments_text(call["args"])) for call in message.tool_calls
        )
        or None,
        name=name,
        model=model if isinstance(model, str) else None,
        usage=usage,
        stop_reason=reason if isinstance(reason, str) else None,
    )


def _read_block(block: Any) -> Part:
    """A content block as a part that gives it back exactly."""
    part: Part | None = None
    match block:
        case str():
            part = TextPart(block, extra={KEPT: {"type": _STRING}})
        case {"type": "text", "text": str(text), **rest}:
            part = TextPart(text, extra={KEPT: rest})
        case {"type": "image", "base64": str(data), "mime_type": str(media_type), **rest}:
            part = ImagePart(media_type, data, extra={KEPT: rest})
        case {"type": "image", "url": str(url), **rest}:
            part = ImagePart(url=url, extra={KEPT: rest})
        case {"type": "image_url", "image_url": {"url": str(url), **image}}:
            part = image_at(url, {KEPT: {**block, "image_url": image}})
        case {"type": "reasoning", "reasoning": str(text), **rest}:
            part = ThinkingPart(text, extra={KEPT: rest})
        case {"type": "thinking", "thinking": str(text), "signature": str(signature), **rest}:
            part = ThinkingPart(text, signature, extra={KEPT: {"type": "thinking", **rest}})
    if part is None or _write_block(part) != block:
        return OtherPart({"type": WHOLE_BLOCK, "block": block})
    return part


# --- to LangChain ----------------------------------------------------------------------------------------------------


def to_langchain(messages: Iterable[Message], *, open_calls: Container[str] = ()) -> list[BaseMessage]:
    """A history as LangChain's messages: those that came from it as they were, those of others made legal.

    Args:
        messages: the history.
        open_calls: the ids of calls at its end that are still being answered; no others are left open.
    """
    return [as_langchain(message) for message, _ in traced(messages, KEPT, open_calls=open_calls)]


def as_langchain(message: Message) -> BaseMessage:
    """One message, as it was or as it is: nothing is made legal."""
    plain = _plain(message)
    fields = {**plain, **kept_fields(message.extra, KEPT)}
    try:
        return _made(fields)
    except (ValueError, TypeError):  # of a class that only its writer knows, or of another version of LangChain
        return _made(plain)


def _made(fields: Mapping[str, Any]) -> BaseMessage:
    (message,) = messages_from_dict([{"type": fields["type"], "data": dict(fields)}])
    return message


def _plain(message: Message) -> dict[str, Any]:
    """The fields of a message that says what the canonical one says."""
    kind = _ROLES.get(message.role, "human")
    content: str | list[Any] = message.content if isinstance(message.content, str) else []
    if not isinstance(message.content, str):
        content = [block for part in message.content if (block := _write_block(part)) is not None]
    fields: dict[str, Any] = {"type": kind, "content": content}
    if message.name is not None and _NAME.fullmatch(message.name):
        fields["name"] = message.name
    if message.is_tool_result:
        fields |= {"tool_call_id": message.tool_call_id or "", "status": "error" if message.is_error else "success"}
    elif message.is_assistant:
        fields |= _plain_reply(message)
    return fields


def _plain_reply(message: Message) -> dict[str, Any]:
    metadata = {"model_name": message.model, "finish_reason": message.stop_reason}
    fields: dict[str, Any] = {
        "response_metadata": {name: value for name, value in metadata.items() if value is not None},
        "tool_calls": [
            {"name": call.name, "args": arguments_object(call.arguments), "id": call.id, "type": "tool_call"}
            for call in message.tool_calls or ()
        ],
    }
    if (usage := message.usage) is not None:
        given = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
        counted: dict[str, Any] = {
            "input_tokens": given,
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.total,
        }
        if given != usage.input_tokens:
            cache = {"cache_read": usage.cache_read_tokens, "cache_creation": usage.cache_write_tokens}
            counted["input_token_details"] = cache
        fields["usage_metadata"] = counted
    return fields


def _write_block(part: Part) -> Any:
    """A part as the block that it was, or as a standard one; None for what only its writer can use."""
    kept = {} if isinstance(part, OtherPart) else kept_fields(part.extra, KEPT)
    block: Any = None
    match part:
        case TextPart(text=text):
            block = text if kept.get("type") == _STRING else {"type": "text", "text": text, **kept}
        case ImagePart() if kept.get("type") == "image_url":
            block = {**kept, "image_url": {"url": address_of(part), **kept["image_url"]}}
        case ImagePart(data=str(data)):
            block = {"type": "image", "base64": data, "mime_type": part.media_type or "image/png", **kept}
        case ImagePart():
            block = {"type": "image", "url": part.url or "", **kept}
        case ThinkingPart(thinking=text, signature=signature) if kept.get("type") == "thinking":
            block = {"thinking": text, "signature": signature, **kept}
        case ThinkingPart(thinking=text) if has_kept(part.extra, KEPT):
            block = {"type": "reasoning", "reasoning": text, **kept}
        case OtherPart(fields={"type": "langchain_block", "block": stored}):
            block = stored
    return block
