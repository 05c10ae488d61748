"""Tools that a person must agree to: nothing runs before the yes, once after it, and the model is told of a no."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from miniclaw_sessions.agent.agent import Agent, TurnFinished, TurnSuspended
from miniclaw_sessions.agent.answered import end_of_turn, obeyed_before
from miniclaw_sessions.agent.approving import REFUSED, Approval, calls_to_approve
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.errors import NothingToResume
from miniclaw_sessions.protocol.messages import Message
from miniclaw_sessions.session import Session
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.agent.conversations import HELLO, assert_legal, calls, opened, roles, texts

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


class _Killed(BaseException):
    """As far as the session goes, the process is dead."""


async def _killed_after(answer: Approval, session: Session) -> None:
    """The answer is acknowledged, and nothing more happens in this process."""
    async with session.turn(answer) as turn:
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
        end = await agent.answer(Approval(session, answers=True, author="ada", key="m2"), session=session)
        assert isinstance(end, TurnFinished)
        assert deletions.made == [{"path": "x"}]
        assert texts(session) == ["hello", "", "deleted", "done"]
        assert await calls_to_approve(session) == []
        assert await obeyed_before(session, "m3") is None
        entry_id = await obeyed_before(session, "m2")
        assert entry_id is not None
        assert isinstance(await end_of_turn(session, entry_id), TurnFinished)
        await assert_legal(session, agent.provider)  # type: ignore[arg-type]


async def test_a_no_is_told_to_the_model_and_nothing_runs(session: Session) -> None:
    deletions = Deletions()
    await asked(session, deletions, "delete")
    await agent_of(deletions, "as you like").answer(Approval(session, answers=False), session=session)
    assert deletions.made == []
    assert texts(session) == ["hello", "", REFUSED, "as you like"]
    assert session.messages()[2].is_error


async def test_calls_are_answered_one_by_one_and_the_others_wait_on(session: Session) -> None:
    deletions = Deletions()
    await asked(session, deletions, "delete", "delete", "delete")
    agent = agent_of(deletions, "done")
    end = await agent.answer(Approval(session, answers={"call_1": True}), session=session)
    assert isinstance(end, TurnSuspended)
    assert [one.call.id for one in end.pending] == ["call_0", "call_2"]
    assert [one.call.id for one in await calls_to_approve(session)] == ["call_0", "call_2"]
    assert isinstance(
        await agent.answer(Approval(session, answers={"call_0": False, "call_2": True}), session=session), TurnFinished
    )
    assert len(deletions.made) == 2
    await assert_legal(session, agent.provider)  # type: ignore[arg-type]


async def test_a_tool_that_changed_after_the_yes_is_not_run(session: Session) -> None:
    deletions = Deletions()
    await asked(session, deletions, "delete")
    deletions.description = "Deletes a file, and sends it to somebody."
    await agent_of(deletions, "hm").answer(Approval(session, answers=True), session=session)
    assert deletions.made == []
    assert "has changed since a person agreed" in texts(session)[2]


async def test_what_a_crash_interrupted_after_the_yes_is_asked_again_and_not_run_again(tmp_path: Path) -> None:
    deletions = Deletions()

    async with opened(tmp_path) as session:
        await asked(session, deletions, "delete")
        with pytest.raises(_Killed):
            await _killed_after(Approval(session, answers=True, key="m2"), session)
    async with opened(tmp_path) as session:
        assert await obeyed_before(session, "m2") is not None
        agent = agent_of(deletions, "done")
        assert isinstance(await agent.answer(None, session=session), TurnSuspended)
        assert deletions.made == []
        await agent.answer(Approval(session, answers=True), session=session)
        assert len(deletions.made) == 1


@pytest.mark.parametrize("answers", [True, {"call_9": True}, {}])
async def test_an_answer_to_nothing_that_waits_changes_nothing(session: Session, answers: Any) -> None:
    deletions = Deletions()
    await session.add_message(HELLO)
    before = session.last_sequence
    with pytest.raises(NothingToResume):
        await agent_of(deletions, "never").answer(Approval(session, answers=answers), session=session)
    assert session.last_sequence == before


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
