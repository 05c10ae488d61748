"""The chat route as a channel: bounds, duplicates, turns that are taken up, and summaries in the stream."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from miniclaw_sessions import Message
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.config import ChannelSettings, ModelSettings
from miniclaw_sessions.core.protocol.messages import Role
from miniclaw_sessions.testing import ScriptedProvider

pytestmark = pytest.mark.anyio


def chat(text: str | None, chat_id: int = 1, **more: Any) -> dict[str, Any]:
    said = {"resume": True} if text is None else {"message": text}
    return {"channel": "telegram", "chat_id": chat_id, **said, **more}


def events_of(text: str) -> list[tuple[str, Any]]:
    blocks = [block.partition("\n") for block in text.split("\n\n") if block.startswith("event: ")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, _, data in blocks]


class Asking:
    """Requests that are under way; `replies` are those that have come."""

    def __init__(self, served: Any, tasks: Any) -> None:
        self.replies: list[Any] = []
        self._served = served
        self._tasks = tasks

    async def begin(self, body: dict[str, Any]) -> None:
        """Return when the request has been taken."""
        under_way = self._served.dispatcher.running
        self._tasks.start_soon(self._ask, body)
        with anyio.fail_after(60):
            while self._served.dispatcher.running == under_way:
                await anyio.lowlevel.checkpoint()

    async def _ask(self, body: dict[str, Any]) -> None:
        self.replies.append(await self._served.unix.post("/v1/chat", json=body))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("channel_settings", [ChannelSettings(max_waiting_per_chat=2)])
async def test_a_chat_beyond_its_bound_is_busy_and_others_are_not(served: Any, provider: Any, stream: bool) -> None:
    async with anyio.create_task_group() as tasks:
        asking = Asking(served, tasks)
        for text in ("slow one", "two", "three"):
            await asking.begin(chat(text))
        refused = await served.unix.post("/v1/chat", json=chat("too many", stream=stream))
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "chat_busy")
        assert int(refused.headers["retry-after"]) > 0
        assert (await served.unix.post("/v1/chat", json=chat("elsewhere", 2))).status_code == 200
        provider.gate.set()
    said = [reply.json()["reply"]["content"] for reply in asking.replies]
    assert said == ["echo: slow one", "echo: two", "echo: three"]


@pytest.mark.parametrize("channel_settings", [ChannelSettings(max_messages=2)])
async def test_all_chats_together_have_a_bound(served: Any, provider: Any) -> None:
    async with anyio.create_task_group() as tasks:
        asking = Asking(served, tasks)
        await asking.begin(chat("slow", 1))
        await asking.begin(chat("slow", 2))
        refused = await served.unix.post("/v1/chat", json=chat("too many", 3))
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "too_many_turns")
        assert int(refused.headers["retry-after"]) > 0
        provider.gate.set()
    assert [reply.status_code for reply in asking.replies] == [200, 200]
    assert (await served.unix.post("/v1/chat", json=chat("again", 3))).status_code == 200


async def test_a_message_that_is_under_way_is_not_answered_twice(served: Any, provider: Any) -> None:
    async with anyio.create_task_group() as tasks:
        asking = Asking(served, tasks)
        await asking.begin(chat("slow", idempotency_key="a"))
        await asking.begin(chat("waits", idempotency_key="b"))
        for key in ("a", "b"):
            again = await served.unix.post("/v1/chat", json=chat("again", idempotency_key=key))
            assert (again.status_code, again.json()["error"]["type"]) == (409, "message_under_way")
        provider.gate.set()
    assert [reply.status_code for reply in asking.replies] == [200, 200]
    assert provider.asked == 2


async def test_a_turn_that_was_left_is_taken_up(served: Any) -> None:
    session = await served.manager.get_or_create("telegram", "1")
    await session.add_message(Message.user("hello"))
    reply = await served.unix.post("/v1/chat", json=chat(None))
    assert reply.json()["reply"]["content"] == "echo: hello"
    nothing = await served.unix.post("/v1/chat", json=chat(None))
    assert (nothing.status_code, nothing.json()["error"]["type"]) == (409, "nothing_to_resume")


@pytest.mark.parametrize("said", [{}, {"resume": False}, {"message": "hello", "resume": True}, {"message": None}])
async def test_a_chat_has_either_a_message_or_something_to_take_up(served: Any, said: dict[str, Any]) -> None:
    reply = await served.unix.post("/v1/chat", json={"channel": "telegram", "chat_id": 1, **said})
    assert (reply.status_code, reply.json()["error"]["type"]) == (422, "invalid_request")


class TestWithASmallModel:
    """A model that takes 400 tokens and answers at length."""

    @pytest.fixture
    def provider(self) -> ScriptedProvider:
        return ScriptedProvider(lambda context: "A summary." if context[0].role is Role.SYSTEM else "Well. " * 60)

    @pytest.fixture
    def agent(self, provider: ScriptedProvider) -> Agent:
        return Agent(provider)

    @pytest.fixture
    def model_settings(self) -> ModelSettings:
        return ModelSettings(context_window=400, reserve_tokens=100, keep_tokens=100)

    async def test_a_stream_tells_of_summaries_and_the_history_stays(self, served: Any) -> None:
        streams = [
            events_of((await served.tcp.post("/v1/chat", json=chat(f"message {number}", stream=True))).text)
            for number in range(6)
        ]
        compacted = [data for stream in streams for name, data in stream if name == "compacted"]
        assert compacted
        assert {data["status"] for data in compacted} == {"done"}
        assert [stream[-1][0] for stream in streams] == ["done"] * 6
        detail = (await served.unix.get("/v1/sessions/telegram_1")).json()
        assert detail["message_count"] == 12
        context = (await served.unix.get("/v1/sessions/telegram_1/context")).json()["messages"]
        assert "A summary." in context[0]["content"]
