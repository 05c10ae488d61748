"""A session of any length is written in any format: beside the event loop, in pieces, and whole."""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from miniclaw_sessions import Message, SessionKey, SessionManager, ToolCall
from miniclaw_sessions.core.history.branch import shown_message
from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.protocol.entries import SOURCE
from miniclaw_sessions.core.protocol.messages import Role, Usage
from miniclaw_sessions.core.protocol.parts import MAX_TOKENS
from miniclaw_sessions.files.formats.codec import Format
from miniclaw_sessions.files.formats.openai_chat import to_openai
from miniclaw_sessions.files.formats.pi import PI
from miniclaw_sessions.files.formats.registry import all_formats, format_named
from miniclaw_sessions.files.transfer.exporting import export_session, pieces_of
from miniclaw_sessions.files.transfer.importing import fork_from

WRITABLE = [form for form in all_formats() if form.is_written]

pytestmark = pytest.mark.anyio

DATA = Path(__file__).parents[2] / "data"
LARGE = DATA / "pi-v1-large-session.jsonl"
KEY = SessionKey.of("cli", "1")


async def exported(manager: SessionManager, session_id: str, name: str) -> bytes:
    return b"".join([piece async for piece in export_session(manager, session_id, format_named(name))])


@pytest.mark.parametrize("form", WRITABLE, ids=lambda form: form.name)
@pytest.mark.parametrize("number", [MAX_TOKENS, 2**70, -(2**63) - 1])
async def test_whatever_a_usage_says_it_is_written_in_every_format(form: Format, number: int, tmp_path: Path) -> None:
    told = dict.fromkeys(("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"), number)
    replies: list[Any] = [
        {"role": "assistant", "content": f"Hello {place}", "usage": {**told, "total_tokens": number}}
        for place in range(3)
    ]
    async with SessionManager(tmp_path, store="memory:") as manager:
        session = await manager.get_or_create("cli", "1")
        await session.add_messages([Message.user("hi"), *replies])
        await session.save_turn([Message.user("hi"), Message.assistant("Hello")], usage=Usage(number, number))
        assert await exported(manager, session.session_id, form.name)
        assert abs(session.messages()[1].usage.input_tokens) <= MAX_TOKENS  # type: ignore[union-attr]


@pytest.mark.parametrize("form", WRITABLE, ids=lambda form: form.name)
async def test_a_stored_usage_beyond_64_bits_is_read_and_written_in_every_format(form: Format, tmp_path: Path) -> None:
    (tmp_path / "transcripts").mkdir(mode=0o700)
    copyfile(DATA / "older/usage-beyond-64-bits.jsonl", tmp_path / "transcripts/a_1.jsonl")
    async with SessionManager(tmp_path, store="jsonl:") as manager:
        session = await manager.get("a", "1")
        assert [message.text[:5] for message in session.messages()] == ["Good ", "Hello", "Hello", "Hello"]
        assert [message.usage and message.usage.input_tokens for message in session.messages()] == [
            None,
            MAX_TOKENS,
            MAX_TOKENS,
            -MAX_TOKENS,
        ]
        problems: list[str] = []
        assert len([entry async for entry in session.tree.read_entries(problems)]) == 4
        assert problems == []
        assert await exported(manager, "a_1", form.name)


class Recorder:
    """A writer that notes which thread it works in."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.fed = 0

    def begin(self) -> bytes:
        self.threads.add(threading.get_ident())
        return b"begin "

    def feed(self, piece: Any) -> bytes:
        del piece
        self.fed += 1
        return self.begin()

    def finish(self) -> bytes:
        return self.begin()


@pytest.mark.parametrize(
    "form_of",
    [
        lambda writer: Format(name="x", about="", suffix=".x", writer=lambda _: writer),
        lambda writer: Format(name="x", about="", suffix=".x", writer=lambda _: writer, branch_only=True),
        lambda writer: Format(name="x", about="", suffix=".x", message_writer=lambda _: writer),
    ],
    ids=["tree", "branch", "messages"],
)
async def test_no_writer_works_on_the_event_loop(tmp_path: Path, form_of: Callable[[Recorder], Format]) -> None:
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("cli", "1")
        await session.add_messages([Message.user(f"{number}") for number in range(100)])
        writer = Recorder()
        pieces = [piece async for piece in pieces_of(session, form_of(writer))]
        assert writer.fed == 100
        assert b"".join(pieces) == b"begin " * 102
        assert threading.get_ident() not in writer.threads


OFTEN = ("jsonl",)


@pytest.mark.parametrize(
    "form",
    [pytest.param(one, id=one.name, marks=[] if one.name in OFTEN else pytest.mark.proof) for one in WRITABLE],
)
async def test_an_export_holds_a_small_part_of_a_long_session(tmp_path: Path, form: Format) -> None:
    async with SessionManager(tmp_path, store="jsonl:") as manager:
        session = await manager.get_or_create("cli", "1")
        for _ in range(20):
            turn = [Message.user("a"), Message.assistant("b" * 16_000)]
            await session.add_messages(turn * 100)
        tracemalloc.start()
        size = sum([len(piece) async for piece in export_session(manager, session.session_id, form)])
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert size > 20 * 100 * 16_000
        assert most < size / 3


async def test_a_long_branch_is_written_as_a_model_may_be_sent_it(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        session = await fork_from(manager, LARGE)
        messages = [
            message for entry in await session.tree.get_branch() if (message := shown_message(entry)) is not None
        ]
        written = json.loads(await exported(manager, session.session_id, "openai"))
        assert written["messages"] == to_openai(build_context(messages))


async def test_a_branch_is_written_without_what_was_left(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("cli", "1")
        first = await session.add_message(Message.user("Hello."))
        await session.add_message(Message.assistant("Left."))
        await session.tree.branch(first.id)
        await session.add_messages([Message.assistant("Kept."), Message.user("Go on.")])
        written = json.loads(await exported(manager, session.session_id, "openai"))
        assert [message["content"] for message in written["messages"]] == ["Hello.", "Kept.", "Go on."]
        session.clear()
        assert json.loads(await exported(manager, session.session_id, "openai")) == {"messages": []}


async def test_a_result_that_comes_late_is_written_behind_its_call(tmp_path: Path) -> None:
    call = ToolCall("c", "look", "{}")
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("cli", "1")
        await session.add_messages([Message.user("Look."), Message.assistant("", (call,))])
        await session.add_messages([Message.user(f"{number}") for number in range(500)])
        await session.add_message(Message.tool_result(call, "Seen."))
        written = json.loads(await exported(manager, session.session_id, "openai"))["messages"]
        assert [message["content"] for message in written[:4]] == ["Look.", None, "Seen.", "0"]


@pytest.mark.parametrize("year", [1, 9999])
async def test_a_time_at_the_end_of_the_calendar_can_be_written(tmp_path: Path, year: int) -> None:
    east, west = timezone(timedelta(hours=23)), timezone(timedelta(hours=-23))
    moment = datetime(1, 1, 1, tzinfo=east) if year == 1 else datetime(9999, 12, 31, 23, 59, tzinfo=west)
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("cli", "1")
        await session.add_message(Message(Role.USER, "When?", timestamp=moment))
        for form in WRITABLE:
            assert b"When?" in await exported(manager, session.session_id, form.name), form.name


# --- where a session came from ---------------------------------------------------------------------------------------


async def test_our_own_format_keeps_where_a_session_came_from(tmp_path: Path) -> None:
    header = {"type": "session", "version": 3, "id": "s-9", "timestamp": "2026-01-01T00:00:00.000Z"}
    header |= {"cwd": "/home/ada", "parentSession": "/home/ada/s-8.jsonl", "mood": "bright"}
    entry = {"type": "message", "id": "00000001", "parentId": None, "timestamp": header["timestamp"]}
    entry |= {"message": {"role": "user", "content": "Hello.", "timestamp": 1_767_225_600_000}}
    path = tmp_path / "s.jsonl"
    path.write_text(f"{json.dumps(header)}\n{json.dumps(entry)}\n")
    async with SessionManager(tmp_path / "w") as manager:
        session = await fork_from(manager, path)
        as_pi = await exported(manager, session.session_id, "pi")
        assert json.loads(as_pi.split(b"\n")[0]) == header
        ours = tmp_path / "ours.jsonl"
        for number in range(2):  # a copy of a copy is as good
            ours.write_bytes(await exported(manager, session.session_id, "jsonl"))
            source = session.metadata[SOURCE]
            session = await fork_from(manager, ours, key=SessionKey.of("copy", str(number)))
            assert session.metadata[SOURCE] == source
            assert (source["id"], source["parent_session"]) == ("s-9", "/home/ada/s-8.jsonl")
            assert source["header"]["cwd"] == "/home/ada"
        assert await exported(manager, session.session_id, "pi") == as_pi
        assert session.created_at == datetime(2026, 1, 1, tzinfo=UTC)


async def test_a_damaged_note_of_where_a_session_came_from_is_kept_as_it_is(tmp_path: Path) -> None:
    header = {"type": "session", "id": "s", "version": 1, "timestamp": "2026-01-01T00:00:00Z", "source": ["pi"]}
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps(header) + "\n")
    async with SessionManager(tmp_path / "w") as manager:
        session = await fork_from(manager, path)
        assert session.metadata[SOURCE]["header"]["source"] == ["pi"]
        again = json.loads((await exported(manager, session.session_id, "jsonl")).split(b"\n")[0])
        assert again["source"] == ["pi"]
        assert PI.name not in again
