"""What the page shows of a conversation: pages of articles that fit together, and the tree."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import EntryNotFound
from miniclaw_sessions.service.api.context import Context
from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.api.fragments import (
    ArticlesReply,
    OutlineReply,
    ShowArticles,
    ShowOutline,
    show_articles,
    show_outline,
)
from miniclaw_sessions.service.api.sessions import ListSessions, ShowSession, etag_of, list_sessions, show_session

pytestmark = pytest.mark.anyio


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[SessionManager]:
    async with SessionManager(tmp_path, settings=SessionSettings(store="memory:")) as opened:
        yield opened


@pytest.fixture
async def session(manager: SessionManager) -> Session:
    return await manager.get_or_create("demo", "1")


async def articles(manager: SessionManager, **query: Any) -> ArticlesReply:
    reply = await show_articles.handler(Context(manager), ShowArticles(session_id="demo_1", **query))
    assert isinstance(reply, ArticlesReply)
    return reply


async def outline(manager: SessionManager, **query: Any) -> OutlineReply:
    reply = await show_outline.handler(Context(manager), ShowOutline("demo_1", **query))
    assert isinstance(reply, OutlineReply)
    return reply


def words(reply: ArticlesReply) -> list[str]:
    """What each article says, without its markup."""
    return [
        re.sub(r"\s+", " ", re.sub(r"<header>.*?</header>|<[^>]+>", " ", one.html)).strip() for one in reply.articles
    ]


async def said(session: Session, *texts: str) -> None:
    for text in texts:
        await session.add_message(Message.user(text))


async def with_call(session: Session, name: str, result: str) -> None:
    call = ToolCall(f"call-{name}", name, "{}")
    await session.add_message(Message.assistant("", (call,)))
    await session.add_message(Message.tool_result(call, result))


async def test_the_newest_articles_come_first_and_pages_before_them_join_without_a_gap(
    manager: SessionManager, session: Session
) -> None:
    texts = [f"message {number}" for number in range(25)]
    await said(session, *texts)
    page = await articles(manager, limit=10)
    found = words(page)
    assert found == texts[-10:]
    while page.behind is not None:
        before = page.articles[0].sequence
        page = await articles(manager, limit=10, before=before)
        assert page.articles[-1].last < before
        found = words(page) + found
    assert found == texts


async def test_a_page_before_a_place_says_whether_anything_stands_there(
    manager: SessionManager, session: Session
) -> None:
    await said(session, *(f"message {number}" for number in range(5)))
    for before, is_later in ((1, True), (5, True), (6, False), (1_000, False)):
        assert (await articles(manager, before=before)).later == is_later, before


async def test_pages_after_a_place_join_without_a_gap(manager: SessionManager, session: Session) -> None:
    texts = [f"message {number}" for number in range(25)]
    await said(session, *texts)
    page = await articles(manager, limit=10, after=0)
    found = words(page)
    while page.later:
        last = page.articles[-1].last
        page = await articles(manager, limit=10, after=last)
        assert page.behind == last
        found += words(page)
    assert found == texts


async def test_a_call_and_its_result_are_one_article_on_whatever_page(
    manager: SessionManager, session: Session
) -> None:
    for number in range(6):
        await said(session, f"question {number}")
        await with_call(session, f"tool{number}", f"result {number}")
    whole = await articles(manager, limit=100)
    assert len(whole.articles) == 12
    for limit in (1, 2, 3, 5):
        page = await articles(manager, limit=limit)
        found = page.articles
        while page.behind is not None:
            page = await articles(manager, limit=limit, before=found[0].sequence)
            found = page.articles + found
        assert [one.html for one in found] == [one.html for one in whole.articles]


async def test_what_is_asked_for_in_the_midst_of_a_call_begins_with_the_call(
    manager: SessionManager, session: Session
) -> None:
    await said(session, "question")
    await with_call(session, "tool", "the result")
    call = (await articles(manager)).articles[-1]
    page = await articles(manager, after=call.last - 1)
    assert [one.entry_id for one in page.articles] == [call.entry_id]
    assert "the result" in page.articles[0].html


async def test_a_branch_that_was_left_is_shown_by_its_end_and_paged_back_on_itself(
    manager: SessionManager, session: Session
) -> None:
    await said(session, "root", "left one", "left two")
    left = session.leaf_id
    root = (await articles(manager)).articles[0].entry_id
    await session.tree.branch(root, then=[Message.user("taken")])
    assert words(await articles(manager)) == ["root", "taken"]
    page = await articles(manager, entry_id=left, limit=1)
    assert words(page) == ["left two"]
    assert words(await articles(manager, before=page.articles[0].sequence)) == ["root", "left one"]


async def test_the_outline_names_labels_ways_and_the_ends_of_what_was_left(
    manager: SessionManager, session: Session
) -> None:
    await said(session, "root", "left one", "left two")
    left = session.leaf_id
    first = (await articles(manager)).articles
    await session.tree.branch(first[0].entry_id, then=[Message.user("taken")])
    await session.tree.set_label(first[1].entry_id, "a mark")
    found = await outline(manager)
    taken = (await articles(manager)).articles[-1].entry_id
    assert found.labels == {first[1].entry_id: "a mark"}
    assert found.ways == {first[0].entry_id: [first[1].entry_id, taken]}
    assert found.tips == {first[1].entry_id: left}
    assert found.html.count("<li") == 4


async def test_the_outline_names_the_ways_of_the_beginning_in_their_order_whichever_is_taken(
    manager: SessionManager, session: Session
) -> None:
    await said(session, "first")
    ids = [session.leaf_id]
    for text in ("second", "third"):
        ids += await session.tree.branch(None, then=[Message.user(text)])
    for taken in ids:
        await session.tree.branch(taken)
        found = await outline(manager)
        assert found.ways == {"": ids}
        assert found.tips == {one: one for one in ids if one != taken}


async def test_what_the_outline_folds_is_read_a_part_at_a_time_until_nothing_is_left(
    manager: SessionManager, session: Session
) -> None:
    await said(session, "root", *(f"left {number}" for number in range(300)))
    root = (await articles(manager, after=0, limit=1)).articles[0].entry_id
    await session.tree.branch(root, then=[Message.user("taken")])
    html = (await outline(manager)).html
    found = set[str]()
    while folds := re.search(r'data-first="(\d+)" data-last="(\d+)"', html):
        found |= {*re.findall(r">(left \d+|root|taken)</a>", html)}
        first, last = map(int, folds.groups())
        html = (await outline(manager, first=first, last=last)).html
        assert html.count("<li") == html.count("</li>") <= 201
    found |= {*re.findall(r">(left \d+)</a>", html)}
    assert len(found) == 302
    with pytest.raises(EntryNotFound):
        await outline(manager, first=1, last=999)


async def test_what_somebody_wrote_is_no_markup_in_articles_and_outline(
    manager: SessionManager, session: Session
) -> None:
    hostile = '<img src=x onerror="alert(1)"><script>alert(1)</script>'
    await said(session, hostile)
    await session.tree.set_label((await articles(manager)).articles[0].entry_id, hostile)
    html = (await articles(manager)).articles[0].html + (await outline(manager)).html
    assert "<img" not in html
    assert "<script" not in html
    assert "&lt;script&gt;" in html


async def test_before_and_after_together_are_refused(manager: SessionManager, session: Session) -> None:
    await said(session, "x")
    with pytest.raises(RequestError):
        await articles(manager, before=1, after=1)


async def test_the_list_says_how_the_newest_words_begin_where_that_is_asked_for(
    manager: SessionManager, session: Session
) -> None:
    await said(session, "first", "last\nwords")
    await with_call(session, "tool", "result")
    await manager.get_or_create("demo", "2")
    found = {}
    for wanted in (False, True):
        stream: Any = await list_sessions.handler(Context(manager), ListSessions(last_words=wanted))
        found[wanted] = b"".join([piece async for piece in stream.chunks])
    assert b"last_words" in found[True]
    assert b'"last_words":"\xe2\x86\x92 tool' in found[True]
    assert b'"last_words":"' not in found[False]


async def test_what_has_no_title_is_listed_by_its_first_words(manager: SessionManager) -> None:
    imported = await manager.get_or_create("codex", "019e742e-9d84-7578-9001-000000000001")
    await said(
        imported,
        "<environment_context>\nlinux",
        "/mode",
        "mend the\nclock",
        *(f"more {number}" for number in range(60)),
    )
    named = await manager.get_or_create("codex", "019e742e-9d84-7578-9001-000000000002")
    await said(named, "something")
    await named.tree.append_session_info("its name")
    await said(await manager.get_or_create("codex", "by-hand"), "something else")
    talk = await manager.get_or_create("telegram", 123456789)
    await said(talk, "/help")
    rows = {row.chat_id[-1]: row.first_words for row in await manager.list(last_words=True)}
    assert rows == {"1": "mend the clock", "2": None, "d": "something else", "9": "/help"}
    assert [row.first_words for row in await manager.list()] == [None] * 4
    await said(talk, "a train to Rome")
    assert (await manager.list(channel="telegram", last_words=True))[0].first_words == "a train to Rome"
    alone: Any = await show_session.handler(Context(manager), ShowSession(imported.session_id, last_words=True))
    assert (alone.first_words, alone.last_words, alone.etag) == ("mend the clock", "more 59", etag_of(imported))
    unasked: Any = await show_session.handler(Context(manager), ShowSession(imported.session_id))
    assert (unasked.first_words, unasked.last_words) == (None, None)


async def test_a_session_is_found_by_any_part_of_its_id(manager: SessionManager) -> None:
    for chat in ("user0998", "user0999", "other"):
        await manager.get_or_create("web", chat)
    stream: Any = await list_sessions.handler(Context(manager), ListSessions(part="SER09"))
    found = b"".join([piece async for piece in stream.chunks])
    assert sorted(re.findall(rb'"chat_id":"([^"]+)"', found)) == [b"user0998", b"user0999"]
