"""Voice messages, PDF and texts on Telegram: kept as they are, and heard or read as far as somebody can."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from miniclaw_sessions.files.formats.attached import attached
from tests.agent.test_reading import OGG, Ears
from tests.channels.telegram_bots import Bots
from tests.channels.telegram_server import BotServer, Json

pytestmark = pytest.mark.anyio

PDF = b"%PDF-1.7 " + b"x" * 50


def sends(server: BotServer, kind: str, data: bytes, **fields: Any) -> Json:
    """Somebody sends a file, as the kind of attachment that his program makes of it."""
    server.files[file_id := f"file{len(server.files)}"] = data
    sent: Any = {kind: {"file_id": file_id, "file_unique_id": file_id, "file_size": len(data), **fields}}
    return server.say(**sent)


async def test_a_voice_message_is_answered_by_its_words_and_kept(bots: Bots, server: BotServer) -> None:
    bots.readers = [ears := Ears()]
    async with bots.serving():
        sends(server, "voice", OGG, duration=12)
        await server.until(lambda: not server.updates)
    said, _ = (await bots.manager.get_or_create("telegram", 42)).messages()
    assert said.text == "buy milk"
    (sound,) = filter(None, map(attached, said.content))  # type: ignore[arg-type]
    assert (sound.name, base64.b64decode(sound.data)) == ("voice.ogg", OGG)
    assert server.texts() == ["echo: buy milk\n[said aloud, in voice.ogg]"], "what the model was shown"
    assert len(ears.heard) == 1


async def test_a_file_that_is_too_large_is_only_named(bots: Bots, server: BotServer) -> None:
    async with bots.serving(max_file_bytes=200):
        sends(server, "document", PDF * 4, file_name="long.pdf", mime_type="application/pdf")
        await server.until(lambda: not server.updates)
    assert server.called("getFile") == []
    assert server.texts()[0].startswith("I cannot open a file (long.pdf). Please write what matters in it.\n\n")
