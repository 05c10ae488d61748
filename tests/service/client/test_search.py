"""Searching through a client: in this process and over HTTP, the same pages and the same errors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import InvalidKey, InvalidSearch, SessionNotFound
from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.client import Client

pytestmark = pytest.mark.anyio


async def fill(client: Client) -> None:
    for channel, chat, *said in (
        ("telegram", "1", "a flight to Rome", "a hotel in Rome"),
        ("telegram", "2", "chrome & steel"),
        ("slack", "1", "Rome, too"),
    ):
        session = await client.get_or_create(channel, chat, title=f"{channel} {chat}")
        for text in said:
            await session.add_message(Message.user(text))


async def test_a_client_searches_and_jumps_to_what_it_found(client: Client) -> None:
    await fill(client)
    page = await client.search("rome flight")
    (result,) = page.results
    assert (result.session_id, result.title, result.role, result.current) == ("telegram_1", "telegram 1", "user", True)
    assert [piece.text for piece in result.snippet if piece.match] == ["flight", "Rome"]
    entry: Any = await client.session(result.session_id).tree.get_entry(result.entry_id)
    assert (entry.message.text, entry.sequence) == ("a flight to Rome", result.sequence)


async def test_pages_go_on_over_both_transports(client: Client) -> None:
    await fill(client)
    found, cursor = list[str](), None
    while True:
        page = await client.search("rome", limit=1, cursor=cursor)
        found += [f"{result.session_id} {result.sequence}" for result in page.results]
        if (cursor := page.next) is None:
            break
    assert found == ["slack_1 2", "telegram_1 3", "telegram_1 2", "telegram_2 2"]


async def test_every_filter_reaches_the_store(client: Client) -> None:
    await fill(client)
    now = datetime.now(UTC)
    an_hour = timedelta(hours=1)
    for options, count in (
        ({"channel": "slack"}, 1),
        ({"session_id": "telegram_1"}, 2),
        ({"role": "user"}, 4),
        ({"role": "assistant"}, 0),
        ({"author": "nobody"}, 0),
        ({"tool": "nothing"}, 0),
        ({"after": now - an_hour, "before": now + an_hour}, 4),
        ({"after": now + an_hour}, 0),
        ({"before": now - an_hour}, 0),
        ({"branch": "current", "order": "newest"}, 4),
    ):
        filters: dict[str, Any] = options
        assert len((await client.search("rome", **filters)).results) == count, options


@pytest.mark.parametrize("query", ["", "-x", "a\0b", "x" * 2_000, "\ud800"])
async def test_a_query_that_cannot_be_meant_is_refused_in_words(client: Client, query: str) -> None:
    with pytest.raises(InvalidSearch) as refused:
        await client.search(query)
    assert len(str(refused.value)) < 200


async def test_what_else_cannot_be_meant_is_refused(client: Client) -> None:
    await fill(client)
    for options in ({"cursor": "nonsense"}, {"role": "nobody"}, {"limit": 1_000}, {"order": "worst"}):
        wrong: dict[str, Any] = options
        with pytest.raises((InvalidSearch, RequestError)):
            await client.search("rome", **wrong)
    with pytest.raises(SessionNotFound):
        await client.search("rome", session_id="telegram_9")


async def test_a_query_that_is_too_long_for_any_address_is_told_the_bound(client: Client) -> None:
    with pytest.raises(InvalidSearch, match=r"^the query has 100,000 characters; at most 1,000 are searched for$"):
        await client.search("x" * 100_000)
    with pytest.raises(InvalidSearch, match="the author has 100,000 characters"):
        await client.search("rome", author="x" * 100_000)
    assert (await client.search("\N{GRINNING FACE}" * 1_000)).results == ()


async def test_an_id_that_is_too_long_for_any_address_is_told_the_bound(client: Client) -> None:
    key = "has 100000 bytes; at most 4096 are allowed"
    address = "session_id has 100,009 characters; the address and the headers of a request have room for 60,000 bytes"
    with pytest.raises((InvalidKey, RequestError), match=key if client.is_local else address):
        await client.session("telegram_" + "9" * 100_000).info()


async def test_what_was_erased_is_not_found(client: Client) -> None:
    await fill(client)
    await client.erase("telegram_1")
    await client.session("slack_1").clear()
    assert [result.session_id for result in (await client.search("rome")).results] == ["telegram_2"]
