"""Searching on the command line: what people see, what scripts get, and what both are told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from miniclaw_sessions import Message, SessionManager, ToolCall
from miniclaw_sessions.errors import SessionsError
from miniclaw_sessions.service.cli.search import moment
from tests.command_line import NASTY, UNSAFE, Cli, Terminal, filled_by, serving
from tests.sampled import sampled

_STYLES = re.compile(r"\x1b\[[0-9;]*m")

pytestmark = pytest.mark.usefixtures("own_home")


def fill(workspace: Path) -> None:
    async def run() -> None:
        async with SessionManager(workspace) as manager:
            session = await manager.get_or_create("telegram", 1)
            session.update(title=f"Holidays {NASTY}")
            first = await session.add_message(Message.user("A flight to Rome?"))
            call = ToolCall("c1", "flights", '{"to": "Rome"}')
            await session.add_message(Message.assistant("I'll look.", (call,)))
            await session.add_message(Message.tool_result(call, "Rome: full"))
            await session.tree.branch(first.id)
            await session.add_message(Message.assistant(f"By train to Rome {NASTY}"))
            other = await manager.get_or_create("slack", 2)
            await other.add_message(Message.user("chrome"))

    anyio.run(run)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    cli = Cli(tmp_path / "workspace", monkeypatch)
    filled_by(fill, cli.workspace)
    return cli


@pytest.fixture(params=sampled(["daemon", "files"], every=2))
def cli(files: Cli, request: pytest.FixtureRequest) -> Iterator[Cli]:
    with serving(files.workspace) if request.param == "daemon" else nullcontext():
        yield files


def rows(out: str) -> list[list[str]]:
    """Session, number, speaker and text of each line that a script gets."""
    return [[cell for number, cell in enumerate(line.split("\t")) if number != 2] for line in out.splitlines()]


def test_a_script_gets_a_line_for_each_result_that_show_can_read_on_from(cli: Cli) -> None:
    result = cli("search", "rome", "--limit", "2")
    assert result.status == 0
    assert "there is more" in result.err
    (train, flight) = rows(result.out)
    assert train[:3] == ["telegram_1", "6", "assistant"]
    assert flight == ["telegram_1", "2", "user", "A flight to Rome?"]
    shown = cli("show", train[0], "--around", train[1], "--json").document["entries"]
    assert [entry["sequence"] for entry in shown] == list(range(1, 7))
    assert not UNSAFE.search(result.out.replace("\t", ""))


def test_a_document_has_results_with_pieces_and_goes_on(cli: Cli) -> None:
    page = cli("search", "flight rome", "--json", "--limit", "1").document
    (result,) = page["results"]
    assert [piece["text"] for piece in result["snippet"] if piece.get("match")] == ["flight", "Rome"]
    following = cli("search", "flight rome", "--json", "--cursor", page["next"]).document
    assert [one["sequence"] for one in following["results"]] == [3]
    assert following["next"] is None


def test_options_narrow_a_search(cli: Cli) -> None:
    for options, found in (
        (["--channel", "slack"], ["slack_2"]),
        (["--chat", "holidays"], ["telegram_1"] * 4),
        (["--role", "tool"], ["telegram_1"]),
        (["--tool", "flights"], ["telegram_1"] * 2),
        (["--author", "nobody"], []),
        (["--branch", "current"], ["telegram_1"] * 2 + ["slack_2"]),
        (["--since", "1h", "--until", "today"], ["telegram_1"] * 2 + ["slack_2"] + ["telegram_1"] * 2),
        (["--until", "yesterday"], []),
        (["--newest", "--limit", "1"], ["slack_2"]),
        (["--", "-train", "-flight"], ["slack_2", "telegram_1"]),
    ):
        result = cli("search", "rome", *options)
        assert sorted(row[0] for row in rows(result.out)) == sorted(found), options


def test_nothing_found_comes_with_a_hint(cli: Cli) -> None:
    result = cli("search", "rome", "paris", "--role", "user")
    assert (result.status, result.out) == (0, "")
    assert "nothing was found; all words must occur in one message" in result.err
    assert "leave out --role" in result.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["search", "x", "--role", "nobody"], "there is no role 'nobody'; there are"),
        (["search", "x", "--since", "soon"], "'soon' is no time"),
        (["search", "x", "--branch", "main"], ""),
        (["search", "x", "--cursor", "y"], "the cursor is not one"),
        (["search", "x", "--chat", "nobody_1"], "no session 'nobody_1'"),
        (["search", "x" * 5_000], "5,000 characters"),
        (["show", "telegram_1", "--around", "99"], "no entry '99'"),
        (["show", "telegram_1", "--around", "nonsense"], "no entry 'nonsense'"),
        (["show", "telegram_1", "--around", "9" * 4_000], "no entry"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(files: Cli, arguments: list[str], told: str) -> None:
    result = files(*arguments)
    assert (result.status, result.out) == (1, "")
    assert told in result.error


@pytest.mark.parametrize("words", [[], [""], ["--chat", "telegram_1"]])
def test_a_search_for_nothing_is_wrong_usage(files: Cli, words: list[str]) -> None:
    result = files("search", *words)
    assert (result.status, result.out) == (2, "")
    assert "nothing to search for" in result.error


@pytest.mark.proof
def test_in_a_terminal_results_stand_under_their_session_with_the_words_marked(files: Cli) -> None:
    terminal = Terminal(files.workspace, "search", "rome")
    assert terminal.end() == 0
    assert "\x1b[1;33mRome" in terminal.seen
    plain = _STYLES.sub("", terminal.seen)
    assert (
        plain.index("telegram_1  Holidays") < plain.index("By train") < plain.index("A flight") < plain.index("slack_2")
    )
    assert plain.count("telegram_1  Holidays") == 1
    assert "(on a branch that was left)" in plain
    assert "read on: show telegram_1 --around 6" in plain
    assert not UNSAFE.search(plain.replace("\r\n", "\n"))


def test_what_surrounds_a_place_is_shown_with_the_place_marked(files: Cli) -> None:
    shown = files("show", "telegram_1", "--around", "2").out
    before, _, after = shown.partition("▶ 2")
    assert "Holidays" in before
    assert after.index("A flight to Rome?") < after.index("I'll look.") < after.index("By train")
    (result,) = files("search", "train", "--json").document["results"]
    assert "▶ 6" in files("show", "telegram_1", "--around", result["entry_id"]).out


def test_times_are_understood_as_people_write_them() -> None:
    now = datetime(2026, 3, 10, 12, tzinfo=UTC)
    assert moment("3d", now) == now - timedelta(days=3)
    assert moment("90 min", now) == now - timedelta(minutes=90)
    assert moment("2026-01-31T12:00+02:00", now) == datetime(2026, 1, 31, 10, tzinfo=UTC)
    day = moment("2026-01-31", now)
    assert day == datetime(2026, 1, 31).astimezone(UTC)
    assert moment("2026-01-31", now, ends=True) - day == timedelta(days=1)
    assert moment("today", now) <= now < moment("today", now, ends=True)
    assert moment("today", now) - moment("yesterday", now) == timedelta(days=1)
    for nonsense in ("", "soon", "999999y", "9999-12-31T23:59-23:59", "3 d ago"):
        with pytest.raises(SessionsError, match="is no time"):
            moment(nonsense, now)
