"""Sessions of other programs that have the same name: each is one here, under a name that it keeps."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from miniclaw_sessions.files.discovery.databases import sessions_in
from miniclaw_sessions.files.discovery.names import Names
from miniclaw_sessions.files.discovery.overview import overview
from miniclaw_sessions.files.discovery.program import ProgramSession
from miniclaw_sessions.files.discovery.programs import programs_named
from miniclaw_sessions.service.api.shapes import ShownReply
from miniclaw_sessions.service.client import ClientSession
from tests.agents import file_of, make_database
from tests.command_line import Cli
from tests.files.discovery.test_command import cli, home
from tests.files.discovery.test_follower import Following, claude_file, following, nanobot, put, user

__all__ = ["cli", "home"]

UUID = "1a721929-31b4-4d81-976d-1b51c5d3e2b6"
PLACES = (".nanobot/workspace/sessions", ".nanobot/sessions")


def said(name: str, text: str) -> list[dict[str, Any]]:
    return [{**user(f"{text}-1", None, text), "sessionId": name}]


def of_openclaw(ours: Following, name: str, agent: str = "main") -> Path:
    lines = [json.loads(line) for line in file_of(".pi").read_text().splitlines()]
    return put(ours.home / f".openclaw/agents/{agent}/sessions/{name}.jsonl", lines)


async def taken(ours: Following) -> dict[str, str]:
    """The programs of the sessions that a look made, by their ids here; nothing was refused."""
    kept = await ours.look()
    assert [one.problem for one in kept if one.problem] == []
    return {one.reply.session_id: one.program for one in kept if one.reply is not None and one.is_new}


async def ids(ours: Following) -> list[str]:
    return sorted(row.session_id for row in await ours.client.list())


# --- one program -----------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_two_files_of_one_name_in_two_places_are_two_sessions_through_a_restart(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        files = [ours.home / place / "telegram_1.jsonl" for place in PLACES]
        for file, text in zip(files, ("here", "there"), strict=True):
            put(file, nanobot(text, f"answer {text}"))
        first, second = await taken(ours)
        assert first == "import_telegram_1"
        assert second.removeprefix("import_telegram_1-").isalnum(), "a hash of its path"
        for restarts in (False, True):
            if restarts:
                ours.begin()
            for file, text in zip(files, ("here", "there"), strict=True):
                put(file, nanobot(text, f"answer {text}", f"more {text} {restarts}"), "w")
            assert await taken(ours) == {}
        assert await ours.said(first) == ["here", "answer here", "more here False", "more here True"]
        assert await ours.said(second) == ["there", "answer there", "more there False", "more there True"]


@pytest.mark.anyio
async def test_a_file_keeps_its_name_when_the_one_that_had_the_first_name_is_gone(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        for place in PLACES:
            put(ours.home / place / "telegram_1.jsonl", nanobot(place))
        first, second = await taken(ours)
        (ours.home / PLACES[0] / "telegram_1.jsonl").unlink()
        await ours.client.erase(first)
        ours.begin()
        put(ours.home / PLACES[1] / "telegram_1.jsonl", nanobot(PLACES[1], "more"), "w")
        assert await taken(ours) == {}
        assert await ids(ours) == [second]
        assert await ours.said(second) == [PLACES[1], "more"]


@pytest.mark.anyio
async def test_a_file_that_was_moved_is_the_session_that_it_was(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        file = put(ours.home / PLACES[1] / "telegram_1.jsonl", nanobot("hello"))
        assert await taken(ours) == {"import_telegram_1": "nanobot"}
        file.unlink()
        ours.begin()
        put(ours.home / PLACES[0] / "telegram_1.jsonl", nanobot("hello", "hi"))
        assert await taken(ours) == {}
        assert await ours.said("import_telegram_1") == ["hello", "hi"]


@pytest.mark.anyio
async def test_a_file_that_says_that_it_is_another_session_is_not_taken_for_one_that_was_moved(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        file = put(ours.home / ".claude/projects/a/small.jsonl", said("one", "hello"))
        await taken(ours)
        file.unlink()
        ours.begin()
        put(ours.home / ".claude/projects/b/small.jsonl", said("another", "hi"))
        assert await taken(ours) == {"import_claude-code-small": "claude-code"}
        assert await ours.said("import_small") == ["hello"]
        ours.begin()
        assert await taken(ours) == {}


@pytest.mark.anyio
async def test_a_uuid_in_two_places_is_one_session_that_was_copied(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        for project in ("-home-ada", "-home-ada-copy"):
            put(ours.home / f".claude/projects/{project}/{UUID}.jsonl", said(UUID, "hello"))
        assert await taken(ours) == {f"import_{UUID}": "claude-code"}
        assert await ours.said(f"import_{UUID}") == ["hello"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("own_id", "asked"),
    [("small", ["small", "claude-code-small", "small-HASH", "claude-code-small-HASH"]), (UUID, [UUID])],
)
async def test_each_name_is_asked_for_once_and_a_uuid_s_further_names_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_id: str, asked: list[str]
) -> None:
    info, ids = ClientSession.info, list[str]()

    async def counted(session: ClientSession) -> ShownReply:
        ids.append(re.sub("-[0-9a-f]{8}$", "-HASH", session.session_id.removeprefix("import_")))
        return await info(session)

    async with following(tmp_path) as ours:
        source = ProgramSession("claude-code", claude_file(ours.home, own_id), 1, 1)
        (program,) = programs_named([source.program])
        monkeypatch.setattr(ClientSession, "info", counted)
        assert await Names(ours.client).name(source, program, own_id, {source.shown}) == f"import_{own_id}"
    assert ids == asked


# --- two programs ----------------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["small", UUID])
async def test_a_name_that_another_program_s_session_has_gets_the_program_before_it(tmp_path: Path, name: str) -> None:
    async with following(tmp_path) as ours:
        put(claude_file(ours.home, name), said(name, "said to claude"))
        of_openclaw(ours, name)
        expected = {f"import_{name}": "claude-code", f"import_openclaw-{name}": "openclaw"}
        assert await taken(ours) == expected
        ours.begin()
        assert await taken(ours) == {}
        ours.begin("openclaw")  # alone
        assert await taken(ours) == {}
        assert await ids(ours) == sorted(expected)


@pytest.mark.anyio
async def test_where_that_is_not_enough_a_hash_of_the_path_stands_behind(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        put(claude_file(ours.home, "small"), said("small", "said to claude"))
        of_openclaw(ours, "small", "main")
        of_openclaw(ours, "small", "work")
        first, second, third = await taken(ours)
        assert (first, second) == ("import_small", "import_openclaw-small")
        assert third.removeprefix("import_openclaw-small-").isalnum()
        ours.begin()
        assert await taken(ours) == {}


@pytest.mark.anyio
async def test_who_is_deleted_stays_away_and_takes_no_other_with_it(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        put(claude_file(ours.home, "small"), said("small", "said to claude"))
        of_openclaw(ours, "small")
        await taken(ours)
        await ours.client.erase("import_small")
        ours.begin()
        assert await taken(ours) == {}
        assert await ids(ours) == ["import_openclaw-small"]
        ours.begin(only="import_small")
        assert await taken(ours) == {"import_small": "claude-code"}


@pytest.mark.anyio
async def test_a_chat_of_ours_that_has_the_name_keeps_it(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        await (await ours.client.get_or_create("import", "small")).add_message({"role": "user", "content": "mine"})
        put(claude_file(ours.home, "small"), said("small", "said to claude"))
        assert await taken(ours) == {"import_claude-code-small": "claude-code"}
        assert await ours.said("import_small") == ["mine"]


def test_the_command_takes_both_and_so_does_the_id_of_either(cli: Cli, home: Path) -> None:
    put(claude_file(home, "small"), said("small", "said to claude"))
    lines = [json.loads(line) for line in file_of(".pi").read_text().splitlines()]
    put(home / ".openclaw/agents/main/sessions/small.jsonl", lines)
    result = cli("import", "--discover", "--program", "claude-code", "--program", "openclaw", "--json")
    assert result.status == 0
    found = {one["session_id"] for one in result.document["imported"]}
    assert {"import_small", "import_openclaw-small"} <= found
    assert cli("delete", "import_openclaw-small", "--yes").status == 0
    (back,) = cli("import", "--discover", "--as", "import_openclaw-small", "--json").document["imported"]
    assert (back["session_id"], back["program"]) == ("import_openclaw-small", "openclaw")


# --- what was overlooked ---------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_codex_file_without_a_uuid_in_its_name_is_taken(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        lines = [json.loads(line) for line in file_of(".codex").read_text().splitlines()]
        put(ours.home / ".codex/sessions/2026/01/01/rollout-mine.jsonl", lines)
        assert await taken(ours) == {"import_rollout-mine": "codex"}


def unread(home: Path, name: str) -> Sequence[str]:
    (program,) = programs_named([name])
    return [one["reason"] for one in overview(program, {}, home).unread]


def test_a_document_of_the_first_codex_is_named_and_why_it_is_not_read(tmp_path: Path) -> None:
    put(tmp_path / f".codex/sessions/rollout-2025-04-20-{UUID}.json", [{"session": {}, "items": []}])
    assert unread(tmp_path, "codex") == [
        "it is one document, as the first versions of Codex wrote them, and that form is not read"
    ]


@pytest.mark.parametrize("place", ["storage/session/global", "project/x/storage/session/info"])
def test_sessions_in_opencode_s_older_files_are_named_unless_its_database_has_them(tmp_path: Path, place: str) -> None:
    data = tmp_path / ".local/share/opencode"
    put(data / place / "ses_old.json", [{"id": "ses_old"}])
    (reason,) = unread(tmp_path, "opencode")
    assert reason.startswith("1 session is in JSON files, as opencode had them before 1.2, and not in its database: ")
    path = make_database(tmp_path, "opencode")
    (moved,) = sessions_in("opencode", path)
    (data / place / "ses_old.json").rename(data / place / f"{moved.id}.json")
    assert unread(tmp_path, "opencode") == []


def test_the_table_and_the_document_name_what_is_not_read(cli: Cli, home: Path) -> None:
    put(home / ".local/share/opencode/storage/session/global/ses_old.json", [{}])
    told = cli("import", "--discover").err
    assert "not read: " in told
    assert "1 session is in JSON files" in " ".join(told.split())
    result = cli("import", "--discover", "--program", "opencode", "--json")
    assert result.status == 1
    assert "1 session is in JSON files" in str(result.document["programs"])
    assert "1 session is in JSON files" in str([one.get("problem") for one in result.document["imported"]])
