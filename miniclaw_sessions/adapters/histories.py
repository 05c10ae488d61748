"""What a framework is given of a session: its own messages exactly as it wrote them, those of others made legal.

A framework knows what its own unanswered calls mean (an approval that is waited for, a run that is taken up again), and
repairs its own history before it asks a model. What somebody else wrote into the same session must be right as it is.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from miniclaw_sessions.formats.tool_calls import CallIds, fitting_name
from miniclaw_sessions.history.context import build_context
from miniclaw_sessions.protocol.entries import MessageEntry
from miniclaw_sessions.protocol.messages import ImagePart, Message, Part, TextPart, ToolCall
from miniclaw_sessions.session import Session

_BEFORE = Message.user(
    "(what was said before)"
)  # so that the others' messages do not look like a beginning; never sent


_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LONGEST_NAME = 64
_SHOWN_TYPES = frozenset({"", "image/png", "image/jpeg", "image/gif", "image/webp"})
_SHOWN_URL = re.compile(r"https?://\S|data:image/(png|jpeg|gif|webp);base64,")
_NOT_SHOWN = TextPart("(an image that cannot be shown here)")


async def read_messages(session: Session) -> list[Message]:
    """Everything that a model is told of the current branch, not made legal: compacted parts as their summary.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    newest = newest_entries(session)
    if newest and newest[0].parent_id is None:  # all of it is in memory
        return [*session.journal.summary(), *(entry.message for entry in newest)]
    return (await session.tree.read_branch()).messages()


def newest_entries(session: Session) -> list[MessageEntry]:
    """The newest messages that are in memory, as far as nothing is left out between them."""
    entries = session.entries()
    start = len(entries)
    while start and (start == len(entries) or entries[start].parent_id == entries[start - 1].id):
        start -= 1
    return [entry for entry in entries[start:] if entry.sequence >= session.journal.kept_from]


def is_own(message: Message, name: str) -> bool:
    """Whether the framework that keeps its fields under this name wrote the message."""
    return isinstance((message.extra or {}).get(name), dict)


def presented(messages: Iterable[Message], name: str, *, is_beginning: bool = True) -> list[Message]:
    """A history for the framework of this name: its own messages are the same objects, the others' are made legal.

    A call of the framework's own is answered for it only once somebody else has gone on behind it. The others' calls
    get ids and names that every service accepts, and an image that none shows becomes a text that says so: which
    service the framework talks to is not known here.

    Args:
        messages: the history in order.
        name: under which the framework keeps its fields in `extra`.
        is_beginning: whether nothing was said before them.
    """
    history = _History(is_beginning=is_beginning)
    for message in messages:
        if is_own(message, name) and not history.is_answer_to_others(message):
            history.add_own(message)
        else:
            history.add_others(message)
    return history.finish()


class _History:
    """Puts together what a framework is given, run by run of others' messages."""

    def __init__(self, *, is_beginning: bool) -> None:
        self._is_beginning = is_beginning
        self._shown: list[Message] = []
        self._others: list[Message] = []
        self._asked: set[str] = set()  # ids of the calls of `_others`
        self._waiting: dict[str, ToolCall] = {}  # own calls that the latest own messages have not answered
        self._ids = CallIds(_ID)

    def is_answer_to_others(self, message: Message) -> bool:
        """Whether it is a result that must stand with what others just wrote: their call, or results of theirs."""
        if not message.is_tool_result or not self._others:
            return False
        return message.tool_call_id in self._asked or message.tool_call_id in self._waiting

    def add_others(self, message: Message) -> None:
        self._others.append(message)
        self._asked.update(call.id for call in message.tool_calls or ())

    def add_own(self, message: Message) -> None:
        self._show_others()
        self._shown.append(message)
        if message.is_tool_result:
            self._waiting.pop(message.tool_call_id or "", None)
        else:
            self._waiting = {call.id: call for call in message.tool_calls or ()}

    def finish(self) -> list[Message]:
        self._show_others()
        return self._shown

    def _show_others(self) -> None:
        if not self._others:
            return
        legal = _made_legal(self._others, self._waiting, is_beginning=self._is_beginning and not self._shown)
        self._shown += [_with_images_that_show(self._with_fitting_calls(message)) for message in legal]
        self._others, self._asked, self._waiting = [], set(), {}

    def _with_fitting_calls(self, message: Message) -> Message:
        """The message with ids and names that every service accepts; the same object where they are such already."""
        if message.tool_calls:
            calls = tuple(self._fitting(call) for call in message.tool_calls)
            return message if calls == message.tool_calls else msgspec.structs.replace(message, tool_calls=calls)
        if not message.is_tool_result or message.tool_call_id is None or message.tool_call_id in self._waiting:
            return message
        call_id, name = self._ids.of_result(message.tool_call_id), fitting_name(message.name or "", _LONGEST_NAME)
        if (call_id, name) == (message.tool_call_id, message.name):
            return message
        return msgspec.structs.replace(message, tool_call_id=call_id, name=name)

    def _fitting(self, call: ToolCall) -> ToolCall:
        self._waiting.pop(call.id, None)  # results of this id are for this call from here on
        call_id, name = self._ids.of_call(call.id), fitting_name(call.name, _LONGEST_NAME)
        return call if (call_id, name) == (call.id, call.name) else msgspec.structs.replace(call, id=call_id, name=name)


def _with_images_that_show(message: Message) -> Message:
    if isinstance(message.content, str) or all(_shows(part) for part in message.content):
        return message
    content = tuple(part if _shows(part) else _NOT_SHOWN for part in message.content)
    return msgspec.structs.replace(message, content=content)


def _shows(part: Part) -> bool:
    """Whether a part is none of the images that services refuse, and with it the whole request."""
    if not isinstance(part, ImagePart):
        return True
    if part.data is None:
        return _SHOWN_URL.match(part.url or "") is not None
    try:
        return part.media_type in _SHOWN_TYPES and base64.b64decode(part.data, validate=True) != b""
    except ValueError:
        return False


def _made_legal(others: Sequence[Message], waiting: Mapping[str, ToolCall], *, is_beginning: bool) -> list[Message]:
    """What others wrote behind calls that still wait; their results are brought forward, or told to be missing."""
    before = [] if is_beginning else [_BEFORE]
    calls = tuple(ToolCall(call.id, call.name) for call in waiting.values() if call.id and call.name)
    if calls:
        before.append(Message.assistant("", calls))
    return build_context([*before, *others])[len(before) :]
