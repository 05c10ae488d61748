"""The WhatsApp channel, against a local Cloud API; what it shares with all channels is in test_contract.py."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from structlog.testing import capture_logs

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.channels.base import WebhookRequest
from miniclaw_sessions.channels.whatsapp import channel as whatsapp
from miniclaw_sessions.channels.whatsapp.channel import WhatsAppChannel, WhatsAppSettings
from miniclaw_sessions.channels.whatsapp.messages import approvals_of, button_id
from miniclaw_sessions.core.protocol.messages import ImagePart, TextPart, ToolCall
from miniclaw_sessions.errors import ConfigError, Unreachable
from miniclaw_sessions.files.formats.attached import attached
from tests.agent.test_reading import OGG
from tests.channels.rooms import Doors, deleting_tool
from tests.channels.telegram_server import PNG
from tests.channels.whatsapp_bots import SECRETS, WhatsAppBots, whatsapp_channel
from tests.channels.whatsapp_server import (
    ANN,
    BOB,
    BROKEN,
    EXPIRED,
    GROUP,
    NUMBER,
    NUMBER_ID,
    PAIR_LIMIT,
    PATH,
    TOKEN,
    TOO_MANY,
    VERIFY_TOKEN,
    CloudServer,
    Json,
    Post,
    Refused,
)

pytestmark = pytest.mark.anyio

WEBP = b"RIFF\x1a\x00\x00\x00WEBPVP8L\x0d\x00\x00\x00/" + bytes(13)
PDF = b"%PDF-1.7 " + b"x" * 50


@pytest.fixture
async def server() -> AsyncIterator[CloudServer]:
    async with CloudServer() as made:
        yield made
    assert made.problems == []


@pytest.fixture
def bots(server: CloudServer, manager: SessionManager, model: Doors) -> WhatsAppBots:
    return WhatsAppBots(server, manager, model)


# --- what Meta posts, and who is believed ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "token", "status", "body"),
    [
        ("subscribe", VERIFY_TOKEN, 200, "1158201444"),
        ("subscribe", "another", 403, "the verify token is another one"),
        ("subscribe", "", 403, "the verify token is another one"),
        ("unsubscribe", VERIFY_TOKEN, 403, "the verify token is another one"),
    ],
)
async def test_meta_is_shown_that_the_address_is_ours(
    bots: WhatsAppBots, mode: str, token: str, status: int, body: str
) -> None:
    query = {"hub.mode": mode, "hub.verify_token": token, "hub.challenge": "1158201444"}
    async with bots.serving(), httpx2.AsyncClient(verify=False) as client:
        reply = await client.get(f"{bots.server.address}{PATH}", params=query)
    assert (reply.status_code, reply.text) == (status, body)
    assert reply.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize("signature", [None, "", "sha256=", "sha1=" + "0" * 64, "sha256=" + "z" * 64, "0" * 64])
async def test_the_body_of_a_post_without_a_signature_is_not_even_read(
    bots: WhatsAppBots, signature: str | None
) -> None:
    async def body() -> bytes:
        raise AssertionError("it was read")

    headers = {} if signature is None else {"x-hub-signature-256": signature}
    async with bots.serving() as channel:
        reply = await channel.webhook(WebhookRequest("POST", "", {}, headers, body))
    assert reply.status == 403


async def test_what_is_signed_with_another_secret_or_was_changed_is_not_believed(bots: WhatsAppBots) -> None:
    server = bots.server
    async with bots.serving() as channel:
        await bots.listens()
        said = Post({"messages": [server.message("hello")]})
        for headers, body in [
            (said.headers, said.body.replace(b"hello", b"hallo")),
            ({"x-hub-signature-256": "sha256=" + "0" * 64}, said.body),
            ({"x-hub-signature-256": said.headers["x-hub-signature-256"].upper()}, said.body),
        ]:
            assert (await channel.webhook(request(headers, body))).status == 403
        assert (await channel.webhook(request(said.headers, said.body))).status == 200
    assert (server.texts(), bots.model.asked) == (["echo: hello"], ["hello"])


def request(headers: dict[str, str], content: bytes) -> WebhookRequest:
    async def body() -> bytes:
        return content

    return WebhookRequest("POST", "", {}, headers, body)


async def test_all_that_one_post_holds_is_heard_and_what_is_damaged_or_of_another_number_costs_nothing_else(
    bots: WhatsAppBots,
) -> None:
    server = bots.server
    messages = [server.message("one"), server.message("two"), server.message("three", by=BOB)]
    damaged = [{"id": 7}, server.message("") | {"type": "text", "text": "no table"}]
    async with bots.serving():
        with capture_logs() as logs:
            server.payload(*messages, messages=[messages[0], *damaged, messages[1], messages[2]], statuses=[{}])
            server.payload(metadata={"phone_number_id": "7"}, messages=[server.message("for another number")])
            server.payload(messages={"no": "list"})
            await bots.done()
    assert (server.texts(), server.texts(BOB)) == (["echo: one", "echo: two"], ["echo: three"])
    assert len([one for one in logs if one["action"] == "channel.unreadable"]) == 3
    assert "no table" not in str(logs)


@pytest.mark.parametrize("body", [b"no JSON", b"[]", b'{"entry": 7}', b'{"entry": [{"changes": [7]}]}', b"{}"])
async def test_what_is_signed_and_cannot_be_read_is_taken_because_it_would_come_again(
    bots: WhatsAppBots, body: bytes
) -> None:
    post = Post({})
    post.body = body
    async with bots.serving() as channel:
        await bots.listens()
        assert (await channel.webhook(request(post.headers, body))).status == 200


# --- what is taken ---------------------------------------------------------------------------------------------------


async def test_a_post_is_taken_when_each_of_its_messages_was_answered_and_comes_again_till_then(
    bots: WhatsAppBots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whatsapp, "_POST_PATIENCE_S", 0.01)
    server, model = bots.server, bots.model
    model.close("slow")
    async with bots.serving():
        post = server.payload(server.message("slow"), server.message("quick", by=BOB))
        await server.until(lambda: post.times > 3 and server.texts(BOB) != [])
        assert server.pending == [post], "one of the answers is not there"
        model.open("slow")
        await bots.done()
    assert (server.texts(), server.texts(BOB)) == (["echo: slow"], ["echo: quick"])
    assert sorted(model.asked) == ["quick", "slow"]


async def test_what_was_taken_and_comes_again_all_the_same_is_not_answered_again(bots: WhatsAppBots) -> None:
    server = bots.server
    async with bots.serving():
        said = server.say("hello")
        await bots.done()
        server.payload(said)
        await bots.done()
    assert server.texts() == ["echo: hello"]
    assert bots.model.asked == ["hello"]


async def test_who_writes_too_much_holds_up_no_one_and_stop_ends_all_of_it(bots: WhatsAppBots) -> None:
    server, model = bots.server, bots.model
    model.close("slow")
    async with bots.serving():
        server.say("slow")
        await model.was_asked("slow")
        server.payload(*(server.message(f"message {number}") for number in range(150)))
        server.say("hello", by=BOB)
        await server.until(lambda: server.texts(BOB) == ["echo: hello"])
        assert server.texts() == [], "nothing says that too many wait"
        server.say("/stop")
        await bots.done()
        server.say("and now")
        await bots.done()
    assert server.texts() == ["echo:  (stopped)", "echo: and now"]
    assert model.asked == ["slow", "hello", "and now"]


async def test_the_pictures_of_an_answer_are_not_remembered_with_its_message(bots: WhatsAppBots) -> None:
    bots.model.replies["draw"] = Message.assistant(
        (TextPart("here"), ImagePart("image/png", base64.b64encode(PNG).decode()))
    )
    async with bots.serving() as channel:
        bots.server.say("draw")
        await bots.done()
        assert [one.sent for one in channel._exchanges.values()] == [[]]


async def test_nothing_is_taken_before_the_bot_listens(bots: WhatsAppBots) -> None:
    server = bots.server
    channel = whatsapp_channel(server, bots.clock)
    said = Post({"messages": [server.message("hello")]})
    assert (await channel.webhook(request(said.headers, said.body))).status == 503
    await channel.aclose()


async def test_what_meta_never_posts_again_after_a_crash_is_answered_by_the_next_start(bots: WhatsAppBots) -> None:
    server, model = bots.server, bots.model
    model.close("slow")
    async with bots.serving():
        for person in (ANN, BOB):
            server.say("hello", by=person)
            await bots.done()
        server.say("fail, please", by=BOB)
        await bots.done()
        server.say("slow")
        await model.was_asked("slow")
    assert len(server.pending) == 1
    server.pending.clear()
    model.open("slow")
    async with bots.serving():
        await server.until(lambda: server.texts() == ["echo: hello", "echo: slow"])
    async with bots.serving():
        await bots.listens()
    assert server.texts() == ["echo: hello", "echo: slow"]
    assert model.asked == ["hello", "hello", "fail, please", "slow", "slow"], (
        "who has read of a failure is not answered"
    )


async def test_a_message_waits_with_meta_until_the_token_is_renewed(bots: WhatsAppBots) -> None:
    server = bots.server
    async with bots.serving():
        server.fail("messages", EXPIRED)
        server.say("hello")
        await server.until(lambda: len(server.texts()) == 1)
        await bots.done()
    assert bots.model.asked == ["hello"], "the answer that was made is sent"


async def test_an_answer_that_meta_refuses_for_good_is_over(bots: WhatsAppBots) -> None:
    server = bots.server
    async with bots.serving():
        server.fail("messages", Refused(131_026))
        with capture_logs() as logs:
            server.say("hello")
            await bots.done()
    assert server.texts() == []
    (failed,) = [one for one in logs if one["action"] == "channel.send_failed"]
    assert failed["detail"] == "Meta refuses a request with its error 131026"


@pytest.mark.parametrize(
    ("refusal", "words"), [(EXPIRED, "the token"), (Refused(100), f"the phone_number_id {NUMBER_ID}")]
)
async def test_a_token_or_a_number_that_meta_does_not_know_is_said(
    bots: WhatsAppBots, refusal: Refused, words: str
) -> None:
    bots.server.fail("get", refusal)
    channel = whatsapp_channel(bots.server, bots.clock)
    with pytest.raises(ConfigError, match=f"Meta refuses {words} of the channel whatsapp with its error"):
        await anext(channel.receive())
    await channel.aclose()


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failures", "pauses"),
    [
        ((TOO_MANY, TOO_MANY), [30.0, 30.0]),
        ((PAIR_LIMIT, PAIR_LIMIT, Refused(80_007)), [1.0, 2.0, 4.0]),
        ((BROKEN, Refused(131_016)), [1.0, 2.0]),
    ],
)
async def test_meta_is_asked_again_as_late_as_it_wants(
    bots: WhatsAppBots, failures: tuple[Refused, ...], pauses: list[float]
) -> None:
    server = bots.server
    async with bots.serving():
        server.fail("messages", *failures)
        server.say("hello")
        await bots.done()
    assert server.texts() == ["echo: hello"]
    assert [one for one in bots.clock.pauses if one != 20.0] == pauses


# --- what comes too late, or does not arrive -------------------------------------------------------------------------


async def test_an_answer_that_comes_too_late_is_sent_when_the_person_writes_again(bots: WhatsAppBots) -> None:
    server = bots.server
    async with bots.serving():
        server.too_late.add(ANN)
        with capture_logs() as logs:
            server.say("first")
            await bots.done()
        server.too_late.clear()
        server.say("second")
        await bots.done()
    assert server.texts() == ["echo: first", "echo: second"]
    (noted,) = [one for one in logs if one["action"] == "whatsapp.too_late"]
    assert (noted["chat_id"], noted["detail"]) == (ANN, "it is sent when the person writes again")
    assert [message.text for message in await bots.messages(ANN)][1] == "echo: first"


async def test_the_template_of_the_settings_says_it_and_a_long_answer_follows_when_the_person_writes(
    bots: WhatsAppBots,
) -> None:
    server, long = bots.server, "word " * 1000
    bots.model.replies["tell me"] = Message.assistant(long)
    async with bots.serving(template="answer", template_language="en_US"):
        server.too_late.add(ANN)
        server.say("short\nof two lines")
        await bots.done()
        server.say("tell me")
        await bots.done()
        server.too_late.clear()
        server.say("well?")
        await bots.done()
    short, beginning, *rest = server.texts()
    assert short == "echo: short of two lines"
    assert beginning == long[:900]
    assert " ".join(rest).split() == [*long.split(), "echo:", "well?"], "and the short one only once"
    sent = server.messages[0]["template"]
    assert (sent["name"], sent["language"]) == ("answer", {"code": "en_US"})


async def test_what_meta_has_taken_and_not_delivered_is_sent_again_where_that_helps(bots: WhatsAppBots) -> None:
    server = bots.server
    async with bots.serving():
        server.say("hello")
        await bots.done()
        with capture_logs() as logs:
            server.fail("messages", BROKEN)
            failed = server.report(server.messages[0]["id"], "failed", 131_000)
            await bots.done()
        assert failed.times > 1, "the report came again, because sending again has failed"
        assert server.texts() == ["echo: hello", "echo: hello"]
        for code in (131_026, 131_049, 470):
            server.report(server.messages[-1]["id"], "failed", code)
            server.report("wamid.unknown", "failed", code)
        server.report(server.messages[-1]["id"], "failed", 131_000)
        await bots.done()
    assert server.texts() == ["echo: hello", "echo: hello"], "that does not help, and of the others nothing is known"
    noted = [(one["code"], one["chat_id"]) for one in logs if one["action"] == "whatsapp.undelivered"]
    assert set(noted) == {(131_000, ANN)}
    assert "hello" not in str(logs)


async def test_what_fails_again_and_again_is_sent_a_few_times_and_what_was_delivered_never(bots: WhatsAppBots) -> None:
    server = bots.server
    async with bots.serving():
        server.say("hello")
        await bots.done()
        for _ in range(5):
            server.report(server.messages[-1]["id"], "failed", 131_000)
            await bots.done()
        assert server.texts() == ["echo: hello"] * 4
        server.say("and now?")
        await bots.done()
        for status in ("sent", "delivered", "read"):
            server.report(server.messages[-1]["id"], status)
        server.report(server.messages[-1]["id"], "failed", 131_000)
        await bots.done()
    assert server.texts()[4:] == ["echo: and now?"]


async def test_what_meta_says_later_to_be_too_late_is_sent_when_the_person_writes_again(bots: WhatsAppBots) -> None:
    server = bots.server
    async with bots.serving():
        server.say("first")
        await bots.done()
        server.report(server.messages.pop()["id"], "failed", 131_047)
        server.say("second")
        await bots.done()
    assert server.texts() == ["echo: first", "echo: second"]


async def test_what_answers_nothing_is_shown_to_the_letter_or_waits_too(bots: WhatsAppBots) -> None:
    server = bots.server
    async with bots.serving() as channel:
        server.say("hello")
        await bots.done()
        await channel.announce(ANN, "*one*", "key")
        server.too_late.add(ANN)
        await channel.announce(ANN, "two", "key")
        server.too_late.clear()
        server.say("and now?")
        await bots.done()
        with pytest.raises(Unreachable):
            await channel.announce("49170000", "to a person who never wrote", "key")
    assert server.texts() == ["echo: hello", "*one*", "two", "echo: and now?"]


# --- what is said ----------------------------------------------------------------------------------------------------


async def test_a_sticker_that_stands_still_is_a_picture(bots: WhatsAppBots) -> None:
    async with bots.serving():
        bots.server.send_file("sticker", WEBP, "image/webp", animated=False)
        await bots.done()
        bots.server.send_file("sticker", WEBP, "image/webp", animated=True)
        await bots.done()
    still, _, moving, _ = await bots.messages(ANN)
    assert still.content == (ImagePart("image/webp", base64.b64encode(WEBP).decode()),)
    assert moving.text == "(The person sent a sticker, which you cannot see.)"
    assert not bots.server.texts()[1].startswith("I cannot"), "who sends one expects no apology"


async def test_a_text_file_is_read_and_a_file_is_named_that_is_too_large_or_other_than_was_sent(
    bots: WhatsAppBots,
) -> None:
    server = bots.server
    async with bots.serving(max_file_bytes=200):
        server.send_file("document", b"one line of it", "text/plain", filename="notes.txt", caption="read this")
        await bots.done()
        server.send_file("document", PDF * 4, "application/pdf", filename="long.pdf")
        await bots.done()
        server.send_file("document", PDF, "application/pdf", filename="other.pdf", sha256="bm90IHRoYXQ=")
        await bots.done()
        server.send_file("audio", b"\0\1", "audio/amr", voice=True)
        await bots.done()
    read, long, other, voice = [one for one in await bots.messages(ANN) if one.is_user]
    assert read.text.split() == ["read", "this", "[File:", "notes.txt]", "one", "line", "of", "it"]
    assert long.text == "(The person sent a file (long.pdf), which you cannot open.)"
    assert other.text == "(The person sent a file (other.pdf), which you cannot open.)"
    assert voice.text == "(The person sent a voice message, which you cannot listen to.)"
    assert server.texts()[1].startswith("I cannot open a file (long.pdf). Please write what matters in it.\n\necho:")


async def test_a_file_that_cannot_be_had_at_first_is_fetched_again(bots: WhatsAppBots) -> None:
    server = bots.server
    async with bots.serving():
        await bots.listens()
        before = server.posts
        server.fail("get", TOO_MANY, BROKEN)
        server.fail("file", Refused(100, 404))
        server.send_file("audio", OGG, "audio/ogg; codecs=opus", voice=True)
        await bots.done()
    said, _ = await bots.messages(ANN)
    assert [one.name for one in map(attached, said.content) if one] == ["voice.ogg"]  # type: ignore[arg-type]
    assert server.posts - before == 2, "it waited with Meta"
    assert len(server.texts()) == 1


@pytest.mark.parametrize(("edge", "failure", "posts"), [("file", Refused(100, 404), 3), ("get", Refused(100), 1)])
async def test_a_file_that_cannot_be_had_at_all_is_said_to_be_unseen(
    bots: WhatsAppBots, edge: str, failure: Refused, posts: int
) -> None:
    server = bots.server
    async with bots.serving():
        await bots.listens()
        before = server.posts
        server.fail(edge, *[failure] * posts)
        server.send_file("audio", OGG, "audio/ogg; codecs=opus", voice=True)
        await bots.done()
    assert server.posts - before == posts
    assert server.texts()[0].startswith("I cannot listen to a voice message. Please write what matters in it.")


async def test_places_contacts_and_buttons_of_templates_are_words_and_the_rest_is_named(bots: WhatsAppBots) -> None:
    place = {"latitude": 52.5, "longitude": 13.4, "name": "Kino", "address": "Hauptstr. 1"}
    contact = {"name": {"formatted_name": "Bob B."}, "phones": [{"phone": "+49 170", "type": "CELL"}]}
    row = {"type": "list_reply", "list_reply": {"id": "r1", "title": "The second"}}
    said: list[dict[str, Any]] = [
        {"type": "location", "location": place},
        {"type": "location", "location": {"latitude": "1.5", "longitude": "2"}},
        {"type": "contacts", "contacts": [contact] * 12},
        {"type": "button", "button": {"payload": "p", "text": "Tell me more"}},
        {"type": "interactive", "interactive": row},
        {"type": "video", "video": {"id": "1", "mime_type": "video/mp4"}},
        {"type": "unsupported", "errors": [{"code": 131_051, "title": "?"}]},
        {"type": "hologram", "hologram": {"id": "1"}},
    ]
    async with bots.serving():
        for fields in said:
            bots.server.say(**fields)
            await bots.done()
    heard = [one.text for one in await bots.messages(ANN) if one.is_user]
    assert heard == [
        "(The person sent a place on a map: Kino, Hauptstr. 1, 52.5, 13.4.)",
        "(The person sent a place on a map: 1.5, 2.)",
        f"(The person sent contacts: {'; '.join(['Bob B., +49 170'] * 10)}.)",
        "Tell me more",
        "The second",
        "(The person sent a video, which you cannot watch.)",
        "(The person sent something, which you cannot read.)",
        "(The person sent something, which you cannot read.)",
    ]


async def test_a_thumb_is_no_message_and_leaves_a_question_open(bots: WhatsAppBots) -> None:
    made: list[dict[str, Any]] = []
    bots.tools = [deleting_tool(made)]
    bots.model.replies["delete it"] = Message.assistant("", (ToolCall("call_0", "delete", "{}"),))
    async with bots.serving():
        bots.server.say("delete it")
        await bots.done()
        asked = bots.server.messages[0]["id"]
        bots.server.say(type="reaction", reaction={"message_id": asked, "emoji": "\N{THUMBS UP SIGN}"})
        bots.server.say(type="revoke", revoke={"original_message_id": "wamid.in1001"})
        bots.server.say(type="system", system={"type": "user_changed_number", "wa_id": "1"})
        bots.server.say("yes")
        await bots.done()
    assert bots.model.asked == ["delete it", "deleted"]
    assert len(made) == 1


async def test_what_a_person_answers_is_quoted_where_it_is_not_the_bot_s(bots: WhatsAppBots) -> None:
    server = bots.server
    async with bots.serving():
        first = server.say("the plan\nis old")
        await bots.done()
        answer = server.messages[0]["id"]
        server.say("is that so?", context={"from": ANN, "id": first["id"]})
        await bots.done()
        server.say("why?", context={"from": NUMBER, "id": answer})
        server.say("/help", context={"from": ANN, "id": first["id"]})
        await bots.done()
    heard = [one.text for one in await bots.messages(ANN) if one.is_user]
    assert heard == ["the plan\nis old", "> the plan\n> is old\nis that so?", "why?"]


async def test_a_person_without_a_number_is_known_by_the_id_that_meta_gives(bots: WhatsAppBots) -> None:
    server, person = bots.server, "DE.1502576394655843"
    async with bots.serving(allow=[person, f"+{ANN}"]):
        for fields in ({"from_user_id": person}, {}):
            said = server.message("hello", by="") | fields
            server._known |= {person, said["id"]}
            server.payload(said, contacts=[{"wa_id": "", "user_id": person, "profile": {"name": "Pablo"}}])
            await bots.done()
        server.say("hi", by=BOB, from_user_id="DE.7")
        server.say("hi", by=ANN, from_user_id="DE.8")
        await bots.done()
    assert (server.texts(person), server.texts(ANN), server.texts(BOB)) == (["echo: hello"] * 2, ["echo: hi"], [])
    assert {one.get("recipient") for one in server.messages if one["chat"] == person} == {person}


async def test_in_a_group_it_answers_in_reply_and_the_model_learns_who_speaks(bots: WhatsAppBots) -> None:
    server = bots.server
    async with bots.serving():
        said = server.say(f"@{NUMBER}, hello", group=GROUP)
        await bots.done()
        server.say("so?", by=BOB, group=GROUP, context={"from": NUMBER, "id": server.messages[0]["id"]})
        server.say("to Bob", group=GROUP, context={"from": BOB, "id": said["id"]})
        server.say("/help", group=GROUP)
        await bots.done()
    assert server.texts(GROUP)[:2] == ["echo: hello", "echo: so?"]
    assert len(server.texts(GROUP)) == 3
    assert server.messages[0]["context"] == {"message_id": said["id"]}
    heard = [(one.author, one.name) for one in await bots.messages(GROUP) if one.is_user]
    assert heard == [(ANN, "Ann"), (BOB, "Bob")]
    assert server.reads == [], "groups have no marks"


# --- what is sent ----------------------------------------------------------------------------------------------------


async def test_what_is_being_answered_is_shown_to_be_read_and_typing_is_shown(bots: WhatsAppBots) -> None:
    server, model = bots.server, bots.model
    model.close("hello")
    async with bots.serving():
        said = server.say("hello")
        await server.until(lambda: len(server.reads) > 2)
        model.open("hello")
        await bots.done()
        server.fail("read", BROKEN)
        server.say("and this?")
        await bots.done()
    assert {one["message_id"] for one in server.reads[:3]} == {said["id"]}
    assert server.reads[0]["typing_indicator"] == {"type": "text"}
    assert 20.0 in bots.clock.pauses
    assert server.texts() == ["echo: hello", "echo: and this?"]


async def test_a_long_answer_comes_in_pieces_and_pictures_behind_it(bots: WhatsAppBots) -> None:
    server = bots.server
    answer = "**" + "word " * 2000 + "**"
    png = ImagePart("image/png", base64.b64encode(PNG).decode())
    webp = ImagePart("image/webp", base64.b64encode(WEBP).decode())
    bots.model.replies["draw"] = Message.assistant((TextPart(answer), png, webp))
    async with bots.serving():
        server.fail("media", BROKEN)
        server.say("draw")
        await bots.done()
    *texts, picture, file = server.messages
    assert len(texts) == 3
    assert (picture["type"], file["type"], file["document"]["filename"]) == ("image", "document", "image.webp")
    assert [*server.uploads.values()] == [("image/png", PNG), ("image/webp", WEBP)]


async def test_a_piece_that_was_sent_is_not_sent_again_when_the_rest_was_not(bots: WhatsAppBots) -> None:
    server = bots.server
    bots.model.replies["tell me"] = Message.assistant("first " * 600 + "\n\n" + "second " * 500)

    def refuse_the_second(_: Json) -> None:
        if len(server.messages) == 1:
            server.fail("messages", EXPIRED)

    server.on_message = refuse_the_second
    async with bots.serving():
        server.say("tell me")
        await bots.done()
    assert [text.split()[0] for text in server.texts()] == ["first", "second"]


async def test_a_question_that_is_too_long_for_buttons_is_sent_before_them(bots: WhatsAppBots) -> None:
    made: list[dict[str, Any]] = []
    bots.tools = [deleting_tool(made)]
    arguments = '{"path": "' + "a" * 900 + '"}'
    calls = tuple(ToolCall(f"call_{number}", "delete", arguments) for number in range(2))
    bots.model.replies["delete it"] = Message.assistant("", calls)
    async with bots.serving():
        bots.server.say("delete it")
        await bots.done()
        question, buttons = bots.server.texts()
        assert question.endswith(f"- delete {arguments}\nAnswer yes or no, for all of them.")
        assert buttons == "Answer yes or no, for all of them."
        bots.server.press("Yes")
        await bots.done()
    assert len(made) == 2


def test_a_button_names_the_calls_that_it_answers_and_nothing_else_is_one() -> None:
    asked = [f"0199b5c8-7b7e-7000-8000-00000000000{number}.call_{number}" for number in range(2)]
    same = [one.replace("0001.", "0000.") for one in asked]
    assert button_id(asked, agrees=True) is None, "asked at two times"
    made = button_id(same, agrees=False)
    assert made is not None
    assert approvals_of(made) == dict.fromkeys(same, False)
    assert button_id([f"{same[0]}{number}" for number in range(30)], agrees=True) is None, "too long"
    assert button_id(["question.with space"], agrees=True) is None
    for other in ("", "yes", "yes question", "change-button", "maybe q c"):
        assert approvals_of(other) is None


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "secrets", "words"),
    [
        ({}, SECRETS, 'channels.whatsapp.phone_number_id is "";'),
        ({"phone_number_id": "+49 170"}, SECRETS, "channels.whatsapp.phone_number_id is"),
        ({"phone_number_id": "1", "api_url": "http://graph.example"}, SECRETS, "channels.whatsapp.api_url is"),
        ({"phone_number_id": "1"}, {}, "the channel whatsapp needs its token: .* WHATSAPP_TOKEN"),
        ({"phone_number_id": "1"}, {"WHATSAPP_TOKEN": TOKEN}, "needs its app_secret: .* WHATSAPP_APP_SECRET"),
    ],
)
def test_a_setting_that_is_missing_or_wrong_is_named(
    settings: dict[str, Any], secrets: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        WhatsAppChannel("whatsapp", WhatsAppSettings(**settings), secrets)


def test_secrets_may_be_in_files(tmp_path: Path) -> None:
    files: dict[str, Any] = {}
    for kind, secret in zip(("token", "app_secret", "verify_token"), SECRETS.values(), strict=True):
        file = tmp_path / kind
        file.write_text(secret)
        file.chmod(0o600)
        files[f"{kind}_file"] = str(file)
    channel = WhatsAppChannel("whatsapp", WhatsAppSettings(phone_number_id="1", **files), {})
    assert not [secret for secret in SECRETS.values() if secret in repr(vars(channel))]
