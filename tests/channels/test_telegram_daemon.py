"""A Telegram bot in an empty home: the commands of its page, the Bot API on this machine, and kill -9."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import httpx2
import pytest
from anyio.abc import Process
from msgspec.structs import replace

from tests.agent.providers.strict_server import Answer, Asked, Call, StrictServer
from tests.channels.daemon import running
from tests.channels.telegram_server import BOB, TOKEN, BotServer
from tests.service.gateway.daemons import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.proof]

MCP_SERVER = Path(__file__).parents[1] / "agent/mcp_servers/bad.py"
PAGE = Path(__file__).parents[2] / "docs/how-to/connect-a-channel.md"


def commands() -> list[str]:
    """What the page tells people to type for a Telegram bot."""
    section = PAGE.read_text().partition("\n## Telegram\n")[2].partition("\n## ")[0]
    found: list[str] = re.findall(r"^```bash\n(.*?)\n```", section, re.DOTALL | re.MULTILINE)
    return found[0].splitlines()


class Model:
    """Remembers what it was told first, and calls the tool that it is told to use; `slow` answers must be allowed."""

    def __init__(self) -> None:
        self.is_slow = True

    def __call__(self, asked: Asked) -> Answer:
        *_, last = asked.messages
        said = [message.text for message in asked.messages if message.is_user]
        if last.is_tool_result:
            return Answer(text=f"The tool says: {last.text}")
        if last.text.startswith("use "):
            return Answer(calls=(Call(f"files_{last.text.removeprefix('use ')}", {"path": "*a*"}),))
        if last.text.startswith("slow") and self.is_slow:
            return Answer(text="I begin to write", ending="stall", ending_after=4)
        return Answer(text=f"{last.text}? You said first: **{said[0]}**")


def bot(home: Path, server: BotServer, model: StrictServer, **more: str) -> AbstractAsyncContextManager[Process]:
    """The second command of the page, in a home of its own."""
    _, command = commands()
    words = shlex.split(command.replace("123456789", "42,43").replace("123456:ABC-DEF", TOKEN))
    settings = [word for word in words if "=" in word and not word.startswith("-")]
    environment = dict(word.split("=", 1) for word in settings) | {
        "OPENAI_API_KEY": "k",
        "MINICLAW_MODEL_API_KEY_ENV": "OPENAI_API_KEY",
        "MINICLAW_MODEL_MODEL": "m",
        "MINICLAW_MODEL_BASE_URL": model.url_for("openai"),
        "MINICLAW_MODEL_TOOLS": "files_*",
        "MINICLAW_MCP_FILES_COMMAND": sys.executable,
        "MINICLAW_MCP_FILES_ARGS": f"-S,-E,{MCP_SERVER},well",
        "MINICLAW_MCP_FILES_APPROVE": "delete",
        "MINICLAW_CHANNELS_TELEGRAM_API_URL": server.url,
        **more,
    }
    program, *arguments = words[len(settings) :]
    assert program == ".venv/bin/miniclaw-sessions"
    return running(home, environment, *arguments)


async def test_two_commands_and_a_token_give_a_bot_that_remembers_uses_tools_asks_stops_and_outlives_kill_9(
    tmp_path: Path,
) -> None:
    install, _ = commands()
    assert ".venv/bin/pip install '.[daemon,telegram]'" in install
    script = Model()
    async with BotServer() as server, StrictServer(script) as model:
        async with bot(tmp_path, server, model) as process:
            server.say("my name is Ann")
            await server.until(lambda: len(server.texts()) == 1)
            server.say("use echo")
            await server.until(lambda: len(server.texts()) == 2)
            server.say("slow, tell me everything")
            await server.until(lambda: len(model.requests) == 4)
            server.say("/stop")
            await server.until(lambda: len(server.texts()) == 3)
            assert server.texts()[2].endswith("(stopped)")
            server.say("use delete", sender=BOB)
            await server.until(lambda: bool(server.texts(43)) and not server.updates)
            server.say("slow, what is my name")
            server.say("this waits behind it")
            await server.until(lambda: len(model.requests) == 6 and len(server.updates) == 2)
            process.send_signal(signal.SIGKILL)
        script.is_slow = False
        async with bot(tmp_path, server, model) as process:
            server.say("yes", sender=BOB)
            await server.until(lambda: not server.updates)
            process.send_signal(signal.SIGTERM)
            with anyio.fail_after(PATIENCE_S):
                assert await process.wait() == 0
    first = "You said first: my name is Ann"
    assert server.texts()[:2] == [f"my name is Ann? {first}", 'The tool says: echo {"path": "a"}']
    assert server.texts()[3:] == [f"slow, what is my name? {first}", f"this waits behind it? {first}"]
    question, answer = server.texts(43)
    assert '- files_delete {"path": "*a*"}\n' in question, "to the letter, and not as Markdown"
    assert answer == 'The tool says: delete {"path": "a"}'
    assert server.problems == model.problems == []
    assert TOKEN not in (tmp_path / "log").read_text()


async def test_an_album_has_one_answer_over_kill_9(tmp_path: Path) -> None:
    is_slow = True

    def script(asked: Asked) -> Answer:
        said = [message for message in asked.messages if message.is_user]
        answer = Answer(text=f"{len(said)} messages")
        return replace(answer, ending="stall", ending_after=1) if is_slow else answer

    async with BotServer() as server, StrictServer(script) as model:
        async with bot(tmp_path, server, model) as process:
            for number in range(3):
                server.photograph(caption="" if number else "look", media_group_id="77")
            await server.until(lambda: len(model.requests) == 1)
            assert len(server.updates) == 3
            process.send_signal(signal.SIGKILL)
            await process.wait()
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
    transport = httpx2.AsyncHTTPTransport(uds=str(tmp_path / ".miniclaw/workspace/miniclaw.sock"), verify=False)
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
        async with bot(tmp_path, server, model, **settings) as process:
            server.say("slow, who am I")
            server.say("this waits behind it")
            await server.until(lambda: len(model.requests) == 1 and len(server.updates) == 1)
            process.send_signal(signal.SIGKILL)
            await process.wait()
            script.is_slow = False
            async with bot(tmp_path, server, model, **settings):
                await server.until(lambda: not server.updates and len(server.texts()) == 1)
                assert await post({}, b"{}") == 403, "whoever has no secret is turned away"
    assert server.texts() == ["this waits behind it? You said first: slow, who am I"]
    assert server.problems == []
