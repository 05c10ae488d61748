"""The entries of a session's transcript, as in the Go manager.

An entry adds an identity to an event: its own id, its parent's id, its time, and its place in the session (`sequence`,
1 for the first). The parents make a tree of the entries. The conversation goes on at the leaf, and each new entry
becomes a child of it. A session's whole state is the fold of its entries, so everything that must survive is an entry:
messages, but also a model change, a title, free metadata, and a move of the leaf (clearing a session moves it to the
root). An entry of a type from a newer version is kept byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.protocol.parts import EXTRA, OTHER, Instant, ToolCall, Usage, Value

METADATA = "metadata"
"""The `custom_type` of entries that set a session's free metadata; a value of None removes the key."""

TEXTS = frozenset({"title", "agent_id", "provider", "model", "thinking_level"})
"""Metadata that are texts, to which lists, searches and exports trust; a file from elsewhere may say anything."""

OWN_METADATA = "session."
"""The prefix of metadata that sessions set themselves; callers may not set it."""

INCOMPLETE = OWN_METADATA + "incomplete"
"""Set while a fork or an import builds a session, to its maker; after a crash the session is removed."""

FORK = "fork"
"""The value of `INCOMPLETE` while a fork is made: the copied messages were paid for in another session."""

COPIES = OWN_METADATA + "copies"
"""Set in a restored fork while its copied messages follow, in place of `INCOMPLETE`."""

SOURCE = OWN_METADATA + "source"
"""The source of an imported session: format, id and header of the file."""

LEGAL_HOLD = OWN_METADATA + "legal_hold"
"""Set while the session must not be deleted, to the reason."""

FOLLOWED = OWN_METADATA + "followed"
"""The file of another program that a session follows, and how far it was read."""

SPENT = OWN_METADATA + "spent"
"""The metadata with the cost of a request that gave no message: a message without content, with usage."""

SUSPENDED = "agent.suspended"
"""The `custom_type` of the entry with the waiting calls of a suspended turn."""

COMMAND = "command"
"""The `custom_type` of the entry for an executed command, which is not executed again when it is delivered again."""

FINGERPRINT = "tool_fingerprint"
"""In the data of a call that waits for an approval: the tool to approve (`Tool.fingerprint`).

The data also has the `name` and the `arguments` of the call that would run: a hook may have replaced the model's.
"""

COPY_OF = "copy_of"
"""The field in the `extra` of an entry that is a copy of an earlier one: the id of the original."""


class EntryBase(Value, frozen=True, gc=False, kw_only=True):
    """The fields of every entry.

    `parent_sequence` is the sequence of the parent, unless the parent is the entry before: a walk towards the root
    finds each parent by its sequence, without an index of ids. `idempotency_key` is the sender's own id, if one was
    given, for this entry, or for all entries that were accepted together and begin with it.
    """

    id: str
    parent_id: str | None
    timestamp: Instant
    sequence: int = 0
    parent_sequence: int | None = None
    extra: dict[str, Any] | None = msgspec.field(default=None, name=EXTRA)
    idempotency_key: str | None = None


class MessageEntry(EntryBase, frozen=True, gc=False, kw_only=True, tag="message", tag_field="type"):
    """A message.

    `continues`: whether it was saved in the same turn as the message before it. The message is the last field, so that
    its JSON can be cut out of the entry's (`encoding.message_within`).
    """

    continues: bool = False
    message: Message


class ModelChange(EntryBase, frozen=True, gc=False, kw_only=True, tag="model_change", tag_field="type"):
    """The model that answers from here on."""

    provider: str = ""
    model_id: str = ""


class ThinkingLevelChange(EntryBase, frozen=True, gc=False, kw_only=True, tag="thinking_level", tag_field="type"):
    """The thinking level from here on, such as high, low or off."""

    thinking_level: str


class SessionInfo(EntryBase, frozen=True, gc=False, kw_only=True, tag="session_info", tag_field="type"):
    """The session's display name."""

    name: str


class Label(EntryBase, frozen=True, gc=False, kw_only=True, tag="label", tag_field="type"):
    """A bookmark on an entry; an empty label removes it, and the last one counts."""

    target_id: str
    label: str = ""


class Compaction(EntryBase, frozen=True, gc=False, kw_only=True, tag="compaction", tag_field="type"):
    """A summary that replaces everything before `first_kept_entry_id`; the originals stay in the transcript.

    `first_kept_sequence` is the sequence of the first kept entry. Without one nothing before the compaction is kept,
    but `messages`, which follow the summary, may replace some of it. `reason` is manual, threshold or overflow.
    `model` and `usage` are the model that made the summary, and its cost, if they are known.
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
    """A summary of a branch that was left; `from_id` is its last entry, or its first, depending on the source."""

    summary: str
    from_id: str = ""


class LeafMove(EntryBase, frozen=True, gc=False, kw_only=True, tag="leaf", tag_field="type"):
    """A move of the leaf to `target_id`, at `target_sequence`; None is the root, which clears the session."""

    target_id: str | None
    target_sequence: int | None = None


class Custom(EntryBase, frozen=True, gc=False, kw_only=True, tag="custom", tag_field="type"):
    """Other data to keep; it never reaches a model."""

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
    """A call that waits for an answer from outside: its id, and its tool's reason and data.

    `question` is the id of the entry that first recorded the wait; empty: this entry.
    """

    id: str
    reason: str = ""
    data: dict[str, Any] = {}
    question: str = ""

    @property
    def needs_approval(self) -> bool:
        """Whether it waits for an approval (`FINGERPRINT`), and not for another answer."""
        return isinstance(self.data.get(FINGERPRINT), str)

    @property
    def approval_id(self) -> str:
        """The id for an approval. Later questions have other ones, even if their calls have the same ids."""
        return f"{self.question}.{self.id}"

    def asked_about(self, call: ToolCall) -> ToolCall:
        """The call to approve: the model's own, or the one with which a hook replaced it."""
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
    """The waiting calls of a suspended turn, by their ids; None: this is not such an entry (`SUSPENDED`)."""
    if not isinstance(entry, Custom) or entry.custom_type != SUSPENDED:
        return None
    try:
        calls = msgspec.convert(entry.data.get("calls"), list[WaitingCall])
    except msgspec.ValidationError:  # any program may write a custom entry
        return None
    return {call.id: msgspec.structs.replace(call, question=call.question or entry.id) for call in calls}


def moves_leaf(entry: Entry) -> bool:
    """Whether an entry becomes the leaf: free metadata belongs to the session as a whole, and does not."""
    return not (isinstance(entry, Custom) and entry.custom_type == METADATA)


def without_wrong_texts(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata without those that should be texts (`TEXTS`), and are none."""
    return {name: value for name, value in metadata.items() if name not in TEXTS or isinstance(value, str | None)}


def original_id(entry: EntryBase) -> str:
    """The id of the original of an entry: its own id, unless it is a copy (`COPY_OF`)."""
    original = (entry.extra or {}).get(COPY_OF)
    return original if isinstance(original, str) else entry.id


def is_bookkeeping(entry: Entry) -> bool:
    """Whether an entry only has metadata that sessions set themselves (`OWN_METADATA`); exports leave it out."""
    return (
        isinstance(entry, Custom)
        and entry.custom_type == METADATA
        and bool(entry.data)
        and all(name.startswith(OWN_METADATA) for name in entry.data)
    )


class HasPlace(Protocol):
    """Anything with a place in a session."""

    @property
    def parent_id(self) -> str | None:
        """The id of the parent."""
        ...

    @property
    def sequence(self) -> int:
        """Its sequence."""
        ...

    @property
    def parent_sequence(self) -> int | None:
        """The sequence of the parent, unless the parent is the entry before."""
        ...


def place_of_parent(entry: HasPlace) -> int:
    """The sequence of the entry's parent; 0 if it has none."""
    if entry.parent_id is None:
        return 0
    return entry.sequence - 1 if entry.parent_sequence is None else entry.parent_sequence
