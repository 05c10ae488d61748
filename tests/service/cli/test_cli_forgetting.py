"""Forgetting by rule, a person's archive, legal holds: from the command line, with a daemon and without one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import anyio
import msgspec
import pytest

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.service.api.forgetting import ForgetReply
from miniclaw_sessions.service.client import Client
from miniclaw_sessions.testing import FakeClock
from tests.command_line import Cli, filled_by, serving, session_ids
from tests.sampled import sampled

pytestmark = pytest.mark.usefixtures("own_home")
ANNA = msgspec.structs.replace(Message.user("hello from Anna"), author="Anna")


def fill(workspace: Path) -> None:
    """Two sessions of today, one of them with Anna in it, and one that was last used 40 days ago."""

    async def run() -> None:
        past = FakeClock(datetime.now(UTC) - timedelta(days=40))
        async with SessionManager(workspace, clock=past) as manager:
            await (await manager.get_or_create("telegram", "old")).add_message(Message.user("long ago"))
        async with SessionManager(workspace) as manager:
            await (await manager.get_or_create("telegram", "1")).add_message(ANNA)
            await (await manager.get_or_create("web", "2")).add_message(Message.user("hello"))

    anyio.run(run)


@pytest.fixture(params=sampled(["the daemon", "the files"], every=2))
def filled(cli: Cli, request: pytest.FixtureRequest) -> Iterator[Cli]:
    filled_by(fill, cli.workspace)
    with serving(cli.workspace) if request.param == "the daemon" else nullcontext():
        yield cli


def test_a_rule_is_looked_at_first_and_needs_a_yes(filled: Cli) -> None:
    looked = filled("delete", "--channel", "telegram", "--older-than", "30d", "--dry-run")
    assert looked.status == 0, looked.err
    assert "telegram_old" in looked.out
    assert "telegram_1" not in looked.out
    rows = filled("delete", "--channel", "telegram", "--dry-run", "--json").document["sessions"]
    assert [(row["session_id"], row["entries"]) for row in rows] == [("telegram_1", 1), ("telegram_old", 1)]
    assert "nobody can be asked" in filled("delete", "--older-than", "30d").err
    assert session_ids(filled) == {"telegram_1", "telegram_old", "web_2"}
    done = filled("delete", "--older-than", "30d", "--yes")
    assert (done.status, done.out, done.err) == (0, "", "deleted 1 session\n")
    assert session_ids(filled) == {"telegram_1", "web_2"}


def test_what_was_said_between_the_look_and_the_yes_is_not_deleted(
    filled: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Client.forget

    async def look_while_others_speak(client: Client, **which: Any) -> ForgetReply:
        seen = await look(client, **which)
        if which.get("dry_run"):
            for chat_id in ("old", "1"):
                await (await client.get("telegram", chat_id)).add_message(Message.user("wait"))
        return seen

    monkeypatch.setattr(Client, "forget", look_while_others_speak)
    stays = ["telegram_old was used meanwhile and stays"]
    by_age = filled("delete", "--older-than", "30d", "--yes")
    assert by_age.err.splitlines() == ["deleted 0 sessions", *stays], "by its age it is not meant any more"
    told = filled("delete", "--channel", "telegram", "--yes").err.splitlines()
    assert told[0] == "deleted 0 sessions"
    assert sorted(told[1:]) == ["telegram_1 was used meanwhile and stays", *stays]
    monkeypatch.setattr(Client, "forget", look)
    assert session_ids(filled) == {"telegram_1", "telegram_old", "web_2"}
    assert filled("delete", "--channel", "telegram", "--yes").err == "deleted 2 sessions\n"


def test_a_person_is_taken_out_whole_and_forgotten(filled: Cli, tmp_path: Path) -> None:
    file = tmp_path / "anna.zip"
    assert filled("export", "--user", "Anna", "--output", str(file)).status == 0
    assert file.stat().st_mode & 0o777 == 0o600
    made = ZipFile(file)
    assert [row["session_id"] for row in json.loads(made.read("index.json"))["sessions"]] == ["telegram_1"]
    assert b"hello from Anna" in made.read("sessions/telegram_1.jsonl")
    gone = filled("delete", "--user", "Anna", "--yes", "--json").document
    assert [row["session_id"] for row in gone["sessions"]] == ["telegram_1"]
    assert filled("delete", "--user", "Anna", "--dry-run").err == "this means no session\n"


def test_what_is_held_stays_and_that_is_told(filled: Cli) -> None:
    assert filled("hold", "telegram_old", "case 12").err == "telegram_old is under legal hold: case 12\n"
    assert "telegram_old is under legal hold (case 12)" in filled("delete", "telegram_old", "--yes").error
    told = filled("delete", "--channel", "telegram", "--yes")
    assert told.err.splitlines() == ["deleted 1 session", "telegram_old is under legal hold (case 12) and stays"]
    assert "case 12" in filled("show", "telegram_old").out
    assert session_ids(filled) == {"telegram_old", "web_2"}
    assert filled("hold", "telegram_old", "--release").err == "telegram_old is not held\n"
    assert filled("delete", "telegram_old", "--yes").status == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["delete"], "name a session, or say which"),
        (["delete", "telegram_1", "--user", "Anna"], "name a session, or say which"),
        (["delete", "telegram_1", "--dry-run"], "one session is deleted or not"),
        (["delete", "--older-than", "soon"], "an age is a number"),
        (["hold", "telegram_1"], "say why, or give --release"),
        (["hold", "telegram_1", "why", "--release"], "say why, or give --release"),
        (["export", "--user", "Anna"], "needs a file"),
        (["export", "telegram_1", "--user", "Anna", "--output", "x"], "is for itself"),
    ],
)
def test_a_command_that_does_not_say_what_it_means_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    refused = Cli(tmp_path / "workspace", monkeypatch)(*arguments)
    assert refused.status == 2
    assert says in " ".join(refused.err.split())


def test_whoever_forgets_is_written_down_with_a_daemon_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = tmp_path / "audit"
    monkeypatch.setenv("MINICLAW_LOG_AUDIT_FILE", str(audit))
    cli = Cli(tmp_path / "workspace", monkeypatch)
    filled_by(fill, cli.workspace)
    cli("hold", "web_2", "case 12")
    cli("delete", "web_2", "--yes")
    cli("export", "--user", "Anna", "--output", str(tmp_path / "anna.zip"))
    cli("delete", "--user", "Anna", "--yes")
    cli("list")
    deeds = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(one["operation"], one["session_id"], one["status"]) for one in deeds] == [
        ("hold_session", "web_2", 200),
        ("delete_session", "web_2", 409),
        ("export_person", None, 200),
        ("export_person", "telegram_1", 200),
        ("forget_sessions", None, 200),
        ("forget_sessions", None, 200),
        ("forget_sessions", "telegram_1", 200),
    ]
    assert "Anna" not in audit.read_text()
