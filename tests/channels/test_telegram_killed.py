"""A Telegram bot that is killed with an album, or by webhook, beside what the contract proves of it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx2
import pytest
from msgspec.structs import replace

from tests.agent.providers.strict_server import Answer, Asked, StrictServer
from tests.channels.daemon import model_settings, serving
from tests.channels.telegram_server import TOKEN, BotServer
from tests.service.gateway.daemons import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.proof]


class Model:
    """Says what it was asked first and last; it does not come to the end of a `slow` answer."""

    def __init__(self) -> None:
        self.is_slow = True

    def __call__(self, asked: Asked) -> Answer:
        said = [message.text for message in asked.messages if message.is_user]
        answer = Answer(text=f"{said[-1]}? You said first: {said[0]}")
        is_slow = self.is_slow and said[-1].startswith("slow")
        return replace(answer, ending="stall", ending_after=4) if is_slow else answer


def bot(home: Path, server: BotServer, model: StrictServer, **more: str) -> AbstractAsyncContextManager[None]:
    settings = {
        "TELEGRAM_BOT_TOKEN": TOKEN,
        "MINICLAW_CHANNELS_TELEGRAM_ALLOW": "42,43",
        "MINICLAW_CHANNELS_TELEGRAM_API_URL": server.url,
        **more,
    }
    return serving("telegram", home, model_settings(model) | settings)


async def test_an_album_has_one_answer_over_kill_9(tmp_path: Path) -> None:
    is_slow = True

    def script(asked: Asked) -> Answer:
        said = [message for message in asked.messages if message.is_user]
        answer = Answer(text=f"{len(said)} messages")
        return replace(answer, ending="stall", ending_after=1) if is_slow else answer

    async with BotServer() as server, StrictServer(script) as model:
        async with bot(tmp_path, server, model):
            for number in range(3):
                server.photograph(caption="" if number else "look", media_group_id="77")
            await server.until(lambda: len(model.requests) == 1)
            assert len(server.updates) == 3
        is_slow = False
        async with bot(tmp_path, server, model):
            await server.until(lambda: not server.updates)
    assert server.texts()[-1] == "3 messages"
    assert [text for text in server.texts()[:-1] if "messages" in text] == []
    assert len(model.requests) == 2
    assert server.problems == model.problems == []


async def test_by_webhook_too_what_waits_outlives_kill_9(tmp_path: Path) -> None:
    script = Model()
    settings = {"MINICLAW_CHANNELS_TELEGRAM_WEBHOOK_URL": "https://bot.example/channels/telegram"}
    transport = httpx2.AsyncHTTPTransport(uds=str(tmp_path / "workspace/miniclaw.sock"), verify=False)
    async with (
        httpx2.AsyncClient(transport=transport, timeout=PATIENCE_S) as client,
        BotServer() as server,
        StrictServer(script) as model,
    ):

        async def post(headers: dict[str, str], body: bytes) -> int:
            try:
                return (await client.post("http://bot/channels/telegram", headers=headers, content=body)).status_code
            except httpx2.TransportError:
                return 0

        server.post = post
        async with bot(tmp_path, server, model, **settings):
            server.say("slow, who am I")
            server.say("this waits behind it")
            await server.until(lambda: len(model.requests) == 1 and len(server.updates) == 1)
        script.is_slow = False
        async with bot(tmp_path, server, model, **settings):
            await server.until(lambda: not server.updates and len(server.texts()) == 1)
            assert await post({}, b"{}") == 403, "whoever has no secret is turned away"
    assert server.texts() == ["this waits behind it? You said first: slow, who am I"]
    assert server.problems == []
