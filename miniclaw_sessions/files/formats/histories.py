"""What a framework is given of a session: its own messages exactly as it wrote them, those of others made legal.

A framework knows what its own unanswered calls mean (an approval that is waited for, a run that is taken up again), and
repairs its own history before it asks a model. What others wrote into the same session must be right as it is.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from miniclaw_sessions.core.history.context import NO_RESULT, legal
from miniclaw_sessions.core.history.pairing import pair
from miniclaw_sessions.core.protocol.images import NOT_SHOWABLE, is_showable
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, Part, TextPart, ToolCall
from miniclaw_sessions.files.formats.codec import has_kept
from miniclaw_sessions.files.formats.tool_calls import CallIds, fitting_name

BEFORE = Message.user("(what was said before)")
"""Stands in front of what others said, so that it is not taken for a beginning; never sent."""

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LONGEST_NAME = 64
_SHOWN_TYPES = frozenset({"", "image/png", "image/jpeg", "image/gif", "image/webp"})
_NOT_SHOWN = TextPart(NOT_SHOWABLE)


def presented(messages: Iterable[Message], name: str, *, is_beginning: bool = True) -> list[Message]:
    """`traced`, without where the messages come from."""
    return [message for message, _ in traced(messages, name, is_beginning=is_beginning)]


def traced(
    messages: Iterable[Message],
    name: str,
    *,
    is_beginning: bool = True,
    used_ids: Iterable[str] = (),
    open_calls: Container[str] | None = None,
) -> list[Shown]:
    """A history for the framework of this name: its own messages are the same objects, the others' are made legal.

    A call of the framework's own is answered for it only once others have gone on behind it. The others' calls
    get ids and names that every service accepts, ids that no call of the framework's own has, and an image that none
    shows becomes a text that says so: which service the framework talks to is not known here.

    Args:
        messages: the history in order.
        name: under which the framework keeps its fields in `extra`.
        is_beginning: whether nothing was said before them.
        used_ids: of calls that the framework has beside these messages.
        open_calls: for a framework that does not take up its own unanswered calls again: the ids of those at the end
            that are still being answered. All others are answered as everybody's are, and a result that was stored
            late, because another process spoke meanwhile, stands right behind its call.

    Returns:
        Each message with the one of the history that it was made from: the same object where nothing was changed, None
        where it was made up.
    """
    history = list(messages)
    if open_calls is not None:
        history = _results_behind_calls(history)
    own = {id(message) for message in history if has_kept(message.extra, name)}
    given = _History(is_beginning=is_beginning)
    given.ids.reserve(used_ids)
    given.ids.reserve(call.id for message in history if id(message) in own for call in message.tool_calls or ())
    for message in history:
        if id(message) in own and not given.is_answer_to_others(message):
            given.add_own(message, answers=open_calls is not None)
        else:
            given.add_others(message)
    given.show_others()
    if open_calls is not None:
        given.answer_own(but_for=open_calls)
    return given.shown


def _results_behind_calls(messages: Sequence[Message]) -> list[Message]:
    """The messages, each result that answers a call behind it: in between, the call would be answered twice."""
    calls = {result: caller for (caller, _), result in pair(messages).items()}
    return [messages[place] for place in sorted(range(len(messages)), key=lambda place: calls.get(place, place))]


class Shown(NamedTuple):
    """A message that a framework is given, and the one of the history that it was made from; None: it was made up."""

    message: Message
    source: Message | None


class _History:
    """Puts together what a framework is given, run by run of others' messages."""

    def __init__(self, *, is_beginning: bool) -> None:
        self.shown: list[Shown] = []
        self.ids = CallIds(_ID)
        self._is_beginning = is_beginning
        self._others: list[Message] = []
        self._asked: set[str] = set()  # ids of the calls of `_others`
        self._waiting: dict[str, ToolCall] = {}  # own calls that the latest own messages have not answered

    def is_answer_to_others(self, message: Message) -> bool:
        """Whether it is a result that must stand with what others just wrote: their call, or results of theirs."""
        if not message.is_tool_result or not self._others:
            return False
        return message.tool_call_id in self._asked or message.tool_call_id in self._waiting

    def add_others(self, message: Message) -> None:
        self._others.append(message)
        self._asked.update(call.id for call in message.tool_calls or ())

    def add_own(self, message: Message, *, answers: bool) -> None:
        self.show_others()
        if message.is_tool_result:
            self._waiting.pop(message.tool_call_id or "", None)
        else:
            if answers:
                self.answer_own()
            self._waiting = {call.id: call for call in message.tool_calls or ()}
            for call_id in self._waiting:
                self.ids.keep(call_id)
        self.shown.append(Shown(message, message))

    def answer_own(self, but_for: Container[str] = ()) -> None:
        """Answer the framework's own calls that still wait: no result was recorded."""
        for call in self._waiting.values():
            if call.id and call.id not in but_for:
                self.shown.append(Shown(Message.tool_result(call, NO_RESULT, is_error=True), None))
        self._waiting = {}

    def show_others(self) -> None:
        """Make legal what others wrote behind waiting calls: it answers them, or their results are missing."""
        if not self._others:
            return
        before = [] if self._is_beginning and not self.shown else [BEFORE]
        if calls := tuple(ToolCall(call.id, call.name) for call in self._waiting.values() if call.id and call.name):
            before.append(Message.assistant("", calls))
        behind = len(before)
        for message, place in legal([*before, *self._others])[behind:]:
            source = None if place is None else self._others[place - behind]
            self.shown.append(Shown(self._fitting(message), source))
        self._others, self._asked, self._waiting = [], set(), {}

    def _fitting(self, message: Message) -> Message:
        """The message with what every service accepts; the same object where it is such already."""
        changes: dict[str, Any] = {}
        if message.tool_calls:
            calls: list[ToolCall] = []
            for call in message.tool_calls:
                self._waiting.pop(call.id, None)  # results of this id are for this call from here on
                call_id, name = self.ids.of_call(call.id), fitting_name(call.name, _LONGEST_NAME)
                is_same = (call_id, name) == (call.id, call.name)
                calls.append(call if is_same else msgspec.structs.replace(call, id=call_id, name=name))
            changes["tool_calls"] = tuple(calls)
        if message.is_tool_result:
            changes["tool_call_id"] = self.ids.of_result(message.tool_call_id or "")
            if message.tool_call_id not in self._waiting:
                changes["name"] = fitting_name(message.name or "", _LONGEST_NAME)
        if not isinstance(message.content, str):
            changes["content"] = tuple(part if _shows(part) else _NOT_SHOWN for part in message.content)
        is_same = all(getattr(message, name) == value for name, value in changes.items())
        return message if is_same else msgspec.structs.replace(message, **changes)


def _shows(part: Part) -> bool:
    """Whether a part is no image of the kinds for which services refuse a whole request."""
    if not isinstance(part, ImagePart):
        return True
    if part.data is None:
        return is_showable(part.url or "")
    try:
        return part.media_type in _SHOWN_TYPES and base64.b64decode(part.data, validate=True) != b""
    except ValueError:
        return False
