"""Logging: one line per record, a fixed vocabulary, and never what anybody said."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nio
import pytest
from structlog.testing import capture_logs

from miniclaw_sessions.channels.discord.channel import DiscordChannel
from miniclaw_sessions.channels.email.channel import EmailChannel
from miniclaw_sessions.channels.feishu.channel import FeishuChannel
from miniclaw_sessions.channels.matrix.channel import MatrixChannel
from miniclaw_sessions.channels.slack.channel import SlackChannel
from miniclaw_sessions.channels.telegram.channel import TelegramChannel
from miniclaw_sessions.config import LogSettings
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.log.actions import ACTIONS
from miniclaw_sessions.log.records import REPEAT_INTERVAL_S, REPEATS, configure_logging
from miniclaw_sessions.plugins import declared
from miniclaw_sessions.secret import Secret
from miniclaw_sessions.testing import FakeClock

PACKAGE = Path(__file__).resolve().parents[1] / "miniclaw_sessions"
NASTY = "a\nb\x1b[31m\x9bred\u2028<0>\u202eevil\x7f\ud800"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class Log:
    """What was written, as lines and as records."""

    def __init__(self, clock: FakeClock, stream: io.StringIO, **settings: Any) -> None:
        configure_logging(LogSettings(**settings), stream=stream, clock=clock)
        self.stream = stream
        self.log = get_logger("test")

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def service(clock: FakeClock) -> Log:
    return Log(clock, io.StringIO())


# --- the form --------------------------------------------------------------------------------------------------------


def test_a_service_writes_one_json_object_per_record_with_the_fixed_keys_first(service: Log) -> None:
    service.log.info("messages were saved", action="flush.done", written=3, session_id="cli_me")
    assert list(service.records[0])[:5] == ["time", "level", "event", "action", "session_id"]
    assert service.records[0] | {"time": ""} == {
        "time": "",
        "level": "info",
        "event": "messages were saved",
        "action": "flush.done",
        "session_id": "cli_me",
        "written": 3,
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", service.records[0]["time"])


def test_nothing_in_a_record_can_forge_another_line_or_reach_the_terminal(service: Log) -> None:
    sentence = "odd " + NASTY
    service.log.warning(sentence, action="commit.failed", session_id=NASTY, file=[NASTY], reason=NASTY)
    raw = service.stream.getvalue()
    assert raw.count("\n") == 1
    assert raw.isascii()
    assert raw.rstrip("\n").isprintable()


def test_a_terminal_shows_control_characters_instead_of_obeying_them(clock: FakeClock) -> None:
    log = Log(clock, Terminal())
    log.log.warning("odd\x1b[31m", action="commit.failed", session_id=NASTY, names=[NASTY])
    raw = log.stream.getvalue()
    assert raw.count("\n") == 1
    colourless = re.sub(r"\x1b\[[0-9;]*m", "", raw.rstrip("\n"))
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u202e\ud800]", colourless)
    assert "odd\\x1b[31m" in colourless
    assert "\x1b[31mred" not in raw


@pytest.mark.parametrize(
    ("setting", "stream", "is_json"),
    [
        ("auto", io.StringIO, True),
        ("auto", Terminal, False),
        ("json", Terminal, True),
        ("pretty", io.StringIO, False),
    ],
)
def test_the_format_follows_the_setting_and_auto_follows_the_stream(
    clock: FakeClock, setting: str, stream: type[io.StringIO], is_json: bool
) -> None:
    log = Log(clock, stream(), format=setting)
    log.log.info("hello", action="daemon.ready")
    assert log.lines[0].startswith("{") is is_json


def test_pretty_in_a_file_has_no_colours(clock: FakeClock) -> None:
    log = Log(clock, io.StringIO(), format="pretty")
    log.log.error("hello", action="daemon.ready")
    assert "\x1b" not in log.stream.getvalue()


def test_records_below_the_level_are_not_written(clock: FakeClock) -> None:
    log = Log(clock, io.StringIO(), level="warning")
    log.log.info("not this", action="flush.done")
    log.log.warning("but this", action="flush.failed")
    assert [record["event"] for record in log.records] == ["but this"]


def test_a_stream_that_is_gone_does_not_hurt_who_logs(clock: FakeClock) -> None:
    stream = io.StringIO()
    log = Log(clock, stream)
    stream.close()
    log.log.error("nobody hears", action="flush.failed")


def test_existing_loggers_follow_a_new_configuration(clock: FakeClock, service: Log) -> None:
    service.log.info("one", action="flush.done")
    other = Log(clock, io.StringIO())
    service.log.info("two", action="flush.done")
    assert [record["event"] for record in other.records] == ["two"]


def test_a_service_loads_no_terminal_library_for_its_log() -> None:
    program = (
        "import sys; from miniclaw_sessions.config import LogSettings; from miniclaw_sessions.log import get_logger; "
        "from miniclaw_sessions.log.records import configure_logging; configure_logging(LogSettings(format='json')); "
        "get_logger('a').info('hello', action='daemon.ready'); print({'structlog', 'rich'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, '"event": "hello"' in done.stderr) == ("set()\n", True)


def test_a_program_that_configures_structlog_afterwards_gets_the_records_there(service: Log) -> None:
    with capture_logs() as logged:
        service.log.info("elsewhere", action="flush.done")
    assert [record["event"] for record in logged] == ["elsewhere"]
    assert service.lines == []


# --- what is kept out ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["content", "text", "message", "message_text", "arguments", "token", "api_key", "Body"])
def test_keys_that_could_hold_text_or_secrets_are_refused(service: Log, key: str) -> None:
    service.log.info("something", action="flush.done", **{key: "the secret plan"})
    assert service.records[0][key] == "<refused>"
    assert "secret plan" not in service.stream.getvalue()


def test_numbers_are_welcome_under_any_key(service: Log) -> None:
    service.log.info("recovered", action="recovery.done", messages=7, summary=None)
    assert service.records[0]["messages"] == 7


@pytest.mark.parametrize(
    "value",
    [
        Message.user("the secret plan"),
        {"a": "the secret plan"},
        [Message.user("the secret plan")],
        [["the secret plan"]],
        b"the secret plan",
        Secret("the secret plan"),
    ],
)
def test_values_that_are_not_plain_show_only_their_type(service: Log, value: Any) -> None:
    service.log.info("something", action="flush.done", detail=value)
    assert "secret plan" not in service.stream.getvalue()
    assert "<" in json.dumps(service.records[0]["detail"])


def test_long_values_and_long_lists_are_cut(service: Log) -> None:
    service.log.info("x" * 5_000, action="flush.done", session_id="i" * 5_000, names=["n" * 5_000] * 5_000)
    assert len(service.lines[0]) < 48 * 1024
    assert service.records[0]["names"][-1] == "and 4980 more"
    assert service.records[0]["session_id"].endswith("...")


def test_only_the_first_line_of_an_error_is_written_because_databases_quote_parameters_after_it(service: Log) -> None:
    error = ValueError("disk I/O error\n[parameters: ('the secret plan',)]")
    service.log.warning("failed", action="commit.failed", error=str(error), cause=error)
    assert service.records[0]["error"] == "disk I/O error..."
    assert "secret plan" not in service.stream.getvalue()


def test_an_exception_is_told_by_type_and_place_without_source_or_values(service: Log) -> None:
    def fail(said: str) -> None:
        raise RuntimeError(said)

    try:
        fail("the secret plan")
    except RuntimeError:
        service.log.exception("unexpected", action="http.failed")
    record = service.records[0]
    assert (record["error_type"], "error" in record) == ("RuntimeError", False)
    assert record["where"][-1].endswith(" fail")
    assert "secret plan" not in service.stream.getvalue()


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error", "exception", "critical"])
def test_a_program_that_configured_no_log_of_ours_gets_every_record_in_its_own(
    caplog: pytest.LogCaptureFixture, level: str
) -> None:
    caplog.set_level(logging.DEBUG)
    getattr(get_logger("test"), level)("100 % gone", action="http.failed", status=500)
    (record,) = caplog.records
    assert record.levelname == ("ERROR" if level == "exception" else level.upper())
    assert record.getMessage() == "100 % gone (action='http.failed' status=500)"


# --- floods ----------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_warning_that_repeats_itself_is_counted_instead_of_written(service: Log, clock: FakeClock) -> None:
    for number in range(100):
        service.log.warning("failed", action="flush.failed", reason="No space left", session_id=f"s_{number}")
    assert len(service.lines) == REPEATS
    await clock.advance(REPEAT_INTERVAL_S)
    service.log.warning("failed again", action="flush.failed", reason="No space left")
    assert service.records[-1]["suppressed"] == 100 - REPEATS


def test_another_reason_or_action_is_not_held_back(service: Log) -> None:
    for _ in range(20):
        service.log.warning("failed", action="flush.failed", reason="No space left")
    service.log.warning("failed", action="flush.failed", reason="Read-only file system")
    service.log.warning("failed", action="commit.failed", reason="No space left")
    assert len(service.lines) == REPEATS + 2


def test_ordinary_records_are_never_held_back(service: Log) -> None:
    for _ in range(50):
        service.log.info("saved", action="flush.done")
    assert len(service.lines) == 50


# --- other libraries -------------------------------------------------------------------------------------------------


def test_other_libraries_warnings_come_the_same_way(service: Log) -> None:
    logging.getLogger("some.library").warning("bad %s", "thing\n<0>forged")
    logging.getLogger("asyncio").error("broken", exc_info=ValueError("why"))
    first, second = service.records
    assert (first["action"], first["logger"], first["level"]) == ("library", "some.library", "warning")
    assert first["event"] == "bad thing..."
    assert second["error_type"] == "ValueError"


@pytest.mark.parametrize("name", ["sqlalchemy.engine.Engine", "alembic.runtime", "httpx2", "openai", "asyncio"])
def test_other_libraries_may_not_say_more_than_warnings_even_when_debugging(clock: FakeClock, name: str) -> None:
    log = Log(clock, io.StringIO(), level="debug")
    logging.getLogger(name).info("INSERT INTO entry VALUES (%s)", "the secret plan")
    logging.getLogger(name).debug("the secret plan")
    assert log.lines == []


LIBRARIES: dict[str, tuple[Any, str, dict[str, Any], str]] = {
    "telegram": (TelegramChannel, "token_file", {}, "telegram"),
    "email": (EmailChannel, "password_file", {"address": "bot@example.org", "imap_host": "localhost"}, "imapclient"),
    "discord": (DiscordChannel, "token_file", {}, "discord"),
    "matrix": (MatrixChannel, "token_file", {"homeserver": "https://example.org"}, "nio"),
    "feishu": (FeishuChannel, "secret_file", {"app_id": "cli_a1"}, "aiohttp"),
    "slack": (SlackChannel, "token_file", {}, "slack_sdk"),
}
"""Of each channel the settings that it needs, and the library that could log what people say there."""


@pytest.mark.parametrize("name", sorted(declared("channels").keys() - {"web", "whatsapp"}))  # which have no library
def test_no_library_of_a_channel_logs_what_people_say_there(
    clock: FakeClock, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACK_APP_TOKEN", "xapp-1-A")
    secret = tmp_path / "secret"
    secret.write_text("1:secret")
    secret.chmod(0o600)
    channel, secret_file, settings, library = LIBRARIES[name]
    logging.getLogger(library).setLevel(logging.NOTSET)  # another test may have made one
    channel(name, channel.Settings(**settings, **{secret_file: str(secret)}))
    log = Log(clock, io.StringIO(), level="debug")
    logging.getLogger(f"{library}.any.part").critical("malformed: 'the secret plan'")
    if name == "matrix":
        event = {"event_id": "$1", "sender": "@a:b", "type": "m.room.message", "origin_server_ts": 1}
        nio.Event.parse_event({**event, "content": {"msgtype": "m.text", "body": {"the secret plan": ""}}})
    assert log.lines == []


def test_arguments_that_do_not_fit_their_format_do_not_hurt(service: Log) -> None:
    record = logging.makeLogRecord(
        {"name": "somebody", "msg": "%d", "args": ("no number",), "levelno": logging.WARNING}
    )
    for handler in logging.getLogger().handlers:
        if type(handler).__module__ == "miniclaw_sessions.log.records":
            handler.emit(record)
    assert service.records[0]["event"] == "%d"


def test_configuring_twice_writes_every_record_once(clock: FakeClock, service: Log) -> None:
    del service
    again = Log(clock, io.StringIO())
    logging.getLogger("somebody").warning("once")
    assert len(again.lines) == 1


# --- the vocabulary --------------------------------------------------------------------------------------------------


def used_actions() -> set[str]:
    sources = [path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "records.py"]
    return {action for source in sources for action in re.findall(r'action="([^"]*)"', source)}


def test_every_action_that_the_package_logs_is_in_the_vocabulary() -> None:
    assert used_actions() - ACTIONS.keys() == set()


def test_every_action_of_the_vocabulary_is_logged_somewhere() -> None:
    assert ACTIONS.keys() - used_actions() == {"library"}


def test_every_log_call_has_an_action() -> None:
    calls = [
        f"{path.name}: {call}"
        for path in PACKAGE.rglob("*.py")
        if path.name != "records.py"
        for call in re.findall(
            r"\blog\.(?:debug|info|warning|error|critical|exception)\((?:[^()]|\([^()]*\))*\)", path.read_text()
        )
        if "action=" not in call
    ]
    assert calls == []


def test_the_vocabulary_is_sorted_and_each_name_has_a_meaning() -> None:
    assert list(ACTIONS) == sorted(ACTIONS)
    assert all(re.fullmatch(r"[a-z]+(\.[a-z_]+)?", name) and meaning for name, meaning in ACTIONS.items())
