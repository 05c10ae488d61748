"""Makes any history legal for a model.

`build_context` is the one function that repairs conversations, for every provider and adapter. A window that was cut
anywhere, an interrupted turn, a file of another program, results that came late, twice or without a call: the result is
always acceptable, and the stored history is not changed. `tests/legality.py` states the same rules as a check, written
separately so that each can be tested against the other.

The rules: each tool call is answered exactly once, by the results right after its assistant message, in the order of
the calls; a call without an answer gets an error result; a result without a call is left out. A call without an id gets
one. A call that broke off in its stream is left out, and so is an assistant message without text and calls. The first
message that is not a system message is a user's. Only a system message is ever sent as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from miniclaw_sessions.core.history.pairing import pair
from miniclaw_sessions.core.protocol.json_values import parse_json
from miniclaw_sessions.core.protocol.messages import Message, Part, Role, TextPart, ThinkingPart, ToolCall
from miniclaw_sessions.errors import InvalidMessage

NO_RESULT = "error: no result of this tool call was recorded"
"""The result that a model gets for a call without an answer."""

BEGINNING_MISSING = "(The beginning of this conversation is no longer available.)"
"""The user's message for a history without any."""

_SYSTEM, _USER, _ASSISTANT, _TOOL_RESULT = Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL_RESULT
"""Each message of a context is compared with these; looking up a member of an enum costs more than the comparison."""

_WITHOUT_ID = "call_without_id_"  # the beginning of generated ids of calls; the index in the message follows
_HALF_STREAMED = "partialJson"  # pi's field on a call whose stream broke off
_BRANCH_SUMMARY = "Summary of a branch of this conversation that was left:\n\n"
_COMPACTION_SUMMARY = "Summary of the conversation before this point:\n\n"


class Legal(NamedTuple):
    """A message of a legal context, and its index in the history; None: it is not from the history."""

    message: Message
    place: int | None


def build_context(messages: Sequence[Message]) -> list[Message]:
    """Make a history legal for a model.

    A second call changes nothing more. Messages that need no repair are the same objects. An empty history gives an
    empty context; any other history gives one with at least one user message.

    Args:
        messages: a history in order, from any source, cut anywhere; it is not changed.
    """
    context, _ = _legal(messages)
    return context


def legal(messages: Sequence[Message]) -> list[Legal]:
    """`build_context`, with the index of each message in the history."""
    return [*map(Legal, *_legal(messages))]


def _legal(messages: Sequence[Message]) -> tuple[list[Message], list[int | None]]:
    """A legal context, and the index of each of its messages in the history."""
    if not messages:
        return [], []
    context, places = _answered(messages)
    user = next((index for index, message in enumerate(context) if message.role is _USER), None)
    if user is None:
        systems = next((i for i, message in enumerate(context) if message.role is not _SYSTEM), len(context))
        context.insert(systems, Message.user(BEGINNING_MISSING))
        places.insert(systems, None)
    elif user > 0:
        kept = [index for index in range(user) if context[index].role is _SYSTEM]
        context[:user], places[:user] = [context[index] for index in kept], [places[index] for index in kept]
    return context, places


def as_seen_alone(message: Message) -> list[Message]:
    """A message as a model may see it, apart from its neighbours: itself, nothing, or an equivalent."""
    return list(_presented(message))


def _answered(messages: Sequence[Message]) -> tuple[list[Message], list[int | None]]:
    """The messages with each call followed by its result, without other results; and the index of each."""
    shown: list[Message] = []
    places: list[int | None] = []
    for place, original in enumerate(messages):
        for message in _presented(original):
            shown.append(message)
            places.append(place)
    answers = pair(shown)
    context: list[Message] = []
    found: list[int | None] = []
    for index, message in enumerate(shown):
        if message.role is _TOOL_RESULT:
            continue
        context.append(message)
        found.append(places[index])
        for call in message.tool_calls or ():
            answer = answers.get((index, call.id))
            context.append(_answer(call, None if answer is None else shown[answer]))
            found.append(None if answer is None else places[answer])
    return context, found


def _answer(call: ToolCall, answer: Message | None) -> Message:
    """The result that follows a call, with the call's id and a name."""
    if answer is None:
        content = NO_RESULT if call.output is None else call.output
        return Message.tool_result(call, content, is_error=call.output is None)
    if answer.tool_call_id == call.id and answer.name is not None:
        return answer
    return msgspec.structs.replace(answer, tool_call_id=call.id, name=answer.name or call.name)


class ContextInParts:
    """`build_context` for a history that is too long for memory: it is fed message by message.

    The result is the same, except that a result more than `HELD_MESSAGES` messages after its call is left out.
    """

    def __init__(self, *, has_user: bool, at_once: int = 64) -> None:
        """Begin.

        Args:
            has_user: whether the history has a message for which `is_shown_as_user` is true.
            at_once: the least number of messages that are held before messages with answered calls are returned.
        """
        self._at_once = at_once
        self._has_user = has_user
        self._begun = self._any = False
        self._held: list[Message] = []
        self._waiting: Counter[str] = Counter()  # by id, how many calls of held messages have no result yet

    def add(self, message: Message) -> list[Message]:
        """Add the next message of the history. Returns the part of the context that is certain now."""
        self._any = True
        is_answered = not self._waiting and len(self._held) >= self._at_once
        is_end = (is_answered or len(self._held) >= HELD_MESSAGES) and not message.is_tool_result
        done = self._release() if is_end else []
        self._held.append(message)
        if message.is_tool_result:
            self._waiting -= Counter(result.tool_call_id or "" for result in _one_by_one(message))
        elif message.is_assistant:
            ids = [call.id for call in message.tool_calls or () if is_whole(call)]
            self._waiting += Counter(dict.fromkeys(ids, 1) | {"": ids.count("")})
        return done

    def end(self) -> list[Message]:
        """The rest of the context."""
        rest = self._release()
        return rest if self._begun or not self._any else [*rest, Message.user(BEGINNING_MISSING)]

    def _release(self) -> list[Message]:
        held, self._held = self._held, []
        self._waiting.clear()
        answered, _ = _answered(held)
        if self._begun:
            return answered
        begins = (message.is_user if self._has_user else message.role is not Role.SYSTEM for message in answered)
        place = next((place for place, is_first in enumerate(begins) if is_first), len(answered))
        systems = [message for message in answered[:place] if message.role is Role.SYSTEM]
        self._begun = place < len(answered)
        if self._begun and not answered[place].is_user:
            systems.append(Message.user(BEGINNING_MISSING))
        return systems + answered[place:]


HELD_MESSAGES = 4_096
"""The largest number of messages that are held while a call waits for its result."""


def is_shown_as_user(message: Message) -> bool:
    """Whether a message becomes a user's in a context."""
    return any(presented.is_user for presented in _presented(message))


# --- one message at a time -------------------------------------------------------------------------------------------


def _presented(message: Message) -> Iterable[Message]:
    """The message as a model may see it: itself, nothing, or an equivalent."""
    role = message.role
    if role is _ASSISTANT:
        return _without_broken_calls(message)
    if role is _TOOL_RESULT:
        return _one_by_one(message)
    if role is _USER or role is _SYSTEM:
        return (_without_calls(message),)
    return _as_user(message)


def _without_broken_calls(message: Message) -> Iterable[Message]:
    """The assistant's message with its complete calls; nothing if it has neither text nor calls."""
    if message.tool_calls is None:
        return () if _is_blank(message.content) else (message,)
    calls: dict[str, ToolCall] = {}
    for place, call in enumerate(message.tool_calls or ()):
        if is_whole(call):
            named = call if call.id else msgspec.structs.replace(call, id=f"{_WITHOUT_ID}{place}")
            calls.setdefault(named.id, named)  # of several calls with one id, the first
    if not calls and _is_blank(message.content):
        return ()
    shown = tuple(calls.values()) or None
    return (message,) if shown == message.tool_calls else (msgspec.structs.replace(message, tool_calls=shown),)


def is_whole(call: ToolCall) -> bool:
    """Whether a call is complete; empty arguments are those of a tool that takes none.

    Calls of some services and programs have no ids: their results answer them in order (`pairing`).
    """
    if not call.name or _HALF_STREAMED in (call.extra or {}):
        return False
    if not call.arguments.strip():
        return True
    try:
        parse_json(call.arguments.encode())
    except (InvalidMessage, UnicodeEncodeError):
        return False
    return True


def _one_by_one(message: Message) -> Iterable[Message]:
    """A tool result, split into one for each call if a source keeps several in one message, as Lango does."""
    if not message.tool_calls:
        return (_without_calls(message),)
    return [
        msgspec.structs.replace(
            message,
            content=message.content if call.output is None else call.output,
            tool_call_id=call.id,
            name=call.name,
            tool_calls=None,
        )
        for call in message.tool_calls
    ]


def _without_calls(message: Message) -> Message:
    return message if message.tool_calls is None else msgspec.structs.replace(message, tool_calls=None)


def _as_user(message: Message) -> Iterable[Message]:
    """A message of any other role, as a user's: content of a file must not become an instruction."""
    extra = message.extra or {}
    text = message.text or str(extra.get("summary", ""))
    content = message.content
    match message.role:
        case Role.BASH_EXECUTION if extra.get("excludeFromContext") is True:
            return ()
        case Role.BASH_EXECUTION if "command" in extra:
            content = f"Ran `{extra['command']}`:\n\n{extra.get('output') or text}".rstrip()
        case Role.BRANCH_SUMMARY if text:
            content = _BRANCH_SUMMARY + text
        case Role.COMPACTION_SUMMARY if text:
            content = _COMPACTION_SUMMARY + text
        case _:
            pass
    if _is_blank(content):
        return ()
    return (Message(Role.USER, content, timestamp=message.timestamp, name=message.name),)


def _is_blank(content: str | tuple[Part, ...]) -> bool:
    """Whether content is blank: thinking alone is not an answer, and some providers refuse white space."""
    if isinstance(content, str):
        return not content.strip()
    return all(
        isinstance(part, ThinkingPart) or (isinstance(part, TextPart) and not part.text.strip()) for part in content
    )
