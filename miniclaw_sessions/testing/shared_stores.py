"""The promises of a store that several processes write at the same time (`Store.shared`), as checks.

The checks open the store twice, as two gateways do: `StoreMaker.new` makes an empty one, and `reopen` another one of
the same place while the first is open.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import anyio
import msgspec

from miniclaw_sessions.core.stores.base import (
    Append,
    SessionHead,
    Store,
    StoredEntry,
    StoredHead,
    StoredTurn,
    TurnClaim,
)
from miniclaw_sessions.errors import StoreConflict, StoreError
from miniclaw_sessions.testing.store_kit import StoreCheck, StoreMaker, sample_entries, sample_head

_LONG_S = 3600.0


async def one_of_two_writers_of_a_place_is_refused(stores: StoreMaker) -> None:
    """The second writer of a place gets a conflict, adds nothing, and may go on behind the first one's entries."""
    async with _two(stores) as (one, other):
        await _append(one, sample_head(), sample_entries(1, 2))
        await _append(other, sample_head(), sample_entries(3, 3, prefix="other"))
        (outcome,) = await one.append([Append(sample_head(), sample_entries(3, 4))])
        _expect(isinstance(outcome, StoreConflict), "a place that another process has taken is a conflict")
        await _append(one, sample_head(), sample_entries(4, 4))
        stored = [entry.entry_id for entry in await other.read("telegram_1")]
        _expect(stored == ["entry-1", "entry-2", "other-3", "entry-4"], "each sees what the other has written")


async def two_writers_of_many_sessions_lose_nothing(stores: StoreMaker) -> None:
    """Groups of the same sessions in opposite orders wait for each other, never for ever; each entry is there once."""
    async with _two(stores) as two:
        chats = list(range(20))
        said: set[str] = set()

        async def write(store: Store, name: str, order: Sequence[int]) -> None:
            for turn in range(8):
                wanted = {chat: f"{name}-{turn}-{chat}" for chat in order}
                while wanted:
                    heads = {chat: await store.head(f"telegram_{chat}") for chat in wanted}
                    ends = {chat: 0 if head is None else head.last_sequence for chat, head in heads.items()}
                    outcomes = await store.append([_one(chat, ends[chat] + 1, wanted[chat]) for chat in wanted])
                    for chat, outcome in zip(list(wanted), outcomes, strict=True):
                        _expect(outcome is None or isinstance(outcome, StoreConflict), "a race is only a conflict")
                        if outcome is None:
                            said.add(wanted.pop(chat))

        async with anyio.create_task_group() as tasks:
            for store, name, order in ((two[0], "one", chats), (two[1], "other", chats[::-1])):
                for task in "abc":
                    tasks.start_soon(write, store, f"{name}{task}", order, name=f"writer {name}{task}")
        stored = [entry for chat in chats for entry in await two[0].read(f"telegram_{chat}")]
        _expect(len(stored) == len(said) == 6 * 8 * len(chats), "what two writers were acknowledged is there, once")
        _expect({entry.entry_id for entry in stored} == said, "what two writers were acknowledged is what is there")
        _expect(await two[1].check() == [], "two writers leave a sound store")


async def a_session_that_another_made_is_not_mixed_with_ours(stores: StoreMaker) -> None:
    """Two processes make a session of one name at the same time: one of them has it, and the other is refused."""
    async with _two(stores) as (one, other):
        outcomes: list[StoreError | None] = []

        async def make(store: Store, incarnation: str) -> None:
            head = sample_head(incarnation=incarnation)
            outcomes.extend(await store.append([Append(head, sample_entries(1, 1, prefix=incarnation))]))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(make, one, "first", name="first")
            tasks.start_soon(make, other, "second", name="second")
        _expect(sorted(type(one).__name__ for one in outcomes) == ["NoneType", "StoreConflict"], "one makes a session")
        _expect(len(await one.read("telegram_1")) == 1, "the other one's entry is not in it")


async def a_deleted_session_takes_nothing_more(stores: StoreMaker) -> None:
    """No writer that knew it before brings it back, nor an append at a later place: absence is deletion."""
    async with _two(stores) as (one, other):
        await _append(one, sample_head(), sample_entries(1, 3))
        _expect(await other.delete("telegram_1"), "each may delete what the other has made")
        (outcome,) = await one.append([Append(sample_head(), sample_entries(4, 4))])
        _expect(isinstance(outcome, StoreConflict), "what follows a deleted session is refused")
        _expect(await one.head("telegram_1") is None, "a deleted session does not come back")


async def a_deletion_takes_no_more_than_it_knows(stores: StoreMaker) -> None:
    """A session that others have continued, or made again, is not deleted."""
    async with _two(stores) as (one, other):
        await _append(one, sample_head(), sample_entries(1, 2))
        await _not_deleted(one, StoredHead(sample_head(), 1))
        known = StoredHead(sample_head(), 2)
        _expect(await other.delete("telegram_1", known=known), "what is known is deleted")
        await _append(other, sample_head(incarnation="second"), sample_entries(1, 1, prefix="other"))
        await _not_deleted(one, known)
        _expect(await one.delete("telegram_1"), "a deletion without `known` deletes the session as it is")
        _expect(not await one.delete("telegram_1", known=known), "what is gone is not deleted again")


async def an_idempotency_key_is_taken_once(stores: StoreMaker) -> None:
    """For ever, from any process; the same entry may be sent again, and each session has keys of its own."""
    async with _two(stores) as (one, other):
        keyed = msgspec.structs.replace(sample_entries(1, 1)[0], idempotency_key="key")
        await _append(one, sample_head(1), [keyed])
        await _append(one, sample_head(1), [keyed])
        await _append(one, sample_head(1), sample_entries(2, 400))
        again = msgspec.structs.replace(sample_entries(401, 401)[0], idempotency_key="key")
        (outcome,) = await other.append([Append(sample_head(1), [again])])
        _expect(isinstance(outcome, StoreConflict), "an idempotency key that is taken is refused")
        found = await other.find_by_idempotency_key("telegram_1", "key")
        _expect(found == keyed, "the entry that has a key is found by any process")
        await _append(other, sample_head(2), [keyed])


async def a_turn_has_one_owner(stores: StoreMaker) -> None:
    """While it runs no other process takes it; later it goes to a higher number, and to no lower one."""
    async with _two(stores) as (one, other):
        await _append(one, sample_head(), sample_entries(1, 1), TurnClaim(1, "one", _LONG_S))
        for refused in (TurnClaim(2, "other", _LONG_S), TurnClaim(1, "other", _LONG_S), TurnClaim(0, "one", _LONG_S)):
            await _refused(other, sample_entries(2, 2), refused)
        await _append(one, sample_head(), sample_entries(2, 2), TurnClaim(1, "one", _LONG_S))
        await _append(one, sample_head(), sample_entries(3, 3), TurnClaim(1, "one", 0))
        await _refused(other, sample_entries(4, 4), TurnClaim(1, "other", _LONG_S))
        await _append(other, sample_head(), sample_entries(4, 4), TurnClaim(2, "other", _LONG_S))
        head = await one.head("telegram_1")
        _expect(head is not None and head.turn == StoredTurn(2, "other", is_over=False), "a head has the newest turn")


async def a_turn_is_taken_held_and_given_back_without_a_word(stores: StoreMaker) -> None:
    """An append of no entries claims a turn and changes nothing else; it also prolongs the turn."""
    async with _two(stores) as (one, other):
        await _append(one, sample_head(), sample_entries(1, 3))
        await _append(one, sample_head(), [], TurnClaim(4, "one", _LONG_S))
        await _append(one, sample_head(), [], TurnClaim(4, "one", _LONG_S))
        await _refused(other, [], TurnClaim(5, "other", _LONG_S))
        await _append(one, sample_head(), [], TurnClaim(4, "one", 0))
        head = await other.head("telegram_1")
        _expect(
            head is not None and head.turn == StoredTurn(4, "one", is_over=True), "a turn that is given back is over"
        )
        await _append(other, sample_head(), [], TurnClaim(5, "other", _LONG_S))
        await _refused(one, [], TurnClaim(4, "one", _LONG_S))
        _expect(await one.read("telegram_1") == sample_entries(1, 3), "taking a turn says nothing")


async def an_append_of_a_turn_may_be_sent_again(stores: StoreMaker) -> None:
    """After a lost answer the owner sends it again: it is stored once, and the turn is still the owner's."""
    async with _two(stores) as (one, other):
        for _ in range(2):
            await _append(one, sample_head(), sample_entries(1, 2), TurnClaim(1, "one", _LONG_S))
        for _ in range(2):
            await _append(one, sample_head(), sample_entries(3, 3), TurnClaim(1, "one", 0))
        await _append(other, sample_head(), sample_entries(4, 4), TurnClaim(2, "other", _LONG_S))
        _expect(await one.read("telegram_1") == sample_entries(1, 4), "what is sent again is there once")


async def a_late_write_of_a_former_turn_is_refused(stores: StoreMaker) -> None:
    """A writer that lost its turn while it was paused writes nothing more; without a turn every process may write."""
    async with _two(stores) as (one, other):
        await _append(one, sample_head(), sample_entries(1, 1), TurnClaim(1, "one", 1e-6))
        await _append(other, sample_head(), sample_entries(2, 2), TurnClaim(2, "other", _LONG_S))
        await _refused(one, sample_entries(3, 3), TurnClaim(1, "one", _LONG_S))
        await _append(one, sample_head(), sample_entries(3, 3))
        await _append(other, sample_head(), sample_entries(4, 4), TurnClaim(2, "other", _LONG_S))


async def of_many_who_want_a_turn_one_has_it(stores: StoreMaker) -> None:
    """One of many that ask at the same time gets the turn of a session, new or not."""
    async with _two(stores) as two:
        for sequence in (1, 2):
            taken: list[int] = []

            async def take(number: int, sequence: int = sequence, taken: list[int] = taken) -> None:
                claim = TurnClaim(sequence, f"gateway {number}", 0 if sequence == 1 else _LONG_S)
                entries = sample_entries(sequence, sequence, prefix=f"{number}")
                outcomes = await two[number % 2].append([Append(sample_head(), entries, turn=claim)])
                taken.extend(number for outcome in outcomes if outcome is None)

            async with anyio.create_task_group() as tasks:
                for number in range(16):
                    tasks.start_soon(take, number, name=f"gateway {number}")
            _expect(len(taken) == 1, "of many who want a turn one has it")


SHARED_STORE_CHECKS: tuple[StoreCheck, ...] = (
    one_of_two_writers_of_a_place_is_refused,
    two_writers_of_many_sessions_lose_nothing,
    a_session_that_another_made_is_not_mixed_with_ours,
    a_deleted_session_takes_nothing_more,
    a_deletion_takes_no_more_than_it_knows,
    an_idempotency_key_is_taken_once,
    a_turn_has_one_owner,
    a_turn_is_taken_held_and_given_back_without_a_word,
    an_append_of_a_turn_may_be_sent_again,
    a_late_write_of_a_former_turn_is_refused,
    of_many_who_want_a_turn_one_has_it,
)
"""Every promise of a shared store, in addition to those of every store."""


@asynccontextmanager
async def _two(stores: StoreMaker) -> AsyncIterator[tuple[Store, Store]]:
    if stores.reopen is None:
        raise AssertionError("a shared store is opened twice at the same time: say how, with `reopen`")
    async with stores.new() as one, stores.reopen(one) as other:
        yield one, other


def _one(chat: int, sequence: int, entry_id: str) -> Append:
    (entry,) = sample_entries(sequence, sequence)
    encoded = entry.encoded.replace(entry.entry_id.encode(), entry_id.encode())
    return Append(sample_head(chat), [StoredEntry(sequence, entry_id, encoded)])


async def _append(
    store: Store, head: SessionHead, entries: Iterable[StoredEntry], turn: TurnClaim | None = None
) -> None:
    outcomes = await store.append([Append(head, list(entries), turn=turn)])
    _expect(outcomes == [None], f"an append is acknowledged, not answered with {outcomes}")


async def _refused(store: Store, entries: Sequence[StoredEntry], turn: TurnClaim) -> None:
    (outcome,) = await store.append([Append(sample_head(), entries, turn=turn)])
    _expect(isinstance(outcome, StoreConflict), f"another owner has the turn, so {turn} is refused")


async def _not_deleted(store: Store, known: StoredHead) -> None:
    before = await store.read("telegram_1")
    try:
        await store.delete("telegram_1", known=known)
    except StoreConflict:
        _expect(await store.read("telegram_1") == before, "a deletion that is refused removes nothing")
    else:
        raise AssertionError("the store broke a promise: more is not deleted than is known")


def _expect(kept: bool, promise: str) -> None:
    if not kept:
        raise AssertionError(f"the store broke a promise: {promise}")
