"""A turn: one exchange of a session, exclusive, and in the transcript one unit.

The user's message is committed before the turn body runs, because it is what must never be lost. What the agent
produces is staged and joins the session when the turn ends, in one piece, or step by step where the body says `save`. A
turn that fails keeps the user's message and every complete call-and-result, and closes a call that got no answer with
an error result, so that the history stays legal and shows what happened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import msgspec
from msgspec import UNSET, UnsetType

from miniclaw_sessions.core.history.branch import Branch
from miniclaw_sessions.core.history.pairing import open_calls, with_answers
from miniclaw_sessions.core.history.window import Kept
from miniclaw_sessions.core.persistence.own_task import in_own_task
from miniclaw_sessions.core.protocol.entries import BranchSummary, Entry, EntryBase, LeafMove, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, as_message
from miniclaw_sessions.core.session.home import Ownership
from miniclaw_sessions.core.session.journal import Journal
from miniclaw_sessions.core.session.owner import guarded
from miniclaw_sessions.core.session.tree import SessionTree
from miniclaw_sessions.core.session.unit import Unit
from miniclaw_sessions.errors import (
    DuplicateMessage,
    LeafMoved,
    NothingToResume,
    SessionDeleted,
    SessionsError,
    TurnInProgress,
    TurnTaken,
)

INTERRUPTED = "The tool call was interrupted; it has no result."
"""What stands for the result of a call whose turn broke off."""

ABANDONED = "The user went on without waiting for this tool call; it has no result."
"""What stands for the result of a call that was open when the next message came."""

T = TypeVar("T")

Place = str | UnsetType | None
"""The entry that a turn follows; None: it begins at the root; unset: it follows the leaf, wherever that is."""


class Opening:
    """What a turn begins with, where that is more than one message at the leaf; for one turn.

    It is committed as one unit, under the session's turn, so nothing comes between the place and the new messages.

    Attributes:
        said: what is said. The user's newest message, there or on the branch, is the one that is answered.
        at: the entry that it follows; the leaf moves there. By default the leaf, wherever it is. A function is asked
            while the turn is held, and again if anything is said before it has begun: it sees what it would leave.
        summary: the summary, for the model, of the branch that is left, if the leaf moves; empty: none.
        mark: the type and the data of a custom entry that stands before the messages; None: no such entry. It has the
            turn's idempotency key, unless a user's message does.
        entries: what it became, when the turn is open.
    """

    __slots__ = ("at", "entries", "mark", "said", "summary")

    def __init__(
        self,
        said: Sequence[Message] = (),
        *,
        at: Place | Callable[[], Awaitable[Place]] = UNSET,
        summary: str = "",
        mark: tuple[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.said, self.at, self.summary, self.mark = said, at, summary, mark
        self.entries: list[Entry] = []

    def messages(self, before: Sequence[Message], waiting: Collection[str]) -> Sequence[Message]:  # noqa: ARG002 - for others
        """What is said behind `before`, a window of the branch, with the ids of its calls that wait for an answer.

        A class may make or check it there. What it raises refuses the turn, and nothing has changed.
        """
        return self.said


class _SoleOwner:
    """This process alone answers its sessions: a turn is ours when it has the session's turn lock."""

    __slots__ = ()

    is_contested = False

    async def is_held(self) -> bool:
        """The store says nothing about turns."""
        return False

    async def wait_for_others(self) -> None:
        """There are no others."""

    async def begin(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Begin it."""
        return await begin()

    async def take(self) -> None:
        """It is ours."""

    def include(self, entries: Iterable[EntryBase]) -> None:
        """No other process can take the turn."""

    def check(self) -> None:
        """It is ours."""

    def end_with_next_commit(self) -> None:
        """Only this process waits for its end."""

    async def give_back(self) -> None:
        """As above."""


_SOLE_OWNER = _SoleOwner()


def sole_owner(journal: Journal) -> Ownership:  # noqa: ARG001 - as `Home.ownership`
    """`Home.ownership` where no other process answers the sessions."""
    return _SOLE_OWNER


@guarded(attrgetter("_journal.home.owner"), anywhere=("messages", "entries"))
class Turn:
    """`async with session.turn(message) as turn`: waits, commits `message`, and saves what is staged at the end.

    Entering waits for the turn that is under way, first come first served; the wait can be cancelled. Leaving commits
    even when the task is being cancelled; it does not flush. A message whose idempotency key is known and that has not
    been answered yet (the gateway died in between) is taken up again instead of being appended twice. Without a
    message, the newest one of the user is taken up. Where other processes answer the same sessions, the commit of the
    message takes the turn from all of them, and entering waits for theirs. A new message closes the calls that a former
    turn has left open.

    Raises, on entering:
        NothingToResume: no message was given, and no user's message waits for an answer.
        TurnInProgress: this very task, or one that started it, holds the session's turn; or the turn was used before.
        DuplicateMessage: a message with this idempotency key was answered already, or is long gone.
        StoreUnavailable, StoreFull: the message cannot be acknowledged, or the one to take up cannot be read.
        SessionDeleted, InvalidMessage, UnsavedLimit: as for `Session.append`.

    Raises, on leaving:
        StoreUnavailable, StoreFull: the reply is in memory but not acknowledged.
        TurnTaken: this process stood still so long that another one has taken over; nothing of the reply was accepted.
        UnsavedLimit, SessionDeleted, ManagerClosed: nothing of the reply was accepted.
    """

    def __init__(self, journal: Journal, message: Message | Opening | None, *, idempotency_key: str | None) -> None:
        self.session_id = journal.session_id
        self.is_open = False
        self.is_resumed = False
        """Whether it takes up a message that was there before, and what was said since."""
        self._journal = journal
        self._request = message
        self._idempotency_key = idempotency_key
        self._message: MessageEntry | None = None
        self._said: list[Message] = []
        self._joined: list[Unit] = []
        self._count_joined = 0
        self._taken_up: list[MessageEntry] = []
        self._work: anyio.CancelScope | None = None
        self._ownership = journal.home.ownership(journal)

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return f"<Turn of {self.session_id}, {state}, {len(self.staged)} staged>"

    @property
    def message(self) -> MessageEntry:
        """The user's message, committed."""
        if self._message is None:
            raise TurnInProgress("the turn has not been entered; use `async with session.turn(message)`")
        return self._message

    @property
    def tree(self) -> SessionTree:
        """The session's tree."""
        return SessionTree(self._journal)

    def check(self, message: Message) -> None:
        """Raise unless a message could be appended.

        Raises:
            InvalidMessage: it cannot be stored faithfully, or is too large.
        """
        self._journal.check(message)

    def append(self, message: Message | Mapping[str, Any]) -> None:
        """Stage a message; it joins the session when the turn ends.

        Raises:
            InvalidMessage: it cannot be stored faithfully.
            TurnInProgress: the turn has not begun or is over.
        """
        if not self.is_open:
            raise TurnInProgress("the turn is not open: what it is given now would be lost; open another one")
        message = as_message(message)
        if message.timestamp is None:
            message = msgspec.structs.replace(message, timestamp=self._journal.now())
        self.check(message)
        self._said.append(message)

    async def save(self) -> None:
        """Let what is staged join the session, and return when it is acknowledged; a crash does not lose it any more.

        Raises:
            StoreUnavailable, StoreFull: it has joined the session, and is not acknowledged.
            UnsavedLimit, SessionDeleted, ManagerClosed: it has not joined.
        """
        staged = self.staged
        self._joined.append(self._extend(staged))
        self._count_joined += len(staged)
        await self._saved()

    async def _saved(self) -> None:
        """Return when all that was accepted is acknowledged, in this turn."""
        await self._journal.saved()
        self._ownership.check()

    @property
    def said(self) -> list[Message]:
        """What was appended to this turn, saved or not; the user's message is not among it."""
        return list(self._said)

    def messages(self) -> list[Message]:
        """What has been said: the history, the user's message, and every step of this turn, saved or not.

        A turn may be longer than the window: what the window drops of it is here all the same, because a model that
        forgets its own steps repeats them.
        """
        own = {entry.id: entry for entry in self.entries()}
        others = (kept for kept in self._journal.conversation.window.kept if kept.id not in own)
        both: list[Kept | MessageEntry] = [*others, *own.values()]
        in_order = sorted(both, key=lambda one: one.sequence)
        return [*self._journal.summary(), *(one.message for one in in_order), *self.staged]

    def entries(self) -> list[MessageEntry]:
        """What is saved of this turn and not compacted: the user's message and the steps, oldest first."""
        kept_from = self._journal.kept_from
        saved = (self.message, *self._taken_up, *(one for unit in self._joined for one in _messages(unit.entries)))
        return [entry for entry in saved if entry.sequence >= kept_from]

    @property
    def staged(self) -> list[Message]:
        """What was appended to this turn and has not joined the session yet."""
        return self._said[self._count_joined :]

    # --- stopping ----------------------------------------------------------------------------------------------------

    @contextmanager
    def stoppable(self) -> Iterator[anyio.CancelScope]:
        """Do work that `stop` cancels; the turn itself goes on behind the block. `cancelled_caught` says whether."""
        with anyio.CancelScope() as work:
            self._work = work
            try:
                yield work
            finally:
                self._work = None

    def stop(self) -> bool:
        """Cancel the work of this turn. Returns False if it does nothing that can be stopped."""
        if self._work is None:
            return False
        self._work.cancel()
        return True

    def close_calls(self) -> None:
        """Answer open calls with errors: in their place where they are staged, at the end where they were saved."""
        closed = with_answers(self._said, INTERRUPTED)
        saved = self._count_joined
        if closed[:saved] == self._said[:saved]:
            self._said = closed
        else:  # something that was saved long ago is open in the middle, where nothing can be inserted any more
            self._said[saved:] = with_answers(self.staged, INTERRUPTED)

    # --- entering and leaving ----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._journal.turn_lock.refuse_reentry()
        if self._message is not None:
            raise TurnInProgress("a turn is entered once, its reply would be saved twice; call `session.turn()` again")
        await self._journal.turn_lock.acquire()
        try:
            self._message = await self._ownership.begin(self._begin)
        except BaseException:
            try:
                await in_own_task(self._give_back)()  # or a caller that is cancelled again would leave it to its lease
            finally:
                self._journal.turn_lock.release()
            raise
        self.is_open = True
        self._journal.turn_lock.began(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with anyio.CancelScope(shield=True):  # else a cancelled turn would lose the steps that it has staged
                try:
                    await self._finish(failed=error is not None)
                finally:  # also where they could not be saved: other processes need not wait for the lease
                    await self._ownership.give_back()
        except SessionsError:
            if error is None:
                raise  # else the body's own error says more
        finally:  # last, so that no other turn begins before this one's end is stored
            self.is_open = False
            self._journal.turn_lock.ended()
            self._journal.turn_lock.release()

    async def _give_back(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._ownership.give_back()

    async def _begin(self) -> MessageEntry:
        """Commit the user's message, or take up the one that a former process left unanswered."""
        if self._journal.is_deleted:
            raise SessionDeleted(f"session {self.session_id} was deleted while its turn was waited for")
        if self._request is None:
            await self._ownership.take()
            return await self._take_up()
        key = self._idempotency_key
        known = await self._journal.find_by_key(key) if key is not None else None
        if known is None:
            if isinstance(self._request, Opening):
                return await self._open(self._request)
            return await self._ask(self._request)
        await self._journal.saved()
        await self._ownership.take()
        if not await self._is_unanswered(known):
            raise DuplicateMessage(self.session_id, key or "", known.id)
        return await self._take_up()

    async def _ask(self, request: Message) -> MessageEntry:
        """Commit the user's message, and before it what closes the calls that a former turn has left open.

        Behind it, their results would stand in the wrong place, and a crash could come between. All or nothing is
        accepted: a turn that is refused must leave a call open that a person may still agree to.
        """
        journal = self._journal
        await journal.home.committer.check_store()
        unit = Unit(journal)
        for call in open_calls([*journal.summary(), *journal.conversation.window.newest_step()]):
            unit.add_message(Message.tool_result(call, ABANDONED, is_error=True), continues=True)
        entry = unit.add_message(request, idempotency_key=self._idempotency_key, continues=False)
        self._ownership.include(unit.entries)
        unit.accept()
        await self._saved()
        stored = unit.as_stored(entry)
        if stored.id != entry.id:  # another process was given the same message, and answers it
            raise TurnTaken(self.session_id)
        return stored

    async def _open(self, opening: Opening) -> MessageEntry:
        """Commit what the turn begins with, in its place, and find the message that is answered."""
        journal = self._journal
        await journal.home.committer.check_store()
        branch, target, waiting, moves = await self._place(opening.at)
        before = branch.messages()
        left = [call for call in open_calls(before) if call.id not in waiting]
        closing = [Message.tool_result(call, ABANDONED, is_error=True) for call in left]
        said = opening.messages([*before, *closing], waiting)
        unit = Unit(journal)  # nothing is waited for from here on, until it is accepted
        if moves:
            target_id, place = (None, None) if target is None else (target.id, target.sequence)
            unit.add(LeafMove, target_id=target_id, target_sequence=place)
            if opening.summary:
                unit.add(BranchSummary, summary=opening.summary, from_id=journal.conversation.state.leaf_id or "root")
        for message in closing:
            unit.add_message(message, continues=True)
        key_of_message = self._idempotency_key if said and said[-1].is_user else None
        if opening.mark is not None:
            unit.add_custom(*opening.mark, idempotency_key=None if key_of_message else self._idempotency_key)
        for message in said:
            unit.add_message(message, idempotency_key=key_of_message if message is said[-1] else None)
        self._ownership.include(unit.entries)
        leaf_id = journal.conversation.state.leaf_id
        unit.accept(if_leaf=(leaf_id or "") if moves and callable(opening.at) else None, branch=branch)
        earlier = [(entry, journal.queue.receipt(entry.id)) for entry in _messages(branch.entries)]
        await self._saved()
        try:
            await unit.saved()
        except LeafMoved as error:  # another process said something that it would leave: it is placed again
            raise TurnTaken(self.session_id) from error
        opening.entries = unit.entries
        before_it = [receipt.final(entry) for entry, receipt in earlier if not receipt.is_given_up]
        path = [*before_it, *_messages(unit.entries)]
        self.is_resumed = True
        return self._beginning_of(path, otherwise=len(path) - 1)

    async def _place(
        self, wanted: Place | Callable[[], Awaitable[Place]]
    ) -> tuple[Branch, Entry | None, Collection[str], bool]:
        """What a window shows of the branch that the turn follows, its last entry, what waits there, and if to move."""
        journal = self._journal
        while True:
            leaf_id = journal.conversation.state.leaf_id
            entry_id = await wanted() if callable(wanted) else wanted
            at = leaf_id if isinstance(entry_id, UnsetType) else entry_id
            # where others may be first, what has a place of its own says so: else it would follow what they have said
            moves = at != leaf_id or (self._ownership.is_contested and entry_id is not UNSET)
            target = None if at is None else await journal.reader.get(at)
            waiting: Collection[str] = () if at is None else await self.tree.get_waiting(at)
            branch = await journal.reader.window_at(target) if moves else None
            if leaf_id == journal.conversation.state.leaf_id:  # else another entry came meanwhile
                return branch or journal.conversation.branch(), target, waiting, moves

    def _extend(self, messages: Sequence[Message]) -> Unit:
        """Append messages that belong to this turn, as one unit."""
        unit = Unit(self._journal)
        for message in messages:
            unit.add_message(message, continues=True)
        self._ownership.include(unit.entries)
        unit.accept()
        return unit

    async def _is_unanswered(self, known: MessageEntry) -> bool:
        """Whether nothing follows what a turn began with but steps of that turn, and no reply among them."""
        async for entry in self.tree.walk():
            if entry.id == known.id:
                return True
            if isinstance(entry, MessageEntry) and (begins_turn(entry) or is_reply(entry.message)):
                return False
        return False

    async def _take_up(self) -> MessageEntry:
        """The user's newest message, and what was said since: the window may hold no more than the end of it."""
        path = _messages((await self._journal.reader.branch(max_tokens=1)).entries)
        if not any(map(begins_turn, path)):  # it is compacted
            path = _messages(await self.tree.get_branch())
        self.is_resumed = True
        return self._beginning_of(path)

    def _beginning_of(self, path: Sequence[MessageEntry], *, otherwise: int = -1) -> MessageEntry:
        """The newest message of a user; what follows it is taken up."""
        place = next((place for place in reversed(range(len(path))) if begins_turn(path[place])), otherwise)
        if place < 0:
            raise NothingToResume(f"session {self.session_id} has no message of a user that could be answered")
        self._taken_up = list(path[place + 1 :])
        return path[place]

    async def _finish(self, *, failed: bool) -> None:
        if failed:
            self.close_calls()
        self._journal.checkpoint.touch()
        if self.staged:
            self._ownership.end_with_next_commit()
        await self.save()


def begins_turn(entry: MessageEntry) -> bool:
    """Whether a user said it, and not a hook in a user's name."""
    return entry.message.is_user and not entry.continues


def is_reply(message: Message) -> bool:
    """Whether a turn ends with it."""
    return message.is_assistant and not message.tool_calls


def _messages(path: Sequence[Entry]) -> list[MessageEntry]:
    return [entry for entry in path if isinstance(entry, MessageEntry)]
