"""What is logged: the entries of a session's transcript (document 003).

An entry wraps what happened with an identity: its own id, its parent's id, when it was logged and its place in the
session (`sequence`, 1 for the first). A session's whole state is the fold of its entries, so everything that must
survive is an entry: messages, but also a model change, a title, free metadata, and a move of the leaf (clearing a
session moves it to the root). An entry of a type from a newer version is kept byte for byte.
"""

from __future__ import annotations

from typing import Any

import msgspec

from miniclaw_sessions.protocol.messages import EXTRA, OTHER, Instant, Message, Value

METADATA = "metadata"
"""The `custom_type` of entries that set a session's free metadata; a value of None removes the key."""


class EntryBase(Value, frozen=True, gc=False, kw_only=True):
    """What every entry has."""

    id: str
    parent_id: str | None
    timestamp: Instant
    sequence: int = 0
    extra: dict[str, Any] | None = msgspec.field(default=None, name=EXTRA)


class MessageEntry(EntryBase, frozen=True, gc=False, kw_only=True, tag="message", tag_field="type"):
    """A message was said; `idempotency_key` is the sender's own id for it, where one was given."""

    message: Message
    idempotency_key: str | None = None


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
    """A summary stands for everything before `first_kept_entry_id`; the originals stay in the transcript."""

    summary: str
    first_kept_entry_id: str
    tokens_before: int = 0


class BranchSummary(EntryBase, frozen=True, gc=False, kw_only=True, tag="branch_summary", tag_field="type"):
    """What happened on the branch that was left at `from_id`."""

    summary: str
    from_id: str


class LeafMove(EntryBase, frozen=True, gc=False, kw_only=True, tag="leaf", tag_field="type"):
    """The conversation goes on from `target_id`; None is the root, which clears the session."""

    target_id: str | None


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
