"""One session, wherever it is held: the words of `Session`, each a request.

Nothing of it is held here. An append is acknowledged when the call returns, and carries an idempotency key of its own,
so that it can be sent again over a broken connection without being doubled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import UNSET

from miniclaw_sessions.core.history.compaction import KEEP_TOKENS
from miniclaw_sessions.core.protocol.encoding import decode_entry, message_to_dict
from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message, Usage, message_from_dict
from miniclaw_sessions.errors import SessionsError
from miniclaw_sessions.service.api import chat, forgetting, live, messages, sessions, transfer, tree
from miniclaw_sessions.service.api.events import PendingCallRow
from miniclaw_sessions.service.api.messages import MAX_PAGE
from miniclaw_sessions.service.api.shapes import (
    AppendedEntry,
    AppendedReply,
    ChatEvent,
    ChatRequest,
    EntriesAppendedReply,
    Fork,
    NewEntries,
    NewEntry,
    NewMessage,
    SaveTurn,
    SessionReply,
    ShownReply,
    TurnReply,
    UpdateSession,
    UsageReply,
)
from miniclaw_sessions.service.api.tree import Compact, CompactionReply
from miniclaw_sessions.service.client.following import resumed, said_by
from miniclaw_sessions.service.client.said import Said, as_dict
from miniclaw_sessions.service.client.transport import Transport, new_key
from miniclaw_sessions.service.client.tree import PAGE, ClientTree

if TYPE_CHECKING:
    from datetime import datetime

    from miniclaw_sessions.core.session.session import SessionContext

T = TypeVar("T")


class ShownMessage(msgspec.Struct, frozen=True):
    """A message with its place.

    Attributes:
        message: what was said.
        id, sequence: its entry's; empty and 0 for a summary.
        is_summary: it stands for what was compacted.
    """

    message: Message
    id: str = ""
    sequence: int = 0
    is_summary: bool = False


class Page(msgspec.Struct, frozen=True):
    """Messages, oldest first, and whether there are earlier and later ones."""

    messages: list[ShownMessage]
    earlier: bool
    later: bool


class ClientSession:
    """One session of a client; made by `Client`.

    Attributes:
        session_id: its id.
        tree: the Go manager's words for its tree.
        loop: the event loop that its requests belong to.
    """

    def __init__(self, transport: Transport, session_id: str, info: SessionReply | None = None) -> None:
        self.session_id = session_id
        self.tree = ClientTree(self, transport)
        self.loop = asyncio.get_running_loop()
        self._transport = transport
        self._info = info

    def __repr__(self) -> str:
        return f"<ClientSession {self.session_id} of {self._transport!r}>"

    # --- what is known about it --------------------------------------------------------------------------------------

    @property
    def key(self) -> SessionKey:
        """The pair (channel, chat_id)."""
        if self._info is not None:
            return SessionKey.of(self._info.channel, self._info.chat_id)
        return SessionKey.parse(self.session_id)

    @property
    def created_at(self) -> datetime | None:
        """When it began, UTC; None while nothing was asked about it."""
        return None if self._info is None else self._info.created_at

    async def info(self, *, last_words: bool = False) -> ShownReply:
        """Everything about it but its messages, as it is now; with `last_words`, its words as in the list.

        Raises:
            SessionNotFound: there is no such session.
        """
        info = await self._transport.call(sessions.show_session, sessions.ShowSession(self.session_id, last_words))
        self._info = info
        return info

    async def metadata(self) -> dict[str, Any]:
        """Title, model, provider, thinking_level and all other metadata."""
        return (await self.info()).metadata

    async def leaf_id(self) -> str | None:
        """The entry that the next one becomes a child of; None at the root."""
        return (await self.info()).leaf_id

    async def total_usage(self) -> UsageReply:
        """What all messages of the transcript cost together."""
        return (await self.info()).usage

    async def update(self, /, *, if_match: str | None = None, **changes: Any) -> SessionReply:
        """Set metadata: title, agent_id, model, provider, thinking_level, and any other name; None removes.

        Args:
            if_match: only if the session is still as it was when it had this `etag`.
            changes: the new values, by name.

        Raises:
            LeafMoved: the session went on since; nothing was changed.
            InvalidMessage: a value is not JSON, or a name is the session's own.
        """
        fields = UpdateSession.__struct_fields__
        named = {name: value for name, value in changes.items() if name in fields and name != "metadata"}
        free = {name: value for name, value in changes.items() if name not in named}
        body = UpdateSession(**named, metadata=free)
        wanted = sessions.UpdateSessionRequest(self.session_id, body, if_match, new_key())
        info = await self._transport.call(sessions.update_session, wanted)
        self._info = info
        return info

    async def hold(self, reason: str) -> SessionReply:
        """Put it under legal hold: nothing deletes it, and it does not expire, until `release`."""
        wanted = forgetting.HoldRequest(self.session_id, forgetting.Hold(reason=reason))
        self._info = info = await self._transport.call(forgetting.hold_session, wanted)
        return info

    async def release(self) -> SessionReply:
        """End its legal hold, if there is one."""
        self._info = info = await self._transport.call(forgetting.release_session, sessions.OneSession(self.session_id))
        return info

    # --- appending ---------------------------------------------------------------------------------------------------

    async def add_message(
        self,
        message: Said,
        *,
        idempotency_key: str | None = None,
        if_leaf: str | None = None,
        if_sequence: int | None = None,
        if_match: str | None = None,
    ) -> AppendedEntry:
        """Append a message and return when it is acknowledged; a missing session is created.

        Args:
            message: what was said.
            idempotency_key: the sender's own id for it; a message whose key is known is not appended again. By default
                one is made, for the case that the connection breaks.
            if_leaf: append only if this is the leaf; an empty text is the root.
            if_sequence: append only if the newest entry has this sequence.
            if_match: append only if the session is there, and as it was when it had this `etag`.

        Raises:
            LeafMoved: the session is not as it was expected to be; nothing was appended.
            InvalidMessage, StoreUnavailable, StoreFull, UnsavedLimit: as for `Session.add_message`.
            Unreachable: the daemon does not answer.
        """
        (entry,) = await self.add_messages(
            [message], idempotency_key=idempotency_key, if_leaf=if_leaf, if_sequence=if_sequence, if_match=if_match
        )
        return entry

    async def add_messages(
        self,
        several: Sequence[Said],
        *,
        idempotency_key: str | None = None,
        if_leaf: str | None = None,
        if_sequence: int | None = None,
        if_match: str | None = None,
    ) -> list[AppendedEntry]:
        """`add_message` for several, all of them or none; one key stands for all."""
        wanted = messages.AddMessages(
            session_id=self.session_id,
            body={"messages": [as_dict(message) for message in several]},
            idempotency_key=idempotency_key or new_key(),
            if_leaf=if_leaf,
            if_sequence=if_sequence,
            if_match=if_match,
        )
        reply: AppendedReply = await self._transport.call(messages.add_messages, wanted)
        return reply.entries

    async def save_turn(
        self,
        several: Sequence[Said],
        usage: Usage | None = None,
        *,
        idempotency_key: str | None = None,
        if_leaf: str | None = None,
    ) -> TurnReply:
        """Append a turn's messages as one unit, with what it cost. A repeated call with the same key appends nothing.

        Raises:
            LeafMoved, InvalidMessage, StoreUnavailable, StoreFull, UnsavedLimit, Unreachable: as for `add_message`.
        """
        cost = None
        if usage is not None:
            cost = message_to_dict(msgspec.structs.replace(Message.assistant(), usage=usage))["usage"]
        wanted = messages.SaveTurnRequest(
            session_id=self.session_id,
            body=SaveTurn(messages=[as_dict(message) for message in several], usage=cost),
            idempotency_key=idempotency_key or new_key(),
            if_leaf=if_leaf,
        )
        return await self._transport.call(messages.save_turn, wanted)

    async def append(
        self,
        entries: Sequence[NewEntry | Message],
        *,
        idempotency_key: str | None = None,
        if_leaf: str | None = None,
        if_sequence: int | None = None,
    ) -> EntriesAppendedReply:
        """Append entries of any kind as one unit, all of them or none (`api.shapes`: NewMessage, NewCustom, ...).

        Raises:
            SessionNotFound: there is no such session.
            LeafMoved, InvalidMessage, StoreUnavailable, StoreFull, UnsavedLimit, Unreachable: as for `add_message`.
        """
        made = [NewMessage(message=message_to_dict(one)) if isinstance(one, Message) else one for one in entries]
        wanted = messages.AppendEntries(
            session_id=self.session_id,
            body=msgspec.to_builtins(NewEntries(entries=made)),
            idempotency_key=idempotency_key or new_key(),
            if_leaf=if_leaf,
            if_sequence=if_sequence,
        )
        return await self._transport.call(messages.append_entries, wanted)

    async def clear(self) -> SessionReply:
        """Start over with an empty window; the transcript and the metadata stay."""
        wanted = sessions.ClearSession(self.session_id, idempotency_key=new_key())
        info = await self._transport.call(sessions.clear_session, wanted)
        self._info = info
        return info

    # --- reading -----------------------------------------------------------------------------------------------------

    async def messages(self) -> list[Message]:
        """The window, oldest first, behind the summary of what was compacted."""
        return [shown.message for shown in (await self.history(limit=MAX_PAGE)).messages]

    async def history(self, *, limit: int = 50, before: int | None = None, after: int | None = None) -> Page:
        """A page of what was said: the newest, or those of the branch before or after an entry's sequence."""
        wanted = messages.ShowMessages(self.session_id, limit=limit, before=before, after=after)
        reply = await self._transport.call(messages.show_messages, wanted)
        return Page([_shown(document) for document in reply.messages], reply.earlier, reply.later)

    async def get_context(self) -> SessionContext:
        """What may be sent to a model at the leaf, made legal."""
        from miniclaw_sessions.core.session.session import SessionContext  # noqa: PLC0415 - a program that only lists does without

        reply = await self._transport.call(tree.show_context, sessions.OneSession(self.session_id))
        return SessionContext(
            messages=[message_from_dict(document) for document in reply.messages],
            provider=reply.provider,
            model=reply.model,
            thinking_level=reply.thinking_level,
            problems=tuple(reply.problems),
        )

    async def read_after(self, sequence: int = 0, *, limit: int = PAGE) -> list[Entry]:
        """The entries behind a place, in the order of logging, at most `limit`."""
        wanted = messages.ShowEntries(self.session_id, after=sequence, limit=limit)
        reply = await self._transport.call(messages.show_entries, wanted)
        return [decode_entry(bytes(encoded)) for encoded in reply.entries]

    async def read_before(self, sequence: int, *, limit: int = PAGE) -> list[Entry]:
        """The newest entries before a place, in the order of logging, at most `limit`."""
        wanted = messages.ShowEntries(self.session_id, before=sequence, limit=limit)
        reply = await self._transport.call(messages.show_entries, wanted)
        return [decode_entry(bytes(encoded)) for encoded in reply.entries]

    async def transcript(self) -> AsyncGenerator[bytes, None]:
        """Every entry as it is stored, oldest first.

        Raises:
            Unreachable: it broke off in the middle.
        """
        rest = b""
        async with self._transport.stream(messages.show_transcript, sessions.OneSession(self.session_id)) as chunks:
            async for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")  # at this byte only: a text may hold other line ends
                for line in lines:
                    yield line
        if rest:
            raise SessionsError(f"the transcript of {self.session_id} broke off in the middle; try again")

    async def follow(self, *, after: int | None = None) -> AsyncGenerator[Entry, None]:
        """Each entry as it is acknowledged, whichever process has written it; ends when the session is deleted.

        A connection that breaks is made again, and goes on where it broke off: nothing is missing, nothing comes twice.

        Args:
            after: the sequence behind which to begin; by default the newest entry's.

        Raises:
            SessionNotFound: there is no such session.
            Unreachable: the daemon has stopped, and did not come back within five minutes.
        """
        async with aclosing(self.watch(after=after)) as watched:
            async for one in watched:
                if not isinstance(one, ChatEvent):
                    yield one

    async def watch(self, *, after: int | None = None) -> AsyncGenerator[Entry | ChatEvent, None]:
        """What `follow` gives, and the events of an answer under way, of any client's, as `chat` gives them.

        `typing` begins an answer, also for a client that comes in the middle of one or connects again: then the events
        come from its beginning. The pieces of a text come before the entry that holds it; once that is there, they do
        not come again.
        """
        info = await self.info()
        # the place is known before the first connection, which may break before the daemon says it
        first = info.committed_sequence if after is None else after

        def ask(place: str | None) -> live.FollowSession:
            return live.FollowSession(self.session_id, after=first, incarnation=info.incarnation, last_event_id=place)

        async with aclosing(resumed(self._transport, live.follow_session, ask)) as events:
            async for event in events:
                if event.kind == "gone":
                    return
                if event.kind == "entry":
                    yield decode_entry(event.data)
                elif event.data and event.place is None:
                    yield ChatEvent(event.kind, said_by(event))

    async def export(self, form: str = transfer.DEFAULT_FORMAT) -> AsyncGenerator[bytes, None]:
        """The session in the format of this name, piece by piece."""
        wanted = transfer.ExportSession(self.session_id, form)
        async with self._transport.stream(transfer.export_session, wanted) as chunks:
            async for chunk in chunks:
                yield chunk

    async def damage(self) -> list[str]:
        """What of it cannot be read, and is left out of every export, one sentence each."""
        return (await self._transport.call(transfer.show_damage, sessions.OneSession(self.session_id))).problems

    # --- larger steps ------------------------------------------------------------------------------------------------

    async def fork(
        self, session_id: str | None = None, *, leaf_id: str | None = None, idempotency_key: str | None = None
    ) -> ClientSession:
        """A new session with the whole tree, or with the branch that ends at an entry.

        Raises:
            SessionExists, SessionLimit, InvalidKey, EntryNotFound: it could not be made.
        """
        body = Fork(session_id=session_id, leaf_id=leaf_id)
        wanted = sessions.ForkRequest(self.session_id, body, idempotency_key or new_key())
        info = await self._transport.call(sessions.fork_session, wanted)
        return ClientSession(self._transport, info.session_id, info)

    async def compact(
        self, *, keep_tokens: int = KEEP_TOKENS, summary: str | None = None, first_kept_entry_id: str | None = None
    ) -> CompactionReply:
        """Let a summary stand for the older part of the branch: the configured model's, or this one.

        Raises:
            UnsafeCompaction, EntryNotFound: the cut is not possible.
        """
        body = Compact(keep_tokens=keep_tokens, summary=summary, first_kept_entry_id=first_kept_entry_id)
        return await self._transport.call(tree.compact_session, tree.CompactRequest(self.session_id, body))

    def chat(
        self,
        message: Said | str | None,
        *,
        approvals: Mapping[str, bool] | None = None,
        commands: bool = False,
        idempotency_key: str | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[ChatEvent]]:
        """Say something and follow the answer: `async with session.chat("hello") as events`; None resumes a turn.

        Args:
            message: what is said.
            approvals: a person's yes or no to calls that wait for it, by their ids; then there is no message.
            commands: whether a person talks to the bot here, and `/new`, or a yes to a call that waits, is obeyed.
            idempotency_key: the sender's own id of it, where it may be sent again.
        """
        said = message if isinstance(message, str) or message is None else as_dict(message)
        key = self.key
        wanted = ChatRequest(
            channel=key.channel,
            chat_id=key.chat_id,
            message=UNSET if said is None else said,
            resume=said is None and approvals is None,
            approvals=UNSET if approvals is None else dict(approvals),
            idempotency_key=idempotency_key or new_key(),
            stream=True,
            commands=commands,
        )
        return self._transport.chat(wanted)

    async def list_approvals(self) -> list[PendingCallRow]:
        """The tool calls that wait for a person's yes or no; `chat` takes it."""
        return (await self._transport.call(chat.list_approvals, sessions.OneSession(self.session_id))).pending

    async def stop(self) -> bool:
        """End the open turn: what was said so far is kept; False when there was none."""
        return (await self._transport.call(chat.stop_turn, sessions.OneSession(self.session_id))).stopped


def _shown(document: dict[str, Any]) -> ShownMessage:
    fields = dict(document)
    if "sequence" not in fields:  # only a summary has no place: a field `summary` may be a message's own
        del fields["summary"]
        return ShownMessage(message_from_dict(fields), is_summary=True)
    entry_id, sequence = fields.pop("id"), fields.pop("sequence")
    return ShownMessage(message_from_dict(fields), entry_id, sequence)
