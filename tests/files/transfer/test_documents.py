"""The stores and managers of documents 001, 003 and 004 in their own words."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from miniclaw_sessions import Message, SessionManager, SessionSettings
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session import documents as of_sessions
from miniclaw_sessions.core.session.documents import DiveSession
from miniclaw_sessions.errors import SessionNotFound
from miniclaw_sessions.files.transfer import documents as of_managers
from miniclaw_sessions.files.transfer.documents import DiveStore, GoManager, MiniclawManager
from miniclaw_sessions.testing import FakeClock
from tests.core.session.samples import COMPLEX, SIMPLE
from tests.texts import texts_of

pytestmark = pytest.mark.anyio

UUID = "01981f3c-6b1e-7c52-9f61-2f3f5d2a9b10"
NAMES = ["my-session", UUID, "telegram_1", "session_my-session", "with space / ~", "é"]


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[SessionManager]:
    async with opened(tmp_path / "workspace") as manager:
        yield manager


def opened(workspace: Path, store: str = "sqlite:") -> SessionManager:
    return SessionManager(workspace, store=store, clock=FakeClock(), settings=SessionSettings(ttl_days=0))


# --- document 001 ----------------------------------------------------------------------------------------------------


async def test_any_text_names_a_session_that_the_store_opens(tmp_path: Path) -> None:
    """S1.18, S1.27: also a bare UUID, a path, and a session id, which names that session."""
    async with opened(tmp_path) as manager:
        store = DiveStore(manager)
        for name in NAMES:
            session = await store.open(name)
            assert session.id == name
            await session.save_turn([Message.user(f"said in {name}")])
        assert texts_of((await manager.get("telegram", "1")).messages()) == ["said in telegram_1"]
    async with opened(tmp_path) as manager:
        store = DiveStore(manager)
        assert {one.id for one in await store.list()} == set(NAMES)
        for name in NAMES:
            assert texts_of(await (await store.open(name)).messages()) == [f"said in {name}"]


async def test_a_shortened_name_is_opened_and_deleted_by_what_the_list_says(manager: SessionManager) -> None:
    store, long = DiveStore(manager), await manager.get_or_create("telegram", "x" * 300)
    await long.add_message(Message.user("hi"))
    [listed] = await store.list()
    assert (await store.open(listed.id)).session is long
    assert await store.delete(listed.id)
    assert await store.list() == []


async def test_a_session_is_forked_put_and_deleted_by_name(manager: SessionManager) -> None:
    """S1.29, S1.31, S1.43, S1.44."""
    store = DiveStore(manager)
    await (await store.open("first")).save_turn([Message.user("hi")])
    fork = await store.fork_session("first", "second")
    made = DiveSession.new("third")
    await made.save_turn([Message.user("elsewhere")])
    kept = await store.put(await made.fork("fourth"))
    assert (fork.id, kept.id) == ("second", "fourth")
    assert await store.delete("first")
    assert not await store.delete("first")
    assert {one.id for one in await store.list()} == {"second", "fourth"}
    with pytest.raises(SessionNotFound):
        await store.fork_session("first", "fifth")


# --- document 003 ----------------------------------------------------------------------------------------------------


async def test_a_session_made_by_a_file_is_loaded_and_gone_on_with(manager: SessionManager, tmp_path: Path) -> None:
    """S3.37, S3.39."""
    file = tmp_path / "sess-123.jsonl"
    file.write_text(SIMPLE)
    session = await GoManager(manager).load(file)
    assert texts_of((await session.get_context()).messages) == ["Hello", "Hi there!"]
    await session.append_message("user", "and now?")
    again = await GoManager(manager).load(file)
    assert again.session is session.session
    assert texts_of((await again.get_context()).messages) == ["Hello", "Hi there!", "and now?"]
    assert file.read_text() == SIMPLE


async def test_what_a_loaded_file_has_gained_is_there_when_it_is_loaded_again(
    manager: SessionManager, tmp_path: Path
) -> None:
    file = tmp_path / "sess-456.jsonl"
    lines = COMPLEX.splitlines(keepends=True)
    file.write_text("".join(lines[:2]))
    assert len((await (await GoManager(manager).load(file)).get_context()).messages) == 1
    file.write_text("".join(lines))
    assert len((await (await GoManager(manager).load(file)).get_context()).messages) == 3


@pytest.mark.parametrize("name", ["sess-123", "telegram_2"])
async def test_a_file_of_document_003_among_the_transcripts_is_opened(tmp_path: Path, name: str) -> None:
    """S3.39: the store leaves it alone, and `load` takes it in, whatever its name."""
    async with opened(tmp_path, "jsonl:") as manager:
        await (await manager.get_or_create("telegram", "1")).add_message(Message.user("ours"))
    file = tmp_path / "transcripts" / f"{name}.jsonl"
    file.write_text(SIMPLE)
    async with opened(tmp_path, "jsonl:") as manager:
        session = await GoManager(manager).load(file)
        assert texts_of((await session.get_context()).messages) == ["Hello", "Hi there!"]
    async with opened(tmp_path, "jsonl:") as manager:
        assert (await GoManager(manager).load(file)).id == session.id
        assert len(await manager.list()) == 2
    assert file.read_text() == SIMPLE


@pytest.mark.parametrize("store", ["sqlite:", "jsonl:", "none:"])
async def test_the_path_in_a_list_is_the_session_s_file_and_loads_it(tmp_path: Path, store: str) -> None:
    """S3.58, S3.37."""
    async with opened(tmp_path, store) as manager:
        session = await manager.get_or_create("telegram", "1", metadata={"title": "Holiday"})
        await session.add_message(Message.user("hi"))
        await manager.flush()
        [info] = await GoManager(manager).list()
        assert (info.id, info.name, info.message_count) == ("telegram_1", "Holiday", 1)
        assert (info.created, info.modified) == (session.created_at, session.updated_at)
        assert info.path is not None
        assert info.path.is_absolute()
        assert info.path.is_file()
        assert (await GoManager(manager).load(info.path)).session is session


async def test_a_session_says_which_one_it_was_made_of(manager: SessionManager) -> None:
    """S3.38, S3.40, S3.43."""
    documents = GoManager(manager)
    with pytest.raises(SessionNotFound):
        await documents.continue_recent()
    first = await documents.new()
    await first.append_message("user", "hi")
    second = await documents.new(first.id)
    assert second.session.metadata == {"parent_session": first.id}
    await second.close()
    assert first.id != second.id
    assert (await documents.continue_recent()).id in {first.id, second.id}


# --- document 004 ----------------------------------------------------------------------------------------------------


async def test_get_or_create_session_gives_one_session_for_a_chat(manager: SessionManager) -> None:
    """S4.53."""
    documents = MiniclawManager(manager)
    session = await documents.get_or_create_session("telegram", 123456789)
    assert session.session_id == "telegram_123456789"
    assert await documents.get_or_create_session("telegram", "123456789") is session
    await session.add_message(Message.user("hi"))
    assert texts_of(await documents.get_session_history("telegram", 123456789)) == ["hi"]


async def test_update_session_keeps_what_was_said_meanwhile(manager: SessionManager) -> None:
    """S4.75: a session of the manager is the live one; one that was made elsewhere becomes its own."""
    documents = MiniclawManager(manager)
    session = await documents.get_or_create_session("telegram", 1)
    session.append(Message.user("said"))
    held = await documents.get_or_create_session("telegram", 1)
    held.append(Message.assistant("meanwhile"))
    assert await documents.update_session(session) is session
    assert texts_of(session.messages()) == ["said", "meanwhile"]
    made = Session.new("telegram_2")
    made.append(Message.user("elsewhere"))
    kept = await documents.update_session(made)
    assert await documents.get_or_create_session("telegram", 2) is kept
    assert texts_of(kept.messages()) == ["elsewhere"]


@pytest.mark.parametrize("store", ["sqlite:", "none:"])
async def test_persist_session_writes_its_file_at_once(tmp_path: Path, store: str) -> None:
    """S4.75, S4.76."""
    async with opened(tmp_path, store) as manager:
        documents = MiniclawManager(manager)
        session = await documents.get_or_create_session("telegram", 1)
        session.append(Message.user("kept at once"))
        await documents.persist_session(session.session_id)
        assert "kept at once" in (tmp_path / "sessions" / "telegram_1.json").read_text()
        with pytest.raises(SessionNotFound):
            await documents.persist_session("telegram_2")


# --- the table of words ----------------------------------------------------------------------------------------------


def test_the_table_of_the_documents_words_names_every_object_that_has_them() -> None:
    table = (Path(__file__).parents[3] / "docs/reference/other-names.md").read_text()
    facades = {
        name
        for module in (of_managers, of_sessions)
        for name, one in vars(module).items()
        if isinstance(one, type) and one.__module__ == module.__name__ and not name.startswith("_")
    }
    named = set(re.findall(r"`(\w+)(?:`|\.new)", table)) | {"SessionInfo"}
    assert facades <= named
