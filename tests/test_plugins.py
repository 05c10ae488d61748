"""Plug-ins: found by name or place, their settings checked like our own, and each failing alone."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from miniclaw_sessions import SessionManager, SessionSettings, plugins
from miniclaw_sessions.agent.hooks import Generation, Hooks, InTurn
from miniclaw_sessions.agent.providers.configured import open_agent
from miniclaw_sessions.channels.registry import make_channels
from miniclaw_sessions.config import Settings, load_settings
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.core.stores import open_store
from miniclaw_sessions.errors import ConfigError, ImportRefused, PluginFailed
from miniclaw_sessions.files.formats import registry
from miniclaw_sessions.files.formats.codec import Format, Sample
from tests.command_line import Cli

PARTS = """
from collections.abc import AsyncIterator
from contextlib import nullcontext
import sys, time, threading
import msgspec
from miniclaw_sessions.agent.hooks import Hooks
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.errors import ConfigError

class Hook(msgspec.Struct, frozen=True):
    path: str = "/"

class LettersSettings(msgspec.Struct, frozen=True, kw_only=True):
    '''Settings.

    Attributes:
        box: where letters lie,
            on two lines.
        allow: who may write.
        webhook: where it is called.
    '''
    box: str = "in"
    every_s: float = 1.0
    allow: tuple[str | int, ...] = ()
    webhook: Hook = Hook()

class Letters:
    Settings = LettersSettings

    def __init__(self, name, settings):
        self.name, self.settings = name, settings

    async def receive(self):
        yield

    async def send(self, chat_id, outgoing): ...

    def typing(self, chat_id):
        return nullcontext()

class Plain(Letters):
    Settings = None

    def __init__(self, name):
        self.name = name

class Raises(Plain):
    def __init__(self, name):
        raise OSError("no\\nsuch box")

class Refuses(Plain):
    def __init__(self, name):
        raise ConfigError("the box has no lock")

class Ends(Plain):
    def __init__(self, name):
        sys.exit(3)

class Hangs(Plain):
    def __init__(self, name):
        threading.Event().wait()

class Renamed(Plain):
    def __init__(self, name):
        self.name = "other"

class Unnamed(Plain):
    def __init__(self, name):
        self.name = []

class Broken(Plain):
    @property
    def typing(self):
        raise RuntimeError("my own mistake")

class Speechless(Plain):
    @property
    def announce(self):
        raise RuntimeError("my own mistake")

class Patient(Plain):
    send_timeout_s = None

class Wordy(Plain):
    send_timeout_s = "60"

class Hasty(Plain):
    send_timeout_s = 0.0

class Odd(Letters):
    Settings = dict

class Unreadable(Letters):
    class Settings(msgspec.Struct):
        where: "Nowhere" = None

class Typed(Letters):
    class Settings(msgspec.Struct):
        type: str = ""

class Needs(Letters):
    class Settings(msgspec.Struct):
        box: str

def dice(name):
    async def run(arguments):
        return "4"
    return Tool(name, "Rolls a die.", {"type": "object"}, run)

class DieSettings(msgspec.Struct):
    sides: int = 6

def die(name, settings):
    async def run(arguments):
        return str(settings.sides)
    return Tool(name, "Rolls a die.", {"type": "object"}, run)

die.Settings = DieSettings

def no_tool(name):
    return name

class Guard(Hooks):
    def __init__(self, name):
        self.name = name
"""


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with plug-ins of all kinds, in no package."""
    (tmp_path / "some_parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "some_parts", raising=False)
    return "some_parts"


def package(at: Path, name: str, **groups: str) -> None:
    """A package as an installer leaves it, which declares these entry points."""
    told = at / f"{name}-1.dist-info"
    told.mkdir()
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    lines = [f"[miniclaw_sessions.{group}]\n{entries}\n" for group, entries in groups.items()]
    (told / "entry_points.txt").write_text("\n".join(lines))
    importlib.invalidate_caches()


def configured(tmp_path: Path, text: str, environ: dict[str, str] | None = None, **more: Any) -> Settings:
    file = tmp_path / "miniclaw.toml"
    file.write_text(text)
    return load_settings(file, environ, **more).settings


# --- finding ---------------------------------------------------------------------------------------------------------


def test_a_channel_is_what_a_package_declares_or_a_place_and_two_of_one_type_stand_side_by_side(
    tmp_path: Path, parts: str
) -> None:
    package(tmp_path, "letters", channels=f"letters = {parts}:Letters")
    text = (
        f"[channels.letters]\nbox = 'a'\n[channels.second-box]\ntype = 'letters'\n[channels.x]\ntype='{parts}:Plain'\n"
    )
    made, failed = make_channels(configured(tmp_path, text))
    assert [one.name for one in made] == ["letters", "second-box", "x"]
    assert [getattr(one, "settings", None) and one.settings.box for one in made] == ["a", "in", None]  # type: ignore[attr-defined]
    assert failed == []


def test_a_flag_and_the_environment_turn_a_channel_on_too(tmp_path: Path, parts: str) -> None:
    package(tmp_path, "letters", channels=f"letters = {parts}:Letters\nmail-box = {parts}:Letters")
    environ = {
        "MINICLAW_CHANNELS_LETTERS_ALLOW": "17, ada",
        "MINICLAW_CHANNELS_MAIL_BOX_WEBHOOK_PATH": "/here",
        "MINICLAW_CHANNELS_MAX_MESSAGES": "7",
    }
    settings = load_settings(None, environ, channels=["mail-box"]).settings
    box, letters = make_channels(settings)[0]
    assert (letters.name, letters.settings.allow) == ("letters", ("17", "ada"))  # type: ignore[attr-defined]
    assert (box.name, box.settings.webhook.path) == ("mail-box", "/here")  # type: ignore[attr-defined]
    assert settings.channels.max_messages == 7


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[channels.letrs]\n",
            r"there is no channel 'letrs' \(.*line 1\); did you mean letters\? There are: .*letters",
        ),
        ("[channels.x]\ntype = 'nothing'\n", "there is no channel 'nothing'"),
        ("[channels.x]\ntype = 3\n", r"channels\.x\.type is 3 \(.* line 2\)"),
        ("[channels.Letters]\n", "a name has lower-case letters"),
        ("[channels.letters]\nbx = 3\n", r'"channels\.letters\.bx" in .* line 2; did you mean channels\.letters\.box'),
        ("[channels.letters]\nbox = 3\n", r"channels\.letters\.box is 3 \(.* line 2\), which is wrong"),
        ("[channels.letters.webhook]\nboth = 3\n", r'"channels\.letters\.webhook\.both" in .* line 2'),
        ("[channels.letters]\nwebhook = 3\n", r"unknown option .channels\.letters\.webhook. in"),
        ("[channels]\nletters = 3\n", r"unknown option .channels\.letters. in"),
        ("[tools]\ndice = 3\n", r"unknown option .tools. in .*; write \[tools\.NAME\]"),
        ("[channels.x]\ntype = 'some_parts:Needs'\n", r"\[channels\.x\] \(.* line 1\) is wrong: .*`box`"),
        ("[channels.x]\ntype = 'some_parts:Plain'\nbox = 3\n", "unknown option"),
        ("[channels.x]\ntype = 'some_parts:Refuses'\n", "the box has no lock"),
        ("[channels.both]\n", r"several packages declare the channel 'both': some_parts:Letters and some_parts:Plain"),
    ],
)
def test_what_is_wrong_in_the_configuration_is_refused_like_every_setting(
    text: str, says: str, tmp_path: Path, parts: str
) -> None:
    package(tmp_path, "letters", channels=f"letters = {parts}:Letters\nboth = {parts}:Letters")
    package(tmp_path, "plain", channels=f"both = {parts}:Plain")
    with pytest.raises(ConfigError, match=says) as caught:
        make_channels(configured(tmp_path, text))
    assert not isinstance(caught.value, PluginFailed)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        ("MINICLAW_CHANNELS_LETTERS_BX", "unknown environment variable .*did you mean MINICLAW_CHANNELS_LETTERS_BOX"),
        ("MINICLAW_CHANNELS_LETTERS_EVERY_S", r"every_s is \"soon\" \(environment MINICLAW_CHANNELS_LETTERS_EVERY_S\)"),
        ("MINICLAW_CHANNELS_LETTRS_BOX", r"no channel 'lettrs' \(environment MINICLAW_CHANNELS_LETTRS_BOX\)"),
        ("MINICLAW_CHANNELS_MAX_MESAGES", "did you mean MINICLAW_CHANNELS_MAX_MESSAGES"),
        ("MINICLAW_CHANNELS_LETTERS", "unknown environment variable"),
    ],
)
def test_what_is_wrong_in_the_environment_is_refused_by_its_name(
    variable: str, says: str, tmp_path: Path, parts: str
) -> None:
    package(tmp_path, "letters", channels=f"letters = {parts}:Letters")
    with pytest.raises(ConfigError, match=says):
        make_channels(load_settings(None, {variable: "soon"}).settings)


# --- failing alone ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("no.such.module:Channel", "cannot be loaded from no.such.module:Channel: ModuleNotFoundError"),
        ("some_parts:Nothing", "cannot be loaded from some_parts:Nothing: AttributeError"),
        ("some_parts:Raises", "cannot be made: OSError: no such box"),
        ("some_parts:Ends", "cannot be made: SystemExit: 3"),
        ("some_parts:Renamed", "calls itself 'other'"),
        ("some_parts:Unnamed", "calls itself []"),
        ("some_parts:Broken", "cannot be made: RuntimeError: my own mistake"),
        ("some_parts:Speechless", "cannot be used: RuntimeError: my own mistake"),
        ("some_parts:Patient", "a send_timeout_s that is no number of seconds: None"),
        ("some_parts:Wordy", "a send_timeout_s that is no number of seconds: '60'"),
        ("some_parts:Hasty", "a send_timeout_s that is no number of seconds: 0.0"),
        ("some_parts:Odd", "Settings that are no struct"),
        ("some_parts:Unreadable", "Settings that are no struct"),
        ("some_parts:Typed", "has a setting `type`"),
        ("some_parts:dice", "it has no receive, send, typing"),
        ("ends:x", "cannot be loaded from ends:x: SystemExit"),
    ],
)
def test_a_plugin_that_fails_names_itself_and_stops_only_itself(
    place: str, says: str, tmp_path: Path, parts: str
) -> None:
    (tmp_path / "ends.py").write_text("raise SystemExit")
    text = f"[channels.bad]\ntype = '{place}'\n[channels.good]\ntype = '{parts}:Plain'\n"
    made, (failure,) = make_channels(configured(tmp_path, text))
    assert [one.name for one in made] == ["good"]
    assert says in str(failure)
    assert "\n" not in str(failure)


def test_a_plugin_that_hangs_is_left_behind(tmp_path: Path, parts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hangs.py").write_text("import threading\nthreading.Event().wait()\n")
    load_settings()
    monkeypatch.setattr(plugins, "LOAD_TIMEOUT_S", 0.2)
    text = f"[channels.a]\ntype = '{parts}:Hangs'\n[channels.b]\ntype = 'hangs:X'\n"
    made, failed = make_channels(configured(tmp_path, text))
    assert made == []
    assert ["and was left behind" in str(one) for one in failed] == [True, True]
    assert all(one.daemon for one in threading.enumerate() if one.name == "plug-in")  # the program can end


# --- tools, hooks, providers ------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_tools_are_chosen_by_name_and_pattern_of_all_that_there_are(tmp_path: Path, parts: str) -> None:
    package(tmp_path, "games", tools=f"dice = {parts}:dice\ndie = {parts}:die\nbroken = {parts}:nothing")
    text = "[model]\ntools = ['di*', 'time', 'broken', 'huge']\n[tools.huge]\ntype = 'die'\nsides = 20\n"
    async with open_agent(configured(tmp_path, text)) as agent:
        assert [tool.name for tool in agent.tools] == ["dice", "die", "time", "huge"]
        assert await agent.tools[3].run({}) == "20"


@pytest.mark.anyio
async def test_tools_of_ours_are_found_without_reading_what_every_package_declares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda **_: pytest.fail("the packages were read"))
    async with open_agent(Settings()) as agent:
        assert [tool.name for tool in agent.tools] == ["time", "calculator"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[model]\ntools = ['time', 'calculater']\n", "model.tools names 'calculater'.*did you mean calculator"),
        ("[tools.dice]\nsides = 3\n", r"unknown option .tools\.dice\.sides"),  # also of one that is not chosen
        ("[tools.other]\n", "there is no tool 'other'"),
        ("[hooks.guard]\ntype = 'some_parts:Nothing'\n", "the hook 'guard' cannot be loaded"),  # never unguarded
        ("[hooks.guard]\ntype = 'some_parts:dice'\n", "it has no before_generation"),
        ("[model]\nprovider = 'mistral'\nmodel = 'x'\n", r"no provider 'mistral' \(model\.provider\); .*google"),
        ("[providers.openai]\nspeed = 3\n[model]\nmodel = 'x'\n", r"unknown option .providers\.openai\.speed"),
    ],
)
async def test_without_what_the_settings_name_nothing_is_answered(
    text: str, says: str, tmp_path: Path, parts: str
) -> None:
    package(tmp_path, "games", tools=f"dice = {parts}:dice")
    with pytest.raises(ConfigError, match=says):
        async with open_agent(configured(tmp_path, text)):
            pass


class Marks(Hooks):
    def __init__(self, mark: str, told: list[str]) -> None:
        self.mark, self.told = mark, told

    async def before_generation(self, _: Generation) -> None:
        self.told.append(f"before {self.mark}")

    async def after_generation(self, _: Generation) -> None:
        self.told.append(f"after {self.mark}")

    async def before_tool(self, _: Generation, call: ToolCall) -> ToolCall | Message | None:
        self.told.append(f"tool {self.mark} {call.arguments}")
        return None if self.mark == "a" else ToolCall(call.id, call.name, self.mark)

    async def after_tool(self, _: Generation, call: ToolCall, result: Message) -> Message | None:
        return Message.tool_result(call, f"{result.text}{self.mark}")


@pytest.mark.anyio
async def test_several_hooks_take_part_one_after_the_other_and_back() -> None:
    told: list[str] = []
    hooks = InTurn([Marks("a", told), Marks("b", told), Marks("c", told)])
    turn: Any = None
    await hooks.before_generation(turn)
    call = await hooks.before_tool(turn, ToolCall("1", "time", "-"))
    assert isinstance(call, ToolCall)
    assert call.arguments == "c"
    result = await hooks.after_tool(turn, call, Message.tool_result(call, "-"))
    assert result is not None
    assert result.text == "-cba"
    await hooks.after_generation(turn)
    assert [line for line in told if "tool" not in line] == [f"before {one}" for one in "abc"] + [
        f"after {one}" for one in "cba"
    ]
    assert told[3:6] == ["tool a -", "tool b -", "tool c b"]


# --- stores ----------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_store_of_another_package_is_named_by_its_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_store.py").write_text(
        "from miniclaw_sessions.core.stores import open_store\n"
        "def kept(url, workspace, *, read_only):\n"
        "    return open_store('jsonl://' + url.partition(':')[2], workspace, read_only=read_only)\n"
        "def none(url, workspace, *, read_only):\n    return url\n"
    )
    others = "none-at-all = some_store:none\nbroken = some_store:nothing\nsqlite = some_store:none"
    package(tmp_path, "stores", stores=f"kept = some_store:kept\n{others}")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = SessionSettings(store=f"kept:{tmp_path}/elsewhere")
    for said in ("one", "two"):
        async with SessionManager(tmp_path / "w", settings=settings) as manager:
            session = await manager.get_or_create("room", 1)
            await session.add_message(Message.user(said))
            assert len(await session.tree.get_branch()) == ("one", "two").index(said) + 1
    assert [*(tmp_path / "elsewhere").glob("*.jsonl")]
    for url, says in (("none-at-all:x", "is none"), ("broken:x", "cannot be made: AttributeError")):
        with pytest.raises(PluginFailed, match=says):
            open_store(url, tmp_path)
    assert type(open_store("sqlite:", tmp_path)).__name__ == "SQLiteStore"  # ours cannot be taken over
    with pytest.raises(ConfigError, match="is no store"):
        open_store("unheard-of:x", tmp_path)


@pytest.mark.anyio
async def test_a_shared_store_of_another_package_is_not_opened_as_one_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared_store.py").write_text(
        "from miniclaw_sessions.core.stores import open_store\n"
        "def shared(url, workspace, *, read_only):\n"
        "    return open_store('postgresql://nowhere.example/chats')\n"
    )
    package(tmp_path, "stores", stores="shared = shared_store:shared")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="pass the store itself"):
        async with SessionManager(tmp_path / "w", store="shared:x"):
            pass


# --- formats ---------------------------------------------------------------------------------------------------------

TALK = """
from miniclaw_sessions.files.formats.codec import Format, SessionFacts
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message

class Reader:
    def __init__(self, chain):
        self.chain, self.facts, self.findings = chain, SessionFacts(format="talk"), []

    def feed(self, piece):
        return [self.chain.add(MessageEntry, message=Message.user(piece["talk"]))]

    def finish(self):
        return []

TALK = Format(
    name="talk", about="Talk.", suffix=".talk", by_line=False, reader=Reader,
    recognize=lambda sample: isinstance(sample.document, dict) and "talk" in sample.document,
)
"""


def test_a_format_of_another_package_is_read_like_ours_and_one_that_fails_says_so_when_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_talk.py").write_text(TALK)
    package(tmp_path, "talks", formats="talk = some_talk:TALK\npi = some_talk:TALK\nbroken = some_talk:NOTHING")
    monkeypatch.syspath_prepend(str(tmp_path))
    others = registry.others.__wrapped__()
    assert [form.name for form in others] == ["talk"]
    monkeypatch.setattr(registry, "others", lambda: others)
    (tmp_path / "one.talk").write_text('{"talk": "hello"}')
    cli = Cli(tmp_path / "workspace", monkeypatch)
    for options in ((), ("--format", "talk", "--as", "cli_2")):
        (report,) = cli("import", str(tmp_path / "one.talk"), *options, "--json").document["imported"]
        assert (report["format"], report["messages"]) == ("talk", 1)
    assert any(row["name"] == "talk" for row in cli("formats", "--json").document["formats"])
    broken = cli("import", str(tmp_path / "one.talk"), "--format", "broken")
    assert "the format 'broken' cannot be loaded from some_talk:NOTHING: AttributeError" in broken.err
    assert "has one of ours" in registry.FAILED.pop("pi")
    assert registry.FAILED.pop("broken")


def test_a_format_of_another_package_that_fails_at_recognizing_is_named_once_and_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(sample: Sample) -> bool:
        raise KeyError(sample)

    reader = registry.format_named("pi").reader
    strange = Format(name="strange", about="Strange.", suffix=".x", recognize=fail, reader=reader)
    monkeypatch.setattr(registry, "others", lambda: (strange,))
    (tmp_path / "unknown.jsonl").write_text('{"of": "nobody"}\n')
    for _ in range(2):
        assert registry.recognize(Sample(lines=[{"sessionId": "x", "projectHash": "y"}])).name == "gemini-cli"
        with pytest.raises(ImportRefused, match="not a session in any known format"):
            registry.recognize(Sample(lines=[{"of": "nobody"}]))
    assert ["the format 'strange' of another package fails" in record.getMessage() for record in caplog.records] == [
        True
    ]
    cli = Cli(tmp_path / "workspace", monkeypatch)
    assert "not a session in any known format" in cli("import", str(tmp_path / "unknown.jsonl")).err


# --- shown -----------------------------------------------------------------------------------------------------------


def test_the_table_of_a_plugin_is_written_with_its_defaults_explained(tmp_path: Path, parts: str) -> None:
    package(tmp_path, "letters", channels=f"letters = {parts}:Letters\nbroken = {parts}:Nothing")
    lines = [*plugins.template("channels", "letters")]
    assert lines[:4] == ["# [channels.letters]", "", "# # where letters lie, on two lines.", '# box = "in"']
    table = configured(tmp_path, "\n".join(line.removeprefix("# ") for line in lines))
    assert (
        plugins.load(table.plugins["channels"]["letters"]).settings == importlib.import_module(parts).LettersSettings()
    )
    assert "cannot be loaded" in [*plugins.template("channels", "broken")][1]
