"""Single connections, byte by byte: trailers, upgrades, codings, and what becomes of idle ones at the end."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from miniclaw_sessions.config import ListenSettings, ModelSettings
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.service.gateway.connection import MAX_HEAD_BYTES, MAX_PIPELINED

pytestmark = pytest.mark.anyio

HEAD = b"POST /v1/sessions/a_1/messages HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
MESSAGE = b'{"role": "user", "content": "hello"}'
GET = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)


async def until_closed(stream: Any) -> bytes:
    """Everything that comes until the server closes the connection."""
    received = b""
    try:
        while True:
            received += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return received


async def send_without_end(served: Any, begin: bytes, piece: bytes) -> int:
    """How much a server takes before it breaks the connection off."""
    sent = 0
    async with await anyio.connect_unix(str(served.socket)) as stream:
        await stream.send(begin)
        try:
            with anyio.fail_after(60):
                while sent < 50 * MAX_HEAD_BYTES:
                    await stream.send(piece)
                    sent += len(piece)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
    return sent


@pytest.mark.parametrize("piece", [b"X-Trailer: abcdefgh\r\n" * 400, b"X" * 8000])
async def test_trailers_without_end_are_cut_off(served: Any, piece: bytes) -> None:
    begin = HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(MESSAGE) + b"0\r\n"
    assert await send_without_end(served, begin, piece) < 40 * MAX_HEAD_BYTES
    assert await served.is_alive()


async def test_sizes_of_chunks_without_end_are_cut_off(served: Any) -> None:
    begin = HEAD + b"transfer-encoding: chunked\r\n\r\n1;"
    assert await send_without_end(served, begin, b"extension" * 900) < 40 * MAX_HEAD_BYTES
    assert await served.is_alive()


async def test_a_body_of_many_small_chunks_with_trailers_is_taken(served: Any) -> None:
    text = b"x" * 60_000
    pieces = [b'{"role": "user", "content": "', *(bytes([byte]) for byte in text), b'"}']
    last = b"0\r\nx-checksum: 1\r\nconnection: close\r\n\r\n"
    request = HEAD + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(*pieces) + last
    assert (await served.raw(request)).startswith(b"HTTP/1.1 201 ")


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"TLS/1.2"])
async def test_a_wish_for_another_protocol_is_ignored(served: Any, protocol: bytes) -> None:
    wish = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: %s\r\nhttp2-settings: AAMAAABk\r\n" % protocol
    request = HEAD + wish + b"content-length: %d\r\n\r\n" % len(MESSAGE) + MESSAGE
    async with await anyio.connect_unix(str(served.socket)) as stream:
        for _ in range(2):  # and the connection goes on
            await stream.send(request)
            assert (await stream.receive()).startswith(b"HTTP/1.1 201 ")
    for split in (20, len(HEAD) + 30, len(request) - 40, len(request) - 5):  # wherever the packets end
        async with await anyio.connect_unix(str(served.socket)) as stream:
            await stream.send(request[:split])
            await anyio.sleep(0.01)
            await stream.send(request[split:])
            assert (await stream.receive()).startswith(b"HTTP/1.1 201 ")
    messages = (await served.unix.get("/v1/sessions/a_1/messages")).json()["messages"]
    assert [one["content"] for one in messages] == ["hello"] * 6


LAST = {
    "close": b"HTTP/1.1\r\nhost: x\r\nconnection: close\r\n",
    "close and upgrade": b"HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n",
    "1.0": b"HTTP/1.0\r\n",
    "1.0 and upgrade": b"HTTP/1.0\r\nconnection: upgrade\r\nupgrade: websocket\r\n",
}


@pytest.mark.parametrize("last", LAST.values(), ids=LAST)
@pytest.mark.parametrize("behind", [GET, GET * 2 * MAX_HEAD_BYTES, b"\x16\x03\x01"], ids=["one", "many", "noise"])
async def test_the_last_request_of_a_connection_is_answered_and_nothing_behind_it(
    served: Any, last: bytes, behind: bytes
) -> None:
    length = b"content-length: %d\r\n\r\n" % len(MESSAGE)
    post = HEAD.replace(b"HTTP/1.1\r\nhost: x\r\n", last) + length + MESSAGE
    get = b"GET /health " + last + b"\r\n"
    for request, status in ((post, b" 201 "), (get, b" 200 "), (GET + get, b" 200 ")):
        reply = await served.raw(request + behind)
        assert reply.count(b"HTTP/1.1 ") == 1 + request.startswith(GET)
        assert reply.startswith(b"HTTP/1.1" + status)
        assert reply.rpartition(b"HTTP/1.1 ")[2].lower().count(b"connection: close") == 1


async def test_a_client_that_knows_no_chunks_gets_none(served: Any) -> None:
    """What HTTP/1.0 asks for ends with its connection."""
    said = json.dumps({"messages": [{"role": "user", "content": "x" * 60_000}] * 3}).encode()
    head = HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(said)
    assert (await served.raw(head + said)).startswith(b"HTTP/1.1 201 ")
    for path in (b"messages", b"transcript"):
        reply = await served.raw(b"GET /v1/sessions/a_1/%b HTTP/1.0\r\n\r\n" % path)
        head, _, body = reply.partition(b"\r\n\r\n")
        assert b"chunked" not in head
        assert body == (await served.unix.get(f"/v1/sessions/a_1/{path.decode()}")).content


async def test_a_tunnel_is_refused(served: Any) -> None:
    assert (await served.raw(b"CONNECT example.com:443 HTTP/1.1\r\nhost: x\r\n\r\n")).startswith(b"HTTP/1.1 4")
    assert await served.is_alive()


@pytest.mark.parametrize(
    "coding", [b"gzip, chunked", b"gzip\r\ntransfer-encoding: chunked", b"gzip", b"identity", b"chunked, chunked"]
)
async def test_a_transfer_coding_that_is_not_known_is_refused(served: Any, coding: bytes) -> None:
    request = HEAD + b"transfer-encoding: %s\r\n\r\n" % coding + chunked(MESSAGE) + b"0\r\n\r\n"
    reply = await served.raw(request)
    assert reply.split()[1] in (b"501", b"400")
    assert (await served.unix.get("/v1/sessions")).json()["sessions"] == []


async def test_chunked_is_known_however_it_is_spelled(served: Any) -> None:
    request = HEAD + b"Connection: close\r\nTransfer-Encoding: Chunked\r\n\r\n" + chunked(MESSAGE) + b"0\r\n\r\n"
    assert (await served.raw(request)).startswith(b"HTTP/1.1 201 ")


# --- requests that do not wait for replies ---------------------------------------------------------------------------


async def begin_slow_chat(stream: Any, provider: Any) -> None:
    """The first request of a connection: it is answered when the provider's gate is open."""
    body = b'{"channel": "a", "chat_id": 1, "message": "slow"}'
    head = HEAD.replace(b"/v1/sessions/a_1/messages", b"/v1/chat")
    await stream.send(head + b"content-length: %d\r\n\r\n" % len(body) + body)
    await provider.began.wait()


async def test_as_many_requests_may_wait_for_the_one_before_them_as_is_promised(served: Any, provider: Any) -> None:
    async with await anyio.connect_unix(str(served.socket)) as stream:
        await begin_slow_chat(stream, provider)
        await stream.send(GET * (MAX_PIPELINED - 1) + GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        provider.gate.set()
        assert (await until_closed(stream)).count(b"HTTP/1.1 200 ") == 1 + MAX_PIPELINED


@pytest.mark.parametrize("model_settings", [ModelSettings(timeout_s=600.0)])
@pytest.mark.parametrize("limits", [ListenSettings(request_timeout_s=600.0, graceful_timeout_s=1.0)])
async def test_a_client_that_sends_requests_without_end_is_cut_off_and_its_first_one_too(
    served: Any, provider: Any
) -> None:
    async with await anyio.connect_unix(str(served.socket)) as stream:
        await begin_slow_chat(stream, provider)
        await stream.send(GET * (MAX_PIPELINED + 1))
        with anyio.fail_after(60):
            assert await until_closed(stream) == b""
    await served.idle()  # nobody waits for the answer of the chat any more
    assert await served.is_alive()


# --- the end ---------------------------------------------------------------------------------------------------------


async def test_an_idle_connection_is_answered_once_more_after_the_order_to_stop(served: Any) -> None:
    async with (
        await anyio.connect_unix(str(served.socket)) as stream,
        await anyio.connect_unix(str(served.socket)) as new,
    ):
        await stream.send(GET)
        assert b"connection: close" not in (await stream.receive()).lower()
        await new.send(GET[:10])
        served.server.stop()
        while not served.server.state.connections or not all(
            connection.is_last for connection in served.server.state.connections
        ):
            await anyio.lowlevel.checkpoint()
        for one, rest in ((stream, GET), (new, GET[10:])):
            await one.send(rest)
            reply = await until_closed(one)
            assert reply.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" in reply.lower()
    with anyio.fail_after(60):
        await served.server.stopped.wait()


async def test_a_request_that_waits_in_the_socket_when_time_is_up_is_answered(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw_sessions.service.gateway.server.IDLE_GRACE_S", 0.0)
    async with await anyio.connect_unix(str(served.socket)) as stream:
        await stream.send(GET)
        await stream.receive()
        (connection,) = [one for one in served.server.state.connections if one.exchange is not None]
        await stream.send(GET)
        connection.close_if_idle()  # nothing of it was read yet
        assert (await stream.receive()).startswith(b"HTTP/1.1 200 ")
        connection.close_if_idle()
        assert await until_closed(stream) == b""


async def test_an_open_chat_hears_that_it_is_cut_off_when_it_must_be_quick(served: Any, provider: Any) -> None:
    request = served.unix.build_request(
        "POST", "/v1/chat", json={"channel": "a", "chat_id": 1, "message": "slow", "stream": True}
    )
    response = await served.unix.send(request, stream=True)
    await provider.began.wait()
    served.server.hurry()  # as the second SIGTERM does
    served.dispatcher.cut_off(anyio.current_time())
    with anyio.fail_after(60):
        lines = [line async for line in response.aiter_lines() if line]
    await response.aclose()
    assert lines[-2] == "event: error"
    assert '"type":"turn_cut_off"' in lines[-1]


# --- replies that nobody reads ---------------------------------------------------------------------------------------


class AllTasks(set[Any]):
    """The tasks of the requests that are being answered, and how many began: one may end between two looks."""

    begun = 0

    def add(self, task: Any, /) -> None:
        self.begun += 1
        super().add(task)


async def stalled_reader(served: Any, tasks: Any) -> None:
    """Ask for everything, and read nothing until the server breaks the connection off."""
    stream = await anyio.connect_unix(str(served.socket))
    tasks.push_async_callback(stream.aclose)
    await stream.send(b"GET /v1/sessions/a_1/messages HTTP/1.1\r\nhost: x\r\n\r\n")


@pytest.mark.parametrize("limits", [ListenSettings(max_body_bytes=300_000, request_timeout_s=1.0)])
async def test_replies_that_nobody_reads_are_bounded_and_end(served: Any) -> None:
    window = 40 * 250_000
    for _ in range(40):
        body = {"role": "user", "content": "x" * 250_000}
        assert (await served.unix.post("/v1/sessions/a_1/messages", json=body)).status_code == 201
    tracemalloc.start()
    try:
        async with AsyncExitStack() as readers:
            tasks = served.server.state.tasks = AllTasks()
            for _ in range(20):
                await stalled_reader(served, readers)
            with anyio.fail_after(100):
                while tasks.begun < 20 or tasks:  # noqa: ASYNC110 - the first may end before the last begins
                    await anyio.sleep(0.01)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 * window, f"{most / window:.1f} windows for 20 readers"  # from Python 3.12 on sockets hold pieces
    assert await served.is_alive()


@pytest.mark.parametrize("limits", [ListenSettings(request_timeout_s=1.0)])
@pytest.mark.parametrize("last", ["ask on", "ask to close", "end"])
async def test_who_does_not_read_short_replies_does_not_keep_a_connection(served: Any, last: str) -> None:
    session = await served.manager.get_or_create("a", "1")
    entry = await session.add_message(Message.user("x" * 60_000))
    request = f"GET /v1/sessions/a_1/entries/{entry.id} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
    state = served.server.state
    async with await anyio.connect_unix(str(served.socket)) as stream:
        await stream.send(GET)
        await stream.receive()
        (connection,) = [one for one in state.connections if one.exchange is not None]
        with anyio.fail_after(60):
            while not connection.transport.get_write_buffer_size():  # there waits what the socket does not take
                answered = state.answered
                await stream.send(request)
                while state.answered == answered:
                    await anyio.lowlevel.checkpoint()
            if last == "end":
                await stream.send_eof()
            else:
                await stream.send(request * 3 if last == "ask on" else b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")
            while connection in state.connections:
                await served.server._one_gone.wait()
        await served.idle()
    assert await served.is_alive()
