"""What Meta has done is only what its own reply says; whatever else comes in its place confirms nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from miniclaw_sessions import SessionManager
from miniclaw_sessions.channels.whatsapp.graph import GraphClient, Limited, Refused, Sent, Unconfirmed, judged
from miniclaw_sessions.secret import Secret
from tests.channels.clocks import HastyClock
from tests.channels.rooms import Doors
from tests.channels.whatsapp_bots import WhatsAppBots
from tests.channels.whatsapp_server import CUT, CUT_AFTERWARDS, TOKEN, CloudServer, Strange
from tests.channels.whatsapp_server import Refused as Failure

SECRET = "the secret plan"
PAGE = f"<!doctype html><title>Sign in\n with {TOKEN}</title><p>{SECRET}</p>".encode()
STRANGE = {
    "no JSON": Strange(SECRET.encode(), "text/plain"),
    "an HTML page": Strange(PAGE, "text/html; charset=utf-8"),
    "nothing": Strange(b"", ""),
    "another document": Strange(b'{"text": "the secret plan"}'),
    "a list": Strange(b'["the secret plan"]'),
    "no message": Strange(b'{"messages": []}'),
    "a message without an id": Strange(b'{"messages": [{"text": "the secret plan"}]}'),
    "a page that forbids": Strange(PAGE, "text/html", 403),
    "a document that finds a fault": Strange(b'{"error": "the secret plan"}', status=400),
    "a page elsewhere": Strange(PAGE, "text/html", 302),
    "nesting without an end": Strange(b"[" * 100_000),
}
"""What a proxy, a captive portal or a broken server says in the place of Meta."""


@pytest.mark.parametrize("kind", STRANGE)
def test_what_is_not_metas_own_confirms_nothing_and_no_word_of_it_is_shown(kind: str) -> None:
    reply = STRANGE[kind]
    with pytest.raises(Unconfirmed, match=f"status {reply.status}, ") as caught:
        judged(reply.status, {"content-type": reply.kind}, reply.body, Sent, TOKEN)
    assert SECRET not in str(caught.value)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, '{"code": 131047}', Refused),
        (400, '{"code": "100"}', Refused),
        (401, '{"code": 190}', Refused),
        (400, '{"code": 130429}', Limited),
        (400, '{"code": 80007}', Limited),
        (429, '{"code": 7}', Limited),
        (429, '"a page"', Limited),
        (500, '{"code": 100}', Unconfirmed),
        (400, '{"code": 131000}', Unconfirmed),
        (400, '{"code": 100, "is_transient": true}', Unconfirmed),
    ],
)
def test_what_meta_says_is_wrong(status: int, error: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        judged(status, {}, f'{{"error": {error}}}'.encode(), Sent, TOKEN)


@pytest.mark.parametrize(("said", "pause"), [("30", 30.0), ("999999", 300.0), ("soon", None), ("-1", None)])
def test_how_long_meta_says_to_wait(said: str, pause: float | None) -> None:
    with pytest.raises(Limited) as caught:
        judged(429, {"retry-after": said}, b'{"error": {"code": 4}}', Sent, TOKEN)
    assert caught.value.pause_s == pause


@pytest.mark.parametrize(("code", "is_for_now"), [(0, True), (190, True), (200, True), (100, False), (131_026, False)])
def test_another_token_helps_against_some_refusals(code: int, *, is_for_now: bool) -> None:
    assert Refused(code).is_for_now is is_for_now


# --- over a network --------------------------------------------------------------------------------------------------


@pytest.fixture
async def server() -> AsyncIterator[CloudServer]:
    async with CloudServer() as made:
        yield made
    assert made.problems == []


@pytest.mark.anyio
@pytest.mark.parametrize("failure", [CUT, CUT_AFTERWARDS, STRANGE["an HTML page"]], ids=["cut", "cut later", "page"])
async def test_an_answer_that_no_reply_of_meta_confirms_is_sent_again(
    server: CloudServer, manager: SessionManager, model: Doors, failure: Failure
) -> None:
    bots = WhatsAppBots(server, manager, model)
    async with bots.serving():
        server.fail("messages", failure, failure)
        with capture_logs() as logs:
            server.say("hello")
            await bots.done()
    assert set(server.texts()) == {"echo: hello"}
    assert len([edge for edge, _ in server.calls if edge == "messages"]) == 3
    assert len([one for one in logs if one["action"] == "channel.unconfirmed"]) == 1
    assert not [one for one in (SECRET, TOKEN, "hello") if one in str(logs)]


@pytest.mark.anyio
async def test_a_file_is_only_fetched_from_where_the_token_is_not_read_on_the_way(server: CloudServer) -> None:
    server.files["f"] = b"12345"
    client = GraphClient("whatsapp", server.url, Secret(TOKEN), HastyClock())
    assert await client.download(f"{server.address}/file/f", 5) == b"12345"
    assert await client.download(f"{server.address}/file/f", 4) == b""
    server.fail("file", Failure(100, 404))
    for url in (f"{server.address}/file/f", "file:///etc/passwd", "http://[", "https://127.0.0.1:1/x"):
        with pytest.raises(Unconfirmed):
            await client.download(url, 5)
    client._url = "https://graph.example"
    with pytest.raises(Unconfirmed, match="not at an https address"):
        await client.download(f"{server.address}/file/f", 5)
    await client.aclose()
