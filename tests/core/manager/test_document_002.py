"""Document 002 (Lango's session store) by its own rules, on both databases: SQLite and PostgreSQL.

Each test writes through one manager and reads through another that has nothing but the database.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import asyncpg
import pytest

from miniclaw_sessions import Message, Role, SessionManager, SessionSettings, ToolCall
from miniclaw_sessions.core.protocol.encoding import decode_entry, encode_message
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.stores import open_store
from miniclaw_sessions.core.stores.base import Append, Store
from miniclaw_sessions.errors import SessionExpired, SessionNotFound, StoreConflict
from miniclaw_sessions.testing import FakeClock, sample_entries, sample_head
from tests.sampled import sampled

pytestmark = pytest.mark.anyio


class Database:
    """One database, and managers that know nothing but what is in it."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self._is_on_a_server = url.startswith("postgresql:")
        self.clock = FakeClock(datetime.now(UTC)) if self._is_on_a_server else FakeClock()
        self._directory = directory
        self._numbers = count(1)

    @asynccontextmanager
    async def opened(self, settings: SessionSettings | None = None) -> AsyncIterator[SessionManager]:
        """A manager in a new workspace."""
        workspace = self._directory / f"workspace-{next(self._numbers)}"
        async with SessionManager(workspace, store=self.url, clock=self.clock, settings=settings) as manager:
            yield manager
        shutil.rmtree(workspace, ignore_errors=True)  # which a shared store does not make

    async def pass_time(self, seconds: float) -> None:
        """Let all sessions be as idle as if so much time had passed, by the clock that counts for them."""
        if not self._is_on_a_server:
            await self.clock.advance(seconds)
        else:
            connection = await asyncpg.connect(self.url)
            await connection.execute("UPDATE sessions SET used_at = used_at - $1::float * INTERVAL '1 s'", seconds)
            await connection.close()

    def store(self) -> Store:
        """The store itself, not yet opened."""
        return open_store(self.url, self._directory)


@pytest.fixture(params=sampled(["sqlite", "postgresql"], every=2))
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database(f"sqlite://{tmp_path}/chats.db", tmp_path)
    url: str = request.getfixturevalue("postgresql_url")
    return Database(url, tmp_path)


async def test_a_new_conversation_creates_a_record_with_a_unique_key(database: Database) -> None:
    async with database.opened() as manager:
        for chat in ("1", "2"):
            await (await manager.get_or_create("telegram", chat)).add_message(Message.user(f"in {chat}"))
    async with database.store() as store:
        assert await store.session_ids() == ["telegram_1", "telegram_2"]
        head = await store.head("telegram_1")
        assert head is not None
        assert head.last_sequence == 1


async def test_an_agent_is_stored_with_its_session(database: Database) -> None:
    async with database.opened() as manager:
        session = await manager.get_or_create("telegram", 1, agent_id="researcher")
        await session.saved()
    async with database.opened() as manager:
        assert (await manager.get("telegram", 1)).metadata["agent_id"] == "researcher"


async def test_roles_are_members_of_an_enum_and_text_only_in_the_database(database: Database) -> None:
    call = ToolCall(id="c", name="look", arguments="{}")
    said = [
        Message.user("question"),
        Message.assistant(tool_calls=(call,)),
        Message.tool_result(call, "found"),
        Message.assistant("answer"),
    ]
    async with database.opened() as manager:
        await (await manager.get_or_create("telegram", 1)).add_messages(said)
    async with database.store() as store:
        texts = [entry.encoded for entry in await store.read("telegram_1")]
        roles = [b'"role":"user"', b'"role":"assistant"', b'"role":"tool_result"', b'"role":"assistant"']
        assert all(role in text for role, text in zip(roles, texts, strict=True))
    async with database.opened() as manager:
        roles_read = [message.role for message in (await manager.get("telegram", 1)).messages()]
    assert all(type(role) is Role for role in roles_read)
    assert roles_read == [Role.USER, Role.ASSISTANT, Role.TOOL_RESULT, Role.ASSISTANT]
    assert b'"role":"user"' in encode_message(said[0])


async def test_a_session_is_loaded_with_its_whole_history(database: Database) -> None:
    async with database.opened() as manager:
        session = await manager.get_or_create("telegram", 1)
        for number in range(30):
            await session.add_message(Message.user(f"question {number}"))
            await session.add_message(Message.assistant(f"answer {number}"))
    async with database.opened() as manager:
        session = await manager.get("telegram", 1)
        assert len(session.messages()) == 50
        entries = [entry async for entry in session.tree.read_entries() if isinstance(entry, MessageEntry)]
        assert [entry.message.text for entry in entries[-2:]] == ["question 29", "answer 29"]
        assert len(entries) == 60


async def test_an_unknown_key_is_a_not_found_error(database: Database) -> None:
    async with database.opened() as manager:
        with pytest.raises(SessionNotFound, match="telegram_1"):
            await manager.get("telegram", 1)
        assert await manager.delete("telegram_1") is False


async def test_settings_are_kept_and_come_back_with_the_session(database: Database) -> None:
    async with database.opened() as manager:
        session = await manager.get_or_create("telegram", 1)
        session.update(model="large", provider="somebody", thinking_level="high")
        session.update(thinking_level="low", own={"nested": [1, None, "two"]})
        await session.saved()
    async with database.opened() as manager:
        metadata = (await manager.get("telegram", 1)).metadata
        assert (metadata["model"], metadata["provider"], metadata["thinking_level"]) == ("large", "somebody", "low")
        assert metadata["own"] == {"nested": [1, None, "two"]}


async def test_deleting_removes_all_of_a_session_and_nothing_of_others(database: Database) -> None:
    async with database.opened() as manager:
        for chat in (1, 2):
            session = await manager.get_or_create("telegram", chat)
            await session.add_message(Message.user("words"), idempotency_key="key")
        await manager.delete("telegram_1")
    async with database.store() as store:
        assert await store.session_ids() == ["telegram_2"]
        assert await store.read("telegram_1") == []
        assert await store.find_by_idempotency_key("telegram_1", "key") is None
        assert len(await store.read("telegram_2")) == 1
        assert await store.check() == []


async def test_a_session_past_its_time_to_live_is_cleaned_up(database: Database) -> None:
    settings = SessionSettings(ttl_days=1, archive_expired=False, restore_archived=False, sweep_interval_s=3e8)
    async with database.opened(settings) as manager:
        await (await manager.get_or_create("telegram", 1)).add_message(Message.user("old"))
        await manager.flush()
        await manager.sweep(dry_run=True)  # has seen that the chat was used not long ago: it does not doubt the clock
        await database.pass_time(86_401)
        await (await manager.get_or_create("telegram", 2)).add_message(Message.user("new"))
        assert (await manager.sweep()).sessions == ["telegram_1"]
        with pytest.raises(SessionNotFound):
            await manager.get("telegram", 1)
    async with database.store() as store:
        assert await store.session_ids() == ["telegram_2"]


async def test_an_expired_session_is_another_error_than_an_unknown_one(database: Database) -> None:
    settings = SessionSettings(ttl_days=1, sweep_interval_s=3e8)
    async with database.opened(settings) as manager:
        await (await manager.get_or_create("telegram", 1)).add_message(Message.user("old"))
        await manager.flush()
        await manager.sweep(dry_run=True)  # has seen that the chat was used not long ago: it does not doubt the clock
        await database.pass_time(86_401)
        assert (await manager.sweep()).sessions == ["telegram_1"]
        with pytest.raises(SessionExpired, match="the session 'telegram_1' has expired; `unarchive` brings it back"):
            await manager.get("telegram", 1)
        with pytest.raises(SessionNotFound) as unknown:
            await manager.get("telegram", 2)
        assert type(unknown.value) is SessionNotFound
        session = await manager.get_or_create("telegram", 1)  # and whoever speaks again is let in
        assert [message.text for message in session.messages()] == ["old"]


async def test_an_appended_message_is_one_record_linked_to_its_session(database: Database) -> None:
    async with database.opened() as manager:
        entry = await (await manager.get_or_create("telegram", 1)).add_message(Message.user("one"))
    async with database.store() as store:
        (stored,) = await store.read("telegram_1")
        assert (stored.entry_id, stored.sequence) == (entry.id, 1)


async def test_appending_to_a_session_that_was_deleted_is_refused(database: Database) -> None:
    async with database.store() as store:
        assert await store.append([Append(sample_head(), sample_entries(1, 1))]) == [None]
        await store.delete("telegram_1")
        (outcome,) = await store.append([Append(sample_head(), sample_entries(2, 2))])
        assert isinstance(outcome, StoreConflict)
        assert await store.head("telegram_1") is None


async def test_the_author_of_a_message_is_kept_and_left_out_where_there_is_none(database: Database) -> None:
    async with database.opened() as manager:
        session = await manager.get_or_create("telegram", 1)
        await session.add_message(Message(Role.ASSISTANT, "told", author="lango-orchestrator"))
        await session.add_message(Message.user("nobody's"))
    async with database.store() as store:
        told, nobodys = await store.read("telegram_1")
        assert b'"author":"lango-orchestrator"' in told.encoded
        assert b"author" not in nobodys.encoded
    async with database.opened() as manager:
        authors = [message.author for message in (await manager.get("telegram", 1)).messages()]
        assert authors == ["lango-orchestrator", None]


async def test_the_output_of_a_tool_comes_back_byte_for_byte(database: Database) -> None:
    output = '{"b" : 1.50,  "a":"\\u00e4\\/ä", "n": 1e400, "deep": [ [ ] ] }'
    call = ToolCall(id="call-1", name="look_up", arguments='{ "q":"ä" }', output=output)
    async with database.opened() as manager:
        await (await manager.get_or_create("telegram", 1)).add_message(Message.assistant(tool_calls=(call,)))
    async with database.opened() as manager:
        (message,) = (await manager.get("telegram", 1)).messages()
        (read,) = message.tool_calls or ()
        assert (read.id, read.name, read.arguments, read.output) == ("call-1", "look_up", '{ "q":"ä" }', output)
    async with database.store() as store:
        (stored,) = await store.read("telegram_1")
        entry = decode_entry(stored.encoded)
        assert isinstance(entry, MessageEntry)
        assert [one.output for one in entry.message.tool_calls or ()] == [output]


async def test_times_are_kept_to_the_microsecond_and_in_utc(database: Database) -> None:
    async with database.opened() as manager:
        session = await manager.get_or_create("telegram", 1)
        await session.add_message(Message.user("now"))
        created = session.created_at
    async with database.opened() as manager:
        assert (await manager.get("telegram", 1)).created_at == created
        assert created.utcoffset() == timedelta(0)
