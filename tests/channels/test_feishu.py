"""The channel on a local Feishu: what only this network does. What it shares with all others is in test_contract.py."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

import pytest
from structlog.testing import capture_logs

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.channels.feishu.channel import FeishuChannel, FeishuSettings
from miniclaw_sessions.core.protocol.messages import ImagePart, TextPart, ToolCall
from miniclaw_sessions.errors import ConfigError, StoreUnavailable, Unreachable
from tests.channels.clocks import HastyClock
from tests.channels.contract import serving
from tests.channels.feishu_server import (
    ANN,
    APP,
    BOB,
    BOT,
    BROKEN,
    EVE,
    GROUP,
    LIMITED,
    SECRET,
    Failure,
    FeishuServer,
    refusal,
)
from tests.channels.rooms import Doors, deleting_tool
from tests.channels.telegram_server import PNG

pytestmark = pytest.mark.anyio

CHAT = "oc_ann"
CALL = Message.assistant("", (ToolCall("call_0", "delete", '{"path": "x"}'),))
QUESTION = 'May I do this?\n- delete {"path": "x"}\nAnswer yes or no.'
Serving = Callable[..., AbstractAsyncContextManager[object]]


@pytest.fixture
async def feishu() -> AsyncIterator[FeishuServer]:
    async with FeishuServer().serve() as server:
        yield server
    assert server.problems == []


@pytest.fixture
def clock() -> HastyClock:
    return HastyClock()


@pytest.fixture
def made() -> list[dict[str, Any]]:
    """What the tool that asks first was called with."""
    return []


def channel_of(feishu: FeishuServer, clock: HastyClock, secret: str = SECRET, **settings: Any) -> FeishuChannel:
    chosen = {"allow": (ANN, BOB), "app_id": APP, "api_url": feishu.url, **settings}
    return FeishuChannel("feishu", FeishuSettings(**chosen), {"FEISHU_APP_SECRET": secret}, clock)


@pytest.fixture
def bot(
    feishu: FeishuServer, clock: HastyClock, manager: SessionManager, model: Doors, made: list[dict[str, Any]]
) -> Serving:
    """The bot as the daemon serves it; each time a channel that knows nothing of the one before."""

    def served(**settings: Any) -> AbstractAsyncContextManager[object]:
        return serving(channel_of(feishu, clock, **settings), manager, model, [deleting_tool(made)])

    return served


async def said_in(manager: SessionManager, chat_id: str = CHAT) -> list[str]:
    return [message.text for message in (await manager.get_or_create("feishu", chat_id)).messages()]


async def done(feishu: FeishuServer, texts: int, chat: str = CHAT) -> list[str]:
    """What the bot shows in a chat, once it shows so many texts and nothing waits."""
    await feishu.until(lambda: len(feishu.texts(chat)) >= texts and not feishu.pending)
    return feishu.texts(chat)


def newest(feishu: FeishuServer, chat: str = CHAT) -> dict[str, Any]:
    """The newest message in a chat, with how it was sent."""
    return [one for one in feishu.messages.values() if one["chat"] == chat][-1]


# --- events ----------------------------------------------------------------------------------------------------------


async def test_an_event_is_answered_when_its_message_was_and_is_known_when_it_comes_again(
    bot: Serving, feishu: FeishuServer, model: Doors
) -> None:
    model.close("slow")
    async with bot():
        slow = await feishu.say("slow")
        await model.was_asked("slow")
        await feishu.deliver_again(slow)
        await feishu.say("quick", BOB)
        await feishu.until(lambda: feishu.pending == {slow})
        model.open("slow")
        await done(feishu, 1)
        await feishu.deliver_again(slow)
        await done(feishu, 1)
    assert (feishu.texts(CHAT), model.asked) == (["echo: slow"], ["slow", "quick"])
    assert feishu.deliveries[slow] == 3


async def test_what_was_shown_is_not_shown_again_six_hours_later_when_feishu_has_forgotten_it(
    bot: Serving, feishu: FeishuServer, model: Doors
) -> None:
    async with bot():
        question = await feishu.say("hello")
        await done(feishu, 1)
        await feishu.say("how are you?")
        await done(feishu, 2)
    feishu.forget_what_was_sent()
    async with bot():  # as if its reply to the event had been lost with the connection
        await feishu.deliver_again(question)
        assert await done(feishu, 2) == ["echo: hello", "echo: how are you?"]
    assert model.asked == ["hello", "how are you?"]


@pytest.mark.parametrize("kind", ["im.message.message_read_v1", "im.message.receive_v1", "card.action.trigger"])
@pytest.mark.parametrize("event", [{"reader": 1}, {"sender": {}, "message": {"content": 1}}, [], None])
async def test_an_event_that_says_nothing_to_the_bot_is_answered_at_once(
    bot: Serving, feishu: FeishuServer, kind: str, event: Any
) -> None:
    with capture_logs() as logs:
        async with bot():
            await feishu.happen(kind, event)
            await feishu.say("hello")
            assert await done(feishu, 1) == ["echo: hello"]
    unreadable = [one for one in logs if one["action"] == "channel.unreadable"]
    assert len(unreadable) == (kind != "im.message.message_read_v1")


async def test_a_large_event_comes_in_several_frames(bot: Serving, feishu: FeishuServer, model: Doors) -> None:
    feishu.part_bytes = 100
    async with bot():
        await feishu.say("x" * 5_000)
        await done(feishu, 1)
    assert model.asked == ["x" * 5_000]


@pytest.mark.parametrize("sender_type", ["app", "anonymous"])
async def test_no_program_is_answered(bot: Serving, feishu: FeishuServer, model: Doors, sender_type: str) -> None:
    async with bot(allow=("*",)):
        await feishu.say("hello", sender_type=sender_type)
        await feishu.say("hi")
        await done(feishu, 1)
    assert model.asked == ["hi"]


async def test_the_connection_is_kept_alive_and_a_silent_one_is_left(
    bot: Serving, feishu: FeishuServer, model: Doors
) -> None:
    feishu.ping_s = 0.02
    async with bot():
        await feishu.until(lambda: feishu.pings > 2)
        feishu.answers_pings = False
        connections = feishu.asked.count("connect")
        await feishu.until(lambda: feishu.asked.count("connect") > connections)
        feishu.answers_pings = True
        await feishu.say("still there?")
        await done(feishu, 1)
    assert model.asked == ["still there?"]


async def test_the_connection_is_kept_alive_as_often_as_feishu_says_by_then(bot: Serving, feishu: FeishuServer) -> None:
    feishu.ping_s = 0.02
    async with bot():
        await feishu.until(lambda: feishu.pings > 0)
        feishu.ping_s = 1000.0
        pings = feishu.pings
        await feishu.until(lambda: feishu.pings > pings)  # it says so in its answer to this one
        await feishu.say("hello")
        await done(feishu, 1)
        assert feishu.pings <= pings + 2


async def test_an_event_that_cannot_be_read_for_want_of_a_token_is_not_answered(
    bot: Serving, feishu: FeishuServer, model: Doors
) -> None:
    feishu.files["img_1"] = PNG
    async with bot():
        await feishu.until(lambda: "connect" in feishu.asked)
        feishu.tokens.clear()
        feishu.fail("token", refusal(10014, 200))  # the secret is replaced, and comes into force a little later
        await feishu.say({"image_key": "img_1"}, kind="image")
        assert await done(feishu, 1) == ["echo:"]
    assert feishu.asked.count("connect") == 2
    assert len(model.asked) == 1


async def test_a_message_that_cannot_be_saved_waits_and_its_sender_reads_so_once(
    bot: Serving, feishu: FeishuServer, manager: SessionManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: str) -> None:
        raise StoreUnavailable("the disk is full")

    waits = "I cannot save anything just now. Your message waits, and is answered when I can."
    with monkeypatch.context() as patched:
        patched.setattr(manager, "get_or_create", unavailable)
        await feishu.say("hello")
        for sent in (1, 2):  # it comes again in between
            async with bot():
                await feishu.until(lambda sent=sent: feishu.asked.count("send") == sent)  # type: ignore[misc]
    assert (len(feishu.pending), feishu.texts(CHAT)) == (1, [waits])
    async with bot():
        assert await done(feishu, 2) == [waits, "echo: hello"]


# --- the app's token -------------------------------------------------------------------------------------------------


async def test_a_token_is_replaced_before_it_ends(bot: Serving, feishu: FeishuServer, clock: HastyClock) -> None:
    async with bot():
        for clock.time in (0.0, 6_500.0, 6_700.0, 13_000.0):
            await feishu.say("hello")
            await feishu.until(lambda: not feishu.pending)
    assert feishu.asked.count("token") == 2


async def test_a_token_that_feishu_does_not_know_is_replaced_at_once(
    bot: Serving, feishu: FeishuServer, clock: HastyClock
) -> None:
    async with bot():
        await feishu.say("one")
        await done(feishu, 1)
        feishu.tokens.clear()
        await feishu.say("two")
        assert await done(feishu, 2) == ["echo: one", "echo: two"]
    assert feishu.asked.count("token") == 2
    assert clock.pauses == []


async def test_an_app_that_feishu_does_not_know_is_named_and_its_secret_is_not(
    feishu: FeishuServer, clock: HastyClock
) -> None:
    with pytest.raises(ConfigError, match=r"app id \"cli_a1\" with the secret of the channel feishu") as caught:
        await first_of(channel_of(feishu, clock, "another-secret"))
    assert "another-secret" not in str(caught.value)


async def first_of(channel: FeishuChannel) -> None:
    async with aclosing(channel), aclosing(channel.receive()) as received:
        async for _ in received:
            return


@pytest.mark.parametrize(
    ("kind", "failure", "error"),
    [
        ("endpoint", refusal(514, 200), ConfigError("no long connection: its id or its secret is wrong")),
        ("endpoint", refusal(1000040343, 200), Unreachable("refuses to name the long connection: code 1000040343")),
        ("endpoint", Failure(200, b'{"code": 0}'), Unreachable("refuses to name the long connection: code 0")),
        ("info", Failure(200, b'{"code": 0, "bot": {}}'), ConfigError("has no bot")),
        ("info", refusal(99991672), Unreachable("refuses to name the bot: code 99991672")),
        ("token", BROKEN, Unreachable(r"not Feishu's own \(status 500")),
        ("connect", Failure(400, b"", {"handshake-status": "403", "handshake-msg": "no"}), Unreachable("code 403")),
        ("connect", Failure(400, b"", {"handshake-autherrcode": "1000040350"}), Unreachable("at most 50")),
        ("connect", Failure(502, b"<html>"), Unreachable("refuses the long connection: status 502")),
    ],
)
async def test_what_feishu_refuses_at_the_start_is_said_in_a_sentence(
    feishu: FeishuServer, clock: HastyClock, kind: str, failure: Failure, error: Exception
) -> None:
    feishu.fail(kind, failure)
    with pytest.raises(type(error), match=str(error)) as caught:
        await first_of(channel_of(feishu, clock))
    assert SECRET not in str(caught.value)
    assert "ticket" not in str(caught.value)


async def test_a_connection_that_is_not_there_is_an_error_in_a_sentence(clock: HastyClock) -> None:
    async with FeishuServer().serve() as gone:
        channel = channel_of(gone, clock)
    with pytest.raises(Unreachable, match="cannot be reached at http://127"):
        await first_of(channel)


# --- sending ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "pause"), [(LIMITED, 7.0), (refusal(99991400), 1.0), (refusal(230020), 1.0), (refusal(11232, 200), 1.0)]
)
async def test_a_rate_limit_is_waited_out(
    bot: Serving, feishu: FeishuServer, clock: HastyClock, failure: Failure, pause: float
) -> None:
    feishu.fail("send", failure, failure)
    async with bot():
        await feishu.say("hello")
        assert await done(feishu, 1) == ["echo: hello"]
    assert clock.pauses == [pause, pause if pause != 1.0 else 2.0]


async def test_an_answer_that_is_refused_for_good_holds_up_nothing(bot: Serving, feishu: FeishuServer) -> None:
    feishu.fail("send", refusal(230002), refusal(230002))
    with capture_logs() as logs:
        async with bot():
            await feishu.say("one")
            await feishu.until(lambda: not feishu.pending)
            await feishu.say("two")
            assert await done(feishu, 1) == ["echo: two"]
    assert [(one["action"], one["code"]) for one in logs if "code" in one] == [("feishu.refused", 230002)]


@pytest.mark.parametrize("code", [230006, 230027, 99991672])
async def test_an_answer_that_the_app_may_not_send_yet_is_sent_a_little_later(
    bot: Serving, feishu: FeishuServer, model: Doors, code: int
) -> None:
    feishu.ping_s = 0.05  # it is tried with whatever comes next, once the dispatcher has let go of it
    feishu.fail("send", refusal(code))
    async with bot():
        await feishu.say("hello")
        await feishu.until(lambda: not feishu.refused["send"])
        await feishu.say("hi", BOB)
        assert await done(feishu, 1) == ["echo: hello"]
    assert sorted(model.asked) == ["hello", "hi"]


async def test_what_could_not_be_sent_is_sent_when_the_connection_is_kept_alive(
    bot: Serving, feishu: FeishuServer
) -> None:
    feishu.ping_s = 1.0  # so soon it takes the connection for silent, and Feishu delivers again
    feishu.fail("send", refusal(230027))
    async with bot():
        message = await feishu.say("hello")
        assert await done(feishu, 1) == ["echo: hello"]
    assert feishu.deliveries[message] == 1


@pytest.mark.parametrize("kind", ["send", "image"])
async def test_a_reply_that_lacks_the_id_of_what_was_sent_confirms_nothing(
    bot: Serving, feishu: FeishuServer, model: Doors, kind: str
) -> None:
    image = ImagePart("image/png", base64.b64encode(PNG).decode())
    model.replies["draw"] = Message.assistant((TextPart("here"), image))
    feishu.ping_s = 0.05
    feishu.fail(kind, Failure(200, b'{"code": 0, "data": {}}'))
    async with bot():
        await feishu.say("draw")
        await feishu.until(lambda: feishu.asked.count(kind) == 1)
        await feishu.say("hello", BOB)
        assert await done(feishu, 2) == ["here", "[image]"]
    assert len(model.asked) == 2


async def test_markdown_that_feishu_does_not_take_is_sent_as_it_stands(bot: Serving, feishu: FeishuServer) -> None:
    feishu.fail("send", refusal(230001))
    async with bot():
        await feishu.say("**hello**")
        assert await done(feishu, 1) == ["echo: **hello**"]
        assert newest(feishu)["tag"] == "text"
        await feishu.say("hi")
        await done(feishu, 2)
        assert newest(feishu)["tag"] == "md"


async def test_a_long_answer_comes_in_pieces(bot: Serving, feishu: FeishuServer, model: Doors) -> None:
    story = "\n\n".join(f"{number} 字字字字" * 50 for number in range(200))
    model.replies["tell"] = Message.assistant(story)
    async with bot():
        await feishu.say("tell")
        shown = await done(feishu, 3)
    assert "".join("".join(shown).split()) == "".join(story.split())


async def test_images_of_the_model_are_sent_behind_its_words(bot: Serving, feishu: FeishuServer, model: Doors) -> None:
    image = ImagePart("image/png", base64.b64encode(PNG).decode())
    model.replies["draw"] = Message.assistant((TextPart("here"), image))
    async with bot():
        await feishu.say("draw")
        assert await done(feishu, 2) == ["here", "[image]"]
    assert feishu.uploaded[newest(feishu)["image"]] == PNG


# --- where it is said ------------------------------------------------------------------------------------------------


async def test_a_thread_is_a_chat_of_its_own_and_is_answered_there(
    bot: Serving, feishu: FeishuServer, manager: SessionManager
) -> None:
    async with bot():
        for thread in ({}, {"thread_id": "omt_1", "root_id": "om_0"}):
            message = await feishu.say("@_user_1 hello", chat=GROUP, mentions=(BOT,), **thread)
            await feishu.until(lambda: not feishu.pending)
            sent = newest(feishu, GROUP)
            assert (sent["answers"], sent["in_thread"]) == (message, bool(thread))
        await feishu.say("hi", thread_id="omt_2")
        await feishu.until(lambda: not feishu.pending)
        assert newest(feishu)["in_thread"]
    assert await said_in(manager, GROUP) == ["hello", "echo: hello"]
    assert await said_in(manager, f"{GROUP},omt_1") == ["hello", "echo: hello"]
    assert await said_in(manager, f"{CHAT},omt_2") == ["hi", "echo: hi"]


async def test_a_reply_to_the_bot_in_a_group_needs_no_mention(bot: Serving, feishu: FeishuServer, model: Doors) -> None:
    async with bot():
        await feishu.say("@_user_1 hello", chat=GROUP, mentions=(BOT,))
        await done(feishu, 1, GROUP)
        answer = list(feishu.messages)[-1]
        await feishu.say("thanks", chat=GROUP, parent_id=answer)
        await done(feishu, 2, GROUP)
        theirs = await feishu.say("@_user_1 me", BOB, chat=GROUP, mentions=(ANN,))
        await feishu.say("you too", chat=GROUP, parent_id=theirs)
        await feishu.until(lambda: not feishu.pending)
        feishu.fail("look", BROKEN)
        await feishu.say("and so on", chat=GROUP, parent_id=answer)
        await feishu.until(lambda: not feishu.pending)
    assert model.asked == ["hello", "thanks"]


@pytest.mark.parametrize("groups", ["addressed", "all", "none"])
async def test_nothing_is_asked_of_feishu_for_a_person_who_is_not_allowed(
    bot: Serving, feishu: FeishuServer, groups: str
) -> None:
    async with bot(groups=groups):
        await feishu.say("hello")
        await done(feishu, 1)
        await feishu.say("what they say to each other", EVE, chat=GROUP, parent_id=list(feishu.messages)[-1])
        await feishu.until(lambda: not feishu.pending)
    assert "look" not in feishu.asked


@pytest.mark.parametrize(("groups", "asked"), [("all", ["just talking"]), ("none", [])])
async def test_groups_may_be_answered_always_or_never(
    bot: Serving, feishu: FeishuServer, model: Doors, groups: str, asked: list[str]
) -> None:
    async with bot(groups=groups):
        await feishu.say("just talking", chat=GROUP)
        await feishu.until(lambda: not feishu.pending)
    assert model.asked == asked


async def test_the_log_names_a_person_who_is_not_allowed_by_the_id_to_allow(bot: Serving, feishu: FeishuServer) -> None:
    with capture_logs() as logs:
        async with bot():
            await feishu.say("hello", EVE)
            await feishu.until(lambda: not feishu.pending)
    assert [(one["user_id"], one["chat_id"]) for one in logs if one["action"] == "channel.refused"] == [(EVE, "oc_eve")]


# --- approvals -------------------------------------------------------------------------------------------------------


async def test_a_button_is_taken_up_by_its_card_which_loses_its_buttons(
    bot: Serving, feishu: FeishuServer, model: Doors, made: list[dict[str, Any]]
) -> None:
    model.replies["delete it"] = CALL
    model.close("deleted")
    async with bot():
        await feishu.say("delete it")
        assert await done(feishu, 1) == [QUESTION]
        card = list(feishu.messages)[-1]
        assert feishu.buttons(card) == ["Yes", "No"]
        await feishu.press("yes")
        await feishu.until(lambda: feishu.buttons(card) == ["Yes"])
        assert feishu.toasts == ["Answered: yes."]
        model.open("deleted")
        await feishu.until(lambda: feishu.buttons(card) == [])
    assert feishu.texts(CHAT) == [QUESTION, "echo: deleted"]
    assert "Answered: yes." in json.dumps(feishu.messages[card]["card"])
    assert len(made) == 1


async def test_a_question_that_words_have_answered_has_no_buttons(
    bot: Serving, feishu: FeishuServer, model: Doors
) -> None:
    model.replies["delete it"] = CALL
    async with bot():
        await feishu.say("delete it")
        await done(feishu, 1)
        card = list(feishu.messages)[-1]
        await feishu.say("/help")
        await done(feishu, 2)
        assert feishu.buttons(card) == ["Yes", "No"], "nothing was decided by that"
        await feishu.say("no")
        await feishu.until(lambda: feishu.buttons(card) == [])
        await feishu.press("yes")  # in a program that shows the card as it was
        await done(feishu, 4)
    assert feishu.texts(CHAT)[-1] == "There is nothing that waits for an answer."


async def test_only_allowed_people_press_and_only_where_they_were_asked(
    bot: Serving, feishu: FeishuServer, model: Doors, made: list[dict[str, Any]]
) -> None:
    model.replies["delete it"] = CALL
    async with bot():
        await feishu.say("@_user_1 delete it", chat=GROUP, mentions=(BOT,))
        await done(feishu, 1, GROUP)
        card = list(feishu.messages)[-1]
        await feishu.press("yes", EVE, GROUP)
        await feishu.until(lambda: bool(feishu.toasts))
        assert feishu.toasts == ["You are not among those who may answer this."]
        await feishu.press("yes", EVE, "oc_eve", card)  # it was forwarded
        await feishu.press("no", BOB, GROUP)
        await done(feishu, 2, GROUP)
    assert made == []
    assert newest(feishu, GROUP)["answers"] == card
    assert model.asked[:1] == ["delete it"]
    assert len(model.asked) == 2


async def test_a_button_that_a_crash_has_interrupted_is_pressed_again_and_asks_again(
    bot: Serving, feishu: FeishuServer, model: Doors, made: list[dict[str, Any]]
) -> None:
    model.replies["delete it"] = CALL
    model.close("deleted")
    async with bot():
        await feishu.say("delete it")
        await done(feishu, 1)
        card = list(feishu.messages)[-1]
        await feishu.press("yes")
        await model.was_asked("deleted")
    assert feishu.buttons(card) == ["Yes"]
    model.open("deleted")
    async with bot():
        await feishu.press("yes", card_id=card)
        await feishu.until(lambda: feishu.buttons(card) == [])
    assert feishu.texts(CHAT) == [QUESTION, "echo: deleted"]
    assert len(made) == 1


async def test_a_card_that_cannot_be_changed_holds_up_nothing(bot: Serving, feishu: FeishuServer, model: Doors) -> None:
    model.replies["delete it"] = CALL
    feishu.fail("change", refusal(230099))
    async with bot():
        await feishu.say("delete it")
        await done(feishu, 1)
        await feishu.say("no")
        await done(feishu, 2)
        await feishu.say("hello")
        assert (await done(feishu, 3))[-1] == "echo: hello"
    assert not feishu.refused["change"]


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"app_id": ""}, "channels.feishu.app_id is empty; set it to the app's id, such as cli_a1b2c3"),
        ({"api_url": "http://open.feishu.cn"}, 'channels.feishu.api_url is "http://open.feishu.cn"; set it to an'),
        ({"secret_file": "/nowhere"}, "cannot read the secret in /nowhere"),
    ],
)
def test_settings_that_lack_something_are_named(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        FeishuChannel("feishu", FeishuSettings(**{"app_id": APP, **settings}), {"FEISHU_APP_SECRET": SECRET})
