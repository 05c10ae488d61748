"""The session's transcript as a tree (document 003): branch, label, compact, read back.

Every call that changes something is a coroutine and returns when the change is acknowledged; every call that reads sees
what was accepted, acknowledged or not. Moving the leaf is an entry of its own, so that a restart remembers it; nothing
that was said is ever lost by it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from miniclaw_sessions.errors import EntryNotFound, InvalidMessage, LeafMoved, UnsafeCompaction
from miniclaw_sessions.history.branch import Branch, BranchCollector
from miniclaw_sessions.history.compaction import TokenCounter, check_cut, count_by_characters, has_open_calls
from miniclaw_sessions.history.context import build_context
from miniclaw_sessions.history.transcript import Transcript, TreeNode
from miniclaw_sessions.protocol.encoding import decode_entry, encode_entry
from miniclaw_sessions.protocol.entries import (
    METADATA,
    BranchSummary,
    Compaction,
    Custom,
    Entry,
    Label,
    LeafMove,
    MessageEntry,
    ModelChange,
    SessionInfo,
    ThinkingLevelChange,
)
from miniclaw_sessions.protocol.keys import SessionKey
from miniclaw_sessions.protocol.messages import Message
from miniclaw_sessions.session.compacting import (
    SUMMARY_TIMEOUT_S,
    CompactionOutcome,
    Summarizer,
    compact,
)
from miniclaw_sessions.session.core import SessionCore, owned
from miniclaw_sessions.stores.branches import read_branch, walk_up
from miniclaw_sessions.turn import refuse_reentry

if TYPE_CHECKING:
    from miniclaw_sessions.session.live import Session


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


class SessionTree(SessionCore):
    """What document 003 does with a session."""

    __slots__ = ()

    # --- appending ---------------------------------------------------------------------------------------------------

    async def append_model_change(self, provider: str, model_id: str) -> str:
        """From here on this model answers; the entry's id.

        Raises:
            StoreFull, StoreUnavailable, InvalidMessage, UnsavedLimit, SessionDeleted: as for `Session.add_message`.
        """
        return await self._log_entry(lambda: self._next(ModelChange, provider=provider, model_id=model_id))

    async def append_thinking_level_change(self, level: str) -> str:
        """From here on the model thinks this hard, for example high, low, off; the entry's id. Raises as above."""
        return await self._log_entry(lambda: self._next(ThinkingLevelChange, thinking_level=level))

    async def append_session_info(self, name: str) -> str:
        """Set the display name; the entry's id. Raises as above."""
        return await self._log_entry(lambda: self._next(SessionInfo, name=name))

    async def append_custom_entry(self, custom_type: str, data: Mapping[str, Any] | None = None) -> str:
        """Keep anything else, such as an extension's state; it never reaches a model. The entry's id.

        Raises:
            InvalidMessage: the data is not JSON, or the type is `metadata`, which `Session.update` sets.
            StoreFull, StoreUnavailable, UnsavedLimit, SessionDeleted: as for `Session.add_message`.
        """
        if custom_type == METADATA:
            raise InvalidMessage(f"custom_type {METADATA!r} is the session's own; use update(), or another type")
        return await self._log_entry(lambda: self._next(Custom, custom_type=custom_type, data=dict(data or {})))

    async def set_label(self, target_id: str, label: str) -> str:
        """Bookmark an entry; an empty label removes the bookmark, the last one set counts. The label's own entry's id.

        Raises:
            EntryNotFound: the session has no such entry.
            StoreFull, StoreUnavailable, InvalidMessage, UnsavedLimit, SessionDeleted: as for `Session.add_message`.
        """
        await self.get_entry(target_id)
        return await self._log_entry(lambda: self._next(Label, target_id=target_id, label=label))

    async def append_compaction(  # noqa: PLR0913 - the fields of document 003 and of what came after it
        self,
        summary: str,
        first_kept_entry_id: str | None,
        tokens_before: int = 0,
        *,
        tokens_after: int | None = None,
        reason: str = "manual",
        messages: Sequence[Message] = (),
    ) -> str:
        """Let a summary stand for what comes before an entry; nothing is deleted. The entry's id.

        Args:
            summary: what the context begins with from here on.
            first_kept_entry_id: the earliest entry that stays in the context; None keeps none.
            tokens_before: the size of the context before, for information.
            tokens_after: the size afterwards, for information.
            reason: manual, threshold or overflow, for information.
            messages: what follows the summary, in place of messages that are not kept.

        Raises:
            EntryNotFound: the session has no such entry.
            UnsafeCompaction: the entry is not on the current branch, the cut would part a call from its result, or a
                call is still unanswered (document 003, section 8.2).
            StoreFull, StoreUnavailable, InvalidMessage, UnsavedLimit, SessionDeleted: as for `Session.add_message`.
        """
        if first_kept_entry_id is not None:
            await self.get_entry(first_kept_entry_id)
        return await self.append_compaction_where(
            lambda _: first_kept_entry_id,
            summary=summary,
            tokens_before=tokens_before,
            tokens_after=tokens_after,
            reason=reason,
            messages=tuple(messages),
        )

    async def append_compaction_where(self, first_kept: Callable[[Branch], str | None], **fields: Any) -> str:
        """`append_compaction` with a first kept entry that is chosen on the branch as it is at that very moment.

        Args:
            first_kept: says what is kept, or raises UnsafeCompaction if the compaction is no longer wanted.
            fields: those of the entry.

        Raises:
            UnsafeCompaction, StoreFull, StoreUnavailable, InvalidMessage, UnsavedLimit, SessionDeleted: as above.
        """
        leaf_id: object = object()
        branch, kept_id = Branch(), None
        while leaf_id != self.leaf_id:  # what is said meanwhile may be a call without its result
            leaf_id = self.leaf_id
            branch = await self.read_branch()
            kept_id = first_kept(branch)
            self._check_cut(branch, kept_id)
        place = next((entry.sequence for entry in branch.entries if entry.id == kept_id), None)
        return await self._log_entry(
            lambda: self._next(Compaction, first_kept_entry_id=kept_id, first_kept_sequence=place, **fields)
        )

    def _check_cut(self, branch: Branch, first_kept_entry_id: str | None) -> None:
        if first_kept_entry_id is not None:
            check_cut(branch.entries, first_kept_entry_id)
        elif has_open_calls(branch.entries):
            raise UnsafeCompaction(
                f"session {self.session_id} cannot be compacted now: a tool call has no result yet; wait for it"
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
                stand for them (document 001). It may take its time: the conversation goes on meanwhile.
            keep_tokens: about how much of the newest part stays as it is; 0: nothing of it.
            count: how tokens are counted; by default a quarter of the characters.
            reason: stands in the entry: manual, threshold or overflow.
            timeout_s: how long the summary may take, in seconds.

        Returns:
            What became of it. A summary that fails, takes too long or is empty changes nothing, and is no error.

        Raises:
            StoreFull, StoreUnavailable, UnsavedLimit, InvalidMessage: as for `append_compaction`.
        """
        return await compact(self, summarizer, keep_tokens=keep_tokens, count=count, reason=reason, timeout_s=timeout_s)

    async def _log_entry(self, make: Callable[[], Entry]) -> str:
        """Append an entry and wait for its acknowledgement; it shares nothing with the caller."""
        self._services.committer.check_store()
        entry = self._append(decode_entry(encode_entry(make())))
        await self._services.committer.wait(self._log, entry.sequence)
        return entry.id

    # --- branching ---------------------------------------------------------------------------------------------------

    @property
    def leaf_id(self) -> str | None:
        """The entry that the next one becomes a child of; None at the root."""
        return self._conversation.leaf_id

    async def branch(self, entry_id: str | None, *, then: Sequence[Message] = (), if_leaf: str | None = None) -> None:
        """Go back to an entry: the conversation goes on from there. A restart remembers it.

        Waits for the session's open turn.

        Args:
            entry_id: where to go on from; None is the root.
            then: messages that follow it there, as one turn; they and the move are accepted together or not at all.
            if_leaf: go only if this is still the leaf, so that nothing that is said meanwhile is left behind.

        Raises:
            EntryNotFound: the session has no such entry.
            LeafMoved: the leaf is not `if_leaf` any more; nothing was changed.
            InvalidMessage: a message cannot be stored faithfully, or is too large.
            TurnInProgress: this very task holds the session's turn.
            StoreFull, StoreUnavailable, UnsavedLimit, SessionDeleted: as for `Session.add_message`.
        """
        async with self._between_turns():
            await self._move_leaf(entry_id, then, if_leaf=if_leaf)
        await self.saved()

    async def branch_with_summary(self, entry_id: str | None, summary: str) -> str:
        """Go back to an entry, and tell the model what happened on the branch that is left; the summary's entry's id.

        Args:
            entry_id: where to go on from; None is the root.
            summary: what happened since.

        Raises:
            EntryNotFound, TurnInProgress, StoreFull, StoreUnavailable, UnsavedLimit, SessionDeleted: as for `branch`.
            InvalidMessage: the summary cannot be stored, or is too large.
        """
        async with self._between_turns():
            entry_ids = await self._move_leaf(entry_id, summary=summary)
        await self.saved()
        return entry_ids[-1]

    async def _move_leaf(
        self,
        entry_id: str | None,
        then: Sequence[Message] = (),
        *,
        summary: str | None = None,
        if_leaf: str | None = None,
    ) -> list[str]:
        """Move the leaf and append what follows, all of it or nothing; the ids of the new entries."""
        self._services.committer.check_store()
        target = None if entry_id is None else await self.get_entry(entry_id)
        place = 0 if target is None else target.sequence
        found = Branch() if target is None else await self._read_window(target.id, place)
        if if_leaf is not None and if_leaf != self.leaf_id:  # nothing is waited for from here on
            raise LeafMoved(f"session {self.session_id} went on meanwhile, or elsewhere; look at it and try again")
        entries: list[Entry] = [self._next(LeafMove, target_id=entry_id, target_sequence=place or None)]
        if summary is not None:
            entries.append(self._next(BranchSummary, entries, summary=summary, from_id=self.leaf_id or "root"))
        for number, message in enumerate(then):
            own = owned(message, self.now())
            entries.append(self._next(MessageEntry, entries, message=own, continues=number > 0))
        self._append_all(entries, branch=found)
        return [entry.id for entry in entries]

    async def _read_window(self, leaf_id: str, leaf_sequence: int) -> Branch:
        """As much of a branch as the window shows of it, and what is in force there."""
        collector = BranchCollector(newest=self._conversation.window.capacity, needs_state=True)
        branch = await read_branch(self._source(), self.session_id, leaf_id, leaf_sequence, collector)
        if self._services.store.keeps_entries:
            return branch
        known = self._conversation.metadata  # nobody has the entries that set it
        return msgspec.structs.replace(
            branch,
            provider=known.get("provider"),
            model=known.get("model"),
            thinking_level=known.get("thinking_level"),
        )

    @asynccontextmanager
    async def _between_turns(self) -> AsyncIterator[None]:
        refuse_reentry(self)  # type: ignore[arg-type]
        async with self.turn_lock:
            yield

    async def fork(self, key: SessionKey | str | None = None) -> Session:
        """A new session with everything that this one has: its whole tree, labels, title and usage.

        The two share nothing from then on, and each can be deleted alone. Until it is complete nobody sees the new one,
        and a crash leaves nothing of it.

        Args:
            key: the new session's key or id; by default the same channel, and a chat id made from this one's.

        Raises:
            SessionExists: there is a session with this key.
            SessionLimit, InvalidKey, StoreError, SessionDeleted: it could not be made; nothing of it is left.
        """
        return await self._fork(key, None)

    async def create_branched_session(self, leaf_id: str, key: SessionKey | str | None = None) -> Session:
        """A new session with one branch of this one: the path from the root to an entry, with the labels on it.

        Args:
            leaf_id: the end of the path.
            key: as for `fork`.

        Raises:
            EntryNotFound: this session has no such entry.
            SessionExists, SessionLimit, InvalidKey, StoreError, SessionDeleted: as for `fork`.
        """
        await self.get_entry(leaf_id)
        return await self._fork(key, leaf_id)

    async def _fork(self, key: SessionKey | str | None, leaf_id: str | None) -> Session:
        wanted = SessionKey.parse(key) if isinstance(key, str) else key
        return await self._services.fork(self, wanted, leaf_id)  # type: ignore[arg-type]

    # --- reading -----------------------------------------------------------------------------------------------------

    async def get_context(self) -> SessionContext:
        """What may be sent to a model at the leaf (document 003, section 8.2), made legal. Costs what it holds.

        Raises:
            StoreUnavailable: the branch is longer than the window, and the store cannot be read.
        """
        known = self._conversation.metadata
        branch = self._conversation.branch() if self._conversation.window_is_whole else await self.read_branch()
        return SessionContext(
            messages=build_context(branch.messages()),
            provider=known.get("provider"),
            model=known.get("model"),
            thinking_level=known.get("thinking_level"),
            problems=branch.problems,
        )

    async def read_branch(self, *, max_tokens: int | None = None, count: TokenCounter = count_by_characters) -> Branch:
        """The current branch as far as a model is told of it, with the entries that are no messages.

        Args:
            max_tokens: read only the newest part, of about so many tokens; None: all.
            count: how tokens are counted.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        conversation = self._conversation
        if not self._services.store.keeps_entries:
            return conversation.branch()
        collector = BranchCollector(max_tokens=max_tokens, count=None if max_tokens is None else count)
        return await read_branch(
            self._source(), self.session_id, conversation.leaf_id, conversation.leaf_sequence, collector
        )

    async def get_branch(self, entry_id: str | None = None, *, limit: int | None = None) -> list[Entry]:
        """The entries from the root to one of them, to the leaf if none is named: nothing left out.

        Args:
            entry_id: the end of the branch.
            limit: only so many of the newest; the others are not read. None: all.

        Raises:
            EntryNotFound: the session has no such entry.
            StoreUnavailable: the store cannot be read.
        """
        place = self._conversation.leaf_sequence
        if entry_id is None:
            entry_id = self.leaf_id
        else:
            place = (await self.get_entry(entry_id)).sequence
        if entry_id is None:
            return []
        path: list[Entry] = []
        async for entry in walk_up(self._source(), self.session_id, entry_id, place, []):
            path.append(entry)
            if len(path) == limit:
                break
        return path[::-1]

    async def get_entry(self, entry_id: str) -> Entry:
        """One entry.

        Raises:
            EntryNotFound: the session has no such entry.
            InvalidMessage: the entry is damaged.
            StoreUnavailable: the store cannot be read.
        """
        stored = await self._source().find(self.session_id, entry_id)
        entry = None if stored is None else decode_entry(stored.encoded)
        if stored is None or entry is None or isinstance(entry, LeafMove):  # a move is no part of the tree
            raise EntryNotFound(self.session_id, entry_id)
        return msgspec.structs.replace(entry, sequence=stored.sequence)

    async def read_entries(self, problems: list[str] | None = None) -> AsyncIterator[Entry]:
        """Every entry that can be read, oldest first, a page at a time; what cannot is told to `problems`.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        async for entry in self._source().decoded([] if problems is None else problems):
            yield entry

    async def get_transcript(self) -> Transcript:
        """The whole tree, in memory: every entry that can be read, with children, labels, and what is wrong.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        transcript = Transcript(session_id=self.session_id)
        async for entry in self.read_entries(transcript.problems):
            transcript.add(entry)
        return transcript

    async def get_tree(self) -> list[TreeNode]:
        """The roots of the tree with everything that follows them, and the labels. Raises as above."""
        return (await self.get_transcript()).tree()

    async def get_children(self, entry_id: str | None) -> list[Entry]:
        """The entries that follow one directly; None gives the roots.

        Raises:
            EntryNotFound: the session has no such entry.
            StoreUnavailable: the store cannot be read.
        """
        transcript = await self.get_transcript()
        if entry_id is not None:
            transcript.get(entry_id)
        return transcript.children(entry_id)

    async def get_label(self, entry_id: str) -> str | None:
        """The bookmark of an entry; None when it has none. Raises as above."""
        return (await self.get_transcript()).labels.get(entry_id)
