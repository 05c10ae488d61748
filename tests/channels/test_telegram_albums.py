"""An album is one turn with one answer, whatever comes between its pictures; what no model sees is said in words."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.agent.provider import ModelEvent, Reply
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.channels.telegram.exchanges import ALBUM_S
from miniclaw_sessions.core.events.listeners import TurnEvent
from miniclaw_sessions.core.protocol.messages import ImagePart
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.errors import StoreFull
from miniclaw_sessions.testing import FaultyStore
from tests.channels.rooms import Doors
from tests.channels.telegram_bots import Bots
from tests.channels.telegram_server import BAD_GATEWAY, BOB, GROUP, BotServer, Json
from tests.channels.test_telegram import WEBHOOK, post_to

pytestmark = pytest.mark.anyio


class Viewer(Doors):
    """Says how many pictures it was shown since it was last heard; behind a door, if there is one."""

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        del tools
        newest = next((-n for n, one in enumerate(reversed(messages)) if one.is_assistant), -len(messages))
        parts = [part for one in messages[newest or len(messages) :] for part in one.content]
        text = f"{sum(isinstance(part, ImagePart) for part in parts)} pictures"
        self.asked.append(text)
        self._asked.set()
        if "view" in self.doors:
            await self.doors["view"].wait()
        yield Reply(Message.assistant(text))


@pytest.fixture
def viewer(bots: Bots) -> Viewer:
    """The model; and how long a picture is waited for is the test's business."""
    bots.model = viewer = Viewer()
    bots.clock.held[ALBUM_S] = anyio.Event()
    return viewer


def album(server: BotServer, count: int = 3, *, caption: str = "look", **fields: Any) -> list[Json]:
    """Somebody sends some pictures at once."""
    return [
        server.photograph(caption=caption if not number else "", media_group_id="77", **fields)
        for number in range(count)
    ]


async def kinds(bots: Bots, chat_id: str = "42") -> str:
    """Who has said something in a chat, one letter each."""
    messages = (await bots.manager.get_or_create("telegram", chat_id)).messages()
    return "".join(str(one.role)[0] for one in messages)


async def test_three_pictures_have_one_answer_and_none_is_confirmed_before_it(
    bots: Bots, server: BotServer, viewer: Viewer
) -> None:
    unconfirmed: list[int] = []
    server.on_message = lambda _: unconfirmed.append(len(server.updates))
    viewer.close("view")
    async with bots.serving():
        pictures = album(server)
        newest = server.updates[-1]["update_id"]
        await server.until(lambda: server.deliveries[newest] > 2)
        assert viewer.asked == [], "another one may follow"
        bots.clock.held[ALBUM_S].set()
        await viewer.was_asked("3 pictures")
        await server.until(lambda: server.deliveries[newest] > 4)
        assert len(server.updates) == 3
        viewer.open("view")
        await server.until(lambda: not server.updates)
    assert server.texts() == viewer.asked == ["3 pictures"]
    assert unconfirmed == [3]
    assert await kinds(bots) == "uuua"
    (first, *_) = (await bots.manager.get_or_create("telegram", 42)).messages()
    assert first.text == pictures[0]["caption"] == "look"


@pytest.mark.parametrize("count", [1, 3])
async def test_who_follows_the_session_sees_one_answer_to_all_pictures_and_no_error(
    bots: Bots, server: BotServer, viewer: Viewer, count: int
) -> None:
    bots.clock.held[ALBUM_S].set()
    await bots.manager.get_or_create("telegram", 42)
    seen: list[str] = []

    async def follow() -> None:
        async with aclosing(bots.manager.events.watch("telegram_42")) as followed:
            async for some in followed:
                seen.extend(one.kind for one in some if isinstance(one, TurnEvent))
                if "done" in seen:
                    return

    async with anyio.create_task_group() as tasks, bots.serving():
        tasks.start_soon(follow)
        while not bots.manager.events.followers:
            await checkpoint()
        album(server, count)
        await server.until(lambda: not server.updates)
    assert viewer.asked == [f"{count} pictures"]
    assert seen == ["typing", "accepted", "usage", "done"]


async def test_what_was_killed_before_the_answer_is_answered_once_by_the_next_daemon(
    bots: Bots, server: BotServer, viewer: Viewer
) -> None:
    async with bots.serving():
        album(server, 2)  # when it is killed, one more is on its way
        newest = server.updates[-1]["update_id"]
        await server.until(lambda: server.deliveries[newest] > 2)
    server.photograph(media_group_id="77")
    assert (len(server.updates), server.texts()) == (3, [])
    bots.clock.held[ALBUM_S].set()
    async with bots.serving():
        await server.until(lambda: not server.updates)
    assert server.texts() == viewer.asked == ["3 pictures"]
    assert await kinds(bots) == "uuua"


async def test_an_answer_that_was_made_and_not_told_is_told_by_the_next_daemon_and_not_made_once_more(
    bots: Bots, server: BotServer, viewer: Viewer
) -> None:
    bots.clock.held[ALBUM_S].set()
    viewer.close("view")
    async with bots.serving():
        album(server)
        await viewer.was_asked("3 pictures")
        server.fail("sendMessage", *[BAD_GATEWAY] * 1000)
        viewer.open("view")
        await server.until(lambda: len(server.called("sendMessage")) > 2)
    assert len(server.updates) == 3
    server.heal("sendMessage")
    async with bots.serving():
        await server.until(lambda: not server.updates)
    assert server.texts() == viewer.asked == ["3 pictures"]


async def test_by_webhook_too_they_have_one_answer_though_each_is_confirmed_before_the_next_comes(
    bots: Bots, server: BotServer, viewer: Viewer
) -> None:
    async with bots.serving(webhook_url=WEBHOOK) as channel:
        post_to(channel, server)
        album(server)
        await server.until(lambda: not server.updates)
        assert await kinds(bots) == "uuu", "the store has what was confirmed"
        bots.clock.held[ALBUM_S].set()
        await server.until(lambda: bool(server.texts()))
    assert server.texts() == viewer.asked == ["3 pictures"]
    assert set(server.deliveries.values()) == {1}


async def test_by_webhook_what_a_stop_interrupts_between_two_pictures_is_answered_with_those_that_follow(
    bots: Bots, server: BotServer, viewer: Viewer
) -> None:
    async with bots.serving(webhook_url=WEBHOOK) as channel:
        post_to(channel, server)
        album(server, 2)
        await server.until(lambda: not server.updates)
    assert [text.partition(" before")[0] for text in server.texts()] == ["I was interrupted"]
    bots.clock.held[ALBUM_S].set()
    async with bots.serving(webhook_url=WEBHOOK) as channel:
        post_to(channel, server)
        server.photograph(media_group_id="77")
        await server.until(lambda: len(server.texts()) == 2)
    assert server.texts()[1:] == viewer.asked == ["3 pictures"]


async def test_a_picture_that_comes_when_the_others_are_answered_has_an_answer_of_its_own(
    bots: Bots, server: BotServer, viewer: Viewer
) -> None:
    bots.clock.held[ALBUM_S].set()
    async with bots.serving():
        album(server, 2)
        await server.until(lambda: not server.updates)
        server.photograph(media_group_id="77")
        await server.until(lambda: not server.updates)
    assert server.texts() == viewer.asked == ["2 pictures", "1 pictures"]


async def test_a_picture_that_could_not_be_saved_with_the_others_is_answered_when_it_can_be(
    tmp_path: Path, bots: Bots, server: BotServer, viewer: Viewer
) -> None:
    bots.clock.held[ALBUM_S].set()
    store = FaultyStore(MemoryStore())
    async with SessionManager(tmp_path / "full", store=store) as bots.manager, bots.serving():
        store.fail(StoreFull("no space left"))
        album(server, 1)
        await server.until(lambda: bool(server.texts()))
        store.heal()
        server.photograph(media_group_id="77")
        await server.until(lambda: not server.updates)
    assert sum(int(text.split()[0]) for text in viewer.asked) == 2
    assert server.texts()[1:] == viewer.asked


async def test_in_a_group_the_words_below_the_first_picture_speak_for_all(
    bots: Bots, server: BotServer, viewer: Viewer
) -> None:
    bots.clock.held[ALBUM_S].set()
    caption = "@claw_bot look"
    entities = [{"type": "mention", "offset": 0, "length": 9}]
    async with bots.serving():
        server.photograph(media_group_id="1", group=GROUP)  # to others
        server.photograph(caption=caption, caption_entities=entities, media_group_id="77", group=GROUP)
        server.photograph(media_group_id="77", group=GROUP)
        await server.until(lambda: not server.updates)
    assert viewer.asked == ["2 pictures"]


async def test_stop_ends_the_waiting_and_albums_of_others_go_their_own_way(
    bots: Bots, server: BotServer, viewer: Viewer
) -> None:
    async with bots.serving():
        album(server)
        newest = server.updates[-1]["update_id"]
        await server.until(lambda: server.deliveries[newest] > 2)
        server.say("/stop")
        await server.until(lambda: not server.updates)
        assert viewer.asked == []
        bots.clock.held[ALBUM_S].set()
        album(server, 2, sender=BOB)
        await server.until(lambda: not server.updates)
    assert (server.texts(), server.texts(43)) == ([], ["2 pictures"])


# --- what no model sees ----------------------------------------------------------------------------------------------

VOICE = {"file_id": "v", "file_unique_id": "v", "duration": 12}
FILE = {"file_id": "f", "file_unique_id": "f", "file_name": "plan.pdf"}


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({"voice": VOICE}, "a voice message of 12 seconds, which you cannot listen to"),
        ({"document": FILE, "caption": "read this"}, "a file (plan.pdf), which you cannot open"),
        ({"location": {"latitude": 1.0, "longitude": 2.0}}, "a place on a map, which you cannot see"),
        ({"dice": {"emoji": "\N{GAME DIE}", "value": 3}}, "a die (\N{GAME DIE}), which you cannot see"),
    ],
)
async def test_what_no_model_sees_is_said_in_a_plain_sentence_to_the_model_and_to_the_person(
    bots: Bots, server: BotServer, sent: Json, told: str
) -> None:
    what, _, verb = told.partition(", which you cannot ")
    to_model = f"(The person sent {told}.)\n{sent.get('caption', '')}".rstrip()
    to_person = "" if "dice" in sent else f"I cannot {verb} {what}. Please write what matters in it."
    model = bots.model
    model.replies[to_model] = Message.assistant("What is in it?")
    async with bots.serving(stream=True):
        server.say(**sent)
        await server.until(lambda: not server.updates)
    assert model.asked == [to_model]
    assert server.texts() == [f"{to_person}\n\nWhat is in it?".strip()]
