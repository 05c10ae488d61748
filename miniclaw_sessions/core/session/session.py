"""One live conversation: what people talk to.

`append` is synchronous: it accepts a message, in memory and in order, and needs no lock because no other task runs
between two awaits. `add_message` returns when the message is acknowledged: the store has committed it. A turn is
exclusive. `session.tree` is the transcript as a tree, in the Go manager's words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Unpack
from weakref import ref

import msgspec
from msgspec import UNSET, UnsetType

from miniclaw_sessions.clock import Clock, SystemClock
from miniclaw_sessions.config import MAX_MESSAGES
from miniclaw_sessions.core.history.compaction import TokenCounter, count_by_characters
from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.history.search import SearchOptions, SearchPage, SearchQuery
from miniclaw_sessions.core.protocol.entries import FORK, LeafMove, MessageEntry
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message, Usage, as_message
from miniclaw_sessions.core.session.compacting import SUMMARY_TIMEOUT_S, CompactionOutcome, Summarizer, compact
from miniclaw_sessions.core.session.copying import copy_session, key_of_fork
from miniclaw_sessions.core.session.journal import Journal, SessionStatistics
from miniclaw_sessions.core.session.memory import MemoryHome
from miniclaw_sessions.core.session.owner import guarded
from miniclaw_sessions.core.session.searching import search_session
from miniclaw_sessions.core.session.tree import SessionTree
from miniclaw_sessions.core.session.turn import Opening, Turn
from miniclaw_sessions.core.session.unit import Unit
from miniclaw_sessions.errors import InvalidMessage, TurnTaken


class SessionContext(msgspec.Struct, frozen=True, kw_only=True):
    """What may be sent to a model at the leaf.

    Attributes:
        messages: the summary of what was compacted, if there is one, and every message that is kept; legal for any
            model (`build_context`).
        provider, model, thinking_level: what is in force.
        problems: what is wrong with the branch, one sentence each; nothing is lost by it.
    """

    messages: list[Message]
    provider: str | None = None
    model: str | None = None
    thinking_level: str | None = None
    problems: tuple[str, ...] = ()


@guarded(
    attrgetter("journal.home.owner"),
    anywhere=("messages", "entries", "statistics", "unit", "turn"),
    by_itself=("append", "add_message"),
)
class Session:
    """A conversation that is held in memory, saved to the store and checkpointed to its file.

    `SessionManager` hands out the same object for the same key for as long as it lives; `Session.new` makes one in
    memory only.

    Attributes:
        journal: what saves it; for the manager and those who extend it.
    """

    __slots__ = ("__weakref__", "journal")

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        journal.handle = ref(self)

    @classmethod
    def of(cls, journal: Journal) -> Session:
        """The session of a journal: the same object for as long as it lives."""
        known = None if journal.handle is None else journal.handle()
        return known if isinstance(known, Session) else cls(journal)

    @classmethod
    def new(cls, session_id: str | None = None, *, window: int = MAX_MESSAGES, clock: Clock | None = None) -> Session:
        """A session in memory only, without a manager, as in the kernel and Dive; it is gone with its object.

        Args:
            session_id: its name, a session id or any other text (`SessionKey.named`); by default a UUIDv7.
            window: how many messages its window holds.
            clock: time and ids; the machine's by default.

        Raises:
            InvalidKey: the text is empty, too long, or no valid Unicode.
        """
        clock = clock or SystemClock()
        key = SessionKey.named(clock.new_id() if session_id is None else session_id)
        return cls(MemoryHome(clock, window).journal(key))

    def __repr__(self) -> str:
        state = "deleted" if self.journal.is_deleted else "dirty" if self.journal.checkpoint.is_dirty else "clean"
        return f"<Session {self.session_id} {len(self)} messages, {state}>"

    def __len__(self) -> int:
        return len(self.journal.conversation.window)

    def __bool__(self) -> bool:
        return True  # an empty session is one all the same

    # --- who it is ---------------------------------------------------------------------------------------------------

    @property
    def session_id(self) -> str:
        """Its name everywhere: `{channel}_{chat_id}`, escaped."""
        return self.journal.session_id

    @property
    def key(self) -> SessionKey:
        """The pair (channel, chat_id)."""
        return self.journal.conversation.state.key

    @property
    def created_at(self) -> datetime:
        """When it began, UTC."""
        return self.journal.conversation.state.created_at

    @property
    def updated_at(self) -> datetime:
        """When its content last changed, UTC."""
        return self.journal.conversation.state.updated_at

    @property
    def last_accessed(self) -> datetime:
        """When it was last used, UTC; its time to live counts from here."""
        return self.journal.conversation.state.last_accessed

    @property
    def last_sequence(self) -> int:
        """The sequence number of its newest entry; 0 when it has none."""
        return self.journal.conversation.state.last_sequence

    @property
    def leaf_id(self) -> str | None:
        """The entry that the next one becomes a child of; None at the root."""
        return self.journal.conversation.state.leaf_id

    @property
    def tree(self) -> SessionTree:
        """Its transcript: branches, labels, summaries, every entry."""
        return SessionTree(self.journal)

    # --- saying something --------------------------------------------------------------------------------------------

    def append(self, message: Message | Mapping[str, Any], *, idempotency_key: str | None = None) -> MessageEntry:
        """Accept a message: in memory, in order, and on its way to the store. Returns at once.

        Accepted is not acknowledged: a crash can still lose it until `saved` returns, and where other processes write
        the session, too, its sequence may become another one; `add_message` returns what is stored. A message whose
        idempotency key was seen before is not appended again; its first entry is returned if the window still has it,
        and an entry with the first one's id if not. This call knows the last 256 keys; those that wait (`add_message`,
        `add_messages`, `save_turn`, `turn`) ask the store for older ones.

        Raises:
            InvalidMessage: it cannot be stored faithfully, or is larger than `max_message_bytes`.
            UnsavedLimit: too much waits for the store already.
            SessionDeleted: the session was deleted or has expired.
        """
        self.journal.home.owner.check()
        return self.journal.append(message, idempotency_key=idempotency_key)

    def extend(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        idempotency_keys: Sequence[str | None] = (),
        continues: Iterable[bool] = (),
    ) -> list[MessageEntry]:
        """Accept several messages as one unit: all of them, or none. One commit carries them.

        Args:
            messages: in order.
            idempotency_keys: one for each message, or none at all; a message whose key is known is not appended again.
            continues: for each message, whether it belongs to the same turn as the message before it; those that
                are not named do not.

        Returns:
            The entry of each message, as `append` would return it.

        Raises:
            InvalidMessage, UnsavedLimit, SessionDeleted: as for `append`.
        """
        unit = self.unit(has_one_key=False)
        entries = unit.add_messages(messages, idempotency_keys=idempotency_keys, continues=continues)
        unit.accept()
        return entries

    async def add_message(
        self, message: Message | Mapping[str, Any], *, idempotency_key: str | None = None
    ) -> MessageEntry:
        """Append a message and return when it is acknowledged: the store has committed it, as safely as it promises.

        While the store cannot be written this refuses at once and accepts nothing. When the store fails under this very
        message, the error is raised and the message stays accepted: it is committed when the store recovers, and
        repeating the call with the same idempotency key waits for that instead of appending it twice.

        Raises:
            StoreFull: no space on the store's disk.
            StoreUnavailable: the store cannot be written.
            InvalidMessage, UnsavedLimit, SessionDeleted: as for `append`.
        """
        journal = self.journal
        journal.home.owner.check()
        committer = journal.home.committer
        await committer.check_store()
        while True:
            entry = None if idempotency_key is None else await journal.find_by_key(idempotency_key)
            entry = entry or journal.append(message, idempotency_key=idempotency_key)
            receipt = journal.queue.receipt(entry.id)
            # a repeated message that is stored nowhere has no number: then everything is waited for
            await committer.wait(journal.queue, entry.sequence or journal.last_sequence)
            try:
                return receipt.final(entry)
            except TurnTaken:  # it was a turn's question, that was given up: then it is said without a turn
                continue

    async def add_messages(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        idempotency_keys: Sequence[str | None] = (),
        if_leaf: str | None = None,
        if_sequence: int | None = None,
    ) -> list[MessageEntry]:
        """`extend`, and return when all of it is acknowledged.

        Args:
            messages: in order.
            idempotency_keys: one for each message, or none at all; a message whose key is known is not appended again.
            if_leaf: only if this entry is the leaf; the empty text stands for the root. None: any leaf.
            if_sequence: only if this is the session's last sequence number. None: any number.

        Raises:
            LeafMoved: the leaf or the last sequence is another one than was demanded, and not all keys were known;
                nothing was accepted.
            StoreFull, StoreUnavailable: as for `add_message`.
            InvalidMessage, UnsavedLimit, SessionDeleted: as for `append`.
        """
        await self.journal.home.committer.check_store()
        unit = self.unit(has_one_key=False)
        await unit.look_up(key for key in idempotency_keys if key is not None)
        entries = unit.add_messages(messages, idempotency_keys=idempotency_keys)
        await unit.save(if_leaf=if_leaf, if_sequence=if_sequence)
        return [unit.as_stored(entry) for entry in entries]

    async def save_turn(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        usage: Usage | None = None,
        *,
        idempotency_key: str | None = None,
        if_leaf: str | None = None,
        if_sequence: int | None = None,
    ) -> list[MessageEntry]:
        """Append a turn's messages as one unit, and return when they are acknowledged (Dive).

        Args:
            messages: everything that was said in the turn, and nothing from before it.
            usage: what the turn cost; it stands with the last message, unless messages bring their own usage.
            idempotency_key: the sender's own id of the turn; one whose key is known is not saved again, so that a call
                that raised StoreUnavailable can be repeated.
            if_leaf: only if this entry is the leaf, as for `add_messages`; a turn that is known demands nothing.
            if_sequence: only if this is the session's last sequence number.

        Returns:
            The entries; none where the turn was saved before.

        Raises:
            InvalidMessage: there are no messages, and there is a usage, which could stand nowhere.
            LeafMoved: the leaf or the last sequence is another one than was demanded; nothing was accepted.
            StoreFull, StoreUnavailable, InvalidMessage, UnsavedLimit, SessionDeleted: as for `add_message`; nothing, or
                all, was accepted.
        """
        await self.journal.home.committer.check_store()
        turn = [as_message(message) for message in messages]
        if usage is not None and not turn:
            raise InvalidMessage("a turn without messages has nothing that its usage could stand with; add a message")
        if usage is not None and all(message.usage is None for message in turn):
            turn[-1] = msgspec.structs.replace(turn[-1], usage=usage)
        unit, entries = self.unit(), list[MessageEntry]()
        if not await unit.repeats(idempotency_key):
            entries = unit.add_messages(turn, continues=(place > 0 for place in range(len(turn))))
        await unit.save(if_leaf=if_leaf, if_sequence=if_sequence)
        return [] if unit.known is not None else [unit.as_stored(entry) for entry in entries]

    def unit(self, *, has_one_key: bool = True) -> Unit:
        """Entries of any kind that are to be accepted all together or not at all: add them, then `save` the unit.

        Args:
            has_one_key: whether the idempotency key of one of them, if no other has one, stands for all of them.
        """
        return Unit(self.journal, has_one_key=has_one_key)

    def turn(
        self, message: Message | Mapping[str, Any] | Opening | None = None, *, idempotency_key: str | None = None
    ) -> Turn:
        """One exchange, exclusively: `async with session.turn(message) as turn`. See `Turn`, and `Opening`.

        Without a message, the turn of the user's newest one is taken up again.
        """
        asked = message if message is None or isinstance(message, Opening) else as_message(message)
        return Turn(self.journal, asked, idempotency_key=idempotency_key)

    def stop_turn(self) -> bool:
        """Stop the agent whose turn is open: its model and its tools are cancelled, and what was said is kept.

        Returns:
            False if no agent works in this session now.
        """
        return self.journal.turn_lock.turn is not None and self.journal.turn_lock.turn.stop()

    def clear(self) -> None:
        """Start over with an empty window; accepted like a message. The transcript and the metadata stay."""
        unit = self.unit()
        unit.add(LeafMove, target_id=None)
        unit.accept()

    async def saved(self) -> None:
        """Return when everything accepted so far is acknowledged; a new session without an entry, when it is written.

        Raises:
            StoreUnavailable: the store cannot be written; what was accepted stays in memory and is tried again.
            StoreConflict: the store has other entries in their place; get_or_create goes on from those.
        """
        await self.journal.saved()

    # --- what was said -----------------------------------------------------------------------------------------------

    def messages(self) -> list[Message]:
        """The window, oldest first, behind the summary of what was compacted: a new list of immutable messages."""
        return [*self.journal.summary(), *self.journal.conversation.window.messages()]

    def entries(self) -> list[MessageEntry]:
        """The window with ids, sequence numbers and times: a new list of immutable entries."""
        return list(self.journal.conversation.window)

    async def search(self, query: str = "", **options: Unpack[SearchOptions]) -> SearchPage:
        """What was said here and committed, as `SessionManager.search`. Raises the same."""
        return await search_session(self.journal, SearchQuery(query, **options))

    async def get_context(self) -> SessionContext:
        """What may be sent to a model at the leaf (the Go manager's rules), made legal. Costs what it holds.

        Raises:
            StoreUnavailable: the branch is longer than the window, and the store cannot be read.
        """
        messages, problems = await self.journal.reader.shown()
        known = self.journal.conversation.state.metadata
        return SessionContext(
            messages=build_context(messages),
            provider=known.get("provider"),
            model=known.get("model"),
            thinking_level=known.get("thinking_level"),
            problems=problems,
        )

    async def compact(
        self,
        summarizer: Summarizer,
        *,
        keep_tokens: int = 0,
        count: TokenCounter = count_by_characters,
        reason: str = "manual",
        timeout_s: float = SUMMARY_TIMEOUT_S,
    ) -> CompactionOutcome:
        """Let a summary stand for the branch, but for its newest part. The transcript keeps everything.

        Args:
            summarizer: a coroutine that is given messages, oldest first, and gives a text, or the messages that are to
                stand for them (Dive). It may take its time: the conversation goes on meanwhile.
            keep_tokens: about how much of the newest part stays as it is; 0: nothing of it.
            count: how tokens are counted; by default a quarter of the characters.
            reason: stands in the entry: manual, threshold or overflow.
            timeout_s: how long the summary may take, in seconds.

        Returns:
            What became of it. A summary that fails, takes too long or is empty changes nothing, and is no error.

        Raises:
            StoreFull, StoreUnavailable, UnsavedLimit, InvalidMessage: as for `SessionTree.append_compaction`.
        """
        return await compact(
            self.journal, summarizer, keep_tokens=keep_tokens, count=count, reason=reason, timeout_s=timeout_s
        )

    async def fork(self, key: SessionKey | str | None = None, *, leaf_id: str | None = None) -> Session:
        """A new session with everything that this one has: its tree, labels, title and usage; or one branch of it.

        The two share nothing from then on, and each can be deleted alone. Until it is complete the new one is
        invisible, and a crash leaves nothing of it.

        Args:
            key: the new session's key or id; by default the same channel, and a chat id made from this one's.
            leaf_id: only the path from the root to this entry, with the labels on it; None: the whole tree.

        Raises:
            EntryNotFound: this session has no such entry.
            SessionExists: there is a session with this key.
            SessionLimit, InvalidKey, StoreError, SessionDeleted: it could not be made; nothing of it is left.
        """
        source = self.journal
        wanted = SessionKey.parse(key) if isinstance(key, str) else key
        if leaf_id is not None:
            await source.reader.get(leaf_id)
        async with source.home.new_journal(wanted or key_of_fork(self.key, source.home.clock), purpose=FORK) as fork:
            await copy_session(source, fork, leaf_id)
        return Session.of(fork)

    # --- what is known about it --------------------------------------------------------------------------------------

    @property
    def chosen_model(self) -> str | None:
        """The model that was chosen last (`update(model=...)`), whichever has answered since, and on any branch.

        Going back keeps it: what was meant for one service must not go to another one without a word.
        """
        return self.journal.conversation.state.chosen_model

    @property
    def chosen_level(self) -> str | None:
        """The level of thinking that was chosen last (`update(thinking_level=...)`), on any branch."""
        return self.journal.conversation.state.chosen_level

    @property
    def title(self) -> str | None:
        """The display name; `update(title=...)` sets it."""
        return self.journal.conversation.state.metadata.get("title")

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Title, agent_id, model, provider, thinking_level and all other fields; a read-only copy."""
        return MappingProxyType(deepcopy(dict(self.journal.conversation.state.metadata)))

    def update(
        self,
        /,
        *,
        title: str | UnsetType | None = UNSET,
        model: str | UnsetType | None = UNSET,
        provider: str | UnsetType | None = UNSET,
        thinking_level: str | UnsetType | None = UNSET,
        **metadata: Any,
    ) -> None:
        """Set metadata, each change an entry of the transcript; None removes. Accepted like a message, all or nothing.

        Raises:
            InvalidMessage: a value is not JSON, or a name begins with `session.`, which are the session's own.
            UnsavedLimit, SessionDeleted: as for `append`.
        """
        unit = self.unit()
        unit.add_metadata(title=title, model=model, provider=provider, thinking_level=thinking_level, **metadata)
        unit.accept()

    def statistics(self) -> SessionStatistics:
        """Its numbers at this moment: what is in memory, and what of it is saved."""
        return self.journal.statistics()

    @property
    def message_count(self) -> int:
        """How many messages the transcript has, on all branches."""
        return self.journal.conversation.state.totals.messages

    @property
    def event_count(self) -> int:
        """How many turns, messages saved alone, and compactions there were, on all branches (Dive)."""
        return self.journal.conversation.state.totals.events

    @property
    def total_usage(self) -> Usage:
        """The usage of all messages and summaries of the transcript, on all branches; unreported usage is 0."""
        return self.journal.conversation.state.totals.usage or Usage()
