"""What is logged: the entries of a session's transcript, as in the Go manager.

An entry wraps what happened with an identity: its own id, its parent's id, when it was logged and its place in the
session (`sequence`, 1 for the first). The parents make a tree of the entries; the leaf is where the conversation goes
on, and every new entry becomes a child of it. A session's whole state is the fold of its entries, so everything that
must survive is an entry: messages, but also a model change, a title, free metadata, and a move of the leaf (clearing a
session moves it to the root). An entry of a type from a newer version is kept byte for byte.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.protocol.parts import EXTRA, OTHER, Instant, ToolCall, Usage, Value

METADATA = "metadata"
"""The `custom_type` of entries that set a session's free metadata; a value of None removes the key."""

OWN_METADATA = "session."
"""Metadata whose name begins like this belongs to the sessions themselves; callers may not set it."""

INCOMPLETE = OWN_METADATA + "incomplete"
"""Set while a session is put together by a fork or an import, to what makes it; a crash leaves it to be removed."""

FORK = "fork"
"""The value of `INCOMPLETE` while a fork is made: what is copied meanwhile was said, and paid for, elsewhere."""

SOURCE = OWN_METADATA + "source"
"""Where an imported session comes from: format, id and header of the file."""

LEGAL_HOLD = OWN_METADATA + "legal_hold"
"""Set while nothing deletes the session, to why that is so."""

FOLLOWED = OWN_METADATA + "followed"
"""Which file of another program a session keeps up with, and how far that was read."""

SPENT = OWN_METADATA + "spent"
"""Of an entry that says what a request to a model has cost that gave no message: one without content, with usage."""

SUSPENDED = "agent.suspended"
"""The `custom_type` of the entry that says which calls of a suspended turn wait, and for what."""

COMMAND = "command"
"""The `custom_type` of the entry that says that a command was obeyed, so that it is not when it is delivered again."""

FINGERPRINT = "tool_fingerprint"
"""In the data of a call that waits for a person's yes: the tool that he is asked about (`Tool.fingerprint`).

Beside it stand the `name` and the `arguments` of the call that would run: a hook may have chosen another one.
"""

COPY_OF = "copy_of"
"""The field of `extra` of an entry that stands on its branch for an earlier one: that one's id, or the first one's."""


class EntryBase(Value, frozen=True, gc=False, kw_only=True):
    """What every entry has.

    `parent_sequence` is where the parent stands, unless that is right before this entry: a reader of the tree
    upwards finds every parent by its place, without an index of ids. `idempotency_key` is the sender's own id for it,
    or for all that was accepted together and begins with it, where one was given.
    """

    id: str
    parent_id: str | None
    timestamp: Instant
    sequence: int = 0
    parent_sequence: int | None = None
    extra: dict[str, Any] | None = msgspec.field(default=None, name=EXTRA)
    idempotency_key: str | None = None


class MessageEntry(EntryBase, frozen=True, gc=False, kw_only=True, tag="message", tag_field="type"):
    """A message was said.

    `continues` says that it was saved as part of the same turn as the message before it. The message comes last, so
    that its JSON can be cut out of the entry's (`encoding.message_within`).
    """

    continues: bool = False
    message: Message


class ModelChange(EntryBase, frozen=True, gc=False, kw_only=True, tag="model_change", tag_field="type"):
    """From here on this model answers."""

    provider: str = ""
    model_id: str = ""


class ThinkingLevelChange(EntryBase, frozen=True, gc=False, kw_only=True, tag="thinking_level", tag_field="type"):
    """From here on the model thinks this hard (for example high, low, off)."""

    thinking_level: str


class SessionInfo(EntryBase, frozen=True, gc=False, kw_only=True, tag="session_info", tag_field="type"):
    """The session's display name."""

    name: str


class Label(EntryBase, frozen=True, gc=False, kw_only=True, tag="label", tag_field="type"):
    """A bookmark on an entry; an empty label removes it, the last one wins."""

    target_id: str
    label: str = ""


class Compaction(EntryBase, frozen=True, gc=False, kw_only=True, tag="compaction", tag_field="type"):
    """A summary stands for everything before `first_kept_entry_id`; the originals stay in the transcript.

    The first kept entry stands at `first_kept_sequence`. Without one nothing before the compaction is kept, but
    `messages`, which follow the summary, may stand for some of it. `reason` says why: manual, threshold, overflow.
    `model` and `usage` are of who made the summary, and what that cost, where it is known.
    """

    summary: str = ""
    first_kept_entry_id: str | None = None
    first_kept_sequence: int | None = None
    tokens_before: int = 0
    tokens_after: int | None = None
    reason: str = ""
    model: str | None = None
    usage: Usage | None = None
    messages: tuple[Message, ...] = ()


class BranchSummary(EntryBase, frozen=True, gc=False, kw_only=True, tag="branch_summary", tag_field="type"):
    """What happened on the branch that was left; `from_id` is where it was left, or went off, as its source has it."""

    summary: str
    from_id: str = ""


class LeafMove(EntryBase, frozen=True, gc=False, kw_only=True, tag="leaf", tag_field="type"):
    """The conversation goes on from `target_id`, at `target_sequence`; None is the root, which clears the session."""

    target_id: str | None
    target_sequence: int | None = None


class Custom(EntryBase, frozen=True, gc=False, kw_only=True, tag="custom", tag_field="type"):
    """Anything else worth keeping; it never reaches a model."""

    custom_type: str
    data: dict[str, Any] = msgspec.field(default_factory=dict)


class OtherEntry(EntryBase, frozen=True, gc=False, kw_only=True, tag=OTHER, tag_field="type"):
    """An entry of a type that this version does not know; `encoded` is its JSON, byte for byte."""

    encoded: msgspec.Raw


Entry = (
    MessageEntry
    | ModelChange
    | ThinkingLevelChange
    | SessionInfo
    | Label
    | Compaction
    | BranchSummary
    | LeafMove
    | Custom
    | OtherEntry
)


class WaitingCall(msgspec.Struct, frozen=True):
    """A call that waits for an answer from outside: its id, and what its tool says of the wait.

    `question` is the id of the entry in which it was first said that it waits; empty: of the one that says it here.
    """

    id: str
    reason: str = ""
    data: dict[str, Any] = {}
    question: str = ""

    @property
    def needs_approval(self) -> bool:
        """Whether it waits for a person's yes or no (`FINGERPRINT`), and not for something else from outside."""
        return isinstance(self.data.get(FINGERPRINT), str)

    @property
    def approval_id(self) -> str:
        """What a yes or no names it by: no later question has the same, though its calls may have the same ids."""
        return f"{self.question}.{self.id}"

    def asked_about(self, call: ToolCall) -> ToolCall:
        """The call that a person is asked about: the model's own, or the one that a hook has put in its place."""
        name, arguments = self.data.get("name"), self.data.get("arguments")
        if self.needs_approval and isinstance(name, str) and isinstance(arguments, str):
            return msgspec.structs.replace(call, name=name, arguments=arguments)
        return call

    def document_of(self, call: ToolCall) -> dict[str, Any]:
        """The waiting call as clients and people see it; its `id` is what an approval names it by."""
        shown = self.asked_about(call)
        return {
            "id": self.approval_id,
            "call_id": call.id,
            "name": shown.name,
            "arguments": shown.arguments,
            "reason": self.reason,
            "needs_approval": self.needs_approval,
        }


def waiting_calls(entry: Entry) -> dict[str, WaitingCall] | None:
    """The calls that a turn was suspended for, by their ids; None: this is no entry that says so (`SUSPENDED`)."""
    if not isinstance(entry, Custom) or entry.custom_type != SUSPENDED:
        return None
    try:
        calls = msgspec.convert(entry.data.get("calls"), list[WaitingCall])
    except msgspec.ValidationError:  # anybody may write a custom entry
        return None
    return {call.id: msgspec.structs.replace(call, question=call.question or entry.id) for call in calls}


def moves_leaf(entry: Entry) -> bool:
    """Whether an entry becomes the leaf: free metadata is about the session, not about a place in it."""
    return not (isinstance(entry, Custom) and entry.custom_type == METADATA)


def original_id(entry: EntryBase) -> str:
    """The id of the entry that an entry stands for: its own, unless it is a copy (`COPY_OF`)."""
    original = (entry.extra or {}).get(COPY_OF)
    return original if isinstance(original, str) else entry.id


def is_bookkeeping(entry: Entry) -> bool:
    """Whether an entry only says what a session knows of itself (`OWN_METADATA`): no export has it."""
    return (
        isinstance(entry, Custom)
        and entry.custom_type == METADATA
        and bool(entry.data)
        and all(name.startswith(OWN_METADATA) for name in entry.data)
    )


class Placed(Protocol):
    """What stands at a place of a session."""

    @property
    def parent_id(self) -> str | None:
        """The entry that it follows."""
        ...

    @property
    def sequence(self) -> int:
        """Its place."""
        ...

    @property
    def parent_sequence(self) -> int | None:
        """The parent's place, unless that is right before it."""
        ...


def place_of_parent(entry: Placed) -> int:
    """The sequence at which the entry's parent stands; 0 when it has none."""
    if entry.parent_id is None:
        return 0
    return entry.sequence - 1 if entry.parent_sequence is None else entry.parent_sequence
