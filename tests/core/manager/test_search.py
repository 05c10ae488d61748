"""Searching what was said: the best first, page by page, on all branches or the current one; nothing that is gone."""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.history.search import SearchPage, SearchResult
from miniclaw_sessions.core.manager import ReadOnlySessions, SessionManager, open_readonly
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.core.session import Session, searching
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import InvalidSearch, ManagerClosed, SessionNotFound
from miniclaw_sessions.files.transfer.importing import import_stream
from miniclaw_sessions.testing import FakeClock

pytestmark = pytest.mark.anyio

_NOON = "2026-01-01T12:00:00Z"


def text_of(result: SearchResult) -> str:
    return "".join(piece.text for piece in result.snippet)


def texts(page: SearchPage) -> list[str]:
    return [text_of(result) for result in page.results]


async def say(manager: SessionManager, *said: str | Message, chat: str = "1", channel: str = "telegram") -> Session:
    session = await manager.get_or_create(channel, chat)
    for one in said:
        await session.add_message(Message.user(one) if isinstance(one, str) else one)
    return session


def files_of(workspace: Path) -> list[bytes]:
    return [path.read_bytes() for path in workspace.rglob("*") if path.is_file()]


def names_in(workspace: Path) -> list[str]:
    return [path.name for path in workspace.iterdir()]


async def all_pages(manager: SessionManager | ReadOnlySessions, query: str, **options: Any) -> list[SearchResult]:
    results, cursor = list[SearchResult](), None
    while True:
        page = await manager.search(query, cursor=cursor, **options)
        results += page.results
        cursor = page.next
        if cursor is None:
            return results


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[SessionManager]:
    async with SessionManager(tmp_path, clock=FakeClock()) as manager:
        yield manager


@pytest.mark.parametrize("store", ["sqlite:", "jsonl:", "memory:", "none:"])
async def test_a_result_says_who_said_what_when_and_where(tmp_path: Path, store: str) -> None:
    clock = FakeClock()
    async with SessionManager(tmp_path, settings=SessionSettings(store=store), clock=clock) as manager:
        session = await say(manager, "A flight to Rome, please", chat="7")
        session.update(title="Holidays")
        await say(manager, "Nothing of the kind", channel="slack")
        (result,) = (await manager.search("rome")).results
        assert (result.session_id, result.channel, result.chat_id) == ("telegram_7", "telegram", "7")
        assert (result.title, result.role, result.author, result.current) == ("Holidays", "user", None, True)
        assert (result.entry_id, result.sequence) == (session.entries()[0].id, 1)
        assert result.said_at == session.entries()[0].message.timestamp
        assert [piece.text for piece in result.snippet if piece.match] == ["Rome"]
        assert text_of(result) == "A flight to Rome, please"


async def test_what_fits_best_comes_first_and_of_equals_the_newest(manager: SessionManager) -> None:
    call = ToolCall("1", "look", "{}")
    clock: Any = manager.clock
    for said in (
        "by train to Rome",
        "chrome",
        Message.assistant("", (call,)),
        Message.tool_result(call, "Rome"),
        "Rome!",
    ):
        await clock.advance(1)
        await say(manager, said)
    assert texts(await manager.search("rome")) == ["Rome!", "by train to Rome", "chrome", "Rome"]
    assert texts(await manager.search("rome", order="newest")) == ["Rome!", "Rome", "chrome", "by train to Rome"]


@pytest.mark.parametrize("order", ["best", "newest"])
async def test_pages_go_on_where_the_page_before_ended_whatever_is_said_meanwhile(
    manager: SessionManager, monkeypatch: pytest.MonkeyPatch, order: Any
) -> None:
    monkeypatch.setattr(searching, "WINDOW", 7)
    clock: Any = manager.clock
    for number in range(40):
        await clock.advance(1)
        await say(manager, f"{'rome' if number % 3 else 'chrome'} {number}", chat=str(number % 4))
    whole = await all_pages(manager, "rome", limit=100, order=order)
    assert len(whole) == len({result.place for result in whole}) == 40
    found, cursor = list[SearchResult](), None
    while True:
        page = await manager.search("rome", limit=3, cursor=cursor, order=order)
        found += page.results
        await clock.advance(1)
        await say(manager, "rome rome rome")
        if (cursor := page.next) is None:
            break
    assert found == whole
    if order == "best":  # the best of the newest window, then of the next
        scores = [result.score for result in whole]
        assert scores[:7] == sorted(scores[:7], reverse=True)
        assert scores[7] > scores[6]
    else:
        assert whole == sorted(whole, key=lambda result: result.place, reverse=True)


async def read_on(manager: SessionManager, page: SearchPage, query: str, **options: Any) -> list[SearchResult]:
    """The results of a page, and of all pages behind it."""
    results = list(page.results)
    while page.next is not None:
        page = await manager.search(query, cursor=page.next, **options)
        results += page.results
    return results


@pytest.mark.parametrize("store", ["sqlite:", "jsonl:"])
async def test_nothing_is_passed_over_when_something_is_deleted_between_two_pages(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "WINDOW", 20)
    clock = FakeClock()
    async with SessionManager(tmp_path, settings=SessionSettings(store=store), clock=clock) as manager:
        for chat, text in (("old", "rome"), ("middle", "chrome"), ("new", "rome")):
            await clock.advance(1)
            await say(manager, *[f"{text} {number}" for number in range(12)], chat=chat)
        page = await manager.search("rome", limit=5)
        await manager.delete("telegram_new")
        found = [result.place for result in await read_on(manager, page, "rome", limit=5)]
        assert len(found) == len(set(found))
        chats = [place[1] for place in found if place[1] != "telegram_new"]
        assert len(chats) == 24
        assert "telegram_old" in chats[chats.index("telegram_middle") :], "all are in one window"


@pytest.mark.parametrize("store", ["sqlite:", "jsonl:"])
async def test_nothing_comes_twice_when_something_with_an_older_time_is_said_between_two_pages(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "WINDOW", 20)
    clock = FakeClock()
    async with SessionManager(tmp_path, settings=SessionSettings(store=store), clock=clock) as manager:
        for number in range(30):
            await clock.advance(1)
            await say(manager, f"{'rome' if number % 2 else 'chrome'} {number}", chat="new")
        page = await manager.search("rome", limit=8)
        earlier = page.results[-1].said_at - timedelta(milliseconds=1)
        late = [replace(Message.user(f"rome late {number}"), timestamp=earlier) for number in range(15)]
        await say(manager, *late, chat="late")
        found = await read_on(manager, page, "rome", limit=8)
        assert len(found) == len({result.place for result in found})
        scores = [result.score for result in found if result.place[1] == "telegram_new"]
        assert len(scores) == 30
        assert scores != sorted(scores, reverse=True), "all are in one window"


@pytest.mark.parametrize("store", ["sqlite:", "jsonl:"])
async def test_a_cursor_that_somebody_made_up_harms_nothing(tmp_path: Path, store: str) -> None:
    positions: list[list[Any]] = [
        *(["2026-01-01T00:00:00"], ["0001-01-01T00:00:00+23:59"], ["9999-12-31T23:59:59-23:59"], [7], [None] * 9),
        *([None, "9" * 19], [None, "1" * 3000], [None, "\u0663"], [None, f"1.{2**63}.a"], [None, f"{'9' * 30}.1.a"]),
        *([None, None, "9" * 19], [None, None, "-1"], [None, "1", "5"], [None, "1.1.a", "9.9.b"]),
        *([None, None, None, [1.0, "2026-01-01T00:00:00", "a", 1]], [None, None, None, [1.0, _NOON, "a", -1]]),
        *([None, None, None, ["x", _NOON, "a", 1]], [None, None, None, [1e308, _NOON, "a", 2**63]]),
    ]
    async with SessionManager(tmp_path, settings=SessionSettings(store=store)) as manager:
        await say(manager, "rome one", "rome two")
        for position in positions:
            cursor = base64.urlsafe_b64encode(msgspec.json.encode(position)).decode()
            with suppress(InvalidSearch):
                await manager.search("rome", cursor=cursor)
        assert manager.health().ok
        assert len((await manager.search("rome")).results) == 2
    assert not [name for name in names_in(tmp_path) if "damaged" in name]


async def test_a_branch_that_was_left_is_found_and_told_unless_only_the_current_one_is_wanted(
    manager: SessionManager,
) -> None:
    session = await say(manager, "first rome", "second rome", "third rome")
    await session.tree.branch(session.entries()[0].id)
    await say(manager, "fourth rome")
    found = {text_of(result): result.current for result in (await manager.search("rome")).results}
    assert found == {"first rome": True, "second rome": False, "third rome": False, "fourth rome": True}
    current = await manager.search("rome", branch="current", order="newest")
    assert texts(current) == ["fourth rome", "first rome"]
    await session.tree.branch((await manager.search("third")).results[0].entry_id)
    current = await session.search("rome", branch="current", order="newest")
    assert texts(current) == ["third rome", "second rome", "first rome"]


async def test_what_was_cleared_is_never_found_unless_the_conversation_went_back_to_it(manager: SessionManager) -> None:
    session = await say(manager, "a secret of rome", "rome again")
    session.update(title="Roman holiday")
    session.clear()
    await say(manager, "nothing")
    assert texts(await manager.search("rome")) == texts(await session.search("secret")) == []
    assert texts(await manager.search("roman holiday")) == ["Roman holiday"]  # the title stays
    await say(manager, "rome anew")
    assert texts(await manager.search("rome")) == ["rome anew"]
    first = await anext(aiter(session.tree.read_entries()))
    await session.tree.branch(first.id)
    assert sorted(texts(await manager.search("rome"))) == ["a secret of rome", "rome anew"]


async def test_what_was_deleted_or_has_expired_is_never_found(tmp_path: Path) -> None:
    clock, settings = FakeClock(), SessionSettings(ttl_days=0.005)
    async with SessionManager(tmp_path, settings=settings, clock=clock) as manager:
        await say(manager, "rome deleted", chat="1")
        await say(manager, "rome expired", chat="2")
        assert len((await manager.search("rome")).results) == 2
        await manager.delete("telegram_1")
        assert texts(await manager.search("rome")) == ["rome expired"]
        await clock.advance(500)
        await say(manager, "rome now", chat="3")
        assert (await manager.sweep()).sessions == ["telegram_2"]
        assert texts(await manager.search("rome")) == ["rome now"]
        await say(manager, "another", chat="1")
        assert texts(await manager.search("deleted")) == []
    async with SessionManager(tmp_path, settings=settings, clock=clock) as manager:
        assert texts(await manager.search("rome")) == ["rome now"]


async def test_a_session_that_is_being_imported_is_found_when_it_is_complete(manager: SessionManager) -> None:
    file = Path(__file__).parents[2] / "data" / "pi-v1-large-session.jsonl"
    seen: list[int] = []

    async def chunks() -> AsyncIterator[bytes]:
        with file.open("rb") as data:
            while chunk := data.read(200_000):
                seen.append(len((await manager.search("the", limit=1)).results))
                yield chunk

    report = await import_stream(manager, chunks(), name="large")
    assert report.entries > 500
    assert set(seen) == {0}
    assert len((await manager.search("the", limit=1)).results) == 1


async def test_a_session_finds_only_what_was_said_in_it(manager: SessionManager) -> None:
    session = await say(manager, "rome one", "paris")
    await say(manager, "rome two", chat="2")
    assert texts(await session.search("rome")) == texts(await manager.search("rome", session_id="telegram_1"))
    assert texts(await session.search("rome")) == ["rome one"]
    assert texts(await session.search(role="user", limit=1, order="newest")) == ["paris"]
    in_memory = Session.new()
    await in_memory.add_message(Message.user("only rome here"))
    assert texts(await in_memory.search("rome")) == ["only rome here"]
    with pytest.raises(SessionNotFound):
        await manager.search("rome", session_id="telegram_3")


async def test_a_workspace_that_is_only_read_is_searched_beside_whoever_holds_it(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        session = await say(manager, "rome one", "rome two")
        await session.tree.branch(session.entries()[0].id)
        async with open_readonly(tmp_path) as reader:
            assert sorted(texts(await reader.search("rome"))) == ["rome one", "rome two"]
            assert texts(await reader.search("rome", branch="current")) == ["rome one"]


async def test_an_encrypted_workspace_is_searched_in_memory_and_says_why(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, encryption=KeyRing([b"k" * 32])) as manager:
        await say(manager, "a secret of rome")
        page = await manager.search("secret")
        assert texts(page) == ["a secret of rome"]
        assert "encrypted" in page.note
    assert len(contents := files_of(tmp_path)) > 1
    assert not any(b"secret" in content.lower() for content in contents)


@pytest.mark.parametrize(
    "query",
    [
        *(
            "",
            "   ",
            "-",
            '"',
            '""',
            "-rome",
            "x" * 100_000,
            "a\0b",
            "\ud800",
            '" OR 1=1 --',
            "'; drop table entries;--",
        ),
        *("NEAR(rome, 3)", "rome*", "^rome", "col:rome", "(?P<x>", "[a-z]+", "\\", "%", "_", "\u202erome", "{}" * 400),
        *("rome " * 5, "a b c d e f g h i j k l m n o p q r s t u v w x y z 0 1 2 3 4 5 6 7 8 9", "🏛" * 300),
    ],
)
async def test_a_hostile_query_is_answered_or_refused_and_never_logged(
    manager: SessionManager, query: str, caplog: pytest.LogCaptureFixture
) -> None:
    await say(manager, "rome")
    caplog.set_level(logging.DEBUG)
    found, refused = list[str](), ""
    try:
        found = texts(await manager.search(query))
    except InvalidSearch as error:
        refused = str(error)
    assert found in ([], ["rome"])
    assert len(query.strip()) < 4 or query not in refused + caplog.text


@pytest.mark.parametrize(
    "options",
    [
        *({"cursor": "x"}, {"cursor": "W10="}, {"cursor": "é"}, {"cursor": "A" * 100_000}, {"cursor": "WzEsMiwzXQ=="}),
        *({"limit": 0}, {"limit": 101}, {"branch": "b"}, {"order": "worst"}, {"role": "nobody"}, {"author": "a\0"}),
    ],
)
async def test_what_cannot_be_meant_is_refused(manager: SessionManager, options: dict[str, Any]) -> None:
    await say(manager, "rome")
    if options == {"cursor": "W10="}:  # an empty position: the first page
        assert len((await manager.search("rome", **options)).results) == 1
        return
    with pytest.raises(InvalidSearch):
        await manager.search("rome", **options)


async def test_a_closed_manager_says_so(tmp_path: Path) -> None:
    manager = SessionManager(tmp_path)
    with pytest.raises(ManagerClosed):
        await manager.search("rome")
    async with manager:
        pass
    with pytest.raises(ManagerClosed):
        await manager.search("rome")


async def test_many_searches_while_much_is_said_find_all_that_was_acknowledged_before(manager: SessionManager) -> None:
    async def converse(chat: str) -> None:
        for number in range(10):
            await say(manager, f"rome {number}", chat=chat)
            found = await all_pages(manager, "rome", session_id=f"telegram_{chat}", limit=4)
            assert len(found) == number + 1

    async with anyio.create_task_group() as tasks:
        for chat in "abcde":
            tasks.start_soon(converse, chat, name=f"chat {chat}")
