"""The commands of the page about channels, in an empty home: each is a bot that uses tools, asks and outlives kill -9.

What it does beyond that is the contract's.
"""

from __future__ import annotations

import re
import shlex
import signal
import sys
from pathlib import Path

import anyio
import pytest

from tests.agent.providers.strict_server import Answer, Asked, Call, StrictServer
from tests.channels.contract import Person, all_networks
from tests.channels.daemon import model_settings, running
from tests.channels.test_contract import pytestmark as marks
from tests.service.gateway.daemons import PATIENCE_S

pytestmark = [pytest.mark.proof, *marks]

MCP_SERVER = Path(__file__).parents[1] / "agent/mcp_servers/bad.py"
PAGE = (Path(__file__).parents[2] / "docs/how-to/connect-a-channel.md").read_text()
COMMANDS: dict[str, str] = {
    name: line for line, name in re.findall(r"^(\w+_(?:TOKEN|SECRET)=.*serve --channel (\w+).*)$", PAGE, re.MULTILINE)
}
"""What people type for each network on which a bot has a token."""

ANN, BOB, _ = Person
TOOLS = {
    "MINICLAW_MODEL_TOOLS": "files_*",
    "MINICLAW_MCP_FILES_COMMAND": sys.executable,
    "MINICLAW_MCP_FILES_ARGS": f"-S,-E,{MCP_SERVER},well",
    "MINICLAW_MCP_FILES_APPROVE": "delete",
}


class Model:
    """Remembers what was said first, and calls the tool that it is asked to use; a `slow` answer must be allowed."""

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
        return Answer(text=f"{last.text}? You said first: {first}")


@pytest.mark.parametrize("name", COMMANDS)
async def test_the_page_s_command_gives_a_bot_that_remembers_uses_tools_asks_and_outlives_kill_9(
    name: str, tmp_path: Path
) -> None:
    network = next(one for one in all_networks() if one.name == name)()
    words = shlex.split(COMMANDS[name].replace("127.0.0.1:8080", "127.0.0.1:0"))
    typed = [word.partition("=")[0] for word in words if re.match(r"\w+=", word)]
    program, *arguments = words[len(typed) :]
    assert program == ".venv/bin/miniclaw-sessions"
    assert f"'.[daemon,{name}]'" in PAGE
    script = Model()

    async def shows(count: int) -> None:
        await network.until(lambda: network.is_done and len(network.shown()) == count)

    async with network.serve(), StrictServer(script) as model:
        known = network.environment(tmp_path / ".miniclaw")
        assert [one for one in known if one not in typed and "URL" not in one] == [], "the page's variables are enough"
        environment = model_settings(model) | TOOLS | known
        async with running(tmp_path, environment, *arguments) as daemon:
            for count, text in enumerate(("my name is Ann", "use echo", "use delete"), 1):
                await network.say(text)
                await shows(count)
            model.streaming = anyio.Event()
            await network.say("slow, who am I", BOB)
            await network.say("this waits behind it", BOB)
            await model.streaming.wait()
            daemon.send_signal(signal.SIGKILL)
            await daemon.wait()
        script.is_slow = False
        async with running(tmp_path, environment, *arguments) as daemon:
            await (network.press(yes=True) if network.has_buttons else network.say("yes"))
            await shows(4)
            daemon.send_signal(signal.SIGTERM)
            with anyio.fail_after(PATIENCE_S):
                assert await daemon.wait() == 0
    first, echo, question, answer = network.shown()
    assert first == "my name is Ann? You said first: my name is Ann"
    assert re.match(r"The tool says: echo .*a", echo)
    assert '- files_delete {"path": "*a*"}\n' in question, "to the letter, and not in the network's marks"
    assert re.match(r"The tool says: delete .*a", answer)
    slow, behind = network.shown(BOB)[-2:]
    assert slow == "slow, who am I? You said first: slow, who am I"
    assert behind == "this waits behind it? You said first: slow, who am I"
    assert model.problems == []
    log = (tmp_path / "log").read_text()
    secrets = [known[one] for one in typed if re.search("TOKEN|SECRET", one)]
    assert not [secret for secret in [*secrets, "my name"] if secret in log]
