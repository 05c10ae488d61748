"""A graph's channel of messages and the session's messages: one and the same, each said once.

What a graph says is appended to the session, where everybody reads it; the checkpoint only refers to it. What others
said in the session is offered to the graph when it is loaded next, and referred to from the graph's next checkpoint on.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from langchain_core.messages import BaseMessage

from miniclaw_sessions.adapters.histories import is_own, presented
from miniclaw_sessions.adapters.langchain import KEPT, from_langchain, to_langchain
from miniclaw_sessions.adapters.langgraph.records import Reference
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.protocol.entries import MessageEntry
from miniclaw_sessions.protocol.messages import Message, ToolCall

_BEGINNING = Message.user("(what was said before)")  # so that what follows is not taken for a beginning; never told
_encoder = msgspec.msgpack.Encoder(enc_hook=repr)


class Known(msgspec.Struct, frozen=True):
    """A message that a graph was given, or has stored: what tells it from every other, and where it stands."""

    digest: bytes
    reference: Reference


def is_message_list(value: Any) -> bool:
    """Whether a channel's value is a list of LangChain's messages, and nothing else."""
    return isinstance(value, list) and all(isinstance(item, BaseMessage) for item in value)


def digest_of(message: BaseMessage) -> bytes:
    """16 bytes that differ when two messages differ in class, id or anything that they say."""
    fields = {**message.__dict__, "": type(message).__qualname__}
    try:
        encoded = _encoder.encode(fields)
    except (TypeError, ValueError, OverflowError):
        encoded = repr(sorted(fields.items())).encode(errors="surrogatepass")
    return blake2b(encoded, digest_size=16).digest()


def shown_to_others(message: BaseMessage) -> tuple[Message, bool] | None:
    """A graph's message as the session keeps it, and whether that is all of it; None where it cannot be kept."""
    try:
        (canonical,) = from_langchain([message])
    except InvalidMessage:  # a tool's artifact may be any object; what was said is JSON
        plain: dict[str, Any] = {"additional_kwargs": {}, "response_metadata": {}, "artifact": None}
        try:
            (canonical,) = from_langchain([message.model_copy(update=_known_fields(message, plain))])
        except InvalidMessage:
            return None
        return canonical, False
    return canonical, from_session(canonical) == message


def _known_fields(message: BaseMessage, fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name in type(message).model_fields}


def from_session(message: Message) -> BaseMessage:
    """One message of the session, as LangChain has it: nothing is changed to make it legal alone."""
    if is_own(message, KEPT):
        return to_langchain([message])[0]
    before = [_BEGINNING]
    if message.is_tool_result:
        before.append(Message.assistant("", (ToolCall(message.tool_call_id or "", message.name or "tool"),)))
    return to_langchain([*before, message])[len(before)]


def offered(entries: Sequence[MessageEntry], before: Sequence[BaseMessage]) -> list[tuple[BaseMessage, str | None]]:
    """What others said since, as a graph is given it: made legal, each with the id of its entry where it has one.

    Args:
        entries: the messages of others, oldest first.
        before: what the graph knows already; its last unanswered calls are answered where others have gone on.
    """
    told = _latest_exchange(before)
    start = [_BEGINNING] if before else []
    by_identity = {id(entry.message): entry.id for entry in entries}
    shown = presented([*start, *told, *(entry.message for entry in entries)], KEPT)
    given: list[tuple[BaseMessage, str | None]] = []
    known = {id(message) for message in (*start, *told)}
    for message in shown:
        if id(message) in known:
            continue
        converted, entry_id = from_session(message), by_identity.get(id(message))
        if converted.id is None and entry_id is not None:
            converted.id = entry_id  # the same whenever it is read
        given.append((converted, entry_id))
    return given


def _latest_exchange(messages: Sequence[BaseMessage]) -> list[Message]:
    """The graph's last reply, and the results behind it, as others are told of them."""
    start = next((place for place in range(len(messages) - 1, -1, -1) if messages[place].type != "tool"), 0)
    shown = [shown_to_others(message) for message in messages[start:]]
    return [found[0] for found in shown if found is not None]


def compare(
    messages: Sequence[BaseMessage], stored: Sequence[Known], given: Sequence[Known]
) -> tuple[int, list[Known | None]]:
    """How many messages are as they were stored, and for each message behind those what is known of it.

    Args:
        messages: a channel's new value.
        stored: the version before it.
        given: what others said and the graph was given.
    """
    digests = [digest_of(message) for message in messages]
    keep = 0
    while keep < min(len(digests), len(stored)) and stored[keep].digest == digests[keep]:
        keep += 1
    left: defaultdict[bytes, deque[Known]] = defaultdict(deque)
    for known in (*stored[keep:], *given):
        left[known.digest].append(known)
    return keep, [left[digest].popleft() if left[digest] else None for digest in digests[keep:]]


def new_at_the_end(found: Sequence[Known | None]) -> int:
    """From where on nothing is known: what a graph puts among older messages was not said to anybody."""
    return max((place + 1 for place, one in enumerate(found) if one is not None), default=0)
