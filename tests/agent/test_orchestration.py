"""AgentSession: the moves that a person makes in a conversation, and a turn with everything, cancelled anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from miniclaw_sessions.agent.agent import Agent, Generation, Hooks, SuspendTurn
from miniclaw_sessions.agent.assistant import AgentSession
from miniclaw_sessions.agent.events import AgentEvent, ToolFinished, TurnFinished, TurnSuspended
from miniclaw_sessions.core.protocol.entries import BranchSummary, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import (
    ContextOverflow,
    EntryNotFound,
    InvalidMessage,
    NothingToResume,
    TurnInProgress,
)
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.agent.conversations import HELLO, assert_legal, calls, echo, ends_before, opened, read, tool
from tests.agent.small_models import FAILING, SmallModel, compactions, small
from tests.texts import texts

pytestmark = pytest.mark.anyio


# --- going back ------------------------------------------------------------------------------------------------------


async def drawn(session: Session) -> Any:
    """The tree as nested texts, without what is no message and no summary."""

    def shape(nodes: Sequence[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for node in nodes:
            below = shape(node.children)
            if isinstance(node.entry, MessageEntry):
                found[node.entry.message.text] = below
            elif isinstance(node.entry, BranchSummary):
                found[f"({node.entry.summary})"] = below
            else:
                found |= below
        return found

    return shape(await session.tree.get_tree())


async def test_the_newest_message_is_answered_again_on_a_branch_of_its_own(tmp_path: Path) -> None:
    provider = ScriptedProvider(["first", "second", "third", "fourth"])
    async with opened(tmp_path) as session:
        agent_session = small(provider, session, window=10_000)
        await agent_session.reply(Message.user("a"))
        await agent_session.reply(Message.user("b"))
        events = await read(agent_session.retry())
        assert isinstance(events[-1], TurnFinished)
    async with opened(tmp_path) as session:
        await read(small(provider, session, window=10_000).retry())
        assert texts(session) == ["a", "first", "b", "fourth"]
        assert await drawn(session) == {"a": {"first": {"b": {"second": {}, "third": {}, "fourth": {}}}}}
        await assert_legal(session, provider)
    assert [[message.text for message in context] for context in provider.contexts[1:]] == [["a", "first", "b"]] * 3


async def test_a_turn_with_tools_is_tried_again_from_its_beginning(session: Session) -> None:
    provider = ScriptedProvider([calls("echo"), RuntimeError("down"), calls("echo"), "done"])
    agent_session = small(provider, session, window=10_000, tools=[tool("echo", echo)])
    with pytest.raises(Exception, match="RuntimeError"):
        await agent_session.reply(HELLO)
    await read(agent_session.retry())
    assert texts(session) == ["hello", "", "nothing", "done"]
    assert [len(context) for context in provider.contexts] == [1, 3, 1, 3]
    assert session.message_count == 6


async def test_a_message_that_was_compacted_meanwhile_is_answered_again(session: Session) -> None:
    provider = ScriptedProvider(["first", "A summary.", "second"])
    agent_session = small(provider, session, window=10_000, keep_tokens=1)
    await agent_session.reply(HELLO)
    await session.compact(agent_session._summarizer)
    assert "hello" not in texts(session)
    await read(agent_session.retry())
    assert texts(session) == ["hello", "second"]


async def test_there_is_nothing_to_retry_in_an_empty_session(session: Session) -> None:
    with pytest.raises(NothingToResume, match="no message"):
        await read(small(ScriptedProvider(), session, window=10_000).retry())


async def test_a_message_is_said_differently_and_what_followed_stays_in_the_tree(tmp_path: Path) -> None:
    provider = ScriptedProvider(["1", "2", "3", "4"])
    async with opened(tmp_path) as session:
        agent_session = small(provider, session, window=10_000)
        for text in "abc":
            await agent_session.reply(Message.user(text))
        second = session.entries()[2].id
    async with opened(tmp_path) as session:
        agent_session = small(provider, session, window=10_000)
        await read(agent_session.edit_and_resend(second, Message.user("B")))
        assert texts(session) == ["a", "1", "B", "4"]
        assert await drawn(session) == {"a": {"1": {"b": {"2": {"c": {"3": {}}}}, "B": {"4": {}}}}}
        await assert_legal(session, provider)


@pytest.mark.parametrize("summarize", [False, True])
async def test_the_very_first_message_can_be_edited(tmp_path: Path, summarize: bool) -> None:
    provider = ScriptedProvider(["1", *["They said a."] * summarize, "2", "3"])
    async with opened(tmp_path) as session:
        agent_session = small(provider, session, window=10_000)
        await agent_session.reply(Message.user("a"))
        first = session.entries()[0].id
        await read(agent_session.edit_and_resend(first, Message.user("A"), summarize=summarize))
    async with opened(tmp_path) as session:
        assert texts(session)[-2:] == ["A", "2"]
        edited: dict[str, Any] = {"A": {"2": {}}}
        assert await drawn(session) == {"a": {"1": {}}, **({"(They said a.)": edited} if summarize else edited)}
        await small(provider, session, window=10_000).reply(Message.user("and?"))
        await assert_legal(session, provider)
    seen = [message.text for message in provider.contexts[-1]]
    assert seen[-3:] == ["A", "2", "and?"]
    assert len(seen) == 3 + summarize
    assert seen[0].endswith("They said a.") == summarize


@pytest.mark.parametrize("summarize", [False, True])
async def test_an_edit_that_cannot_be_said_leaves_the_conversation_where_it_was(
    tmp_path: Path, summarize: bool
) -> None:
    provider = ScriptedProvider(["1", "2", *["They said a and b."] * summarize, "3"])
    async with opened(tmp_path) as session:
        agent_session = small(provider, session, window=10_000)
        for text in "ab":
            await agent_session.reply(Message.user(text))
        first, leaf_id = session.entries()[0].id, session.leaf_id
        with pytest.raises(InvalidMessage):
            await read(agent_session.edit_and_resend(first, Message.user("x" * 2**24), summarize=summarize))
        assert session.leaf_id == leaf_id
        await agent_session.reply(Message.user("c"))
        assert texts(session) == ["a", "1", "b", "2", "c", "3"]


async def test_the_model_is_told_what_happened_on_the_branch_that_is_left(tmp_path: Path) -> None:
    provider = ScriptedProvider(["1", calls("echo"), "2", "b went nowhere", "3"])
    async with opened(tmp_path) as session:
        agent_session = small(provider, session, window=10_000, tools=[tool("echo", echo)])
        await agent_session.reply(Message.user("a"))
        fork = session.entries()[-1].id
        await agent_session.reply(Message.user("b"))
        await agent_session.branch(fork, summarize=True)
        assert [message.text for message in provider.contexts[3]][1:-1] == ["b", "", "nothing", "2"]
    async with opened(tmp_path) as session:
        await small(provider, session, window=10_000).reply(Message.user("c"))
        assert await drawn(session) == {
            "a": {"1": {"b": {"": {"nothing": {"2": {}}}}, "(b went nowhere)": {"c": {"3": {}}}}}
        }
        await assert_legal(session, provider)
    assert [message.text.rpartition("\n")[2] for message in provider.contexts[-1]] == ["a", "1", "b went nowhere", "c"]


@pytest.mark.parametrize("fails", FAILING, ids=[one.__name__ for one in FAILING])
async def test_a_branch_is_left_although_its_summary_fails(
    session: Session, fails: Callable[[Sequence[Message]], Any]
) -> None:
    agent_session = small(
        ScriptedProvider(["1", "2"]), session, window=10_000, summarizer=fails, compaction_timeout_s=0.01
    )
    await agent_session.reply(Message.user("a"))
    fork = session.entries()[-1].id
    await agent_session.reply(Message.user("b"))
    await agent_session.branch(fork, summarize=True)
    assert texts(session) == ["a", "1"]


async def test_nothing_is_summarized_where_nothing_is_left(session: Session) -> None:
    provider = ScriptedProvider(["1"])
    agent_session = small(provider, session, window=10_000)
    await agent_session.branch(None, summarize=True)
    await agent_session.reply(Message.user("a"))
    await agent_session.branch(session.leaf_id, summarize=True)
    assert len(provider.contexts) == 1
    with pytest.raises(EntryNotFound):
        await agent_session.branch("nowhere")
    with pytest.raises(EntryNotFound):
        await read(agent_session.edit_and_resend("nowhere", HELLO))


@pytest.mark.parametrize("to_root", [True, False])
async def test_going_back_waits_for_the_turn_and_is_refused_within_it(session: Session, to_root: bool) -> None:
    may_end = anyio.Event()
    provider = ScriptedProvider(["1", may_end, calls("back"), "2"])

    async def back(_: dict[str, Any]) -> str:
        with pytest.raises(TurnInProgress):
            await agent_session.branch(target)
        return "refused"

    agent_session = small(provider, session, window=10_000, tools=[tool("back", back)])
    await agent_session.reply(Message.user("a"))
    target = None if to_root else session.entries()[0].id
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent_session.reply, Message.user("b"))
        await provider.stalled.wait()
        tasks.start_soon(agent_session.branch, target)
        await checkpoint()
        assert texts(session) == ["a", "1", "b"]
        may_end.set()
    assert texts(session) == ([] if to_root else ["a"])
    assert await drawn(session) == {"a": {"1": {"b": {"": {"refused": {"2": {}}}}}}}


# --- cancellation ----------------------------------------------------------------------------------------------------


class Slow(Hooks):
    """Takes its time everywhere."""

    async def before_generation(self, generation: Generation) -> None:
        await checkpoint()
        generation.added.append(Message.user("by the way"))

    async def after_generation(self, generation: Generation) -> None:
        del generation
        await checkpoint()

    async def before_tool(self, generation: Generation, call: ToolCall) -> None:
        del generation, call
        await checkpoint()

    async def after_tool(self, generation: Generation, call: ToolCall, result: Message) -> None:
        del generation, call, result
        await checkpoint()


def everything(session: Session) -> tuple[SmallModel, AgentSession]:
    """A turn with hooks, parallel tools, a compaction, an overflow, and in its second half a suspension."""

    def answer(context: list[Message]) -> Message | str:
        results = sum(message.is_tool_result for message in context)
        if "go on" in (message.text for message in context):
            return "next"
        if results == 4 and model.refused == 0:
            model.refused += 1
            raise ContextOverflow("too large")
        said = {message.text for message in context}
        if "you may" in said:
            return "done"
        if results < 4 and not model.summaries:
            return calls("echo", "slow", arguments=f'{{"say": "{"y" * 40}"}}', prefix=f"step{results}-")
        return calls("echo", "ask", prefix=f"last{results}-")

    async def slow(_: dict[str, Any]) -> str:
        for _round in range(3):
            await checkpoint()
        return "slow"

    async def ask(_: dict[str, Any]) -> str:
        await checkpoint()
        raise SuspendTurn("may I?")

    model = SmallModel(answer, window=10_000, tells_usage=False)
    agent = Agent(model, tools=[tool("echo", echo), tool("slow", slow), tool("ask", ask)], hooks=Slow())
    return model, AgentSession(agent, session, context_window=60, reserve_tokens=10, keep_tokens=10)


async def whole_turn(agent_session: AgentSession, events: list[AgentEvent]) -> None:
    """A turn to its end, with every answer that it waits for."""
    async with agent_session.run(HELLO) as told:
        events += [event async for event in told]
    assert isinstance(events[-1], TurnSuspended)
    results = {one.call.id: "you may" for one in events[-1].pending}
    async with agent_session.resume(results=results) as told:
        events += [event async for event in told]


@pytest.mark.proof
async def test_a_cancellation_at_any_moment_of_a_turn_with_everything_leaves_a_legal_session(tmp_path: Path) -> None:
    finished, steps, outcomes = False, 0, set()
    while not finished:
        async with opened(tmp_path / str(steps), "memory:") as session:
            model, agent_session = everything(session)
            events: list[AgentEvent] = []
            finished = await ends_before(steps, partial(whole_turn, agent_session, events))
            assert not session.journal.turn_lock.is_held
            stored = await session.tree.get_branch()
            await compactions(session)
            texts_stored = [one.message.text for one in stored if isinstance(one, MessageEntry)]
            assert texts_stored[:1] in ([], ["hello"])
            finished_tools = [event.result for event in events if isinstance(event, ToolFinished)]
            assert {m.text for m in finished_tools if not m.is_error} <= set(texts_stored)
            await agent_session.reply(Message.user("go on"))
            await assert_legal(session, model)
            assert texts(session)[-2:] != []
            assert texts(session)[-1] == "next"
            outcomes.add((len(texts_stored), model.summaries, bool(events)))
        steps += 1
        assert steps < 1000
    assert max(summaries for _, summaries, _ in outcomes) >= 2
    assert len(outcomes) > 10
