"""Slack: the channel on the unmodified library, against a Slack on a local port."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
import yaml  # type: ignore[import-untyped]
from structlog.testing import capture_logs

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.channels.base import WebhookRequest
from miniclaw_sessions.channels.slack.channel import SlackChannel, SlackSettings
from miniclaw_sessions.channels.slack.client import Client
from miniclaw_sessions.core.protocol.entries import Custom
from miniclaw_sessions.core.protocol.messages import ImagePart, TextPart, ToolCall
from miniclaw_sessions.errors import ConfigError, Unreachable
from miniclaw_sessions.files.formats.attached import attached
from tests.agent.test_reading import OGG, Ears
from tests.channels.rooms import Doors, deleting_tool
from tests.channels.slack_bots import SlackBots, post_to
from tests.channels.slack_server import (
    ANN,
    BOB,
    BOT,
    CUT,
    CUT_AFTERWARDS,
    DIRECT,
    EVE,
    GENERAL,
    HALF,
    LIMITED,
    PAGE,
    TOKEN,
    WORDS,
    Json,
    SlackServer,
    refusal,
    signed,
)
from tests.channels.telegram_server import PNG

pytestmark = pytest.mark.anyio

ROOM = DIRECT[ANN]


@pytest.fixture
async def slack() -> AsyncIterator[SlackServer]:
    async with SlackServer() as made:
        yield made
    assert made.problems == []


@pytest.fixture
def bots(slack: SlackServer, manager: SessionManager, model: Doors) -> SlackBots:
    return SlackBots(slack, manager, model)


# --- where and by whom -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("webhook", [False, True])
async def test_a_message_is_acknowledged_and_answered_by_both_ways(
    bots: SlackBots, slack: SlackServer, webhook: bool
) -> None:
    async with bots.serving(webhook=webhook):
        await slack.until(lambda: bool(slack.called("conversations.history")))
        slack.say("**hello** & <@U0BOB>")
        await slack.until(lambda: bool(slack.texts()) and slack.is_acknowledged(slack.events[0]))
    assert slack.texts() == ["echo: *hello* &amp; @U0BOB"]
    session = await bots.manager.get_or_create("slack", ROOM)
    said, _ = session.messages()
    assert (said.text, said.author) == ("**hello** & @U0BOB", ANN)


async def test_in_a_channel_the_bot_answers_in_a_thread_when_it_is_mentioned(
    bots: SlackBots, slack: SlackServer, model: Doors
) -> None:
    async with bots.serving(allow=[ANN, BOB]):
        slack.say("for Bob", channel=GENERAL)
        slack.mention("a stranger's", user=EVE)
        first = slack.mention("what is this?")
        await slack.until(lambda: len(slack.texts(GENERAL)) == 1)
        slack.say("between us", channel=GENERAL, user=BOB, thread=first["ts"])
        slack.mention("and that?", user=BOB, thread=first["ts"])
        await slack.until(lambda: len(slack.texts(GENERAL)) == 2)
        slack.mention("another matter")
        await slack.until(lambda: len(slack.texts(GENERAL)) == 3)
    assert slack.texts(GENERAL, first["ts"]) == ["echo: what is this?", "echo: and that?"]
    assert model.asked == ["what is this?", "and that?", "another matter"], "mentioned twice over, it is asked once"
    chat = await bots.manager.get_or_create("slack", f"{GENERAL},{first['ts']}")
    assert [one.author for one in chat.messages() if one.author] == [ANN, BOB]


async def test_a_thread_of_a_direct_message_is_a_chat_of_its_own(bots: SlackBots, slack: SlackServer) -> None:
    async with bots.serving():
        root = slack.say("main")
        await slack.until(lambda: len(slack.texts()) == 1)
        slack.say("aside", thread=root["ts"])
        await slack.until(lambda: len(slack.texts()) == 2)
        slack.say("main again")
        await slack.until(lambda: len(slack.texts()) == 3)
    assert slack.texts(ROOM, root["ts"]) == ["echo: aside"]
    assert await bots.said(f"{ROOM},{root['ts']}") == ["aside", "echo: aside"]
    assert await bots.said(ROOM) == ["main", "echo: main", "main again", "echo: main again"]


async def test_programs_are_not_answered_and_strangers_are_named_in_the_log(
    bots: SlackBots, slack: SlackServer, model: Doors
) -> None:
    with capture_logs() as logs:
        async with bots.serving(allow=[ANN]):
            slack.say("I am a program", bot_id="B0OTHER", user=ANN)
            slack.say("as is this", subtype="bot_message", user=ANN)
            slack.say("a stranger", user=EVE)
            slack.say("joined", subtype="channel_join", channel=GENERAL)
            slack.say("hello")
            await slack.until(lambda: bool(slack.texts()))
    assert model.asked == ["hello"]
    refused = [(one["user_id"], one["chat_id"]) for one in logs if one["action"] == "channel.refused"]
    assert refused == [(EVE, DIRECT[EVE])]
    assert "stranger" not in str(logs)


# --- once, and not less ----------------------------------------------------------------------------------------------


async def test_an_event_is_acknowledged_when_the_store_has_it_or_the_time_is_over(
    bots: SlackBots, slack: SlackServer, model: Doors
) -> None:
    model.close("slow")
    bots.clock.held[2.0] = anyio.Event()
    async with bots.serving():
        slack.say("slow")
        await slack.until(lambda: slack.is_acknowledged(slack.events[0]))
        slack.say("behind it")
        await bots.clock.paused(2.0, times=2)
        assert not slack.is_acknowledged(slack.events[1])
        bots.clock.held[2.0].set()
        await slack.until(lambda: slack.is_acknowledged(slack.events[1]))
        model.open("slow")
        await slack.until(lambda: len(slack.texts()) == 2)


async def test_what_was_said_while_nobody_listened_is_answered_once_and_in_order(
    bots: SlackBots, slack: SlackServer, model: Doors
) -> None:
    slack.page = 10
    said = [f"message {number}" for number in range(20)]  # more than one page, and more than wait at once
    slack.is_delivering = False
    root = slack.mention("in a channel")
    for text in said:
        slack.say(text)
    slack.say("in a thread", channel=GENERAL, thread=root["ts"])
    slack.mention("in a thread, to the bot", thread=root["ts"])
    slack.is_delivering = True
    for _ in range(2):
        async with bots.serving():
            await slack.until(lambda: len(slack.texts()) >= 20 and len(slack.texts(GENERAL)) >= 2)
            slack.say("and now")
            await slack.until(lambda: "echo: and now" in slack.texts())
            slack.messages[ROOM].pop()
            slack.messages[ROOM].pop()
    assert slack.texts() == [f"echo: {text}" for text in said]
    assert slack.texts(GENERAL, root["ts"]) == ["echo: in a channel", "echo: in a thread, to the bot"]
    assert sorted(set(model.asked) - {"and now"}) == sorted([*said, "in a channel", "in a thread, to the bot"])


async def test_what_a_stop_or_another_program_has_answered_is_past(
    bots: SlackBots, slack: SlackServer, model: Doors
) -> None:
    slack.is_delivering = False
    slack.say("answered by another program")
    slack.say("so it is", user=BOT, channel=ROOM)
    slack.say("never mind", user=BOB)
    slack.say("/stop", user=BOB)
    slack.say("but this", user=BOB)
    slack.is_delivering = True
    async with bots.serving():
        await slack.until(lambda: bool(slack.texts(DIRECT[BOB])))
    assert model.asked == ["but this"]


async def test_a_bot_that_is_new_in_a_channel_answers_no_old_talk(bots: SlackBots, slack: SlackServer) -> None:
    slack.is_delivering = False
    slack.say("old talk", channel=GENERAL)
    slack.mention("to the bot")
    slack.is_delivering = True
    async with bots.serving(groups="all"):
        await slack.until(lambda: len(slack.texts(GENERAL)) == 1)
    slack.is_delivering = False
    slack.say("said while it was away", channel=GENERAL)
    slack.is_delivering = True
    async with bots.serving(groups="all"):
        await slack.until(lambda: len(slack.texts(GENERAL)) == 2)
    assert slack.texts(GENERAL) == ["echo: to the bot", "echo: said while it was away"]


async def test_what_is_done_is_known_after_a_restart_however_slack_delivers_it(
    bots: SlackBots, slack: SlackServer
) -> None:
    async with bots.serving():
        slack.say("hello")
        await slack.until(lambda: len(slack.texts()) == 1)
    event = slack.events[0]
    async with bots.serving(webhook=True):  # where nothing else has the conversations read
        await slack.until(lambda: bool(slack.called("conversations.history")))
        slack.say("from now on all is read")
        await slack.until(lambda: len(slack.texts()) == 2)
        slack.deliver(event)
        await slack.until(lambda: slack.is_acknowledged(event))
        slack.say("and more")
        await slack.until(lambda: len(slack.texts()) == 3)
    assert slack.texts() == ["echo: hello", "echo: from now on all is read", "echo: and more"]


async def test_of_an_answer_that_was_broken_off_only_the_rest_is_posted(
    bots: SlackBots, slack: SlackServer, model: Doors
) -> None:
    words = [f"word{number}" for number in range(1_500)]
    model.replies["long"] = Message.assistant(" ".join(words))

    def fail_behind_the_first(_: Json) -> None:
        slack.fail("chat.postMessage", *[refusal("internal_error")] * 1_000)

    slack.on_message = fail_behind_the_first
    async with bots.serving():
        slack.say("long")
        await slack.until(lambda: 0 < slack.failing("chat.postMessage") < 1_000)
    slack.on_message = lambda _: None
    slack.heal("chat.postMessage")
    async with bots.serving():
        await slack.until(lambda: " ".join(slack.texts()).endswith(words[-1]))
    assert " ".join(slack.texts()).split() == words
    assert model.asked == ["long"]


async def test_what_is_announced_answers_nothing_that_was_said_before(bots: SlackBots, slack: SlackServer) -> None:
    async with bots.serving() as channel:
        slack.is_delivering = False
        slack.say("hello")
        await channel.announce(ROOM, "1 < 2", "key")
        slack.is_delivering = True
    async with bots.serving():
        await slack.until(lambda: len(slack.texts()) == 2)
    assert slack.texts() == ["1 &lt; 2", "echo: hello"]


async def test_what_was_missed_between_two_connections_is_answered(bots: SlackBots, slack: SlackServer) -> None:
    async with bots.serving():
        slack.say("before")
        await slack.until(lambda: len(slack.texts()) == 1)
        slack.is_delivering = False
        slack.say("meanwhile")
        slack.is_delivering = True
        await slack.drop()
        await slack.until(lambda: len(slack.texts()) == 2)
        await slack.refresh()
        await slack.until(lambda: len(slack.connections) == 1 and len(slack.called("apps.connections.open")) == 3)
        slack.say("after")
        await slack.until(lambda: len(slack.texts()) == 3)
    assert slack.texts() == ["echo: before", "echo: meanwhile", "echo: after"]


async def test_a_conversation_that_slack_cannot_read_now_holds_up_no_other(
    bots: SlackBots, slack: SlackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, history = next(iter(slack.messages)), slack._conversations_history

    def fail_one(parameters: Json) -> Json:
        if parameters["channel"] == broken:
            raise refusal("internal_error")
        return history(parameters)

    monkeypatch.setattr(slack, "_conversations_history", fail_one)
    slack.is_delivering = False
    slack.say("first", channel=broken)
    slack.mention("second")
    slack.is_delivering = True
    async with bots.serving():
        await slack.until(lambda: len(slack.texts(GENERAL)) == 1)
        monkeypatch.undo()
        await slack.until(lambda: len(slack.texts(broken)) == 1)
    assert bots.model.asked == ["second", "first"]


async def test_a_connection_that_cannot_be_made_again_is_made_by_a_new_start(
    bots: SlackBots, slack: SlackServer
) -> None:
    with capture_logs() as logs:
        async with bots.serving():
            slack.fail("apps.connections.open", *[refusal("internal_error")] * 3)
            await slack.drop(politely=False)
            await slack.until(lambda: bool(slack.connections))
            slack.say("hello")
            await slack.until(lambda: bool(slack.texts()))
    assert "channel.failed" in [one["action"] for one in logs]


# --- sending ---------------------------------------------------------------------------------------------------------


async def test_a_long_answer_comes_in_pieces_in_slacks_marks(bots: SlackBots, slack: SlackServer, model: Doors) -> None:
    words = " ".join(f"<word{number}>" for number in range(700))
    model.replies["long"] = Message.assistant(words)
    async with bots.serving():
        slack.say("long")
        await slack.until(lambda: any("word699" in text for text in slack.texts()))
    assert len(slack.texts()) > 2
    assert all(len(text) <= 4_000 for text in slack.texts())
    assert " ".join(slack.texts()) == words.replace("<", "&lt;").replace(">", "&gt;")
    assert [one["metadata"]["event_payload"]["done"] for one in slack.posts()].count(True) == 1


@pytest.mark.parametrize("failure", [CUT, CUT_AFTERWARDS, PAGE, HALF, WORDS, refusal("internal_error")])
async def test_what_slack_does_not_confirm_is_looked_for_and_then_posted(
    bots: SlackBots, slack: SlackServer, failure: Any
) -> None:
    with capture_logs() as logs:
        async with bots.serving():
            slack.fail("chat.postMessage", failure)
            slack.say("hello")
            slack.say("and more")
            await slack.until(lambda: "echo: and more" in slack.texts())
    assert slack.texts() == ["echo: hello", "echo: and more"]
    assert "channel.unconfirmed" in [one["action"] for one in logs]
    assert "secret" not in str(logs)


async def test_a_rate_limit_is_waited_out_as_long_as_slack_says(bots: SlackBots, slack: SlackServer) -> None:
    async with bots.serving():
        slack.fail("chat.postMessage", LIMITED, LIMITED)
        slack.say("hello")
        await slack.until(lambda: bool(slack.texts()))
    assert slack.texts() == ["echo: hello"]
    assert bots.clock.pauses.count(30.0) == 2


async def test_an_answer_that_slack_refuses_stays_in_the_session_and_holds_up_nothing(
    bots: SlackBots, slack: SlackServer
) -> None:
    with capture_logs() as logs:
        async with bots.serving():
            slack.fail("chat.postMessage", refusal("is_archived"))
            slack.say("hello")
            await slack.until(lambda: not slack.failing("chat.postMessage"))
            slack.say("and more")
            await slack.until(lambda: bool(slack.texts()))
    assert slack.texts() == ["echo: and more"]
    assert await bots.said(ROOM) == ["hello", "echo: hello", "and more", "echo: and more"]
    (why,) = [one["detail"] for one in logs if one["action"] == "channel.send_failed"]
    assert why == "Slack does not take an answer: Slack refuses chat_postMessage: is_archived"


# --- files -----------------------------------------------------------------------------------------------------------


async def test_pictures_come_in_and_go_out_once(bots: SlackBots, slack: SlackServer, model: Doors) -> None:
    image = ImagePart("image/png", base64.b64encode(PNG).decode())
    model.replies["what is this?"] = Message.assistant((TextPart("this, larger"), image))
    async with bots.serving(max_image_bytes=100):
        slack.fail("files.completeUploadExternal", CUT_AFTERWARDS)
        slack.send_file("pixel.png", PNG, "image/png", "what is this?")
        await slack.until(lambda: len(slack.posts()) == 2 and slack.posts()[0]["metadata"]["event_payload"]["done"])
        slack.files["small"] = PNG
        small = f"{slack.url}/files/small"
        slack.send_file("large.png", PNG + b"x" * 100, "image/png", "smaller", thumb_720=small)
        await slack.until(lambda: "echo: smaller" in slack.texts())
    said = (await bots.manager.get_or_create("slack", ROOM)).messages()
    assert said[0].content == (TextPart("what is this?"), image)
    assert said[2].content == (TextPart("smaller"), image)
    text, picture = slack.posts()[:2]
    assert text["text"] == "this, larger"
    assert slack.files[picture["files"][0]["id"]] == PNG


async def test_voice_clips_pdf_and_texts_are_kept_and_what_is_not_shown_is_said(
    bots: SlackBots, slack: SlackServer
) -> None:
    bots.readers = [ears := Ears()]
    async with bots.serving(max_file_bytes=200):
        slack.send_file("audio_message.ogg", OGG, "audio/ogg", subtype="file_share")
        await slack.until(lambda: len(slack.texts()) == 1)
        slack.send_file("notes.txt", b"one line of it", "text/plain", "read this")
        await slack.until(lambda: len(slack.texts()) == 2)
        slack.send_file("bill.pdf", b"%PDF-1.7 " + b"x" * 50, "application/pdf")
        await slack.until(lambda: len(slack.texts()) == 3)
        slack.send_file("film.mp4", b"0" * 300, "video/mp4")
        await slack.until(lambda: len(slack.texts()) == 4)
    voice, _, text, _, bill, _, film, _ = (await bots.manager.get_or_create("slack", ROOM)).messages()
    assert (voice.text, len(ears.heard)) == ("buy milk", 1)
    assert "read this" in text.text
    assert "one line of it" in text.text
    assert [one.name for one in map(attached, bill.content) if one] == ["bill.pdf"]  # type: ignore[arg-type]
    assert film.text == "(The person sent a video (film.mp4), which you cannot watch.)"
    assert slack.texts()[3].startswith("I cannot watch a video (film.mp4). Please write what matters in it.\n\n")


async def test_all_files_of_a_message_have_one_deadline_for_others_wait_meanwhile(
    bots: SlackBots, slack: SlackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: set[float] = set()

    async def content(*_: object) -> bytes:
        deadlines.add(anyio.current_effective_deadline())
        await anyio.sleep(0.001)
        return b""

    monkeypatch.setattr(Client, "content", content)
    async with bots.serving():
        file = {"url_private": "https://files.slack.com/x", "mimetype": "application/pdf", "name": "x.pdf"}
        slack.say("look", files=[file, file], subtype="file_share")
        await slack.until(lambda: len(slack.texts()) == 1)
    assert len(deadlines) == 1


async def test_the_token_goes_to_slack_alone(bots: SlackBots, slack: SlackServer) -> None:
    async with SlackServer() as other, bots.serving():
        other.files["secret.txt"] = b"of another server"
        slack.send_file("notes.txt", b"own", "text/plain", url_private_download=f"{other.url}/files/secret.txt")
        await slack.until(lambda: bool(slack.texts()))
        assert "notes.txt" in (await bots.said(ROOM))[0]
        assert "of another server" not in (await bots.said(ROOM))[0]
        assert other.calls == []


# --- approvals and commands ------------------------------------------------------------------------------------------

CALL = Message.assistant("", (ToolCall("call_0", "delete", '{"path": "<x>"}'),))
QUESTION = 'May I do this?\n- delete {"path": "<x>"}\nAnswer yes or no.'


@pytest.fixture
def made(bots: SlackBots, model: Doors) -> list[dict[str, Any]]:
    """What the tool that asks first was called with."""
    called: list[dict[str, Any]] = []
    bots.tools = [deleting_tool(called)]
    model.replies["delete x"] = CALL
    return called


def blocks(message: Json) -> list[str]:
    """The blocks of a message: what each says."""
    found = [one["text"]["text"] if "text" in one else one["elements"][0]["text"] for one in message["blocks"]]
    return [one if isinstance(one, str) else one["text"] for one in found]


@pytest.mark.parametrize("webhook", [False, True])
async def test_a_button_decides_once_and_the_question_shows_it(
    bots: SlackBots, slack: SlackServer, made: list[dict[str, Any]], webhook: bool
) -> None:
    async with bots.serving(webhook=webhook, allow=[ANN]):
        slack.say("delete x")
        await slack.until(lambda: bool(slack.posts()))
        question = slack.posts()[0]
        assert blocks(question) == [QUESTION, "Yes"]
        stranger = slack.press("miniclaw_no", user=EVE, channel=ROOM)
        await slack.until(lambda: slack.is_acknowledged(stranger))
        second = {**slack.press("miniclaw_yes"), "id": "a second press"}
        await slack.until(lambda: len(slack.posts()) == 2)
        slack.deliver(second)
        await slack.until(lambda: slack.is_acknowledged(second))
        slack.say("and now")
        await slack.until(lambda: len(slack.posts()) == 3)
    assert blocks(question) == [QUESTION, f"<@{ANN}>: Yes"]
    assert made == [{"path": "<x>"}]
    assert slack.texts()[1:] == ["echo: deleted", "echo: and now"]
    session = await bots.manager.get_or_create("slack", ROOM)
    answers = [one async for one in session.tree.read_entries() if isinstance(one, Custom) and "answer" in one.data]
    assert [one.data["answer"]["author"] for one in answers] == [ANN]


async def test_a_press_that_was_broken_off_may_be_made_again(
    bots: SlackBots, slack: SlackServer, made: list[dict[str, Any]]
) -> None:
    async with bots.serving(webhook=True) as channel:
        slack.say("delete x")
        await slack.until(lambda: bool(slack.posts()))
        slack.is_delivering = False
        press = slack.press("miniclaw_yes")
        slack.is_delivering = True
        slack.fail("chat.update", LIMITED)
        bots.clock.held[30.0] = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post_to(channel), *signed(press, 0))
            await bots.clock.paused(30.0, 1)
            tasks.cancel_scope.cancel()  # as the daemon does it after a while
        slack.deliver(press)
        await slack.until(lambda: len(slack.posts()) == 2)
    assert made == [{"path": "<x>"}]


async def test_a_word_decides_too_and_takes_the_buttons_away(
    bots: SlackBots, slack: SlackServer, made: list[dict[str, Any]]
) -> None:
    async with bots.serving():
        slack.say("delete x")
        await slack.until(lambda: bool(slack.posts()))
        slack.say("no")
        await slack.until(lambda: len(slack.posts()) == 2 and "actions" not in str(slack.posts()[0]["blocks"]))
    assert blocks(slack.posts()[0])[1:] == ["This has been answered."]
    assert made == []


async def test_in_a_channel_the_question_stands_in_the_thread(
    bots: SlackBots, slack: SlackServer, made: list[dict[str, Any]]
) -> None:
    async with bots.serving():
        root = slack.mention("delete x")
        await slack.until(lambda: bool(slack.posts(GENERAL, root["ts"])))
        slack.say("yes", channel=GENERAL, user=BOB, thread=root["ts"])  # to Ann, not to the bot
        slack.press("miniclaw_yes", user=BOB, channel=GENERAL)
        await slack.until(lambda: len(slack.posts(GENERAL, root["ts"])) == 2)
    assert made == [{"path": "<x>"}]


async def test_a_press_counts_after_a_crash_though_it_comes_once(
    bots: SlackBots, slack: SlackServer, made: list[dict[str, Any]], model: Doors
) -> None:
    model.close("deleted")
    async with bots.serving():
        slack.say("delete x")
        await slack.until(lambda: bool(slack.posts()))
        press = slack.press("miniclaw_yes")
        await slack.until(lambda: slack.is_acknowledged(press))
        await model.was_asked("deleted")
    model.open("deleted")
    async with bots.serving():
        await slack.until(lambda: len(slack.posts()) == 2)
    assert slack.texts()[1:] == ["echo: deleted"]
    assert made == [{"path": "<x>"}]


async def test_a_slash_command_is_said_for_the_person_and_counts_after_a_crash(
    bots: SlackBots, slack: SlackServer, model: Doors
) -> None:
    model.close("what is <this>?")
    async with bots.serving():
        slack.command("usage")
        await slack.until(lambda: len(slack.texts()) == 2)
        asked = slack.command("what is <this>?", channel=GENERAL)
        await slack.until(lambda: slack.is_acknowledged(asked))
        await model.was_asked("what is <this>?")
    model.open("what is <this>?")
    async with bots.serving():
        await slack.until(lambda: len(slack.texts(GENERAL)) == 2)
    assert slack.texts()[0] == f"<@{ANN}>: /usage"
    assert slack.texts()[1].startswith("Today: 0 tokens")
    assert slack.texts(GENERAL) == [f"<@{ANN}>: what is &lt;this&gt;?", "echo: what is &lt;this&gt;?"]
    root, answer = slack.posts(GENERAL)
    assert answer["thread_ts"] == root["ts"]


async def test_a_slash_command_where_the_bot_is_not_says_so_to_its_writer_alone(
    bots: SlackBots, slack: SlackServer
) -> None:
    async with bots.serving(allow=[ANN]):
        asked = slack.command("hello", channel="C0ELSEWHERE")
        stranger = slack.command("hello", user=EVE)
        await slack.until(lambda: slack.is_acknowledged(asked) and slack.is_acknowledged(stranger))
    assert slack.acknowledged[f"{asked['id']}-0"] == {
        "response_type": "ephemeral",
        "text": "I am not in this conversation. Invite me, and write it again.",
    }
    assert slack.acknowledged[f"{stranger['id']}-0"] == {}


async def test_stop_is_heard_behind_more_messages_than_wait_at_once(
    bots: SlackBots, slack: SlackServer, model: Doors
) -> None:
    model.close("slow")
    async with bots.serving():
        slack.say("slow")
        await model.was_asked("slow")
        for number in range(20):
            slack.say(f"message {number}")
        slack.command("stop")
        await slack.until(lambda: len(slack.texts()) == 2)
        slack.say("and now")
        await slack.until(lambda: len(slack.texts()) == 3)
    assert model.asked == ["slow", "and now"]


async def test_an_edited_message_is_answered_once_more(bots: SlackBots, slack: SlackServer, model: Doors) -> None:
    async with bots.serving():
        first = slack.say("6 * 7")
        await slack.until(lambda: len(slack.texts()) == 1)
        slack.edit(ROOM, first["ts"], "6 * 7")  # a preview was added
        slack.edit(ROOM, first["ts"], "6 * 8")
        await slack.until(lambda: len(slack.texts()) == 2)
        slack.edit(ROOM, first["ts"], "6 * 9", deliver=False)
    async with bots.serving():
        await slack.until(lambda: len(slack.texts()) == 3)
    assert model.asked == ["6 * 7", "6 * 8", "6 * 9"]
    assert await bots.said(ROOM) == ["6 * 9", "echo: 6 * 9"]


# --- the webhook and the settings ------------------------------------------------------------------------------------


async def test_a_post_counts_only_if_it_is_signed_and_fresh(bots: SlackBots, slack: SlackServer, model: Doors) -> None:
    now = bots.clock.now().timestamp()
    async with bots.serving(webhook=True) as channel:
        await slack.until(lambda: bool(slack.called("conversations.history")))
        post = post_to(channel)
        event = slack.event(ROOM, {"type": "message", "user": ANN, "text": "hello", "ts": f"{now:.6f}"})
        headers, body = signed(event)
        forged = [
            ({}, body),
            ({**headers, "x-slack-request-timestamp": "soon"}, body),
            ({**headers, "x-slack-request-timestamp": "\N{SUPERSCRIPT TWO}"}, body),
            ({**headers, "x-slack-signature": "v0=\N{SNOWMAN}"}, body),
            (headers, body + b" "),
            signed(event, secret="another"),
            signed(event, at=now - 400),
            signed(event, at=now + 400),
        ]
        assert [(await post(*one))[0] for one in forged] == [403] * len(forged)
        asked = {"kind": "events_api", "payload": {"type": "url_verification", "challenge": "3eZbrw1a"}, "id": "1"}
        assert await post(*signed(asked)) == (200, b"3eZbrw1a")
        for strange in ({"type": 1}, {}, {"type": "event_callback", "event": {"type": "message", "channel": 7}}):
            status, _ = await post(*signed({"kind": "events_api", "payload": strange, "id": "2"}))
            assert status == (200 if "type" in strange else 400)
        assert model.asked == []
    assert (await post(headers, body))[0] == 503, "nobody listens any more"


async def test_when_posts_got_lost_on_their_way_the_conversations_are_read_once_more(
    bots: SlackBots, slack: SlackServer
) -> None:
    async with bots.serving(webhook=True):
        await slack.until(lambda: bool(slack.called("conversations.history")))
        slack.say("one")
        await slack.until(lambda: len(slack.texts()) == 1)
        slack.is_delivering = False
        slack.say("two, which never comes", user=BOB)
        slack.is_delivering = True
        slack.deliver(slack.events[0], attempt=1)
        await slack.until(lambda: bool(slack.texts(DIRECT[BOB])))
    assert slack.texts() == ["echo: one"]


async def test_the_time_is_looked_at_before_the_body_is_read(bots: SlackBots, slack: SlackServer) -> None:
    async def read() -> bytes:
        raise AssertionError("it was read")

    headers, _ = signed(slack.event(ROOM, {}), at=0)
    reply = await bots.channel(webhook=True).webhook(WebhookRequest("POST", "", {}, headers, read))
    assert (reply.status, reply.body) == (403, b"the signature is too old")


async def test_wrong_settings_and_wrong_tokens_are_clear_errors(bots: SlackBots, slack: SlackServer) -> None:
    with pytest.raises(ConfigError, match=r'api_url is "http://slack\.example"; set it to an https:// address'):
        bots.channel(api_url="http://slack.example")
    with pytest.raises(ConfigError, match=r"the channel slack needs its app_token: .* SLACK_APP_TOKEN"):
        SlackChannel("slack", SlackSettings(), {"SLACK_BOT_TOKEN": TOKEN})
    for kind, variable in (("bot", "SLACK_BOT_TOKEN"), ("app", "SLACK_APP_TOKEN")):
        channel = bots.channel({variable: "xoxb-stale"})
        with pytest.raises(ConfigError, match=rf"does not take the {kind} token of the channel slack \(invalid_auth"):
            await anext(channel.receive())
        await channel.aclose()
    with pytest.raises(Unreachable, match="has not logged in to Slack yet"):
        await bots.channel().announce(ROOM, "hello", "key")
    slack.missing_scopes.add("users.conversations")
    with capture_logs() as logs:
        async with bots.serving():
            slack.say("hello")
            await slack.until(lambda: bool(slack.texts()))
    (why,) = [one["detail"] for one in logs if one["action"] == "slack.refused"]
    assert why == "Slack refuses users_conversations: missing_scope"


async def test_the_manifest_of_the_page_lets_the_bot_do_what_it_does() -> None:
    page = await anyio.Path(__file__).parents[2].joinpath("docs/how-to/connect-a-channel.md").read_text()
    manifest = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    scopes = set(manifest["oauth_config"]["scopes"]["bot"])
    kinds = {"channels", "groups", "im", "mpim"}
    assert scopes >= {f"{kind}:{right}" for kind in kinds for right in ("history", "read")}
    assert scopes >= {"app_mentions:read", "chat:write", "commands", "files:read", "files:write"}
    settings = manifest["settings"]
    assert set(settings["event_subscriptions"]["bot_events"]) == {"app_mention", *(f"message.{kind}" for kind in kinds)}
    assert settings["interactivity"]["is_enabled"] is settings["socket_mode_enabled"] is True
    assert manifest["features"]["app_home"] == {"messages_tab_enabled": True, "messages_tab_read_only_enabled": False}
