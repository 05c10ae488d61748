"""A home with the files of thirteen programs: all of it is found, taken, counted and searched, and nothing is written.

What is counted here is counted without the code that reads these files: with SQL, with patterns, and by hand.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from miniclaw_sessions.files.discovery.overview import overview
from miniclaw_sessions.files.discovery.programs import PROGRAMS
from tests.agents import DATABASES, make_home
from tests.command_line import Cli
from tests.files.discovery.test_command import cli, home
from tests.files.discovery.test_follower import Following, following
from tests.programs import aider, amp, copilot_cli, crush, cursor, goose, librechat, open_webui

__all__ = ["cli", "home"]

MORE = {module.__name__.rpartition(".")[2].replace("_", "-"): module.put for module in (
    goose, crush, aider, copilot_cli, open_webui, cursor, amp)}  # fmt: skip
CURSOR = cursor.PLACE / "globalStorage/state.vscdb"
WORDS = {
    "fjord": "pi",
    "glacier": "claude-code",
    "estuary": "codex",
    "volcano": "gemini-cli",
    "Rhine": "llm",
    "lagoon": "goose",
    "isthmus": "goose",
    "moraine": "crush",
    "tundra": "aider",
    "taiga": "aider",
    "oasis": "copilot-cli-json",
    "permafrost": "open-webui",
    "is karst": "cursor",
    "doline": "cursor",
    "polje": "cursor",
    "esker": "amp",
}
"""What people ask for in these files, and the format of the one session in which they do."""


def home_of_all(home: Path) -> dict[str, int]:
    """How many sessions each program has, as the makers of its files say."""
    make_home(home)
    found = {"pi": 1, "claude-code": 1, "codex": 1, "opencode": 1, "gemini-cli": 1, "llm": 2}
    return {**found, **{name: put(home) for name, put in MORE.items()}}


def sql(path: Path, query: str) -> int:
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    (count,) = connection.execute(query).fetchone()
    connection.close()
    return int(count)


def occurrences(home: Path, pattern: str, expression: str) -> int:
    return sum(len(re.findall(expression, file.read_text())) for file in home.glob(pattern))


ASKED: dict[str, Callable[[Path], int]] = {
    "goose": lambda home: (
        sql(
            home / goose.PLACE / "sessions.db",
            "SELECT sum(role = 'user' AND content_json NOT LIKE '%toolResponse%') FROM messages",
        )
        + occurrences(home, f"{goose.PLACE}/*.jsonl", r'"role":"user"(?!.*toolResponse)')
    ),
    "crush": lambda home: sql(home / "project/.crush/crush.db", "SELECT count(*) FROM messages WHERE role = 'user'"),
    "aider": lambda home: occurrences(home, "*/.aider.chat.history.md", r"(?m)(?:^#### .*\n)+"),
    "copilot-cli": lambda home: (
        occurrences(home, ".copilot/session-state/**/*.jsonl", r'"user\.message"')
        + occurrences(home, ".copilot/history-session-state/*.json", r'"role": "user"')
    ),
    "open-webui": lambda home: sql(
        home / ".open-webui/webui.db",
        """SELECT count(*) FROM chat, json_each(chat, '$.history.messages') m WHERE m.value ->> 'role' = 'user'""",
    ),
    "cursor": lambda home: (
        sql(
            home / CURSOR,
            """SELECT count(*) FROM cursorDiskKV WHERE key LIKE 'bubbleId:%'
            AND CAST(value AS TEXT) LIKE '%"type": 1,%'""",
        )
        + sql(
            home / CURSOR,
            """SELECT count(*) FROM cursorDiskKV WHERE key LIKE 'composerData:%'
            AND CAST(value AS TEXT) LIKE '%"conversation": [{"type": 1,%'""",
        )
        + 1  # the tab of a workspace
    ),
    "amp": lambda home: occurrences(home, ".local/share/amp/threads/*.json", '"sentAt"'),
}
"""How many messages people wrote, by program."""


def all_of(home: Path) -> dict[str, str]:
    """Everything in a home: each name, when it was changed, and what is in it."""
    state = {}
    for path in sorted(home.rglob("*")):
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        state[str(path)] = f"{path.stat().st_mtime_ns} {path.stat().st_mode} {content}"
    return state


async def asked_in(ours: Following) -> Counter[str]:
    """How many messages of people each program's sessions have here, on all branches."""
    found: Counter[str] = Counter()
    for row in await ours.client.list():
        session = ours.client.session(row.session_id)
        program = (await session.info()).metadata["session.followed"]["program"]
        document = json.loads(b"".join([chunk async for chunk in ours.client.export(row.session_id, "json")]))
        entries = (entry["message"] for entry in document["entries"] if entry["type"] == "message")
        found[program] += sum(message["role"] == "user" for message in entries)
    return found


@pytest.mark.anyio
async def test_a_home_of_thirteen_programs_is_found_counted_searched_and_left_as_it_is(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        made = home_of_all(ours.home)
        assert len(made) == len(DATABASES) + 4 + len(MORE) == 13
        before = all_of(ours.home)
        found = {program.name: overview(program, {}, ours.home) for program in PROGRAMS}
        assert {name: one.sessions for name, one in found.items() if one.sessions} == made
        assert [one.unread for one in found.values() if one.unread] == []
        assert all(one.messages and one.bytes and one.newest for one in found.values() if one.sessions)
        kept = await ours.look()
        assert [one.problem for one in kept if one.problem] == []
        assert Counter(one.program for one in kept) == Counter(made)
        assert all(one.is_new and one.reply and one.reply.messages and not one.reply.set_aside for one in kept)
        asked = await asked_in(ours)
        assert {name: asked[name] for name in ASKED} == {name: count(ours.home) for name, count in ASKED.items()}
        for word, form in WORDS.items():
            page = await ours.client.search(word)
            sessions = {result.session_id for result in page.results if result.role == "user"}
            assert len(sessions) == 1, word
            (session_id,) = sessions
            assert (await ours.client.session(session_id).info()).metadata["session.source"]["format"] == form
        assert await ours.look() == []
        ours.begin()  # after a restart
        assert await ours.look() == []
        assert all_of(ours.home) == before


def test_the_command_takes_an_export_of_several_chats_of_open_webui_apart(cli: Cli, tmp_path: Path) -> None:
    chats = [open_webui.row(open_webui.chat(), name) for name in ("one", "two")]
    torn = {"id": "torn", "chat": {"history": 5}}
    path = tmp_path / "chat-export-1788191000000.json"
    path.write_text(json.dumps([*chats, torn]))
    result = cli("import", str(path), "--json")
    assert [one["session_id"] for one in result.document["imported"]] == ["import_one", "import_two"]
    assert {one["format"] for one in result.document["imported"]} == {"open-webui-export"}
    assert [one["path"].rpartition("#")[2] for one in result.document["refused"]] == ["torn"]
    assert result.status == 1
    again = cli("import", str(path), "--skip-existing", "--json").document
    assert (again["imported"], len(again["skipped"])) == ([], 2)


@pytest.mark.anyio
async def test_an_export_of_librechat_is_taken_beside_them(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        path = librechat.put(ours.home)
        reply = await ours.client.import_file(path)
        assert (reply.format, reply.messages) == ("librechat", 7)
        assert await ours.branch(reply.session_id) == [
            *("What is an atoll?", "I look.", "a ring", "A ring of coral.", "Where?", "In the Pacific.")
        ]
