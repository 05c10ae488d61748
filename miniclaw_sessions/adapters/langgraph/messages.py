"""A graph's channel of messages and the session's messages: one and the same, each said once.

What a graph says is appended to the session, where everybody reads it; the checkpoint only refers to it. What others
said in the session is offered to the graph when it is loaded next, and referred to from the graph's next checkpoint on.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from copy import copy
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from langchain_core.messages import AIMessage, BaseMessage

from miniclaw_sessions.adapters.histories import traced
from miniclaw_sessions.adapters.langchain import KEPT, as_langchain, from_langchain
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.protocol.entries import MessageEntry
from miniclaw_sessions.protocol.messages import Message

_BEGINNING = Message.user("(what was said before)")  # so that what follows is not taken for a beginning; never told
_encoder = msgspec.msgpack.Encoder(enc_hook=repr)


class Known(NamedTuple):
    """A message that a graph was given, or has stored.

    Attributes:
        digest: what tells it from every other message.
        entry_id: the session's entry that says it, or from which it was made; None: nobody else is told.
        is_whole: whether the entry holds all of it.
    """

    digest: bytes
    entry_id: str | None
    is_whole: bool


def is_message_list(value: Any) -> bool:
    """Whether a channel's value is a list of LangChain's messages, and nothing else."""
    return isinstance(value, list) and all(isinstance(item, BaseMessage) for item in value)


def digest_of(message: BaseMessage) -> bytes:
    """16 bytes that differ when two messages differ in class, id or anything that they say."""
    fields = {**message.__dict__, **(message.__pydantic_extra__ or {}), "": type(message).__qualname__}
    try:
        encoded = _encoder.encode(fields)
    except (TypeError, ValueError, OverflowError):
        encoded = repr(sorted(fields.items())).encode(errors="surrogatepass")
    return blake2b(encoded, digest_size=16).digest()


def fresh(message: BaseMessage) -> BaseMessage:
    """A message that is the same and shares nothing that can be changed; its fields are JSON."""
    another = copy(message)
    for fields in (another.__dict__, another.__pydantic_extra__ or {}):
        for name, value in fields.items():
            if (kind := type(value)) is dict or kind is list:
                fields[name] = _fresh_json(value) if value else kind()
    return another


def _fresh_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _fresh_json(item) for name, item in value.items()}
    return [_fresh_json(item) for item in value] if isinstance(value, list) else value


def shown_to_others(message: BaseMessage) -> tuple[Message, bool] | None:
    """A graph's message as the session keeps it, and whether that is all of it; None where it cannot be kept."""
    try:
        (canonical,) = from_langchain([message])
    except InvalidMessage:  # a tool's artifact may be any object; what was said is JSON
        plain: dict[str, Any] = {"additional_kwargs": {}, "response_metadata": {}, "artifact": None}
        known = {name: value for name, value in plain.items() if name in type(message).model_fields}
        try:
            (canonical,) = from_langchain([message.model_copy(update=known)])
        except InvalidMessage:
            return None
        return canonical, False
    return canonical, as_langchain(canonical) == message


def offered(entries: Sequence[MessageEntry], before: Sequence[BaseMessage]) -> list[tuple[BaseMessage, Known]]:
    """What others said since, as a graph is given it: made legal, each message with an id that is always the same.

    Args:
        entries: the messages of others, oldest first.
        before: what the graph knows already; its last unanswered calls are answered where others have gone on.
    """
    told = _latest_exchange(before)
    start = [_BEGINNING] if before else []
    history = [*start, *told, *(entry.message for entry in entries)]
    known = {id(message) for message in (*start, *told)}
    entry_ids = {id(entry.message): entry.id for entry in entries}
    given: list[tuple[BaseMessage, Known]] = []
    last_id = (before[-1].id if before else None) or "beginning"
    used = [call["id"] or "" for message in before if isinstance(message, AIMessage) for call in message.tool_calls]
    for message, source in traced(history, KEPT, used_ids=used):
        if id(message) in known:
            continue
        entry_id = None if source is None else entry_ids.pop(id(source), None)
        converted, is_whole = as_langchain(message), message is source
        if converted.id is None:
            converted.id = entry_id or f"{last_id}.{message.tool_call_id}"
        last_id = converted.id
        given.append((converted, Known(digest_of(converted), entry_id, is_whole)))
    return given


def _latest_exchange(messages: Sequence[BaseMessage]) -> list[Message]:
    """The graph's last reply, and the results behind it, as others are told of them."""
    start = next((place for place in range(len(messages) - 1, -1, -1) if messages[place].type != "tool"), 0)
    shown = [shown_to_others(message) for message in messages[start:]]
    return [found[0] for found in shown if found is not None]


def compare(
    digests: Sequence[bytes], stored: Sequence[Known], given: Sequence[Known]
) -> tuple[int, list[Known | None]]:
    """How many messages are as they were stored, and for each message behind those what is known of it.

    Args:
        digests: of a channel's new value.
        stored: the version before it.
        given: what others said and the graph was given.
    """
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
