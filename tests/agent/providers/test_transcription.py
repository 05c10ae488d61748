"""Transcriptions by the official package, from a local service that speaks as OpenAI's does."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from miniclaw_sessions.agent.providers.configured import open_agent
from miniclaw_sessions.agent.providers.transcription import OpenAITranscriber
from miniclaw_sessions.config import Settings, TranscriptionSettings
from miniclaw_sessions.errors import ConfigError, ModelError
from miniclaw_sessions.files.formats.attached import SOUNDS, Attached
from miniclaw_sessions.secret import Secret
from tests.agent.providers.strict_server import SuddenServer

pytestmark = pytest.mark.anyio

SOUND = Attached("voice.ogg", "audio/ogg", "T2dnUw==")


class Service:
    """`/v1/audio/transcriptions`, and what it was sent."""

    def __init__(self) -> None:
        self.asked: list[dict[str, object]] = []
        self.reply: Response = JSONResponse({"text": "buy milk"})

    async def transcribe(self, request: Request) -> Response:
        async with request.form() as form:
            sound = form["file"]
            assert not isinstance(sound, str)
            self.asked.append(
                {
                    "key": request.headers["authorization"],
                    "file": (sound.filename, sound.content_type, await sound.read()),
                    **{name: value for name, value in form.items() if name != "file"},
                }
            )
        return self.reply


@asynccontextmanager
async def service() -> AsyncIterator[tuple[Service, str]]:
    made = Service()
    routes = [Route("/v1/audio/transcriptions", made.transcribe, methods=["POST"])]
    server = SuddenServer(uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listening])
            yield made, f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
            server.told_to_stop.set()


async def test_the_service_gets_the_sound_and_its_words_come_back() -> None:
    async with service() as (made, url):
        settings = TranscriptionSettings(model="whisper-1", base_url=url, language="en")
        async with OpenAITranscriber(settings, Secret("key")) as transcriber:
            assert await transcriber.words(SOUND) == "buy milk"
    (asked,) = made.asked
    assert asked["file"] == ("voice.ogg", "audio/ogg", b"OggS")
    assert (asked["model"], asked["language"], asked["key"]) == ("whisper-1", "en", "Bearer key")


@pytest.mark.parametrize(
    "reply",
    [
        JSONResponse({"error": {"message": "what was said: secret"}}, 400),
        JSONResponse({"words": 1}),
        PlainTextResponse("<html>secret</html>", headers={"content-type": "text/html"}),
    ],
    ids=["refused", "no text", "another page"],
)
async def test_what_the_service_does_not_transcribe_is_an_error_without_its_words(reply: Response) -> None:
    async with service() as (made, url):
        made.reply = reply
        async with OpenAITranscriber(TranscriptionSettings(model="m", base_url=url), None) as transcriber:
            with pytest.raises(ModelError) as told:
                await transcriber.words(SOUND)
    assert "secret" not in str(told.value)
    assert "127.0.0.1 did not transcribe a sound" in str(told.value)


async def test_no_service_is_asked_unless_a_model_is_named_and_openai_needs_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with open_agent(Settings()) as agent:
        assert not any(set(reader.kinds) >= SOUNDS for reader in agent.readers)
    with pytest.raises(ConfigError, match=r"transcription\.api_key_file"):
        async with open_agent(Settings(transcription=TranscriptionSettings(model="whisper-1"))):
            pass
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    async with open_agent(Settings(transcription=TranscriptionSettings(model="whisper-1"))) as agent:
        assert any(set(reader.kinds) >= SOUNDS for reader in agent.readers)
