"""An agent without a session, with one of its own, and with one for each call."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import pytest

from miniclaw_sessions.agent.agent import Agent, TextDelta, ToolFinished, ToolStarted, TurnFinished
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import ModelError
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.agent.conversations import HELLO, calls, echo, read, tool
from tests.texts import texts

pytestmark = pytest.mark.anyio


async def test_without_a_session_every_call_stands_alone() -> None:
    provider = ScriptedProvider([calls("echo"), "one", "two"])
    agent = Agent(provider, tools=[tool("echo", echo)], system_prompt="be kind")
    assert (await agent.reply(HELLO)).text == "one"
    assert (await agent.reply(Message.user("again"))).text == "two"
    assert [[message.text for message in context] for context in provider.contexts] == [
        ["be kind", "hello"],
        ["be kind", "hello", "", "nothing"],
        ["be kind", "again"],
    ]
    assert agent.session is None


async def test_without_a_session_the_same_events_are_told() -> None:
    events = await read(Agent(ScriptedProvider([calls("echo"), "hi"]), tools=[tool("echo", echo)]).run(HELLO))
    kinds = [type(event) for event in events]
    assert [kind for kind in kinds if kind in (ToolStarted, ToolFinished)] == [ToolStarted, ToolFinished]
    assert (kinds.count(TextDelta), kinds[-1]) == (2, TurnFinished)


async def test_without_a_session_a_failure_carries_what_was_produced() -> None:
    agent = Agent(ScriptedProvider([calls("echo"), RuntimeError()]), tools=[tool("echo", echo)])
    with pytest.raises(ModelError) as caught:
        await agent.reply(HELLO)
    assert [message.role.value for message in caught.value.messages] == ["assistant", "tool_result"]


async def test_calls_without_a_session_do_not_wait_for_each_other() -> None:
    may_end = anyio.Event()
    provider = ScriptedProvider([may_end, "first", "second"])
    agent, replies = Agent(provider), []

    async def ask() -> None:
        replies.append((await agent.reply(HELLO)).text)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await provider.stalled.wait()
        replies.append((await agent.reply(HELLO)).text)
        may_end.set()
    assert replies == ["first", "second"]


async def test_the_sessions_of_calls_and_of_the_agent_are_kept_apart(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        own, other = await manager.get_or_create("cli", "own"), await manager.get_or_create("cli", "other")
        agent = Agent(ScriptedProvider(lambda context: f"{len(context)}"), session=own)
        await agent.reply(Message.user("a"))
        await agent.reply(Message.user("b"), session=other)
        await agent.reply(Message.user("c"))
        assert texts(own) == ["a", "1", "c", "3"]
        assert texts(other) == ["b", "1"]


async def test_an_empty_session_is_a_session(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, store="memory:") as manager:
        own, empty = await manager.get_or_create("cli", "own"), await manager.get_or_create("cli", "empty")
        assert len(empty) == 0
        await Agent(ScriptedProvider(["hi"]), session=own).reply(HELLO, session=empty)
        assert (texts(own), texts(empty)) == ([], ["hello", "hi"])


async def test_one_agent_serves_many_sessions_at_once(tmp_path: Path) -> None:
    agent = Agent(ScriptedProvider(lambda context: f"re: {context[-1].text}"), tools=[tool("echo", echo)])
    async with SessionManager(tmp_path) as manager:
        sessions = [await manager.get_or_create("cli", number) for number in range(20)]
        async with anyio.create_task_group() as tasks:
            for turn in range(3):
                for number, session in enumerate(sessions):
                    tasks.start_soon(partial(agent.reply, Message.user(f"{number}.{turn}"), session=session))
        for number, session in enumerate(sessions):
            said = [(f"{number}.{turn}", f"re: {number}.{turn}") for turn in range(3)]
            assert texts(session) == [text for pair in said for text in pair]


async def test_a_session_that_belongs_to_no_manager_remembers() -> None:
    provider = ScriptedProvider(["hi", "I do"])
    agent = Agent(provider, session=Session.new("memory_1"))
    await agent.reply(HELLO)
    await agent.reply(Message.user("do you remember?"))
    assert [message.text for message in provider.contexts[1]] == ["hello", "hi", "do you remember?"]
