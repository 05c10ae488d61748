"""What may be sent to a model: any history in, a legal one out.

`build_context` is the one function that repairs conversations, for every provider and adapter. A window that was cut
anywhere, a turn that was interrupted, a file of another program, results that came late, twice or for nothing: what
comes out is always acceptable, and the stored history is not touched. `is_legal` says the same thing the other way
round, written on its own so that each can be tested against the other.

The rules: every tool call is answered exactly once, by the results right behind its assistant message, in the order of
the calls; a call that nothing answered gets an error result; a result that belongs to no call is left out. A call
without an id gets one. A call that broke off while it was streamed is left out, and an assistant message that says and
calls nothing too. The first message that is not a system's is a user's. Only a system message is ever sent as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from miniclaw_sessions.core.history.pairing import pair
from miniclaw_sessions.core.protocol.json_values import parse_json
from miniclaw_sessions.core.protocol.messages import Message, Part, Role, TextPart, ThinkingPart, ToolCall
from miniclaw_sessions.errors import InvalidMessage

NO_RESULT = "error: no result of this tool call was recorded"
"""What a model is told about a call that nothing answered."""

BEGINNING_MISSING = "(The beginning of this conversation is no longer available.)"
"""What stands in the user's place when a history holds no user message at all."""

_WITHOUT_ID = "call_without_id_"  # what the ids of calls that have none begin with; the place in the message follows
_HALF_STREAMED = "partialJson"  # what pi leaves on a call whose stream broke off
_BRANCH_SUMMARY = "Summary of a branch of this conversation that was left:\n\n"
_COMPACTION_SUMMARY = "Summary of the conversation before this point:\n\n"


class Legal(NamedTuple):
    """A message of a legal context, and where in the history it stands; None: nothing of the history is it."""

    message: Message
    place: int | None


def build_context(messages: Sequence[Message]) -> list[Message]:
    """Make a history legal for a model.

    Doing it twice changes nothing more. What needs no repair is passed on as the same objects. An empty history gives
    an empty context; any other gives one that holds at least a user message.

    Args:
        messages: a history in order, cut anywhere, from anywhere; it is not changed.
    """
    return [message for message, _ in legal(messages)]


def legal(messages: Sequence[Message]) -> list[Legal]:
    """`build_context`, with the place that each of its messages has in the history."""
    return _begun_by_user(_answered(messages)) if messages else []


def as_seen_alone(message: Message) -> list[Message]:
    """A message as a model may see it, whatever stands around it: itself, nothing, or something that says the same."""
    return list(_presented(message))


def _answered(messages: Sequence[Message]) -> list[Legal]:
    """Every call with its result behind it, and nothing else of results."""
    shown = [Legal(message, place) for place, told in enumerate(messages) for message in _presented(told)]
    answers = pair([message for message, _ in shown])
    context: list[Legal] = []
    for index, one in enumerate(shown):
        if one.message.is_tool_result:
            continue
        context.append(one)
        for call in one.message.tool_calls or ():
            answer = answers.get((index, call.id))
            context.append(_missing(call) if answer is None else _answering(call, shown[answer]))
    return context


class ContextInParts:
    """`build_context` of a history that is too long to be held: it is fed message by message.

    The same comes out, but that a result which comes more than `HELD_MESSAGES` messages after its call is lost for it.
    """

    def __init__(self, *, has_user: bool, at_once: int = 64) -> None:
        """Nothing was said yet.

        Args:
            has_user: whether there is a message in the history for which `is_told_as_user` is true.
            at_once: how many messages are held at least, before those are given whose calls are all answered.
        """
        self._at_once = at_once
        self._has_user = has_user
        self._begun = self._any = False
        self._held: list[Message] = []
        self._waiting: set[str] = set()  # the calls of what is held that have no result yet

    def add(self, message: Message) -> list[Message]:
        """The next message of the history; gives what is now known of the context."""
        self._any = True
        is_answered = not self._waiting and len(self._held) >= self._at_once
        is_end = (is_answered or len(self._held) >= HELD_MESSAGES) and not message.is_tool_result
        done = self._release() if is_end else []
        self._held.append(message)
        if message.is_tool_result:
            self._waiting -= {message.tool_call_id or "", *(call.id for call in message.tool_calls or ())}
        elif message.is_assistant:
            self._waiting |= {call.id for call in message.tool_calls or () if is_whole(call)}
        return done

    def end(self) -> list[Message]:
        """The rest of the context."""
        rest = self._release()
        return rest if self._begun or not self._any else [*rest, Message.user(BEGINNING_MISSING)]

    def _release(self) -> list[Message]:
        held, self._held = self._held, []
        self._waiting.clear()
        answered = [message for message, _ in _answered(held)]
        if self._begun:
            return answered
        place = next((place for place, message in enumerate(answered) if self._is_first(message)), len(answered))
        systems = [message for message in answered[:place] if message.role is Role.SYSTEM]
        self._begun = place < len(answered)
        if self._begun and not answered[place].is_user:
            systems.append(Message.user(BEGINNING_MISSING))
        return systems + answered[place:]

    def _is_first(self, message: Message) -> bool:
        return message.is_user if self._has_user else message.role is not Role.SYSTEM


HELD_MESSAGES = 4_096
"""How many messages are held while a call waits for its result."""


def is_told_as_user(message: Message) -> bool:
    """Whether a message stands in a context as a user's."""
    return any(presented.is_user for presented in _presented(message))


# --- one message at a time -------------------------------------------------------------------------------------------


def _presented(message: Message) -> Iterable[Message]:
    """The message as a model may see it: itself, nothing, or something that says the same."""
    if message.is_assistant:
        return _without_broken_calls(message)
    if message.is_tool_result:
        return _one_by_one(message)
    if message.is_user or message.role is Role.SYSTEM:
        return (_without_calls(message),)
    return _as_user(message)


def _without_broken_calls(message: Message) -> Iterable[Message]:
    """The assistant's message with its whole calls; nothing if it neither says nor calls anything."""
    calls: dict[str, ToolCall] = {}
    for place, call in enumerate(message.tool_calls or ()):
        if is_whole(call):
            named = call if call.id else msgspec.structs.replace(call, id=f"{_WITHOUT_ID}{place}")
            calls.setdefault(named.id, named)  # the first of several with one id
    if not calls and _is_blank(message.content):
        return ()
    shown = tuple(calls.values()) or None
    return (message,) if shown == message.tool_calls else (msgspec.structs.replace(message, tool_calls=shown),)


def is_whole(call: ToolCall) -> bool:
    """Whether a call arrived complete; empty arguments are those of a tool that takes none.

    Some services and programs give calls no ids: their results answer them in order (`pairing`).
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
    """A result; one for each of its calls, where a source keeps several on one message, as in Lango."""
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
    """A message of any other role, told by the user: what stands in a file must not become an instruction."""
    content = _told(message)
    if _is_blank(content):
        return ()
    return (Message(Role.USER, content, timestamp=message.timestamp, name=message.name),)


def _told(message: Message) -> str | tuple[Part, ...]:
    extra = message.extra or {}
    text = message.text or str(extra.get("summary", ""))
    match message.role:
        case Role.BASH_EXECUTION if extra.get("excludeFromContext") is True:
            return ""
        case Role.BASH_EXECUTION if "command" in extra:
            return f"Ran `{extra['command']}`:\n\n{extra.get('output') or text}".rstrip()
        case Role.BRANCH_SUMMARY if text:
            return _BRANCH_SUMMARY + text
        case Role.COMPACTION_SUMMARY if text:
            return _COMPACTION_SUMMARY + text
        case _:
            return message.content


def _is_blank(content: str | tuple[Part, ...]) -> bool:
    """Whether content says nothing: thinking alone is not an answer, and white space is refused by some providers."""
    if isinstance(content, str):
        return not content.strip()
    return all(
        isinstance(part, ThinkingPart) or (isinstance(part, TextPart) and not part.text.strip()) for part in content
    )


# --- calls and results -----------------------------------------------------------------------------------------------


def _missing(call: ToolCall) -> Legal:
    if call.output is not None:
        return Legal(Message.tool_result(call, call.output), None)
    return Legal(Message.tool_result(call, NO_RESULT, is_error=True), None)


def _answering(call: ToolCall, answer: Legal) -> Legal:
    message = answer.message
    if message.tool_call_id == call.id and message.name is not None:
        return answer
    named = msgspec.structs.replace(message, tool_call_id=call.id, name=message.name or call.name)
    return Legal(named, answer.place)


# --- the beginning ---------------------------------------------------------------------------------------------------


def _begun_by_user(context: list[Legal]) -> list[Legal]:
    """Leave out what stands before the first user message; without any, let a short one begin."""
    first_user = next((index for index, one in enumerate(context) if one.message.is_user), None)
    if first_user is not None:
        return [one for one in context[:first_user] if one.message.role is Role.SYSTEM] + context[first_user:]
    systems = next((index for index, one in enumerate(context) if one.message.role is not Role.SYSTEM), len(context))
    return [*context[:systems], Legal(Message.user(BEGINNING_MISSING), None), *context[systems:]]


# --- the check -------------------------------------------------------------------------------------------------------


def is_legal(messages: Sequence[Message]) -> list[str]:
    """What is wrong with a context, one sentence each; an empty list means that a model may be sent it.

    The sentences name positions and tool names, never what was said.
    """
    problems: list[str] = []
    expected: list[ToolCall] = []  # the calls that must be answered next
    begun = False
    for index, message in enumerate(messages):
        if message.is_tool_result:
            problems += _result_problems(index, message, expected.pop(0) if expected else None)
            continue
        problems += [f"message {index} comes before the result of {call.name}" for call in expected]
        expected = list(message.tool_calls or ()) if message.is_assistant else []
        problems += _message_problems(index, message)
        if message.role is not Role.SYSTEM:
            if not begun and not message.is_user:
                problems.append(f"message {index} begins the conversation, and is not a user's")
            begun = True
    problems += [f"the conversation ends before the result of {call.name}" for call in expected]
    if messages and not begun:
        problems.append("there is no user message")
    return problems


def _message_problems(index: int, message: Message) -> Iterator[str]:
    if message.role not in (Role.SYSTEM, Role.USER, Role.ASSISTANT):
        yield f"message {index} has the role {message.role.value}, which no model knows"
    if message.tool_calls and not message.is_assistant:
        yield f"message {index} calls tools, and is not the assistant's"
    if message.is_assistant and not message.tool_calls and not _says_something(message):
        yield f"message {index} is the assistant's, and empty"
    seen: set[str] = set()
    for call in message.tool_calls or ():
        if not call.id or not call.name:
            yield f"message {index} has a call without id or name"
        elif call.id in seen:
            yield f"message {index} has two calls with the same id"
        seen.add(call.id)
        if not _is_json_or_empty(call.arguments) or "partialJson" in (call.extra or {}):
            yield f"message {index} has a call of {call.name} whose arguments are not complete"


def _result_problems(index: int, result: Message, call: ToolCall | None) -> Iterator[str]:
    if call is None:
        yield f"message {index} is a result, and answers no call"
    elif result.tool_call_id != call.id:
        yield f"message {index} is not the result of {call.name}, which is due"
    if result.tool_calls:
        yield f"message {index} is a result, and calls tools"


def _says_something(message: Message) -> bool:
    if isinstance(message.content, str):
        return message.content.strip() != ""
    return any(
        part.text.strip() != "" if isinstance(part, TextPart) else not isinstance(part, ThinkingPart)
        for part in message.content
    )


def _is_json_or_empty(text: str) -> bool:
    if text.strip() == "":
        return True
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):  # msgspec's errors, and a lone surrogate's, are ValueErrors
        return False
    return True
