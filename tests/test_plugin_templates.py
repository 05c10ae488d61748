"""A channel and a tool written from `docs/how-to/write-a-plugin.md` alone, installed beside the daemon."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from miniclaw_sessions.config import load_settings
from miniclaw_sessions.service.gateway.exit_status import ExitStatus
from miniclaw_sessions.testing import check_store
from tests.agent.providers.strict_server import Answer, Asked, Call, StrictServer
from tests.command_line import Cli
from tests.service.gateway.daemons import PATIENCE_S, Here, Process

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[1] / "docs/how-to/write-a-plugin.md"
FILES = dict(re.findall(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE))
"""What the page says that the files hold."""


@pytest.fixture
def written(short_path: Path) -> Path:
    """The package as somebody writes it who has read the page."""
    for name, text in FILES.items():
        file = short_path / "package" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return short_path / "package"


@pytest.fixture
def beside(written: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package, installed: what an installer leaves of it is in the path of this process."""
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    about = written / "my_bot-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    sections = [
        "\n".join([f"[{group}]", *(f"{name} = {place}" for name, place in points.items())])
        for group, points in project["entry-points"].items()
    ]
    (about / "entry_points.txt").write_text("\n".join(sections))
    monkeypatch.syspath_prepend(str(written))
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_bot"]:
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    return written


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(tmp_path / "workspace", monkeypatch)


def rolls(asked: Asked) -> Answer:
    """A model that is asked to roll a die, and does."""
    newest = asked.messages[-1]
    if newest.is_user:
        return Answer(calls=(Call("dice", {"sides": 1}),))
    return Answer(text=f"It shows {newest.text}.")


async def answer_in(file: Path) -> str:
    text = ""
    with anyio.fail_after(PATIENCE_S):
        while not text:  # files tell nobody that they are there
            await anyio.sleep(0.01)
            with suppress(FileNotFoundError):
                text = await anyio.Path(file).read_text()
    return text


def environment(letters: Path, server: StrictServer) -> dict[str, Any]:
    return {
        "MINICLAW_CHANNELS_FOLDER_DIRECTORY": str(letters),
        "MINICLAW_CHANNELS_FOLDER_EVERY_S": "0.01",
        "MINICLAW_MODEL_MODEL": "m",
        "MINICLAW_MODEL_BASE_URL": server.url_for("openai"),
    }


def test_the_templates_are_as_short_as_is_said() -> None:
    assert len(FILES["my_bot/folder.py"].splitlines()) <= 60
    assert len(FILES["my_bot/dice.py"].split("\n\n\n")[1].splitlines()) <= 10


@pytest.mark.parametrize(("file", "most"), [("parrot", 10), ("logged", 10), ("diary", 14)])
def test_a_provider_a_store_and_a_format_are_written_in_about_ten_lines(file: str, most: int) -> None:
    lines = FILES[f"my_bot/{file}.py"].partition("\n\n\n")[2].splitlines()
    assert sum(bool(line.strip()) for line in lines) <= most


def as_somebody(beside: Path, home: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A command where the package is installed."""
    environ = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(beside), **environ}
    command = [sys.executable, "-m", "miniclaw_sessions", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.proof
def test_a_format_a_store_and_a_provider_written_from_the_page_work_on_the_command_line(
    beside: Path, short_path: Path
) -> None:
    settings = {"MINICLAW_SESSIONS_STORE": f"logged:{short_path}/kept", "MINICLAW_MODEL_PROVIDER": "parrot"}
    diary = short_path / "ada.diary"
    diary.write_text('{"wrote": "ada", "text": "dear diary"}\n{"damaged\n{"wrote": "ada", "text": "good night"}\n')
    done = as_somebody(beside, short_path, "import", str(diary), "--as", "cli_ada", "--json", **settings)
    (report,) = json.loads(done.stdout)["imported"]
    assert (report["format"], report["messages"], report["set_aside"]) == ("diary", 2, 1), done.stderr
    settings["MINICLAW_MODEL_MODEL"] = "green"
    done = as_somebody(beside, short_path, "chat", "--chat-id", "ada", "-m", "hello", **settings)
    assert (done.returncode, done.stdout.strip()) == (0, "hello"), done.stderr
    assert "cli_ada has 1 more" in done.stderr
    (transcript,) = (short_path / "kept").glob("*.jsonl")
    assert transcript.read_text().count("dear diary") == 1


@pytest.mark.proof
async def test_the_store_written_from_the_page_keeps_every_promise(beside: Path, tmp_path: Path) -> None:
    module = importlib.import_module("my_bot.logged")
    assert Path(str(module.__file__)).is_relative_to(beside)
    numbers = itertools.count()
    places: dict[int, Path] = {}

    def opened(place: Path) -> Any:
        return module.logged(f"logged:{place}", tmp_path, read_only=False)

    def made() -> Any:
        place = tmp_path / str(next(numbers))
        store = opened(place)
        places[id(store)] = place
        return store

    await check_store(made, reopen=lambda closed: opened(places[id(closed)]))


async def test_a_channel_and_a_tool_written_from_the_page_work_in_the_daemon(short_path: Path, beside: Path) -> None:
    letters = short_path / "letters"
    (letters / "in").mkdir(parents=True)
    (letters / "in" / "ada.1").write_text("Roll a die.")
    (letters / "in" / "eve.1").write_text("Who am I?")
    async with StrictServer(rolls) as server:
        config = {"MINICLAW_CONFIG": str(beside / "miniclaw.toml")}
        async with Here(short_path, **config, **environment(letters, server)) as daemon:
            await daemon.notice("READY=1")
            assert await answer_in(letters / "out" / "ada.1") == "It shows 1."
            (letters / "in" / "ada.2").write_text("/help")
            assert "/new - " in await answer_in(letters / "out" / "ada.2")
            await daemon.logged("channel.refused")  # eve is not allowed
            async with daemon.client() as client:
                (one,) = (await client.get("/v1/sessions")).json()["sessions"]
                assert one["session_id"] == "folder_ada"
            assert await daemon.stopped() == ExitStatus.OK
        assert server.requests[0].tools == ["time", "dice"]
    assert [file.name for file in (letters / "in").iterdir()] == ["eve.1"]


def test_their_settings_are_shown_checked_and_written_like_our_own(
    cli: Cli, beside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = beside / "miniclaw.toml"
    monkeypatch.setenv("MINICLAW_CHANNELS_FOLDER_EVERY_S", "3")
    shown = cli("config", "show", "--config", str(file), "--json").document["options"]
    own = {name.removeprefix("channels.folder."): one for name, one in shown.items() if ".folder." in name}
    assert {name: (one["value"], one["source"].replace(str(file), "file")) for name, one in own.items()} == {
        "type": ("folder", "default"),
        "allow": (["ada"], "file line 3"),
        "groups": ("addressed", "default"),
        "directory": ("letters", "file line 2"),
        "every_s": (3.0, "environment MINICLAW_CHANNELS_FOLDER_EVERY_S"),
    }
    assert own["every_s"]["variable"] == "MINICLAW_CHANNELS_FOLDER_EVERY_S"
    monkeypatch.delenv("MINICLAW_CHANNELS_FOLDER_EVERY_S")
    assert cli("config", "show", "--config", str(file)).out.count("channels.folder.") == len(own)

    misspelt = tmp_path / "misspelt.toml"
    misspelt.write_text("[channels.folder]\ndirctory = 'x'\n")
    refused = cli("config", "show", "--config", str(misspelt))
    assert refused.status != 0
    assert "line 2; did you mean channels.folder.directory?" in refused.error

    written = cli("config", "init", "--print").out
    table = written.partition("# [channels.folder]\n")[2].partition("# [")[0]
    assert '# # where `in` and `out` are.\n# directory = "/tmp/letters"\n' in table
    assert "ids of users and chats that are answered" in table  # what is extended is explained, too
    taken_into_use = tmp_path / "taken.toml"
    taken_into_use.write_text(re.sub(r"^# (?=#|\[|\w+ = )", "", "# [channels.folder]\n" + table, flags=re.MULTILINE))
    assert [*load_settings(taken_into_use).settings.plugins["channels"]] == ["folder"]


@pytest.mark.proof
async def test_installed_by_pip_the_channel_answers_what_waited_when_the_daemon_was_killed(
    short_path: Path, written: Path
) -> None:
    site, letters = short_path / "site", short_path / "letters"
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site)]
    await anyio.run_process([sys.executable, *install, str(written)], env={**os.environ, "HOME": str(short_path)})
    (letters / "in").mkdir(parents=True)
    (letters / "in" / "ada.1").write_text("Roll a die.")
    asked = anyio.Event()

    def waits(_: Asked) -> Answer:
        asked.set()
        return Answer(text="slow", ending="stall", ending_after=0)

    async with StrictServer(waits) as server:
        config: Any = {"PYTHONPATH": str(site), "MINICLAW_CONFIG": str(written / "miniclaw.toml")}
        async with Process(short_path, **config, **environment(letters, server)) as daemon:
            await daemon.notice("READY=1")
            with anyio.fail_after(PATIENCE_S):
                await asked.wait()
            await daemon.killed()
    assert (letters / "in" / "ada.1").exists()
    async with (
        StrictServer(rolls) as server,
        Process(short_path, **config, **environment(letters, server)) as daemon,
    ):
        assert await answer_in(letters / "out" / "ada.1") == "It shows 1."
        async with daemon.client() as client:
            told = (await client.get("/v1/sessions/folder_ada/messages")).json()["messages"]
        assert [one["role"] for one in told] == ["user", "assistant", "tool_result", "assistant"]
        assert json.dumps(told).count("Roll a die.") == 1
        assert await daemon.stopped() == ExitStatus.OK
