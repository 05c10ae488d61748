"""A tool that asks first, in a chat: the question goes there, a word answers it, and the answer may come much later."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.calls import MAX_ARGUMENTS, REFUSED, Approval
from miniclaw_sessions.agent.hooks import Generation, Hooks
from miniclaw_sessions.channels.base import Answered, Incoming, Last, NotAnswered, Outgoing, Reason
from miniclaw_sessions.channels.delivery import event_document
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.core.protocol.entries import Custom
from miniclaw_sessions.core.protocol.messages import ToolCall
from miniclaw_sessions.core.session.turn import Place
from miniclaw_sessions.errors import NothingToResume
from miniclaw_sessions.service.api.chat import Chat, chat, list_approvals
from miniclaw_sessions.service.api.context import Context
from miniclaw_sessions.service.api.sessions import OneSession
from miniclaw_sessions.service.api.shapes import ChatReply, ChatRequest
from miniclaw_sessions.service.client.transport import LocalTransport
from miniclaw_sessions.service.gateway.chat import DispatchedChats
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.channels.rooms import Room, deleting_tool
from tests.texts import texts

pytestmark = pytest.mark.anyio

CALL = Message.assistant("", (ToolCall("call_0", "delete", '{"path": "x"}'),))
QUESTION = 'May I do this?\n- delete {"path": "x"}\nAnswer yes or no.'
Serving = Callable[..., AbstractAsyncContextManager[Dispatcher]]


@pytest.fixture
def made() -> list[dict[str, Any]]:
    """What the tool was called with."""
    return []


@pytest.fixture
def serving(tmp_path: Path, made: list[dict[str, Any]]) -> Serving:
    """A process that serves a room, with a model that gives these replies."""

    @asynccontextmanager
    async def served(room: Room, *replies: str | Message) -> AsyncIterator[Dispatcher]:
        agent = Agent(ScriptedProvider(replies), tools=[deleting_tool(made)])
        async with SessionManager(tmp_path / "w") as manager, Dispatcher(manager, Assistant(agent)) as dispatcher:
            dispatcher.serve(room)
            yield dispatcher
            dispatcher.cut_off(anyio.current_time())
        room.close()

    return served


async def answer(room: Room, text: str, message_id: str | None = None) -> str:
    (last,) = await room.ended(room.say(text, message_id=message_id))
    return last.text


async def test_the_question_goes_to_the_chat_and_a_yes_is_obeyed(
    serving: Serving, room: Room, made: list[dict[str, Any]]
) -> None:
    async with serving(room, CALL, "It is gone."):
        assert await answer(room, "delete x") == QUESTION
        assert made == []
        assert await answer(room, " Yes!") == "It is gone."
    assert made == [{"path": "x"}]


async def test_a_no_is_told_to_the_model_and_a_yes_after_it_is_a_word_like_any_other(
    serving: Serving, room: Room, made: list[dict[str, Any]]
) -> None:
    provider = ("I leave it.", "Yes what?")
    async with serving(room, CALL, *provider) as dispatcher:
        await answer(room, "delete x")
        assert await answer(room, "no") == "I leave it."
        assert await answer(room, "yes") == "Yes what?"
        context = [message.text for message in dispatcher.assistant.agent.provider.contexts[-1]]  # type: ignore[attr-defined]
        assert context == ["delete x", "", REFUSED, "I leave it.", "yes"]
    assert made == []


async def test_the_answer_comes_after_a_restart_and_counts_once_however_often_it_is_delivered(
    serving: Serving, made: list[dict[str, Any]]
) -> None:
    before, after, once_more = Room(), Room(), Room()
    async with serving(before, CALL):
        assert await answer(before, "delete x", "m1") == QUESTION
    async with serving(after, "It is gone."):
        assert await answer(after, "/approve", "m2") == "It is gone."
    async with serving(once_more):
        (last,) = await once_more.ended(once_more.say("/approve", message_id="m2"))
        assert isinstance(last, NotAnswered)
        assert last.reason is Reason.DUPLICATE
    assert len(made) == 1


async def test_a_yes_that_two_gateways_are_given_makes_one_call(
    postgresql_url: str, tmp_path: Path, made: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    look, looked, both = Approval._look, 0, anyio.Event()

    async def together(approval: Approval) -> Place:
        nonlocal looked
        place = await look(approval)
        looked += 1
        if looked == 2:
            both.set()
        await both.wait()
        return place

    async with AsyncExitStack() as stack:
        rooms, managers = [Room(), Room()], list[SessionManager]()
        for number, room in enumerate(rooms):
            manager = await stack.enter_async_context(SessionManager(tmp_path / str(number), store=postgresql_url))
            replies: list[Message | str] = [CALL, "It is gone."]
            agent = Agent(ScriptedProvider(replies[number:]), tools=[deleting_tool(made)])
            dispatcher = await stack.enter_async_context(Dispatcher(manager, Assistant(agent)))
            stack.callback(dispatcher.cut_off, 0.0)
            stack.callback(room.close)
            dispatcher.serve(room)
            managers.append(manager)
        assert await answer(rooms[0], "delete x", "m1") == QUESTION
        assert texts(await managers[1].get_or_create("room", 1)) == ["delete x", ""]
        monkeypatch.setattr(Approval, "_look", together)
        async with anyio.create_task_group() as tasks:
            for number, room in enumerate(rooms):
                tasks.start_soon(answer, room, "/approve", f"yes {number}")
    assert made == [{"path": "x"}]


CALL_ALL = Message.assistant("", (ToolCall("call_0", "delete", '{"path": "ALL"}'),))
QUESTION_ALL = QUESTION.replace("x", "ALL")


@pytest.mark.parametrize(("first", "second"), [("yes", "ok"), ("/approve", "/approve"), ("no", "yes")])
async def test_an_answer_counts_for_the_question_that_stood_when_it_was_said_and_no_later_one(
    serving: Serving, room: Room, made: list[dict[str, Any]], first: str, second: str
) -> None:
    after_a_kill = Room()
    async with serving(room, CALL, CALL_ALL, "It is gone."):
        await answer(room, "delete x", "m1")
        room.say(first, message_id="m2")
        (last,) = await room.ended(room.say(second, message_id="m3"))
        assert last.text == QUESTION_ALL  # it is asked again
        former = [{"path": "x"}] if first != "no" else []
        assert made == former
    async with serving(after_a_kill, "It is gone."):  # both are delivered again, and neither counts now
        again = [after_a_kill.say(text, message_id=key) for text, key in ((first, "m2"), (second, "m3"))]
        assert [last.text for last in await after_a_kill.ended(*again)] == [QUESTION_ALL] * 2
        assert made == former
        assert await answer(after_a_kill, "yes", "m4") == "It is gone."
    assert made == [*former, {"path": "ALL"}]


async def test_what_was_said_before_anything_was_asked_answers_nothing(
    serving: Serving, room: Room, made: list[dict[str, Any]]
) -> None:
    async with serving(room, CALL, "It is gone."):
        asked, early = room.say("delete x"), room.say("yes")
        assert [last.text for last in await room.ended(asked, early)] == [QUESTION] * 2
        assert made == []
        assert await answer(room, "yes") == "It is gone."


async def test_what_is_said_before_the_question_is_sent_does_not_answer_it(
    serving: Serving, made: list[dict[str, Any]]
) -> None:
    is_sending, may_be_sent = anyio.Event(), anyio.Event()

    class Slow(Room):
        async def send(self, chat_id: str, outgoing: Outgoing) -> None:
            if isinstance(outgoing, Last):
                is_sending.set()
                await may_be_sent.wait()
            await super().send(chat_id, outgoing)

    room = Slow()
    async with serving(room, CALL, "It is gone."):
        asked = room.say("delete x")
        await is_sending.wait()
        early = room.say("ok")
        await anyio.wait_all_tasks_blocked()
        may_be_sent.set()
        assert [last.text for last in await room.ended(asked, early)] == [QUESTION] * 2
        assert made == []
        assert await answer(room, "ok") == "It is gone."
    assert made == [{"path": "x"}]


async def test_behind_what_is_delivered_again_nothing_is_an_answer(
    serving: Serving, made: list[dict[str, Any]]
) -> None:
    before, after = Room(), Room()
    async with serving(before, CALL):
        await answer(before, "delete x", "m1")
    async with serving(after, "It is gone."):
        again, unknown = after.say("delete x", message_id="m1"), after.say("yes", message_id="m2")
        assert [last.text for last in await after.ended(again, unknown)] == [QUESTION] * 2
        assert made == []
        assert await answer(after, "yes", "m3") == "It is gone."


async def test_an_answer_that_is_delivered_again_after_new_is_no_message(
    serving: Serving, made: list[dict[str, Any]]
) -> None:
    before, after = Room(), Room()
    async with serving(before, CALL, "It is gone."):
        for text, key in (("delete x", "m1"), ("yes", "m2"), ("/new", "m3")):
            await answer(before, text, key)
    async with serving(after):
        (last,) = await after.ended(after.say("yes", message_id="m2"))
        assert isinstance(last, NotAnswered)
        assert last.reason is Reason.DUPLICATE
    assert len(made) == 1


@pytest.mark.parametrize(("text", "agrees"), [("ok", False), ("Yes!", False), ("/approve", True)])
async def test_what_people_say_to_each_other_agrees_to_nothing(
    serving: Serving, room: Room, made: list[dict[str, Any]], *, text: str, agrees: bool
) -> None:
    def among_people(said: str) -> Incoming:
        return room.hear(Incoming("1", Message.user(said), is_addressed=False))

    async with serving(room, CALL, "And so?"):
        (asked,) = await room.ended(among_people("who deletes x?"))
        assert asked.text == QUESTION.replace("yes or no", "/approve or /deny")
        (last,) = await room.ended(among_people(text))
        assert last.text == "And so?"
    assert bool(made) is agrees


async def test_another_wording_of_an_answer_takes_nothing_back(
    serving: Serving, room: Room, made: list[dict[str, Any]]
) -> None:
    async with serving(room, CALL, "It is gone.", "Good.") as dispatcher:
        await answer(room, "delete x", "m1")
        await answer(room, "yes", "m2")
        (last,) = await room.ended(room.hear(Incoming("1", Message.user("no"), message_id="m3", replaces="m2")))
        assert isinstance(last, NotAnswered)
        assert last.reason is Reason.DUPLICATE
        assert await answer(room, "thanks") == "Good."
        context = [message.text for message in dispatcher.assistant.agent.provider.contexts[-1]]  # type: ignore[attr-defined]
        assert context == ["delete x", "", "deleted", "It is gone.", "thanks"]
    assert len(made) == 1


async def test_the_question_shows_the_call_that_a_hook_has_chosen(tmp_path: Path, room: Room) -> None:
    class Redirects(Hooks):
        async def before_tool(self, generation: Generation, call: ToolCall) -> ToolCall:
            del generation
            return msgspec.structs.replace(call, name="delete", arguments='{"path": "SECRET"}')

    call = Message.assistant("", (ToolCall("call_0", "look", '{"path": "x"}'),))
    agent = Agent(ScriptedProvider([call]), tools=[deleting_tool([])], hooks=Redirects())
    async with SessionManager(tmp_path / "w") as manager, Dispatcher(manager, Assistant(agent)) as dispatcher:
        dispatcher.serve(room)
        (last,) = await room.ended(room.say("go"))
        assert '- delete {"path": "SECRET"}' in last.text
        assert isinstance(last, Answered)
        _, document = event_document(last.event)
        listed = await LocalTransport(Context(manager)).call(list_approvals, OneSession("room_1"))
        assert document["pending"] == msgspec.to_builtins(listed.pending)
        assert (document["pending"][0]["name"], document["pending"][0]["arguments"]) == ("delete", '{"path": "SECRET"}')
        dispatcher.cut_off(anyio.current_time())


@pytest.mark.parametrize(("named", "author"), [("", "owner"), ("ada", "ada")])
async def test_an_approval_over_http_is_kept_with_who_gave_it(
    serving: Serving, room: Room, *, named: str, author: str
) -> None:
    async with serving(room, CALL, "It is gone.") as dispatcher:
        await answer(room, "delete x")
        context = Context(dispatcher._manager, chats=DispatchedChats(dispatcher, 1.0))
        transport = LocalTransport(context)
        (pending,) = (await transport.call(list_approvals, OneSession("room_1"))).pending
        wanted = ChatRequest(channel="room", chat_id="1", approvals={pending.id: True}, author=named)
        reply: ChatReply = await transport.call(chat, Chat(wanted))
        assert reply.suspended is msgspec.UNSET
        entries = (await (await dispatcher._manager.find("room_1")).tree.get_transcript()).entries
        answers = [one.data["answer"] for one in entries if isinstance(one, Custom) and "answer" in (one.data or {})]
        assert [one["author"] for one in answers] == [author]


async def test_over_http_a_bare_yes_agrees_only_where_a_person_talks_to_the_bot(serving: Serving, room: Room) -> None:
    """Who relays what people say to each other asks for no words; then an "ok" among them is said to the model."""
    async with serving(room, CALL, "Yes what?", CALL, "It is gone.") as dispatcher:
        transport = LocalTransport(Context(dispatcher._manager, chats=DispatchedChats(dispatcher, 1.0)))
        for commands, told in ((False, "Yes what?"), (True, "It is gone.")):
            await answer(room, "delete x")
            wanted = ChatRequest(channel="room", chat_id="1", message="ok", commands=commands)
            reply: ChatReply = await transport.call(chat, Chat(wanted))
            assert isinstance(reply.reply, dict)
            assert reply.reply["content"] == told


async def test_an_answer_to_nothing_is_told_so(serving: Serving, room: Room) -> None:
    async with serving(room) as dispatcher:
        assert await answer(room, "/deny") == "There is nothing that waits for an answer."
        asked = dispatcher.ask(Incoming("1", None, channel="room", approvals={"call_7": True}))
        last = [one async for one in asked][-1]
        assert isinstance(last, NotAnswered)
        assert isinstance(last.error, NothingToResume)


async def test_a_long_question_says_how_much_it_does_not_show_and_nothing_in_it_can_forge_a_line(
    serving: Serving, room: Room
) -> None:
    arguments = '{"path": "' + "x" * MAX_ARGUMENTS + '",\n"as": "\u202e"}'
    call = Message.assistant("", (ToolCall("call_0", "delete", arguments), ToolCall("call_1", "delete", "{\n}")))
    async with serving(room, call):
        text = await answer(room, "delete x")
    assert f"… and {len(arguments) + 1 + 5 - MAX_ARGUMENTS} characters more" in text
    assert text.count("\n") == 3
    assert text.endswith("Answer yes or no, for all of them.")


async def test_a_yes_agrees_to_nothing_that_was_shown_only_elsewhere(
    serving: Serving, room: Room, made: list[dict[str, Any]]
) -> None:
    """The first question is answered on the page, where a second one is shown; then the chat says yes."""
    everything = Message.assistant("", (ToolCall("call_1", "delete", '{"path": "ALL"}'),))
    async with serving(room, CALL, everything, "All is gone.") as dispatcher:
        assert await answer(room, "delete x") == QUESTION
        transport = LocalTransport(Context(dispatcher._manager, chats=DispatchedChats(dispatcher, 1.0)))
        (pending,) = (await transport.call(list_approvals, OneSession("room_1"))).pending
        asked = ChatRequest(channel="room", chat_id="1", approvals={pending.id: True})
        assert isinstance((await transport.call(chat, Chat(asked))).suspended, dict)
        assert made == [{"path": "x"}]
        assert "ALL" in await answer(room, "yes")
        assert made == [{"path": "x"}]
        assert await answer(room, "yes") == "All is gone."
    assert made == [{"path": "x"}, {"path": "ALL"}]
