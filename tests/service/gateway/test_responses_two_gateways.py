"""Responses of two gateways on one database: each finds what the other has made, and goes on from it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest
from msgspec import UNSET
from openai import AsyncOpenAI

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session.turn import Opening, Place
from miniclaw_sessions.core.stores.base import Append, Store
from miniclaw_sessions.core.stores.postgresql.store import PostgreSQLStore
from miniclaw_sessions.errors import StoreConflict, StoreError
from miniclaw_sessions.testing import FaultyStore
from tests.service.gateway.test_conversations import package_at
from tests.service.gateway.test_responses import WEATHER, Recorder
from tests.serving import serving

pytestmark = [pytest.mark.anyio, pytest.mark.proof]


class Watched(FaultyStore):
    """A store that shows when it has refused an append, as where another gateway has the turn."""

    def __init__(self, database: str) -> None:
        super().__init__(PostgreSQLStore(database))
        self.refused = anyio.Event()

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        outcomes = await super().append(appends)
        if any(isinstance(outcome, StoreConflict) for outcome in outcomes):
            self.refused.set()
        return outcomes


@asynccontextmanager
async def gateways(stores: Sequence[str | Store], directory: Path, model: Recorder) -> AsyncIterator[list[AsyncOpenAI]]:
    async with AsyncExitStack() as stack:
        clients = []
        for number, store in enumerate(stores):
            home, socket = directory / f"g{number}", directory / f"s{number}"
            manager = SessionManager(home, store=store, settings=SessionSettings())
            await stack.enter_async_context(manager)
            await stack.enter_async_context(serving(manager, socket, Agent(model, system_prompt="Be kind.")))
            clients.append(await stack.enter_async_context(package_at(socket)))
        yield clients


async def test_a_response_of_one_is_found_and_gone_on_from_by_the_other(postgresql_url: str, short_path: Path) -> None:
    model = Recorder()
    async with gateways([postgresql_url] * 2, short_path, model) as (one, other):
        first = await one.responses.create(input="first")
        assert await other.responses.retrieve(first.id) == first
        called = await other.responses.create(input="call", tools=[WEATHER], previous_response_id=first.id)
        call: Any = called.output[0]
        output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
        answer = await one.responses.create(input=output, previous_response_id=called.id)
        assert answer.output_text == "I see: Be kind. | first | call | rain"
        branch = await one.responses.create(input="branch", previous_response_id=first.id)
        back = await other.responses.create(input="back", previous_response_id=answer.id)
        assert back.output_text == "I see: Be kind. | first | call | rain | back"
        for client in (one, other):
            for response in (first, called, answer, branch, back):
                assert await client.responses.retrieve(response.id) == response


async def test_both_go_on_from_one_response_at_once_and_see_nothing_of_each_other(
    postgresql_url: str, short_path: Path
) -> None:
    model = Recorder()
    async with gateways([postgresql_url] * 2, short_path, model) as clients:
        first = await clients[0].responses.create(input="first")

        async def go_on(client: AsyncOpenAI, name: str) -> None:
            response = first
            for number in range(4):
                wanted = {"input": f"{name}{number}", "previous_response_id": response.id}
                response = await client.responses.create(**wanted)  # type: ignore[call-overload]
            said = " | ".join(f"{name}{number}" for number in range(4))
            assert response.output_text == f"I see: Be kind. | first | {said}"
            assert await client.responses.retrieve(response.id) == response

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(go_on, clients[0], "a")
                tasks.start_soon(go_on, clients[1], "b")


async def test_a_response_that_the_other_makes_is_in_progress_and_a_conversation_waits_for_it(
    postgresql_url: str, short_path: Path
) -> None:
    model, store = Recorder(), Watched(postgresql_url)
    async with gateways([postgresql_url, store], short_path, model) as (one, other):
        made = await one.conversations.create()
        stream = await one.responses.create(input="slow", conversation=made.id, stream=True)
        created: Any = await anext(aiter(stream))
        await model.slowed.wait()
        assert (await other.responses.retrieve(created.response.id)).status == "in_progress"
        answers: list[str] = []

        async def ask() -> None:
            answers.append((await other.responses.create(input="next", conversation=made.id)).output_text)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await store.refused.wait()
                model.gate.set()
                _ = [event async for event in stream]
        assert answers == ["I see: Be kind. | slow | next"]


async def test_a_turn_that_would_go_back_is_placed_again_if_another_gateway_speaks_first(
    postgresql_url: str, short_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(SessionManager(short_path / str(number), store=postgresql_url))
            for number in range(2)
        ]
        session = await one.get_or_create("conv", "1")
        begun, cut = await session.add_messages([Message.user("begun"), Message.user("cut off")])
        elsewhere = await other.find("conv_1")
        asked: list[str | None] = []

        async def place() -> Place:
            asked.append(session.leaf_id)
            if session.leaf_id != cut.id:
                return UNSET
            await elsewhere.add_message(Message.user("said meanwhile"))
            return begun.id

        async with session.turn(Opening([Message.user("again")], at=place)) as turn:
            turn.append(Message.assistant("answer"))
        assert asked[0] == cut.id
        assert len(asked) > 1
        texts = [message.text for message in session.messages()]
        assert texts == ["begun", "cut off", "said meanwhile", "again", "answer"]
        assert [message.text for message in (await other.find("conv_1")).messages()] == texts


async def test_what_two_gateways_delete_at_once_is_all_deleted(postgresql_url: str, short_path: Path) -> None:
    async with gateways([postgresql_url] * 2, short_path, Recorder()) as (one, other):
        kept = await one.responses.create(input="kept")
        for _ in range(5):
            pair = [await one.responses.create(input="x", previous_response_id=kept.id) for _ in range(2)]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one.responses.delete, pair[0].id)
                tasks.start_soon(other.responses.delete, pair[1].id)
            for response in pair:
                with pytest.raises(openai.NotFoundError):
                    await one.responses.retrieve(response.id)
        assert await other.responses.retrieve(kept.id) == kept
