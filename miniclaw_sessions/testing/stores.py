"""The promises of `stores.base`, as checks that any store must pass.

    @pytest.mark.parametrize("check", STORE_CHECKS)
    async def test_my_store(check, tmp_path):
        path = tmp_path / "store"
        await check(StoreMaker(new=lambda: MyStore(path), reopen=lambda closed: MyStore(path)))

or, all at once, `await check_store(...)`. A check that fails raises AssertionError with the promise that is broken.
"""

from __future__ import annotations

from collections.abc import Iterable

import anyio
import anyio.lowlevel

from miniclaw_sessions.core.stores.base import Append, SessionHead, Store, StoredEntry, StoredHead
from miniclaw_sessions.errors import StoreConflict
from miniclaw_sessions.testing.searching import SEARCH_CHECKS
from miniclaw_sessions.testing.store_kit import (
    Reopen,
    StoreCheck,
    StoreFactory,
    StoreMaker,
    sample_entries,
    sample_entry,
    sample_head,
)

_MANY = 1_200
"""More sessions than a store is likely to read at a time."""


async def check_store(factory: StoreFactory, *, reopen: Reopen | None = None) -> None:
    """Prove every promise of the contract over one implementation.

    Args:
        factory: makes an empty store; called once per check.
        reopen: makes a store of what a closed one left; None when it forgets.

    Raises:
        AssertionError: a promise is broken; the text says which.
    """
    for check in (*STORE_CHECKS, *SEARCH_CHECKS):
        await check(StoreMaker(factory, reopen))


# --- the checks ------------------------------------------------------------------------------------------------------


async def an_unknown_session_is_absent(stores: StoreMaker) -> None:
    """Reading what does not exist gives nothing, deleting it does nothing."""
    async with stores.new() as store:
        _expect([stored async for stored in store.heads()] == [], "a new store has no sessions")
        _expect(await store.session_ids() == [], "a new store has no ids of sessions")
        _expect(await store.head("telegram_1") is None, "an unknown session has no head")
        _expect(await store.read("telegram_1") == [], "an unknown session has no entries")
        _expect(await store.read_newest("telegram_1", 50) == [], "an unknown session has no newest entries")
        _expect(await store.delete("telegram_1") is False, "deleting an unknown session finds none")
        _expect(await store.append([]) == [], "appending nothing succeeds")
        _expect(await store.check() == [], "a new store is sound")


async def entries_come_back_in_order(stores: StoreMaker) -> None:
    """Entries are read as they were given, all of them or the requested part."""
    async with stores.new() as store:
        entries = sample_entries(1, 7)
        await _append(store, sample_head(), entries[:3])
        await _append(store, sample_head(), entries[3:4])
        await _append(store, sample_head(), entries[4:])
        read, newest = store.read, store.read_newest
        _expect(await read("telegram_1") == entries, "all entries come back, in order")
        _expect(await read("telegram_1", after=3) == entries[3:], "`after` leaves out what is at or before it")
        _expect(await read("telegram_1", limit=2) == entries[:2], "`limit` gives the oldest")
        _expect(await read("telegram_1", after=2, limit=3) == entries[2:5], "`after` and `limit` go together")
        _expect(await read("telegram_1", after=7) == [], "there is nothing after the newest")
        _expect(await read("telegram_1", limit=0) == [], "a limit of 0 gives nothing")
        _expect(await newest("telegram_1", 3) == entries[4:], "the newest entries come oldest first")
        _expect(await newest("telegram_1", 50) == entries, "fewer than `limit` come as they are")
        _expect(await newest("telegram_1", 0) == [], "none of the newest are none")
        for entry in entries:
            _expect(await store.find("telegram_1", entry.entry_id) == entry, "an entry is found by its id")
        _expect(await store.find("telegram_1", "entry-8") is None, "an unknown id is not found")
        _expect(await store.find("telegram_2", "entry-1") is None, "an id is looked for in its own session only")
        _expect(await store.check() == [], "a store that was only appended to is sound")


async def a_head_comes_back_as_it_was_given(stores: StoreMaker) -> None:
    """Key, incarnation, time of creation and newest sequence; also for a session that has no entries yet."""
    async with stores.new() as store:
        await _append(store, sample_head(1), sample_entries(1, 3))
        await _append(store, sample_head(2), [])
        await _append(store, sample_head(1), sample_entries(4, 4))
        _expect(await store.head("telegram_1") == StoredHead(sample_head(1), 4), "a head has the newest sequence")
        _expect(await store.head("telegram_2") == StoredHead(sample_head(2), 0), "a session may have no entries")
        heads = [stored async for stored in store.heads()]
        _expect(heads == [StoredHead(sample_head(1), 4), StoredHead(sample_head(2), 0)], "all sessions are listed")


async def names_from_strangers_do_not_mix(stores: StoreMaker) -> None:
    """Sessions whose names look alike, or are malicious, are kept apart, and listed in order."""
    chat_ids = ["a", "A", "a_b", "a%", "ä", "a\u0308", "'; DROP TABLE sessions; --", "../..", "x" * 3000, "a\u2028b"]
    heads = [sample_head(chat_id) for chat_id in chat_ids]
    async with stores.new() as store:
        outcomes = await store.append([Append(head, sample_entries(1, 1, prefix=head.session_id)) for head in heads])
        _expect(outcomes == [None] * len(heads), "every session is acknowledged")
        for head in heads:
            _expect(await store.head(head.session_id) == StoredHead(head, 1), "every session keeps its own name")
            _expect(
                await store.read(head.session_id) == sample_entries(1, 1, prefix=head.session_id),
                "every session keeps its own entries",
            )
        listed = [stored.head.session_id async for stored in store.heads()]
        _expect(listed == sorted(head.session_id for head in heads), "sessions are listed in order of session_id")
        _expect(await store.session_ids() == listed, "their ids are listed in the same order")


async def bytes_come_back_as_they_were(stores: StoreMaker) -> None:
    """Line separators, NULs and megabytes are ordinary content."""
    texts = ["", "\n\r\u2028\u0085\x1c\0", "e\u0301 ä 你好 👩‍👩‍👧", "x" * 2_000_000]
    entries = [sample_entry(sequence, f"entry-{sequence}", text) for sequence, text in enumerate(texts, 1)]
    async with stores.new() as store:
        await _append(store, sample_head(), entries)
        _expect(await store.read("telegram_1") == entries, "entries come back byte for byte")
        _expect(await store.check() == [], "unusual content is sound")


async def appending_again_changes_nothing(stores: StoreMaker) -> None:
    """The same entries, alone or with newer ones, may be appended again: after a lost answer the outcome is unknown."""
    entries = sample_entries(1, 5)
    async with stores.new() as store:
        await _append(store, sample_head(), entries[:3])
        await _append(store, sample_head(), entries[:3])
        await _append(store, sample_head(), entries[1:2])
        _expect(await store.read("telegram_1") == entries[:3], "appending again adds nothing")
        await _append(store, sample_head(), entries[1:])
        _expect(await store.read("telegram_1") == entries, "of an overlapping append only the new part is added")


async def a_taken_place_is_never_overwritten(stores: StoreMaker) -> None:
    """Another entry at a taken sequence is a conflict, and nothing of its append is added."""
    entries = sample_entries(1, 3)
    async with stores.new() as store:
        await _append(store, sample_head(), entries)
        for other in (
            sample_entries(3, 3, prefix="other"),
            sample_entries(1, 1, prefix="other"),
            sample_entries(3, 5, prefix="other"),
            [entries[1], *sample_entries(3, 4, prefix="other")],
        ):
            (outcome,) = await store.append([Append(sample_head(), other)])
            _expect(isinstance(outcome, StoreConflict), "another entry at a taken sequence is a conflict")
            _expect(await store.read("telegram_1") == entries, "a conflict adds nothing and overwrites nothing")
        await _append(store, sample_head(), sample_entries(4, 4))


async def sequences_follow_each_other(stores: StoreMaker) -> None:
    """From 1 on; a gap is refused. After a known loss it is allowed, reported, and never filled."""
    async with stores.new() as store:
        for wrong in (sample_entries(2, 2) + sample_entries(1, 1), sample_entries(1, 1) * 2, sample_entries(0, 1)):
            (outcome,) = await store.append([Append(sample_head(), wrong)])
            _expect(isinstance(outcome, StoreConflict), "sequences that do not ascend from 1 are refused")
        for gap in (sample_entries(5, 6), sample_entries(1, 2) + sample_entries(4, 4)):
            (outcome,) = await store.append([Append(sample_head(), gap)])
            _expect(isinstance(outcome, StoreConflict), "a gap in a new session is refused")
        _expect(await store.head("telegram_1") is None, "a refused append creates no session")
        await _append(store, sample_head(2), sample_entries(1, 3))
        for gap in (sample_entries(5, 5), sample_entries(2, 4) + sample_entries(6, 6)):
            (outcome,) = await store.append([Append(sample_head(2), gap)])
            _expect(isinstance(outcome, StoreConflict), "a gap behind what is stored is refused")
        _expect(await store.read("telegram_2") == sample_entries(1, 3), "of an append with a gap nothing is added")
        lost = [Append(sample_head(), sample_entries(5, 6), after_loss=True)]
        _expect(await store.append(lost) == [None], "after a loss a session may begin later than 1")
        _expect(await store.read("telegram_1") == sample_entries(5, 6), "what was not lost comes back")
        (outcome,) = await store.append([Append(sample_head(), sample_entries(4, 4))])
        _expect(isinstance(outcome, StoreConflict), "a hole is not filled: order is the order of appending")
        _expect(len(await store.check()) == 1, "a hole is reported")


async def another_incarnation_is_refused(stores: StoreMaker) -> None:
    """A session that was deleted and made again accepts no entries for the former one."""
    async with stores.new() as store:
        await _append(store, sample_head(incarnation="first"), sample_entries(1, 2))
        (outcome,) = await store.append([Append(sample_head(incarnation="second"), sample_entries(3, 3))])
        _expect(isinstance(outcome, StoreConflict), "another incarnation is a conflict")
        _expect(await store.read("telegram_1") == sample_entries(1, 2), "another incarnation adds nothing")


async def one_conflict_does_not_fail_its_neighbours(stores: StoreMaker) -> None:
    """In one call every session has its own outcome, in the order of the call."""
    async with stores.new() as store:
        await _append(store, sample_head(2), sample_entries(1, 1))
        outcomes = await store.append(
            [
                Append(sample_head(1), sample_entries(1, 2)),
                Append(sample_head(2), sample_entries(1, 2, prefix="other")),
                Append(sample_head(3), sample_entries(1, 2)),
            ]
        )
        _expect([type(outcome) for outcome in outcomes] == [type(None), StoreConflict, type(None)], "one outcome each")
        for chat_id, entries in ((1, sample_entries(1, 2)), (2, sample_entries(1, 1)), (3, sample_entries(1, 2))):
            _expect(await store.read(f"telegram_{chat_id}") == entries, "a conflict concerns its own session only")


async def an_entry_is_found_by_its_idempotency_key(stores: StoreMaker) -> None:
    """A key finds its oldest entry in its own session, however many entries came since; also after reopening."""
    odd = ["", "a b", 'quote " and \\', "ä你\u2028", "x" * 512, "%_", "1"]
    keyed = [sample_entry(sequence, f"entry-{sequence}", "keyed", key) for sequence, key in enumerate(odd, 1)]
    again = sample_entry(len(odd) + 1, "again", "keyed", "a b")
    others = sample_entries(len(odd) + 2, _MANY)

    async def expect_found(store: Store) -> None:
        for key, entry in zip(odd, keyed, strict=True):
            found = await store.find_by_idempotency_key("telegram_1", key)
            _expect(found == entry, "an entry is found by its idempotency key, the oldest one that has it")
            _expect(await store.find_by_idempotency_key("telegram_2", key) is None, "a key counts in its session only")
        for unknown in ("a", "A B", "entry-1", "telegram_1"):
            _expect(await store.find_by_idempotency_key("telegram_1", unknown) is None, "an unknown key is not found")
        _expect(await store.find_by_idempotency_key("telegram_3", "1") is None, "an unknown session has no keys")

    async with stores.new() as store:
        await _append(store, sample_head(1), [*keyed, again])
        await _append(store, sample_head(2), [sample_entry(1, "entry-1", "keyed", "another")])
        await expect_found(store)
        await _append(store, sample_head(1), others)
        await expect_found(store)
        _expect(await store.read("telegram_1", limit=1) == keyed[:1], "reading gives the key back")
        _expect(await store.check() == [], "keys are sound")
        await store.delete("telegram_2")
        found = await store.find_by_idempotency_key("telegram_2", "another")
        _expect(found is None, "the keys of a deleted session are gone")
        await _append(store, sample_head(2, incarnation="second"), [sample_entry(1, "other", "other", "another")])
        found = await store.find_by_idempotency_key("telegram_2", "another")
        _expect(found is not None and found.entry_id == "other", "the keys of a deleted session are free")
    if stores.reopen is not None:
        async with stores.reopen(store) as store:
            await expect_found(store)


async def a_deleted_session_is_gone(stores: StoreMaker) -> None:
    """With all its entries and for good; its neighbours stay, and its name may be used again, from 1."""
    async with stores.new() as store:
        for chat_id in (1, 2):
            await _append(store, sample_head(chat_id), sample_entries(1, 3))
        _expect(await store.delete("telegram_1") is True, "deleting says that there was a session")
        _expect(await store.delete("telegram_1") is False, "deleting again finds none")
        _expect(await store.head("telegram_1") is None, "a deleted session has no head")
        _expect(await store.read("telegram_1") == [], "a deleted session has no entries")
        _expect(await store.read("telegram_2") == sample_entries(1, 3), "deleting leaves the neighbours alone")
        await _append(store, sample_head(1, incarnation="second"), sample_entries(1, 1, prefix="other"))
        _expect(
            await store.read("telegram_1") == sample_entries(1, 1, prefix="other"),
            "the name of a deleted session is free",
        )
        await store.delete("telegram_2")
    if stores.reopen is not None:
        async with stores.reopen(store) as store:
            heads = [stored async for stored in store.heads()]
            _expect(heads == [StoredHead(sample_head(1, incarnation="second"), 1)], "a deletion survives reopening")


async def many_sessions_are_listed_in_order(stores: StoreMaker) -> None:
    """More sessions than are read at once come all, each once, in order of session_id."""
    heads = [sample_head(number) for number in range(_MANY)]
    async with stores.new() as store:
        outcomes = await store.append([Append(head, sample_entries(1, 1 + n % 3)) for n, head in enumerate(heads)])
        _expect(outcomes == [None] * _MANY, "one call may append to many sessions")
        expected = sorted((head.session_id, 1 + number % 3) for number, head in enumerate(heads))
        listed = [(stored.head.session_id, stored.last_sequence) async for stored in store.heads()]
        _expect(listed == expected, "every session is listed once, in order, with its newest sequence")


async def calls_may_overlap(stores: StoreMaker) -> None:
    """Appending, reading and listing at the same time lose and mix nothing."""
    async with stores.new() as store:

        async def converse(chat_id: int) -> None:
            for sequence in range(1, 11):
                await _append(store, sample_head(chat_id), sample_entries(sequence, sequence, prefix=f"{chat_id}"))
                read = await store.read_newest(f"telegram_{chat_id}", 100)
                _expect(len(read) == sequence, "what was acknowledged is read at once")
            async for _ in store.heads():
                pass

        async with anyio.create_task_group() as tasks:
            for chat_id in range(10):
                tasks.start_soon(converse, chat_id, name=f"chat {chat_id}")
        for chat_id in range(10):
            entries = sample_entries(1, 10, prefix=f"{chat_id}")
            _expect(await store.read(f"telegram_{chat_id}") == entries, "overlapping calls lose and mix nothing")
        _expect(await store.check() == [], "overlapping calls leave a sound store")


async def a_cancelled_append_is_all_or_nothing(stores: StoreMaker) -> None:
    """An append that is cancelled at any moment is stored whole or not at all, and the session accepts more."""
    async with stores.new() as store:
        for delay in range(8):
            head, entries = sample_head(delay), sample_entries(1, 50)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.append, [Append(head, entries)], name="append")
                for _ in range(delay):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            _expect(len(await store.read(head.session_id)) in (0, 50), "a cancelled append is all or nothing")
            await _append(store, head, entries)
            _expect(await store.read(head.session_id) == entries, "after a cancelled append the store goes on")


async def what_was_acknowledged_survives_reopening(stores: StoreMaker) -> None:
    """Closed and opened again, the store has everything and accepts more; only for stores that remember."""
    if stores.reopen is None:
        return
    async with stores.new() as store:
        await _append(store, sample_head(1), sample_entries(1, 3))
        await _append(store, sample_head(2), [])
    async with stores.reopen(store) as store:
        heads = [stored async for stored in store.heads()]
        _expect(heads == [StoredHead(sample_head(1), 3), StoredHead(sample_head(2), 0)], "sessions survive reopening")
        _expect(await store.read("telegram_1") == sample_entries(1, 3), "entries survive reopening")
        await _append(store, sample_head(1), sample_entries(3, 4))
        (outcome,) = await store.append([Append(sample_head(1), sample_entries(2, 2, prefix="other"))])
        _expect(isinstance(outcome, StoreConflict), "conflicts are found after reopening")
        _expect(await store.read("telegram_1") == sample_entries(1, 4), "appending goes on after reopening")


async def damaged_entries_are_reported(stores: StoreMaker) -> None:
    """`check` names what cannot be read, and what occurs twice, and changes nothing."""
    async with stores.new() as store:
        entries = sample_entries(1, 4)
        entries[1] = StoredEntry(2, "entry-2", b"{not JSON")
        entries[3] = StoredEntry(4, "entry-1", sample_entries(1, 1)[0].encoded)
        await _append(store, sample_head(), entries)
        problems = await store.check()
        _expect(len(problems) == 2, "check says one sentence for each problem")  # noqa: PLR2004 - counted above
        _expect(all("telegram_1" in problem for problem in problems), "a problem names its session")
        _expect(await store.read("telegram_1") == entries, "check changes nothing")


STORE_CHECKS: tuple[StoreCheck, ...] = (
    an_unknown_session_is_absent,
    entries_come_back_in_order,
    a_head_comes_back_as_it_was_given,
    names_from_strangers_do_not_mix,
    bytes_come_back_as_they_were,
    appending_again_changes_nothing,
    a_taken_place_is_never_overwritten,
    sequences_follow_each_other,
    another_incarnation_is_refused,
    one_conflict_does_not_fail_its_neighbours,
    an_entry_is_found_by_its_idempotency_key,
    a_deleted_session_is_gone,
    many_sessions_are_listed_in_order,
    calls_may_overlap,
    a_cancelled_append_is_all_or_nothing,
    what_was_acknowledged_survives_reopening,
    damaged_entries_are_reported,
)
"""Every promise of the contract, each a coroutine function of its own, for stores that keep entries."""


async def _append(store: Store, head: SessionHead, entries: Iterable[StoredEntry]) -> None:
    outcomes = await store.append([Append(head, list(entries))])
    _expect(outcomes == [None], f"an append is acknowledged, not answered with {outcomes}")


def _expect(kept: bool, promise: str) -> None:
    if not kept:
        raise AssertionError(f"the store broke a promise: {promise}")
