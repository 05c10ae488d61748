"""A page of what was said says whether there are messages before it and behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message, message_from_dict
from miniclaw_sessions.service.client import Client, ClientSession, connect
from miniclaw_sessions.service.client.session import Page

pytestmark = pytest.mark.anyio

MANY = [Message.user(str(number)) for number in range(70)]


async def a_chat(client: Client, messages: list[Message]) -> ClientSession:
    session = await client.get_or_create("a", "1")
    await session.add_messages(messages)
    return session


def sides(page: Page) -> tuple[int, bool, bool]:
    return len(page.messages), page.earlier, page.later


@pytest.mark.parametrize("store", ["sqlite:", "jsonl:"])
async def test_what_stands_before_the_window_is_known_after_a_restart(short_path: Path, store: str) -> None:
    settings = SessionSettings(store=store)
    async with SessionManager(short_path, settings=settings) as manager, connect(manager) as client:
        before = await (await a_chat(client, MANY)).history()
    async with SessionManager(short_path, settings=settings) as manager, connect(manager) as client:
        after = await client.session("a_1").history()
        rest = await client.session("a_1").history(before=after.messages[0].sequence)
    assert sides(before) == sides(after) == (50, True, False)
    assert sides(rest) == (20, False, True)


async def test_nothing_stands_before_a_window_that_holds_everything(client: Client) -> None:
    assert sides(await (await a_chat(client, MANY[:50])).history()) == (50, False, False)


async def test_nothing_stands_before_a_session_that_was_cleared(client: Client) -> None:
    session = await a_chat(client, MANY)
    await session.clear()
    assert sides(await session.history()) == (0, False, False)
    assert sides(await session.history(after=3)) == (0, False, False)
    await session.add_message(MANY[0])
    assert sides(await session.history()) == (1, False, False)


async def test_what_was_compacted_stands_before_its_summary(client: Client) -> None:
    session = await a_chat(client, MANY[:3])
    kept = (await session.history()).messages[-1]
    await session.compact(summary="0 and 1 were said", first_kept_entry_id=kept.id)
    assert sides(await session.history()) == (2, True, False)
    assert sides(await session.history(before=kept.sequence)) == (2, False, True)


@pytest.mark.parametrize("own", ["in short", True, {"n": 1}])
async def test_a_messages_own_field_makes_no_summary_of_it(client: Client, own: object) -> None:
    said = {"role": "user", "content": "x", "summary": own}
    session = await client.get_or_create("a", "1")
    entry = await session.add_message(said)
    for page in (await session.history(), await session.history(after=0)):
        (shown,) = page.messages
        assert (shown.is_summary, shown.id, shown.sequence) == (False, entry.id, entry.sequence)
        assert (shown.message.extra or {})["summary"] == own


async def test_a_summary_has_no_place_whatever_fields_its_messages_have(short_path: Path) -> None:
    named = message_from_dict({"role": "user", "content": "kept", "id": "foreign", "sequence": 77, "summary": "own"})
    async with SessionManager(short_path) as manager, connect(manager) as client:
        session = await manager.get_or_create("a", "1")
        await session.add_messages(MANY[:2])
        await session.tree.append_compaction("0 was said", None, messages=[named])
        await session.add_message(MANY[2])
        page = await client.session("a_1").history()
    shown = [(one.message.text, one.is_summary, one.sequence) for one in page.messages]
    assert shown == [("0 was said", True, 0), ("kept", True, 0), ("2", False, 4)]


@pytest.mark.parametrize("session_settings", [SessionSettings(store="none:")])
async def test_nothing_stands_before_the_window_where_no_transcript_is_kept(client: Client) -> None:
    session = await a_chat(client, MANY)
    page = await session.history()
    assert sides(page) == (50, False, False)
    assert sides(await session.history(before=page.messages[0].sequence))[:2] == (0, False)


async def test_a_page_before_a_place_beyond_the_end_is_the_last_one(client: Client) -> None:
    session = await a_chat(client, MANY[:5])
    assert sides(await session.history(before=10**9, limit=2)) == (2, True, False)
    assert sides(await session.history(before=6)) == (5, False, False)
    assert sides(await session.history(before=5)) == (4, False, True)


async def test_a_page_before_what_is_no_message_has_the_later_messages_behind_it(client: Client) -> None:
    session = await a_chat(client, MANY[:2])
    await session.update(title="between")
    between = (await session.info()).entries
    assert sides(await session.history(before=between)) == (2, False, False)
    await session.add_message(MANY[2])
    assert sides(await session.history(before=between)) == (2, False, True)


async def test_a_page_behind_a_place_has_earlier_messages_only_if_there_are_some(client: Client) -> None:
    session = await client.get_or_create("a", "1")
    assert sides(await session.history(after=5)) == (0, False, False)
    await session.update(title="the first entry is no message")
    await session.add_messages(MANY[:3])
    places = [one.sequence for one in (await session.history()).messages]
    assert sides(await session.history(after=places[0] - 1)) == (3, False, False)
    assert sides(await session.history(after=places[0], limit=1)) == (1, True, True)
    assert sides(await session.history(after=10**9)) == (0, True, False)
