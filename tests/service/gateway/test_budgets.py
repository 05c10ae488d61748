"""A budget that is spent is a typed error over HTTP, before the model is asked; the message is kept."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from openai import AsyncOpenAI

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.budgets import Budgets
from miniclaw_sessions.agent.provider import ModelEvent, Reply, at_level
from miniclaw_sessions.agent.providers.offline import OfflineProvider
from miniclaw_sessions.agent.providers.wrappers import Thinking
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.config import BudgetSettings
from miniclaw_sessions.core.protocol.messages import Message, Role, Usage
from miniclaw_sessions.core.protocol.options import Options
from miniclaw_sessions.service.gateway.responding import _Marking

pytestmark = pytest.mark.anyio


class Second(OfflineProvider):
    """Another one, which says so."""

    name, model = "test", "second"

    def with_options(self, options: Options) -> Second:
        del options
        return self

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        del messages, tools
        yield Reply(Message(Role.ASSISTANT, "I am the second"))


@pytest.fixture
def agent() -> Agent:
    budgets = Budgets(BudgetSettings(unit="tokens", chat_day=100), None)
    return Agent(
        OfflineProvider(),
        budgets=budgets,
        choices={"offline": OfflineProvider(), "second": Thinking(Second(), ["low", "high"])},
    )


async def test_models_are_listed_as_openai_does_and_the_one_that_is_asked_for_responds(served: Any) -> None:
    client = AsyncOpenAI(base_url="http://miniclaw/v1", api_key="none", http_client=served.unix)
    assert [(one.id, one.owned_by, one.to_dict()["thinking_levels"]) async for one in client.models.list()] == [
        ("offline", "offline", []),
        ("second", "test", ["low", "high"]),
    ]
    for model, said in {"second": "I am the second", "gpt-5": "(offline)", "offline": "(offline)"}.items():
        assert (await client.responses.create(model=model, input="hello")).output_text.startswith(said)


async def test_a_chat_chooses_by_http_and_is_told_so(served: Any) -> None:
    await served.unix.post("/v1/chat", json={"channel": "web", "chat_id": "5", "message": "hello"})
    changed = await served.unix.patch("/v1/sessions/web_5", json={"model": "second"})
    assert changed.json()["chosen_model"] == "second"
    answered = await served.unix.post("/v1/chat", json={"channel": "web", "chat_id": "5", "message": "who?"})
    assert answered.json()["reply"]["content"] == "I am the second"
    refused = await served.unix.patch("/v1/sessions/web_5", json={"thinking_level": "huge"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "thinking_level")
    assert "second does not take the level of thinking 'huge', but low, high" in refused.json()["error"]["message"]
    changed = await served.unix.patch("/v1/sessions/web_5", json={"thinking_level": "high"})
    assert changed.json()["chosen_level"] == "high"
    free = await served.unix.patch("/v1/sessions/web_5", json={"model": "offline", "thinking_level": "huge"})
    assert free.json()["chosen_level"] == "huge", "of a model whose levels are not known it is kept as others wrote it"


def test_a_response_is_asked_for_as_its_request_says_whatever_its_session_has_chosen() -> None:
    asked_for = _Marking(Thinking(Second(), ["low", "high"]), print)
    assert at_level(asked_for, "high") is asked_for


async def test_a_spent_budget_is_a_typed_error_and_the_message_is_kept(served: Any) -> None:
    session = await served.manager.get_or_create("web", "1")
    said = {"channel": "web", "chat_id": "1", "message": "hello"}
    assert (await served.unix.post("/v1/chat", json=said)).status_code == 200
    await session.add_message(Message(Role.ASSISTANT, "well", usage=Usage(100)))
    refused = await served.unix.post("/v1/chat", json={**said, "message": "again"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (429, "budget_spent")
    assert "100 tokens of 100 tokens" in refused.json()["error"]["message"]
    assert session.messages()[-1].text == "again"
    streamed = await served.unix.post("/v1/chat", json={**said, "stream": True})
    assert '"type":"budget_spent"' in streamed.text
    for chat_id, status in (("1", 429), ("2", 200)):
        asked = {"model": "offline", "input": "hello", "conversation": f"web_{chat_id}"}
        await served.manager.get_or_create("web", chat_id)
        assert (await served.unix.post("/v1/responses", json=asked)).status_code == status


async def test_nothing_passes_a_budget_by_being_kept_nowhere(served: Any) -> None:
    session = await served.manager.get_or_create("web", "1")
    for asked in ({}, {"conversation": "web_1"}, {"stream": True}):
        refused = await served.unix.post("/v1/responses", json={"input": "hello", "store": False, **asked})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "store")
    assert session.last_sequence == 0


async def test_a_spent_budget_pays_for_no_summary(served: Any) -> None:
    session = await served.manager.get_or_create("web", "1")
    for number in range(4):
        await session.add_message(Message.user(f"question {number} " * 20))
        await session.add_message(Message(Role.ASSISTANT, "well", usage=Usage(25)))
    before = session.last_sequence
    refused = await served.unix.post("/v1/sessions/web_1/compact", json={"keep_tokens": 10})
    assert (refused.status_code, refused.json()["error"]["type"]) == (429, "budget_spent")
    assert session.last_sequence == before
    by_hand = await served.unix.post("/v1/sessions/web_1/compact", json={"summary": "four questions"})
    assert by_hand.json()["status"] == "done"
