"""Files come in whole or not at all: recognized, streamed, reported, and written out again."""

from __future__ import annotations

import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from miniclaw_sessions import Message, SessionKey, SessionManager, SessionSettings, ToolCall, Usage
from miniclaw_sessions.agent.reminders.records import PREFIX as REMINDER
from miniclaw_sessions.core.history.branch import resolve
from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.persistence.recovery import Progress
from miniclaw_sessions.core.protocol.entries import INCOMPLETE, SOURCE, TEXTS, Custom, Entry, MessageEntry, moves_leaf
from miniclaw_sessions.core.protocol.messages import ImagePart, TextPart
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.copying import NOT_STORED
from miniclaw_sessions.core.stores.base import BATCH_ENTRIES
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.errors import (
    ImportRefused,
    InvalidMessage,
    SessionExists,
    SessionHeld,
    SessionNotFound,
    StoreFull,
    StoreUnavailable,
)
from miniclaw_sessions.files.formats.codec import Outcome
from miniclaw_sessions.files.formats.registry import all_formats, format_named
from miniclaw_sessions.files.transfer.exporting import export_session
from miniclaw_sessions.files.transfer.importing import fork_from, import_file, import_stream
from miniclaw_sessions.testing import FakeClock, FaultyStore
from tests.files.formats.test_contract import EXAMPLES
from tests.legality import is_legal
from tests.sampled import sampled

FORMATS = all_formats()
READABLE = [form for form in FORMATS if form.is_read]
WRITABLE = [form for form in FORMATS if form.is_written]

pytestmark = pytest.mark.anyio

DATA = Path(__file__).parents[2] / "data"
LARGE = DATA / "pi-v1-large-session.jsonl"
RESUMED = DATA / "pi-v3-resumed-session.jsonl"
EVENTS = DATA / "pi-v3-json-mode-stdout.jsonl"


@asynccontextmanager
async def opened(
    workspace: Path, store: str | FaultyStore = "sqlite:", settings: SessionSettings | None = None
) -> AsyncIterator[SessionManager]:
    async with SessionManager(workspace, store=store, settings=settings) as manager:
        yield manager


async def tree_of(session: Session) -> list[tuple[str, str | None, str, Message | None]]:
    """The tree without what is said of the session as a whole."""
    transcript = await session.tree.get_transcript()
    assert transcript.problems == []
    return [(e.id, e.parent_id, type(e).__name__, said(e)) for e in transcript.entries if moves_leaf(e)]


def said(entry: Entry) -> Message | None:
    return entry.message if isinstance(entry, MessageEntry) else None


def pi_lines(*texts: str, session_id: str = "s1") -> list[str]:
    """A linear session of pi's, version 3."""
    moment = "2026-01-01T00:00:00.000Z"
    lines: list[dict[str, Any]] = [{"type": "session", "version": 3, "id": session_id, "timestamp": moment, "cwd": "/"}]
    parent = None
    for number, text in enumerate(texts):
        message = {"role": "user", "content": text, "timestamp": 1_767_225_600_000 + number}
        entry = {"type": "message", "id": f"{number:08x}", "parentId": parent, "timestamp": moment}
        lines.append({**entry, "message": message})
        parent = f"{number:08x}"
    return [json.dumps(line) for line in lines]


async def exported_as(manager: SessionManager, session_id: str, name: str) -> bytes:
    return b"".join([chunk async for chunk in export_session(manager, session_id, format_named(name))])


def written(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


# --- the real files --------------------------------------------------------------------------------------------------


async def test_the_large_file_has_the_facts_that_are_known_of_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "w") as manager:
        report = await import_file(manager, LARGE)
        session = await manager.find(report.session_id)
        transcript = await session.tree.get_transcript()
        messages = [m for m in map(said, transcript.entries) if m is not None]
        calls = [call.id for message in messages for call in message.tool_calls or ()]
        results = {message.tool_call_id for message in messages if message.is_tool_result}
        assert (report.format, report.entries, report.messages) == ("pi", 1_018, 914)
        assert (report.repaired, report.set_aside, report.bytes_read) == (0, 0, LARGE.stat().st_size)
        assert len([entry for entry in transcript.entries if moves_leaf(entry)]) == 1_018
        assert (len(calls), len([call for call in calls if call not in results])) == (391, 18)
        assert session.message_count == 914
        usage = session.total_usage
        assert (usage.input_tokens, usage.output_tokens) == (1_049, 83_156)
        assert (usage.cache_read_tokens, usage.cache_write_tokens) == (43_229_469, 4_296_232)
        assert usage.cost == pytest.approx(30.330198)
        context = await session.get_context()
        assert (context.provider, context.model) == ("anthropic", "claude-sonnet-4-5")
        assert context.thinking_level == "off"


@pytest.mark.parametrize("stride", [211, pytest.param(1, marks=pytest.mark.proof)])
async def test_the_context_at_every_entry_of_the_large_file_is_legal(tmp_path: Path, stride: int) -> None:
    async with opened(tmp_path / "w") as manager:
        session = await fork_from(manager, LARGE)
        path = await session.tree.get_branch()
        assert len(path) == 1_018
        for place, entry in list(enumerate(path, 1))[::stride]:
            context = build_context(resolve(path[:place]).messages())
            assert is_legal(context) == [], entry.id
            assert bool(context) == any(said(one) for one in path[:place])
            if place % 50 < stride:  # and by moving the leaf there for real
                await session.tree.branch(entry.id)
                moved = await session.get_context()
                assert (moved.messages, moved.problems) == (context, ())


async def test_exporting_the_large_file_and_importing_it_again_gives_the_same_tree(tmp_path: Path) -> None:
    async with opened(tmp_path / "w") as manager:
        first = await fork_from(manager, LARGE)
        exported = tmp_path / "exported.jsonl"
        exported.write_bytes(await exported_as(manager, first.session_id, "pi"))
        second = await fork_from(manager, exported, key=SessionKey("again", "1"))
        assert await tree_of(second) == await tree_of(first)
        assert second.leaf_id == first.leaf_id
        assert second.total_usage == first.total_usage
        again = await exported_as(manager, second.session_id, "pi")
        assert again == exported.read_bytes()


async def test_a_file_of_pi_comes_out_as_it_went_in(tmp_path: Path) -> None:
    async with opened(tmp_path / "w") as manager:
        session = await fork_from(manager, RESUMED)
        assert session.session_id == "import_019e742e-9d84-7578-90d7-674f47fc7c07"
        assert await exported_as(manager, session.session_id, "pi") == RESUMED.read_bytes()


async def test_an_event_stream_is_refused_with_the_reason_and_leaves_nothing(tmp_path: Path) -> None:
    before = EVENTS.read_bytes()
    async with opened(tmp_path / "w") as manager:
        with pytest.raises(ImportRefused, match="event stream"):
            await import_file(manager, EVENTS)
        assert await manager.list() == []
        assert (await manager.check()).sessions == 0
    assert EVENTS.read_bytes() == before


# --- where it goes ---------------------------------------------------------------------------------------------------


async def test_a_session_is_named_by_its_file_unless_somebody_else_does(tmp_path: Path) -> None:
    file = written(tmp_path / "chat.jsonl", pi_lines("hello"))
    async with opened(tmp_path / "w") as manager:
        assert (await import_file(manager, file)).session_id == "import_s1"
        assert (await import_file(manager, file, key=SessionKey("telegram", "7"))).session_id == "telegram_7"


async def test_an_existing_session_is_never_imported_over(tmp_path: Path) -> None:
    file = written(tmp_path / "chat.jsonl", pi_lines("hello"))
    async with opened(tmp_path / "w") as manager:
        await (await manager.get_or_create("telegram", "7")).add_message(Message.user("mine"))
        with pytest.raises(SessionExists, match="telegram_7"):
            await import_file(manager, file, key=SessionKey("telegram", "7"))
        assert [message.text for message in (await manager.find("telegram_7")).messages()] == ["mine"]


async def test_an_imported_session_is_young_however_old_its_messages_are(tmp_path: Path) -> None:
    file = written(tmp_path / "chat.jsonl", pi_lines("hello"))
    clock = FakeClock(start=datetime(2026, 6, 1, tzinfo=UTC))
    async with SessionManager(tmp_path / "w", clock=clock) as manager:
        session = await fork_from(manager, file)
        assert session.last_accessed == clock.now()
        assert session.created_at == datetime(2026, 1, 1, tzinfo=UTC)
        await manager.sweep()
        assert session.messages()[0].text == "hello"


async def test_what_the_header_says_is_kept_beside_the_session(tmp_path: Path) -> None:
    file = written(tmp_path / "chat.jsonl", pi_lines("hello"))
    async with opened(tmp_path / "w") as manager:
        session = await fork_from(manager, file)
        assert session.metadata[SOURCE] == {"format": "pi", "id": "s1", "header": {"cwd": "/"}}


async def test_an_imported_conversation_goes_on(tmp_path: Path) -> None:
    async with opened(tmp_path / "w") as manager:
        session = await fork_from(manager, RESUMED)
        leaf = session.leaf_id
        entry = await session.add_message(Message.user("and now?"))
        assert entry.parent_id == leaf
    async with opened(tmp_path / "w") as manager:
        session = await manager.continue_recent()
        assert [message.text for message in session.messages()][-2:] == ["42", "and now?"]
        assert (await manager.check()).problems == []


# --- what is refused, repaired, set aside ----------------------------------------------------------------------------


GARBAGE = {
    "empty": b"",
    "blank": b" \n\n\t\n",
    "NUL": b"\0" * 100_000,
    "random": random.Random(1).randbytes(300_000),
    "text": b"Dear diary,\ntoday\n" * 1000,
    "HTML": b"<!doctype html><title>x</title>",
    "JSON number": b"5",
    "JSON null": b"null",
    "empty list": b"[]",
    "empty object": b"{}",
    "object of nothing known": b'{"a":{"b":[1,2]}}',
    "lines of nothing known": b'{"a":1}\n{"b":2}\n',
    "an image": b"\x89PNG\r\n\x1a\n" + bytes(5000),
    "all ones": b"\xff" * 100_000,
    "numbers": b"[1, 2, 3]",
    "a torn header": b'{"type":"session"',
    "deep": b"[" * 100_000,
    "deep in a line": b'{"type":"session","version":3,"id":"x"}\n' + b"[" * 100_000 + b"\n",
    "only a byte order mark": b"\xef\xbb\xbf",
    "UTF-16": '{"role":"user","content":"x"}'.encode("utf-16"),
    "a multipart form": b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\n{}\r\n--x--\r\n',
    "gzip": b"\x1f\x8b\x08\x00" + random.Random(2).randbytes(1000),
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
async def test_what_is_no_session_is_refused_untouched_whatever_it_is_said_to_be(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    async with opened(tmp_path / "w", "memory:") as manager:
        with pytest.raises(ImportRefused):
            await import_file(manager, file)
        assert await manager.list() == []
        for form in READABLE:
            with suppress(ImportRefused):  # or as much of it as is in that format
                report = await import_file(manager, file, form=form)
                assert report.set_aside + report.repaired + report.entries > 0, form.name
                assert await manager.delete(report.session_id)
        assert (await manager.check()).entries == 0
    assert file.read_bytes() == content


async def test_a_path_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    async with opened(tmp_path / "w") as manager:
        for path in (tmp_path / "missing", tmp_path, tmp_path / "pipe", Path("/dev/zero")):
            with pytest.raises(ImportRefused, match=str(path)):
                await import_file(manager, path)


async def test_a_damaged_line_costs_itself_only(tmp_path: Path) -> None:
    lines = pi_lines(*(f"m{number}" for number in range(9)))
    lines[4] = lines[4][: len(lines[4]) // 2]
    file = tmp_path / "chat.jsonl"
    file.write_text("\n".join(lines))
    async with opened(tmp_path / "w") as manager:
        report = await import_file(manager, file)
        assert (report.messages, report.set_aside) == (8, 1)
        assert any(finding.line == 5 for finding in report.findings)
        assert all(finding.raw == b"" for finding in report.findings)
        texts = [message.text for message in (await manager.find(report.session_id)).messages()]
        assert texts == [f"m{number}" for number in range(9) if number != 3]


async def test_a_message_that_is_too_large_leaves_its_place_in_the_tree(tmp_path: Path) -> None:
    file = written(tmp_path / "chat.jsonl", pi_lines("small", "x" * 5000, "after"))
    async with opened(tmp_path / "w", settings=SessionSettings(max_message_bytes=2048)) as manager:
        report = await import_file(manager, file)
        session = await manager.find(report.session_id)
        assert report.set_aside == 1
        assert [message.text for message in session.messages()] == ["small", "after"]
        gap = (await session.tree.get_branch())[1]
        assert isinstance(gap, Custom)
        assert gap.custom_type == NOT_STORED
        assert (await manager.check()).problems == []


async def test_a_dry_run_reports_and_stores_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "w") as manager:
        report = await import_file(manager, LARGE, dry_run=True)
        assert (report.entries, report.messages, report.dry_run) == (1_018, 914, True)
        assert await manager.list() == []


async def test_progress_is_told_in_bytes(tmp_path: Path) -> None:
    told: list[Progress] = []
    async with opened(tmp_path / "w") as manager:
        await import_file(manager, LARGE, on_progress=told.append)
    size = LARGE.stat().st_size
    assert told[-1] == Progress("importing", size, size)
    assert [one.done for one in told] == sorted(one.done for one in told)


async def test_a_format_that_is_named_is_believed(tmp_path: Path) -> None:
    file = tmp_path / "one.jsonl"
    file.write_text('[{"role": "user", "content": "hello"}]')
    async with opened(tmp_path / "w") as manager:
        report = await import_file(manager, file, form=format_named("openai"), key=SessionKey("a", "1"))
        assert report.format == "openai"
        with pytest.raises(ImportRefused, match="only written"):
            await import_file(manager, file, form=format_named("html"))


CHAT = b'{"messages": [{"role": "user", "content": "hello"}]}'


@pytest.mark.parametrize(
    ("content", "wrong", "right"),
    [
        *((LARGE.read_bytes(), wrong, "pi") for wrong in ("codex", "claude-code", "nanobot", "dive", "openai")),
        *((CHAT, wrong, "openai") for wrong in ("codex", "claude-code", "nanobot", "pi", "google")),
        (b'{"a": 1}\n{"b": 2}\n', "codex", "no known format"),
    ],
)
async def test_a_format_that_is_named_wrongly_is_refused_with_what_the_file_looks_like_and_leaves_nothing(
    tmp_path: Path, content: bytes, wrong: str, right: str
) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    async with opened(tmp_path / "w") as manager:
        for dry_run in (True, False):
            with pytest.raises(ImportRefused, match=f"(?i){wrong}.*looks like .*{right}"):
                await import_file(manager, file, form=format_named(wrong), dry_run=dry_run)
        assert await manager.list() == []
        assert (await manager.check()).entries == 0


# --- all or nothing --------------------------------------------------------------------------------------------------


async def test_nobody_sees_a_session_before_it_is_complete(tmp_path: Path) -> None:
    async with opened(tmp_path / "w") as manager:
        seen: list[int] = []

        async def chunks() -> AsyncIterator[bytes]:
            for line in pi_lines(*(f"m{number}" for number in range(2 * BATCH_ENTRIES))):
                seen.append(len(await manager.list()))
                yield line.encode() + b"\n"

        await import_stream(manager, chunks(), name="upload")
        assert set(seen) == {0}
        assert len(await manager.list()) == 1


@pytest.mark.parametrize("name", sampled(EXAMPLES, every=2))
async def test_a_file_is_the_same_in_whatever_pieces_it_comes(tmp_path: Path, name: str) -> None:
    example = EXAMPLES[name]
    await check_pieces(tmp_path, b"\n".join(example.lines), example.form.name, (1, 7, 1_000_000))


async def test_a_long_file_without_ids_gets_the_same_in_whatever_pieces_it_comes(tmp_path: Path) -> None:
    await check_pieces(tmp_path, LARGE.read_bytes(), "pi", (1_000, 1_000_000))


async def check_pieces(workspace: Path, data: bytes, form: str, sizes: tuple[int, ...]) -> None:
    async with SessionManager(workspace, store="memory:", clock=FakeClock()) as manager:
        trees: list[list[Any]] = []
        for size in sizes:

            async def chunks(size: int = size) -> AsyncIterator[bytes]:
                for start in range(0, len(data), size):
                    yield data[start : start + size]

            report = await import_stream(manager, chunks(), name="upload", key=SessionKey("import", str(size)))
            assert (report.format, report.set_aside, report.bytes_read) == (form, 0, len(data))
            tree = await tree_of(await manager.find(report.session_id))
            trees.append([entry for entry in tree if entry[2] == "MessageEntry"])  # the title is the import's own
        assert all(tree == trees[0] for tree in trees)


async def test_a_stream_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for line in pi_lines(*(f"m{number}" for number in range(2 * BATCH_ENTRIES + 10))):
            yield line.encode() + b"\n"
        raise ConnectionError("the client has gone")

    async with opened(tmp_path / "w") as manager:
        with pytest.raises(ConnectionError):
            await import_stream(manager, chunks(), name="upload")
        assert await manager.list() == []
        assert (await manager.check()).entries == 0
        with pytest.raises(SessionNotFound):
            await manager.find("import_s1")


async def test_a_store_that_fills_up_leaves_nothing_and_the_next_start_tidies(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    lines = pi_lines(*(f"m{number}" for number in range(3 * BATCH_ENTRIES)))
    file = written(tmp_path / "chat.jsonl", lines)
    async with opened(tmp_path / "w", store) as manager:

        def fill(_: Progress) -> None:
            store.fail(StoreFull("the disk is full"))

        with pytest.raises(StoreFull):
            await import_file(manager, file, on_progress=fill)
        assert await manager.list() == []
        store.heal()
    async with opened(tmp_path / "w", store) as manager:
        assert await manager.list() == []
        assert await store.head("import_s1") is None


# --- all formats -----------------------------------------------------------------------------------------------------


def test_every_format_has_a_name_of_its_own_and_says_what_it_is() -> None:
    assert len({form.name for form in FORMATS}) == len(FORMATS)
    assert all(form.about and not form.about.endswith(".") and form.suffix.startswith(".") for form in FORMATS)
    assert {form.name for form in FORMATS} == {form.name for form in (*READABLE, *WRITABLE)}


async def talked(manager: SessionManager) -> Session:
    """A session with everything that most formats can hold."""
    session = await manager.get_or_create("telegram", "1")
    call = ToolCall("call_1", "weather", '{"city":"Bern"}')
    await session.save_turn(
        [
            Message.user((TextPart("what do you see?"), ImagePart("image/png", "iVBORw0KGgo="))),
            Message.assistant("let me look", (call,)),
            Message.tool_result(call, "sunny"),
            Message.assistant("the sun"),
        ],
        Usage(input_tokens=10, output_tokens=5),
    )
    await session.save_turn([Message.user("thanks"), Message.assistant("you are welcome")])
    return session


@pytest.mark.parametrize("form", [f for f in WRITABLE if f.reader is not None], ids=lambda form: form.name)
async def test_a_session_written_in_any_format_is_recognized_and_says_the_same(tmp_path: Path, form: object) -> None:
    name = getattr(form, "name", "")
    async with opened(tmp_path / "w") as manager:
        session = await talked(manager)
        file = tmp_path / f"exported-{name}"
        file.write_bytes(await exported_as(manager, session.session_id, name))
        report = await import_file(manager, file, key=SessionKey("again", "1"))
        again = await manager.find("again_1")
        assert report.format == name
        assert (report.repaired, report.set_aside) == (0, 0)
        assert [m.role for m in again.messages()] == [m.role for m in session.messages()]
        assert [m.text for m in again.messages()] == [m.text for m in session.messages()]
        calls = [(c.name, json.loads(c.arguments)) for m in again.messages() for c in m.tool_calls or ()]
        assert calls == [("weather", {"city": "Bern"})]


async def test_our_own_format_loses_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "w") as manager:
        session = await talked(manager)
        first = session.entries()[0].id
        await session.tree.set_label(first, "start")
        await session.tree.branch_with_summary(first, "we looked at the sun")
        await session.tree.append_custom_entry("theirs", {"a": [1, {"b": None}]})
        await session.add_message(Message.user("again"), idempotency_key="k1")
        session.update(title="Weather", tag="x")
        file = tmp_path / "exported.jsonl"
        file.write_bytes(await exported_as(manager, session.session_id, "jsonl"))
        again = await fork_from(manager, file, key=SessionKey("again", "1"))
        assert await tree_of(again) == await tree_of(session)
        assert again.leaf_id == session.leaf_id
        assert again.messages() == session.messages()
        assert (again.title, again.metadata["tag"]) == ("Weather", "x")
        assert (again.event_count, again.total_usage) == (session.event_count, session.total_usage)
        assert (await again.tree.get_transcript()).labels == {first: "start"}
        assert again.journal.find_duplicate("k1") is not None


async def test_what_a_failing_store_left_of_an_import_never_comes_back(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    file = written(tmp_path / "chat.jsonl", pi_lines(*(f"m{number}" for number in range(3 * BATCH_ENTRIES))))
    async with opened(tmp_path / "w", store) as manager:
        with pytest.raises(StoreFull):
            await import_file(manager, file, on_progress=lambda _: store.fail(StoreFull("the disk is full")))
        with pytest.raises(StoreUnavailable, match="interrupted import"):
            await manager.get_or_create("import", "s1")  # it cannot be made over what may still be there
        store.heal()
        session = await manager.get_or_create("import", "s1")
        await session.add_message(Message.user("mine"))
    async with opened(tmp_path / "w", store) as manager:
        assert [message.text for message in (await manager.find("import_s1")).messages()] == ["mine"]


async def test_nobody_can_make_a_session_look_unfinished(tmp_path: Path) -> None:
    async with opened(tmp_path / "w") as manager:
        session = await manager.get_or_create("telegram", "1")
        with pytest.raises(InvalidMessage, match="ours"):
            session.update(**{INCOMPLETE: "import"})
        session.update(incomplete="import")
        await session.add_message(Message.user("mine"))
    async with opened(tmp_path / "w") as manager:
        assert (await manager.find("telegram_1")).metadata["incomplete"] == "import"


async def test_messages_without_a_time_get_their_entry_s_and_stay_sound(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_text('[{"role":"user","content":"hi"},{"role":"assistant","content":"hello","refusal":null}]')
    async with opened(tmp_path / "w") as manager:
        session = await fork_from(manager, file)
        assert all(message.timestamp is not None for message in session.messages())
        before = session.messages()
    async with opened(tmp_path / "w") as manager:
        assert (await manager.continue_recent()).messages() == before
        assert (await manager.check()).problems == []


async def test_a_dry_run_refuses_what_an_import_would(tmp_path: Path) -> None:
    async with opened(tmp_path / "w") as manager:
        await import_file(manager, RESUMED, dry_run=True)
        await import_file(manager, RESUMED)
        with pytest.raises(SessionExists):
            await import_file(manager, RESUMED, dry_run=True)


@pytest.mark.parametrize("size", [300_000, 900_000])
async def test_a_long_first_line_is_recognized_in_pieces_of_any_size(tmp_path: Path, size: int) -> None:
    lines = pi_lines("after")
    header = json.loads(lines[0])
    header["cwd"] = "x" * size
    data = "\n".join([json.dumps(header), *lines[1:]]).encode()

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 65_536):
            yield data[start : start + 65_536]

    async with opened(tmp_path / "w") as manager:
        assert (await import_stream(manager, chunks(), name="upload")).format == "pi"


async def test_large_entries_of_any_kind_are_stored_in_small_batches(tmp_path: Path) -> None:
    async with opened(tmp_path / "w", settings=SessionSettings(max_unsaved_bytes=6_000_000)) as manager:
        session = await manager.get_or_create("telegram", "1")
        for _ in range(12):
            await session.tree.append_custom_entry("large", {"text": "x" * 700_000})
        file = tmp_path / "exported.jsonl"
        file.write_bytes(await exported_as(manager, session.session_id, "jsonl"))
        report = await import_file(manager, file, key=SessionKey("again", "1"))
        assert (report.entries, report.set_aside) == (12, 0)


# --- without transcripts ---------------------------------------------------------------------------------------------


def branched_lines() -> list[str]:
    """Two messages, a branch from them that was compacted and left, and two more."""
    lines = [json.loads(line) for line in pi_lines("a", "b", "left 1", "left 2", "c", "d")]
    moment = lines[0]["timestamp"]
    lines[5]["parentId"] = lines[2]["id"]
    compaction = {"type": "compaction", "id": "c0000000", "parentId": lines[4]["id"], "timestamp": moment}
    lines.insert(5, {**compaction, "summary": "in short", "firstKeptEntryId": lines[4]["id"], "tokensBefore": 9})
    return [json.dumps(line) for line in lines]


async def test_without_a_transcript_the_newest_of_the_current_branch_is_kept_whatever_was_left(tmp_path: Path) -> None:
    file = written(tmp_path / "s.jsonl", branched_lines())
    async with opened(tmp_path / "w", "none:") as manager:
        report = await import_file(manager, file)
        session = await manager.find(report.session_id)
        assert [message.text for message in session.messages()] == ["a", "b", "c", "d"]
        assert [(one.outcome, one.text) for one in report.findings] == [
            (Outcome.SET_ASIDE, "4 of 6 messages are kept: the store `none:` keeps no transcript")
        ]
    async with opened(tmp_path / "w", "none:") as manager:
        session = await manager.find(report.session_id)
        assert [message.text for message in session.messages()] == ["a", "b", "c", "d"]


async def test_without_a_transcript_what_does_not_fit_is_told(tmp_path: Path) -> None:
    file = written(tmp_path / "s.jsonl", pi_lines(*(str(number) for number in range(60))))
    async with opened(tmp_path / "w", "none:") as manager:
        report = await import_file(manager, file)
        session = await manager.find(report.session_id)
        assert [message.text for message in session.messages()] == [str(number) for number in range(10, 60)]
        assert [one.text.split(" messages")[0] for one in report.findings] == ["50 of 60"]


@pytest.mark.parametrize("name", sampled(EXAMPLES, every=2))
async def test_without_a_transcript_a_model_is_told_the_same_of_every_format(tmp_path: Path, name: str) -> None:
    example = EXAMPLES[name]
    told = []
    for store in ("sqlite:", "none:"):
        async with opened(tmp_path / store.strip(":"), store) as manager:

            async def chunks() -> AsyncIterator[bytes]:
                yield b"\n".join(example.lines)

            report = await import_stream(manager, chunks(), name="upload", form=example.form)
            session = await manager.find(report.session_id)
            context = await session.get_context()
            metadata = {key: value for key, value in session.metadata.items() if key != SOURCE}
            said_there = [(message.role, message.text) for message in context.messages[-50:]]
            told.append((said_there, context.model, context.thinking_level, session.title, metadata))
    assert told[1] == told[0]


# --- what only a session itself may say of itself ---------------------------------------------------------------------


async def test_a_file_ends_no_legal_hold_and_has_no_session_removed(tmp_path: Path) -> None:
    header: dict[str, Any] = {"type": "session", "version": 1, "id": "abc", "source": {"format": "pi", "id": "abc"}}
    said: dict[str, Any] = {"type": "message", "id": "a1", "parent_id": None, "timestamp": "2026-01-01T00:00:01Z"}
    whole = [header, {**said, "message": {"role": "user", "content": "hello"}}]
    forged = {
        "session.legal_hold": None,
        "session.incomplete": "fork",
        "session.followed": {"path": "/"},
        "mood": "good",
    }
    about: dict[str, Any] = {"type": "custom", "custom_type": "metadata", "timestamp": "2026-01-01T00:00:03Z"}
    part = [{**header, "is_part": True}, {**about, "id": "z1", "parent_id": "a1", "data": forged}]

    async def chunks(lines: list[dict[str, Any]]) -> AsyncIterator[bytes]:
        yield b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    async with opened(tmp_path) as manager:
        made = await import_stream(manager, chunks(whole), name="abc")
        await manager.hold(made.session_id, "case 7")
        report = await import_stream(manager, chunks(part), name="abc", update=True)
        assert (report.entries, report.set_aside) == (1, 1)
        session = await manager.find(made.session_id)
        assert session.journal.legal_hold == "case 7"
        assert session.metadata["mood"] == "good"
        assert not {"session.incomplete", "session.followed"} & session.metadata.keys()
        with pytest.raises(SessionHeld):
            await manager.delete(made.session_id)
    async with opened(tmp_path) as manager:
        assert (await manager.find(made.session_id)).journal.legal_hold == "case 7"


async def test_metadata_of_a_wrong_type_break_no_list_search_or_export(tmp_path: Path) -> None:
    """A stranger's file with a number for a title made every list of the workspace fail, also after a restart."""
    wrong = {"title": 5, "agent_id": [], "provider": {}, "model": 7, "thinking_level": True, "self": 1, "kept": 2}
    lines: list[dict[str, Any]] = [
        {"type": "session", "id": "x", "version": 1, "timestamp": "2026-01-01T00:00:00Z", "metadata": wrong},
        {"type": "message", "id": "e1", "parent_id": None, "message": {"role": "user", "content": "imported"}},
        {"type": "custom", "id": "e2", "parent_id": "e1", "custom_type": "metadata", "data": wrong},
    ]
    data = b"".join(json.dumps({"timestamp": "2026-01-01T00:00:00Z", **line}).encode() + b"\n" for line in lines)
    async with opened(tmp_path) as manager:
        report = await import_stream(manager, once(data), name="x", key=SessionKey("import", "x"))
        assert any("title" in one.text and "cannot be set" in one.text for one in report.findings)
    async with opened(tmp_path) as manager:
        (row,) = await manager.list(last_words=True)
        assert row.title is None
        session = await manager.find("import_x")
        assert session.metadata["kept"] == 2
        assert not session.metadata.keys() & TEXTS
        assert len((await manager.search("imported")).results) == 1
        for form in WRITABLE:
            assert b"".join([piece async for piece in export_session(manager, session.session_id, form)])
        fork = await session.fork(leaf_id="e1")
        assert fork.metadata["self"] == 1


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_neither_a_caller_nor_a_file_sets_a_reminder(tmp_path: Path) -> None:
    """Who may change one chat's metadata could speak in another chat by it, and read what a schedule looks at."""
    name = f"{REMINDER}x"
    wrong: dict[str, Any] = {name: {"channel": "telegram", "chat_id": "42"}}
    async with opened(tmp_path) as manager:
        session = await manager.get_or_create("web", "1")
        with pytest.raises(InvalidMessage, match="cannot be set"):
            session.update(**wrong)
        lines: list[dict[str, Any]] = [
            {"type": "session", "id": "x", "version": 1, "metadata": {name: {"chat_id": "42"}}},
            {"type": "message", "id": "e1", "parent_id": None, "message": {"role": "user", "content": "hi"}},
            {"type": "custom", "id": "e2", "parent_id": "e1", "custom_type": "metadata", "data": {name: {}}},
        ]
        data = b"".join(json.dumps({"timestamp": "2026-01-01T00:00:00Z", **one}).encode() + b"\n" for one in lines)
        await import_stream(manager, once(data), name="x", key=SessionKey("import", name))
        assert name not in (await manager.get("import", name)).metadata
