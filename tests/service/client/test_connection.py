"""Our HTTP client against servers of every kind: those that answer as ours does, and those that do not."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from miniclaw_sessions.errors import ConfigError, SessionHeld, SessionsError, Unreachable
from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.api.messages import AddMessages, add_messages
from miniclaw_sessions.service.api.service import Nothing, statistics
from miniclaw_sessions.service.client import connection as module
from miniclaw_sessions.service.client.connection import (
    Address,
    Connections,
    NoReplyInTime,
    NotConnected,
)
from miniclaw_sessions.service.client.events import RequestFailed, server_sent_events
from miniclaw_sessions.service.client.http import HttpTransport

pytestmark = pytest.mark.anyio

WAIT_S = 60.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Answers as it is told, and counts."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.heads: list[bytes] = []
        self.connections = 0
        self.open = 0
        self.most_open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        try:
            while not writer.is_closing():
                await self.answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def head(self, reader: asyncio.StreamReader) -> bytes:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        return self.heads[-1]


@asynccontextmanager
async def serving(place: Path, *replies: bytes, then_close: bool = False) -> AsyncIterator[tuple[Server, Connections]]:
    """A server that gives these replies in turns, the last one again and again; and connections to it."""
    left = list(replies)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()
        if then_close:
            writer.close()

    server = Server(answer)
    async with listening(place, server) as connections:
        yield server, connections


@asynccontextmanager
async def listening(place: Path, server: Server, *, most: int = 64) -> AsyncIterator[Connections]:
    listener = await asyncio.start_unix_server(server.serve, place / "s")
    try:
        async with Connections(Address(socket=str(place / "s")), most=most) as connections:
            yield connections
    finally:
        listener.close()
        with anyio.fail_after(WAIT_S):
            while server.open:
                await checkpoint()


async def ask(connections: Connections, method: str = "GET", target: str = "/x", **more: Any) -> tuple[int, bytes]:
    async with connections.request(method, target, wait_s=WAIT_S, **more) as reply:
        return reply.status, await reply.read(WAIT_S)


# --- what a server may do --------------------------------------------------------------------------------------------


async def test_a_connection_is_kept_for_the_next_request(short_path: Path) -> None:
    async with serving(short_path, OK) as (server, connections):
        for _ in range(5):
            assert await ask(connections) == (200, b"ok")
    assert server.connections == 1


async def test_no_more_connections_than_allowed_and_every_request_gets_one(short_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        await checkpoint()
        writer.write(OK)

    server = Server(answer)
    async with listening(short_path, server, most=3) as connections:
        found = []

        async def one() -> None:
            found.append(await ask(connections))

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(one)
    assert found == [(200, b"ok")] * 50
    assert server.most_open == 3


@pytest.mark.parametrize(
    "reply",
    [
        OK,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\nTrailer: t\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK,
    ],
    ids=["length", "chunked", "interim replies"],
)
@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_replies_of_every_form_in_pieces_of_every_size(short_path: Path, reply: bytes, step: int) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        for start in range(0, len(reply), step):
            writer.write(reply[start : start + step])
            await checkpoint()

    server = Server(answer)
    async with listening(short_path, server) as connections:
        assert [await ask(connections) for _ in range(3)] == [(200, b"ok")] * 3
    assert server.connections == 1


async def test_a_reply_without_a_length_ends_with_its_connection(short_path: Path) -> None:
    reply = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end"
    async with serving(short_path, reply, then_close=True) as (server, connections):
        assert [await ask(connections) for _ in range(2)] == [(200, b"until the end")] * 2
    assert server.connections == 2


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again(short_path: Path) -> None:
    async with serving(short_path, OK, then_close=True) as (server, connections):
        for _ in range(3):
            assert await ask(connections) == (200, b"ok")
            with anyio.fail_after(WAIT_S):
                while any(one.is_open for one in connections._idle):
                    await checkpoint()
    assert server.connections == 3


async def test_a_server_that_turns_everybody_away_is_heard_before_it_is_asked(short_path: Path) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfull")
        writer.close()

    async with listening(short_path, Server(answer)) as connections:
        for _ in range(20):
            assert await ask(connections, "POST", body=b"x") == (503, b"full")


@pytest.mark.parametrize(
    "reply",
    [
        b"SSH-2.0-OpenSSH_9.2p1\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok",  # and then closed
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"x" * 100_000,
        b"",
    ],
    ids=["another protocol", "cut off", "an upgrade", "a wrong chunk", "a long head", "long trailers", "nothing"],
)
async def test_what_is_no_reply_is_a_failed_request_and_the_connection_is_given_up(
    short_path: Path, reply: bytes
) -> None:
    async with serving(short_path, reply, OK, then_close=True) as (_, connections):
        with pytest.raises(RequestFailed):
            await ask(connections)
        assert await ask(connections) == (200, b"ok")


async def test_a_reply_that_nobody_asked_for_is_not_taken_for_the_next_one(short_path: Path) -> None:
    async with serving(short_path, OK + OK.replace(b"ok", b"no"), OK) as (server, connections):
        assert [await ask(connections) for _ in range(2)] == [(200, b"ok")] * 2
    assert server.connections == 2


async def test_a_reply_that_is_held_as_a_whole_has_a_bound(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REPLY_BYTES", 100_000)
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\n\r\n" + b"x" * 5_000_000
    async with serving(short_path, reply) as (_, connections):
        with pytest.raises(RequestFailed, match="longer than 100000 bytes"):
            await ask(connections)


async def test_a_silent_server_is_given_up_and_a_place_without_one_is_told_apart(short_path: Path) -> None:
    async with serving(short_path, b"") as (_, connections):
        with pytest.raises(NoReplyInTime):
            async with connections.request("GET", "/", wait_s=0.01):
                pass
    async with Connections(Address(socket=str(short_path / "nobody"))) as connections:
        with pytest.raises(NotConnected, match="No such file"):
            await ask(connections)


# --- what a client may do --------------------------------------------------------------------------------------------


async def test_a_cancelled_request_breaks_its_connection_and_makes_room_for_the_next(short_path: Path) -> None:
    asked = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await server.head(reader)
        asked.set()
        if b"/slow" not in head:
            writer.write(OK)

    server = Server(answer)
    async with listening(short_path, server, most=1) as connections:
        for _ in range(3):
            asked.clear()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, connections, "GET", "/slow")
                await asked.wait()
                tasks.cancel_scope.cancel()
            assert await ask(connections) == (200, b"ok")
    assert server.most_open <= 2  # the broken one may still be closing


async def test_a_body_in_pieces_arrives_whole(short_path: Path) -> None:
    received = bytearray()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"Transfer-Encoding: chunked" in await server.head(reader)
        while size := int(await reader.readline(), 16):
            received.extend(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        writer.write(OK)

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(300):
            yield b"" if number % 3 else bytes([number % 256]) * 20_000

    server = Server(answer)
    async with listening(short_path, server) as connections:
        assert [await ask(connections, "POST", body=pieces()) for _ in range(2)] == [(200, b"ok")] * 2
    assert len(received) == 2 * 100 * 20_000
    assert server.connections == 1


async def test_an_early_reply_ends_the_sending(short_path: Path) -> None:
    sent = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
        while await reader.read(65_536):
            pass

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b"x" * 65_536
            await checkpoint()

    server = Server(answer)
    async with listening(short_path, server) as connections:
        with anyio.fail_after(WAIT_S):
            assert await ask(connections, "POST", body=endless()) == (413, b"big")
    assert sent > 0


async def test_a_slow_reader_holds_little_of_a_long_reply(short_path: Path) -> None:
    total, piece = 64 * 2**20, b"x" * 2**16
    sent = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await server.head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        for _ in range(total // len(piece)):
            writer.write(piece)
            await writer.drain()
            sent += len(piece)

    server = Server(answer)
    async with listening(short_path, server) as connections:
        async with connections.request("GET", "/", wait_s=WAIT_S) as reply:
            got = len(await reply.piece(WAIT_S))
            before = -1
            while before != sent:  # until the server is held up
                before = sent
                for _ in range(50):
                    await checkpoint()
            assert sent < 8 * 2**20
            while more := await reply.piece(WAIT_S):
                got += len(more)
        assert got == total
        assert await ask(connections, target="/again") == (200, piece * (total // len(piece)))
    assert server.connections == 1


async def test_who_leaves_a_reply_early_ends_it(short_path: Path) -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 500_000
    async with serving(short_path, reply, OK) as (server, connections):
        async with connections.request("GET", "/", wait_s=WAIT_S) as begun:
            assert await begun.piece(WAIT_S)
        assert await ask(connections) == (200, b"ok")
    assert server.connections == 2


# --- TCP and TLS -----------------------------------------------------------------------------------------------------


def certificates(place: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that stands for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (place / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (place / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return place / "cert.pem", place / "key.pem"


async def test_a_tls_proxy_is_asked_with_the_token_and_only_if_its_certificate_is_trusted(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = certificates(short_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.head(reader)
        writer.write(OK)

    server = Server(answer)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
    address = Address.of(f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}/sessions/")
    try:
        async with Connections(address, "secret") as connections:
            with pytest.raises(NotConnected, match="CERTIFICATE_VERIFY_FAILED"):
                await ask(connections)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with Connections(address, "secret") as connections:
            assert [await ask(connections) for _ in range(2)] == [(200, b"ok")] * 2
    finally:
        listener.close()
        while server.open:
            await checkpoint()
    assert server.heads[0].startswith(b"GET /sessions/x HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % address.port)
    assert b"\r\nAuthorization: Bearer secret\r\n" in server.heads[0]


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("unix:/run/a.sock", Address(socket="/run/a.sock")),
        ("unix:///run/a.sock", Address(socket="/run/a.sock")),
        ("http://localhost:8080", Address(host="localhost", port=8080)),
        ("http://[::1]:8080/", Address(host="::1", port=8080)),
        ("https://chat.example/api/", Address(host="chat.example", port=443, is_tls=True, prefix="/api")),
    ],
)
async def test_addresses(url: str, address: Address) -> None:
    assert Address.of(url) == address


@pytest.mark.parametrize(
    "url", ["http://", "ftp://x", "http://x:port", "http://x y", "http://ann:pw@x", "http://x?y=z", "http://x\r\nA: b"]
)
async def test_what_is_no_address_is_refused_before_anything_is_asked(url: str) -> None:
    with pytest.raises(ConfigError):
        Address.of(url)


@pytest.mark.parametrize("token", ["a\r\nX: y", "a\nb", "\u20ac"])
async def test_a_token_that_no_header_holds_is_refused(token: str) -> None:
    with pytest.raises(ConfigError):
        Connections(Address.of("http://localhost:1"), token)


# --- operations over it ----------------------------------------------------------------------------------------------


async def test_a_redirect_is_refused_and_not_followed(short_path: Path) -> None:
    reply = b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere.example/\r\nContent-Length: 0\r\n\r\n"
    async with serving(short_path, reply) as (server, connections):
        with pytest.raises(RequestError, match="302"):
            await HttpTransport(connections, "there").call(statistics, Nothing())
    assert len(server.heads) == 1


async def test_what_is_another_program_is_said_to_be_one(short_path: Path) -> None:
    async with serving(short_path, OK) as (_, connections):
        with pytest.raises(SessionsError, match="no daemon of this version"):
            await HttpTransport(connections, "there").call(statistics, Nothing())


async def test_an_error_of_a_server_that_lies_is_an_error_and_nothing_else(short_path: Path) -> None:
    lies = b'"message": 5, "args": 1, "__class__": "x", "__cause__": "y", "reason": "z"'
    body = b'{"error": {"type": "session_held", %b}}' % lies
    reply = b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    async with serving(short_path, reply) as (_, connections):
        with pytest.raises(SessionHeld, match="5") as raised:
            await HttpTransport(connections, "there").call(statistics, Nothing())
    assert vars(raised.value) == {"reason": "z"}


@pytest.mark.parametrize(("key", "times"), [("k", 2), (None, 1)])
async def test_only_what_is_safe_is_sent_again_over_a_broken_connection(
    short_path: Path, key: str | None, times: int
) -> None:
    reply = b'{"entries": []}'
    good = b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%b" % (len(reply), reply)
    wanted = AddMessages(session_id="a_1", body={"role": "user", "content": "x"}, idempotency_key=key)
    async with serving(short_path, b"HTTP/1.1 2", good, then_close=True) as (server, connections):
        transport = HttpTransport(connections, "there")
        if key is None:
            with pytest.raises(Unreachable):
                await transport.call(add_messages, wanted)
        else:
            assert (await transport.call(add_messages, wanted)).entries == []
    assert len(server.heads) == times


@pytest.mark.parametrize("key", ["a\r\nX: y", "a\nb", " a", "a\t"])
async def test_a_key_that_no_header_holds_is_refused_before_it_is_sent(short_path: Path, key: str) -> None:
    wanted = AddMessages(session_id="a_1", body={"role": "user", "content": "x"}, idempotency_key=key)
    async with serving(short_path, OK) as (server, connections):
        with pytest.raises(RequestError, match="Idempotency-Key"):
            await HttpTransport(connections, "there").call(add_messages, wanted)
    assert server.heads == []


@pytest.mark.parametrize("step", [1, 5, 1000])
async def test_events_are_read_from_pieces_of_every_size(step: int) -> None:
    stream = b': still here\n\nevent: text\ndata: {"text":"a: b"}\n\n: x\n\nevent: done\r\ndata: {}\r\n\r\n'

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(stream), step):
            yield stream[start : start + step]

    assert [(kind, data) async for kind, data, _ in server_sent_events(pieces())] == [
        ("text", b'{"text":"a: b"}'),
        ("done", b"{}"),
    ]
