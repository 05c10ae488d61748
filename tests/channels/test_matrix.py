"""The channel `matrix` with its library, on a homeserver: Synapse. Needs to install that, once."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from nio import AsyncClient, RoomCreateResponse, RoomSendResponse, SyncResponse, UploadResponse
from structlog.testing import capture_logs

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.channels.matrix.channel import MatrixChannel, MatrixSettings
from miniclaw_sessions.core.protocol.messages import ImagePart, TextPart
from miniclaw_sessions.errors import ConfigError, Unreachable
from tests.channels import contract, daemon
from tests.channels.rooms import PATIENCE_S, Doors
from tests.channels.synapse import Synapse, running_synapse, synapse_python
from tests.channels.test_email import PIXEL

pytestmark = [pytest.mark.proof, pytest.mark.anyio]

_numbers = count()


@pytest.fixture(scope="module")
def synapse(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Synapse]:
    with running_synapse(synapse_python(pytestconfig), tmp_path_factory.mktemp("synapse")) as server:
        yield server


class Person:
    """Somebody with a program of his own, who hears all that is said in his rooms."""

    def __init__(self, synapse: Synapse, name: str) -> None:
        self.user_id = f"@{name}:example.org"
        self.token = synapse.register(name)
        self.client = AsyncClient(synapse.url)
        self.client.restore_login(self.user_id, "program", self.token)
        self.heard: list[dict[str, Any]] = []

    async def room_with(self, *people: Person) -> str:
        made = await self.client.room_create(invite=[one.user_id for one in people])
        assert isinstance(made, RoomCreateResponse)
        return str(made.room_id)

    async def say(self, room_id: str, text: str, **content: Any) -> str:
        said = {"msgtype": "m.text", "body": text, **content}
        sent = await self.client.room_send(room_id, "m.room.message", said)
        assert isinstance(sent, RoomSendResponse)
        return str(sent.event_id)

    async def hears(self, sender: Person, number: int = 1) -> list[dict[str, Any]]:
        """What somebody says, once it is so much."""
        with anyio.fail_after(PATIENCE_S):
            while len(found := [one for one in self.heard if one["sender"] == sender.user_id]) < number:
                reply = await self.client.sync(1_000, {"room": {"timeline": {"limit": 1_000}}})
                assert isinstance(reply, SyncResponse)
                events = [event for room in reply.rooms.join.values() for event in room.timeline.events]
                self.heard += [one.source for one in events if one.source["type"] == "m.room.message"]
        return found


@pytest.fixture
async def people(synapse: Synapse) -> AsyncIterator[tuple[Person, Person, Person]]:
    """The bot, Alice and Bob, new ones for each test."""
    number = next(_numbers)
    made = [await anyio.to_thread.run_sync(Person, synapse, f"{name}{number}") for name in ("bot", "alice", "bob")]
    yield made[0], made[1], made[2]
    for one in made:
        await one.client.close()


@pytest.fixture
def settings(synapse: Synapse, people: tuple[Person, Person, Person], tmp_path: Path) -> MatrixSettings:
    bot, alice, _ = people
    token = tmp_path / "token"
    token.write_text(bot.token)
    token.chmod(0o600)
    return MatrixSettings(homeserver=synapse.url, token_file=str(token), allow=(alice.user_id,))


def serving(manager: SessionManager, model: Doors, settings: MatrixSettings) -> AbstractAsyncContextManager[object]:
    return contract.serving(MatrixChannel("matrix", settings), manager, model)


async def joined(bot: Person, room_id: str) -> None:
    with anyio.fail_after(PATIENCE_S):
        while room_id not in (await bot.client.joined_rooms()).rooms:  # noqa: ASYNC110 - there is no event
            await anyio.sleep(0.05)


async def first_start(manager: SessionManager, model: Doors, settings: MatrixSettings, bot: Person, room: str) -> None:
    """The bot comes into a room, and stops."""
    async with serving(manager, model, settings):
        await joined(bot, room)


async def test_the_bot_comes_when_it_is_invited_and_answers(
    manager: SessionManager, model: Doors, settings: MatrixSettings, people: tuple[Person, Person, Person]
) -> None:
    bot, alice, bob = people
    strange, room = await bob.room_with(bot), await alice.room_with(bot)
    await alice.say(room, "**hello**")  # before it has come
    async with serving(manager, model, settings):
        (answer,) = await alice.hears(bot)
        await joined(bot, room)
    assert strange not in (await bot.client.joined_rooms()).rooms
    assert (answer["content"]["msgtype"], answer["content"]["body"]) == ("m.notice", "echo: **hello**")
    assert answer["content"]["formatted_body"] == "<p>echo: <strong>hello</strong></p>\n"
    session = await manager.get_or_create("matrix", room)
    said = session.messages()[0]
    assert (said.text, said.author) == ("**hello**", alice.user_id)


async def test_what_was_said_while_the_bot_was_away_is_answered_once(
    manager: SessionManager, model: Doors, settings: MatrixSettings, people: tuple[Person, Person, Person]
) -> None:
    bot, alice, _ = people
    room = await alice.room_with(bot)
    await first_start(manager, model, settings, bot, room)
    said = [f"message {number}" for number in range(60)]  # more than one reply of /sync has
    for text in said:
        await alice.say(room, text)
    async with serving(manager, model, settings):
        await alice.hears(bot, 15)
    async with serving(manager, model, settings):
        await alice.hears(bot, 60)
    answers = [one["content"]["body"] for one in alice.heard if one["sender"] == bot.user_id]
    assert answers == [f"echo: {text}" for text in said]
    assert sorted(model.asked) == sorted(said)


async def test_a_thread_is_a_chat_of_its_own_and_is_answered_in_it(
    manager: SessionManager, model: Doors, settings: MatrixSettings, people: tuple[Person, Person, Person]
) -> None:
    bot, alice, _ = people
    room = await alice.room_with(bot)
    async with serving(manager, model, settings):
        root = await alice.say(room, "main")
        await alice.hears(bot, 1)
        relation = {"rel_type": "m.thread", "event_id": root}
        asked = await alice.say(room, "aside", **{"m.relates_to": relation})
        _, answer = await alice.hears(bot, 2)
    assert answer["content"]["m.relates_to"] == {
        **relation,
        "is_falling_back": True,
        "m.in_reply_to": {"event_id": asked},
    }
    chats = [await manager.get_or_create("matrix", chat) for chat in (room, f"{room},{root}")]
    assert [chat.messages()[0].text for chat in chats] == ["main", "aside"]


async def test_in_a_group_the_bot_answers_when_it_is_spoken_to(
    manager: SessionManager, model: Doors, settings: MatrixSettings, people: tuple[Person, Person, Person]
) -> None:
    bot, alice, bob = people
    room = await alice.room_with(bot, bob)
    await bob.client.join(room)
    async with serving(manager, model, settings):
        await joined(bot, room)
        await alice.say(room, "for Bob")
        mention = {"m.mentions": {"user_ids": [bot.user_id]}}
        await bob.say(room, "a stranger's", **mention)
        first = await alice.say(room, f"{bot.user_id}: for the bot", **mention)
        (answer,) = await alice.hears(bot)
        to_answer = {"m.relates_to": {"m.in_reply_to": {"event_id": answer["event_id"]}}}
        await alice.say(room, f"> <{bot.user_id}> echo\n\nand this", **to_answer)
        await alice.hears(bot, 2)
    assert model.asked == ["for the bot", "and this"]
    assert answer["content"]["m.relates_to"] == {"m.in_reply_to": {"event_id": first}}


async def test_an_edited_message_is_answered_anew(
    manager: SessionManager, model: Doors, settings: MatrixSettings, people: tuple[Person, Person, Person]
) -> None:
    bot, alice, _ = people
    room = await alice.room_with(bot)
    async with serving(manager, model, settings):
        first = await alice.say(room, "6 * 7")
        await alice.hears(bot)
        relation = {"m.relates_to": {"rel_type": "m.replace", "event_id": first}}
        await alice.say(room, "* 6 * 8", **relation, **{"m.new_content": {"msgtype": "m.text", "body": "6 * 8"}})
        await alice.hears(bot, 2)
    session = await manager.get_or_create("matrix", room)
    assert [one.text for one in session.messages()] == ["6 * 8", "echo: 6 * 8"]


async def test_images_come_in_and_go_out(
    manager: SessionManager, model: Doors, settings: MatrixSettings, people: tuple[Person, Person, Person]
) -> None:
    bot, alice, _ = people
    image = ImagePart("image/png", base64.b64encode(PIXEL).decode())
    model.replies["what is this?"] = Message.assistant((TextPart("this, larger"), image))
    stored, _ = await alice.client.upload(lambda *_: PIXEL, "image/png", "pixel.png", filesize=len(PIXEL))
    assert isinstance(stored, UploadResponse)
    room = await alice.room_with(bot)
    info = {"mimetype": "image/png", "size": len(PIXEL)}
    sent = {"msgtype": "m.image", "filename": "pixel.png", "url": stored.content_uri, "info": info}
    async with serving(manager, model, settings):
        await alice.say(room, "what is this?", **sent)
        _, shown = await alice.hears(bot, 2)
        await alice.say(room, "too large", **{**sent, "info": {"size": 10**9}})
        await alice.hears(bot, 3)
    session = await manager.get_or_create("matrix", room)
    assert session.messages()[0].content == (TextPart("what is this?"), image)
    assert model.asked[1] == "(The person sent a picture (pixel.png), which you cannot see.)\ntoo large"
    assert getattr(await alice.client.download(mxc=shown["content"]["url"]), "body", None) == PIXEL


async def test_a_long_answer_comes_in_pieces_as_fast_as_the_homeserver_takes_them(
    synapse: Synapse,
    manager: SessionManager,
    model: Doors,
    settings: MatrixSettings,
    people: tuple[Person, Person, Person],
) -> None:
    bot, alice, _ = people
    admin = await anyio.to_thread.run_sync(lambda: synapse.register("admin", is_admin=True))
    await anyio.to_thread.run_sync(synapse.limit, bot.user_id, 1, admin)
    words = " ".join(f"word{number}" for number in range(4_000))
    model.replies["long"] = Message.assistant(words)
    room = await alice.room_with(bot)
    async with serving(manager, model, settings):
        await alice.say(room, "long")
        pieces = await alice.hears(bot, 3)
    assert " ".join(one["content"]["body"] for one in pieces) == words


async def test_what_is_delivered_again_is_answered_once(
    manager: SessionManager, model: Doors, settings: MatrixSettings, people: tuple[Person, Person, Person]
) -> None:
    bot, alice, _ = people
    room = await alice.room_with(bot)
    await first_start(manager, model, settings, bot, room)
    before = await position_of(bot)
    async with serving(manager, model, settings):
        await alice.say(room, "hello")
        await alice.hears(bot)
    assert await position_of(bot) != before
    await position_of(bot, before)  # as if it had been killed before it could say that this was done
    async with serving(manager, model, settings):
        await alice.say(room, "more")
        await alice.hears(bot, 2)
    assert [one["content"]["body"] for one in alice.heard if one["sender"] == bot.user_id] == [
        "echo: hello",
        "echo: more",
    ]
    assert model.asked == ["hello", "more"]


async def position_of(bot: Person, since: str | None = None) -> str:
    """Where the bot goes on after a start; with `since`, it is set."""
    path = f"/_matrix/client/v3/user/{bot.user_id}/account_data/io.github.miniclaw_sessions.position.matrix"
    headers = {"Authorization": f"Bearer {bot.token}"}
    if since is not None:
        (await bot.client.send("PUT", path, json.dumps({"since": since}), headers)).raise_for_status()
    return str((await (await bot.client.send("GET", path, headers=headers)).json())["since"])


async def test_an_answer_that_was_cut_off_is_made_after_the_restart(
    manager: SessionManager, model: Doors, settings: MatrixSettings, people: tuple[Person, Person, Person]
) -> None:
    bot, alice, _ = people
    room = await alice.room_with(bot)
    model.close("slow")
    async with serving(manager, model, settings):
        await alice.say(room, "slow")
        await model.was_asked("slow")
    model.open("slow")
    async with serving(manager, model, settings):
        (answer,) = await alice.hears(bot)
    assert answer["content"]["body"] == "echo: slow"


async def test_an_answer_that_is_refused_for_good_does_not_hold_up_the_others(
    manager: SessionManager, model: Doors, settings: MatrixSettings, people: tuple[Person, Person, Person]
) -> None:
    bot, alice, _ = people
    room, other = await alice.room_with(bot), await alice.room_with(bot)
    model.close("slow")
    with capture_logs() as logs:
        async with serving(manager, model, settings):
            await alice.say(room, "slow")
            await model.was_asked("slow")
            before = await position_of(bot)
            await alice.client.room_kick(room, bot.user_id)
            model.open("slow")
            await alice.say(other, "/help")
            (answer,) = await alice.hears(bot)
            with anyio.fail_after(PATIENCE_S):
                while await position_of(bot) == before:  # noqa: ASYNC110 - there is no event
                    await anyio.sleep(0.05)
    assert [one["detail"] for one in logs if one["action"] == "matrix.refused"] == ["M_FORBIDDEN"]
    assert "formatted_body" not in answer["content"], "what is not the model's is shown to the letter"


async def test_it_goes_on_when_the_homeserver_restarts(
    synapse: Synapse,
    manager: SessionManager,
    model: Doors,
    settings: MatrixSettings,
    people: tuple[Person, Person, Person],
) -> None:
    bot, alice, _ = people
    room = await alice.room_with(bot)
    async with serving(manager, model, settings):
        await alice.say(room, "before")
        await alice.hears(bot)
        await anyio.to_thread.run_sync(synapse.restart)
        await alice.say(room, "after")
        await alice.hears(bot, 2)


async def test_every_message_is_answered_once_through_kill_9(
    settings: MatrixSettings, people: tuple[Person, Person, Person], tmp_path: Path
) -> None:
    bot, alice, _ = people
    room = await alice.room_with(bot)
    environment = {
        "MATRIX_TOKEN": bot.token,
        "MINICLAW_CHANNELS_MATRIX_ALLOW": alice.user_id,
        "MINICLAW_CHANNELS_MATRIX_HOMESERVER": settings.homeserver,
    }
    for kill in range(2):
        async with daemon.serving("matrix", tmp_path, environment):
            await joined(bot, room)
            for number in range(9 if kill == 0 else 0):
                await alice.say(room, f"{number} * 2")
            await alice.hears(bot, 3 + 3 * kill)
    async with daemon.serving("matrix", tmp_path, environment):
        await alice.say(room, "9 * 2")
        answers = await alice.hears(bot, 10)
    assert len({one["event_id"] for one in answers}) == len(answers) == 10
    assert answers[-1]["content"]["body"] == "(offline) The result is 18."


async def test_an_encrypted_room_is_said_to_be_one(
    manager: SessionManager, model: Doors, settings: MatrixSettings, people: tuple[Person, Person, Person]
) -> None:
    bot, alice, _ = people
    room, plain = await alice.room_with(bot), await alice.room_with(bot)
    secret = {
        "algorithm": "m.megolm.v1.aes-sha2",
        "ciphertext": "x",
        "sender_key": "x",
        "session_id": "x",
        "device_id": "x",
    }
    with capture_logs() as logs:
        async with serving(manager, model, settings):
            await joined(bot, room)
            await alice.client.room_send(room, "m.room.encrypted", secret)
            await alice.say(plain, "hello")
            await alice.hears(bot)
    assert [one for one in logs if one["action"] == "matrix.encrypted"]


async def test_wrong_settings_and_a_wrong_token_are_clear_errors(settings: MatrixSettings) -> None:
    with pytest.raises(
        ConfigError, match=r'homeserver is "http://matrix\.example\.org"; set it to an https:// address'
    ):
        MatrixChannel("matrix", msgspec.structs.replace(settings, homeserver="http://matrix.example.org"))
    Path(settings.token_file).write_text("wrong")  # noqa: ASYNC240 - a few bytes
    channel = MatrixChannel("matrix", settings)
    with pytest.raises(Unreachable, match="does not take the access token: M_UNKNOWN_TOKEN"):
        await anext(channel.receive())
    await channel.aclose()
