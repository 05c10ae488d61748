"""Transcripts that are damaged in the store: reported, never walked in a circle, and the rest can be read."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from miniclaw_sessions.core.protocol.encoding import encode_entry
from miniclaw_sessions.core.protocol.entries import Entry, LeafMove, MessageEntry, SessionInfo
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.stores.base import Append, SessionHead, StoredEntry
from miniclaw_sessions.errors import (
    InvalidMessage,
)
from miniclaw_sessions.testing import FakeClock
from tests.core.session.bench import Bench, say, told_by
from tests.legality import is_legal
from tests.texts import texts_of

pytestmark = pytest.mark.anyio


class Damaged:
    """A transcript that is put into the store by hand, entry by entry."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.clock = FakeClock()
        self.stored: list[StoredEntry] = []

    def say(self, entry_id: str, parent_id: str | None, **fields: Any) -> None:
        message = Message.assistant(entry_id) if len(self.stored) % 2 else Message.user(entry_id)
        self.put(MessageEntry(id=entry_id, parent_id=parent_id, timestamp=self.clock.now(), message=message, **fields))

    def put(self, entry: Entry) -> None:
        self.stored.append(StoredEntry(len(self.stored) + 1, entry.id, encode_entry(entry)))

    def damage(self, entry_id: str) -> None:
        self.stored = [
            StoredEntry(one.sequence, one.entry_id, one.encoded[:20]) if one.entry_id == entry_id else one
            for one in self.stored
        ]

    async def store(self) -> None:
        async with self.bench.opened() as session:
            head = SessionHead("telegram_2", type(session.key)("telegram", "2"), "i", self.clock.now())
        async with self.bench.real as store:
            assert await store.append([Append(head, self.stored)]) == [None]


@pytest.fixture
def damaged(bench: Bench) -> Damaged:
    return Damaged(bench)


async def test_an_entry_that_cannot_be_read_does_not_break_the_branch(damaged: Damaged) -> None:
    """Defect O5: a skipped bad line broke the parent chain, and the whole context failed."""
    for entry_id, parent_id in (("a", None), ("b", "a"), ("c", "b"), ("d", "c")):
        damaged.say(entry_id, parent_id)
    damaged.damage("b")
    await damaged.store()
    async with damaged.bench.opened("2", window=2) as session:
        context = await session.get_context()
        assert texts_of(context.messages) == ["a", "c", "d"]
        assert [problem for problem in context.problems if "b is damaged" in problem]
        assert is_legal(context.messages) == []
        assert texts_of(session.messages()) == ["c", "d"]
        assert [entry.id for entry in await session.tree.get_branch()] == ["a", "c", "d"]
        transcript = await session.tree.get_transcript()
        assert [entry.id for entry in transcript.entries] == ["a", "c", "d"]
        assert len(transcript.problems) == 1
        with pytest.raises(InvalidMessage):
            await session.tree.get_entry("b")
        await say(session, "e")
        await session.tree.branch("c")
        assert texts_of(session.messages()) == ["a", "c"]


async def test_where_a_damaged_entry_began_a_branch_the_other_branch_is_not_taken_for_its_own(
    damaged: Damaged,
) -> None:
    damaged.say("a", None)
    damaged.say("b", "a")
    damaged.say("left", "b")
    damaged.put(LeafMove(id="m", parent_id="left", timestamp=damaged.clock.now(), target_id="a", target_sequence=1))
    damaged.say("c", "a", parent_sequence=1)
    damaged.say("d", "c")
    damaged.damage("c")
    await damaged.store()
    async with damaged.bench.opened("2", window=2) as session:
        assert [entry.id for entry in await session.tree.get_branch()] == ["a", "d"]
        assert texts_of((await session.get_context()).messages) == ["a", "d"]


async def test_a_damaged_move_of_the_leaf_does_not_mix_two_branches(damaged: Damaged) -> None:
    damaged.say("a", None)
    damaged.say("b", "a")
    damaged.say("left", "b")
    damaged.put(LeafMove(id="m", parent_id="left", timestamp=damaged.clock.now(), target_id="a", target_sequence=1))
    damaged.say("c", "a", parent_sequence=1)
    damaged.damage("m")
    await damaged.store()
    async with damaged.bench.opened("2") as session:
        assert texts_of(session.messages()) == await told_by(session) == ["a", "c"]


async def test_an_entry_whose_parent_is_missing_is_all_there_is(damaged: Damaged) -> None:
    damaged.say("a", None)
    damaged.say("b", "a")
    damaged.say("orphan", "nobody")
    damaged.say("child", "orphan")
    await damaged.store()
    async with damaged.bench.opened("2", window=2) as session:
        assert [entry.id for entry in await session.tree.get_branch()] == ["orphan", "child"]
        transcript = await session.tree.get_transcript()
        assert [entry.id for entry in transcript.roots] == ["a", "orphan"]
        assert len(transcript.problems) == 1


@pytest.mark.parametrize(
    "parents",
    [
        {"a": None, "b": "b", "c": "b"},
        {"a": "c", "b": "a", "c": "b"},
        {"a": "b", "b": "a", "c": "a"},
        {"a": "a", "b": "a", "c": "c"},
        {"a": None, "b": "c", "c": "b"},
    ],
    ids=["self-parent", "cycle of all", "cycle of two", "two self-parents", "parent after its child"],
)
async def test_no_damage_makes_a_walk_run_in_a_circle(damaged: Damaged, parents: dict[str, str | None]) -> None:
    """Defect O6: duplicate or self-referencing ids were accepted, and walked for ever."""
    for entry_id, parent_id in parents.items():
        damaged.say(entry_id, parent_id, parent_sequence=None if parent_id is None else "abc".index(parent_id) + 1)
    await damaged.store()
    with anyio.fail_after(60):
        async with damaged.bench.opened("2", window=2) as session:
            context = await session.get_context()
            assert texts_of(context.messages)[-1] == "c"
            assert is_legal(context.messages) == []
            transcript = await session.tree.get_transcript()
            assert {entry.id for entry in transcript.entries} == {"a", "b", "c"}
            assert transcript.problems
            for entry_id in "abc":
                branch = [entry.id for entry in await session.tree.get_branch(entry_id)]
                assert branch[-1] == entry_id
                assert len(branch) == len(set(branch))
                await session.tree.branch(entry_id)
                assert session.leaf_id == entry_id
            await say(session, "d")


async def test_a_branch_to_an_entry_that_is_missing_shows_nothing_and_loses_nothing(damaged: Damaged) -> None:
    damaged.say("a", None)
    damaged.put(LeafMove(id="m", parent_id="a", timestamp=damaged.clock.now(), target_id="nobody", target_sequence=7))
    await damaged.store()
    async with damaged.bench.opened("2") as session:
        assert session.messages() == []
        context = await session.get_context()
        assert context.messages == []
        await session.tree.branch("a")
        assert await told_by(session) == ["a"]


async def test_a_damaged_entry_of_another_kind_costs_only_itself(damaged: Damaged) -> None:
    damaged.say("a", None)
    damaged.put(SessionInfo(id="t", parent_id="a", timestamp=damaged.clock.now(), name="title"))
    damaged.say("b", "t")
    damaged.damage("t")
    await damaged.store()
    async with damaged.bench.opened("2") as session:
        assert session.title is None
        assert await told_by(session) == ["a", "b"]
