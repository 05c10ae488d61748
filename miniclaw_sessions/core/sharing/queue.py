"""The commit queue of a session of a shared store: its entries may come to stand elsewhere, or be given up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, TypeVar, cast
from weakref import ref

import msgspec

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.persistence.committer import IN_PLACE, CommitQueue, Receipt, Shrunk, bytes_of
from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.core.session.home import Home
from miniclaw_sessions.core.session.journal import Journal
from miniclaw_sessions.core.stores.base import Append, SessionHead, Store, StoredEntry, TurnClaim
from miniclaw_sessions.errors import SessionsError, StoreConflict, StoreError, StoreUnavailable

PATIENCE_S = 10.0
"""How long other processes may keep a session busy before callers get an error.

A server cuts off a process that stalls in a transaction after half of that (`stores.postgresql.server.IDLE_S`).
"""

AGAIN_S = 0.1
"""The pause before a busy session is tried again."""

M = TypeVar("M", bound=Entry)


class Claim:
    """The turn of a session that this process has, or asks for.

    Attributes:
        turn: what every append of the session says about it; with no seconds left it is given back.
        ids: the entries that belong to it: they are stored in this turn or not at all.
        is_held: whether the store has granted it.
        error: why it is not ours, or no longer; None: it is, or may become so.
    """

    __slots__ = ("error", "ids", "is_held", "is_over", "turn")

    def __init__(self, turn: TurnClaim) -> None:
        self.turn = turn
        self.ids: set[str] = set()
        self.is_held = self.is_over = False
        self.error: StoreConflict | None = None

    def granted(self, turn: TurnClaim) -> None:
        """The store has taken an append that said this about the turn; with no seconds left, the turn is over."""
        self.is_held = True
        self.is_over = turn.seconds <= 0

    def end(self) -> None:
        """Let the next append that says something about the turn give it back."""
        self.turn = msgspec.structs.replace(self.turn, seconds=0.0)


class Accepted(Receipt):
    """The receipt of entries that were accepted together: how they stand in the session now, and in the end.

    Attributes:
        entries: each by the id that it was accepted with. Where another process was first with its idempotency key,
            the entry of that process.
        is_fixed: whether they are stored at the places that they were accepted for, or not at all.
        has_one_key: whether the idempotency key of one of them, if no other has one, stands for all of them.
        known: what others have stored with that key before; None of these is stored then.
        given_up: makes the error that says why they are not stored, and never will be.
    """

    __slots__ = ("entries", "given_up", "has_one_key", "is_fixed", "known")

    def __init__(self, *, is_fixed: bool = False, has_one_key: bool = True) -> None:
        self.entries: dict[str, Entry] = {}
        self.is_fixed = is_fixed
        self.has_one_key = has_one_key
        self.known: Entry | None = None
        self.given_up: Callable[[], SessionsError] | None = None

    @property
    def keyed_id(self) -> str | None:
        """The id of the entry whose idempotency key stands for all of them; None: each stands for itself."""
        if not self.has_one_key:
            return None
        keyed = [id_ for id_, entry in self.entries.items() if entry.idempotency_key is not None]
        return keyed[0] if len(keyed) == 1 else None

    @property
    def is_given_up(self) -> bool:
        """Whether they are not stored, and never will be."""
        return self.given_up is not None

    def check(self) -> None:
        """Raise the reason if they were given up."""
        if self.given_up is not None:
            raise self.given_up()

    def final(self, entry: M) -> M:
        """An entry as it stands now; after its acknowledgement, as it is stored. Raises if it was given up."""
        self.check()
        return cast("M", self.entries.get(entry.id, entry))

    def stored(self, entries: list[Entry]) -> list[Entry]:
        """The entries as they stand now, given up or not."""
        return [self.entries.get(entry.id, entry) for entry in entries]


class SharedQueue(CommitQueue):
    """The commit queue of a session whose store other processes write, too.

    The session is in the store before anything is accepted for it: no append makes one.

    Attributes:
        journal: the session's journal, if it is in memory still; weak, or no journal would be freed without the
            collector.
        known_before: how many entries at the front of what waits were found to be stored already, and are not counted
            as acknowledged yet.
        receipts: the receipt of each entry that is not acknowledged, by the entry's id.
        claim: the turn that is open, or requested; None: no turn.
        fence: the highest number of a turn of this session that is known.
    """

    __slots__ = ("_sent_turn", "claim", "fence", "journal", "known_before", "receipts")

    patience_s: ClassVar[float] = PATIENCE_S

    def __init__(self, head: SessionHead, committed: int = 0) -> None:
        super().__init__(head, committed)
        self.journal: ref[Journal] | None = None
        self.known_before = 0
        self.receipts: dict[str, Accepted] = {}
        self.claim: Claim | None = None
        self.fence = 0
        self._sent_turn: TurnClaim | None = None

    # --- what a session asks ---------------------------------------------------------------------------------------

    def track(self, entries: Iterable[Entry], *, is_fixed: bool = False, has_one_key: bool = True) -> Receipt:
        """Note that entries were accepted together; see `CommitQueue.track`."""
        accepted = Accepted(is_fixed=is_fixed, has_one_key=has_one_key)
        for entry in entries:
            accepted.entries[entry.id] = entry
            self.receipts[entry.id] = accepted
        return accepted

    def receipt(self, entry_id: str) -> Receipt:
        """The receipt of an entry of the session; call it before the entry is acknowledged."""
        return self.receipts.get(entry_id, IN_PLACE)

    def final_up_to(self, last_sequence: int) -> int:  # noqa: ARG002 - as where this process alone writes
        """The sequence number up to which entries keep their places: others may be first with all behind it."""
        return self.committed

    def in_place(self, pending: list[StoredEntry]) -> list[StoredEntry]:  # noqa: ARG002 - same
        """Those of the pending entries that keep their places: none of them."""
        return []

    def may_have_more(self, sequence: int) -> bool:  # noqa: ARG002 - same
        """Whether the store may have entries behind a place: always."""
        return True

    # --- what the committer does -----------------------------------------------------------------------------------

    def take(self) -> Append:
        """Send everything that waits, with the claim of the turn."""
        self.sending, self._waiting = self._waiting, None
        self._sent_turn = None if self.claim is None else self.claim.turn
        return Append(self.head, self.sending or [], turn=self._sent_turn, must_exist=True)

    @property
    def sent(self) -> int:
        """How many of the accepted entries are acknowledged, stored or on their way."""
        return super().sent + self.known_before

    def arrived(self, sent: Sequence[StoredEntry]) -> None:
        """What was on its way is in the store, and with it the turn is ours."""
        super().arrived(sent)
        if self.known_before:
            self._settle_known()
        if self._sent_turn is not None and self.claim is not None:
            self.claim.granted(self._sent_turn)
            if self.claim.is_over:
                self.claim = None
        for entry in sent:
            self.receipts.pop(entry.entry_id, None)

    def drop(self) -> int:
        """Forget what waits. Returns how many bytes that was."""
        self.receipts.clear()
        return super().drop()

    # --- when others were first ------------------------------------------------------------------------------------

    def replace(self, head: SessionHead, waiting: list[StoredEntry], *, committed: int) -> Shrunk:
        """Let other entries wait in the place of those that do.

        Args:
            head: whose they are: of two processes that make a session at the same time, one goes on with the other's.
            waiting: the entries that waited, made for other places; without those that are stored or given up.
            committed: where the store ends.
        """
        before = self.waiting
        shrunk = Shrunk(len(before) - len(waiting), bytes_of(before) - bytes_of(waiting))
        self.head, self.committed, self._waiting = head, committed, waiting or None
        self.known_before += shrunk.entries
        if not waiting:
            self._settle_known()
        return shrunk

    def moved(self, entries: Iterable[Entry]) -> None:
        """These entries wait for other places."""
        for entry in entries:
            if (accepted := self.receipts.get(entry.id)) is not None:
                accepted.entries[entry.id] = entry

    def stored(self, entries: Mapping[str, Entry]) -> None:
        """Entries wait no longer: they are stored, or others' entries with the same idempotency key are.

        Args:
            entries: what is stored, by the id that it was accepted with.
        """
        for id_, entry in entries.items():
            if (accepted := self.receipts.pop(id_, None)) is not None:
                accepted.entries[id_] = entry
                if entry.id != id_ == accepted.keyed_id:
                    accepted.known = entry

    def give_up(self, ids: Iterable[str], reason: Callable[[], SessionsError]) -> None:
        """These entries are never stored."""
        for id_ in ids:
            if (accepted := self.receipts.pop(id_, None)) is not None:
                accepted.given_up = reason

    def discard(self, ids: Iterable[str]) -> None:
        """These entries wait no longer."""
        for id_ in ids:
            self.receipts.pop(id_, None)

    def _settle_known(self) -> None:
        self.settled, self.known_before = self.settled + self.known_before, 0


def shared_queue(journal: Journal) -> SharedQueue:
    """The queue of a session of a shared store."""
    return cast("SharedQueue", journal.queue)


def shared_journal(conversation: Conversation, home: Home[Journal]) -> Journal:
    """The journal of a session of a shared store, all of which is stored."""
    journal = Journal(conversation, home, committed=conversation.state.last_sequence, queue=SharedQueue)
    shared_queue(journal).journal = ref(journal)
    return journal


async def append_alone(store: Store, append: Append, clock: Clock) -> StoreError | None:
    """Append to one session beside the committer, and as patiently. Returns the outcome."""
    began = clock.monotonic()
    while True:
        (outcome,) = await store.append([append])
        if not isinstance(outcome, StoreUnavailable) or clock.monotonic() - began >= PATIENCE_S:
            return outcome
        await clock.sleep(clock.jitter(AGAIN_S))
