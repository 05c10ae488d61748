"""What probes are answered while messages of a session are refused, and when they are taken again."""

from __future__ import annotations

from pathlib import Path

import pytest

from miniclaw_sessions.config import SessionSettings
from tests.service.gateway.conftest import Served

pytestmark = pytest.mark.anyio


@pytest.fixture
def session_settings() -> SessionSettings:
    return SessionSettings(store="jsonl:")


async def said(served: Served, text: str) -> int:
    key = {"Idempotency-Key": text}
    message = {"role": "user", "content": text}
    reply = await served.unix.post("/v1/sessions/telegram_1/messages", json=message, headers=key)
    return reply.status_code


async def test_probes_are_red_while_a_directory_stands_in_the_place_of_a_transcript(
    served: Served, tmp_path: Path
) -> None:
    await served.unix.post("/v1/sessions", json={"channel": "telegram", "chat_id": "1"})
    assert await said(served, "one") == 201
    assert served.manager.workspace is not None
    transcript = served.manager.workspace / "transcripts" / "telegram_1.jsonl"
    transcript.rename(tmp_path / "aside")
    transcript.mkdir()
    assert [await said(served, text) for text in ("two", "two", "three")] == [503, 503, 503]
    health = (await served.unix.get("/health")).json()
    assert (health["status"], health["store_state"]) == ("failing", "failing")
    assert health["problems"][0].startswith("messages of session telegram_1 are not acknowledged since ")
    assert (await served.unix.get("/health/ready")).status_code == 503
    assert (await served.unix.get("/v1/statistics")).json()["store_state"] == "failing"
    assert (await served.unix.get("/v1/sessions")).status_code == 200

    transcript.rmdir()
    (tmp_path / "aside").rename(transcript)
    assert [await said(served, text) for text in ("two", "three", "four")] == [201, 201, 201]
    assert (await served.unix.get("/health/ready")).status_code == 200
    assert (await served.unix.get("/health")).json()["problems"] == []
    history = (await served.unix.get("/v1/sessions/telegram_1/messages")).json()["messages"]
    assert [one["content"] for one in history] == ["one", "two", "three", "four"]
