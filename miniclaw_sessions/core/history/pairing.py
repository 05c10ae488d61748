"""Pairs tool calls with their results; the only place that does, for windows, contexts, compaction and turns.

A result answers the nearest call before it that has its id and no answer yet; ids may be used again later. A result
without an id (as in miniclaw's sample) answers the next call of the newest message before it that calls tools
and that no result with an id has answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall

_ASSISTANT, _TOOL_RESULT = Role.ASSISTANT, Role.TOOL_RESULT  # looking up a member of an enum is slow


def pair(messages: Sequence[Message]) -> Mapping[tuple[int, str], int]:
    """The index of each result that answers a call, by the index of the calling message and the call's id."""
    answers: dict[tuple[int, str], int] = {}
    waiting: dict[str, list[int]] = {}  # the indexes of messages with an unanswered call of this id, oldest first
    by_position: list[tuple[int, int]] = []
    last_calling: int | None = None
    for place, message in enumerate(messages):
        role = message.role
        if role is _ASSISTANT:
            for call in message.tool_calls or ():
                waiting.setdefault(call.id, []).append(place)
                last_calling = place
        elif role is _TOOL_RESULT:
            ids = answered_ids(message)
            for call_id in ids:
                if asking := waiting.get(call_id):
                    answers[asking.pop(), call_id] = place
            if not ids and last_calling is not None:
                by_position.append((place, last_calling))
    for place, caller in by_position:
        unanswered = [call.id for call in messages[caller].tool_calls or () if (caller, call.id) not in answers]
        if unanswered:
            answers[caller, unanswered[0]] = place
    return answers


def answered_ids(result: Message) -> Sequence[str]:
    """The ids of the calls that a result answers; several if a source keeps them in one message, as Lango does."""
    if result.tool_calls:
        return [call.id for call in result.tool_calls]
    return [result.tool_call_id] if result.tool_call_id else []


def open_calls(messages: Sequence[Message]) -> list[ToolCall]:
    """The unanswered calls of the newest assistant's message."""
    start = next((place for place in range(len(messages) - 1, -1, -1) if messages[place].is_assistant), None)
    if start is None:
        return []
    answers = pair(messages[start:])
    return [call for call in messages[start].tool_calls or () if (0, call.id) not in answers and call.output is None]


def with_answers(messages: Sequence[Message], missing: str) -> list[Message]:
    """The same messages, with an error result with the text `missing` for each unanswered call.

    It comes right after the other results of the calling message.
    """
    answers = pair(messages)
    complete: list[Message] = []
    due: list[Message] = []
    for place, message in enumerate(messages):
        if not message.is_tool_result:
            complete += due
            due = []
        complete.append(message)
        if message.is_assistant:
            unanswered = [call for call in message.tool_calls or () if (place, call.id) not in answers]
            due += [Message.tool_result(call, missing, is_error=True) for call in unanswered]
    return complete + due
