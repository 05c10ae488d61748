"""What another program's database does is its own refusal: it costs no other program anything, nor time or memory."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from miniclaw_sessions.files.discovery import database, databases
from tests.agents import make_database
from tests.files.discovery.test_follower import TALK, claude_file, following, put

pytestmark = pytest.mark.anyio

SESSION = "CREATE TABLE session (id, time_updated, directory);"
REST = """
CREATE TABLE message (id, session_id, time_created, time_updated, data);
CREATE TABLE part (id, message_id, data);
"""
TABLES = SESSION + REST
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS id, 1 AS time_updated FROM c"
DONE = json.dumps({"role": "user", "time": {"created": 1}})


def said(session_id: str, text: str, *, parts: int = 1) -> str:
    """A session with a message, and another one that may yet get parts."""
    part = json.dumps({"type": "text", "text": text})
    rows = ",".join(f"('p{number}', 'm{session_id}', '{part}')" for number in range(parts))
    return f"""
    INSERT INTO session VALUES ('{session_id}', 1, '/');
    INSERT INTO message VALUES ('m{session_id}', '{session_id}', 1, 1, '{DONE}'), ('z', '{session_id}', 2, 2, '{DONE}');
    INSERT INTO part VALUES {rows};
    """


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("CREATE TABLE other (id);", "has not the tables"),
        (f"CREATE VIEW session AS {ENDLESS};{REST}", "has not the tables"),
        (f"CREATE TABLE session (id, time_updated, x AS (id LIKE '%a%a%'));{REST}", "has not the tables"),
        (f"{TABLES} INSERT INTO session VALUES (x'61', 5, '/');", "the id of a session in it is no text"),
        (f"{TABLES} INSERT INTO session VALUES (hex(zeroblob(300)), 5, '/');", "the id of a session in it is no text"),
        (f"{TABLES} INSERT INTO session VALUES (CAST(x'FF' AS TEXT), 5, '/');", "Could not decode"),
        (f"{TABLES} INSERT INTO session VALUES ('a', 5, '/'); INSERT INTO message VALUES (x'61', 'a', 1, 1, '{{}}');",
         "is not as its program writes it (KeyError)"),
    ],
)  # fmt: skip
async def test_a_database_that_is_not_as_it_should_be_is_refused_alone(
    tmp_path: Path, script: str, problem: str
) -> None:
    async with following(tmp_path) as ours:
        make_database(ours.home, "opencode", script)
        put(claude_file(ours.home), TALK)
        kept = await ours.look()
        assert [one.program for one in kept if one.problem] == ["opencode"]
        assert problem in "".join(one.problem for one in kept)
        assert await ours.branch("import_s") == ["one", "1"]


@pytest.mark.parametrize("when", ["NULL", "'soon'", "x'00'", "1e300", "9223372036854775807", "-5"])
async def test_a_session_whose_time_says_nothing_is_taken(tmp_path: Path, when: str) -> None:
    async with following(tmp_path) as ours:
        script = f"{TABLES}{said('a', 'hello')} UPDATE session SET time_updated = {when};"
        make_database(ours.home, "opencode", script + "UPDATE message SET time_updated = NULL;")
        assert await ours.taken() == 1
        assert await ours.said("import_a") == ["hello"]


async def test_a_database_that_takes_for_ever_is_stopped_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "LIST_S", 0.0)
    numbers = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 9000) SELECT"
    monkeypatch.setattr(databases, "_LONG_S", 0.0)
    monkeypatch.setattr(databases, "_REST", 1e9)
    async with following(tmp_path) as ours:
        many = (
            f"INSERT INTO session {numbers} 'a', 1, '/' FROM c; INSERT INTO message {numbers} x, 'a', 1, 1, '' FROM c;"
        )
        path = make_database(ours.home, "opencode", TABLES + many)
        put(claude_file(ours.home), TALK)
        problem = "it takes longer than 0 seconds"
        assert [one.problem for one in await ours.look() if one.problem] == [problem]
        assert await ours.branch("import_s") == ["one", "1"]
        path.unlink()
        make_database(ours.home, "opencode", TABLES)
        assert [one.problem for one in await ours.look()] == [problem]  # it is not even looked at


async def test_what_is_too_large_for_the_memory_is_refused_and_its_neighbour_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "MAX_LINE_BYTES", 20_000)
    async with following(tmp_path) as ours:
        script = TABLES + said("long", "x" * 1_000, parts=30) + said("small", "hello")
        make_database(ours.home, "opencode", script)
        kept = await ours.look()
        assert ["longer than 20000 bytes" in one.problem for one in kept if one.problem] == [True]
        assert [row.session_id for row in await ours.client.list()] == ["import_small"]


async def test_a_message_of_llm_that_is_its_own_ancestor_ends_the_branch(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        path = make_database(ours.home, "llm")
        with sqlite3.connect(path) as writer:
            writer.execute("UPDATE messages SET parent_hash = hash WHERE parent_hash IS NULL")
        writer.close()
        assert await ours.taken() > 0
