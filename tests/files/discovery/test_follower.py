"""Keeping up with other programs: everything once, whatever happens to their files while they are read."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.errors import ConfigError, LeafMoved
from miniclaw_sessions.files.discovery.follower import Follower, SourceUpdate
from miniclaw_sessions.files.discovery.open_files import blocks, count_marks, whole_lines
from miniclaw_sessions.files.discovery.overview import overview
from miniclaw_sessions.files.discovery.programs import PROGRAMS, programs_named
from miniclaw_sessions.service.client import Client, connect
from miniclaw_sessions.testing import FakeClock
from tests.agents import DATABASES, make_database, make_home, written

pytestmark = pytest.mark.anyio

CLAUDE_ID = "1a721929-31b4-4d81-976d-1b51c5d3e2b6"
CLAUDE = f"import_{CLAUDE_ID}"


class Following:
    """Other programs' home, and a workspace that keeps up with it."""

    def __init__(self, client: Client, home: Path, clock: FakeClock) -> None:
        self.client = client
        self.home = home
        self.clock = clock
        self.begin()

    def begin(self, *names: str, only: str | None = None) -> None:
        """Follow anew, as another process would."""
        programs = programs_named(names)
        self.follower = Follower(self.client, programs, environ={}, home=self.home, clock=self.clock, only=only)

    async def look(self) -> list[SourceUpdate]:
        return [kept async for kept in self.follower.catch_up()]

    async def taken(self) -> int:
        """How many messages come with the next look."""
        kept = await self.look()
        assert [one.problem for one in kept if one.problem] == []
        return sum(one.reply.messages for one in kept if one.reply is not None)

    async def branch(self, session_id: str) -> list[str]:
        """What is said on the current branch."""
        page = await self.client.session(session_id).messages()
        return [message.text for message in page]

    async def said(self, session_id: str) -> list[str]:
        """Everything that is said in a session, on whichever branch."""
        document = json.loads(b"".join([chunk async for chunk in self.client.export(session_id, "json")]))
        return [text_of(entry["message"]) for entry in document["entries"] if entry["type"] == "message"]


def text_of(message: dict[str, Any]) -> str:
    content = message.get("content", "")
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


@asynccontextmanager
async def following(tmp_path: Path, *, full: bool = False) -> AsyncIterator[Following]:
    home, clock = tmp_path / "home", FakeClock()
    home.mkdir()
    if full:
        make_home(home)
    async with SessionManager(tmp_path / "workspace", clock=clock) as manager, connect(manager) as client:
        yield Following(client, home, clock)


# --- lines of Claude Code, which hold a reply back -------------------------------------------------------------------


def line(uuid: str, parent: str | None, kind: str, content: Any, **message: Any) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "parentUuid": parent,
        "type": kind,
        "sessionId": "s",
        "timestamp": "2026-01-01T00:00:00Z",
        "message": {"role": kind, "content": content, **message},
    }


def user(uuid: str, parent: str | None, text: str) -> dict[str, Any]:
    return line(uuid, parent, "user", text)


def block(uuid: str, parent: str, text: str, *, reply: str = "", stop: str | None = None) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return line(uuid, parent, "assistant", content, id=reply or uuid, stop_reason=stop, model="m")


def put(path: Path, lines: Sequence[Any], mode: str = "a") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as file:
        file.writelines(json.dumps(one) + "\n" for one in lines)
    return path


def claude_file(home: Path, name: str = "s") -> Path:
    return home / ".claude/projects/-home-ada" / f"{name}.jsonl"


TALK = [user("u1", None, "one"), block("a1", "u1", "1", stop="end_turn")]


# --- what there is ---------------------------------------------------------------------------------------------------


async def test_every_program_s_sessions_are_found_imported_and_searched(tmp_path: Path) -> None:
    async with following(tmp_path, full=True) as ours:
        found = {program.name: overview(program, {}, ours.home) for program in PROGRAMS}
        assert {name: one.sessions for name, one in found.items() if one.sessions} == {
            "pi": 1,
            "claude-code": 1,
            "codex": 1,
            "opencode": 1,
            "gemini-cli": 1,
            "llm": 2,
        }
        assert all(one.messages and one.bytes and one.newest for one in found.values() if one.sessions)
        kept = await ours.look()
        assert [(one.is_new, one.problem) for one in kept] == [(True, "")] * 7
        for word, program in {"fjord": "pi", "glacier": "claude-code", "estuary": "codex", "delta": "opencode",
                              "volcano": "gemini-cli", "Rhine": "llm"}.items():  # fmt: skip
            page = await ours.client.search(word)
            (session_id,) = {result.session_id for result in page.results if result.role == "user"}
            assert (await ours.client.session(session_id).info()).metadata["session.source"]["format"] == program
        (gemini,) = (one.reply.session_id for one in kept if one.reply and one.program == "gemini-cli")
        assert gemini == "import_7ceefccc-268c-40b8-b313-28ab02b04feb"
        assert await ours.look() == []
        ours.begin()  # after a restart
        assert await ours.look() == []


def test_environment_variables_say_where_they_lie(tmp_path: Path) -> None:
    places = {
        "pi": ({"PI_CODING_AGENT_DIR": "/a"}, "/a/sessions"),
        "claude-code": ({"CLAUDE_CONFIG_DIR": "/c"}, "/c/projects"),
        "codex": ({"CODEX_HOME": "/x"}, "/x/sessions"),
        "openclaw": ({"OPENCLAW_STATE_DIR": "/o"}, "/o/agents"),
        "gemini-cli": ({"GEMINI_CLI_HOME": "/g"}, "/g/.gemini/tmp"),
        "opencode": ({"XDG_DATA_HOME": "/d", "OPENCODE_DB": "my.db"}, "/d/opencode/my.db"),
        "llm": ({"LLM_USER_PATH": "/l"}, "/l/logs.db"),
    }
    for name, (environ, place) in places.items():
        (program,) = programs_named([name])
        assert Path(place) in [*program.places(environ, tmp_path), *program.databases(environ, tmp_path)]
    with pytest.raises(ConfigError, match="there are pi, claude-code"):
        programs_named(["clippy"])


async def test_openclaw_and_nanobot_lie_elsewhere(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        make_home(tmp_path / "other")
        (pi,) = (tmp_path / "other" / ".pi").rglob("*.jsonl")
        put(
            ours.home / ".openclaw/agents/main/sessions/abc.jsonl",
            [json.loads(one) for one in pi.read_text().splitlines()],
        )
        put(ours.home / ".openclaw/agents/main/sessions/sessions.json", [{}])
        put(ours.home / ".nanobot/workspace/sessions/telegram_1.jsonl", nanobot("hello", "hi"))
        assert {(one.program, one.reply.session_id) for one in await ours.look() if one.reply} == {
            ("openclaw", "import_abc"),
            ("nanobot", "import_telegram_1"),
        }


# --- growing ---------------------------------------------------------------------------------------------------------


async def test_a_file_that_grows_gives_only_what_is_new(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        file = put(claude_file(ours.home), TALK)
        assert await ours.taken() == 2
        for number in range(3):
            parent = "a1" if not number else f"b{number - 1}"
            put(file, [user(f"v{number}", parent, f"more {number}")])
            assert await ours.taken() == 1
            put(file, [block(f"b{number}", f"v{number}", f"answer {number}", stop="end_turn")])
            assert (await ours.taken(), await ours.taken()) == (0, 1)  # it is held back until nothing more comes
            assert await ours.taken() == 0
        assert await ours.branch("import_s") == [
            *("one", "1", "more 0", "answer 0"),
            *("more 1", "answer 1", "more 2", "answer 2"),
        ]


@pytest.mark.parametrize("held", [10**9, 1])
async def test_files_that_grow_at_once_are_each_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    read = 0

    def counted(fd: int, start: int, end: int) -> Iterator[bytes]:
        nonlocal read
        read += end - start
        return blocks(fd, start, end)

    monkeypatch.setattr("miniclaw_sessions.files.discovery.follower._HELD_BYTES", held)
    monkeypatch.setattr("miniclaw_sessions.files.discovery.follower.blocks", counted)
    async with following(tmp_path) as ours:
        files = {f"s{number}": claude_file(ours.home, f"s{number}") for number in range(20)}
        for name, file in files.items():
            put(file, [{**user("u", None, "x" * 1_000), "sessionId": name}])
        assert await ours.taken() == 20
        for turn in range(3):
            read = 0
            for name, file in files.items():
                put(file, [{**user(f"u{turn}", "u", "more"), "sessionId": name}])
            assert await ours.taken() == 20
        assert (read < 20 * 1_000) == (held > 1)  # what does not fit in memory is read again


async def test_what_is_held_back_is_taken_of_files_that_do_not_fit_in_memory_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw_sessions.files.discovery.follower._HELD_BYTES", 1)
    monkeypatch.setattr("miniclaw_sessions.files.discovery.follower._SETTLED_S", 0.0)
    async with following(tmp_path) as ours:
        files = {
            name: put(claude_file(ours.home, name), [{**user("u", None, "one"), "sessionId": name}]) for name in "st"
        }
        assert await ours.taken() == 2
        for name, file in files.items():
            put(file, [{**user("u2", "u", "two"), "sessionId": name}])
            put(file, [{**block("a2", "u2", "2", stop="end_turn"), "sessionId": name}])
        assert await ours.taken() == 2
        assert (await ours.taken(), await ours.taken()) == (2, 0)
        assert await ours.branch("import_s") == await ours.branch("import_t") == ["one", "two", "2"]


async def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        file = put(claude_file(ours.home), TALK)
        await ours.taken()
        put(file, [user("u2", "a1", "two")])
        assert await ours.taken() == 1
        ours.begin()
        assert await ours.taken() == 0
        put(file, [block("a2", "u2", "2", stop="end_turn"), user("u3", "a2", "three")])
        ours.begin()
        assert await ours.taken() == 2
        assert await ours.branch("import_s") == ["one", "1", "two", "2", "three"]


async def test_what_was_held_back_when_it_ended_is_taken_after_a_restart(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        file = put(claude_file(ours.home), TALK)
        await ours.taken()
        put(file, [user("u2", "a1", "two"), block("a2", "u2", "2", stop="end_turn")])
        assert await ours.taken() == 1
        ours.begin()
        assert (await ours.taken(), await ours.taken()) == (0, 1)
        assert await ours.branch("import_s") == ["one", "1", "two", "2"]
        ours.begin()
        assert (await ours.taken(), await ours.taken()) == (0, 0)


async def test_a_last_line_that_is_half_written_is_waited_for(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        file = put(claude_file(ours.home), TALK)
        whole = json.dumps(user("u2", "a1", "two"))
        with file.open("a") as growing:
            growing.write(whole[:50])
        assert await ours.taken() == 2
        ours.begin()
        assert await ours.taken() == 0
        with file.open("a") as growing:
            growing.write(whole[50:] + "\n")
        assert await ours.taken() == 1
        assert await ours.branch("import_s") == ["one", "1", "two"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_file_that_is_cut_short_or_replaced_is_read_anew(tmp_path: Path, *, restarts: bool) -> None:
    async with following(tmp_path) as ours:
        file = put(claude_file(ours.home), [*TALK, user("u2", "a1", "two")])
        assert await ours.taken() == 3
        put(file, TALK, "w")
        if restarts:
            ours.begin()
        assert await ours.taken() == 0
        put(file, [user("x2", "a1", "instead")])
        assert await ours.taken() == 1
        assert await ours.branch("import_s") == ["one", "1", "instead"]
        new = put(file.with_name("new"), [*TALK, user("x2", "a1", "instead"), user("x3", "x2", "and more")])
        new.replace(file)
        if restarts:
            ours.begin()
        assert await ours.taken() == 1
        assert sorted(await ours.said("import_s")) == ["1", "and more", "instead", "one", "two"]


def nanobot(*said: str, updated: str = "2026-01-01T00:00:00") -> list[Any]:
    head = {"_type": "metadata", "key": "telegram:1", "created_at": "2026-01-01T00:00:00", "updated_at": updated}
    roles = ("user", "assistant")
    return [head, *({"role": roles[n % 2], "content": text, "timestamp": f"2026-01-01T00:00:{n:02}"}
                    for n, text in enumerate(said))]  # fmt: skip


async def test_a_file_that_is_written_anew_each_time_gives_only_what_is_new(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        file = put(ours.home / ".nanobot/workspace/sessions/telegram_1.jsonl", nanobot("hello", "hi"))
        assert await ours.taken() == 2
        put(file, nanobot("hello", "hi", "more?", "more", updated="2026-01-01T00:01:00"), "w")
        assert await ours.taken() == 2
        shortened = [
            line for line in nanobot("hello", "hi", "more?", "more", "again") if line.get("content") != "hello"
        ]
        put(file, shortened, "w")
        assert await ours.taken() == 1
        assert await ours.said("import_telegram_1") == ["hello", "hi", "more?", "more", "again"]


async def test_whoever_goes_on_here_stays_where_he_is(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        file = put(claude_file(ours.home), TALK)
        await ours.taken()
        await ours.client.session("import_s").add_message({"role": "user", "content": "said here"})
        put(file, [user("u2", "a1", "said there")])
        assert await ours.taken() == 1
        assert await ours.branch("import_s") == ["one", "1", "said here"]
        assert "said there" in await ours.said("import_s")


async def test_a_subagent_s_branch_is_not_where_the_conversation_goes_on(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        file = put(claude_file(ours.home), TALK)
        await ours.taken()
        put(file, [user("u2", "a1", "two"), {**user("s1", None, "find it"), "isSidechain": True}])
        assert await ours.taken() == 2
        assert await ours.branch("import_s") == ["one", "1", "two"]
        put(file, [{**block("s2", "s1", "found", stop="end_turn"), "isSidechain": True}, user("u3", "u2", "three")])
        assert await ours.taken() + await ours.taken() == 2
        assert await ours.branch("import_s") == ["one", "1", "two", "three"]
        assert "found" in await ours.said("import_s")


@pytest.mark.parametrize("when", ["it grows", "it has settled"])
async def test_what_could_not_be_stored_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    async def refuse(*_: Any, **__: Any) -> Any:
        raise LeafMoved("somebody said something")

    async with following(tmp_path) as ours:
        file = put(claude_file(ours.home), TALK)
        await ours.taken()
        put(file, [user("u2", "a1", "two"), block("a2", "u2", "2", stop="end_turn")])
        if when == "it has settled":
            assert await ours.taken() == 1
        with monkeypatch.context() as failing:
            failing.setattr(ours.client, "import_stream", refuse)
            assert [one.problem for one in await ours.look()] == ["somebody said something"]
        assert sum([await ours.taken() for _ in range(3)]) == (1 if when == "it has settled" else 2)
        assert await ours.branch("import_s") == ["one", "1", "two", "2"]


# --- databases -------------------------------------------------------------------------------------------------------


async def test_a_database_is_read_while_its_program_writes_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        path = make_database(ours.home, "opencode")
        assert await ours.taken() == 6
        assert [file.name for file in path.parent.iterdir()] == ["opencode.db"]
        writer = sqlite3.connect(path)
        writer.execute("PRAGMA journal_mode = WAL")
        (session_id,) = writer.execute("SELECT id FROM session").fetchone()
        at = 1795396940000
        asked = json.dumps({"role": "user", "time": {"created": at}})
        writer.execute("INSERT INTO message VALUES ('msg_y', ?, ?, ?, ?)", (session_id, at, at, asked))
        writer.commit()
        assert await ours.taken() == 0  # its parts come after it
        part = json.dumps({"type": "text", "text": "asked"})
        writer.execute("INSERT INTO part VALUES ('prt_y', 'msg_y', ?, ?, ?, ?)", (session_id, at, at, part))
        writer.commit()
        info = {"role": "assistant", "time": {"created": at}, "modelID": "m"}
        writer.execute("INSERT INTO message VALUES ('msg_z', ?, ?, ?, ?)", (session_id, at, at, json.dumps(info)))
        writer.commit()
        assert await ours.taken() == 1  # the answer is not complete
        part = json.dumps({"type": "text", "text": "quite new"})
        writer.execute("INSERT INTO part VALUES ('prt_z', 'msg_z', ?, ?, ?, ?)", (session_id, at, at, part))
        info["time"] = {"created": at, "completed": at + 1}
        writer.execute("UPDATE message SET data = ?, time_updated = ?", (json.dumps(info), at + 1))
        writer.commit()
        writer.execute("BEGIN IMMEDIATE")  # it goes on writing
        assert await ours.taken() == 1
        writer.rollback()
        writer.close()
        assert (await ours.said(f"import_{session_id}"))[-2:] == ["asked", "quite new"]


async def test_the_log_of_llm_before_0_36_is_read(tmp_path: Path) -> None:
    script = """
    CREATE TABLE conversations (id TEXT PRIMARY KEY, name TEXT, model TEXT);
    CREATE TABLE responses (id TEXT PRIMARY KEY, model TEXT, prompt TEXT, system TEXT, prompt_json TEXT, response TEXT,
        response_json TEXT, conversation_id TEXT, datetime_utc TEXT, input_tokens INTEGER, output_tokens INTEGER);
    INSERT INTO conversations VALUES ('01h', 'Tides', 'gpt-4o');
    INSERT INTO responses VALUES
        ('01r', 'gpt-4o', 'Why tides?', NULL, '{}', 'The moon.', '{}', '01h', '2025-06-01T10:00:00', 5, 2);
    CREATE TABLE fragments (id INTEGER PRIMARY KEY, hash TEXT, content TEXT);
    CREATE TABLE prompt_fragments (response_id TEXT, fragment_id INTEGER, "order" INTEGER);
    INSERT INTO fragments VALUES (7, 'x', 'A page on the sea.');
    INSERT INTO prompt_fragments VALUES ('01r', 7, 0);
    """
    async with following(tmp_path) as ours:
        make_database(ours.home, "llm", script)
        assert await ours.taken() == 2
        assert await ours.branch("import_01h") == ["A page on the sea.\nWhy tides?", "The moon."]


async def test_what_llm_has_stored_once_is_in_every_prompt_that_has_it(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        path = make_database(ours.home, "llm")
        with sqlite3.connect(path) as writer:
            writer.execute("INSERT INTO fragments (id, content) VALUES (7, 'A page on rivers.')")
            pieces = json.dumps({"text_ref": [{"fragment": 7}, {"literal": " And the Rhine?"}]})
            writer.execute("UPDATE parts SET text = NULL, payload = ? WHERE id = 2", (pieces,))
        writer.close()
        await ours.taken()
        assert "A page on rivers. And the Rhine?" in await ours.said("import_01m82zx6dm4kbfexfpyg1cgemf")


OPENCLAW = """
CREATE TABLE transcript_events (
    session_id TEXT NOT NULL, seq INTEGER NOT NULL, event_json TEXT NOT NULL, created_at INTEGER NOT NULL,
    PRIMARY KEY (session_id, seq)
) STRICT
"""


async def test_what_openclaw_has_moved_into_its_database_goes_on_in_the_same_session(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        lines = written(".pi")
        agent = ours.home / ".openclaw/agents/main"
        put(agent / f"sessions/{lines[0]['id']}.jsonl", lines)
        said = await ours.taken()
        (agent / "agent").mkdir()
        writer = sqlite3.connect(agent / "agent/openclaw-agent.sqlite", isolation_level=None)
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("CREATE TABLE cache_entries (id)")
        assert await ours.taken() == 0
        writer.execute(OPENCLAW)
        more = {"type": "message", "id": "0000abcd", "parentId": lines[-1]["id"], "timestamp": lines[-1]["timestamp"],
                "message": {"role": "user", "content": "said to the new one", "timestamp": 1}}  # fmt: skip
        for number, one in enumerate([{**lines[0], "version": 4}, *lines[1:], more]):
            row = (lines[0]["id"], number, json.dumps(one), 1_790_000_000_000 + number)
            writer.execute("INSERT INTO transcript_events VALUES (?, ?, ?, ?)", row)
        assert await ours.taken() == 1
        more = {**more, "id": "0000abce", "parentId": "0000abcd"}
        row = (lines[0]["id"], 1_000, json.dumps(more), 1_790_000_000_000)
        writer.execute("INSERT INTO transcript_events VALUES (?, ?, ?, ?)", row)
        assert await ours.taken() == 1
        writer.close()
        (session_id,) = [row.session_id for row in await ours.client.list()]
        assert len(await ours.branch(session_id)) == said + 2
        (program,) = programs_named(["openclaw"])
        assert overview(program, {}, ours.home).sessions == 2


# --- bad input -------------------------------------------------------------------------------------------------------


async def test_what_cannot_be_read_says_so_and_costs_nothing_else(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        put(claude_file(ours.home), TALK)
        outside = put(tmp_path / "outside.jsonl", [user("u", None, "not yours")])
        claude_file(ours.home, "link").symlink_to(outside)
        claude_file(ours.home, "directory").mkdir()
        (claude_file(ours.home).parent / "circle").symlink_to(ours.home)
        os.mkfifo(claude_file(ours.home, "pipe"))
        put(claude_file(ours.home, "nonsense"), ["no", 1, None])
        claude_file(ours.home, "empty").touch()
        claude_file(ours.home, "half").write_text('{"uuid": "u1", "type"')
        database = ours.home / DATABASES["llm"]
        database.parent.mkdir(parents=True)
        database.write_bytes(b"SQLite format 3\0 and nothing else")
        problems = {Path(one.path).name: one.problem for one in await ours.look() if one.problem}
        assert problems.keys() == {"link.jsonl", "circle", "pipe.jsonl", "nonsense.jsonl", "logs.db"}
        assert "links are not followed" in problems["link.jsonl"]
        assert "links are not followed" in problems["circle"]
        assert "not a regular file" in problems["pipe.jsonl"]
        assert [row.session_id for row in await ours.client.list()] == ["import_s"]
        found = {name: overview(program, {}, ours.home) for name, program in ((p.name, p) for p in PROGRAMS)}
        assert len(found["claude-code"].unread) == 3
        assert len(found["llm"].unread) == 1
        assert found["claude-code"].sessions == 4


async def test_a_file_that_changes_while_it_is_read_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(tmp_path) as ours:
        file = put(claude_file(ours.home), [*TALK, user("u2", "a1", "two")])
        (first, *_), whole = file.read_bytes().splitlines(keepends=True), file.read_bytes()

        def cut_short(fd: int, start: int, end: int) -> Iterator[bytes]:
            yield os.pread(fd, len(first), start)
            os.truncate(file, len(first))
            yield from blocks(fd, start + len(first), end)

        monkeypatch.setattr("miniclaw_sessions.files.discovery.follower.blocks", cut_short)
        assert await ours.taken() == 1
        monkeypatch.undo()
        assert await ours.taken() == 0
        file.write_bytes(whole)
        assert await ours.taken() == 2
        assert await ours.branch("import_s") == ["one", "1", "two"]


async def test_a_line_without_end_is_refused_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miniclaw_sessions.files.discovery.follower.MAX_LINE_BYTES", 2_000)
    monkeypatch.setattr("miniclaw_sessions.files.discovery.open_files.BLOCK_BYTES", 1_000)
    async with following(tmp_path) as ours:
        file = put(claude_file(ours.home), TALK)
        other = put(claude_file(ours.home, "other"), [{**one, "sessionId": "other"} for one in TALK])
        assert await ours.taken() == 4
        put(file, [user("u2", "a1", "x" * 5_000)])
        put(other, [{**user("u2", "a1", "two"), "sessionId": "other"}])
        kept = await ours.look()
        assert [one.problem for one in kept if one.problem] == ["a line is longer than 2000 bytes"]
        assert [one.reply.messages for one in kept if one.reply] == [1]
        assert await ours.look() == []  # it is not tried again before it changes


def test_only_whole_lines_count_however_long_they_are(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"one\n" + b"x" * 3_000_000)
    with file.open("rb") as opened:
        assert whole_lines(opened.fileno(), after=0) == 4
        assert whole_lines(opened.fileno(), after=4) == 4
    file.write_bytes(b"ab" * 1_000_000)
    assert count_marks(file, (b"ba",), lambda _: None) == 999_999  # also where two pieces meet
