"""The channel `matrix` with its library, on a homeserver whose events and failures a test makes up."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from tempfile import NamedTemporaryFile
from typing import Any

import anyio
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from miniclaw_sessions import SessionManager
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.channels.matrix.channel import MatrixChannel, MatrixSettings
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, TextPart, ToolCall
from miniclaw_sessions.errors import ModelError
from tests.channels import contract
from tests.channels.homeserver import BOT, ROOM, Homeserver
from tests.channels.rooms import PATIENCE_S, Doors, deleting_tool
from tests.channels.telegram_server import PNG

pytestmark = pytest.mark.anyio

ALICE, BOB = "@alice:example.org", "@bob:elsewhere.org"
ASIDE: dict[str, Any] = {"m.relates_to": {"rel_type": "m.thread", "event_id": "$9"}}


@asynccontextmanager
async def serving(
    manager: SessionManager,
    model: Doors,
    server: Homeserver,
    tools: Sequence[Tool] = (),
    **settings: Any,
) -> AsyncIterator[None]:
    async with server.serve():
        with NamedTemporaryFile("w") as token:
            token.write("token")
            token.flush()
            made = MatrixSettings(homeserver=server.url, token_file=token.name, allow=(ALICE, BOB), **settings)
            channel = MatrixChannel("matrix", made)
        async with contract.serving(channel, manager, model, tools):
            await server.until_position(0)
            yield


async def test_what_waits_when_the_connection_breaks_off_is_done_only_when_it_is_answered(
    manager: SessionManager, model: Doors
) -> None:
    server = Homeserver()
    model.close("slow")
    async with serving(manager, model, server):
        server.say("slow", ALICE)
        await model.was_asked("slow")
        server.say("waits", ALICE)
        await server.until(lambda: server.since == "2")
        with capture_logs() as logs:
            server.broken = 1
            server.change()
            await server.until(lambda: "channel.failed" in [one["action"] for one in logs])  # it asks again then
        server.say("/help", ALICE, **ASIDE)
        await server.until(lambda: len(server.answers) == 1)
        server.say("/help", ALICE, **ASIDE)  # its answer comes behind all that was handed over again
        await server.until(lambda: len(server.answers) == 2)
        assert server.position == "0", "two messages are in memory only"
        model.open("slow")
        await server.until_position(4)
    assert [text for text in server.answers.values() if "echo" in text] == ["echo: slow", "echo: waits"]
    assert model.asked == ["slow", "waits"]


async def test_an_answer_that_can_never_be_sent_holds_up_nothing(manager: SessionManager, model: Doors) -> None:
    server = Homeserver()
    model.replies["paint"] = Message.assistant((TextPart("here"), ImagePart("image/png", "AAA")))
    async with serving(manager, model, server):
        server.say("paint", ALICE)
        await server.until(lambda: bool(server.answers))
        server.say("hello", ALICE)
        await server.until_position(2)
    assert list(server.answers.values()) == ["here", "echo: hello"]


BEHIND_SLOW = ["slow", *map(str, range(40))]


async def say_more_than_is_in_hand(server: Homeserver) -> None:
    """In one chat, behind an answer that takes long; who says something in another one is answered all the same."""
    for text in BEHIND_SLOW:
        server.say(text, ALICE)
    server.say("quick", BOB, **ASIDE)
    await server.until(lambda: "echo: quick" in server.answers.values())


async def test_what_waits_in_one_room_keeps_nobody_else_from_being_heard_and_is_answered_through_a_restart(
    manager: SessionManager, model: Doors
) -> None:
    server = Homeserver()
    model.close("slow")
    async with serving(manager, model, server):
        await say_more_than_is_in_hand(server)
        assert server.position == "0", "what waits is in memory only"
    model.open("slow")
    async with serving(manager, model, server):
        await server.until_position(42)
    assert list(server.answers.values()) == ["echo: quick", *(f"echo: {text}" for text in BEHIND_SLOW)]


async def test_what_waits_is_answered_when_there_is_room_though_nobody_says_anything_more(
    manager: SessionManager, model: Doors
) -> None:
    server = Homeserver()
    model.close("slow")
    async with serving(manager, model, server):
        await say_more_than_is_in_hand(server)
        model.open("slow")
        await server.until_position(42)
    assert list(server.answers.values())[1:] == [f"echo: {text}" for text in BEHIND_SLOW]


async def test_stop_is_heard_whatever_waits_and_nothing_before_it_is_answered(
    manager: SessionManager, model: Doors
) -> None:
    server = Homeserver()
    model.close("slow", "aside")
    async with serving(manager, model, server):
        server.say("slow", ALICE)
        server.say("aside", ALICE, **ASIDE)
        await model.was_asked("slow", "aside")
        for number in range(40):
            server.say(str(number), ALICE)
        server.say("another", ALICE, **ASIDE)
        server.say("/stop", ALICE)
        server.say("after", ALICE)
        await server.until(lambda: "echo: after" in server.answers.values())
        model.open("aside")
        await server.until_position(45)
    assert model.asked[2:] == ["after", "another"]
    assert list(server.answers.values()) == ["echo:  (stopped)", "echo: after", "echo: aside", "echo: another"]


async def test_of_more_than_can_be_held_the_oldest_are_told_that_too_much_waits(
    manager: SessionManager, model: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw_sessions.channels.waiting.HELD", 10)
    server = Homeserver()
    model.close("slow")
    async with serving(manager, model, server):
        for text in ("slow", *map(str, range(50))):
            server.say(text, ALICE)
        await server.until(lambda: len(server.answers) == 51 - 21 - 10)
        assert all("too many messages" in text for text in server.answers.values())
        model.open("slow")
        await server.until_position(51)
    assert model.asked == ["slow", *map(str, range(20)), *map(str, range(40, 50))]


async def test_what_is_still_being_read_is_not_taken_for_done(manager: SessionManager, model: Doors) -> None:
    class SlowHomeserver(Homeserver):
        def __init__(self) -> None:
            super().__init__()
            self.was_asked, self.door = anyio.Event(), anyio.Event()

        async def _media(self, request: web.Request) -> web.Response:
            self.was_asked.set()
            await self.door.wait()
            return await super()._media(request)

    server = SlowHomeserver()
    server.media = PNG
    model.close("slow")
    async with serving(manager, model, server):
        server.say("slow", ALICE)
        await model.was_asked("slow")
        server.say("p.png", ALICE, msgtype="m.image", url="mxc://example.org/1")
        await server.was_asked.wait()
        model.open("slow")
        await server.until(lambda: server.position != "0")
        assert server.position == "1"
        server.door.set()
        await server.until_position(2)


async def test_an_answer_is_not_taken_for_what_was_told_of_the_same_message_before(
    manager: SessionManager, model: Doors
) -> None:
    def fails() -> None:
        raise ModelError("overloaded")

    server = Homeserver()
    model.close("slow")
    async with serving(manager, model, server):
        server.say("slow", ALICE, **ASIDE)
        await model.was_asked("slow")
        model.on_asked = fails
        server.say("question", ALICE)
        await server.until(lambda: len(server.answers) == 1)
    model.on_asked = lambda: None
    model.open("slow")
    async with serving(manager, model, server):
        await server.until_position(2)
    assert sorted(server.answers.values())[1:] == ["echo: question", "echo: slow"]


async def test_a_picture_has_the_type_that_it_is_of_whatever_its_sender_says(
    manager: SessionManager, model: Doors
) -> None:
    server = Homeserver()
    server.media = PNG
    async with serving(manager, model, server):
        server.say("p.png", ALICE, msgtype="m.image", url="mxc://example.org/1", info={"mimetype": "image/jpeg"})
        await server.until_position(1)
    (said, _) = (await manager.get_or_create("matrix", ROOM)).messages()
    assert said.content == (ImagePart("image/png", base64.b64encode(PNG).decode()),)


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(bytes(65_536))


async def silent(_: web.Request) -> web.StreamResponse:
    await anyio.sleep_forever()
    raise AssertionError


async def busy(_: web.Request) -> web.StreamResponse:
    return web.json_response({"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 3_600_000}, status=429)


async def broken_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(bytes(10))
    assert request.transport is not None
    request.transport.close()
    return response


async def check_that_it_holds_up_nobody(
    manager: SessionManager, model: Doors, replies: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> Homeserver:
    """Assert that a picture that is answered so is named, and that another person is answered behind it."""

    class Hostile(Homeserver):
        async def _media(self, request: web.Request) -> Any:
            return await replies(request)

    server = Hostile()
    async with serving(manager, model, server):
        server.say("p.png", BOB, msgtype="m.image", url="mxc://elsewhere.org/1")
        server.say("hello", ALICE)
        await server.until_position(2)
    assert model.asked == ["(The person sent a picture (p.png), which you cannot see.)", "hello"]
    return server


@pytest.mark.parametrize(("download_s", "replies"), [(0.1, silent), (0.1, busy), (PATIENCE_S, endless)])
async def test_a_picture_whose_download_does_not_end_holds_up_no_other(
    manager: SessionManager,
    model: Doors,
    monkeypatch: pytest.MonkeyPatch,
    download_s: float,
    replies: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> None:
    monkeypatch.setattr("miniclaw_sessions.channels.matrix.channel._DOWNLOAD_S", download_s)
    await check_that_it_holds_up_nobody(manager, model, replies)


async def test_a_file_that_always_breaks_off_holds_up_nobody(
    manager: SessionManager, model: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw_sessions.channels.matrix.replies._AGAIN_S", 0.01)
    server = await check_that_it_holds_up_nobody(manager, model, broken_off)
    assert server.asked.count("GET _media") == 3


async def test_many_files_of_one_person_are_waited_for_no_longer_than_one(
    manager: SessionManager, model: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hostile(Homeserver):
        async def _media(self, request: web.Request) -> Any:
            is_slow = request.match_info["server"] == "elsewhere.org"
            return await (silent(request) if is_slow else super()._media(request))

    monkeypatch.setattr("miniclaw_sessions.channels.matrix.channel._DOWNLOAD_S", 2.0)
    server = Hostile()
    server.media = PNG
    async with serving(manager, model, server):
        for number in range(20):
            server.say("p.png", BOB, msgtype="m.image", url=f"mxc://elsewhere.org/{number}")
        server.say("p.png", ALICE, msgtype="m.image", url="mxc://example.org/1")
        await server.until_position(21)
    assert server.asked.count("GET _media") <= 3, "no other one is asked for once the time is over"
    said, _ = (await manager.get_or_create("matrix", ROOM)).messages()[-2:]
    assert said.content == (ImagePart("image/png", base64.b64encode(PNG).decode()),)


async def test_a_picture_is_fetched_again_where_the_homeserver_wants_a_pause(
    manager: SessionManager, model: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw_sessions.channels.matrix.replies._AGAIN_S", 0.01)
    server = Homeserver()
    server.media = PNG
    server.instead["GET _media"] = [(429, "application/json", b"{}")]
    async with serving(manager, model, server):
        server.say("p.png", ALICE, msgtype="m.image", url="mxc://example.org/1")
        await server.until_position(1)
    (said, _) = (await manager.get_or_create("matrix", ROOM)).messages()
    assert said.content == (ImagePart("image/png", base64.b64encode(PNG).decode()),)


@pytest.mark.parametrize(
    "hostile",
    [
        {"m.mentions": {"user_ids": 5}},
        {"msgtype": ["m.text"]},
        {"msgtype": "m.image", "url": "mxc://[", "m.mentions": {"user_ids": [BOT]}},
        {"m.mentions": 5, "m.relates_to": {"rel_type": ["m.replace"], "m.in_reply_to": 7}},
    ],
)
async def test_an_event_that_nobody_can_read_holds_up_no_other(
    manager: SessionManager, model: Doors, hostile: dict[str, Any]
) -> None:
    server = Homeserver(people=3)
    async with serving(manager, model, server):
        server.say("hello", BOB, **hostile)
        server.say(f"{BOT}: hello", ALICE)
        await server.until_position(2)
    assert list(server.answers.values()) == ["echo: hello"]


@pytest.mark.parametrize("is_mention", [False, True])
async def test_in_a_room_of_three_an_ok_is_an_answer_only_where_it_is_said_to_the_bot(
    manager: SessionManager, model: Doors, *, is_mention: bool
) -> None:
    made: list[dict[str, Any]] = []
    model.replies["delete x"] = Message.assistant("", (ToolCall("call_0", "delete", "{}"),))
    server = Homeserver(people=3)
    async with serving(manager, model, server, tools=[deleting_tool(made)], groups="all"):
        server.say("delete x", ALICE)
        await server.until_position(1)
        server.say("ok", BOB, **({"m.mentions": {"user_ids": [BOT]}} if is_mention else {}))
        await server.until_position(2)
    assert bool(made) is is_mention


async def test_an_event_without_the_least_that_one_has_holds_up_no_other(manager: SessionManager, model: Doors) -> None:
    server = Homeserver()
    async with serving(manager, model, server):
        server.add({"type": "m.room.message", "content": {"body": "no id, no sender"}})
        server.add({"type": "m.room.member", "state_key": BOT, "content": "joined"})
        server.say("hello", ALICE)
        await server.until_position(3)
    assert list(server.answers.values()) == ["echo: hello"]


async def test_nobody_rewrites_what_somebody_else_has_said(manager: SessionManager, model: Doors) -> None:
    server = Homeserver()
    async with serving(manager, model, server):
        first = server.say("6 * 7", ALICE)
        await server.until_position(1)
        edit = {"m.new_content": {"msgtype": "m.text", "body": "6 * 8"}}
        server.say("* 6 * 8", BOB, **edit, **{"m.relates_to": {"rel_type": "m.replace", "event_id": first}})
        await server.until_position(2)
    session = await manager.get_or_create("matrix", ROOM)
    assert [one.text for one in session.messages()] == ["6 * 7", "echo: 6 * 7"]
