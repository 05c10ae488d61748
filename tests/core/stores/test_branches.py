"""Reading one branch from a store: the path that the tree has, with few reads, whatever is damaged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.core.history.branch import BranchCollector
from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.history.placing import Places
from miniclaw_sessions.core.history.transcript import Transcript
from miniclaw_sessions.core.protocol.encoding import encode_entry
from miniclaw_sessions.core.protocol.entries import METADATA, Custom, Entry, LeafMove, MessageEntry, ModelChange
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.stores import open_store
from miniclaw_sessions.core.stores.base import Append, SessionHead, Store, StoredEntry
from miniclaw_sessions.core.stores.branches import FIRST_PAGE, bring_window_up, read_branch, walk_up
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.core.stores.sqlite.store import SQLiteStore
from miniclaw_sessions.errors import StoreUnavailable
from miniclaw_sessions.testing import FaultyStore

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = SessionKey("telegram", "1")
SESSION = KEY.session_id


@pytest.fixture(params=["memory", "sqlite"])
async def store(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    real: Store = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "sessions.db")
    async with real:
        yield real


def said(entry_id: str, parent_id: str | None, **fields: Any) -> Entry:
    return MessageEntry(id=entry_id, parent_id=parent_id, timestamp=NOW, message=Message.user(entry_id), **fields)


def moved(entry_id: str, parent_id: str | None, target_id: str | None) -> Entry:
    return LeafMove(id=entry_id, parent_id=parent_id, timestamp=NOW, target_id=target_id)


async def put(store: Store, entries: Sequence[Entry], *, places: Places | None = None, damaged: str = "") -> None:
    """Store the entries, each told where its parent stands (`Places`); those that are named come out unreadable."""
    stored = []
    for sequence, entry in enumerate(entries, 1):
        placed = entry if places is None else places.place(entry, sequence)
        encoded = encode_entry(placed)
        stored.append(StoredEntry(sequence, entry.id, encoded[:10] if entry.id in damaged.split() else encoded))
    assert await store.append([Append(SessionHead(SESSION, KEY, "i", NOW), stored)]) == [None]


async def walked(source: Store, entry_id: str, sequence: int = 0) -> tuple[list[str], list[str]]:
    """The path from the root, and what was wrong with it."""
    problems: list[str] = []
    path = [entry.id async for entry in walk_up(source, SESSION, entry_id, sequence, problems)]
    return path[::-1], problems


TREE = [
    said("1", None),
    said("2", "1"),
    said("3", "2"),
    moved("m", "3", "1"),
    said("4", "1"),
    said("5", "4"),
    moved("n", "5", None),
    said("6", None),
]


# --- sound -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_places", [True, False])
async def test_the_path_of_every_entry(store: Store, *, has_places: bool) -> None:
    await put(store, TREE, places=Places() if has_places else None)
    transcript = Transcript(TREE)
    for place, entry in enumerate(TREE, 1):
        if entry.id in transcript:
            expected = [one.id for one in transcript.path(entry.id)]
            for sequence in (place, 0, 99, 1):
                assert await walked(store, entry.id, sequence) == (expected, [])


async def test_an_entry_that_is_not_there_is_told() -> None:
    store = MemoryStore()
    path, problems = await walked(store, "nobody", 3)
    assert path == []
    assert "nobody is missing" in problems[0]


async def test_a_long_branch_costs_few_reads_and_a_short_one_reads_a_page() -> None:
    store = FaultyStore(MemoryStore())
    count = 20_000
    await put(store, [said(str(n), str(n - 1) if n else None) for n in range(count)])
    path, problems = await walked(store, str(count - 1), count)
    assert (len(path), problems) == (count, [])
    assert store.calls["read"] < 40
    assert store.calls["find"] == 0
    before = store.calls["read"]
    collector = BranchCollector(at_most=FIRST_PAGE // 2, needs_compaction=False)
    await read_branch(store, SESSION, str(count - 1), count, collector)
    assert store.calls["read"] == before + 1


async def test_where_a_branch_jumps_no_id_is_looked_for() -> None:
    store = FaultyStore(MemoryStore())
    entries: list[Entry] = [said("root", None)]
    for number in range(50):
        entries += [moved(f"m{number}", entries[-1].id, "root"), said(str(number), "root")]
        entries += [said(f"{number}-{n}", entries[-1].id if n == 0 else f"{number}-{n - 1}") for n in range(5)]
    await put(store, entries, places=Places())
    path, _ = await walked(store, "49-4", len(entries))
    assert path == ["root", "49", *(f"49-{n}" for n in range(5))]
    assert store.calls["find"] == 0
    assert store.calls["read"] <= 2


STEPS = st.lists(st.tuples(st.sampled_from(["say", "say", "say", "move", "metadata"]), st.integers(0, 40)), max_size=40)


@given(STEPS, st.booleans())
async def test_the_path_is_the_trees_whatever_the_tree(steps: list[tuple[str, int]], has_places: bool) -> None:
    entries: list[Entry] = []
    known: list[str] = []
    leaf: str | None = None
    for number, (kind, place) in enumerate(steps):
        if kind == "move":
            target = known[place % len(known)] if known and place else None
            entries.append(moved(f"m{number}", leaf, target))
            leaf = target
        elif kind == "metadata":
            entries.append(Custom(id=f"d{number}", parent_id=leaf, timestamp=NOW, custom_type=METADATA, data={"a": 1}))
        else:
            entries.append(said(str(number), leaf))
            known.append(leaf := str(number))
    store = MemoryStore()
    await put(store, entries, places=Places() if has_places else None)
    transcript = Transcript(entries)
    for entry_id in known:
        assert await walked(store, entry_id) == ([entry.id for entry in transcript.path(entry_id)], [])


# --- damage ----------------------------------------------------------------------------------------------------------


async def test_a_damaged_entry_is_passed_over(store: Store) -> None:
    await put(store, [said("1", None), said("2", "1"), said("3", "2"), said("4", "3")], damaged="2 3")
    path, problems = await walked(store, "4", 4)
    assert path == ["1", "4"]
    assert len(problems) == 2


@pytest.mark.parametrize("damaged", ["1", "1 2", "1 2 3"])
async def test_a_damaged_root_leaves_the_rest(store: Store, damaged: str) -> None:
    await put(store, [said("1", None), said("2", "1"), said("3", "2")], damaged=damaged)
    path, problems = await walked(store, "3", 3)
    assert path == [entry_id for entry_id in "123" if entry_id not in damaged]
    assert len(problems) == len(damaged.split())


async def test_a_damaged_entry_behind_a_move_leads_to_where_the_move_went(store: Store) -> None:
    await put(store, TREE, places=Places(), damaged="4")
    assert (await walked(store, "5", 6))[0] == ["1", "5"]


async def test_a_damaged_entry_behind_a_move_to_the_root_begins_its_branch(store: Store) -> None:
    await put(store, [*TREE, said("7", "6")], places=Places(), damaged="6")
    assert (await walked(store, "7", 9))[0] == ["7"]


async def test_metadata_is_passed_over_with_the_damaged_entry_behind_it(store: Store) -> None:
    free = Custom(id="d", parent_id="1", timestamp=NOW, custom_type=METADATA, data={"a": 1})
    await put(store, [said("1", None), free, said("2", "1"), said("3", "2")], places=Places(), damaged="2")
    assert (await walked(store, "3", 4))[0] == ["1", "3"]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([said("1", "1")], ["1"]),
        ([said("1", "2"), said("2", "1")], ["1", "2"]),
        ([said("1", None), said("2", "3"), said("3", "2")], ["2", "3"]),
        ([said("1", "nobody"), said("2", "1")], ["1", "2"]),
        ([said("1", None), said("2", "1", parent_sequence=2)], ["1", "2"]),
        ([said("1", None), said("2", "1", parent_sequence=10**12)], ["1", "2"]),
        ([said("1", None), said("2", "1", parent_sequence=-5)], ["1", "2"]),
        ([said("1", None), said("2", "1"), said("3", "1", parent_sequence=2)], ["1", "3"]),
    ],
    ids=["itself", "circle", "later", "missing", "its own place", "beyond the end", "below 1", "another's place"],
)
async def test_wrong_parents_never_run_in_a_circle_and_lose_no_more_than_they_must(
    store: Store, entries: list[Entry], expected: list[str]
) -> None:
    await put(store, entries)
    with anyio.fail_after(60):
        path, problems = await walked(store, entries[-1].id)
    assert path == expected
    assert bool(problems) == (entries[0].parent_id is not None or expected[0] != "1")


@given(
    st.lists(
        st.tuples(st.none() | st.integers(0, 9), st.none() | st.integers(-3, 12), st.booleans()),
        min_size=1,
        max_size=10,
    )
)
async def test_any_damage_ends_at_a_root(parents: list[tuple[int | None, int | None, bool]]) -> None:
    """Every walk ends, goes to smaller places only, and begins with the entry that was asked for if it can be read."""
    entries = [
        said(str(n), None if parent is None else str(parent), parent_sequence=place)
        for n, (parent, place, _) in enumerate(parents)
    ]
    damaged = " ".join(str(n) for n, (_, _, is_damaged) in enumerate(parents) if is_damaged)
    store = MemoryStore()
    await put(store, entries, damaged=damaged)
    for entry in entries:
        path, _ = await walked(store, entry.id)
        places = [int(entry_id) for entry_id in path]
        assert places == sorted(set(places))
        assert (entry.id in damaged.split()) != (path[-1:] == [entry.id])


async def test_a_store_that_cannot_be_read_says_so() -> None:
    store = FaultyStore(MemoryStore())
    await put(store, TREE)
    methods: tuple[Literal["read"], Literal["find"]] = ("read", "find")
    for method in methods:
        store.fail(method=method)
        with pytest.raises(StoreUnavailable):
            await walked(store, "5", 6 if method == "read" else 0)
        store.heal()


# --- a conversation's window -----------------------------------------------------------------------------------------


async def test_a_conversation_that_lacks_its_branch_is_brought_up() -> None:
    store = MemoryStore()
    entries = [
        said("1", None),
        ModelChange(id="c", parent_id="1", timestamp=NOW, provider="p", model_id="m"),
        said("2", "c"),
        said("3", "2"),
        moved("m", "3", "2"),
    ]
    await put(store, entries, places=Places())
    conversation = Conversation.new(KEY, incarnation="i", created_at=NOW, capacity=2)
    places = Places()
    for sequence, entry in enumerate(entries, 1):
        conversation.apply(places.place(entry, sequence))
    assert conversation.lacks_branch
    assert await bring_window_up(conversation, store) == []
    assert [entry.id for entry in conversation.window] == ["1", "2"]
    assert (conversation.state.leaf_id, conversation.state.leaf_sequence) == ("2", 3)
    assert conversation.state.metadata == {"provider": "p", "model": "m"}
    assert not conversation.lacks_branch


async def test_a_conversation_that_lacks_nothing_reads_nothing() -> None:
    store = FaultyStore(MemoryStore())
    conversation = Conversation.new(KEY, incarnation="i", created_at=NOW, capacity=2)
    conversation.apply(msgspec.structs.replace(said("1", None), sequence=1))
    assert await bring_window_up(conversation, store) == []
    assert store.calls.total() == 0


def flip_a_bit_of_entry_4(directory: Path, what: bytes) -> None:
    file = next(one for one in directory.rglob("*") if one.is_file() and b'"content":"4"' in one.read_bytes())
    data = bytearray(file.read_bytes())
    data[data.index(what, data.index(b'"id":"4"')) + 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("url", ["sqlite:", "jsonl:"])
@pytest.mark.parametrize("what", [b'"content":"4"', b'"parent_id"', b'"id":"4"'])
async def test_one_damaged_entry_costs_the_branch_only_that_entry(what: bytes, url: str, tmp_path: Path) -> None:
    entries = [said("1", None), said("2", "1"), said("3", "2"), said("4", "2"), said("5", "4"), said("6", "5")]
    async with open_store(url, tmp_path) as store:
        await put(store, entries, places=Places())
    flip_a_bit_of_entry_4(tmp_path, what)
    async with open_store(url, tmp_path) as store:
        path, problems = await walked(store, "6", 6)
        assert [one for one in path if one != "3"] == ["1", "2", "5", "6"]
        assert "3" not in path or what != b'"content":"4"'  # else the entry before it is taken for its parent
        assert len(problems) == 1
