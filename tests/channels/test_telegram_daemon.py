"""A Telegram bot in an empty home: the commands of docs/channels.md, the Bot API on this machine, and kill -9."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process

from tests.channels.rooms import PATIENCE_S
from tests.channels.telegram_server import TOKEN, BotServer
from tests.providers.strict_server import Answer, Asked, StrictServer

pytestmark = [pytest.mark.anyio, pytest.mark.proof]

PAGE = Path(__file__).parents[2] / "docs/channels.md"


def commands() -> list[str]:
    """What the page tells people to type for a Telegram bot."""
    section = PAGE.read_text().partition("\n## Telegram\n")[2].partition("\n## ")[0]
    found: list[str] = re.findall(r"^```bash\n(.*?)\n```", section, re.DOTALL | re.MULTILINE)
    return found[0].splitlines()


class Model:
    """Remembers what it was told first; an answer that was asked for as `slow` comes when it is allowed to."""

    def __init__(self) -> None:
        self.is_slow = True

    def __call__(self, asked: Asked) -> Answer:
        said = [message.text for message in asked.messages if message.is_user]
        if said[-1].startswith("slow") and self.is_slow:
            return Answer(text="I begin to write", ending="stall", ending_after=4)
        return Answer(text=f"{said[-1]}? You said first: **{said[0]}**")


@asynccontextmanager
async def bot(home: Path, server: BotServer, model: StrictServer) -> AsyncIterator[Process]:
    """The second command of the page, in a home of its own."""
    _, command = commands()
    words = shlex.split(command.replace("123456789", "42").replace("123456:ABC-DEF", TOKEN))
    settings = [word for word in words if "=" in word and not word.startswith("-")]
    environ = dict(word.split("=", 1) for word in settings) | {
        "HOME": str(home),
        "OPENAI_API_KEY": "k",
        "MINICLAW_MODEL_API_KEY_ENV": "OPENAI_API_KEY",
        "MINICLAW_MODEL_MODEL": "m",
        "MINICLAW_MODEL_BASE_URL": model.url_for("openai"),
        "MINICLAW_CHANNELS_TELEGRAM_API_URL": server.url,
    }
    program, *arguments = words[len(settings) :]
    assert program == "miniclaw-sessions"
    log = (home / "log").open("ab")
    async with await anyio.open_process(
        [sys.executable, "-m", "miniclaw_sessions", *arguments], env=environ, cwd=home, stdout=log, stderr=log
    ) as process:
        try:
            yield process
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.wait()
            log.close()


async def test_two_commands_and_a_token_give_a_bot_that_remembers_stops_and_outlives_kill_9(tmp_path: Path) -> None:
    install, _ = commands()
    assert install.startswith("pip install 'miniclaw-sessions[")
    script = Model()
    async with BotServer() as server, StrictServer(script) as model:
        async with bot(tmp_path, server, model) as process:
            server.say("my name is Ann")
            await server.until(lambda: len(server.texts()) == 1 and not server.updates)
            assert server.texts() == ["my name is Ann? You said first: my name is Ann"]
            server.say("slow, tell me everything")
            await server.until(lambda: server.texts()[1:] != [])
            server.say("/stop")
            await server.until(lambda: server.texts()[1].endswith("(stopped)") and not server.updates)
            server.say("slow, what is my name")
            server.say("this waits behind it")
            await server.until(lambda: len(server.texts()) == 3 and len(server.updates) == 2)
            process.send_signal(signal.SIGKILL)
        script.is_slow = False
        async with bot(tmp_path, server, model) as process:
            await server.until(lambda: not server.updates)
            process.send_signal(signal.SIGTERM)
            with anyio.fail_after(PATIENCE_S):
                assert await process.wait() == 0
    first = "You said first: my name is Ann"
    assert server.texts()[3:] == [f"slow, what is my name? {first}", f"this waits behind it? {first}"]
    assert server.problems == []
    assert TOKEN not in (tmp_path / "log").read_text()
