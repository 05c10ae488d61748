"""Conversations over kill -9: what was acknowledged is there, and what is asked again is done once."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import anyio
import pytest

pytest.importorskip("agents")
from agents import Agent, OpenAIConversationsSession, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from tests.service.gateway.daemons import Process
from tests.service.gateway.lossy import lossy
from tests.service.gateway.test_conversations import every, package_at, texts, user

pytestmark = [pytest.mark.anyio, pytest.mark.proof]


async def test_a_conversation_that_was_made_is_there_after_a_kill(short_path: Path) -> None:
    async with Process(short_path) as daemon:
        await daemon.notice("READY=1")
        async with package_at(daemon.socket) as client:
            empty = await client.conversations.create()
            made = await client.conversations.create(items=[user("hello", id="msg_1")], metadata={"a": "b"})
            await client.conversations.items.create(made.id, items=[user("more"), user("and more")])
            items = await every(client, made.id)
            await client.conversations.items.delete(items[1].id, conversation_id=made.id)
        await daemon.killed()
    async with Process(short_path) as daemon:
        await daemon.notice("READY=1")
        async with package_at(daemon.socket) as client:
            assert await client.conversations.retrieve(empty.id) == empty
            assert await client.conversations.retrieve(made.id) == made
            assert await every(client, made.id) == [items[0], items[2]]
            assert await client.conversations.items.retrieve("msg_1", conversation_id=made.id) == items[2]


async def test_a_daemon_that_is_killed_before_its_answer_is_asked_again_and_doubles_nothing(short_path: Path) -> None:
    """The package sends the request again by itself, to the daemon that comes in the place of the killed one."""
    async with (
        Replaced(short_path) as daemon,
        lossy(daemon.socket, is_cut=True) as (address, way),
        package_at(address) as client,
    ):
        made = await client.conversations.create()
        way.on_loss = daemon.kill_and_begin
        batch: list[Any] = [user("one"), {"role": "assistant", "content": "1"}, user("two")]
        with anyio.fail_after(120):
            added = await client.conversations.items.create(made.id, items=batch)
            before = await every(client, made.id, order="asc")
            assert [item.id for item in added.data] == [item.id for item in before]
            assert texts(before) == ["one", "1", "two"]
            await client.conversations.items.delete(before[0].id, conversation_id=made.id)
            assert [item.id for item in await every(client, made.id, order="asc")] == [one.id for one in before[1:]]
            assert (await client.conversations.delete(made.id)).deleted
        assert way.losses == 4


async def test_a_run_of_the_agents_sdk_goes_on_through_a_kill(short_path: Path) -> None:
    """The daemon is killed while a tool runs; neither the run nor the next one notices."""
    async with Replaced(short_path) as daemon, package_at(daemon.socket) as client:

        @function_tool
        async def weather(city: str) -> str:
            """The weather in a city."""
            await daemon.kill_and_begin()
            return f"18 degrees in {city}"

        model = ScriptedModel(
            [
                [function_call("weather", {"city": "Paris"}, call_id="c1")],
                [assistant_message("Mild.")],
                [assistant_message("You asked about Paris.")],
            ]
        )
        agent = Agent(name="assistant", model=model, tools=[weather])
        session = OpenAIConversationsSession(openai_client=client)
        with anyio.fail_after(120):
            result = await Runner.run(agent, "Weather in Paris?", session=session)
            assert result.final_output == "Mild."
            await daemon.kill_and_begin()
            result = await Runner.run(agent, "Where?", session=session)
        assert model.last_call is not None
        heard: Any = model.last_call.input
        assert [item.get("type", "message") for item in heard] == [
            *("message", "function_call", "function_call_output", "message", "message"),
        ]
        assert texts(await every(client, session.session_id, order="asc")) == [
            *("Weather in Paris?", "weather()", "18 degrees in Paris", "Mild.", "Where?", "You asked about Paris."),
        ]


class Replaced:
    """A daemon on a directory, that another one takes the place of when it is killed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._daemons: list[Process] = []

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, *error: object) -> None:
        for daemon in self._daemons:
            await daemon.__aexit__()

    @property
    def socket(self) -> Path:
        return self._daemons[0].socket

    async def kill_and_begin(self) -> None:
        """Kill it, and begin the next."""
        await self._daemons[-1].killed()
        await self._begin()

    async def _begin(self) -> None:
        self._daemons.append(Process(self._directory))
        await self._daemons[-1].__aenter__()
        await self._daemons[-1].notice("READY=1")
