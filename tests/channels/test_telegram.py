"""The Telegram channel over its library, against a local Bot API that refuses, fails and repeats as Telegram does."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.agent.provider import ModelEvent, Reply
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.channels.base import WebhookRequest
from miniclaw_sessions.channels.splitting import utf16_units
from miniclaw_sessions.channels.telegram import channel as telegram
from miniclaw_sessions.channels.telegram import files as telegram_files
from miniclaw_sessions.channels.telegram.channel import TelegramChannel, TelegramSettings
from miniclaw_sessions.channels.telegram.html import telegram_html
from miniclaw_sessions.channels.telegram.reading import Place
from miniclaw_sessions.core.protocol.messages import ImagePart, TextPart, ToolCall
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.errors import ConfigError, StoreFull, Unreachable
from miniclaw_sessions.files.transfer.forgetting import Selection, select_sessions
from miniclaw_sessions.testing import FaultyStore
from tests.channels.rooms import Doors, deleting_tool
from tests.channels.telegram_bots import Bots, Storyteller
from tests.channels.telegram_server import (
    BAD_GATEWAY,
    BLOCKED,
    BOB,
    BOT,
    CONFLICT,
    CUT,
    GARBAGE,
    GROUP,
    PNG,
    TOKEN,
    TOO_MANY,
    BotServer,
    Refused,
)

pytestmark = pytest.mark.anyio


# --- answering, and confirming ---------------------------------------------------------------------------------------


async def test_what_is_said_is_answered_and_only_then_confirmed(bots: Bots, server: BotServer, model: Doors) -> None:
    model.close("hello")
    async with bots.serving():
        server.say("hello")
        await model.was_asked("hello")
        await server.until(lambda: server.deliveries[server.updates[0]["update_id"]] > 2)
        assert server.updates, "the answer was not told yet"
        await server.until(lambda: bool(server.typing))
        model.open("hello")
        await server.until(lambda: not server.updates)
    assert server.texts() == ["echo: hello"]
    assert model.asked == ["hello"]
    assert await bots.said() == ["hello", "echo: hello"]
    assert "reply_parameters" not in server.messages[0]


async def test_a_slow_answer_does_not_keep_all_others_from_being_heard(
    bots: Bots, server: BotServer, model: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telegram, "MAX_UPDATES", 5)  # of the hundred that one poll gives
    model.close("slow")
    async with bots.serving():
        server.say("slow")
        people = [{**BOB, "id": 100 + number} for number in range(12)]
        for one in people:
            server.say("quick", sender=one)
        await server.until(lambda: all(server.texts(one["id"]) for one in people))
        model.open("slow")
        await server.until(lambda: not server.updates)


async def test_what_waits_behind_a_slow_answer_does_not_keep_all_others_from_being_heard(
    bots: Bots, server: BotServer, model: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telegram, "MAX_UPDATES", 5)
    model.close("slow")
    async with bots.serving():
        server.say("slow")
        server.say("waits")
        people = [{**BOB, "id": 100 + number} for number in range(12)]
        for one in people:
            server.say("quick", sender=one)
        await server.until(lambda: sum(bool(server.texts(one["id"])) for one in people) == 3)
        bots.clock.time = 60.0
        await server.until(lambda: all(server.texts(one["id"]) for one in people))
        assert server.texts() == [telegram._MAY_BE_FORGOTTEN]
        server.say("/stop")
        await server.until(lambda: not server.updates)
    assert model.asked.count("waits") == 0


async def test_an_edit_that_changes_no_word_is_none(bots: Bots, server: BotServer, model: Doors) -> None:
    async with bots.serving():
        said = server.say("look", location={"latitude": 1.0, "longitude": 2.0, "live_period": 900})
        await server.until(lambda: not server.updates)
        link = server.say("hello", sender=BOB)
        await server.until(lambda: not server.updates)
        for step in range(3):  # he walks; and a preview is made of a link
            server.edit(said | {"date": said["date"] + step}, f"look {step}")
            server.edit(link | {"date": link["date"] + step}, "hello")
        await server.until(lambda: not server.updates)
    assert len(model.asked) == len(server.messages) == 2


# --- how it looks ----------------------------------------------------------------------------------------------------


def test_markdown_becomes_what_telegram_has() -> None:
    assert (
        telegram_html("# A & B\n\n**x** _y_ `z<`")
        == "<b>A &amp; B</b>\n\n<strong>x</strong> <em>y</em> <code>z&lt;</code>"
    )
    assert telegram_html("- a\n  1. b\n- c") == "\N{BULLET} a\n  1. b\n\N{BULLET} c"
    assert telegram_html("```py\n1 < 2\n```") == '<pre><code class="language-py">1 &lt; 2</code></pre>'
    assert telegram_html("> a\n> > b") == "<blockquote>a\nb</blockquote>"
    assert telegram_html("|a|b|\n|-|-|\n|1|**2**|") == "<pre>|a|b|\n|-|-|\n|1|**2**|</pre>"
    assert telegram_html("![p](http://i/) [l](http://x/?a&b 't')") == (
        '<a href="http://i/">p</a> <a href="http://x/?a&amp;b">l</a>'
    )


async def test_a_long_answer_is_split_at_4096_units_of_utf_16(bots: Bots, server: BotServer) -> None:
    async with bots.serving():
        server.say(said := "\N{GRINNING FACE}" * 3000)
        await server.until(lambda: not server.updates)
    assert "".join(server.texts()) in {f"echo:{said}", f"echo: {said}"}
    assert len(server.texts()) == 2
    assert all(utf16_units(text) <= 4096 for text in server.texts())


async def test_what_telegram_cannot_read_is_sent_as_plain_text(bots: Bots, server: BotServer) -> None:
    async with bots.serving():
        server.fail("sendMessage", Refused(400, "Bad Request: can't parse entities: Unsupported start tag"))
        server.say("**bold**")
        await server.until(lambda: not server.updates)
        server.say("**bold**")
        await server.until(lambda: not server.updates)
    assert server.texts() == ["echo: **bold**", "echo: bold"]


async def test_an_answer_is_shown_while_it_is_written_and_not_too_often(bots: Bots, server: BotServer) -> None:
    bots.model = teller = Storyteller()
    teller.close("one", "two", "three")
    async with bots.serving(stream=True) as channel:
        server.say("count")
        teller.open("one")
        await server.until(lambda: any(one.text for one in channel._exchanges.values()))
        assert server.texts() == []
        bots.clock.time = 2.0
        teller.open("two")
        await server.until(lambda: server.texts() == ["one two"])
        bots.clock.time = 2.5
        teller.open("three")  # in the same second
        await server.until(lambda: not server.updates)
    assert server.texts() == ["one two three"]
    assert len(server.called("sendMessage")) == 1
    assert len(server.called("editMessageText")) == 1, "only the end"


async def test_a_quick_answer_is_sent_whole(bots: Bots, server: BotServer) -> None:
    async with bots.serving(stream=True):
        server.say("hello")
        await server.until(lambda: not server.updates)
    assert server.texts() == ["echo: hello"]
    assert server.called("editMessageText") == []


# --- who may speak, and where ----------------------------------------------------------------------------------------


async def test_in_a_group_it_speaks_when_spoken_to(bots: Bots, server: BotServer, model: Doors) -> None:
    async with bots.serving():
        server.say("just talking", group=GROUP)
        server.say("/stop@other_bot", group=GROUP)
        server.say("who is @claw_botany?", group=GROUP)
        asked = server.say("@Claw_bot, hi", group=GROUP)
        await server.until(lambda: not server.updates)
        server.say("and now?", group=GROUP, reply_to_message=server.say("x", group=GROUP) | {"from": BOT})
        server.say("what is it, @claw_bot", group=GROUP, reply_to_message=server.say("a stone", group=GROUP))
        await server.until(lambda: not server.updates)
    assert model.asked == ["hi", "and now?", "> a stone\nwhat is it, @claw_bot"]
    assert server.texts(GROUP["id"])[0] == "echo: hi"
    assert server.messages[0]["reply_parameters"]["message_id"] == asked["message_id"]
    (said, *_) = (await bots.manager.get_or_create("telegram", str(GROUP["id"]))).messages()
    assert (said.author, said.name) == (str(asked["from"]["id"]), "ann")
    found = [one async for one in select_sessions(bots.manager, Selection(user=said.author))]
    assert [(one.chat_id, one.messages) for one in found] == [(str(GROUP["id"]), 3)]


@pytest.mark.parametrize("is_reply", [False, True])
async def test_in_a_group_an_ok_is_an_answer_only_where_it_is_said_to_the_bot(
    bots: Bots, server: BotServer, *, is_reply: bool
) -> None:
    made: list[dict[str, Any]] = []
    bots.tools = [deleting_tool(made)]
    bots.model.replies["delete x"] = Message.assistant("", (ToolCall("call_0", "delete", "{}"),))
    async with bots.serving(groups="all"):
        server.say("@claw_bot delete x", group=GROUP)
        await server.until(lambda: not server.updates)
        question = {"message_id": server.messages[0]["message_id"], "date": 1, "chat": GROUP, "from": BOT}
        server.say("ok", group=GROUP, sender=BOB, **({"reply_to_message": question} if is_reply else {}))
        await server.until(lambda: not server.updates)
        assert bool(made) is is_reply
        server.say("/approve@other_bot", group=GROUP)
        await server.until(lambda: not server.updates)
        assert bool(made) is is_reply


async def test_each_topic_of_a_forum_is_a_chat_of_its_own(bots: Bots, server: BotServer) -> None:
    async with bots.serving():
        server.say("/x@claw_bot hi", group=GROUP, message_thread_id=7, is_topic_message=True)
        await server.until(lambda: not server.updates)
    assert server.messages[0]["message_thread_id"] == 7
    assert server.typing[0].get("message_thread_id") == 7
    assert await bots.said("-100200.7") == ["/x hi", "echo: /x hi"]


# --- images ----------------------------------------------------------------------------------------------------------


class Painter(Doors):
    """Answers with the images that it was shown."""

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        del tools
        shown = [part for part in messages[-1].content if isinstance(part, ImagePart)]
        yield Reply(Message.assistant((TextPart("like this?"), *shown)))


async def test_images_come_in_and_go_out(bots: Bots, server: BotServer) -> None:
    bots.model = Painter()
    async with bots.serving(max_image_bytes=100):
        server.photograph(PNG, PNG * 100, caption="look")
        await server.until(lambda: not server.updates)
        server.photograph(b"\xff\xd8" + b"x" * 100)
        await server.until(lambda: not server.updates)
        server.files.pop(server.photograph()["photo"][0]["file_id"])
        await server.until(lambda: not server.updates)
        server.photograph(PNG[:-20])
        await server.until(lambda: not server.updates)
    (said, _, large, _, lost, _, cut, _) = (await bots.manager.get_or_create("telegram", 42)).messages()
    assert said.content == (TextPart("look"), ImagePart("image/png", base64.b64encode(PNG).decode()))
    assert large.text == lost.text == cut.text == "(The person sent a picture, which you cannot see.)"
    sorry = "I cannot see a picture. Please write what matters in it.\n\nlike this?"
    assert server.texts() == ["like this?", "", *[sorry] * 3]
    assert server.messages[1]["photo"] == PNG


async def test_a_file_of_this_machine_is_no_image(tmp_path: Path, bots: Bots, server: BotServer, model: Doors) -> None:
    secret = tmp_path / "token"
    secret.write_text("secret")
    for text, url in (("a file?", str(secret)), ("another?", secret.as_uri()), ("a picture?", "https://x.org/p.png")):
        model.replies[text] = Message.assistant((TextPart("here"), ImagePart(url=url)))
    async with bots.serving():
        for text in model.replies:
            server.say(text)
            await server.until(lambda: not server.updates)
    assert server.texts() == ["here", "here", "here", "https://x.org/p.png"]
    assert server.called("sendPhoto") == server.called("sendDocument") == []


# --- failures --------------------------------------------------------------------------------------------------------


async def test_telegram_says_how_long_to_wait_and_it_is_obeyed(bots: Bots, server: BotServer) -> None:
    async with bots.serving():
        server.fail("sendMessage", TOO_MANY)
        server.say("hello")
        await server.until(lambda: not server.updates)
    assert 30.0 in bots.clock.pauses
    assert server.texts() == ["echo: hello"]


async def test_an_answer_waits_until_telegram_can_be_reached(bots: Bots, server: BotServer) -> None:
    async with bots.serving():
        server.fail("sendMessage", BAD_GATEWAY, CUT, BAD_GATEWAY)
        server.say("hello")
        await server.until(lambda: not server.updates)
    assert server.texts() == ["echo: hello"]
    assert 2.0 in bots.clock.pauses, "each time a longer while"


async def test_what_telegram_was_asked_to_forget_is_not_said_to_wait(
    tmp_path: Path, bots: Bots, server: BotServer, model: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telegram, "MAX_UPDATES", 1)
    store = FaultyStore(MemoryStore())
    model.close("hello")
    async with SessionManager(tmp_path / "full", store=store) as bots.manager, bots.serving():
        server.say("hello")
        await server.until(lambda: not server.updates)  # so that others are heard; the poll goes on for long
        store.fail(StoreFull("no space left"))
        model.open("hello")
        await server.until(lambda: bool(server.texts()))
        assert server.texts() == ["Your message could not be saved; please send it again later."]
        store.heal()


@pytest.mark.parametrize("is_ended", [False, True])
async def test_an_answer_that_could_not_be_sent_in_time_is_sent_later(
    bots: Bots, server: BotServer, model: Doors, monkeypatch: pytest.MonkeyPatch, *, is_ended: bool
) -> None:
    bots.clock.held[7.0] = anyio.Event()
    server.fail("sendMessage", BAD_GATEWAY)
    with monkeypatch.context() as patch:
        patch.setattr(telegram, "_BACKOFF_S", (7.0, 60.0))
        async with bots.serving() as channel:
            channel.send_timeout_s = 600.0 if is_ended else 0.5
            server.say("hello")
            await server.until(lambda: bool(server.called("sendMessage") if is_ended else server.texts()))
        assert not (is_ended and server.texts())
    async with bots.serving():
        await server.until(lambda: not server.updates)
    assert set(server.texts()) == {"echo: hello"}
    assert model.asked == ["hello"]


async def test_what_is_neither_kept_nor_told_is_confirmed_by_nothing_that_came_later(
    bots: Bots, server: BotServer, model: Doors
) -> None:
    model.close("hello")
    async with bots.serving():
        server.fail("sendMessage", *[Refused(401, "Unauthorized")] * 8)
        server.say("/help")
        server.say("hello", sender=BOB)
        await server.until(lambda: len(server.called("sendMessage")) > 2)
        model.open("hello")
        await server.until(lambda: not server.updates)
    assert [text.partition(" ")[0] for text in server.texts()] == ["/stop"]


async def test_of_a_flood_as_much_waits_as_may_and_the_rest_is_told_so(
    bots: Bots, server: BotServer, model: Doors
) -> None:
    model.close("slow")
    async with bots.serving():
        server.say("slow")
        for number in range(30):
            server.say(str(number))
        await server.until(lambda: len(server.texts()) == 10)
        assert all("too many messages" in text for text in server.texts())
        assert len(server.updates) == 31, "none is confirmed before the first one"
        model.open("slow")
        await server.until(lambda: not server.updates)
    assert len(model.asked) == 21
    assert len(server.texts()) == 31


async def test_listening_goes_on_when_the_connection_breaks_and_no_log_tells_what_was_said(
    bots: Bots, server: BotServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with bots.serving():
        server.fail("getMe", BAD_GATEWAY)
        server.fail("getUpdates", BAD_GATEWAY, CUT, GARBAGE, TOO_MANY)
        with capture_logs() as logs:
            server.say("hello")
            await server.until(lambda: not server.updates and server.texts() == ["echo: hello"])
    assert TOKEN not in str(logs) + caplog.text
    assert "secret" not in str(logs) + caplog.text


async def test_an_update_that_nobody_can_read_hides_no_other(bots: Bots, server: BotServer) -> None:
    async with bots.serving():
        server.update(message={"message_id": "no number"})
        server.update(message=[])
        server.update(something_new={"of": "next year"})
        server.say("hello")
        await server.until(lambda: not server.updates)
    assert server.texts() == ["echo: hello"]


def damaged(value: Any, random: Random) -> Any:
    """A document in which something is of another kind than it should be."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        name = random.choice(list(value))
        return {**value, name: damaged(value[name], random)}
    if isinstance(value, list) and value and random.random() < 0.9:
        return [damaged(value[0], random), *value[1:]]
    return random.choice([None, True, -1, 2**70, 0.5, "", "x\ud83d", [], [None], {}, {"id": "a_b"}])


async def test_whatever_is_wrong_with_an_update_it_is_read_or_passed_over(
    bots: Bots, server: BotServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telegram_files, "_DOWNLOAD_S", 0.001)
    random, channel = Random(13), bots.channel()
    async with aclosing(channel), aclosing(channel.receive()) as received:
        server.say("/x @claw_bot", group=GROUP, reply_to_message=server.say("a", group=GROUP), message_thread_id=3)
        server.edit(server.photograph(caption="look", quote={"text": "a", "position": 0}), "hello")
        whole = [dict(update) for update in server.updates]
        await anext(received)
        for number in range(300):
            update = damaged(random.choice(whole), random)
            if isinstance(update, dict) and "update_id" in update:
                heard = await channel._heard({**update, "update_id": 10_000 + number})
                assert heard is None or Place.of(heard.chat_id).chat_id


async def test_who_has_blocked_the_bot_does_not_hold_up_the_others(bots: Bots, server: BotServer) -> None:
    async with bots.serving():
        server.fail("sendMessage", BLOCKED)
        server.say("hello")
        await server.until(lambda: not server.updates)
        server.say("hi", sender=BOB)
        await server.until(lambda: not server.updates)
    assert server.texts(43) == ["echo: hi"]


async def test_a_wrong_token_is_said_in_a_sentence_that_does_not_show_it(bots: Bots) -> None:
    sentence = await bots.refused(bots.channel(token="123456:wrong"))
    assert "Telegram knows no bot with the token of the channel telegram" in sentence
    assert "123456" not in sentence


async def test_a_second_program_with_the_same_bot_is_named(bots: Bots, server: BotServer) -> None:
    server.fail("getUpdates", CONFLICT)
    assert "another program asks for the messages of the bot @claw_bot" in await bots.refused(bots.channel())


@pytest.mark.parametrize(
    ("failure", "why"), [(CUT, "RemoteProtocolError"), (BAD_GATEWAY, "Bad Gateway"), (None, "ConnectError")]
)
async def test_that_telegram_cannot_be_reached_is_said_in_a_sentence(
    bots: Bots, server: BotServer, failure: Refused | None, why: str
) -> None:
    if failure is not None:
        server.fail("getMe", failure)
    channel = bots.channel(**({} if failure else {"api_url": "http://127.0.0.1:1"}))
    with pytest.raises(Unreachable, match=f"Telegram cannot be reached at 127.0.0.1: {why}$"):
        await anext(channel.receive())
    await channel.aclose()


def test_a_token_is_needed() -> None:
    with pytest.raises(ConfigError, match="TELEGRAM_BOT_TOKEN"):
        TelegramChannel("telegram", TelegramSettings(), {})


# --- by webhook ------------------------------------------------------------------------------------------------------


def posted(headers: dict[str, str], body: bytes) -> WebhookRequest:
    async def read() -> bytes:
        return body

    return WebhookRequest("POST", "", {}, headers, read)


def post_to(channel: TelegramChannel, server: BotServer, *lost: int) -> None:
    """Let updates be posted to a channel; these of its confirmations get lost on the way."""
    posts = count()

    async def post(headers: dict[str, str], body: bytes) -> int:
        status = (await channel.webhook(posted(headers, body))).status
        return 0 if next(posts) in lost else status

    server.post = post


WEBHOOK = "https://bot.example/channels/telegram"


async def test_by_webhook_an_update_is_taken_when_the_store_has_it(bots: Bots, server: BotServer, model: Doors) -> None:
    model.close("slow")
    async with bots.serving(webhook_url=WEBHOOK) as channel:
        post_to(channel, server)
        server.say("slow")
        server.say("waits")
        await server.until(lambda: len(server.updates) == 1)
        assert server.updates[0]["message"]["text"] == "waits"
        model.open("slow")
        await server.until(lambda: len(server.texts()) == 2)
    assert server.texts() == ["echo: slow", "echo: waits"]


async def test_by_webhook_what_comes_twice_is_answered_once(bots: Bots, server: BotServer, model: Doors) -> None:
    async with bots.serving(webhook_url=WEBHOOK) as channel:
        post_to(channel, server, 0, 1)
        server.say("hello")
        await server.until(lambda: not server.updates)
    assert max(server.deliveries.values()) == 3
    assert model.asked == ["hello"]
    assert server.texts() == ["echo: hello"]


async def test_only_telegram_can_post_to_the_webhook(bots: Bots, server: BotServer) -> None:
    async with bots.serving(webhook_url=WEBHOOK) as channel:
        await server.until(lambda: bool(server.webhook))
        secret = {"x-telegram-bot-api-secret-token": server.webhook["secret_token"]}
        for headers, body, status in ({}, b"{}", 403), (secret, b"[]", 400), (secret, b'{"update_id": []}', 400):
            assert (await channel.webhook(posted(headers, body))).status == status
