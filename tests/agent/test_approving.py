"""Tools that a person must agree to: nothing runs before the yes, once after it, and the model is told of a no."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from miniclaw_sessions.agent.agent import Agent, TurnFinished, TurnSuspended
from miniclaw_sessions.agent.calls import REFUSED, Approval, calls_to_approve
from miniclaw_sessions.agent.earlier_turns import end_of_turn
from miniclaw_sessions.agent.hooks import Generation, Hooks
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import INTERRUPTED
from miniclaw_sessions.errors import DuplicateMessage, NothingToResume
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.agent.conversations import HELLO, assert_legal, calls, echo, opened, roles, tool
from tests.texts import texts

pytestmark = pytest.mark.anyio


@dataclasses.dataclass
class Deletions:
    """A tool that a person must agree to, and what it was called with."""

    made: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    description: str = "Deletes a file."

    def tool(self, name: str = "delete") -> Tool:
        async def run(arguments: dict[str, Any]) -> str:
            self.made.append(arguments)
            return "deleted"

        return Tool(name, self.description, {"type": "object"}, run, needs_approval=True)


async def asked(session: Session, deletions: Deletions, *names: str) -> None:
    """A turn in which these tools were called, which waits now."""
    agent = Agent(ScriptedProvider([calls(*names, arguments='{"path": "x"}')]), tools=[deletions.tool()])
    assert isinstance(await agent.answer(HELLO, session=session), TurnSuspended)


async def decision(session: Session, answers: dict[str, bool] | bool = True, author: str | None = None) -> Approval:
    """A yes or no to what waits now, for all of it or by the calls' own ids."""
    waiting = {one.call.id: one.waiting.approval_id for one in await calls_to_approve(session)}
    by_call = dict.fromkeys(waiting, answers) if isinstance(answers, bool) else answers
    return Approval(session, answers={waiting[call]: agreed for call, agreed in by_call.items()}, author=author)


class _Killed(BaseException):
    """As far as the session goes, the process is dead."""


async def _killed_after(answer: Approval, session: Session, key: str) -> None:
    """The answer is acknowledged, and nothing more happens in this process."""
    async with session.turn(answer, idempotency_key=key) as turn:
        turn.close_calls = lambda: None  # type: ignore[method-assign]
        assert list(answer.approved) == ["call_0"]
        raise _Killed


def agent_of(deletions: Deletions, *replies: str | Message) -> Agent:
    return Agent(ScriptedProvider(replies), tools=[deletions.tool()])


@pytest.mark.parametrize("store", ["sqlite:", "jsonl:"])
async def test_a_call_waits_for_a_yes_and_runs_once_after_it_also_after_a_restart(tmp_path: Path, store: str) -> None:
    deletions = Deletions()
    async with opened(tmp_path, store) as session:
        await asked(session, deletions, "delete")
        assert deletions.made == []
    async with opened(tmp_path, store) as session:
        (pending,) = await calls_to_approve(session)
        assert (pending.call.name, pending.call.arguments) == ("delete", '{"path": "x"}')
        agent = agent_of(deletions, "done")
        answer = await decision(session, author="ada")
        end = await agent.answer(answer, session=session, idempotency_key="m2")
        assert isinstance(end, TurnFinished)
        assert deletions.made == [{"path": "x"}]
        assert texts(session) == ["hello", "", "deleted", "done"]
        assert await calls_to_approve(session) == []
        with pytest.raises(DuplicateMessage) as again:
            await agent.answer(answer, session=session, idempotency_key="m2")
        assert isinstance(await end_of_turn(session, again.value.entry_id), TurnFinished)
        await assert_legal(session, agent.provider)  # type: ignore[arg-type]


async def test_a_no_is_told_to_the_model_and_nothing_runs(session: Session) -> None:
    deletions = Deletions()
    await asked(session, deletions, "delete")
    await agent_of(deletions, "as you like").answer(await decision(session, answers=False), session=session)
    assert deletions.made == []
    assert texts(session) == ["hello", "", REFUSED, "as you like"]
    assert session.messages()[2].is_error


async def test_calls_are_answered_one_by_one_and_the_others_wait_on(session: Session) -> None:
    deletions = Deletions()
    await asked(session, deletions, "delete", "delete", "delete")
    agent = agent_of(deletions, "done")
    end = await agent.answer(await decision(session, {"call_1": True}), session=session)
    assert isinstance(end, TurnSuspended)
    assert [one.call.id for one in end.pending] == ["call_0", "call_2"]
    assert [one.call.id for one in await calls_to_approve(session)] == ["call_0", "call_2"]
    others = await decision(session, {"call_0": False, "call_2": True})
    assert isinstance(await agent.answer(others, session=session), TurnFinished)
    assert len(deletions.made) == 2
    await assert_legal(session, agent.provider)  # type: ignore[arg-type]


async def test_a_tool_that_changed_after_the_yes_is_not_run(session: Session) -> None:
    deletions = Deletions()
    await asked(session, deletions, "delete")
    deletions.description = "Deletes a file, and sends it to somebody."
    await agent_of(deletions, "hm").answer(await decision(session), session=session)
    assert deletions.made == []
    assert "has changed since a person agreed" in texts(session)[2]


async def test_what_a_crash_interrupted_after_the_yes_is_asked_again_and_not_run_again(tmp_path: Path) -> None:
    deletions = Deletions()

    async with opened(tmp_path) as session:
        await asked(session, deletions, "delete")
        with pytest.raises(_Killed):
            await _killed_after(await decision(session), session, "m2")
    async with opened(tmp_path) as session:
        agent = agent_of(deletions, "done")
        assert isinstance(await agent.answer(None, session=session), TurnSuspended)
        assert deletions.made == []
        await agent.answer(await decision(session), session=session)
        assert len(deletions.made) == 1


async def test_a_yes_that_is_delivered_again_makes_no_call_again(session: Session) -> None:
    deletions, sent = Deletions(), list[Any]()

    async def send(arguments: dict[str, Any]) -> str:
        sent.append(arguments)
        raise _Killed

    await asked(session, deletions, "delete")
    with pytest.raises(_Killed):
        await _killed_after(await decision(session), session, "m2")
    await session.add_messages([Message.tool_result(ToolCall("call_0", "delete", "{}"), "deleted"), calls("send")])
    agent = Agent(ScriptedProvider(["sent, perhaps"]), tools=[deletions.tool(), tool("send", send)])
    await agent.answer(Approval(session, answers={}), session=session, idempotency_key="m2")
    assert (deletions.made, sent) == ([], [])
    assert texts(session)[-2:] == [INTERRUPTED, "sent, perhaps"]


@pytest.mark.parametrize("answers", [{"entry.call_9": True}, {}])
async def test_an_answer_to_nothing_that_waits_changes_nothing(session: Session, answers: Any) -> None:
    deletions = Deletions()
    await session.add_message(HELLO)
    before = session.last_sequence
    with pytest.raises(NothingToResume):
        await agent_of(deletions, "never").answer(Approval(session, answers=answers), session=session)
    assert session.last_sequence == before


async def test_an_answer_to_a_former_question_is_none_to_a_later_one_whose_calls_have_the_same_ids(
    session: Session,
) -> None:
    deletions = Deletions()
    await asked(session, deletions, "delete")
    former = {(await calls_to_approve(session))[0].waiting.approval_id: True}
    agent = agent_of(deletions, calls("delete", arguments='{"path": "ALL"}'), "done")
    end = await agent.answer(Approval(session, answers=former), session=session)
    assert isinstance(end, TurnSuspended)
    (again,) = end.pending
    assert (again.call.id, again.call.arguments) == ("call_0", '{"path": "ALL"}')
    end = await agent.answer(Approval(session, answers=former), session=session, idempotency_key="late")
    assert isinstance(end, TurnSuspended)  # it is asked again
    assert end.pending == (again,)
    assert deletions.made == [{"path": "x"}]
    assert await calls_to_approve(session) == [again]
    await agent.answer(await decision(session), session=session)
    assert deletions.made == [{"path": "x"}, {"path": "ALL"}]


@dataclasses.dataclass
class Chooses(Hooks):
    """Lets another call run than the model's."""

    arguments: str
    name: str = "delete"

    async def before_tool(self, generation: Generation, call: ToolCall) -> ToolCall | None:
        del generation
        return msgspec.structs.replace(call, name=self.name, arguments=self.arguments)


async def test_what_a_person_agrees_to_is_the_call_that_a_hook_has_chosen(session: Session) -> None:
    deletions, hook = Deletions(), Chooses('{"path": "SECRET"}')
    provider = ScriptedProvider([calls("look", arguments='{"path": "x"}'), "done"])
    agent = Agent(provider, tools=[deletions.tool(), tool("look", echo)], hooks=hook)
    end = await agent.answer(HELLO, session=session)
    assert isinstance(end, TurnSuspended)
    for shown in (end.pending, await calls_to_approve(session)):
        assert [(one.asked_about.name, one.asked_about.arguments) for one in shown] == [("delete", hook.arguments)]
    await agent.answer(await decision(session), session=session)
    assert deletions.made == [{"path": "SECRET"}]


@pytest.mark.parametrize("other", [Chooses('{"path": "ALL"}'), Chooses('{"path": "x"}', name="look")])
async def test_a_call_that_a_hook_makes_another_one_after_the_yes_is_not_made(session: Session, other: Chooses) -> None:
    deletions, looked = Deletions(), list[Any]()

    async def look(arguments: dict[str, Any]) -> str:
        looked.append(arguments)
        return "seen"

    await asked(session, deletions, "delete")
    agent = Agent(ScriptedProvider(["hm"]), tools=[deletions.tool(), tool("look", look)], hooks=other)
    await agent.answer(await decision(session), session=session)
    assert (deletions.made, looked) == ([], [])
    assert "has changed since a person agreed" in texts(session)[2]


async def test_a_new_message_in_place_of_an_answer_closes_the_question(session: Session) -> None:
    deletions = Deletions()
    await asked(session, deletions, "delete")
    await agent_of(deletions, "fine").answer(Message.user("never mind"), session=session)
    assert await calls_to_approve(session) == []
    assert deletions.made == []
    assert roles(session) == ["user", "assistant", "tool_result!", "user", "assistant"]


async def test_tools_that_come_and_go_are_offered_as_they_are_now(session: Session) -> None:
    deletions, there = Deletions(), list[Tool]()
    provider = ScriptedProvider(["one", "two"])
    agent = Agent(provider, changing_tools=lambda: there)
    await agent.answer(HELLO, session=session)
    assert provider.tools == []
    there.append(deletions.tool())
    await agent.answer(HELLO, session=session)
    assert provider.tools == ["delete"]


async def test_arguments_that_give_a_name_twice_are_not_asked_about_for_one_would_be_shown_and_the_other_run(
    session: Session,
) -> None:
    deletions = Deletions()
    twice = calls("delete", arguments='{"path": "/tmp/old.log", "why": {}, "path": "/home/ada"}')
    end = await agent_of(deletions, twice, "I see.").answer(HELLO, session=session)
    assert isinstance(end, TurnFinished)
    assert deletions.made == []
    assert any("'path' twice" in text for text in texts(session))
