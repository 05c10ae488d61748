"""A Slack bot in an empty home: the commands of its page, a Slack on this machine, and kill -9."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from pathlib import Path

import anyio
import pytest

from tests.agent.providers.strict_server import Answer, Asked, Call, StrictServer
from tests.agent.providers.test_transcription import service
from tests.agent.test_reading import OGG
from tests.channels.daemon import running
from tests.channels.slack_server import ANN, APP_TOKEN, BOB, DIRECT, TOKEN, SlackServer
from tests.channels.test_contract import PDF
from tests.service.gateway.daemons import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.proof]

MCP_SERVER = Path(__file__).parents[1] / "agent/mcp_servers/bad.py"
PAGE = Path(__file__).parents[2] / "docs/how-to/connect-a-channel.md"


def commands() -> list[str]:
    """What the page makes people type for a Slack bot."""
    section = PAGE.read_text().partition("\n## Slack\n")[2].partition("\n## ")[0]
    found: list[str] = re.findall(r"^```bash\n(.*?)\n```", section, re.DOTALL | re.MULTILINE)
    return found[0].splitlines()


class Model:
    """Remembers what was said first, and calls the tool that it is asked to use; `slow` answers must be allowed."""

    def __init__(self) -> None:
        self.is_slow = True

    def __call__(self, asked: Asked) -> Answer:
        *_, last = asked.messages
        if last.is_tool_result:
            return Answer(text=f"The tool says: {last.text}")
        if last.text.startswith("use "):
            return Answer(calls=(Call(f"files_{last.text.removeprefix('use ')}", {"path": "*a*"}),))
        if last.text.startswith("slow") and self.is_slow:
            return Answer(text="I begin to write", ending="stall", ending_after=4)
        first = next(message.text for message in asked.messages if message.is_user)
        return Answer(text=f"{last.text.partition(chr(10))[0]}? You said first: **{first}**")


async def test_two_commands_and_two_tokens_give_a_bot_that_remembers_asks_hears_reads_stops_and_outlives_kill_9(
    tmp_path: Path,
) -> None:
    install, command = commands()
    assert ".venv/bin/pip install '.[daemon,slack]'" in install
    words = shlex.split(
        command.replace("U012ABC", f"{ANN},{BOB}").replace("xoxb-1-A", TOKEN).replace("xapp-1-A", APP_TOKEN)
    )
    settings = [word for word in words if "=" in word and not word.startswith("-")]
    program, *arguments = words[len(settings) :]
    assert program == ".venv/bin/miniclaw-sessions"
    script = Model()
    async with SlackServer() as server, StrictServer(script) as model, service() as (ears, ears_url):
        environment = dict(word.split("=", 1) for word in settings) | {
            "OPENAI_API_KEY": "k",
            "MINICLAW_MODEL_API_KEY_ENV": "OPENAI_API_KEY",
            "MINICLAW_MODEL_MODEL": "m",
            "MINICLAW_MODEL_BASE_URL": model.url_for("openai"),
            "MINICLAW_MODEL_FILES": "application/pdf",
            "MINICLAW_MODEL_TOOLS": "files_*",
            "MINICLAW_MCP_FILES_COMMAND": sys.executable,
            "MINICLAW_MCP_FILES_ARGS": f"-S,-E,{MCP_SERVER},well",
            "MINICLAW_MCP_FILES_APPROVE": "delete",
            "MINICLAW_TRANSCRIPTION_MODEL": "whisper-1",
            "MINICLAW_TRANSCRIPTION_BASE_URL": ears_url,
            "MINICLAW_CHANNELS_SLACK_API_URL": server.url,
        }

        async def answered(count: int) -> str:
            await server.until(lambda: len(server.texts()) == count)
            return server.texts()[-1]

        first = "You said first: *my name is Ann*"
        async with running(tmp_path, environment, *arguments) as process:
            server.say("my name is Ann")
            assert await answered(1) == f"my name is Ann? {first}"
            server.send_file("audio_message.ogg", OGG, "audio/ogg", subtype="slack_audio")
            assert await answered(2) == f"buy milk? {first}"
            server.send_file("bill.pdf", PDF, "application/pdf", "what is this")
            assert await answered(3) == f"what is this? {first}"
            server.say("slow, tell me everything")
            await server.until(lambda: len(model.requests) == 4)
            server.command("stop")
            await server.until(lambda: server.texts()[-1].endswith("(stopped)"))
            assert server.texts()[3] == f"<@{ANN}>: /stop"
            server.say("use delete", user=BOB)
            await server.until(lambda: bool(server.texts(DIRECT[BOB])))
            server.say("slow, what is my name")
            server.say("this waits behind it")
            await server.until(lambda: len(model.requests) == 6)
            process.send_signal(signal.SIGKILL)
            await process.wait()
        script.is_slow = False
        async with running(tmp_path, environment, *arguments) as process:
            await server.until(lambda: len(server.texts()) == 7)
            server.press("miniclaw_yes", user=BOB)
            await server.until(lambda: len(server.texts(DIRECT[BOB])) == 2)
            process.send_signal(signal.SIGTERM)
            with anyio.fail_after(PATIENCE_S):
                assert await process.wait() == 0
    assert server.texts()[5:] == [f"slow, what is my name? {first}", f"this waits behind it? {first}"]
    question, answer = server.posts(DIRECT[BOB])
    assert '- files_delete {"path": "*a*"}\n' in question["blocks"][0]["text"]["text"], "to the letter"
    assert question["blocks"][1]["elements"][0]["text"] == f"<@{BOB}>: Yes"
    assert answer["text"] == 'The tool says: delete {"path": "_a_"}'
    assert len(ears.asked) == 1
    assert server.problems == model.problems == []
    assert TOKEN not in (log := (tmp_path / "log").read_text())
    assert APP_TOKEN not in log
