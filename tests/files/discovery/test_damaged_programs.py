"""Damage in the databases and files of the newer programs costs what it hits, and nothing beside it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.discovery import databases
from miniclaw_sessions.files.discovery.databases import lines_of, sessions_in
from miniclaw_sessions.files.discovery.programs import programs_named
from miniclaw_sessions.files.formats.registry import format_named
from tests.files.discovery.test_follower import following
from tests.files.discovery.test_same_names import taken
from tests.files.formats.codec_files import check, read
from tests.programs import aider, amp, crush, cursor, goose, open_webui

WRONG = ["NULL", "5", "'x'", "x'ff'", """'{"a": '""", "'[]'", "'[5, null]'", "'{}'"]
PLACES: dict[str, tuple[Callable[[Path], int], Path]] = {
    "goose": (goose.put, goose.PLACE / "sessions.db"),
    "crush": (crush.put, Path("project/.crush/crush.db")),
    "cursor": (cursor.put, cursor.PLACE / "globalStorage/state.vscdb"),
    "open-webui": (open_webui.put, Path(".open-webui/webui.db")),
}


def columns(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return [
        (table, column[1])
        for table in tables
        if not table.startswith("sqlite_")
        for column in connection.execute(f'PRAGMA table_info("{table}")')
    ]


@pytest.mark.parametrize("program", PLACES)
def test_any_value_in_any_column_of_one_row_is_read_or_refused_and_never_stops_more(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "_KNOWN", {})
    put, place = PLACES[program]
    put(tmp_path)
    path, form = tmp_path / place, format_named(program)
    whole = path.read_bytes()
    connection = sqlite3.connect(path)
    every = columns(connection)
    connection.close()
    for table, column in every:
        for wrong in WRONG:
            path.write_bytes(whole)
            writer = sqlite3.connect(path)
            writer.execute("PRAGMA ignore_check_constraints = ON")
            try:
                row = f'(SELECT max(rowid) FROM "{table}")'
                writer.execute(f'UPDATE "{table}" SET "{column}" = {wrong} WHERE rowid = {row}')
                writer.commit()
            except sqlite3.IntegrityError:
                continue  # its program could not have written it
            finally:
                writer.close()
            databases._KNOWN.clear()
            try:
                listed = sessions_in(program, path)
                found = [read(form, [*lines_of(program, path, one.id)]) for one in listed]
            except ImportRefused:
                continue
            for one in found:
                check(one)


@pytest.mark.parametrize(
    ("program", "query"),
    [
        ("goose", "UPDATE messages SET content_json = 'torn' WHERE id = 1"),
        ("crush", "UPDATE messages SET parts = 'torn' WHERE id = 'm1'"),
        ("cursor", "UPDATE cursorDiskKV SET value = 'torn' WHERE key LIKE 'bubbleId:%:b1'"),
    ],
)
def test_a_message_that_is_torn_costs_only_itself(tmp_path: Path, program: str, query: str) -> None:
    put, place = PLACES[program]
    put(tmp_path)
    path, form = tmp_path / place, format_named(program)
    before = [read(form, [*lines_of(program, path, one.id)]).said for one in sessions_in(program, path)]
    with sqlite3.connect(path) as writer:
        writer.execute(query)
    writer.close()
    after = [read(form, [*lines_of(program, path, one.id)]).said for one in sessions_in(program, path)]
    assert sum(map(len, after)) == sum(map(len, before)) - 1
    assert after[-1] == before[-1][1:]


@pytest.mark.parametrize("program", PLACES)
def test_a_database_of_something_else_is_refused_alone(tmp_path: Path, program: str) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as writer:
        writer.execute("CREATE TABLE other (id)")
    writer.close()
    with pytest.raises(ImportRefused, match="it has not the tables that"):
        sessions_in(program, path)
    (tmp_path / "torn.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 4_096)
    with pytest.raises(ImportRefused):
        sessions_in(program, tmp_path / "torn.db")


def test_environment_and_system_say_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def places(name: str, **environ: str) -> list[Path]:
        (program,) = programs_named([name])
        return [*program.places(environ, tmp_path), *program.databases(environ, tmp_path)]

    assert Path("/g/data/sessions/sessions.db") in places("goose", GOOSE_PATH_ROOT="/g")
    assert Path("/x/goose/sessions") in places("goose", XDG_DATA_HOME="/x")
    assert Path("/h/session-state") in places("copilot-cli", COPILOT_HOME="/h")
    assert Path("/d/webui.db") in places("open-webui", DATA_DIR="/d")
    assert Path("/a") in places("amp", AMP_THREADS_DIR="/a")
    assert Path("/c/Cursor/User/globalStorage/state.vscdb") in places("cursor", XDG_CONFIG_HOME="/c")
    monkeypatch.setattr("miniclaw_sessions.files.discovery.places.sys.platform", "darwin")
    support = tmp_path / "Library/Application Support"
    assert support / "Cursor/User/globalStorage/state.vscdb" in places("cursor")
    assert support / "open-webui/data/webui.db" in places("open-webui")
    assert support / "Block/goose/sessions/sessions.db" in places("goose")


@pytest.mark.anyio
async def test_a_history_of_aider_is_recognized_when_it_is_imported_by_hand(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        aider.put(tmp_path)
        reply = await ours.client.import_file(tmp_path / "project/.aider.chat.history.md")
        assert (reply.format, reply.messages) == ("aider", 5)


@pytest.mark.anyio
async def test_one_id_in_two_programs_is_two_sessions(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        crush.put(ours.home)
        rows: dict[str, Any] = {**cursor.COMPOSER, "composerId": crush.ID, "conversation": cursor.OLD["conversation"]}
        rows["fullConversationHeadersOnly"] = []
        cursor.put(ours.home)
        with sqlite3.connect(ours.home / cursor.PLACE / "globalStorage/state.vscdb") as writer:
            writer.execute("INSERT INTO cursorDiskKV VALUES (?, ?)", [f"composerData:{crush.ID}", json.dumps(rows)])
        writer.close()
        found = await taken(ours)
        assert found[f"import_{crush.ID}"] == "crush"
        assert found[f"import_cursor-{crush.ID}"] == "cursor"
        ours.begin()
        assert await taken(ours) == {}


@pytest.mark.anyio
async def test_a_thread_of_amp_that_is_half_written_is_named_and_taken_when_it_is_whole(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        amp.put(ours.home)
        path = ours.home / f".local/share/amp/threads/{amp.ID}.json"
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        (refused,) = await ours.look()
        assert refused.problem
        path.write_bytes(whole)
        assert await taken(ours) == {f"import_{amp.ID}": "amp"}
