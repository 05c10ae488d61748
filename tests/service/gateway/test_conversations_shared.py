"""One conversation through two gateways on one database: whichever is asked, the same items, each once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from openai import AsyncOpenAI

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.testing import ScriptedProvider
from tests.service.gateway.test_conversations import every, package_at, texts, user
from tests.serving import serving

pytestmark = [pytest.mark.anyio, pytest.mark.proof]


@asynccontextmanager
async def gateway(url: str, socket: Path) -> AsyncIterator[AsyncOpenAI]:
    async with (
        SessionManager(settings=SessionSettings(store=url)) as manager,
        serving(manager, socket, Agent(ScriptedProvider([]))),
        package_at(socket) as client,
    ):
        yield client


async def test_two_gateways_show_and_change_the_same_conversation(postgresql_url: str, short_path: Path) -> None:
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(gateway(postgresql_url, short_path / name)) for name in "ab"]
        made = await one.conversations.create(items=[user("a", id="msg_a")], metadata={"x": "y"})
        assert await two.conversations.retrieve(made.id) == made
        await two.conversations.items.create(made.id, items=[user("b", id="msg_b"), user("c")])
        items = await every(one, made.id, order="asc")
        assert texts(items) == ["a", "b", "c"]
        assert await every(two, made.id, order="asc") == items

        await one.conversations.items.delete("msg_b", conversation_id=made.id)
        assert texts(await every(two, made.id, order="asc")) == ["a", "c"]
        await two.conversations.items.delete(items[2].id, conversation_id=made.id)
        assert texts(await every(one, made.id, order="asc")) == ["a"]
        await one.conversations.items.create(made.id, items=[user("e")])
        again = await two.conversations.items.create(
            made.id, items=[user("d")], extra_headers={"x-stainless-retry-count": "0"}
        )
        repeated = await one.conversations.items.create(  # the answer was lost with the gateway; this one is asked
            made.id, items=[user("d")], extra_headers={"x-stainless-retry-count": "1"}
        )
        assert texts(await every(two, made.id, order="asc")) == ["a", "e", "d"]
        assert again.data == repeated.data


async def test_items_that_come_by_both_gateways_at_once_are_there_once(postgresql_url: str, short_path: Path) -> None:
    async with AsyncExitStack() as stack:
        both = [await stack.enter_async_context(gateway(postgresql_url, short_path / name)) for name in "ab"]
        made = await both[0].conversations.create()

        async def add(client: AsyncOpenAI, items: list[Any]) -> None:
            await client.conversations.items.create(made.id, items=items)

        async with anyio.create_task_group() as tasks:
            for number in range(6):
                for client in both:
                    tasks.start_soon(add, client, [user(f"{number}", id=f"msg_{number}"), user(f"plain {number}")])
        shown = [await every(client, made.id, order="asc") for client in both]
        assert shown[0] == shown[1]
        said = texts(shown[0])
        assert sorted(text for text in said if "plain" not in text) == [f"{number}" for number in range(6)]
        assert sorted(text for text in said if "plain" in text) == [f"plain {n}" for n in range(6) for _ in range(2)]


async def test_items_with_one_key_that_come_by_both_gateways_are_there_once(
    postgresql_url: str, short_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        both = [await stack.enter_async_context(gateway(postgresql_url, short_path / name)) for name in "ab"]
        made = await both[0].conversations.create(items=[user("before", id="msg_before")])
        replies: dict[int, list[Any]] = {}

        async def add(client: AsyncOpenAI, number: int) -> None:
            items: list[Any] = [
                user("before", id="msg_before"),
                user(f"plain {number}"),
                user("id", id=f"msg_{number}"),
            ]
            items = items if number % 2 else items[:2]
            key = {"Idempotency-Key": f"k{number}"}
            reply = await client.conversations.items.create(made.id, items=items, extra_headers=key)
            replies.setdefault(number, []).append(reply.data)

        async with anyio.create_task_group() as tasks:
            for number in range(12):
                for client in both:
                    tasks.start_soon(add, client, number)
        assert [first == second for first, second in replies.values()] == [True] * 12
        said = [await every(client, made.id, order="asc") for client in both]
        assert said[0] == said[1]
        assert sorted(texts(said[0])) == sorted(["before", *(f"plain {n}" for n in range(12)), *["id"] * 6])
