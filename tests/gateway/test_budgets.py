"""A budget that is spent is a typed error over HTTP, before the model is asked; the message is kept."""

from __future__ import annotations

from typing import Any

import pytest

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.budgets import Budgets
from miniclaw_sessions.config import BudgetSettings
from miniclaw_sessions.protocol.messages import Message, Role, Usage
from miniclaw_sessions.providers.offline import OfflineProvider

pytestmark = pytest.mark.anyio


@pytest.fixture
def agent() -> Agent:
    return Agent(OfflineProvider(), budgets=Budgets(BudgetSettings(unit="tokens", chat_day=100), None))


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
