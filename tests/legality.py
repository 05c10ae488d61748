"""Whether a context may be sent to a model: the rules of `core.history.context`, written separately."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from miniclaw_sessions.core.protocol.messages import Message, Role, TextPart, ThinkingPart, ToolCall


def is_legal(messages: Sequence[Message]) -> list[str]:
    """The problems of a context, one sentence each; an empty list means that it may be sent to a model.

    The sentences contain positions and tool names, never content.
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
