"""What only Discord does; what all channels promise is in the contract, which runs over this one too."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.channels.commands import COMMANDS
from miniclaw_sessions.channels.discord.buttons import approvals_in, buttons_for, pressed
from miniclaw_sessions.channels.discord.channel import DiscordChannel, DiscordSettings
from miniclaw_sessions.channels.discord.client import fault_of
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.core.protocol.messages import ImagePart, TextPart, ToolCall
from miniclaw_sessions.errors import ConfigError, Unreachable
from tests.channels.clocks import HastyClock
from tests.channels.discord_server import (
    ANN,
    BLOCKED,
    BOB,
    BOT,
    EVE,
    LOST,
    PRIVATE,
    ROLE,
    ROOM,
    SERVER,
    THREAD,
    TOKEN,
    UNAVAILABLE,
    DiscordServer,
    Json,
    Refused,
    Strange,
    too_many,
)
from tests.channels.rooms import Doors, deleting_tool
from tests.channels.telegram_server import PNG

pytestmark = pytest.mark.anyio

IMAGE = ImagePart("image/png", base64.b64encode(PNG).decode())
CALL = Message.assistant("", (ToolCall("call_0", "delete", "{}"),))
CHAT = PRIVATE[ANN["id"]]


class Bots:
    """Makes bots as the daemon does: each a channel that is served by a dispatcher of its own."""

    def __init__(self, server: DiscordServer, manager: SessionManager, model: Doors) -> None:
        self.server, self.manager, self.model = server, manager, model
        self.clock = HastyClock()
        self.tools: list[Tool] = []

    def channel(self, token: str = TOKEN, **settings: Any) -> DiscordChannel:
        made = DiscordSettings(**{"allow": (42, 43), "api_url": self.server.url, **settings})
        return DiscordChannel("discord", made, {"DISCORD_BOT_TOKEN": token}, self.clock)

    @asynccontextmanager
    async def serving(self, **settings: Any) -> AsyncIterator[DiscordChannel]:
        """A start; what is under way at the end is cut off."""
        assistant = Assistant(Agent(self.model, tools=self.tools))
        async with (
            aclosing(self.channel(**settings)) as channel,
            Dispatcher(self.manager, assistant, backoff_s=(0.01, 0.01), last_words_s=0.1) as dispatcher,
        ):
            dispatcher.serve(channel)
            yield channel
            dispatcher.cut_off(anyio.current_time())

    async def begun(self) -> None:
        """Wait until something that is chosen or pressed is heard."""
        await self.server.until(lambda: self.server.is_listened_to)

    async def answer(self, message: Json) -> str:
        """The last part of the answer to a message."""
        await self.server.until(lambda: bool(self.server.answers_to(message)))
        return self.server.answers_to(message)[-1]

    async def said(self, chat_id: str = CHAT) -> list[str]:
        return [message.text for message in (await self.manager.get_or_create("discord", chat_id)).messages()]


@pytest.fixture
async def discord() -> AsyncIterator[DiscordServer]:
    async with DiscordServer() as made:
        yield made
    assert made.problems == []


@pytest.fixture
def bots(discord: DiscordServer, manager: SessionManager, model: Doors) -> Bots:
    return Bots(discord, manager, model)


async def failure_of(channel: DiscordChannel) -> Exception:
    """With what a channel gives up listening."""
    with pytest.raises((ConfigError, Unreachable)) as caught:
        async for _ in channel.receive():
            pass
    await channel.aclose()
    return caught.value


# --- servers and threads ---------------------------------------------------------------------------------------------


async def test_a_thread_is_a_chat_of_its_own(bots: Bots, discord: DiscordServer) -> None:
    async with bots.serving():
        await bots.answer(discord.say(f"<@{BOT['id']}>, hello <@{BOB['id']}>", chat=ROOM))
        await bots.answer(discord.say(f"<@&{ROLE}> hi", chat=THREAD))
    assert await bots.said(ROOM) == ["hello @Bob", "echo: hello @Bob"]
    assert await bots.said(THREAD) == ["hi", "echo: hi"]


async def test_in_a_server_an_answer_to_the_bot_is_said_to_it_and_what_is_answered_stands_before(
    bots: Bots, discord: DiscordServer
) -> None:
    async with bots.serving():
        await bots.answer(discord.say(f"<@{BOT['id']}> hello", chat=ROOM))
        (answer,) = discord.said(ROOM)
        reference: Json = {"message_reference": {"message_id": answer["id"]}, "mentions": [BOT]}
        await bots.answer(discord.say("and then?", chat=ROOM, **reference))
        bobs = discord.say("see below", BOB, ROOM, mentions=[BOT], message_snapshots=[{"message": _forwarded("news")}])
        assert await bots.answer(bobs) == "echo: > news\nsee below"
        said = f"<@{BOT['id']}> is that so?"
        asked = discord.say(said, chat=ROOM, message_reference={"message_id": bobs["id"]})
        assert await bots.answer(asked) == "echo: > see below\nis that so?"
    assert bots.model.asked[:2] == ["hello", "and then?"]


def _forwarded(text: str) -> Json:
    about: Json = {"content": text, "timestamp": "2026-01-01T00:00:00+00:00", "edited_timestamp": None, "type": 0}
    return about | {"embeds": [], "attachments": [], "mentions": [], "mention_roles": [], "flags": 0}


async def test_a_server_may_be_allowed_and_with_groups_all_everything_there_is_answered(
    bots: Bots, discord: DiscordServer
) -> None:
    discord.may_read_content = True
    async with bots.serving(allow=(SERVER,), groups="all"):
        await bots.begun()
        assert await bots.answer(discord.say("I talk to all of you", EVE, ROOM)) == "echo: I talk to all of you"


async def test_what_the_bot_may_not_read_is_not_asked_for(bots: Bots, discord: DiscordServer) -> None:
    error = await failure_of(bots.channel(groups="all"))
    assert isinstance(error, ConfigError)
    assert str(error) == (
        "Discord does not let the bot of the channel discord read what is not said to it: turn on the message content "
        'intent in the developer portal, or set channels.discord.groups to "addressed"'
    )
    async with bots.serving():
        await bots.answer(discord.say("hello"))


# --- what is looked for ----------------------------------------------------------------------------------------------


async def test_what_is_said_while_the_session_is_lost_is_looked_for_in_all_chats(
    bots: Bots, discord: DiscordServer
) -> None:
    async with bots.serving():
        await bots.answer(discord.say("hello"))
        discord.lose_sessions()
        missed = [
            discord.say("one"),
            discord.say(f"<@{BOT['id']}> two", BOB, ROOM),
            discord.say(f"<@{BOT['id']}> three", chat=THREAD),
        ]
        discord.say("nothing to do with it", BOB, ROOM)
        await discord.drop()
        assert [await bots.answer(one) for one in missed] == ["echo: one", "echo: two", "echo: three"]
    assert (discord.identified, discord.resumed) == (2, 0)
    assert bots.clock.pauses.count(5.0) == 1, "Discord takes no second session at once"
    assert sorted(bots.model.asked) == ["hello", "one", "three", "two"]


async def test_a_connection_that_breaks_off_is_resumed_and_nothing_is_looked_for(
    bots: Bots, discord: DiscordServer
) -> None:
    async with bots.serving():
        await bots.answer(discord.say("hello"))
        looked = discord.asked.count("list")
        await discord.drop()
        await bots.answer(discord.say("and now?"))
    assert (discord.identified, discord.resumed) == (1, 1)
    assert discord.asked.count("list") == looked


async def test_a_chat_that_is_not_known_is_looked_at_when_its_person_writes_again(
    bots: Bots, discord: DiscordServer
) -> None:
    missed = discord.keep("missed", EVE)
    async with bots.serving(allow=("*",)):
        await bots.begun()
        assert await bots.answer(discord.say("hello?", EVE)) == "echo: hello?"
    assert discord.answers_to(missed) == ["echo: missed"]
    assert bots.model.asked == ["missed", "hello?"]


async def test_a_bot_that_is_new_in_a_channel_answers_no_old_talk(bots: Bots, discord: DiscordServer) -> None:
    discord.may_read_content = True
    discord.keep("old talk", BOB, ROOM)
    missed = discord.keep(f"<@{BOT['id']}> to the bot", BOB, ROOM)
    async with bots.serving(groups="all"):
        await bots.answer(missed)
    away = discord.keep("said while it was away", BOB, ROOM)
    async with bots.serving(groups="all"):
        await bots.answer(away)
    assert bots.model.asked == ["to the bot", "said while it was away"]


async def test_what_is_older_than_a_day_is_not_answered(bots: Bots, discord: DiscordServer) -> None:
    old = discord.keep("long ago")
    old["id"] = str(int(old["id"]) - (25 * 3_600_000 << 22))
    discord.keep("of today")
    async with bots.serving():
        await discord.until(lambda: bool(discord.texts()))
    assert bots.model.asked == ["of today"]


async def test_a_message_that_was_edited_while_the_bot_was_away_is_answered_again(
    bots: Bots, discord: DiscordServer
) -> None:
    async with bots.serving():
        asked = discord.say("helo")
        await bots.answer(asked)
    discord.edit(asked, "hello")
    async with bots.serving():
        await discord.until(lambda: discord.answers_to(asked) == ["echo: helo", "echo: hello"])
    assert await bots.said() == ["hello", "echo: hello"]


async def test_another_wording_with_the_same_long_answer_has_all_of_it(
    bots: Bots, discord: DiscordServer, model: Doors
) -> None:
    model.replies |= dict.fromkeys(("long", "longer"), Message.assistant("word " * 600))
    async with bots.serving():
        asked = discord.say("long")
        await bots.answer(asked)
    discord.edit(asked, "longer")
    async with bots.serving():
        await discord.until(lambda: len(discord.answers_to(asked)) == 2)
    first, last, *again = discord.texts()
    assert again == [first, last]


async def test_a_picture_of_a_link_is_no_other_wording(bots: Bots, discord: DiscordServer) -> None:
    async with bots.serving():
        asked = discord.say("https://example.org")
        await bots.answer(asked)
        discord.deliver(asked | {"embeds": []}, "MESSAGE_UPDATE")
        await bots.answer(discord.say("well?"))
    assert bots.model.asked == ["https://example.org", "well?"]


async def test_one_chat_that_cannot_be_read_and_one_message_that_the_library_cannot_read_hold_up_nothing(
    bots: Bots, discord: DiscordServer
) -> None:
    broken = discord.keep("what is this?")
    del broken["timestamp"], broken["type"]
    discord.keep("and this?")
    discord.keep("hello", BOB)
    discord.instead["list"] = [Refused(403, 50001, "Missing Access")]
    with capture_logs() as logs:
        async with bots.serving():
            await discord.until(lambda: bool(discord.texts(PRIVATE[BOB["id"]])))
        async with bots.serving():
            await discord.until(lambda: discord.texts() == ["echo: and this?"])
    assert [one["action"] for one in logs if one["log_level"] == "warning"].count("channel.unreadable") >= 2
    assert "what is this" not in str(logs)


async def test_more_than_a_chat_has_room_for_is_answered_in_order_and_stop_ends_all_of_it(
    bots: Bots, discord: DiscordServer, model: Doors
) -> None:
    model.close("0")
    said = [discord.keep(str(number)) for number in range(40)]
    async with bots.serving():
        await model.was_asked("0")
        stop = discord.say("/stop")
        await discord.until(lambda: all(discord.is_answered(one) for one in [*said, stop]))
        assert (discord.texts(), model.asked) == (["echo:  (stopped)"], ["0"])
    for number in range(40, 80):
        discord.keep(str(number))
    async with bots.serving():
        await discord.until(lambda: len(discord.texts()) == 41)
    assert discord.texts()[1:] == [f"echo: {number}" for number in range(40, 80)]


# --- commands and buttons --------------------------------------------------------------------------------------------


async def test_commands_are_in_the_menu_and_their_answers_take_the_place_of_thinking(
    bots: Bots, discord: DiscordServer
) -> None:
    async with bots.serving():
        await bots.begun()
        assert {f"/{one['name']}" for one in discord.commands} == {word for word, one in COMMANDS.items() if one.help}
        discord.choose("new", "hello")
        await discord.until(lambda: discord.texts() == ["echo: hello"])
        chosen = discord.choose("help", chat=ROOM)
        await discord.until(lambda: len(discord.texts(ROOM)) == 1)
    assert discord.acknowledged[chosen] == {"type": 5}
    assert discord.texts(ROOM)[0].startswith("/stop \\- stop the answer")
    assert await bots.said() == ["hello", "echo: hello"]


async def test_stop_from_the_menu_is_obeyed_at_once_and_leaves_nothing_behind(
    bots: Bots, discord: DiscordServer, model: Doors
) -> None:
    model.close("slow")
    async with bots.serving():
        discord.say("slow")
        await model.was_asked("slow")
        discord.choose("stop")
        await discord.until(lambda: discord.texts() == ["echo:  (stopped)"])
        await discord.until(lambda: "take_back" in discord.asked)
    assert len(discord.history[CHAT]) == 2


async def test_an_answer_that_took_longer_than_discord_waits_comes_as_a_message(
    bots: Bots, discord: DiscordServer
) -> None:
    discord.instead["fill_in"] = [Refused(404, 10015, "Unknown Webhook")]
    async with bots.serving():
        await bots.begun()
        discord.choose("new", "hello")
        await discord.until(lambda: discord.texts() == ["echo: hello"])
        discord.instead["acknowledge"] = [Refused(404, 10062, "Unknown interaction")]
        discord.choose("new", "again")
        await discord.until(lambda: discord.texts() == ["echo: hello", "echo: again"])
        discord.instead["acknowledge"] = [Refused(404, 10062, "Unknown interaction")]
        discord.choose("new", "again")
        await discord.until(lambda: discord.texts()[2:] == ["echo: again"])


async def test_a_command_that_another_gateway_of_the_bot_has_taken_is_left_to_it(
    bots: Bots, discord: DiscordServer
) -> None:
    async with bots.serving():
        await bots.begun()
        discord.instead["acknowledge"] = [Refused(400, 40060, "Interaction has already been acknowledged.")]
        discord.choose("new", "hello")
        await discord.until(lambda: not discord.instead["acknowledge"])
        await bots.answer(discord.say("hi"))
    assert bots.model.asked == ["hi"]


async def test_a_chat_with_others_in_which_a_person_uses_the_app_is_linked_with_nothing(
    bots: Bots, discord: DiscordServer
) -> None:
    async with bots.serving():
        await bots.begun()
        discord.choose("link")
        await discord.until(lambda: discord.texts()[-1:] != [] and "Your code is" in discord.texts()[-1])
        discord.choose("link", among_others=True)
        await discord.until(lambda: "never a group" in discord.texts()[-1])


async def test_who_is_not_allowed_learns_it_when_he_chooses_a_command(bots: Bots, discord: DiscordServer) -> None:
    async with bots.serving():
        await bots.begun()
        discord.choose("help", sender=EVE)
        await discord.until(lambda: bool(discord.whispers))
    assert discord.whispers == ["You are not allowed to speak to this bot."]
    assert discord.texts(PRIVATE[EVE["id"]]) == []


async def test_a_pressed_button_is_acknowledged_disabled_and_remembered_over_a_restart(
    bots: Bots, discord: DiscordServer, model: Doors
) -> None:
    made: list[dict[str, Any]] = []
    bots.tools = [deleting_tool(made)]
    model.replies["delete it"] = CALL
    model.close("deleted")
    async with bots.serving():
        await bots.answer(discord.say("delete it"))
        (question,) = discord.said()
        number = discord.press(question, "Yes")
        await model.was_asked("deleted")
        yes, no = question["components"][0]["components"]
        assert discord.acknowledged[number]["type"] == 7
        assert (yes["disabled"], yes["style"], no["disabled"], no["style"]) == (True, 3, True, 2)
    assert len(discord.texts()) == 1, "the answer was cut off"
    model.open("deleted")
    async with bots.serving():
        assert await bots.answer(question) == "echo: deleted"
    async with bots.serving():
        await bots.answer(discord.say("well?"))
    assert len(made) == 1
    assert len(discord.answers_to(question)) == 1


def test_buttons_name_their_calls_and_no_others() -> None:
    question = "01890a5d-ac96-774b-bcce-b302099a8057"
    ids = [f"{question}.call_{'x' * 24}{number}" for number in range(5)]
    shown = buttons_for(ids)
    yes, no = shown[0]["components"]
    assert max(len(one["custom_id"]) for one in (yes, no)) <= 100
    assert approvals_in(shown) is None
    assert approvals_in(shown, no["custom_id"]) == dict.fromkeys(ids, False)
    assert approvals_in(pressed(shown, yes["custom_id"])) == dict.fromkeys(ids, True)
    assert approvals_in(shown, "something else") is None
    assert approvals_in([{"type": 1, "components": [yes]}], yes["custom_id"]) is None
    for none in [], [*ids, f"{question}.{'x' * 200}"], [f"{question}.two words"], ["a.1", "b.1"]:
        assert buttons_for(none) == [], "the words do the same"


# --- sending ---------------------------------------------------------------------------------------------------------


async def test_a_long_answer_is_split_and_a_restart_in_the_middle_of_it_doubles_nothing(
    bots: Bots, discord: DiscordServer, model: Doors
) -> None:
    code = "```python\n" + "\n".join(f"print({number})" for number in range(300)) + "\n```"
    model.replies["long"] = Message.assistant(f"Look:\n\n{code}")
    async with bots.serving():
        asked = discord.say("long")
        discord.instead["send"] = [LOST, *[UNAVAILABLE] * 1000]
        await discord.until(lambda: len(discord.instead["send"]) < 990)
    assert len(discord.texts()) == 1
    discord.instead["send"].clear()
    discord.said()[0]["nonce"] = None  # which Discord knows for some minutes only
    async with bots.serving():
        await bots.answer(asked)
    texts = discord.texts()
    assert len(texts) == 2
    assert all(len(text) <= 2000 for text in texts)
    assert all(text.count("```") == 2 for text in texts)
    assert texts[1].startswith("```python\nprint(")
    assert discord.answers_to(asked) == texts[-1:]
    assert model.asked == ["long"]


async def test_pictures_are_sent_and_one_that_is_refused_is_said(
    bots: Bots, discord: DiscordServer, model: Doors
) -> None:
    model.replies |= dict.fromkeys(("paint", "again"), Message.assistant((TextPart("Here:"), IMAGE, IMAGE)))
    async with bots.serving():
        discord.instead["send"] = [too_many(0.01)]
        asked = discord.say("paint")
        await bots.answer(asked)
        text, pictures = discord.said()
        assert text["content"] == "Here:"
        assert [discord.files[one["id"]] for one in pictures["attachments"]] == [PNG, PNG]
        assert discord.answers_to(asked) == [""]
        discord.refuses_files = True
        assert await bots.answer(discord.say("again")) == "(The answer has a picture that Discord does not take.)"


async def test_of_a_large_picture_a_smaller_version_is_taken_and_all_files_have_one_room(
    bots: Bots, discord: DiscordServer
) -> None:
    async with bots.serving(max_image_bytes=100, max_file_bytes=len(PNG) + 20):
        large = discord.attach("p.png", PNG, "image/png", width=4000, height=3000)
        large["size"] = 5_000_000
        text = discord.attach("a.txt", b"some words", "text/plain")
        sound = discord.attach("voice.ogg", b"OggS" + bytes(50), "audio/ogg", duration_secs=12.3, waveform="AAAA")
        answer = await bots.answer(discord.say("", attachments=[large, text, sound]))
    assert "file?proxy=1&width=1024&height=768&format=webp" in discord.asked
    assert answer.startswith("I cannot listen to a voice message of 12 seconds. Please write what matters in it.")
    (said, _) = (await bots.manager.get_or_create("discord", CHAT)).messages()
    assert not isinstance(said.content, str)
    assert said.content[1] == IMAGE
    assert "some words" in said.text


async def test_a_limit_for_all_requests_is_waited_for_and_nothing_is_sent_meanwhile(
    bots: Bots, discord: DiscordServer
) -> None:
    async with bots.serving():
        discord.instead["send"] = [too_many(0.05, is_global=True), too_many(0.05)]
        ann, bob = discord.say("one"), discord.say("two", BOB)
        assert (await bots.answer(ann), await bots.answer(bob)) == ("echo: one", "echo: two")
    assert discord.texts() == ["echo: one"]


async def test_what_is_refused_for_good_is_not_sent_again_and_a_proxys_page_is_no_refusal(
    bots: Bots, discord: DiscordServer
) -> None:
    async with bots.serving():
        with capture_logs() as logs:
            discord.instead["send"] = [Strange(b"<html><title>Who are you?</title>", status=403)]
            await bots.answer(discord.say("hello"))
            discord.instead["send"] = [BLOCKED]
            blocked = discord.say("I block you")
            await bots.answer(discord.say("no, I do not"))
    assert discord.answers_to(blocked) == []
    details = [str(one.get("detail")) for one in logs]
    assert "Discord does not take an answer: status 403, code 50007" in details
    assert any("titled 'Who are you?'" in one for one in details)


@pytest.mark.parametrize(
    ("method", "path", "reply", "is_good"),
    [
        ("POST", "/channels/{channel_id}/messages", {"id": "1"}, True),
        ("POST", "/channels/{channel_id}/messages", {"id": 1}, False),
        ("POST", "/channels/{channel_id}/messages", [], False),
        ("POST", "/channels/{channel_id}/messages", "", False),
        ("PATCH", "/webhooks/{webhook_id}/{webhook_token}/messages/@original", "<html>", False),
        ("DELETE", "/webhooks/{webhook_id}/{webhook_token}/messages/@original", "", True),
        ("GET", "/channels/{channel_id}/messages", [], True),
        ("GET", "/channels/{channel_id}/messages", {}, False),
        ("PUT", "/channels/{channel_id}/messages/{message_id}/reactions/{emoji}/@me", "", True),
        ("POST", "/channels/{channel_id}/typing", "", True),
        ("POST", "/channels/{channel_id}/typing", "<html>", False),
        ("GET", "/users/@me", "<html>", False),
    ],
)
def test_a_reply_is_discords_own_when_it_has_what_discord_says(
    method: str, path: str, reply: Any, *, is_good: bool
) -> None:
    assert (fault_of(method, path, reply) is None) is is_good


# --- what is wrong ---------------------------------------------------------------------------------------------------


async def test_a_token_that_is_none_is_said_without_showing_it(bots: Bots, discord: DiscordServer) -> None:
    error = await failure_of(bots.channel(token="no.such.token"))
    assert isinstance(error, ConfigError)
    assert str(error) == (
        "Discord knows no bot with the token of the channel discord; reset it in the developer portal"
    )
    discord.closes_with = 4004
    assert str(await failure_of(bots.channel())) == "Discord does not take the token of the channel discord any more"


@pytest.mark.parametrize("kind", ["me", "register", "open"])
async def test_where_discord_is_not_there_listening_is_tried_again(
    bots: Bots, discord: DiscordServer, kind: str
) -> None:
    discord.instead[kind] = [UNAVAILABLE]
    error = await failure_of(bots.channel())
    assert isinstance(error, Unreachable)
    assert TOKEN not in str(error)
    async with bots.serving():
        await bots.answer(discord.say("hello"))


def test_a_wrong_address_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match=r'discord\.api_url is "ftp://x"; set it to an https:// address'):
        DiscordChannel("discord", DiscordSettings(api_url="ftp://x"), {"DISCORD_BOT_TOKEN": TOKEN})
    with pytest.raises(ConfigError, match="DISCORD_BOT_TOKEN"):
        DiscordChannel("discord", DiscordSettings(), {})
