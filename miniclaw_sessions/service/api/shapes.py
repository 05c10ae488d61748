"""The shapes of bodies and replies: what goes over the wire, and what the handlers give in process.

Here are the bases, and what concerns sessions, messages and chats. All others stand beside their operations. A body
with a field that it does not have is refused; a reply may grow new ones. Entries stand in replies as they are stored,
byte for byte.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Self

import msgspec
from msgspec import UNSET, Meta, UnsetType

from miniclaw_sessions.statistics import SessionSummary

MAX_MESSAGES_PER_REQUEST = 1000
Count = Annotated[int, Meta(ge=0)]


def _described(name: str) -> Meta:
    """What the OpenAPI document says of JSON that stands here as it is stored."""
    return Meta(extra_json_schema={"$ref": f"#/components/schemas/{name}"})


EncodedEntry = Annotated[msgspec.Raw, _described("Entry")]
MessageDocument = Annotated[dict[str, Any], _described("Message")]
ShownMessageDocument = Annotated[dict[str, Any], _described("ShownMessage")]
UsageDocument = Annotated[dict[str, Any], _described("Usage")]


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The base of bodies."""


class Reply(msgspec.Struct, kw_only=True):
    """The base of replies."""

    @classmethod
    def of(cls, *sources: object, **others: Any) -> Self:
        """What objects with attributes of the same names say; of each field the first that has it, unless it is given.

        A field that no object has keeps its default.
        """
        for name in cls.__struct_fields__:
            for source in sources:
                if name not in others and hasattr(source, name):
                    others[name] = getattr(source, name)
        return cls(**others)


# --- sessions --------------------------------------------------------------------------------------------------------


class UsageReply(Reply, kw_only=True):
    """Tokens, and what they cost, in the currency that `GET /v1/access` and `GET /v1/usage` name."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    total_tokens: int = 0
    cost: float | None = None


class SessionReply(Reply, kw_only=True):
    """Everything about a session but its messages.

    Attributes:
        messages: those of the window.
        window: how many messages the window may hold.
        message_count, event_count: messages, and events, of the whole transcript.
        entries: the sequence number of the newest entry; of a store that several gateways share, of the newest that is
            acknowledged.
        leaf_id: where the conversation goes on; null at the root.
        chosen_model: the model that was chosen last, on any branch, whichever has answered since.
        chosen_level: the level of thinking that was chosen last, on any branch.
        committed_sequence: up to which entry the store has acknowledged it.
        dirty: whether its file lacks something.
        incarnation: what a deleted and recreated session does not share with its predecessor.
        etag: changes with every entry, and with nothing else; for `If-Match` and `If-None-Match`.
    """

    session_id: str
    channel: str
    chat_id: str
    title: str | None
    agent_id: str | None
    messages: int
    window: int
    message_count: int
    event_count: int
    entries: int
    leaf_id: str | None
    chosen_model: str | None
    chosen_level: str | None
    usage: UsageReply
    committed_sequence: int
    dirty: bool
    created_at: datetime
    last_accessed: datetime
    updated_at: datetime
    incarnation: str
    etag: str
    metadata: dict[str, Any]


class ShownReply(SessionReply, kw_only=True):
    """A session, and its words as in a row of the list (`SessionSummary`), where they were asked for.

    Attributes:
        linked: the sessions of the other chats that are linked with its chat; the first is the one that answers all of
            them, unless this one does.
    """

    last_words: str | None = None
    first_words: str | None = None
    waiting: bool = False
    linked: list[str] = []


class OpenedReply(SessionReply, kw_only=True):
    """A session, and whether it was made just now."""

    created: bool


class SessionsReply(Reply, kw_only=True):
    """A page of sessions, newest first; `next` is the `after` of the next page, null at the end."""

    sessions: list[SessionSummary]
    next: str | None


class ResolvedReply(Reply, kw_only=True):
    """The one session that a text means."""

    session_id: str
    title: str | None


class DeletedReply(Reply, kw_only=True):
    """It is gone; `remains` names what is left elsewhere, one sentence each."""

    deleted: bool
    remains: list[str] = []


class CreateSession(Body, kw_only=True):
    """The fields after the key apply only if the session is new."""

    channel: str
    chat_id: str | int
    agent_id: str | None = None
    title: str | None = None
    metadata: dict[str, Any] = {}


class UpdateSession(Body, kw_only=True):
    """What is absent stays, null removes."""

    title: str | UnsetType | None = UNSET
    agent_id: str | UnsetType | None = UNSET
    model: str | UnsetType | None = UNSET
    provider: str | UnsetType | None = UNSET
    thinking_level: str | UnsetType | None = UNSET
    metadata: dict[str, Any] = {}

    def changes(self) -> dict[str, Any]:
        """The named fields that are present, by name."""
        present = {name: getattr(self, name) for name in self.__struct_fields__ if name != "metadata"}
        return {name: value for name, value in present.items() if value is not UNSET}


class Fork(Body, kw_only=True):
    """Of the whole tree, or of the branch that ends at an entry."""

    session_id: str | None = None
    leaf_id: str | None = None


# --- messages and entries --------------------------------------------------------------------------------------------


class MessagesReply(Reply, kw_only=True):
    """Messages, oldest first, each with its entry's id and sequence; `earlier` and `later` say whether there are more.

    A message that is a summary has `summary: true`, and neither id nor sequence.
    """

    messages: list[ShownMessageDocument]
    earlier: bool = False
    later: bool = False


class AppendedEntry(Reply, kw_only=True):
    """An acknowledged entry; `duplicate` says that an earlier request had brought it, and this one appended nothing.

    With the store `none`, the sequence of a duplicate that has left the window is 0; where one key stands for several
    entries, only the messages of the window are named, or the first entry alone.
    """

    id: str
    sequence: int
    duplicate: bool = False


class AppendedReply(Reply, kw_only=True):
    """What was appended, in order, and the leaf and the session's ETag right behind it."""

    entries: list[AppendedEntry]
    leaf_id: str | None = None
    etag: str = ""


class EntriesAppendedReply(AppendedReply, kw_only=True):
    """What was appended; `id` is that of the last entry."""

    id: str


class TurnReply(Reply, kw_only=True):
    """A turn is acknowledged; how many entries it has, and the leaf and the session's ETag right behind it."""

    entries: int
    leaf_id: str | None
    duplicate: bool = False
    etag: str = ""


class EntriesReply(Reply, kw_only=True):
    """Entries as they are stored, oldest first; `next` and `previous` are the `after` and `before` of further pages."""

    next: int | None
    previous: int | None
    entries: list[EncodedEntry]


class SaveTurn(Body, kw_only=True):
    """Everything that was said in one turn; the usage stands with the last message."""

    messages: Annotated[list[Any], Meta(min_length=1, max_length=MAX_MESSAGES_PER_REQUEST)]
    usage: UsageDocument | None = None


class NewMessage(Body, kw_only=True, tag="message", tag_field="type"):
    """Something was said; `continues`: it belongs to the turn of the message before it."""

    message: MessageDocument
    continues: bool = False


class NewModelChange(Body, kw_only=True, tag="model_change", tag_field="type"):
    """From here on this model answers."""

    provider: str
    model_id: str


class NewThinkingLevel(Body, kw_only=True, tag="thinking_level", tag_field="type"):
    """From here on the model thinks this hard."""

    thinking_level: str


class NewSessionInfo(Body, kw_only=True, tag="session_info", tag_field="type"):
    """The session's display name."""

    name: str


class NewLabel(Body, kw_only=True, tag="label", tag_field="type"):
    """A bookmark on an entry."""

    target_id: str
    label: str


class NewCustom(Body, kw_only=True, tag="custom", tag_field="type"):
    """Anything else worth keeping; it never reaches a model."""

    custom_type: str
    data: dict[str, Any] = {}


class NewMetadata(Body, kw_only=True, tag="metadata", tag_field="type"):
    """Metadata that is set together with other entries; null removes."""

    metadata: dict[str, Any]


NewEntry = NewMessage | NewModelChange | NewThinkingLevel | NewSessionInfo | NewLabel | NewCustom | NewMetadata


class NewEntries(Body, kw_only=True):
    """Entries that are accepted all together or not at all."""

    entries: Annotated[list[NewEntry], Meta(min_length=1, max_length=MAX_MESSAGES_PER_REQUEST)]


# --- chatting --------------------------------------------------------------------------------------------------------


class ChatRequest(Body, kw_only=True):
    """Say something, or `resume` a turn that was left unanswered, or go on with one that waits for `approvals`.

    Attributes:
        approvals: a person's yes or no to calls that wait for it (`list_approvals`), by their ids there; those that are
            left out wait on. Where one of them waits no more, none counts, and what waits by now is asked again.
        author: whose yes or no it is, where the message names no person; empty: the token's name. It is kept with it.
        commands: whether a message such as `/new` or `/help` is obeyed, as in a chat network, and not said to the
            model. `/help` lists all of them; `/stop` is always obeyed.
    """

    channel: str
    chat_id: str | int
    message: str | dict[str, Any] | UnsetType = UNSET
    resume: bool = False
    approvals: dict[str, bool] | UnsetType = UNSET
    author: str = ""
    commands: bool = False
    idempotency_key: str | None = None
    stream: bool = False


class ChatReply(Reply, kw_only=True):
    """The answer and what it cost; `stopped`, where it is its beginning; `suspended`, where it waits for an approval.

    To a command: what a person is `told`, and whether something was `stopped`.
    """

    session_id: str
    reply: MessageDocument | UnsetType = UNSET
    usage: UsageDocument | UnsetType = UNSET
    stopped: bool | UnsetType = UNSET
    told: str | UnsetType = UNSET
    suspended: Annotated[dict[str, Any], _described("SuspendedEvent")] | UnsetType = UNSET


class ChatEvent(msgspec.Struct, frozen=True):
    """Something that happens while an answer is made.

    Attributes:
        kind: accepted, thinking, text, tool_started, tool_finished, usage, compacted; at the end suspended, stopped or
            done, or obeyed where the message was a command.
        data: what goes with it.
    """

    kind: str
    data: dict[str, Any]


class StoppedReply(Reply, kw_only=True):
    """Whether there was a turn to stop."""

    stopped: bool
