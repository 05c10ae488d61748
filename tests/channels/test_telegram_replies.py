"""What Telegram has done is only what its own reply says; whatever else comes in its place confirms nothing."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from structlog.testing import capture_logs

from miniclaw_sessions.channels.telegram.replies import fault_of
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, TextPart
from tests.channels.telegram_bots import Bots, Storyteller
from tests.channels.telegram_server import BLOCKED, PNG, TOKEN, BotServer, Refused, Strange

SECRET = "the secret plan"
PAGE = f"<!doctype html><title>Sign in\n to bot{TOKEN}</title><p>{SECRET}</p>".encode()
STRANGE = {
    "no JSON": Strange(SECRET.encode(), "text/plain"),
    "half a document": Strange(b'{"ok": true, "result": {"text": "the secret plan', is_done=True),
    "an HTML page": Strange(PAGE, "text/html; charset=utf-8"),
    "nothing": Strange(b"", ""),
    "another document": Strange(b'{"text": "the secret plan"}'),
    "a list": Strange(b'["the secret plan"]'),
    "no message_id": Strange(b'{"ok": true, "result": {"text": "the secret plan"}}'),
    "a message_id that is none": Strange(b'{"ok": true, "result": {"message_id": "the secret plan"}}'),
    "ok is false": Strange(b'{"ok": false, "result": {"message_id": 1, "text": "the secret plan"}}'),
    "a page that forbids": Strange(PAGE, "text/html", 403),
    "a page that finds nothing": Strange(PAGE, "text/html", 404),
    "a document that finds a fault": Strange(b'{"error": "the secret plan"}', status=400),
    "a page elsewhere": Strange(PAGE, "text/html", 302),
}
"""What a proxy, a captive portal or a broken server says in the place of Telegram."""
SENT = ["half a document", "no message_id", "a page that forbids"]
"""Of these some that a test sends; the others are only judged."""


def details(logs: list[Any], action: str) -> list[str]:
    assert SECRET not in str(logs)
    assert TOKEN not in str(logs)
    return [one["detail"] for one in logs if one["action"] == action]


# --- delivered is only what the reply confirms -----------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("kind", SENT)
async def test_an_answer_that_no_reply_of_telegram_confirms_is_sent_again_and_its_update_stays(
    bots: Bots, server: BotServer, kind: str
) -> None:
    unconfirmed: list[int] = []
    server.on_message = lambda _: unconfirmed.append(len(server.updates))
    async with bots.serving():
        server.fail("sendMessage", STRANGE[kind], STRANGE[kind])
        with capture_logs() as logs:
            server.say("hello")
            await server.until(lambda: not server.updates)
    assert set(server.texts()) == {"echo: hello"}
    assert len(server.called("sendMessage")) == 3
    assert set(unconfirmed) == {1}, "the update was there until the answer was"
    (told,) = details(logs, "channel.unconfirmed")
    assert "sendMessage" in told
    assert f"status {STRANGE[kind].status}" in told


@pytest.mark.anyio
async def test_an_image_that_no_reply_confirms_is_sent_again(bots: Bots, server: BotServer) -> None:
    image = ImagePart("image/png", base64.b64encode(PNG).decode())
    bots.model.replies["paint"] = Message.assistant((TextPart("here"), image))
    async with bots.serving():
        server.fail("sendPhoto", STRANGE["no message_id"], STRANGE["an HTML page"])
        server.say("paint")
        await server.until(lambda: not server.updates)
    assert [one.get("photo") for one in server.messages] == [None, PNG]
    assert len(server.called("sendPhoto")) == 3


@pytest.mark.anyio
async def test_the_end_of_an_answer_that_no_reply_confirms_is_shown_once_more(bots: Bots, server: BotServer) -> None:
    bots.model = teller = Storyteller()
    teller.close("one", "two", "three")
    async with bots.serving(stream=True) as channel:
        server.say("count")
        teller.open("one")
        await server.until(lambda: any(one.text for one in channel._exchanges.values()))
        bots.clock.time = 2.0
        teller.open("two")
        await server.until(lambda: server.texts() == ["one two"])
        server.fail("editMessageText", STRANGE["no JSON"], STRANGE["no message_id"])
        teller.open("three")
        await server.until(lambda: not server.updates)
    assert server.texts() == ["one two three"]
    assert len(server.called("editMessageText")) == 3


@pytest.mark.anyio
async def test_a_refusal_that_telegram_itself_tells_is_told_in_the_log_and_ends_it(
    bots: Bots, server: BotServer
) -> None:
    async with bots.serving():
        server.fail("sendMessage", BLOCKED)
        with capture_logs() as logs:
            server.say("hello")
            await server.until(lambda: not server.updates)
    assert details(logs, "channel.send_failed") == [
        "Telegram does not take an answer: Forbidden: bot was blocked by the user"
    ]


@pytest.mark.anyio
async def test_an_answer_that_telegram_refuses_for_its_words_quotes_none_of_them_in_the_log(
    bots: Bots, server: BotServer
) -> None:
    sentence = f'Bad Request: can\'t parse entities: Unsupported start tag "{SECRET}"'
    async with bots.serving():
        server.fail("sendMessage", Refused(400, sentence), Refused(400, sentence))
        with capture_logs() as logs:
            server.say("hello")
            await server.until(lambda: not server.updates)
    assert details(logs, "channel.send_failed") == ["Telegram does not take an answer: Can't parse entities"]


@pytest.mark.anyio
async def test_an_answer_is_not_given_up_while_the_token_is_not_taken(bots: Bots, server: BotServer) -> None:
    async with bots.serving():
        server.fail("sendMessage", Refused(401, "Unauthorized"))
        server.say("hello")
        await server.until(lambda: not server.updates)
    assert server.texts() == ["echo: hello"]
    assert bots.model.asked == ["hello"]


# --- listening -------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (STRANGE["an HTML page"], "titled 'Sign in to bot***'): no JSON"),
        (STRANGE["a page that forbids"], "(status 403, text/html, "),
        (STRANGE["nothing"], "(status 200, no type, 0 bytes): no JSON"),
        (STRANGE["another document"], "Object missing required field `ok`"),
        (Strange(b'{"ok": true, "result": {"text": "the secret plan"}}'), "Expected `array`, got `object`"),
        (Strange(b'{"ok": true, "result": [{"text": "the secret plan"}]}'), "missing required field `update_id`"),
    ],
)
async def test_listening_goes_on_behind_a_malformed_reply_and_the_log_says_what_came(
    bots: Bots, server: BotServer, reply: Strange, said: str
) -> None:
    server.fail("getUpdates", reply)
    with capture_logs() as logs:
        async with bots.serving():
            server.say("hello")
            await server.until(lambda: not server.updates)
    (told,) = details(logs, "channel.failed")
    assert told.startswith("Telegram cannot be reached at 127.0.0.1: the reply to getUpdates is not Telegram's own (")
    assert said in told
    assert server.texts() == ["echo: hello"]


# --- the judgement ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "status", "body"),
    [
        ("SendMessage", 200, b'{"ok": true, "result": {"message_id": 7, "new": [{}]}, "new": 1}'),
        ("setMyCommands", 200, b'{"ok": true, "result": true}'),
        ("GetUpdates", 200, b'{"ok": true, "result": [{"update_id": 1, "message": {"text": "\\ud83d"}}]}'),
        ("GetUpdates", 200, b'{"ok": true, "result": []}'),
        ("SendMessage", 400, b'{"ok": false, "error_code": 400, "description": "Bad Request: chat not found"}'),
        ("SendMessage", 429, b'{"ok":false,"error_code":429,"description":"x","parameters":{"retry_after":5}}'),
    ],
)
def test_what_telegram_says_is_taken_with_whatever_is_new_in_it(method: str, status: int, body: bytes) -> None:
    assert fault_of(method, status, body) is None


@pytest.mark.parametrize("kind", STRANGE)
def test_what_comes_in_telegrams_place_is_no_reply_and_the_fault_shows_none_of_it(kind: str) -> None:
    fault = fault_of("SendMessage", STRANGE[kind].status, STRANGE[kind].body)
    assert fault
    assert SECRET not in fault


@pytest.mark.parametrize("body", [b"[" * 100_000, b"\xff\xfe", b"null", b'{"ok": 1, "result": true}', b'{"ok": true}'])
def test_whatever_else_comes_is_not_taken(body: bytes) -> None:
    for status in (200, 400, 500):
        assert fault_of("setMyCommands", status, body)
