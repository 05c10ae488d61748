"""The newest branch that is followed in memory is at every moment the one that the store would give."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from miniclaw_sessions.agent.assistant import NewestBranch
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.history.branch import Branch, shown_message
from miniclaw_sessions.core.history.compaction import count_by_characters, tokens_of
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message, Role, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.errors import UnsafeCompaction
from miniclaw_sessions.testing import FaultyStore
from tests.agent.conversations import calls, opened
from tests.sampled import sampled

pytestmark = pytest.mark.anyio


@pytest.fixture
async def session(tmp_path: Path) -> AsyncIterator[Session]:
    async with opened(tmp_path, "memory:", SessionSettings(window=6)) as session:
        yield session


def said(branch: Branch) -> list[tuple[str, Message]]:
    return [(entry.id, message) for entry in branch.entries if (message := shown_message(entry)) is not None]


def following(session: Session, max_tokens: int) -> NewestBranch:
    return NewestBranch(session, max_tokens=max_tokens, count=count_by_characters)


class Somebody:
    """Does anything that changes a session's branch."""

    def __init__(self, session: Session, seed: int) -> None:
        self._session = session
        self._chance = random.Random(seed)

    async def act(self) -> None:
        session, chance = self._session, self._chance
        match chance.choices(range(8), [30, 10, 10, 4, 4, 4, 4, 2])[0]:
            case 0:
                cost = Usage(input_tokens=chance.randrange(100)) if chance.random() < 0.3 else None
                session.extend([Message.user("q" * chance.randrange(40)), Message(Role.ASSISTANT, "a", usage=cost)])
            case 1:
                asked = calls(*["echo"] * chance.randrange(1, 9))
                session.extend([asked, *(Message.tool_result(call, "x") for call in asked.tool_calls or ())])
            case 2:
                session.append(Message.user("hurry"))
            case 3:
                await session.tree.append_custom_entry("note")
            case 4 if len(session):
                with suppress(UnsafeCompaction):  # not between a call and its result
                    await session.tree.append_compaction("summary", session.entries()[-1].id)
            case 5 if len(session):
                await session.tree.branch(chance.choice(session.entries()).id)
            case 6:
                await session.tree.branch_with_summary(session.leaf_id, "went elsewhere")
            case 7:
                session.clear()
            case _:
                session.update(title="nothing that is said")


@pytest.mark.parametrize("seed", sampled(range(25), every=5))
async def test_whatever_happens_it_is_what_the_store_would_give(session: Session, seed: int) -> None:
    somebody, followed = Somebody(session, seed), following(session, 100_000)
    for step in range(60):
        await somebody.act()
        if step % 3 != seed % 3:  # not every step is looked at
            continue
        known, fresh = await followed.read(), await session.tree.read_branch()
        assert said(known) == said(fresh)
        assert known.compaction == fresh.compaction
        assert await followed.context_tokens() == tokens_of(fresh.entries)
        budget = step * 2
        newest = await followed.read(budget)
        assert said(newest) == said(fresh)[len(said(fresh)) - len(said(newest)) :]
        assert newest.compaction == fresh.compaction
        tokens = sum(count_by_characters(message) for _, message in said(newest))
        assert tokens >= budget or said(newest) == said(fresh)


async def test_the_store_is_read_once_and_then_for_what_the_window_does_not_tell(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with SessionManager(tmp_path, store=store) as manager:
        session = await manager.get_or_create("telegram", 1)
        followed = following(session, 100_000)
        for number in range(200):
            session.extend([Message.user(f"question {number}"), Message.assistant("answer")])
            assert len((await followed.read()).entries) == 2 * (number + 1)
        assert store.calls["read"] <= 1
        await session.tree.append_compaction("summary", session.entries()[-1].id)
        reads = store.calls["read"]
        assert len(said(await followed.read())) == 1
        assert store.calls["read"] == reads + 1


async def test_what_is_old_is_forgotten_again(session: Session) -> None:
    followed = following(session, 100)
    for number in range(100):
        session.extend([Message.user(f"{number:4}" * 10), Message.assistant("answer")])
        known = await followed.read()
        assert sum(count_by_characters(message) for _, message in said(known)) < 300
        assert said(known)[-1][1].text == "answer"
