"""What the HTTP interface promises of every operation, whichever it is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from miniclaw_sessions.config import ListenSettings, SessionSettings
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.service.api.operation import Stream, operation
from miniclaw_sessions.service.api.service import Nothing
from miniclaw_sessions.service.api.table import OPERATIONS
from miniclaw_sessions.service.gateway.binding import MAX_UPLOADS, Asked, Binding
from miniclaw_sessions.service.gateway.exchange import Exchange, Request
from tests.service.gateway.bodies import user

pytestmark = pytest.mark.anyio

ONE = "/v1/sessions/a_1"


def filled(path: str) -> str:
    named = path.replace("{session_id}", "a_1").replace("{entry_id}", "e")
    return named.replace("{conversation_id}", "a_1").replace("{item_id}", "msg_1")


# --- the table -------------------------------------------------------------------------------------------------------


def test_every_operation_has_a_name_of_its_own_and_says_what_it_does() -> None:
    names = [one.name for one in OPERATIONS]
    assert len(set(names)) == len(names)
    assert len({(one.method, one.path) for one in OPERATIONS}) == len(OPERATIONS)
    for one in OPERATIONS:
        assert one.about.endswith("."), one.name
        assert one.in_path <= one.fields.keys(), one.name
        assert one.method in ("GET", "POST") or not one.reads, one.name


async def test_an_unknown_query_parameter_is_refused_by_every_operation_and_nothing_is_done(served: Any) -> None:
    await served.unix.post(f"{ONE}/messages", json=user("x"))
    for one in (one for one in OPERATIONS if not one.openai):
        reply = await served.unix.request(
            one.method,
            filled(one.path),
            params={"nonsense": "1"},
            content=b"{}" if one.uploads else None,
            headers={"Content-Type": "application/json"},
        )
        error = reply.json()["error"]
        refused = (reply.status_code, error["type"], error["param"])
        assert refused == (422, "invalid_request", "nonsense"), one.name
        assert (await served.unix.get(ONE)).json()["entries"] == 1, one.name


async def test_a_query_parameter_that_comes_twice_is_refused(served: Any) -> None:
    await served.unix.post(f"{ONE}/messages", json=user("x"))
    reply = await served.unix.get(f"{ONE}/messages?limit=1&limit=2")
    assert (reply.status_code, reply.json()["error"]["param"]) == (422, "limit")


async def test_a_number_below_its_bound_is_refused_with_the_bound(served: Any) -> None:
    await served.unix.post(f"{ONE}/messages", json=user("x"))
    for query, least in (("limit=-1", 1), ("limit=0", 1), ("before=-5", 0)):
        reply = await served.unix.get(f"{ONE}/messages?{query}")
        assert reply.status_code == 422
        assert f">= {least}" in reply.json()["error"]["message"]


async def test_allow_names_every_method_of_every_path(served: Any) -> None:
    for path in sorted({one.path for one in OPERATIONS}):
        methods = {one.method for one in OPERATIONS if one.path == path}
        reply = await served.unix.request("TRACE", filled(path))
        assert reply.status_code == 405, path
        allowed = set(reply.headers["allow"].split(", "))
        assert allowed == methods | ({"HEAD"} if "GET" in methods else set()), path


async def test_a_query_text_that_spells_null_or_a_number_is_a_text(served: Any) -> None:
    await served.unix.post("/v1/sessions", json={"channel": "null", "chat_id": "1"})
    await served.unix.post("/v1/sessions", json={"channel": "7", "chat_id": "1"})
    for channel in ("null", "7"):
        page = (await served.unix.get("/v1/sessions", params={"channel": channel})).json()
        assert [row["channel"] for row in page["sessions"]] == [channel]


# --- promises of single operations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-01:00"])
async def test_a_time_that_utc_does_not_have_is_refused_at_the_door(served: Any, moment: str) -> None:
    for route, body in (
        ("messages", {**user("x"), "timestamp": moment}),
        ("turns", {"messages": [{**user("x"), "timestamp": moment}]}),
    ):
        reply = await served.unix.post(f"{ONE}/{route}", json=body)
        assert (reply.status_code, reply.json()["error"]["type"]) == (422, "invalid_message")
    reply = await served.unix.post(
        "/v1/chat", json={"channel": "a", "chat_id": "b", "message": {**user("x"), "timestamp": moment}}
    )
    assert (reply.status_code, reply.json()["error"]["type"]) == (422, "invalid_message")
    await served.unix.post(f"{ONE}/messages", json=user("fine"))
    for form in ("html", "nanobot", "jsonl"):
        assert (await served.unix.get(f"{ONE}/export", params={"format": form})).status_code == 200


@pytest.mark.parametrize("route", ["messages", "turns", "entries", "branch", "labels", "fork", "compact"])
async def test_a_body_of_a_wrong_type_is_refused_and_changes_nothing(served: Any, route: str) -> None:
    await served.unix.post(f"{ONE}/messages", json=user("x"))
    for body in (b"5", b'"text"', b"null", b"[]", b'[{"entry_id": null}]'):
        reply = await served.unix.post(f"{ONE}/{route}", content=body, headers={"Content-Type": "application/json"})
        assert reply.status_code == 422, (body, reply.text)
    assert (await served.unix.get(ONE)).json()["entries"] == 1


# --- slow and silent clients -----------------------------------------------------------------------------------------


class TestImpatient:
    @pytest.fixture
    def limits(self) -> ListenSettings:
        return ListenSettings(request_timeout_s=0.5, graceful_timeout_s=1.0, max_body_bytes=2_000_000)

    async def test_uploads_that_crawl_do_not_keep_others_out(self, served: Any) -> None:
        done: list[int] = []

        async def crawl() -> None:
            async def bytes_now_and_then() -> AsyncIterator[bytes]:
                while True:
                    yield b" "
                    await anyio.sleep(0.05)

            reply = await served.unix.post(
                "/v1/import", content=bytes_now_and_then(), headers={"Content-Type": "application/octet-stream"}
            )
            done.append(reply.status_code)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for _ in range(MAX_UPLOADS):
                    tasks.start_soon(crawl)
        assert done == [408] * MAX_UPLOADS
        await served.unix.post(f"{ONE}/messages", json=user("x"))
        exported = (await served.unix.get(f"{ONE}/export")).content
        reply = await served.unix.post(
            "/v1/import?session_id=b_2", content=exported, headers={"Content-Type": "application/octet-stream"}
        )
        assert reply.status_code == 201

    @pytest.mark.parametrize("route", ["/messages", "", "/context", "/branch", "/transcript", "/entries"])
    async def test_a_reply_that_nobody_reads_is_given_up(self, served: Any, route: str) -> None:
        session = await served.manager.get_or_create("a", "1")
        for number in range(40):
            session.append(Message.user(f"{number} " + "x" * 200_000))
        session.update(note="y" * 800_000)
        await session.saved()
        async with await anyio.connect_unix(str(served.socket)) as stream:
            await stream.send(f"GET {ONE}{route} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            with anyio.fail_after(60):
                await stream.receive(100)  # it has begun, and is not read on
                await served.idle()
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await read_to_the_end(stream)


async def read_to_the_end(stream: Any) -> None:
    while True:
        await stream.receive()


class TestBounded:
    @pytest.fixture
    def session_settings(self) -> SessionSettings:
        return SessionSettings(store="memory:", max_message_bytes=1_000)

    async def test_a_refused_creation_makes_nothing(self, served: Any) -> None:
        wanted = {"channel": "a", "chat_id": "1", "metadata": {"note": "x" * 2_000}}
        assert (await served.unix.post("/v1/sessions", json=wanted)).status_code == 422
        assert (await served.unix.get(ONE)).status_code == 404
        reply = await served.unix.post("/v1/sessions", json={**wanted, "metadata": {"note": "short"}})
        assert (reply.status_code, reply.json()["metadata"]) == (201, {"note": "short"})


async def test_what_makes_a_stream_has_ended_when_its_reply_is_over() -> None:
    """Also where the client goes away in the middle: what it holds, such as a place among large replies, is free."""

    class GoesAway(Client):
        def write(self, data: bytes) -> None:
            del data
            self.exchange.lose()

        async def taken(self) -> None:
            if self.exchange.is_gone:
                await anyio.sleep_forever()  # the client takes nothing more

    assert await tasks_that_end_a_stream(GoesAway()) == [anyio.get_current_task().id]


async def test_what_makes_a_stream_has_ended_where_not_even_the_head_of_its_reply_could_be_sent() -> None:
    class Broken(Client):
        def write(self, data: bytes) -> None:
            raise ConnectionResetError(len(data))

    assert await tasks_that_end_a_stream(Broken()) == [anyio.get_current_task().id]


class Client:
    """A connection whose other end is this test.

    Attributes:
        exchange: what is asked by it.
    """

    is_trusted = True
    address = ""
    date = b""
    exchange: Exchange

    def write(self, data: bytes) -> None:
        """Take it."""

    async def taken(self) -> None:
        """All is taken."""

    def pause_reading(self) -> None:
        """Nothing more is sent."""

    resume_reading = answered = abort = pause_reading


async def tasks_that_end_a_stream(client: Client) -> list[int]:
    """The ids of the tasks in which an endless stream has ended once its reply is over."""
    ended_in: list[int] = []

    async def chunks() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"more"
        finally:
            await anyio.lowlevel.checkpoint()
            ended_in.append(anyio.get_current_task().id)

    stream = Stream(chunks(), "text/event-stream")

    @operation("GET", "/endless", Nothing, Stream, media_types=("text/event-stream",))
    async def endless(context: Any, request: Nothing) -> Stream:
        del context, request
        return stream

    client.exchange = exchange = Exchange(Request("GET", "/endless"), client)
    binding = Binding((endless,), ListenSettings())
    asked = binding.find(exchange)
    assert isinstance(asked, Asked)
    context: Any = None
    await exchange.reply(await binding.reply(asked, exchange, context))
    return ended_in
