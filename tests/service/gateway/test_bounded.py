"""A manager's sessions within bounds: what is beyond is as if it was not there; what is about all is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager.reading import read_transcript
from miniclaw_sessions.core.protocol.keys import KeyBounds, SessionKey
from miniclaw_sessions.errors import (
    InvalidKey,
    NotArchived,
    NotPermitted,
    SessionExpired,
    SessionNotFound,
)
from miniclaw_sessions.files.transfer.exporting import export_session
from miniclaw_sessions.files.transfer.importing import import_stream
from miniclaw_sessions.service.api.bounded import BoundedSessions
from miniclaw_sessions.testing import FakeClock
from tests.sampled import sampled

pytestmark = pytest.mark.anyio

BOUNDS = KeyBounds(frozenset({"web"}), "a")
LONG = "x" * 300


def permit(key: SessionKey) -> None:
    if not BOUNDS.covers(key):
        raise NotPermitted(key.session_id)


@pytest.fixture(params=sampled(["sqlite:", "jsonl:", "memory:"], every=3))
async def manager(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionManager]:
    settings = SessionSettings(store=request.param, ttl_days=1.0, flush_interval_s=5e6)  # no flush in 40 days
    async with SessionManager(tmp_path / "w", settings=settings, clock=FakeClock()) as manager:
        for channel, chat_id in (
            ("web", "a1"),
            ("web", "b1"),
            ("mail", "a1"),
            ("web", f"a{LONG}"),
            ("web", f"b{LONG}"),
        ):
            session = await manager.get_or_create(channel, chat_id)
            await session.add_message(Message.user(f"a secret of {channel} {chat_id[:2]}"))
        yield manager


@pytest.fixture
def bounded(manager: SessionManager) -> BoundedSessions:
    return BoundedSessions(manager, BOUNDS, permit)


def ids(*chats: tuple[str, str]) -> list[str]:
    return [SessionKey.of(channel, chat_id).session_id for channel, chat_id in chats]


async def test_it_finds_and_lists_what_is_within(bounded: BoundedSessions, manager: SessionManager) -> None:
    within = ids(("web", f"a{LONG}"), ("web", "a1"))
    beyond = ids(("web", "b1"), ("mail", "a1"), ("web", f"b{LONG}"))
    assert [one.session_id for one in await bounded.list()] == within
    assert [one.session_id for one in await bounded.list(limit=1, offset=1)] == within[1:]
    assert [one.session_id for one in await bounded.list(channel="mail")] == []
    for session_id in within:
        assert (await bounded.find(session_id)).session_id == session_id
    for session_id in beyond:
        with pytest.raises(SessionNotFound) as missing:
            await bounded.find(session_id)
        assert type(missing.value) is SessionNotFound
        with pytest.raises(SessionNotFound):
            _ = [one async for one in read_transcript(bounded, session_id)]
        async with aclosing(bounded.events.watch(session_id)) as followed:
            with pytest.raises(SessionNotFound):
                await anext(followed)
        assert await bounded.delete(session_id) is False
        with pytest.raises(SessionNotFound):
            await bounded.purge(session_id)
    assert len(manager) == 5


async def test_it_searches_what_is_within_and_its_cursor_tells_of_nothing_else(bounded: BoundedSessions) -> None:
    found, cursor = [], None
    while True:
        page = await bounded.search("secret", limit=1, cursor=cursor)
        found += [(one.channel, one.chat_id[:2]) for one in page.results]
        if (cursor := page.next) is None:
            break
        assert len(found) <= 2
    assert sorted(found) == [("web", "a1"), ("web", "ax")]
    assert (await bounded.search("mail")).results == ()
    assert (await bounded.search("secret", channel="mail")).results == ()
    with pytest.raises(SessionNotFound):
        await bounded.search("secret", session_id="mail_a1")


async def test_it_makes_removes_and_follows_what_is_within(bounded: BoundedSessions, manager: SessionManager) -> None:
    session = await bounded.get_or_create("web", "anew", metadata={"title": "new"})
    assert session.title == "new"
    with pytest.raises(NotPermitted):
        await bounded.get_or_create("web", "bnew")
    with pytest.raises(InvalidKey):
        await bounded.get_or_create("", "a")
    async with aclosing(bounded.events.watch("web_anew", after=0)) as followed:
        await session.add_message(Message.user("hello"))
        assert await anext(followed)
    assert await bounded.delete("web_anew") is True
    assert await bounded.purge("web_anew") == await manager.purge("web_anew")
    (long,) = ids(("web", f"a{LONG}"))
    assert await bounded.delete(long) is True
    assert isinstance(await bounded.purge(long), list)
    assert len(manager) == 4


async def test_only_what_is_within_comes_back_from_the_archive(bounded: BoundedSessions, manager: Any) -> None:
    await manager.clock.advance(40 * 86_400.0)
    await manager.sweep()
    assert len(manager) == 0
    with pytest.raises(SessionExpired):
        await bounded.find("web_a1")
    with pytest.raises(SessionNotFound) as missing:
        await bounded.find("web_b1")
    assert type(missing.value) is SessionNotFound
    with pytest.raises(NotArchived):
        await bounded.restore("web_b1")
    assert (await bounded.restore("web_a1")).session_id == "web_a1"


async def test_what_a_file_would_become_must_be_within(manager: SessionManager) -> None:
    for name in ("mail_a1", "mail_new", "web_b9"):
        exported = b"".join([one async for one in export_session(manager, "web_a1", _entry_lines())])

        async def pieces(data: bytes = exported) -> AsyncIterator[bytes]:
            yield data

        for dry_run in (True, False):
            with pytest.raises(NotPermitted):
                await import_stream(
                    manager, pieces(), name="f", key=SessionKey.parse(name), dry_run=dry_run, check=permit
                )
    assert len(manager) == 5


def _entry_lines() -> Any:
    from miniclaw_sessions.files.formats.entry_line import ENTRY_LINE  # noqa: PLC0415 - one test needs it

    return ENTRY_LINE


async def test_what_is_about_all_sessions_is_refused(bounded: BoundedSessions) -> None:
    view: Any = bounded
    for name in ("statistics", "flush", "check", "repair", "sweep", "store", "health", "recovery", "workspace"):
        with pytest.raises(NotPermitted, match="channel web, chats a"):
            getattr(view, name)
