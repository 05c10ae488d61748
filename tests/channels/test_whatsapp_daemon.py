"""A WhatsApp bot in an empty home: the commands of its page, the Cloud API on this machine, and kill -9."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process

from miniclaw_sessions import SessionManager
from miniclaw_sessions.core.protocol.messages import Role
from tests.agent.providers.strict_server import Answer, Asked, Call, StrictServer
from tests.agent.test_reading import OGG
from tests.channels.daemon import running, serving
from tests.channels.whatsapp_bots import whatsapp_environment
from tests.channels.whatsapp_server import (
    ANN,
    APP_SECRET,
    BOB,
    EVE,
    NUMBER_ID,
    TOKEN,
    VERIFY_TOKEN,
    CloudServer,
)
from tests.service.gateway.daemons import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.proof]

MCP_SERVER = Path(__file__).parents[1] / "agent/mcp_servers/bad.py"
PAGE = Path(__file__).parents[2] / "docs/how-to/connect-a-channel.md"
PDF = b"%PDF-1.7 " + b"x" * 50
QUESTIONS, KILLS = (int(number) for number in os.environ.get("MINICLAW_TEST_QUESTIONS_KILLS", "12,2").split(","))
PEOPLE = (ANN, BOB, EVE)
AS_ON_THE_PAGE = {
    "EAAB-abc": TOKEN,
    "0a1b2c": APP_SECRET,
    "my-own-word": VERIFY_TOKEN,
    "106540352242922": NUMBER_ID,
    "+491701234567": ",".join(f"+{person}" for person in PEOPLE),
    "127.0.0.1:8080": "127.0.0.1:0",
}


def commands() -> list[str]:
    """What the page tells people to type for a WhatsApp bot."""
    section = PAGE.read_text().partition("\n## WhatsApp\n")[2].partition("\n## ")[0]
    found: list[str] = re.findall(r"^```bash\n(.*?)\n```", section, re.DOTALL | re.MULTILINE)
    return found[0].splitlines()


class Model:
    """Remembers what it was told first, and calls the tool that it is told to use; `slow` answers must be allowed."""

    def __init__(self) -> None:
        self.is_slow = False
        self.times = 0
        self.on_asked: Callable[[], None] = lambda: None

    def __call__(self, asked: Asked) -> Answer:
        self.times += 1
        self.on_asked()
        *_, last = asked.messages
        said = [message.text for message in asked.messages if message.is_user]
        if last.is_tool_result:
            return Answer(text=f"The tool says: {last.text}")
        if last.text.startswith("use "):
            return Answer(calls=(Call(f"files_{last.text.removeprefix('use ')}", {"path": "*a*"}),))
        if last.text.startswith("slow") and self.is_slow:
            return Answer(text="I begin to write", ending="stall", ending_after=4)
        return Answer(text=f"{last.text}? You said first: **{said[0]}**")


def bot(home: Path, server: CloudServer, model: StrictServer) -> AbstractAsyncContextManager[Process]:
    """The second command of the page, in a home of its own; Meta posts to its socket."""
    _, command = commands()
    for shown, meant in AS_ON_THE_PAGE.items():
        assert shown in command
        command = command.replace(shown, meant)
    words = shlex.split(command)
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
        "MINICLAW_CHANNELS_WHATSAPP_API_URL": server.url,
    }
    program, *arguments = words[len(settings) :]
    assert program == ".venv/bin/miniclaw-sessions"
    return running(home, environment, *arguments)


async def test_two_commands_and_a_token_give_a_bot_that_remembers_uses_tools_asks_stops_and_outlives_kill_9(
    tmp_path: Path,
) -> None:
    install, _ = commands()
    assert ".venv/bin/pip install '.[daemon,whatsapp]'" in install
    script = Model()
    async with CloudServer() as server, StrictServer(script) as model:
        script.on_asked = server.look
        server.post_to(tmp_path / ".miniclaw/workspace/miniclaw.sock")
        async with bot(tmp_path, server, model) as process:
            server.say("my name is Ann")
            await server.until(lambda: len(server.texts()) == 1)
            server.say("use echo")
            await server.until(lambda: len(server.texts()) == 2)
            script.is_slow = True
            server.say("slow, tell me everything")
            await server.until(lambda: script.times == 4)
            server.say("/stop")
            await server.until(lambda: len(server.texts()) == 3 and not server.pending)
            assert server.texts()[2].endswith("(stopped)")
            server.say("use delete", by=BOB)
            await server.until(lambda: bool(server.texts(BOB)) and not server.pending)
            server.say("slow, what is my name")
            await server.until(lambda: script.times == 6)
            server.say("this waits behind it")
            await server.until(lambda: all(post.arrived.is_set() or post.times for post in server.pending))
            process.send_signal(signal.SIGKILL)
        script.is_slow = False
        async with bot(tmp_path, server, model) as process:
            server.press("Yes", by=BOB, chat=BOB)
            server.send_file("document", PDF, "application/pdf", filename="bill.pdf")
            server.send_file("audio", OGG, "audio/ogg; codecs=opus", voice=True)
            await server.until(lambda: not server.pending)
            process.send_signal(signal.SIGTERM)
            with anyio.fail_after(PATIENCE_S):
                assert await process.wait() == 0
    first = "You said first: my name is Ann"
    assert server.texts()[:2] == [f"my name is Ann? {first}", 'The tool says: echo {"path": "a"}']
    assert server.texts()[3:5] == [f"slow, what is my name? {first}", f"this waits behind it? {first}"]
    assert [text.partition(".")[0] for text in server.texts()[5:]] == ["I cannot open bill", "I cannot open voice"]
    question, answer = server.texts(BOB)
    assert '- files_delete {"path": "*a*"}\n' in question, "to the letter, and not with WhatsApp's marks"
    assert answer == 'The tool says: delete {"path": "a"}'
    log = (tmp_path / "log").read_text()
    assert not [secret for secret in (TOKEN, APP_SECRET, VERIFY_TOKEN, "my name") if secret in log]


async def test_what_comes_in_any_order_after_a_kill_is_kept_once_and_each_answer_is_sent(tmp_path: Path) -> None:
    async with CloudServer() as server:
        server.post_to(tmp_path / "workspace/miniclaw.sock")
        server.pace_s = 0.0  # all of it at once, and after a kill in any order, as Meta does it
        environment = whatsapp_environment(server, *PEOPLE)
        for number in range(QUESTIONS):
            server.say(f"{number} * 2", by=PEOPLE[number % 3])
        for kill in range(1, KILLS + 1):
            enough = kill * QUESTIONS // (KILLS + 1)
            async with serving("whatsapp", tmp_path, environment):
                await server.until(lambda enough=enough: len(server.messages) >= enough)  # type: ignore[misc]
        async with serving("whatsapp", tmp_path, environment):
            await server.until(lambda: not server.pending)
    alone = 0
    async with SessionManager(tmp_path / "workspace") as manager:
        for person in PEOPLE:
            kept = (await manager.find(f"whatsapp_{person}")).messages()
            said = [f"{number} * 2" for number in range(QUESTIONS) if PEOPLE[number % 3] == person]
            assert sorted(one.text for one in kept if one.is_user) == sorted(said), "each once"
            answers = [one.text for one in kept if one.role is Role.ASSISTANT and not one.tool_calls]
            assert set(server.texts(person)) == set(answers), "all that the store has was sent"
            assert len(server.texts(person)) - len(answers) <= KILLS, "twice where a kill came before Meta heard of it"
            assert not kept[-1].is_user
            alone += len(said) - len(answers)
    assert alone <= KILLS * len(PEOPLE), "what was interrupted has one answer with what came before it was repeated"
