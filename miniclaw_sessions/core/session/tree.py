"""`session.tree`: the session's transcript as the tree of the Go manager: append, branch, label, compact, read back.

Every call that changes something is a coroutine and returns when the change is acknowledged; every call that reads sees
what was accepted, acknowledged or not. Moving the leaf is an entry of its own, so that a restart remembers it; nothing
that was said is ever lost by it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from miniclaw_sessions.core.history.branch import Branch
from miniclaw_sessions.core.history.compaction import TokenCounter, count_by_characters
from miniclaw_sessions.core.history.transcript import Transcript, TreeNode
from miniclaw_sessions.core.protocol.entries import (
    BranchSummary,
    Entry,
    EntryBase,
    Label,
    LeafMove,
    MessageEntry,
    ModelChange,
    SessionInfo,
    ThinkingLevelChange,
    WaitingCall,
    waiting_calls,
)
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session.compacting import append_compaction
from miniclaw_sessions.core.session.journal import Journal
from miniclaw_sessions.core.session.owner import guarded
from miniclaw_sessions.core.session.unit import Unit
from miniclaw_sessions.core.stores.base import StoredEntry, decode_stored
from miniclaw_sessions.errors import EntryNotFound, LeafMoved


@guarded(attrgetter("_journal.home.owner"))
class SessionTree:
    """The entries of one session, with their branches, labels and summaries."""

    __slots__ = ("_journal",)

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __repr__(self) -> str:
        return f"<SessionTree of {self._journal.session_id}, {self._journal.last_sequence} entries>"

    # --- appending ---------------------------------------------------------------------------------------------------

    async def append_message(self, message: Message) -> str:
        """`Session.add_message`, but the id of the new entry is returned.

        Raises:
            StoreFull, StoreUnavailable, InvalidMessage, UnsavedLimit, SessionDeleted: as for `Session.add_message`.
        """
        unit = Unit(self._journal)
        entry = unit.add_message(message, continues=False)
        await unit.save()
        return entry.id

    async def append_model_change(self, provider: str, model_id: str) -> str:
        """From here on this model answers; the entry's id.

        Raises:
            StoreFull, StoreUnavailable, InvalidMessage, UnsavedLimit, SessionDeleted: as for `Session.add_message`.
        """
        return await self._append(ModelChange, provider=provider, model_id=model_id)

    async def append_thinking_level_change(self, level: str) -> str:
        """From here on the model thinks this hard, for example high, low, off; the entry's id.

        Raises:
            StoreFull, StoreUnavailable, InvalidMessage, UnsavedLimit, SessionDeleted: as for `Session.add_message`.
        """
        return await self._append(ThinkingLevelChange, thinking_level=level)

    async def append_session_info(self, name: str) -> str:
        """Set the display name; the entry's id.

        Raises:
            StoreFull, StoreUnavailable, InvalidMessage, UnsavedLimit, SessionDeleted: as for `Session.add_message`.
        """
        return await self._append(SessionInfo, name=name)

    async def append_custom_entry(self, custom_type: str, data: Mapping[str, Any] | None = None) -> str:
        """Keep anything else, such as an extension's state; it never reaches a model. The entry's id.

        Raises:
            InvalidMessage: the data is not JSON, or the type is `metadata`, which `Session.update` sets.
            StoreFull, StoreUnavailable, UnsavedLimit, SessionDeleted: as for `Session.add_message`.
        """
        unit = Unit(self._journal)
        entry = unit.add_custom(custom_type, data)
        await unit.save()
        return entry.id

    async def set_label(self, target_id: str, label: str, *, idempotency_key: str | None = None) -> str:
        """Bookmark an entry; an empty label removes the bookmark, the last one set counts. The label's own entry's id.

        Args:
            target_id: the entry.
            label: its new bookmark.
            idempotency_key: the sender's own id of it; one whose key is known is not set again.

        Raises:
            EntryNotFound: the session has no such entry.
            StoreFull, StoreUnavailable, InvalidMessage, UnsavedLimit, SessionDeleted: as for `Session.add_message`.
        """
        self._journal.require_transcript("a label")
        await self.get_entry(target_id)
        unit = Unit(self._journal)
        if not await unit.repeats(idempotency_key):
            unit.add(Label, target_id=target_id, label=label)
        await unit.save()
        return (unit.known or unit.entries[0]).id

    async def append_compaction(  # noqa: PLR0913 - the fields of the Go manager and of what came after it
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
                call is still unanswered.
            LeafMoved: another process has said something meanwhile, which the summary would stand for, too.
            StoreFull, StoreUnavailable, InvalidMessage, UnsavedLimit, SessionDeleted: as for `Session.add_message`.
        """
        self._journal.require_transcript("what a compaction replaces")
        if first_kept_entry_id is not None:
            await self.get_entry(first_kept_entry_id)
        return await append_compaction(
            self._journal,
            lambda _: first_kept_entry_id,
            summary=summary,
            tokens_before=tokens_before,
            tokens_after=tokens_after,
            reason=reason,
            messages=tuple(messages),
        )

    async def _append(self, kind: type[EntryBase], **fields: Any) -> str:
        unit = Unit(self._journal)
        entry = unit.add(kind, **fields)
        await unit.save()
        return entry.id

    # --- branching ---------------------------------------------------------------------------------------------------

    async def branch(
        self,
        entry_id: str | None,
        *,
        then: Sequence[Message] = (),
        if_leaf: str | None = None,
        idempotency_key: str | None = None,
    ) -> list[str]:
        """Go back to an entry: the conversation goes on from there. A restart remembers it.

        Waits for the session's open turn.

        Args:
            entry_id: where to go on from; None is the root.
            then: messages that follow it there, as one turn; they and the move are accepted together or not at all.
            if_leaf: go only if this is still the leaf, so that nothing that is said meanwhile is left behind; the
                empty text stands for the root.
            idempotency_key: the sender's own id of the move; one whose key is known is not done again, and demands
                nothing.

        Returns:
            The ids of the messages' entries.

        Raises:
            EntryNotFound: the session has no such entry.
            LeafMoved: the leaf is not `if_leaf` any more; nothing was changed.
            TranscriptNotKept: the store is `none`, which would forget the branch that is left.
            InvalidMessage: a message cannot be stored faithfully, or is too large.
            TurnInProgress: this very task holds the session's turn.
            StoreFull, StoreUnavailable, UnsavedLimit, SessionDeleted: as for `Session.add_message`.
        """

        def add(unit: Unit) -> None:
            _add_turn(unit, then)

        added = await self.branch_with_entries(entry_id, add, if_leaf=if_leaf, idempotency_key=idempotency_key)
        return [entry.id for entry in added]

    async def branch_with_entries(
        self,
        entry_id: str | None,
        add: Callable[[Unit], object],
        *,
        if_leaf: str | None = None,
        idempotency_key: str | None = None,
    ) -> list[Entry]:
        """Go back to an entry, and append what `add` adds to a unit: together with the move, or not at all.

        Args:
            entry_id: where to go on from; None is the root.
            add: adds entries of any kind; it may raise.
            if_leaf: as for `branch`.
            idempotency_key: as for `branch`.

        Returns:
            The entries that stand there now, as they are stored; of a move that was known, those that came with it.

        Raises:
            EntryNotFound, LeafMoved, TranscriptNotKept, InvalidMessage, TurnInProgress, StoreFull, StoreUnavailable,
                UnsavedLimit, SessionDeleted: as for `branch`.
        """
        async with self._journal.between_turns():
            unit = Unit(self._journal)
            if not await unit.repeats(idempotency_key):
                self._journal.require_transcript("the branch that is left")
                target = None if entry_id is None else await self._journal.reader.on_branch(entry_id)
                await self._move_leaf(unit, target, add, if_leaf=if_leaf)
        await unit.saved()
        if (move := unit.known) is None:
            return unit.entries[1:]
        again = Unit(self._journal)  # is never accepted: it says how many entries there were
        add(again)
        return [decode_stored(one) for one in await self.read_after(move.sequence, len(again))]

    async def branch_with_summary(
        self, entry_id: str | None, summary: str, *, idempotency_key: str | None = None
    ) -> str:
        """Go back to an entry, with a summary for the model of what happened on the branch that is left.

        Args:
            entry_id: where to go on from; None is the root.
            summary: what happened since.
            idempotency_key: as for `branch`.

        Returns:
            The id of the summary's entry.

        Raises:
            EntryNotFound, TurnInProgress, StoreFull, StoreUnavailable, UnsavedLimit, SessionDeleted: as for `branch`.
            InvalidMessage: the summary cannot be stored, or is too large.
        """

        def add(unit: Unit) -> None:
            unit.add(BranchSummary, summary=summary, from_id=self._journal.conversation.state.leaf_id or "root")

        return (await self.branch_with_entries(entry_id, add, idempotency_key=idempotency_key))[-1].id

    async def replace(
        self,
        entry_id: str,
        messages: Sequence[Message] = (),
        *,
        without: Collection[str] = (),
        if_leaf: str | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Go on without an entry of the current branch: what follows it is appended again, as copies, without it.

        The leaf moves to before the entry, and all of it is accepted together or not at all: as much is appended as
        followed. The transcript keeps what was left. A copy names the entry that it is one of (`COPY_OF`), and does
        not repeat its usage. Waits for the session's open turn.

        Args:
            entry_id: the entry.
            messages: what stands in its place.
            without: the ids of later entries that are left out, too.
            if_leaf: as for `branch`; None: what is said meanwhile follows, too.
            idempotency_key: as for `branch`.

        Raises:
            EntryNotFound: the current branch has no such entry.
            LeafMoved: the leaf is not `if_leaf` any more; nothing was changed.
            TranscriptNotKept, TurnInProgress, StoreFull, StoreUnavailable, UnsavedLimit, SessionDeleted: as for
                `branch`.
        """
        journal, left_out = self._journal, frozenset(without)
        before, settled = None, list[Entry]()
        while True:
            try:
                async with journal.between_turns():
                    unit = Unit(journal)
                    if not await unit.repeats(idempotency_key):
                        leaf_id = (journal.conversation.state.leaf_id or "") if if_leaf is None else if_leaf
                        final = journal.final_sequence
                        before, left = await self._around(entry_id, before, settled)
                        settled = [entry for entry in left if entry.sequence <= final]

                        def add(unit: Unit, left: Sequence[Entry] = left) -> None:
                            _add_turn(unit, messages)
                            copied = [entry for entry in left[1:] if entry.id not in left_out]
                            unit.add_copies(copied, instead_of=left[0].sequence)

                        await self._move_leaf(unit, before, add, left=left, if_leaf=leaf_id)
                return await unit.saved()
            except LeafMoved:
                if if_leaf is not None:
                    raise
                # what was said meanwhile, here or by another process, follows, too

    async def _around(
        self, entry_id: str, before: Entry | None, settled: Sequence[Entry]
    ) -> tuple[Entry | None, list[Entry]]:
        """The entry before one of the current branch, None is the root; and that one with all that follows it there.

        What is before is what a walk finds: the parent may be damaged, or gone. `before` and `settled` are what was
        found earlier and keeps its place: what came since is all that is read, so that who speaks all the time does not
        keep this from its end.
        """
        self._journal.require_transcript("the branch that is left")
        found: list[Entry] = []
        async for entry in self.walk():
            if settled and entry.id == settled[-1].id:
                return before, [*settled, *found[::-1]]
            if found and found[-1].id == entry_id:
                return entry, found[::-1]
            found.append(entry)
        if found and found[-1].id == entry_id:
            return None, found[::-1]
        raise EntryNotFound(self._journal.session_id, entry_id)

    async def _move_leaf(
        self,
        unit: Unit,
        target: Entry | None,
        add: Callable[[Unit], object],
        *,
        left: Sequence[Entry] | None = None,
        if_leaf: str | None = None,
    ) -> None:
        """Move the leaf and append what follows, all of it or nothing, as an empty unit, which is accepted."""
        journal = self._journal
        await journal.home.committer.check_store()
        found = await journal.reader.window_at(target, left=left)  # nothing is waited for from here on
        place = (None, None) if target is None else (target.id, target.sequence)
        unit.add(LeafMove, target_id=place[0], target_sequence=place[1])
        add(unit)
        unit.accept(if_leaf=if_leaf, branch=found)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def read_branch(self, *, max_tokens: int | None = None, count: TokenCounter = count_by_characters) -> Branch:
        """The current branch as far as a model is shown it, with the entries that are no messages.

        Args:
            max_tokens: read only the newest part, of about this many tokens; None: all.
            count: how tokens are counted.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        return await self._journal.reader.branch(max_tokens=max_tokens, count=count)

    async def get_branch(self, entry_id: str | None = None, *, limit: int | None = None) -> list[Entry]:
        """The entries from the root to one of them, to the leaf if none is named: nothing left out.

        Args:
            entry_id: the end of the branch.
            limit: only this many of the newest; the others are not read. None: all.

        Raises:
            EntryNotFound: the session has no such entry.
            StoreUnavailable: the store cannot be read.
        """
        path: list[Entry] = []
        async for entry in self.walk(entry_id):
            path.append(entry)
            if len(path) == limit:
                break
        return path[::-1]

    async def walk(self, entry_id: str | None = None) -> AsyncIterator[Entry]:
        """The entries of a branch, from its end to the root; what is not asked for is not read.

        Args:
            entry_id: the end of the branch; the leaf if none is named.

        Raises:
            EntryNotFound: the session has no such entry.
            StoreUnavailable: the store cannot be read.
        """
        async for entry in self._journal.reader.walk(None if entry_id is None else await self.get_entry(entry_id)):
            yield entry

    async def get_waiting(self, entry_id: str | None = None) -> dict[str, WaitingCall]:
        """The calls, by their ids, that the newest turn of a branch was suspended for.

        Args:
            entry_id: the end of the branch; the leaf if none is named.

        Raises:
            EntryNotFound: the session has no such entry.
            StoreUnavailable: the store cannot be read.
        """
        async for entry in self.walk(entry_id):
            if (waiting := waiting_calls(entry)) is not None:
                return waiting
            if isinstance(entry, MessageEntry) and entry.message.is_assistant:
                break  # what was suspended before it is over, although it may use the same ids
        return {}

    async def read_entries(
        self, problems: list[str] | None = None, *, after: int = 0, in_place: bool = False
    ) -> AsyncIterator[Entry]:
        """Every entry that can be read, oldest first, a page at a time; what cannot is described in `problems`.

        Args:
            problems: where that is described, one sentence each.
            after: only the entries behind this sequence number.
            in_place: only the entries that `read_after` gives: those whose places do not change any more.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        found = [] if problems is None else problems
        async for entry in self._journal.reader.entries(found, after=after, in_place=in_place):
            yield entry

    async def read_after(self, sequence: int, limit: int | None = None) -> list[StoredEntry]:
        """The entries behind a place as they are stored, oldest first, at most `limit`.

        Where other processes write the session, too, only what is acknowledged, by any of them: the rest has
        no place of its own yet.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        return await self._journal.reader.read_in_place(after=sequence, limit=limit)

    async def read_at(self, sequences: Iterable[int]) -> dict[int, StoredEntry]:
        """The entries at these places, as `read_after` has them; those that stand close together are read together.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        return await self._journal.reader.read_at(sequences)

    async def get_entry(self, entry_id: str) -> Entry:
        """One entry.

        Raises:
            EntryNotFound: the session has no such entry.
            InvalidMessage: the entry is damaged.
            StoreUnavailable: the store cannot be read.
        """
        return await self._journal.reader.get(entry_id)

    async def get_transcript(self) -> Transcript:
        """The whole tree, in memory: every entry that can be read, with children, labels, and what is wrong.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        transcript = Transcript(session_id=self._journal.session_id)
        async for entry in self.read_entries(transcript.problems):
            transcript.add(entry)
        return transcript

    async def get_tree(self) -> list[TreeNode]:
        """The roots of the tree with everything that follows them, and the labels.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
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
        """The bookmark of an entry; None when it has none.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        return (await self.get_transcript()).labels.get(entry_id)


def _add_turn(unit: Unit, messages: Sequence[Message]) -> None:
    """Add messages that are one turn."""
    for place, message in enumerate(messages):
        unit.add_message(message, continues=place > 0)
