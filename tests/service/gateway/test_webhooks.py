"""What a network's server sends to a channel: let in by the channel's own secret alone, and bounded."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anyio
import httpx2
import pytest

from miniclaw_sessions.channels.base import WebhookReply, WebhookRequest
from miniclaw_sessions.config import ListenSettings
from tests.service.gateway.conftest import Served

pytestmark = pytest.mark.anyio

SECRET = {"X-Network-Secret": "s3cret"}


class Called:
    """A channel's part that is called."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.waits = anyio.Event()

    async def webhook(self, request: WebhookRequest) -> WebhookReply:
        if request.headers.get("x-network-secret") != "s3cret":
            return WebhookReply(401, b"no")
        if request.path == "/waits":
            await self.waits.wait()
        if request.path == "/fails":
            raise RuntimeError("the token is hunter2")
        self.requests.append((request.method, request.path, dict(request.query), await request.body()))
        return WebhookReply(202, b'{"ok": true}', "application/json")


@pytest.fixture
def limits() -> ListenSettings:
    return ListenSettings(max_body_bytes=1_000, graceful_timeout_s=1.0)


impatient = pytest.mark.parametrize(
    "limits", [ListenSettings(max_body_bytes=1_000, request_timeout_s=1.0, graceful_timeout_s=1.0)]
)


@pytest.fixture
def called(served: Served) -> Called:
    made = Called()
    served.app.webhooks = {"letters": made.webhook}
    return made


async def test_a_channel_takes_what_its_network_sends_without_any_token_of_ours(served: Served, called: Called) -> None:
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{served.port}", verify=False) as network:
        headers = {**SECRET, "Host": "bot.example.org", "Authorization": "Bearer of-the-network"}
        replies = [
            await network.post("/channels/letters", content=b"\x00one", headers=headers),
            await network.get("/channels/letters/a%2Fb/c?x=1&y=%20&x=2", headers=headers),
        ]
    assert [(reply.status_code, reply.json()) for reply in replies] == [(202, {"ok": True})] * 2
    assert replies[0].headers["content-type"] == "application/json"
    assert called.requests == [("POST", "", {}, b"\x00one"), ("GET", "/a%2Fb/c", {"x": "2", "y": " "}, b"")]


async def test_who_has_not_the_secret_is_refused_before_his_body_is_read(served: Served, called: Called) -> None:
    head = b"POST /channels/letters HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n"
    reply = await served.raw(head, by_tcp=True)  # and the connection ends, for nobody reads on
    assert reply.startswith(b"HTTP/1.1 401 ")
    assert called.requests == []


async def test_a_channel_may_stream_with_headers_of_its_own_to_the_address_that_it_is_shown(served: Served) -> None:
    asked: list[str] = []
    closed = anyio.Event()

    async def lines() -> AsyncGenerator[bytes, None]:
        try:
            yield b"one\n"
            yield b"two\n"
            await anyio.sleep_forever()
        finally:
            closed.set()

    async def webhook(request: WebhookRequest) -> WebhookReply:
        asked.append(request.address)
        return WebhookReply(200, lines(), "application/x-ndjson", {"X-Of-The-Network": "yes"})

    served.app.webhooks = {"letters": webhook}
    for client, headers in ((served.tcp, {"Origin": "https://evil.example"}), (served.unix, {})):
        preflight = {"Access-Control-Request-Method": "POST"}  # a channel decides itself who may ask
        async with client.stream("OPTIONS", "/channels/letters", headers=preflight | headers) as reply:
            assert reply.headers["x-of-the-network"] == "yes"
            received = b""
            async for piece in reply.aiter_raw():
                received += piece
                if received == b"one\ntwo\n":
                    break
    with anyio.fail_after(30):
        await closed.wait()
    assert asked == ["127.0.0.1", ""]


@pytest.mark.parametrize("path", ["/channels/other", "/channels/", "/channels", "/x/channels/letters"])
async def test_where_no_channel_listens_strangers_learn_nothing(served: Served, called: Called, path: str) -> None:
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{served.port}", verify=False) as stranger:
        assert (await stranger.post(path, headers=SECRET)).status_code == 401
    assert (await served.tcp.post(path, headers=SECRET)).status_code == 404
    assert called.requests == []


@impatient
async def test_a_body_that_is_too_long_or_too_slow_is_refused(served: Served, called: Called) -> None:
    large = await served.unix.post("/channels/letters", content=b"x" * 1_001, headers=SECRET)
    assert (large.status_code, large.json()["error"]["type"]) == (413, "body_too_large")
    head = b"POST /channels/letters HTTP/1.1\r\nHost: x\r\nX-Network-Secret: s3cret\r\nContent-Length: 9\r\n\r\nhalf"
    assert (await served.raw(head)).startswith(b"HTTP/1.1 408 ")
    assert called.requests == []
    assert await served.is_alive()


@impatient
@pytest.mark.usefixtures("called")
async def test_a_channel_that_fails_or_hangs_breaks_nothing_and_tells_nobody_why(served: Served) -> None:
    failed = await served.unix.post("/channels/letters/fails", headers=SECRET)
    assert failed.status_code == 500
    assert "hunter2" not in failed.text
    hung = await served.unix.post("/channels/letters/waits", headers=SECRET)
    assert hung.status_code == 503
    assert (await served.unix.post("/channels/letters", headers=SECRET)).status_code == 202
