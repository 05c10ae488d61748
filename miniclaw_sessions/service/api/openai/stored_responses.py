"""Where responses are kept: in the tree of a session, and found there by their ids.

A response begins with an entry that says what was asked for (`RESPONSE`); behind it, on one path, stand the messages of
its input and what the model made of them. Its id is that entry's and the session's, so nothing else has to be kept, and
any process that reads the session finds it. Others may speak there meanwhile: what the model made for a response says
so (`RESPONSE` in the message's `extra`). How it ended follows from what stands there; only what failed says so in an
entry of its own (`FAILED`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeGuard

import msgspec
from msgspec import UNSET

from miniclaw_sessions.core.protocol.entries import (
    OWN_METADATA,
    Compaction,
    Custom,
    Entry,
    LeafMove,
    MessageEntry,
    is_bookkeeping,
    moves_leaf,
    original_id,
    waiting_calls,
)
from miniclaw_sessions.core.protocol.messages import ABORTED, Message, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import Place
from miniclaw_sessions.errors import EntryNotFound, InvalidMessage
from miniclaw_sessions.service.api.openai.items import entry_id_within, id_in_items, items_of
from miniclaw_sessions.service.api.openai.shapes import Document, Item, Mark, NamedConversation, Response, ResponseUsage

RESPONSE = "openai.response"
"""The `custom_type` of the entry that a response begins with. Its data: `inputs`, how many messages were its input;
`digest`, what they said; `conversation`, whether it belongs to one; `key`, the client's name for the request; and what
it says again of it."""

FAILED = "openai.response.failed"
"""The `custom_type` of the entry behind a response that failed; its data: the `error`, and the `response`, by the entry
that it begins with, because others may have begun meanwhile."""

REMEMBERED = timedelta(minutes=1)
"""How long after a request one that says that it repeats it is taken for it."""

DELETED = OWN_METADATA + "deleted_responses"
"""The metadata of a session that names the responses that were deleted, while what they said is still there."""

_ID = re.compile(r"(resp_[0-9a-fx]+)_(.+)", re.DOTALL)
_LOOKED_OVER = 512  # messages of others among which the end of a response is looked for, if it has one
_OWN = ("inputs", "digest", "key")
_CUT_OFF = {"code": "server_error", "message": "The answer was cut off: the server has ended, or has given it up."}
_TOO_LONG = frozenset({"length", "max_tokens", "max_output_tokens", "MAX_TOKENS", "model_context_window_exceeded"})
_FILTERED = frozenset({"content_filter", "refusal", "SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"})


def response_id(session_id: str, entry_id: str) -> str:
    """The id of the response that begins with an entry."""
    return f"resp_{id_in_items(entry_id)}_{session_id}"


def session_and_entry(given: str) -> tuple[str, str] | None:
    """The session and the entry that a response's id names; None: it is no such id."""
    if (found := _ID.fullmatch(given)) is None or (entry_id := entry_id_within(found[1])) is None:
        return None
    return found[2], entry_id


@dataclass
class StoredResponse:
    """A response, as it stands in its session.

    Attributes:
        session_id: whose.
        mark: the entry that it begins with.
        inputs: the messages of its input.
        outputs: what the model made of them, and results of calls that went wrong before a client saw them.
        waiting: the ids of the calls whose outputs the client owes; None: its turn was not suspended.
        error: why it failed.
        end: its last entry, which the next response follows.
    """

    session_id: str
    mark: Custom
    inputs: list[MessageEntry] = field(default_factory=list)
    outputs: list[MessageEntry] = field(default_factory=list)
    waiting: frozenset[str] | None = None
    error: Document | None = None
    end: str = ""
    _at: str = ""  # how far its path was followed
    _others: int = 0  # messages there that are not its own

    def __post_init__(self) -> None:
        self.end = self._at = self.mark.id

    @property
    def id(self) -> str:
        """Its id."""
        return response_id(self.session_id, self.mark.id)

    @property
    def last(self) -> Message | None:
        """What the model said last."""
        return next((entry.message for entry in reversed(self.outputs) if entry.message.is_assistant), None)

    @property
    def is_over(self) -> bool:
        """Whether it is complete, failed or suspended."""
        last = self.last
        is_answered = last is not None and not last.tool_calls
        return is_answered or self.waiting is not None or self.error is not None

    def take(self, entry: Entry) -> bool:
        """The next entry behind it; False if it belongs to what comes after."""
        if self.is_over:
            return False
        if entry.parent_id != self._at or isinstance(entry, LeafMove) or not moves_leaf(entry):
            return True
        self._at = entry.id
        if isinstance(entry, MessageEntry):
            if len(self.inputs) < self.mark.data.get("inputs", 0):
                self.inputs.append(entry)
            elif self._is_own(entry.message):
                self.outputs.append(entry)
            else:  # another writer's message
                self._others += 1
                return self._others < _LOOKED_OVER
        elif is_mark(entry):
            return False
        elif waiting := self._calls.intersection(waiting_calls(entry) or ()):
            self.waiting = waiting
        elif isinstance(entry, Custom) and _is_failure_of(self.mark, entry):
            self.error = _error_of(entry)
        else:
            return True
        self.end = entry.id
        return True

    @property
    def _calls(self) -> frozenset[str]:
        return frozenset(call.id for entry in self.outputs for call in entry.message.tool_calls or ())

    def _is_own(self, message: Message) -> bool:
        if message.is_tool_result:
            return message.tool_call_id in self._calls
        if message.stop_reason == ABORTED and not self._others:  # no model has made it whole
            return message.is_assistant
        made_for = (message.extra or {}).get(RESPONSE)
        return message.is_assistant and made_for in (self.mark.id, original_id(self.mark))


def _is_failure_of(mark: Custom, entry: Entry) -> bool:
    """Whether an entry says why the response failed that begins with this mark."""
    if not isinstance(entry, Custom) or entry.custom_type != FAILED:
        return False
    return bool(entry.data.get("response", mark.id) == mark.id)


def _error_of(failed: Custom) -> Document:
    match failed.data:
        case {"error": {"code": str(code), "message": str(message)}}:
            return {"code": code, "message": message}
        case _:
            return _CUT_OFF


def is_mark(entry: Entry) -> TypeGuard[Custom]:
    """Whether a response begins with an entry; anybody may write a custom entry, and it may say anything."""
    if not isinstance(entry, Custom) or entry.custom_type != RESPONSE:
        return False
    try:
        msgspec.convert(entry.data, Mark)
    except msgspec.ValidationError:
        return False
    return True


async def find_response(session: Session, entry_id: str) -> StoredResponse | None:
    """The response that begins with an entry; None: none does.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    try:
        mark = await session.tree.get_entry(entry_id)
    except (EntryNotFound, InvalidMessage):
        return None
    if not is_mark(mark):
        return None
    found = StoredResponse(session.session_id, mark)
    async for entry in session.tree.read_entries(after=mark.sequence):
        if not found.take(entry):
            break
    return found


async def place_again(session: Session, mark: Custom) -> Place:
    """Where a conversation goes on after a response that came to nothing: where that began.

    Only if nothing stands behind it but its own input. What others have said since is never left: then it is unset, and
    the conversation goes on behind them.

    Args:
        session: the conversation.
        mark: the entry that the response begins with.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    own = mark.data["inputs"]
    async for entry in session.tree.walk():
        if entry.id == mark.id:
            return mark.parent_id
        if isinstance(entry, MessageEntry):
            own -= 1
            if own < 0:
                break
        elif not (isinstance(entry, Compaction) or is_bookkeeping(entry) or _is_failure_of(mark, entry)):
            break
    return UNSET


async def responses_in(session: Session) -> list[str]:
    """The ids of the entries that responses of a session begin with, and that are not deleted."""
    deleted = deleted_in(session)
    return [entry.id async for entry in session.tree.read_entries() if is_mark(entry) and entry.id not in deleted]


def deleted_in(session: Session) -> Sequence[str]:
    """The entries of a session that deleted responses began with."""
    deleted = session.metadata.get(DELETED)
    return deleted if isinstance(deleted, list) else []


# --- as a document ---------------------------------------------------------------------------------------------------


def document_of(found: StoredResponse, *, is_running: bool = False) -> Response:
    """The response as its client gets it.

    Args:
        found: as it stands in the session.
        is_running: whether it is being made; without an end it has failed otherwise.
    """
    echo: dict[str, Any] = {name: value for name, value in found.mark.data.items() if name not in _OWN}
    belongs = echo.pop("conversation", False)
    status, details, error = _status(found, is_running=is_running)
    last = found.last
    reasoning, text = echo.pop("reasoning", {}), echo.pop("text", {})
    model = (last.model if last is not None else None) or echo.get("model") or ""
    created_at = int(found.mark.timestamp.timestamp())
    ended_at = int(found.outputs[-1].timestamp.timestamp()) if found.outputs and status == "completed" else None
    return Response(
        **{
            **echo,
            "id": found.id,
            "created_at": created_at,
            "status": status,
            "completed_at": ended_at,
            "error": error,
            "incomplete_details": details,
            "model": model,
            "output": outputs_of(found, is_running=is_running),
            "conversation": NamedConversation(found.session_id) if belongs else None,
            "reasoning": {"effort": None, "summary": None, **reasoning},
            "text": {**text, "format": text.get("format") or {"type": "text"}},
            "tools": [{"strict": None, "description": None, **tool} for tool in echo.get("tools", ())],
            "usage": usage_of([entry.message for entry in found.outputs]),
            "metadata": echo.get("metadata", {}),
        }
    )


def _status(found: StoredResponse, *, is_running: bool) -> tuple[str, Document | None, Document | None]:
    """Status, what is incomplete, and the error."""
    if found.error is not None:
        return "failed", None, found.error
    if not found.is_over:
        return ("in_progress", None, None) if is_running else ("failed", None, _CUT_OFF)
    reason = None if found.last is None else found.last.stop_reason
    if reason == ABORTED:
        return "cancelled", None, None
    if reason in _TOO_LONG:
        return "incomplete", {"reason": "max_output_tokens"}, None
    if reason in _FILTERED:
        return "incomplete", {"reason": "content_filter"}, None
    return "completed", None, None


def outputs_of(found: StoredResponse, *, is_running: bool = False) -> list[Item]:
    """What the model said, and the calls whose outputs the client owes: not those that were answered here."""
    if is_running and not found.is_over:
        return []
    waiting = found.waiting or frozenset()
    said: list[Item] = []
    replies = [entry for entry in found.outputs if entry.message.is_assistant]
    for number, entry in enumerate(replies):
        items = items_of(entry)
        if entry.message.stop_reason == ABORTED:  # as it was streamed, before it was stopped
            items = [
                {**item, "id": streamed_id("msg", found.mark.id, number), "status": "incomplete"} for item in items
            ]
        said += items
    return [item for item in said if item.get("type") != "function_call" or item.get("call_id") in waiting]


def streamed_id(kind: str, mark_id: str, number: int, place: int = 0) -> str:
    """The id of an item of a reply, which it has before the reply is complete.

    Args:
        kind: `msg` of a message, `rs` of reasoning.
        mark_id: the entry that the response begins with.
        number: how many replies the model has given before, in this response.
        place: how many items of this kind the reply has before it.
    """
    return f"{kind}_{id_in_items(mark_id)}{number:04x}" + (f"{place:02x}" if place else "")


def usage_of(messages: Sequence[Message]) -> ResponseUsage | None:
    """What replies cost together; None where no service has known."""
    known = [message.usage for message in messages if message.usage is not None]
    if not known:
        return None
    cost = sum(known, Usage())
    given = cost.input_tokens + cost.cache_read_tokens + cost.cache_write_tokens
    return ResponseUsage(
        input_tokens=given,
        input_tokens_details={"cached_tokens": cost.cache_read_tokens, "cache_write_tokens": cost.cache_write_tokens},
        output_tokens=cost.output_tokens,
        output_tokens_details={"reasoning_tokens": sum(usage.reasoning_tokens for usage in known)},
        total_tokens=given + cost.output_tokens,
    )
