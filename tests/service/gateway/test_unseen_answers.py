"""A request that is sent again without a mark: an answer that nobody has seen is handed over, a seen one made again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest
from openai import AsyncOpenAI

from miniclaw_sessions.service.api.openai.unseen import Unseen
from tests.service.gateway.conftest import Served
from tests.service.gateway.test_completions import entries_in, only_session
from tests.service.gateway.test_responses import Recorder, until

pytestmark = pytest.mark.anyio

MODEL = Recorder

ASKED: Any = {"model": "any", "messages": [{"role": "user", "content": "slow"}]}
IN_CHAT: Any = {**ASKED, "metadata": {"session": "web_1"}}


async def given_up(client: AsyncOpenAI, provider: Recorder, served: Served, **wanted: Any) -> None:
    """Ask, and go away while the model answers."""
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            made = await client.chat.completions.create(**wanted)
            if wanted.get("stream"):
                async for chunk in made:
                    assert not chunk.choices[0].delta.content

        tasks.start_soon(ask)
        await provider.slowed.wait()
        tasks.cancel_scope.cancel()
    responses: Any = served.app.context.responses
    await until(lambda: bool(responses.unseen._left))


@pytest.mark.parametrize("wanted", [ASKED, IN_CHAT], ids=["found", "named"])
async def test_an_answer_whose_client_went_away_before_it_is_handed_over_once(
    client: AsyncOpenAI, provider: Recorder, served: Served, wanted: dict[str, Any]
) -> None:
    if wanted is IN_CHAT:
        await served.manager.get_or_create("web", "1")
    await given_up(client, provider, served, **wanted)
    async with anyio.create_task_group() as tasks:
        made: list[Any] = []

        async def again() -> None:
            made.append(await client.chat.completions.create(**wanted))

        tasks.start_soon(again)  # it waits for the answer that is still being made
        await until(lambda: len(served.server.state.tasks) > 0)
        provider.gate.set()
    assert len(provider.asked) == 1
    assert await entries_in(served, await only_session(served)) == 2
    another = await client.chat.completions.create(**wanted)  # it has seen the answer, and wants another one
    assert another.id != made[0].id
    assert len(provider.asked) == 2


async def test_who_has_seen_the_beginning_of_an_answer_gets_another_one(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    stream = await client.chat.completions.create(**ASKED, stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    await stream.close()
    provider.gate.set()
    await served.idle()
    await client.chat.completions.create(**ASKED)
    assert len(provider.asked) == 2


async def test_a_changed_request_is_another_one(client: AsyncOpenAI, provider: Recorder, served: Served) -> None:
    await given_up(client, provider, served, **ASKED)
    provider.gate.set()
    await client.chat.completions.create(**ASKED, temperature=0.5)
    assert len(provider.asked) == 2


def test_an_answer_from_before_this_process_is_taken_for_unseen_once() -> None:
    unseen, same = Unseen(), ("resp_1", "digest")
    just_before = timedelta(seconds=30)
    assert unseen.may_be(*same)
    assert not unseen.is_unseen(*same, "mark", timedelta(0))  # it was made by this process, and sent
    assert not unseen.is_unseen(*same, "mark", timedelta(minutes=2))
    assert unseen.is_unseen(*same, "mark", just_before)
    unseen.given(*same, "mark")
    assert not unseen.is_unseen(*same, "mark", just_before)
    for number in range(2000):
        unseen.left("resp_1", str(number))
    assert not unseen.is_unseen("resp_1", "0", "other", timedelta(0))  # only the newest are remembered
