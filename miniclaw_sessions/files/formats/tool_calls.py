"""Tool calls as model services want them: ids and names that they accept, arguments as an object, the order of a reply.

The canonical message keeps content and calls apart, because nearly every reply has its calls behind its content. Where
one has not (thinking between two calls, text behind one), the call says in `extra` how many parts stood before it, so
that every codec can write the reply in the order in which it was given.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

import msgspec

from miniclaw_sessions.core.protocol.json_values import parse_json
from miniclaw_sessions.core.protocol.messages import Message, Part, TextPart, ToolCall
from miniclaw_sessions.errors import InvalidMessage

PLACE = "content_before"
"""The key of a call's `extra` that says how many parts of the content stand before it; absent: all of them."""

NOT_AN_OBJECT = "value"
"""The name under which arguments are sent that are not an object, to services that take only objects."""


# --- the order of a reply --------------------------------------------------------------------------------------------


def in_order(message: Message) -> list[Part | ToolCall]:
    """The parts and the calls of a message, in the order in which they were given; text is one part if there is any."""
    content: tuple[Part, ...]
    if isinstance(message.content, str):
        content = (TextPart(message.content),) if message.content else ()
    else:
        content = message.content
    if not message.tool_calls:
        return list(content)
    pieces: list[Part | ToolCall] = []
    written = 0
    for call in message.tool_calls:
        place = _place(call, len(content))
        pieces += content[written:place]
        written = max(written, place)
        pieces.append(call)
    return pieces + list(content[written:])


def _place(call: ToolCall, parts: int) -> int:
    place = (call.extra or {}).get(PLACE)
    return place if isinstance(place, int) and 0 <= place <= parts else parts


def taken_apart(pieces: Iterable[Part | ToolCall]) -> tuple[tuple[Part, ...], tuple[ToolCall, ...] | None]:
    """The content and the calls of a reply that was given in this order: the reverse of `in_order`."""
    parts: list[Part] = []
    calls: list[tuple[ToolCall, int]] = []
    for piece in pieces:
        if isinstance(piece, ToolCall):
            calls.append((piece, len(parts)))
        else:
            parts.append(piece)
    return tuple(parts), tuple(_placed(call, place, len(parts)) for call, place in calls) or None


def _placed(call: ToolCall, place: int, parts: int) -> ToolCall:
    if place == parts:
        return call
    return msgspec.structs.replace(call, extra={**(call.extra or {}), PLACE: place})


def in_pieces(blocks: Iterable[Any], is_result: Callable[[Any], bool]) -> list[list[Any]]:
    """Blocks in groups, for messages that answer several calls: each result by itself, what stands between together."""
    pieces: list[list[Any]] = []
    for answers, run in groupby(blocks, is_result):
        group = list(run)
        pieces += [[block] for block in group] if answers else [group]
    return pieces


# --- arguments -------------------------------------------------------------------------------------------------------


def arguments_object(arguments: str) -> dict[str, Any]:
    """A call's arguments as the object that a service wants; other JSON or text is put into one, as `NOT_AN_OBJECT`."""
    if not arguments.strip():
        return {}
    try:
        value = parse_json(arguments.encode())
    except (InvalidMessage, UnicodeEncodeError):
        value = arguments
    return value if isinstance(value, dict) else {NOT_AN_OBJECT: value}


def arguments_text(arguments: Any) -> str:
    """An object that a service sent as arguments, as the canonical JSON text."""
    return msgspec.json.encode(arguments).decode()


# --- names and ids ---------------------------------------------------------------------------------------------------


def fitting_name(name: str, longest: int) -> str:
    """A tool's name in letters, digits, underscores and dashes; every service refuses others, and with them all."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:longest] or "_"


def fitting_id(call_id: str, fitting: re.Pattern[str]) -> str:
    """The id itself where it fits, else one made from it, always the same."""
    return call_id if fitting.fullmatch(call_id) else _made_from(call_id)


class CallIds:
    """Ids that a service accepts for the calls of one request, and for their results alike.

    An id that fits and is used once stays as it is. Another is replaced by one made from it, always the same: another
    service's characters and lengths would be refused, and so would an id that two replies share.
    """

    def __init__(self, fitting: re.Pattern[str]) -> None:
        self._fitting = fitting
        self._used: set[str] = set()
        self._current: dict[str, str] = {}

    def keep(self, call_id: str) -> None:
        """Leave the id of a call that goes back to its own service as it is, and its results' too."""
        self._used.add(call_id)
        self._current[call_id] = call_id

    def reserve(self, call_ids: Iterable[str]) -> None:
        """Give these ids to no call but those that keep them: they come later in the same request."""
        self._used.update(call_ids)

    def of_call(self, call_id: str) -> str:
        """The id to send for a call; its results follow before the next call of the same id."""
        written = fitting_id(call_id, self._fitting)
        repeats = 1
        while written in self._used:
            repeats += 1
            written = _made_from(f"{call_id}#{repeats}")
        self._used.add(written)
        self._current[call_id] = written
        return written

    def of_result(self, call_id: str) -> str:
        """The id to send for the result of the latest call of that id."""
        return self._current.get(call_id) or fitting_id(call_id, self._fitting)


def _made_from(call_id: str) -> str:
    return f"call_{hashlib.sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"
