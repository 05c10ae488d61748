"""Following all sessions through a client: each entry once, in this process and over HTTP."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import SessionsError
from miniclaw_sessions.service.api.shapes import ChatEvent
from miniclaw_sessions.service.client import Client
from miniclaw_sessions.service.client.following import End, SessionEvent, SessionEvents
from miniclaw_sessions.service.client.http import HttpTransport
from tests.service.client.test_connection import serving

pytestmark = pytest.mark.anyio
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def said(event: SessionEvent) -> tuple[str, str]:
    """An event in short: what was said, or what happened, and where."""
    return (event.entry.message.text if isinstance(event.entry, MessageEntry) else event.kind), event.session_id


async def up_to(events: SessionEvents, *wanted: tuple[str, str]) -> list[tuple[str, str]]:
    """What comes until all of these have come; sessions may come in any order, what is said in each in its own."""
    found: list[tuple[str, str]] = []
    with anyio.fail_after(60):
        async for event in events:
            found.append(said(event))
            if set(wanted) <= set(found):
                return sorted(found)
    raise AssertionError(found)


async def test_what_comes_is_told_and_a_later_call_goes_on_where_this_one_was(client: Client) -> None:
    one = await client.get_or_create("a", "1")
    await one.add_message(Message.user("long before"))
    async with client.follow_all(ends={}) as events:
        assert await up_to(events, ("long before", "a_1")) == [("created", "a_1"), ("long before", "a_1")]
        await one.add_message(Message.user("now"))
        await (await client.get_or_create("a", "2")).add_message(Message.user("and here"))
        expected = [("and here", "a_2"), ("created", "a_2"), ("now", "a_1")]
        assert await up_to(events, *expected) == expected
        ends = dict(events.ends)
    await one.add_message(Message.user("while nobody followed"))
    await client.delete("a_2")
    async with client.follow_all(ends=ends) as events:
        expected = [("deleted", "a_2"), ("while nobody followed", "a_1")]
        assert await up_to(events, *expected) == expected


async def test_it_begins_with_what_comes_from_now_on(client: Client) -> None:
    one = await client.get_or_create("a", "1")
    await one.add_message(Message.user("before"))
    async with client.follow_all() as events, anyio.create_task_group() as tasks:

        async def say() -> None:
            while "a_1" not in events.ends:
                await anyio.lowlevel.checkpoint()
            await one.add_message(Message.user("now"))

        tasks.start_soon(say)
        assert await up_to(events, ("now", "a_1")) == [("now", "a_1")]
        assert events.ends["a_1"].sequence == 2


async def test_a_session_that_was_made_anew_is_told_from_its_beginning(client: Client) -> None:
    for text in ("first", "second"):
        await (await client.get_or_create("a", "1")).add_message(Message.user(text))
    incarnation = (await client.session("a_1").info()).incarnation
    await client.delete("a_1")
    await (await client.get_or_create("a", "1")).add_message(Message.user("anew"))
    async with client.follow_all(ends={"a_1": End(incarnation, 2)}) as events:
        assert await up_to(events, ("anew", "a_1")) == [("anew", "a_1"), ("created", "a_1"), ("deleted", "a_1")]


@pytest.mark.parametrize(
    "said",
    [
        "event: entries\ndata: nonsense",
        "event: entries\ndata: []",
        'event: entries\ndata: {"session_id": 5}',
        'event: entries\ndata: {"session_id": "a_1", "sequence": "9", "entries": []}',
        'event: entries\ndata: {"session_id": "a_1", "sequence": 1, "entries": [{"sequence": 1, "entry": {}}]}',
        "event: session\ndata: {}",
        'event: created\ndata: {"session_id": "a_1"}',
        'event: ready\ndata: {"resumed": 1}',
        "event: deleted\ndata: {}",
    ],
)
async def test_an_event_that_no_daemon_says_is_an_error_in_words(short_path: Path, said: str) -> None:
    async with serving(short_path, STREAM + f"{said}\n\n".encode(), then_close=True) as (_, connections):
        client = Client(HttpTransport(connections, "there"))
        async with client.follow_all(ends={}) as events:
            with anyio.fail_after(60), pytest.raises(SessionsError):
                await anext(aiter(events))


ENTRY = """{"type": "custom", "id": "x", "parent_id": null, "timestamp": "2026-01-01T00:00:00Z", "sequence": 1,
    "custom_type": "y", "data": {}}"""


@pytest.mark.parametrize("entries", ["", ENTRY], ids=["none", "one"])
async def test_a_daemon_that_gives_the_same_entries_for_ever_is_not_asked_for_ever(
    short_path: Path, entries: str
) -> None:
    said = b'event: entries\ndata: {"session_id": "a_1", "sequence": 9, "entries": []}\n\n'
    page = f'{{"entries": [{entries}], "next": 1, "previous": null}}'.encode()
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page)
    events = STREAM + said + b'event: turn_started\ndata: {"session_id": "a_1"}\n\n'
    async with serving(short_path, events, reply) as (server, connections):
        client = Client(HttpTransport(connections, "there"))
        async with client.follow_all(ends={}) as followed:
            told = aiter(followed)
            with anyio.fail_after(60):
                if entries:
                    assert (await anext(told)).kind == "entry"
                    with pytest.raises(SessionsError, match="come in no order"):
                        await anext(told)
                else:
                    assert (await anext(told)).kind == "turn_started"
        assert len(server.heads) == 2 + bool(entries)


@pytest.mark.parametrize("client", ["over HTTP"], indirect=True)
async def test_watching_a_session_shows_the_answers_of_others(client: Client) -> None:
    session = await client.get_or_create("a", "1")
    await session.add_message(Message.user("before"))
    found: list[str] = []
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            async with aclosing(session.watch(after=0)) as told:
                async for one in told:
                    found.append(one.kind if isinstance(one, ChatEvent) else "entry")
                    if found == ["entry"]:
                        tasks.start_soon(ask)
                    if found[-1] == "done":
                        return

        async def ask() -> None:
            async with session.chat("hello") as events:
                assert [event.kind async for event in events][-1] == "done"

        with anyio.fail_after(60):
            await watch()
    assert (found.count("entry"), found[-1]) == (3, "done")
    if "text" in found:  # unless the answer was there before the beginning of the session was read
        assert [name for name in found if name != "entry"] == ["typing", "accepted", "text", "usage", "done"]
        if found[: found.index("typing")] != ["entry"] * 3:  # who begins while it is stored is told of it behind it
            assert found[-2] == "entry", "the text comes before its entry"
