"""Backups, expired sessions, another store, lost messages: from the command line, with a daemon and without one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import orjson
import pytest

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.disk import DirectoryLock
from miniclaw_sessions.testing import FakeClock
from tests.command_line import Cli, filled_by, serving, session_ids
from tests.sampled import sampled

pytestmark = pytest.mark.usefixtures("own_home")


def fill(workspace: Path, store: str = "sqlite:") -> None:
    """Two sessions of today, and one that was last used 40 days ago."""

    async def run() -> None:
        past = FakeClock(datetime.now(UTC) - timedelta(days=40))
        async with SessionManager(workspace, store=store, clock=past) as manager:
            old = await manager.get_or_create("telegram", "old")
            await old.save_turn([Message.user("long ago"), Message.assistant("yes")])
        async with SessionManager(workspace, store=store) as manager:
            for chat_id in ("1", "2"):
                session = await manager.get_or_create("telegram", chat_id)
                await session.save_turn([Message.user("hello"), Message.assistant("hi")])

    anyio.run(run)


@pytest.fixture(params=sampled(["the daemon", "the files"], every=2))
def filled(cli: Cli, request: pytest.FixtureRequest) -> Iterator[Cli]:
    """A command line on a workspace, which a daemon holds, or nobody."""
    filled_by(fill, cli.workspace)
    at = orjson.dumps({"telegram_2": {"messages": 7, "at": "2026-01-01T00:00:00Z"}})
    (cli.workspace / "losses.json").write_bytes(at)
    with serving(cli.workspace) if request.param == "the daemon" else nullcontext():
        yield cli


def test_a_workspace_is_backed_up_verified_and_restored(
    filled: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "backup"
    made = filled("backup", str(target), "--json")
    assert made.status == 0, made.err
    assert (made.document["sessions"], made.document["entries"], made.document["problems"]) == (3, 6, [])
    assert "it is there already" in filled("backup", str(target)).error
    assert filled("backup", "--verify", str(target)).out.startswith("verified: 3 sessions, 6 entries")

    other = Cli(tmp_path / "other", monkeypatch)
    assert other("restore", str(target)).status == 0
    assert session_ids(other) == session_ids(filled)
    assert other("export", "telegram_old").out == filled("export", "telegram_old").out
    refused = other("restore", str(target)).error
    assert "there is a workspace already" in refused
    assert "--workspace names another" in refused
    with serving(other.workspace):
        assert "there is a workspace already, which a process uses" in other("restore", str(target)).error


def test_a_damaged_backup_is_told_by_its_status_and_not_restored(
    filled: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "backup"
    assert filled("backup", str(target)).status == 0
    with (target / "sessions" / "telegram_1.json").open("ab") as file:
        file.write(b" ")
    found = filled("backup", "--verify", str(target), "--json")
    assert (found.status, len(found.document["problems"])) == (1, 1)
    assert "\ndamaged, with 1 problem: 3 sessions" in filled("backup", "--verify", str(target)).out
    other = Cli(tmp_path / "other", monkeypatch)
    assert "is damaged" in other("restore", str(target)).error
    assert other("restore", str(target), "--damaged").status == 0


def test_a_copy_that_lacks_something_is_told_by_its_status_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli, target = Cli(tmp_path / "workspace", monkeypatch), tmp_path / "backup"
    filled_by(fill, cli.workspace)
    database = cli.workspace / "sessions.db"
    database.write_bytes(database.read_bytes().replace(b"long ago", b"lonh ago"))
    checked = cli("check", "--json")
    assert (checked.status, len(checked.document["problems"])) == (1, 2)
    made = cli("backup", str(target))
    assert made.status == 1
    assert "problem: entry 1 of session telegram_old is damaged" in made.out
    assert "backed up, with 1 problem: 3 sessions, 5 entries" in made.out
    verified = cli("backup", "--verify", str(target))
    assert verified.status == 0
    assert "missing since it was made: entry 1 of session telegram_old is damaged" in verified.out
    for arguments in (["--all", "--output", str(tmp_path / "all")], ["telegram_old"]):
        exported = cli("export", *arguments)
        assert exported.status == 1
        assert "entry" in exported.err
        assert "is damaged and is left out" in exported.err
    (problem,) = cli("export", "--all", "--output", str(tmp_path / "all"), "--json").document["problems"]
    assert problem.startswith("telegram_old: entry ")
    moved = cli("migrate", "--to", "jsonl:", "--json")
    assert (moved.status, moved.document["entries"], len(moved.document["problems"])) == (1, 5, 1)


def test_what_has_expired_is_listed_swept_and_brought_back(filled: Cli) -> None:
    said = filled("export", "telegram_old", "--format", "openai").out
    assert "long ago" in said
    assert filled("sweep", "--dry-run").out == "telegram_old\n"
    assert "telegram_old" in session_ids(filled)
    assert filled("sweep", "--json").document["sessions"] == ["telegram_old"]
    assert "telegram_old" not in session_ids(filled)
    assert filled("unarchive", "telegram_old", "--json").document["session_id"] == "telegram_old"
    assert filled("export", "telegram_old", "--format", "openai").out == said
    assert "nothing to restore" in filled("unarchive", "telegram_old").error


def test_what_has_expired_is_deleted_by_its_id(filled: Cli) -> None:
    assert filled("sweep", "--json").document["sessions"] == ["telegram_old"]
    said = b"long ago"
    assert any(said in path.read_bytes() for path in (filled.workspace / "archive").iterdir())
    assert "add --yes" in filled("delete", "telegram_old").error
    assert "no session" in filled("delete", "telegram_ol", "--yes").error
    deleted = filled("delete", "telegram_old", "--yes", "--json").document
    assert deleted == {"deleted": True, "session_id": "telegram_old", "remains": []}
    assert list((filled.workspace / "archive").iterdir()) == []
    files = [path for path in filled.workspace.rglob("*") if path.is_file()]
    assert [path.name for path in files if said in path.read_bytes()] == []
    assert "no session" in filled("delete", "telegram_old", "--yes").error
    assert session_ids(filled) == {"telegram_1", "telegram_2"}


def test_an_expired_session_is_meant_before_one_whose_id_begins_like_it(filled: Cli, tmp_path: Path) -> None:
    (tmp_path / "another.jsonl").write_text(filled("export", "telegram_1").out)
    assert filled("import", "--as", "telegram_old2", str(tmp_path / "another.jsonl")).status == 0
    assert filled("sweep", "--json").document["sessions"] == ["telegram_old"]
    assert filled("delete", "telegram_old", "--yes", "--json").document["session_id"] == "telegram_old"
    assert "telegram_old2" in session_ids(filled)


def test_what_was_typed_is_named_as_what_remains(filled: Cli) -> None:
    typed = Path("~/.miniclaw/chat_history").expanduser()
    typed.parent.mkdir(exist_ok=True)
    typed.write_text("+hello\n")
    (sentence,) = filled("delete", "telegram_1", "--yes", "--json").document["remains"]
    assert str(typed) in sentence
    assert f"remains: {typed}" in filled("delete", "telegram_2", "--yes").err
    typed.unlink()
    assert "remains" not in filled("delete", "telegram_old", "--yes").err


def test_what_was_lost_is_told_until_it_is_acknowledged(filled: Cli) -> None:
    assert "telegram_2 has lost 7 older messages" in filled("list").err
    found = filled("check", "--json")
    assert found.status == 1
    assert any("7 older messages were lost" in problem for problem in found.document["problems"])
    assert filled("check", "--acknowledge-losses").status == 0
    assert filled("list").err == ""


def test_every_session_is_exported_to_a_file_of_its_own_and_what_was_cut_off_goes_on(
    filled: Cli, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    first = filled("export", "--all", "--output", str(target), "--json").document
    assert ({Path(one["output"]).name for one in first["exported"]}, first["left"]) == (
        {"telegram_1.jsonl", "telegram_2.jsonl", "telegram_old.jsonl"},
        0,
    )
    assert (target / "telegram_1.jsonl").read_text() == filled("export", "telegram_1").out
    (target / "telegram_1.jsonl").unlink()
    again = filled("export", "--all", "--output", str(target), "--json").document
    assert ([one["session_id"] for one in again["exported"]], again["left"]) == (["telegram_1"], 2)


def test_nothing_is_stopped_where_nothing_is_answered(filled: Cli) -> None:
    result = filled("stop", "telegram_1")
    assert "nothing is being answered" in result.err


@pytest.mark.parametrize("filled", ["the files"], indirect=True)
def test_stop_beside_a_process_that_does_not_answer_says_so(filled: Cli) -> None:
    lock = DirectoryLock(filled.workspace)  # as a chat in its own process holds it
    try:
        told = filled("stop", "telegram_1").error
    finally:
        lock.release()
    assert told == f"process {os.getpid()} holds this workspace and does not answer; stop there what it is answering"


@pytest.mark.parametrize("filled", ["the files"], indirect=True)
def test_a_store_is_migrated_and_the_old_one_stays(filled: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = filled("export", "telegram_1").out
    planned = filled("migrate", "--to", "jsonl:", "--dry-run")
    assert planned.out == "3 sessions would be copied to jsonl:: 6 entries of 6 are not there\n"
    assert not (filled.workspace / "transcripts").exists()
    assert filled("migrate", "--to", "jsonl:", "--json").document["written"] == 6
    assert (filled.workspace / "sessions.db").exists()
    again = filled("migrate", "--to", "jsonl:")
    assert again.out.splitlines() == [
        "jsonl: has 3 sessions, 6 entries, all checksums agree; 0 entries written now",
        "now set sessions.store to 'jsonl:'",
    ]
    monkeypatch.setenv("MINICLAW_SESSIONS_STORE", "jsonl:")
    assert filled("export", "telegram_1").out == whole


def test_a_workspace_knows_its_own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = Cli(tmp_path / "workspace", monkeypatch)
    monkeypatch.setenv("MINICLAW_SESSIONS_STORE", "jsonl:")
    fill(cli.workspace, "jsonl:")
    whole = cli("export", "telegram_1").out
    monkeypatch.delenv("MINICLAW_SESSIONS_STORE")
    assert cli("check").status == 0
    assert cli("export", "telegram_1").out == whole
    assert cli("backup", str(tmp_path / "backup"), "--json").document["entries"] == 6
    other = Cli(tmp_path / "other", monkeypatch)
    assert other("restore", str(tmp_path / "backup"), "--json").document["store"] == "jsonl:"
    assert other("export", "telegram_1").out == whole
    (tmp_path / "key").write_text(f"{'A' * 43}=\n")
    (tmp_path / "key").chmod(0o600)
    assert other("rekey", "--key-file", str(tmp_path / "key"), "--json").document["entries"] == 6
    assert not [path for path in other.workspace.rglob("*") if path.is_file() and b"hello" in path.read_bytes()]
    assert cli("migrate", "--to", "sqlite:", "--json").document["entries"] == 6
    told = cli("rekey", "--key-file", str(tmp_path / "key"))
    assert f"another store, and left as it is; remove it if it is an old one: {cli.workspace}/transcripts" in told.out


def test_a_store_that_is_not_the_workspace_s_is_not_begun_beside_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli(tmp_path / "workspace", monkeypatch)
    filled_by(fill, cli.workspace)
    monkeypatch.setenv("MINICLAW_SESSIONS_STORE", "jsonl:")
    for arguments in (["list"], ["backup", str(tmp_path / "backup")], ["sweep"], ["delete", "telegram_1", "--yes"]):
        result = cli(*arguments)
        assert result.status == 1
        assert "Set sessions.store (MINICLAW_SESSIONS_STORE) to 'sqlite:'" in result.error
    assert not (cli.workspace / "transcripts").exists()


def test_a_backup_without_transcripts_says_how_many_sessions_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli(tmp_path / "workspace", monkeypatch)
    monkeypatch.setenv("MINICLAW_SESSIONS_STORE", "none:")
    fill(cli.workspace, "none:")
    told = "3 sessions, no transcripts (none:), 3 files"
    assert f"backed up: {told}" in cli("backup", str(tmp_path / "backup")).out
    assert f"verified: {told}" in cli("backup", "--verify", str(tmp_path / "backup")).out
    monkeypatch.delenv("MINICLAW_SESSIONS_STORE")  # which tells nothing of the backup
    other = Cli(tmp_path / "other", monkeypatch)
    assert other("restore", str(tmp_path / "backup")).status == 0
    assert session_ids(other) == {"telegram_1", "telegram_2", "telegram_old"}


@pytest.mark.parametrize("filled", ["the daemon"], indirect=True)
def test_a_store_is_migrated_while_its_daemon_uses_it_which_is_told(filled: Cli, tmp_path: Path) -> None:
    pid = (filled.workspace / ".lock").read_text().strip()
    moved = filled("migrate", "--to", str(tmp_path / "new"))
    assert moved.status == 0
    assert f"process {pid} uses the source: stop it and run this again, which copies what was said since" in moved.out
    assert filled("rename", "telegram_1", "Another title").status == 0
    moved = filled("migrate", "--from", str(filled.workspace), "--to", str(tmp_path / "new"), "--json")
    assert (moved.document["written"], moved.document["held_by"]) == (1, int(pid))
    assert "holds it" in filled("migrate", "--from", str(tmp_path / "new"), "--to", "sqlite:").error
