"""Commands that people say in a chat, understood in one place for every network; and who may speak at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from structlog.testing import capture_logs

from miniclaw_sessions import Message, SessionManager, SessionSettings
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.channels.allowed import Allowed, AllowSettings
from miniclaw_sessions.channels.base import Answered, Incoming, NotAnswered, Obeyed, Reason
from miniclaw_sessions.channels.commands import COMMANDS, Command, CommandCall, command_in
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.core.protocol.entries import COMMAND, SUSPENDED, Entry, MessageEntry
from miniclaw_sessions.core.protocol.messages import ImagePart, Role, TextPart
from miniclaw_sessions.core.session.unit import Unit
from miniclaw_sessions.errors import ModelError, NothingToResume
from miniclaw_sessions.service.api.context import Context
from miniclaw_sessions.service.api.messages import AppendEntries, append_entries
from miniclaw_sessions.service.client.transport import LocalTransport
from tests.channels.rooms import Doors, Room

pytestmark = pytest.mark.anyio


async def said_in(manager: SessionManager) -> list[str]:
    return [message.text for message in (await manager.get_or_create("room", 1)).messages()]


async def everything(manager: SessionManager) -> list[str]:
    transcript = await (await manager.get_or_create("room", 1)).tree.get_transcript()
    return [entry.message.text for entry in transcript.entries if isinstance(entry, MessageEntry)]


# --- /new ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("dispatcher")
async def test_new_begins_anew_and_nothing_is_lost(room: Room, manager: SessionManager) -> None:
    _, obeyed, after = await room.ended(room.say("one"), room.say("/new"), room.say("two"))
    assert isinstance(obeyed, Obeyed)
    assert [obeyed.text, after.text] == ["We begin anew.", "echo: two"]
    assert await said_in(manager) == ["two", "echo: two"]
    assert await everything(manager) == ["one", "echo: one", "two", "echo: two"]


async def test_new_that_is_delivered_again_does_not_leave_what_was_said_since(
    dispatcher: Dispatcher, room: Room, manager: SessionManager
) -> None:
    await room.ended(room.say("one"), room.say("/new", message_id="7"), room.say("two"))
    await dispatcher.finished()
    (again,) = await room.ended(room.say("/new", message_id="7"))
    assert await said_in(manager) == ["two", "echo: two"]
    assert isinstance(again, NotAnswered)
    assert again.reason is Reason.DUPLICATE
    assert await said_in(manager) == ["two", "echo: two"]


async def test_each_new_is_found_again_on_whatever_branch_it_began(
    dispatcher: Dispatcher, room: Room, manager: SessionManager, model: Doors
) -> None:
    words = {"1": "one", "2": "/new", "3": "two", "4": "/new", "5": "three"}
    for key, text in words.items():
        await room.ended(room.say(text, message_id=key))
    await dispatcher.finished()
    again = await room.ended(*(room.say(words[key], message_id=key) for key in "2345"))
    assert [one.reason for one in again if isinstance(one, NotAnswered)] == [Reason.DUPLICATE] * 4
    await room.ended(room.say("four", message_id="6"))
    assert await said_in(manager) == ["three", "echo: three", "four", "echo: four"]
    assert model.asked == ["one", "two", "three", "four"]


@pytest.mark.usefixtures("dispatcher")
async def test_a_command_is_no_duplicate_for_what_somebody_else_has_written_about_it(
    room: Room, manager: SessionManager
) -> None:
    await room.ended(room.say("one"))
    session = await manager.get_or_create("room", 1)
    for kind, key in ((COMMAND, None), (SUSPENDED, "7"), ("mine", None)):
        body = {"type": "custom", "custom_type": kind, "data": {"word": "/new", "key": "7", "idempotency_key": "7"}}
        wanted = AppendEntries(session_id=session.session_id, body=body, idempotency_key=key)
        await LocalTransport(Context(manager)).call(append_entries, wanted)
    (obeyed,) = await room.ended(room.say("/new", message_id="7"))
    assert isinstance(obeyed, Obeyed)
    assert await said_in(manager) == []


@pytest.mark.usefixtures("dispatcher")
async def test_what_stands_behind_new_is_the_first_that_is_said(room: Room, manager: SessionManager) -> None:
    text = "/new what about Rome?"
    (answered,) = (await room.ended(room.say("one"), room.say(text, message_id="7")))[1:]
    (again,) = await room.ended(room.say(text, message_id="7"))
    assert isinstance(again, NotAnswered)
    assert [answered.text, again.reason] == ["echo: what about Rome?", Reason.DUPLICATE]
    assert await said_in(manager) == ["what about Rome?", "echo: what about Rome?"]
    image = ImagePart("image/png", url="https://example.org/a.png")
    picture = Message(Role.USER, (TextPart("/new what is this?"), image))
    await room.ended(room.hear(Incoming("1", picture)))
    session = await manager.get_or_create("room", 1)
    assert session.messages()[0].content == (TextPart("what is this?"), image)


@asynccontextmanager
async def two_gateways(url: str, tmp_path: Path, model: Doors) -> AsyncIterator[list[tuple[SessionManager, Room]]]:
    async with AsyncExitStack() as stack:
        gateways = []
        for name in ("a", "b"):
            manager = await stack.enter_async_context(SessionManager(tmp_path / name, store=url))
            dispatcher = await stack.enter_async_context(Dispatcher(manager, Assistant(Agent(model))))
            stack.callback(dispatcher.cut_off, 0.0)
            room = Room()
            stack.callback(room.close)
            dispatcher.serve(room)
            gateways.append((manager, room))
        yield gateways


async def test_new_waits_for_the_answer_that_another_gateway_gives(
    postgresql_url: str, tmp_path: Path, model: Doors
) -> None:
    model.close("slow")
    async with two_gateways(postgresql_url, tmp_path, model) as ((manager, a), (_, b)):
        slow = a.say("slow")
        await model.was_asked("slow")
        new = b.say("/new")
        for text in ("meanwhile", "and again"):
            await b.ended(b.say(text, chat_id="2"))
        model.open("slow")
        await a.ended(slow)
        await b.ended(new)
        await b.ended(b.say("two"))
        await a.ended(a.say("three"))
        assert await said_in(manager) == ["two", "echo: two", "three", "echo: three"]


async def test_new_that_two_gateways_are_given_leaves_nothing_that_was_said_since(
    postgresql_url: str, tmp_path: Path, model: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, about_to, may = Unit.save, anyio.Event(), anyio.Event()
    async with two_gateways(postgresql_url, tmp_path, model) as ((manager, a), (other, b)):
        await a.ended(a.say("one"))
        home = (await other.get_or_create("room", 1)).journal.home

        async def late(unit: Unit, **conditions: Any) -> list[Entry]:
            if unit.journal.home is home and not may.is_set():
                about_to.set()
                await may.wait()
            return await save(unit, **conditions)

        monkeypatch.setattr(Unit, "save", late)
        new = b.say("/new", message_id="7")
        await about_to.wait()
        await a.ended(a.say("/new", message_id="7"), a.say("important"))
        may.set()
        await b.ended(new)
        await a.ended(a.say("more"))
        assert await said_in(manager) == ["important", "echo: important", "more", "echo: more"]


async def test_new_empties_the_chat_where_no_transcript_is_kept(tmp_path: Path, room: Room) -> None:
    async with (
        SessionManager(tmp_path, settings=SessionSettings(store="none:")) as manager,
        Dispatcher(manager, Assistant(Agent(Doors()))) as dispatcher,
    ):
        dispatcher.serve(room)
        ended = await room.ended(room.say("one"), room.say("/new"), room.say("two"))
        assert [one.text for one in ended] == ["echo: one", "We begin anew.", "echo: two"]
        assert await said_in(manager) == ["two", "echo: two"]
        dispatcher.cut_off(anyio.current_time())


async def test_who_may_not_have_been_told_that_it_begins_anew_is_told_again(dispatcher: Dispatcher, room: Room) -> None:
    new = Incoming("1", Message.user("/new"), message_id="7", answer_again=True)
    for _ in range(2):
        (obeyed,) = await room.ended(room.hear(new := msgspec.structs.replace(new)))
        assert isinstance(obeyed, Obeyed)
        assert obeyed.text == "We begin anew."
        await dispatcher.finished()


# --- /retry ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("dispatcher")
async def test_retry_answers_the_last_message_anew_and_the_former_answer_stays(
    room: Room, manager: SessionManager, model: Doors
) -> None:
    *_, again = await room.ended(room.say("one"), room.say("two"), room.say("/retry"))
    assert isinstance(again, Answered)
    assert again.text == "echo: two"
    assert model.asked == ["one", "two", "two"]
    assert await said_in(manager) == ["one", "echo: one", "two", "echo: two"]
    assert await everything(manager) == ["one", "echo: one", "two", *2 * ["echo: two"]]


async def test_retry_is_answered_once_and_taken_up_when_it_failed(
    dispatcher: Dispatcher, room: Room, manager: SessionManager, model: Doors
) -> None:
    await room.ended(room.say("one"))

    def fails() -> None:
        raise ModelError("overloaded")

    model.on_asked = fails
    (failed,) = await room.ended(room.say("/retry", message_id="9"))
    assert isinstance(failed, NotAnswered)
    model.on_asked = lambda: None
    await dispatcher.finished()
    (answered,) = await room.ended(room.say("/retry", message_id="9"))  # as a network that was not told does
    assert answered.text == "echo: one"
    await dispatcher.finished()
    (duplicate,) = await room.ended(room.say("/retry", message_id="9"))
    assert isinstance(duplicate, NotAnswered)
    assert duplicate.reason is Reason.DUPLICATE
    assert await everything(manager) == ["one", "echo: one", "echo: one"]


@pytest.mark.usefixtures("dispatcher")
async def test_retry_says_so_where_nothing_was_said(room: Room) -> None:
    (failed,) = await room.ended(room.say("/retry"))
    assert isinstance(failed, NotAnswered)
    assert isinstance(failed.error, NothingToResume)
    assert failed.text


# --- edits -----------------------------------------------------------------------------------------------------------


def edit(room: Room, text: str, number: int) -> Incoming:
    return room.hear(Incoming("1", Message.user(text), message_id=f"1.{number}", replaces="1"))


async def test_the_first_message_is_edited_as_often_as_its_author_likes_whichever_model_was_chosen(
    dispatcher: Dispatcher, room: Room, manager: SessionManager
) -> None:
    await room.ended(room.say("hello", message_id="1"))
    await (await manager.get_or_create("room", 1)).tree.append_model_change("test", "doors")
    for number in range(3):
        (answered,) = await room.ended(edit(room, f"hello {number}", number))
        assert answered.text == f"echo: hello {number}"
        await dispatcher.finished()
    assert await said_in(manager) == ["hello 2", "echo: hello 2"]


async def test_an_edit_of_what_is_past_leaves_what_was_said_since(
    dispatcher: Dispatcher, room: Room, manager: SessionManager
) -> None:
    await room.ended(room.say("hello", message_id="1"), room.say("/new"), room.say("important", message_id="2"))
    await dispatcher.finished()
    (duplicate,) = await room.ended(edit(room, "hello!", 0))
    assert isinstance(duplicate, NotAnswered)
    assert duplicate.reason is Reason.DUPLICATE
    await (await manager.get_or_create("room", 1)).tree.branch(None, then=[Message.user("anew")])
    (duplicate,) = await room.ended(edit(room, "hello!!", 1))
    assert isinstance(duplicate, NotAnswered)
    assert await said_in(manager) == ["anew"]


# --- the others ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("dispatcher")
async def test_help_has_a_line_for_every_command(room: Room, manager: SessionManager) -> None:
    (told, started) = await room.ended(room.say("/help"), room.say("/start"))
    shown = [word for word, command in COMMANDS.items() if command.help]
    assert [line.partition(" - ")[0] for line in told.text.splitlines()] == shown
    assert {"/stop", "/new", "/retry", "/help"} <= set(shown)
    assert started.text == told.text
    assert await said_in(manager) == []


@pytest.mark.usefixtures("dispatcher")
async def test_a_command_of_ones_own_is_one_row(room: Room, monkeypatch: pytest.MonkeyPatch, model: Doors) -> None:
    async def shout(said: CommandCall) -> str:
        return f"{said.session.session_id} {said.arguments.upper()}"

    monkeypatch.setitem(COMMANDS, "/shout", Command("say it loud", shout))
    model.close("slow")
    slow, loud = room.say("slow"), room.say("/Shout  a b\nc ")
    await model.was_asked("slow")
    assert room.last(loud) is None  # in its turn
    model.open("slow")
    _, told = await room.ended(slow, loud)
    assert told.text == "room_1 A B\nC"


@pytest.mark.usefixtures("dispatcher")
@pytest.mark.parametrize("text", ["/etc/hosts", "/unknown", "say /new", "/new/", "/new@other_bot", "// /new", "/"])
async def test_what_is_no_command_goes_to_the_model(room: Room, text: str) -> None:
    assert command_in(Message.user(text)) is None
    assert (await room.ended(room.say(text)))[0].text == f"echo: {text}"


def test_a_long_run_of_spaces_does_not_hold_up_everybody() -> None:
    spaces = " " * 1_000_000  # a quadratic reading takes an hour
    assert command_in(Message.user(f"/unknown b{spaces}c")) is None
    assert command_in(Message.user(f"{spaces}/New{spaces}b{spaces}c{spaces}")) == ("/new", f"b{spaces}c")


async def test_of_who_wants_no_commands_only_stop_is_obeyed(dispatcher: Dispatcher) -> None:
    asked = dispatcher.ask(Incoming("1", Message.user("/new"), channel="room", obeys=False))
    assert [one async for one in asked][-1].text == "echo: /new"
    stop = dispatcher.ask(Incoming("1", Message.user("/stop"), channel="room", obeys=False))
    assert isinstance([one async for one in stop][-1], Obeyed)


# --- who may speak ---------------------------------------------------------------------------------------------------


def test_nobody_may_speak_until_he_is_named_and_the_log_says_whom_to_name() -> None:
    allowed = Allowed("bot", AllowSettings())
    with capture_logs() as logs:
        assert not any(allowed.admits(user_id="17", chat_id="4") for _ in range(3))
    (refused,) = logs
    assert (refused["action"], refused["user_id"], refused["chat_id"]) == ("channel.refused", "17", "4")


@pytest.mark.parametrize("allow", [("17",), (17,), ("-4",), (-4,), ("*",), ("Ada@Example.org",)])
def test_a_user_or_a_chat_that_is_named_may_speak(allow: tuple[str | int, ...]) -> None:
    allowed = Allowed("bot", AllowSettings(allow=allow))
    user_id = "ada@example.ORG" if "Ada@Example.org" in allow else "17"
    assert allowed.admits(user_id=user_id, chat_id="-4")
    assert allowed.admits(user_id="1", chat_id="2") is ("*" in allow)


@pytest.mark.parametrize(
    ("groups", "answered"), [("addressed", [True, False]), ("all", [True, True]), ("none", [False, False])]
)
def test_in_a_group_a_bot_speaks_when_it_is_spoken_to(groups: str, answered: list[bool]) -> None:
    allowed = Allowed("bot", AllowSettings(allow=("*",), groups=groups))  # type: ignore[arg-type]
    with capture_logs() as logs:
        said = [allowed.admits(user_id="1", chat_id="2", is_group=True, is_addressed=it) for it in (True, False)]
    assert said == answered
    assert logs == []
    assert allowed.admits(user_id="1", chat_id="1")


def test_a_flood_of_strangers_fills_no_memory() -> None:
    allowed = Allowed("bot", AllowSettings())
    with capture_logs():
        for number in range(2_500):
            allowed.admits(user_id=f"{number}", chat_id="2")
    assert len(allowed._refused) <= 1_000
