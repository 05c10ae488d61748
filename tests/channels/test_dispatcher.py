"""The dispatcher: order, parallelism, bounds, duplicates, failures and the end, without any clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint
from structlog.testing import capture_logs

from miniclaw_sessions import Message, SessionManager, SessionSettings
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.events import TurnStopped
from miniclaw_sessions.agent.provider import ModelEvent, Reply, TextDelta
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.channels.base import (
    Accepted,
    Answered,
    Incoming,
    Last,
    NotAnswered,
    Obeyed,
    Outgoing,
    Progress,
    Reason,
    Watch,
    comes_again,
)
from miniclaw_sessions.channels.delivery import Delivery
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.channels.own_chats import OwnChats
from miniclaw_sessions.channels.unseen import file_in
from miniclaw_sessions.config import ChannelSettings
from miniclaw_sessions.core.protocol.messages import TextPart
from miniclaw_sessions.errors import (
    ChatBusy,
    ConfigError,
    DuplicateMessage,
    InvalidKey,
    ManagerClosed,
    MessageStopped,
    MessageUnderWay,
    ModelError,
    NothingToResume,
    StoreCorrupt,
    StoreFull,
    TooManyTurns,
    TurnCutOff,
    TurnTaken,
)
from tests.channels.rooms import PATIENCE_S, Doors, Room
from tests.two_tasks import in_two_tasks

pytestmark = pytest.mark.anyio


async def said_in(manager: SessionManager, channel: str = "room") -> list[str]:
    return [message.text for message in (await manager.get_or_create(channel, 1)).messages()]


def incoming(text: str) -> Incoming:
    """What somebody says who waits for the answer himself."""
    return Incoming("1", Message.user(text), channel="room")


def reason_of(last: Last | None) -> Reason | None:
    assert last is None or isinstance(last, NotAnswered)
    return None if last is None else last.reason


# --- order -----------------------------------------------------------------------------------------------------------


async def test_a_message_is_accepted_then_streamed_then_answered(
    dispatcher: Dispatcher, room: Room, manager: SessionManager
) -> None:
    asked = room.say("hello")
    (last,) = await room.ended(asked)
    assert isinstance(last, Answered)
    assert last.text == "echo: hello"
    assert room.streamed(asked) == "echo: hello"
    assert [type(one) for one in room.sent][:2] == [Accepted, Progress]
    assert room.sent[-1] is last
    assert room.texts() == ["echo: hello"]
    assert await said_in(manager) == ["hello", "echo: hello"]
    await dispatcher.finished()
    assert dispatcher.running == 0


async def test_the_messages_of_a_chat_are_answered_one_after_the_other_in_order(
    dispatcher: Dispatcher, room: Room, model: Doors, manager: SessionManager
) -> None:
    model.close("one")
    first, *others = [room.say(text) for text in ("one", "two", "three")]
    await model.was_asked("one")
    await room.until(lambda: room.was_accepted(first))
    assert (model.asked, dispatcher.running) == (["one"], 3)
    model.open("one")
    await room.ended(first, *others)
    assert room.texts() == ["echo: one", "echo: two", "echo: three"]
    assert await said_in(manager) == ["one", "echo: one", "two", "echo: two", "three", "echo: three"]


@pytest.mark.usefixtures("dispatcher")
async def test_chats_are_answered_at_the_same_time(room: Room, model: Doors) -> None:
    model.close("a", "b")
    slow, also_slow = room.say("a", "1"), room.say("b", "2")
    quick = room.say("c", "3")
    await model.was_asked("a", "b")
    assert (await room.ended(quick))[0].text == "echo: c"
    assert room.last(slow) is room.last(also_slow) is None
    model.open("b")
    await room.ended(also_slow)
    assert room.last(slow) is None
    model.open("a")
    await room.ended(slow)


async def test_two_channels_have_chats_of_their_own(
    dispatcher: Dispatcher, room: Room, model: Doors, manager: SessionManager
) -> None:
    other = Room("other")
    dispatcher.serve(other)
    model.close("here")
    waits, answered = room.say("here"), other.say("there")
    await other.ended(answered)
    assert room.last(waits) is None
    model.open("here")
    await room.ended(waits)
    assert await said_in(manager, channel="other") == ["there", "echo: there"]
    other.close()


async def test_a_channel_may_speak_for_another_ones_chats(
    dispatcher: Dispatcher, room: Room, manager: SessionManager
) -> None:
    del dispatcher
    asked = Incoming("1", Message.user("hello"), channel="telegram")
    room._said.send_nowait(asked)
    await room.ended(asked)
    assert await said_in(manager, channel="telegram") == ["hello", "echo: hello"]


async def test_the_store_has_the_message_before_the_model_is_asked(
    dispatcher: Dispatcher, room: Room, model: Doors, manager: SessionManager
) -> None:
    del dispatcher
    session = await manager.get_or_create("room", "1")
    committed: list[int] = []
    model.on_asked = lambda: committed.append(session.journal.committed_sequence)
    await room.ended(room.say("hello"))
    assert committed == [1]


@pytest.mark.usefixtures("dispatcher")
async def test_a_turn_that_was_left_goes_on_without_a_message(room: Room, manager: SessionManager) -> None:
    session = await manager.get_or_create("room", "1")
    await session.add_message(Message.user("left"))
    go_on, nothing_left = Incoming("1", None), Incoming("1", None)
    room._said.send_nowait(go_on)
    assert (await room.ended(go_on))[0].text == "echo: left"
    room._said.send_nowait(nothing_left)
    (last,) = await room.ended(nothing_left)
    assert isinstance(last, NotAnswered)
    assert isinstance(last.error, NothingToResume)
    assert await said_in(manager) == ["left", "echo: left"]


# --- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [ChannelSettings(max_waiting_per_chat=2)])
async def test_a_chat_beyond_its_bound_is_told_busy_and_others_are_not(
    dispatcher: Dispatcher, room: Room, model: Doors, manager: SessionManager
) -> None:
    model.close("0")
    taken = [room.say(str(number)) for number in range(3)]
    refused = room.say("too many")
    (last,) = await room.ended(refused)
    assert isinstance(last, NotAnswered)
    assert last.reason is Reason.BUSY
    assert isinstance(last.error, ChatBusy)
    assert "busy" in last.text
    assert (await room.ended(room.say("elsewhere", "2")))[0].text == "echo: elsewhere"
    model.open("0")
    assert [last.text for last in await room.ended(*taken)] == ["echo: 0", "echo: 1", "echo: 2"]
    await dispatcher.finished()
    assert (await room.ended(room.say("again")))[0].text == "echo: again"
    assert "too many" not in await said_in(manager)


@pytest.mark.parametrize("limits", [ChannelSettings(max_messages=2)])
async def test_all_chats_together_have_a_bound(dispatcher: Dispatcher, room: Room, model: Doors) -> None:
    model.close("a", "b")
    taken = [room.say("a", "1"), room.say("b", "2")]
    (last,) = await room.ended(room.say("c", "3"))
    assert isinstance(last, NotAnswered)
    assert isinstance(last.error, TooManyTurns)
    assert last.reason is Reason.BUSY
    model.open("a", "b")
    await room.ended(*taken)
    await dispatcher.finished()
    assert (await room.ended(room.say("c", "3")))[0].text == "echo: c"


@pytest.mark.parametrize("limits", [ChannelSettings(max_waiting_per_chat=1)])
async def test_hundreds_beyond_the_bound_are_all_told(dispatcher: Dispatcher, room: Room, model: Doors) -> None:
    model.close("0")
    first, second, *refused = [room.say(str(number)) for number in range(500)]
    await room.until(lambda: sum(isinstance(one, NotAnswered) for one in room.sent) == len(refused))
    assert {reason_of(end) for end in await room.ended(*refused)} == {Reason.BUSY}
    assert dispatcher.running == 2
    model.open("0")
    assert [end.text for end in await room.ended(first, second)] == ["echo: 0", "echo: 1"]


class Crowded(Room):
    """Takes no words for the chat of one person."""

    async def send(self, chat_id: str, outgoing: Outgoing) -> None:
        if chat_id == "flood" and outgoing.text:
            await anyio.sleep_forever()
        await super().send(chat_id, outgoing)


@pytest.mark.parametrize("text", ["hello", "/stop"])
async def test_a_person_who_floods_while_the_network_takes_nothing_holds_up_no_one_else(
    manager: SessionManager, model: Doors, text: str
) -> None:
    crowded, limits = Crowded(), ChannelSettings(max_waiting_per_chat=1)
    model.close("0")
    async with Dispatcher(manager, Assistant(Agent(model)), limits=limits) as dispatcher:
        dispatcher.serve(crowded)
        _, _, *refused = [crowded.say(one, "flood") for one in ["0", "1", *[text] * 200]]
        assert (await crowded.ended(crowded.say("hello", "2")))[0].text == "echo: hello"
        await crowded.until(lambda: sum(crowded.last(one) is None for one in refused) <= 16)
        dispatcher.cut_off(anyio.current_time())
    crowded.close()


# --- duplicates ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("dispatcher")
async def test_a_message_that_is_delivered_again_is_answered_once(
    room: Room, model: Doors, manager: SessionManager
) -> None:
    model.close("first")
    running, waiting = room.say("first", message_id="a"), room.say("second", message_id="b")
    await model.was_asked("first")
    while_running, while_waiting = room.say("first", message_id="a"), room.say("second", message_id="b")
    for last in await room.ended(while_running, while_waiting):
        assert isinstance(last, NotAnswered)
        assert (last.reason, last.text) == (Reason.DUPLICATE, "")
        assert isinstance(last.error, MessageUnderWay)
    model.open("first")
    await room.ended(running, waiting)
    (afterwards,) = await room.ended(room.say("first", message_id="a"))
    assert isinstance(afterwards, NotAnswered)
    assert afterwards.reason is Reason.DUPLICATE
    assert isinstance(afterwards.error, DuplicateMessage)
    assert model.asked == ["first", "second"]
    assert await said_in(manager) == ["first", "echo: first", "second", "echo: second"]


@pytest.mark.usefixtures("dispatcher")
async def test_the_same_id_in_another_chat_and_the_same_words_are_no_duplicates(room: Room, model: Doors) -> None:
    await room.ended(
        room.say("hello", "1", "a"), room.say("hello", "2", "a"), room.say("hello", "1", "b"), room.say("hello", "1")
    )
    assert model.asked == ["hello"] * 4


async def test_a_message_is_known_after_a_restart_and_answered_if_it_was_not(tmp_path: Path) -> None:
    answered_before, model, room = Doors(), Doors(), Room()
    for provider, messages in ((answered_before, ("first",)), (model, ("first", "left"))):
        async with (
            SessionManager(tmp_path / "w") as manager,
            Dispatcher(manager, Assistant(Agent(provider))) as dispatcher,
        ):
            dispatcher.serve(room)
            await room.ended(*(room.say(text, message_id=text) for text in messages))
            if provider is answered_before:  # and another message was only just accepted when the program died
                session = await manager.get_or_create("room", "1")
                await session.add_message(Message.user("left"), idempotency_key="left")
            dispatcher.cut_off(anyio.current_time())
    first, again, left = (one for one in room.sent if isinstance(one, Answered | NotAnswered))
    assert (first.text, left.text) == ("echo: first", "echo: left")
    assert isinstance(again, NotAnswered)
    assert isinstance(again.error, DuplicateMessage)
    assert model.asked == ["left"]
    room.close()


async def test_an_answer_that_is_given_again_names_the_same_files(room: Room, dispatcher: Dispatcher) -> None:
    file = file_in("letter.pdf", b"%PDF-1.7 " + b"x" * 50, 5_000_000)
    assert file is not None
    said = Incoming("1", Message.user((TextPart("look"), file)), "m1", answer_again=True)
    (first,) = await room.ended(room.hear(said))
    await dispatcher.finished()
    (again,) = await room.ended(room.hear(msgspec.structs.replace(said)))
    assert again.text == first.text
    assert first.text.startswith("I cannot open letter.pdf. Please write what matters in it.\n\necho:")


# --- another wording -------------------------------------------------------------------------------------------------


def edit(text: str, message_id: str, replaces: str) -> Incoming:
    return Incoming("1", Message.user(text), message_id, replaces=replaces, answer_again=True)


@pytest.mark.usefixtures("dispatcher")
async def test_each_edit_of_the_newest_message_is_answered_and_no_other(room: Room, manager: SessionManager) -> None:
    for number in 1, 2:
        await room.ended(room.say(f"u{number}", message_id=f"m{number}"))
    edits = [edit("u2.1", "e1", "m2"), edit("u2.2", "e2", "m2"), edit("u2", "e3", "m2")]
    lasts = await room.ended(*map(room.hear, edits))
    assert [last.text for last in lasts] == ["echo: u2.1", "echo: u2.2", "echo: u2"]
    past = [edit("u1.1", "e4", "m1"), edit("u2", "e5", "m2")]  # it has gone on since; no word is another
    assert [reason_of(last) for last in await room.ended(*map(room.hear, past))] == [Reason.DUPLICATE] * 2
    assert await said_in(manager) == ["u1", "echo: u1", "u2", "echo: u2"]


async def test_an_edit_that_is_interrupted_loses_nothing_and_is_answered_when_it_comes_again(tmp_path: Path) -> None:
    class Dying:
        """Before the store has anything of the turn."""

        async def answer(self, *_: object, **__: object) -> TurnStopped:
            raise RuntimeError

    model, room = Doors(), Room()
    model.close("edited")
    async with SessionManager(tmp_path) as manager, Dispatcher(manager, Assistant(Agent(model))) as dispatcher:
        dispatcher.serve(room)
        await room.ended(*[room.say(f"u{number}", message_id=f"m{number}") for number in (1, 2)])
        (last,) = await room.ended(room.hear(msgspec.structs.replace(edit("edited", "e1", "m2"), answerer=Dying())))
        assert reason_of(last) is Reason.FAILED
        await dispatcher.finished()
        assert await said_in(manager) == ["u1", "echo: u1", "u2", "echo: u2"]
        room.hear(edit("edited", "e1", "m2"))
        await model.was_asked("edited")
        dispatcher.cut_off(anyio.current_time())
    room.close()
    model.open("edited")
    async with SessionManager(tmp_path) as manager, Dispatcher(manager, Assistant(Agent(model))) as dispatcher:
        dispatcher.serve(room := Room())
        assert [last.text for last in await room.ended(room.hear(edit("edited", "e1", "m2")))] == ["echo: edited"]
        assert await said_in(manager) == ["u1", "echo: u1", "edited", "echo: edited"]
        dispatcher.cut_off(anyio.current_time())
    room.close()


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("dispatcher")
async def test_a_turn_that_fails_is_told_in_one_sentence_without_secrets_and_the_chat_goes_on(
    room: Room, manager: SessionManager
) -> None:
    with capture_logs() as records:
        failed, answered = await room.ended(room.say("fail"), room.say("hello"))
    assert isinstance(failed, NotAnswered)
    assert failed.reason is Reason.FAILED
    assert isinstance(failed.error, ModelError)
    assert failed.text == "I could not answer, because the model failed. Your message is kept; please ask again."
    assert answered.text == "echo: hello"
    (record,) = [record for record in records if record["action"] == "turn.failed"]
    assert (record["session_id"], record["error_type"]) == ("room_1", "ModelError")
    assert "sk-secret" not in repr(records) + repr(room.texts())
    assert await said_in(manager) == ["fail", "hello", "echo: hello"]


@pytest.mark.usefixtures("dispatcher")
async def test_a_chat_that_cannot_be_one_is_told_so(room: Room) -> None:
    (last,) = await room.ended(room.say("hello", ""))
    assert isinstance(last, NotAnswered)
    assert isinstance(last.error, InvalidKey)
    assert last.text


@pytest.mark.usefixtures("dispatcher")
async def test_a_message_that_cannot_be_stored_is_told_so(room: Room, model: Doors) -> None:
    (last,) = await room.ended(room.say("x" * 2**24))
    assert reason_of(last) is Reason.FAILED
    assert last.text.startswith("I cannot take this message")
    assert not room.was_accepted(last.incoming)
    assert not model.asked


@pytest.mark.usefixtures("dispatcher")
async def test_typing_is_shown_while_a_chat_is_answered(room: Room, model: Doors) -> None:
    model.close("hello")
    asked = room.say("hello", "5")
    await model.was_asked("hello")
    await room.until(lambda: room.typing_in == ["5"])
    model.open("hello")
    await room.until(lambda: room.typing_in == [])
    await room.ended(asked)


async def test_typing_that_fails_harms_nothing(dispatcher: Dispatcher) -> None:
    class Clumsy(Room):
        @asynccontextmanager
        async def typing(self, chat_id: str) -> AsyncIterator[None]:
            if chat_id:
                raise ConnectionError(chat_id)
            yield

    clumsy = Clumsy("clumsy")
    dispatcher.serve(clumsy)
    assert (await clumsy.ended(clumsy.say("hello")))[0].text == "echo: hello"
    clumsy.close()


class Mute(Room):
    """Cannot send until it is mended; `tried` is what it was to send."""

    def __init__(self) -> None:
        super().__init__("mute")
        self.tried: list[Outgoing] = []
        self.is_mended = False

    async def send(self, chat_id: str, outgoing: Outgoing) -> None:
        self.tried.append(outgoing)
        if not self.is_mended:
            raise ConnectionError("sk-secret")
        await super().send(chat_id, outgoing)


async def test_a_channel_that_cannot_send_loses_no_answer(
    dispatcher: Dispatcher, room: Room, manager: SessionManager
) -> None:
    mute = Mute()
    dispatcher.serve(mute)
    with capture_logs() as records:
        lost = mute.say("lost")
        with anyio.fail_after(PATIENCE_S):
            while not any(isinstance(one, Answered) for one in mute.tried):
                await checkpoint()
    mute.is_mended = True
    assert (await mute.ended(mute.say("hello")))[0].text == "echo: hello"
    assert (await room.ended(room.say("hello")))[0].text == "echo: hello"
    assert [type(one) for one in mute.tried if one.incoming is lost] == [Accepted, Answered]  # no use streaming
    assert await said_in(manager, channel="mute") == ["lost", "echo: lost", "hello", "echo: hello"]
    assert {record["action"] for record in records if record["log_level"] != "info"} == {"channel.send_failed"}
    (detail,) = {record["detail"] for record in records if record["action"] == "channel.send_failed"}
    assert detail.startswith(f"ConnectionError in {__name__}, line "), "a channel's own words may show secrets"
    assert "secret" not in repr(records)
    mute.close()


async def test_a_send_that_hangs_is_given_up(manager: SessionManager, model: Doors) -> None:
    class Stuck(Room):
        async def send(self, chat_id: str, outgoing: Outgoing) -> None:
            if outgoing.incoming.message_id == "stuck":
                await anyio.sleep_forever()
            await super().send(chat_id, outgoing)

    stuck = Stuck()
    async with Dispatcher(manager, Assistant(Agent(model)), send_timeout_s=0.01) as dispatcher:
        dispatcher.serve(stuck)
        with capture_logs() as records:
            stuck.say("one", message_id="stuck")
            assert (await stuck.ended(stuck.say("two")))[0].text == "echo: two"
        stuck.hang_up()
    details = {record["detail"] for record in records if record["action"] == "channel.send_failed"}
    assert details == {"it took longer than 0.01 s"}
    stuck.close()


@pytest.mark.parametrize("timeout_s", [None, "60"])
async def test_a_channel_that_gives_no_number_of_seconds_for_sending_stops_only_itself(
    manager: SessionManager, model: Doors, timeout_s: Any
) -> None:
    class Wrong(Room):
        send_timeout_s = timeout_s

    wrong, room = Wrong("wrong"), Room()
    with capture_logs() as records:
        async with Dispatcher(manager, Assistant(Agent(model))) as dispatcher:
            dispatcher.serve(wrong)
            dispatcher.serve(room)
            wrong.say("hello")
            await model.was_asked("hello")
            await dispatcher.finished()
            assert (await room.ended(room.say("hello")))[0].text == "echo: hello"
            wrong.hang_up()
            room.hang_up()
    assert {record["channel"] for record in records if record["action"] == "channel.send_failed"} == {"wrong"}
    wrong.close()
    room.close()


async def test_a_channel_that_cannot_look_at_its_chats_is_tried_again_and_stops_only_itself(
    manager: SessionManager, model: Doors
) -> None:
    class Blind(Room):
        tries = 0

        def attach(self, _: OwnChats) -> None:
            self.tries += 1
            if self.tries == 1:
                raise SystemExit("my own mistake")

    blind, room = Blind("blind"), Room()
    async with Dispatcher(manager, Assistant(Agent(model)), backoff_s=(0.001, 0.001)) as dispatcher:
        dispatcher.serve(blind)
        dispatcher.serve(room)
        assert (await room.ended(room.say("hello")))[0].text == "echo: hello"
        assert (await blind.ended(blind.say("hello")))[0].text == "echo: hello"
        blind.hang_up()
        room.hang_up()
    assert blind.tries == 2
    blind.close()
    room.close()


async def test_a_channel_may_say_how_long_sending_takes_and_is_closed_when_all_is_sent(
    manager: SessionManager, model: Doors
) -> None:
    class Slow(Room):
        send_timeout_s = PATIENCE_S

        async def send(self, chat_id: str, outgoing: Outgoing) -> None:
            await anyio.sleep(0.005)
            await super().send(chat_id, outgoing)

        async def aclose(self) -> None:
            assert self.texts() == ["echo: hello"]
            self.close()
            raise ConnectionError("was closed before")

    slow = Slow()
    async with Dispatcher(manager, Assistant(Agent(model)), send_timeout_s=0.0001) as dispatcher:
        dispatcher.serve(slow)
        slow.say("hello")
        slow.hang_up()
    with pytest.raises(anyio.ClosedResourceError):
        slow.say("too late")


async def test_a_channel_that_gives_a_reason_of_its_own_is_quoted(dispatcher: Dispatcher, room: Room) -> None:
    with capture_logs() as records:
        room.fail(ConfigError("the token is wrong"))
        await room.ended(room.say("hello"))
    assert [one["detail"] for one in records if one["action"] == "channel.failed"] == ["the token is wrong"]
    assert dispatcher.running <= 1


async def test_a_channel_that_dies_is_started_again_and_the_others_go_on(dispatcher: Dispatcher, room: Room) -> None:
    dying = Room("dying")
    dispatcher.serve(dying)
    with capture_logs() as records:
        before = dying.say("before")
        for _ in range(3):
            dying.fail(ConnectionError("sk-secret"))
        after = dying.say("after")
        assert [last.text for last in await dying.ended(before, after)] == ["echo: before", "echo: after"]
    assert (await room.ended(room.say("hello")))[0].text == "echo: hello"
    assert dying.begun == 4
    failures = [record for record in records if record["action"] == "channel.failed"]
    assert [(one["channel"], one["error_type"]) for one in failures] == [("dying", "ConnectionError")] * 3
    assert "secret" not in repr(records)
    dying.close()


async def test_a_channel_that_cancels_itself_or_exits_stops_only_itself(dispatcher: Dispatcher, room: Room) -> None:
    class Leaking(Room):
        """Its library leaks a cancellation that nobody asked for wherever it can."""

        is_leaking = False

        async def send(self, chat_id: str, outgoing: Outgoing) -> None:
            if self.is_leaking:
                raise asyncio.CancelledError
            await super().send(chat_id, outgoing)

        @asynccontextmanager
        async def typing(self, chat_id: str) -> AsyncIterator[None]:
            if self.is_leaking:
                raise SystemExit(chat_id)
            async with super().typing(chat_id):
                yield

        async def aclose(self) -> None:
            raise asyncio.CancelledError

    leaking = Leaking("leaking")
    dispatcher.serve(leaking)
    with capture_logs() as records:
        for error in asyncio.CancelledError(), SystemExit(1), BaseExceptionGroup("", [SystemExit(1)]):
            leaking.fail(error)
        assert (await leaking.ended(leaking.say("hello")))[0].text == "echo: hello"
        leaking.is_leaking = True
        leaking.say("again")
        await dispatcher.finished()
        leaking.is_leaking = False
        assert (await leaking.ended(leaking.say("and again")))[0].text == "echo: and again"
    assert (await room.ended(room.say("hello")))[0].text == "echo: hello"
    failures = [record["detail"] for record in records if record["action"] == "channel.failed"]
    assert [detail.split()[-1] for detail in failures] == ["CancelledError", "SystemExit", "BaseExceptionGroup"]
    leaking.close()


async def test_the_time_until_a_channel_is_started_again_doubles_up_to_a_bound_and_begins_anew(
    manager: SessionManager, model: Doors
) -> None:
    dying = Room("dying")
    with capture_logs() as records:
        async with Dispatcher(manager, Assistant(Agent(model)), backoff_s=(0.001, 0.003)) as dispatcher:
            dispatcher.serve(dying)
            for _ in range(3):
                dying.fail(OSError())
            dying.say("hello")
            dying.fail(OSError())
            dying.hang_up()
    waited = [record["retry_in_s"] for record in records if record["action"] == "channel.failed"]
    assert waited == [0.001, 0.002, 0.003, 0.001]
    dying.close()


async def test_a_dispatcher_ends_when_its_channels_have(manager: SessionManager, model: Doors) -> None:
    room = Room()
    with anyio.fail_after(PATIENCE_S):
        async with Dispatcher(manager, Assistant(Agent(model))) as dispatcher:
            dispatcher.serve(room)
            asked = room.say("hello")
            room.hang_up()
    assert (room.begun, room.last(asked)) == (1, room.sent[-1])
    assert room.texts() == ["echo: hello"]
    with pytest.raises(ManagerClosed):
        dispatcher.serve(room)
    room.close()


async def test_who_waits_for_an_answer_is_let_go_when_the_dispatcher_fails(
    manager: SessionManager, model: Doors
) -> None:
    model.close("asked")
    dispatcher = Dispatcher(manager, Assistant(Agent(model)))
    given: list[Delivery] = []

    async def fail() -> None:
        async with dispatcher:
            given.extend((dispatcher.ask(incoming("asked")), dispatcher.ask(incoming("waiting"))))
            await model.was_asked("asked")
            given.append(dispatcher.ask(Incoming("2", Message.user("not begun"), channel="room")))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    with anyio.fail_after(PATIENCE_S):
        for delivery in given:
            outgoing = [one async for one in delivery]
            assert isinstance(outgoing[-1], NotAnswered)
            assert (outgoing[-1].reason, type(outgoing[-1].error)) == (Reason.CUT_OFF, TurnCutOff)
        await dispatcher.finished()
    assert dispatcher.running == 0
    assert not dispatcher.stop("room_1")
    with pytest.raises(ManagerClosed):
        dispatcher.ask(incoming("too late"))


async def test_one_task_enters_a_dispatcher_and_another_leaves_it(manager: SessionManager, model: Doors) -> None:
    room = Room()
    async with in_two_tasks(Dispatcher(manager, Assistant(Agent(model)))) as dispatcher:
        dispatcher.serve(room)
        asked = room.say("hello")
        room.hang_up()
    assert (room.last(asked), room.texts()) == (room.sent[-1], ["echo: hello"])
    room.close()


async def test_a_defect_that_ends_a_dispatchers_task_is_told_who_supervises_it(
    manager: SessionManager, model: Doors
) -> None:
    class Defect(Watch):
        def ended(self, channel: str, last: Last) -> None:
            raise ZeroDivisionError(channel, last)

    dispatcher = Dispatcher(manager, Assistant(Agent(model)), watch=Defect())
    await dispatcher.__aenter__()
    dispatcher.ask(incoming("hello"))
    with anyio.fail_after(PATIENCE_S), pytest.raises(ZeroDivisionError):
        await dispatcher.supervise()
    with pytest.raises(ZeroDivisionError):
        await dispatcher.__aexit__(None, None, None)


# --- the end ---------------------------------------------------------------------------------------------------------


async def test_nobody_waits_any_more_and_what_was_said_behind_it_is_answered(
    dispatcher: Dispatcher, model: Doors, manager: SessionManager
) -> None:
    model.close("slow", "not yet")
    slow, not_yet, behind = (dispatcher.ask(incoming(text)) for text in ("slow", "not yet", "behind"))
    await model.was_asked("slow")
    not_yet.abandon(0)
    slow.abandon(0)
    last = [outgoing async for outgoing in behind][-1]
    assert last.text == "echo: behind"
    assert model.asked == ["slow", "behind"]
    assert await said_in(manager) == ["slow", "behind", "echo: behind"]  # what was not begun was not accepted


async def test_an_answer_goes_on_for_a_while_when_nobody_waits(
    dispatcher: Dispatcher, model: Doors, manager: SessionManager
) -> None:
    model.close("slow")
    slow = dispatcher.ask(incoming("slow"))
    await model.was_asked("slow")
    slow.abandon(PATIENCE_S)
    model.open("slow")
    await dispatcher.finished()
    assert await said_in(manager) == ["slow", "echo: slow"]


async def test_stopping_lets_everything_that_waits_finish_in_time(
    dispatcher: Dispatcher, room: Room, model: Doors, manager: SessionManager
) -> None:
    model.close("one")
    taken = [room.say("one"), room.say("two")]
    await model.was_asked("one")
    dispatcher.cut_off(anyio.current_time() + PATIENCE_S)
    with pytest.raises(ManagerClosed):
        dispatcher.serve(room)
    unheard = room.say("too late")
    model.open("one")
    await dispatcher.finished()
    assert [last.text for last in await room.ended(*taken)] == ["echo: one", "echo: two"]
    assert room.last(unheard) is None
    assert await said_in(manager) == ["one", "echo: one", "two", "echo: two"]


async def test_stopping_at_once_keeps_what_was_accepted_and_tells_the_rest(
    dispatcher: Dispatcher, room: Room, model: Doors, manager: SessionManager
) -> None:
    model.close("one")
    taken = [room.say("one"), room.say("two")]
    await model.was_asked("one")
    await room.until(lambda: room.was_accepted(taken[0]))
    dispatcher.cut_off(anyio.current_time())
    with anyio.fail_after(PATIENCE_S):
        await dispatcher.finished()
    assert [reason_of(end) for end in await room.ended(*taken)] == [Reason.CUT_OFF] * 2
    assert [room.was_accepted(one) for one in taken] == [True, False]
    assert await said_in(manager) == ["one"]


STORE = SessionSettings(store="jsonl:")  # opens faster than others


async def play_and_end(directory: Path, told: int, steps: int, *, hard: bool) -> tuple[Room, list[Incoming], int]:
    """A lively conversation that is stopped, or broken off, so many steps of the event loop after so much was told."""
    room = Room()
    sent = [room.say(f"{number}", str(number % 2), f"id{number}") for number in range(4)]
    async with SessionManager(directory, settings=STORE) as manager:
        with anyio.CancelScope() as scope:
            async with Dispatcher(manager, Assistant(Agent(Doors()))) as dispatcher:
                dispatcher.serve(room)
                await room.until(lambda: len(room.sent) >= told or all(map(room.last, sent)))
                for _ in range(steps):
                    await checkpoint()
                if hard:
                    scope.cancel()
                else:
                    dispatcher.cut_off(anyio.current_time())
        assert dispatcher.running == 0
    unheard = room._heard.statistics().current_buffer_used
    room.close()
    return room, sent, unheard


@pytest.mark.proof
@pytest.mark.parametrize("hard", [False, True])
async def test_ending_at_any_point_loses_nothing_that_was_accepted(tmp_path: Path, hard: bool) -> None:
    seen: set[tuple[bool, Any]] = set()
    for told in range(20):  # each of the four messages is told of at most five times
        for steps in (0, 2, 7):
            directory = tmp_path / f"{told}-{steps}"
            room, sent, unheard = await play_and_end(directory, told, steps, hard=hard)
            async with SessionManager(directory, settings=STORE) as reopened:
                sessions = [await reopened.find(summary.session_id) for summary in await reopened.list()]
                everything = [message.text for session in sessions for message in session.messages()]
            assert hard or sum(room.last(one) is None for one in sent) == unheard  # who is heard is told
            for number, one in enumerate(sent):
                last = room.last(one)
                seen.add((room.was_accepted(one), type(last)))
                assert everything.count(f"{number}") <= 1
                assert not room.was_accepted(one) or f"{number}" in everything
                assert not isinstance(last, Answered) or everything.count(f"echo: {number}") == 1
    assert {end for _, end in seen} >= {Answered, type(None) if hard else NotAnswered}
    assert {is_accepted for is_accepted, _ in seen} == {False, True}


async def test_a_turn_that_is_slow_to_let_go_breaks_nothing(manager: SessionManager) -> None:
    may_end = anyio.Event()

    class Clinging(Doors):
        async def generate(
            self, messages: Sequence[Message], tools: Sequence[Tool]
        ) -> AsyncGenerator[ModelEvent, None]:
            del messages, tools
            try:
                yield TextDelta("x")
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await may_end.wait()

    room = Room()
    with anyio.fail_after(PATIENCE_S):
        async with Dispatcher(manager, Assistant(Agent(Clinging())), last_words_s=0.0) as dispatcher:
            dispatcher.serve(room)
            said = room.say("one")
            await room.until(lambda: room.streamed(said) == "x")
            dispatcher.cut_off(anyio.current_time())
            for _ in range(20):
                await checkpoint()
            may_end.set()
            await dispatcher.finished()
    room.close()
    assert await said_in(manager) == ["one"]


async def test_a_second_order_to_stop_shortens_what_the_first_one_allowed_to_be_sent(manager: SessionManager) -> None:
    is_stuck = anyio.Event()

    class Stuck(Room):
        async def send(self, chat_id: str, outgoing: Outgoing) -> None:
            del chat_id, outgoing
            is_stuck.set()
            await anyio.sleep_forever()

    room = Stuck()
    with anyio.fail_after(PATIENCE_S):
        async with Dispatcher(manager, Assistant(Agent(Doors())), last_words_s=100 * PATIENCE_S) as dispatcher:
            dispatcher.serve(room)
            room.say("one")
            await is_stuck.wait()
            dispatcher.cut_off(anyio.current_time())
            dispatcher.cut_off(anyio.current_time(), last_words_s=0.0)
            await dispatcher.finished()
    room.close()
    assert await said_in(manager) == ["one", "echo: one"]


async def test_any_number_of_tasks_may_wait_for_the_end(dispatcher: Dispatcher, room: Room, model: Doors) -> None:
    model.close("one")
    room.say("one")
    await model.was_asked("one")
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(dispatcher.finished)
                await checkpoint()
            model.open("one")
    assert dispatcher.running == 0


# --- stopping --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["/stop", " /STOP\n"])
@pytest.mark.usefixtures("dispatcher")
async def test_stop_said_in_a_chat_ends_the_answer_and_what_waits_there(
    room: Room, model: Doors, manager: SessionManager, command: str
) -> None:
    model.close("slow", "elsewhere")
    slow, waits, elsewhere = room.say("slow"), room.say("waits"), room.say("elsewhere", "2")
    await model.was_asked("slow", "elsewhere")
    stop = room.say(command)
    ended, not_begun, obeyed = await room.ended(slow, waits, stop)
    assert ended.text == "echo:  (stopped)"
    assert isinstance(ended, Answered)
    assert reason_of(not_begun) is Reason.STOPPED
    assert isinstance(obeyed, Obeyed)
    assert obeyed.stopped
    assert obeyed.text == ""
    assert await said_in(manager) == ["slow", "echo: "]
    assert room.last(elsewhere) is None  # another chat's answer goes on
    model.open("elsewhere")
    await room.ended(elsewhere)
    assert (await room.ended(room.say("next")))[0].text == "echo: next"


@pytest.mark.usefixtures("dispatcher")
async def test_stop_says_so_where_there_is_nothing_to_stop(room: Room, manager: SessionManager) -> None:
    assert (await room.ended(room.say("/stop")))[0].text == "There is nothing to stop."
    assert await said_in(manager) == []


async def test_a_chat_is_stopped_by_its_session_id(dispatcher: Dispatcher, model: Doors) -> None:
    model.close("slow")
    slow = dispatcher.ask(incoming("slow"))
    await model.was_asked("slow")
    assert dispatcher.stop("room_1")
    last = [outgoing async for outgoing in slow][-1]
    assert isinstance(last, Answered)
    assert isinstance(last.event, TurnStopped)
    assert not dispatcher.stop("room_1")


async def test_stop_also_ends_what_waits_behind_a_turn_that_came_from_elsewhere(
    dispatcher: Dispatcher, model: Doors, manager: SessionManager
) -> None:
    model.close("elsewhere", "waits")
    session = await manager.get_or_create("room", 1)
    ends: list[Any] = []

    async def answer() -> None:
        ends.append(await dispatcher.assistant.answer(session, Message.user("elsewhere")))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        await model.was_asked("elsewhere")
        waits = dispatcher.ask(incoming("waits"))
        await anyio.wait_all_tasks_blocked()
        assert dispatcher.stop("room_1")
        model.open("waits")
        with anyio.fail_after(PATIENCE_S):
            last = [outgoing async for outgoing in waits][-1]
    assert isinstance(last, NotAnswered)
    assert last.reason is Reason.STOPPED
    assert isinstance(ends[0], TurnStopped)
    assert model.asked == ["elsewhere"]


def streamed(outgoings: Sequence[Outgoing]) -> list[str]:
    return [one.event.text for one in outgoings if isinstance(one, Progress) and isinstance(one.event, TextDelta)]


async def test_a_slow_reader_gets_everything_that_was_said(dispatcher: Dispatcher, model: Doors) -> None:
    del model
    asked = dispatcher.ask(incoming("hello"))
    await dispatcher.finished()  # before anything is read
    outgoings = [outgoing async for outgoing in asked]
    assert isinstance(outgoings[0], Accepted)
    assert streamed(outgoings) == ["echo: hello"]  # as one piece
    assert outgoings[-1].text == "echo: hello"


async def test_the_pieces_that_a_slow_reader_gets_are_the_beginning_of_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("miniclaw_sessions.channels.delivery.MAX_UNREAD_CHARACTERS", 3)
    asked = incoming("hello")
    slow = Delivery(asked)
    said = ["It is ", "not ", "true."]
    for text in said[:2]:
        slow.put(Progress(asked, TextDelta(text)))
    first = await anext(slow)
    slow.put(Progress(asked, TextDelta(said[2])))  # he is as fast as the model now
    slow.put(NotAnswered(asked, Reason.CUT_OFF, TurnCutOff()))
    assert "".join(said).startswith("".join(streamed([first, *[one async for one in slow]])))


async def test_what_nobody_reads_is_bounded_and_the_end_is_told(manager: SessionManager) -> None:
    class Talker(Doors):
        async def generate(
            self, messages: Sequence[Message], tools: Sequence[Tool]
        ) -> AsyncGenerator[ModelEvent, None]:
            del messages, tools
            for _ in range(100):
                yield TextDelta("word " * 5000)
            yield Reply(Message.assistant("enough"))

    async with Dispatcher(manager, Assistant(Agent(Talker()))) as dispatcher:
        asked = dispatcher.ask(incoming("hello"))
        await dispatcher.finished()
        outgoings = [outgoing async for outgoing in asked]
        assert sum(map(len, streamed(outgoings))) < 2 * 2**20
        assert outgoings[-1].text == "enough"


# --- what a network delivers again -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "error", "again"),
    [
        (Reason.CUT_OFF, TurnCutOff(), True),
        (Reason.DUPLICATE, MessageUnderWay("its answer is on the way"), True),
        (Reason.FAILED, StoreFull("no space left"), True),
        (Reason.FAILED, TurnTaken("room_1"), True),
        (Reason.DUPLICATE, DuplicateMessage("room_1", "7", "entry"), False),
        (Reason.STOPPED, MessageStopped("stopped"), False),
        (Reason.BUSY, ChatBusy("21 wait"), False),
        (Reason.FAILED, StoreCorrupt("damaged"), False),
        (Reason.FAILED, ModelError("overloaded"), False),
    ],
)
def test_a_message_that_is_not_answered_comes_again_or_its_person_is_told(
    reason: Reason, error: Exception, *, again: bool
) -> None:
    last = NotAnswered(Incoming("1", Message.user("hello")), reason, error)
    assert comes_again(last) is again
    assert again or bool(last.text) is (reason not in {Reason.STOPPED, Reason.DUPLICATE})


async def test_what_goes_on_in_another_message_is_stored_and_answered_with_it(
    dispatcher: Dispatcher, room: Room, model: Doors, manager: SessionManager
) -> None:
    async def goes_on() -> bool:
        assert await said_in(manager, channel="room") == ["one"], "the store has it"
        return True

    async def ends() -> bool:
        return False

    first = Incoming("1", Message.user("one"), message_id="1", goes_on=goes_on)
    last = Incoming("1", Message.user("two"), message_id="2", goes_on=ends)
    for one in (first, last):
        room.hear(one)
    kept, answered = await room.ended(first, last)
    assert isinstance(kept, NotAnswered)
    assert (kept.reason, kept.text, answered.text) == (Reason.DUPLICATE, "", "echo: two")
    assert room.was_accepted(first)
    assert model.asked == ["two"]
    assert await said_in(manager, channel="room") == ["one", "two", "echo: two"]
    assert dispatcher.running <= 1
