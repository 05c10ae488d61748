"""Going on with a turn that was left: after an error, a crash, a compaction in its midst, a kill at any moment."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from miniclaw_sessions.agent.agent import Agent, ToolStarted, TurnFinished, Unanswered
from miniclaw_sessions.core.history.context import NO_RESULT, build_context
from miniclaw_sessions.core.history.pairing import open_calls
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import ABANDONED, INTERRUPTED
from miniclaw_sessions.errors import DuplicateMessage, ModelError, NothingToResume, TurnInProgress
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.agent.conversations import (
    HELLO,
    assert_legal,
    calls,
    echo,
    ends_before,
    opened,
    read,
    roles,
    tool,
    transcript,
)
from tests.crash.launcher import Launcher
from tests.legality import is_legal
from tests.texts import texts

pytestmark = pytest.mark.anyio


class Counting:
    """A tool with side effects that remembers how often it ran."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.tool = tool("count", self.run)

    async def run(self, arguments: dict[str, Any]) -> str:
        self.runs.append(arguments)
        return f"run {len(self.runs)}"


async def left_open(session: Session, *asked: Message) -> None:
    """What a process leaves that was killed while its tools ran."""
    session.extend([HELLO, *asked], continues=[False, *[True] * len(asked)])
    await session.saved()


# --- what becomes of open calls --------------------------------------------------------------------------------------


async def test_open_calls_are_run_and_the_turn_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    async with opened(tmp_path) as session:
        await left_open(session, calls("count", "count"))
    counting, provider = Counting(), ScriptedProvider(["done"])
    async with opened(tmp_path) as session:
        events = await read(Agent(provider, tools=[counting.tool]).resume(session))
        assert texts(session) == ["hello", "", "run 1", "run 2", "done"]
        assert [type(event) for event in events if not isinstance(event, ToolStarted)][-1] is TurnFinished
        assert [message.text for message in provider.contexts[0]] == ["hello", "", "run 1", "run 2"]
        await assert_legal(session, provider)


async def test_open_calls_are_closed_and_never_run_where_that_is_the_policy(session: Session) -> None:
    await left_open(session, calls("count", "count"))
    counting, provider = Counting(), ScriptedProvider(["sorry"])
    await read(Agent(provider, tools=[counting.tool]).resume(session, unanswered=Unanswered.CLOSE))
    assert counting.runs == []
    assert texts(session) == ["hello", "", INTERRUPTED, INTERRUPTED, "sorry"]
    assert roles(session) == ["user", "assistant", "tool_result!", "tool_result!", "assistant"]
    await assert_legal(session, provider)


async def test_a_call_is_open_although_an_earlier_one_had_the_same_id(session: Session) -> None:
    call = ToolCall("call_0", "count", "{}")
    await left_open(session, calls("count"), Message.tool_result(call, "run 0"), calls("count"))
    counting, provider = Counting(), ScriptedProvider(["done"])
    await read(Agent(provider, tools=[counting.tool]).resume(session))
    assert len(counting.runs) == 1
    assert texts(session) == ["hello", "", "run 0", "", "run 1", "done"]


@pytest.mark.parametrize("reused", [False, True])
async def test_a_new_message_closes_what_was_left_open_before_it(tmp_path: Path, reused: bool) -> None:
    earlier = [calls("count"), Message.tool_result(ToolCall("call_0", "count"), "run 0")] if reused else []
    async with opened(tmp_path) as session:
        await left_open(session, *earlier, calls("count", "count"))
        events = session.event_count
    counting, provider = Counting(), ScriptedProvider(["fine"])
    async with opened(tmp_path) as session:
        await Agent(provider, tools=[counting.tool]).reply(Message.user("never mind"), session=session)
        assert counting.runs == []
        assert texts(session)[-5:] == ["", ABANDONED, ABANDONED, "never mind", "fine"]
        assert session.event_count == events + 1
        await assert_legal(session, provider)
        assert provider.contexts[0][-1].text == "never mind"
        with pytest.raises(NothingToResume):
            await read(Agent(provider).resume(session))


async def test_a_message_that_is_delivered_again_takes_its_turn_up_and_abandons_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as session:
        session.append(HELLO, idempotency_key="update-1")
        session.append(calls("count"))
        await session.saved()
    counting, provider = Counting(), ScriptedProvider(["sorry"])
    async with opened(tmp_path) as session:
        agent = Agent(provider, tools=[counting.tool])
        await agent.reply(HELLO, session=session, idempotency_key="update-1")
        assert counting.runs == []
        assert texts(session) == ["hello", "", INTERRUPTED, "sorry"]


# --- what can be resumed ---------------------------------------------------------------------------------------------


async def test_a_turn_whose_model_failed_is_gone_on_with(session: Session) -> None:
    provider = ScriptedProvider([calls("echo"), RuntimeError("down"), "done"])
    agent = Agent(provider, tools=[tool("echo", echo)], session=session)
    with pytest.raises(ModelError):
        await agent.reply(HELLO)
    await read(agent.resume())
    assert texts(session) == ["hello", "", "nothing", "done"]


async def test_a_message_that_nobody_answered_is_answered(session: Session) -> None:
    await session.add_message(HELLO)
    await read(Agent(ScriptedProvider(["hi"])).resume(session))
    assert texts(session) == ["hello", "hi"]


async def test_there_is_nothing_to_resume_without_a_turn_that_waits(session: Session) -> None:
    agent = Agent(ScriptedProvider(["hi"]), session=session)
    with pytest.raises(NothingToResume, match="no message of a user"):
        await read(agent.resume())
    await agent.reply(HELLO)
    with pytest.raises(NothingToResume, match="waits for an answer"):
        await read(agent.resume())
    with pytest.raises(NothingToResume, match="without a session"):
        Agent(ScriptedProvider()).resume()
    assert texts(session) == ["hello", "hi"]


async def test_a_turn_is_not_resumed_within_itself(session: Session) -> None:
    agent = Agent(ScriptedProvider(["hi"]))
    async with session.turn(HELLO):
        with pytest.raises(TurnInProgress):
            await read(agent.resume(session))


@pytest.mark.parametrize("steps", [1, 72])
async def test_a_resumed_turn_knows_all_its_steps_however_long_it_was(tmp_path: Path, steps: int) -> None:
    def step(number: int) -> list[Message]:
        call = ToolCall(f"step-{number}", "echo", "{}")
        return [Message.assistant(f"step {number}", (call,)), Message.tool_result(call, f"result {number}")]

    async with opened(tmp_path) as session:
        await session.add_messages([Message.user("before"), Message.assistant("yes?")])
        await left_open(session, *(message for number in range(steps) for message in step(number)), calls("echo"))
    provider = ScriptedProvider([calls("echo"), "done"])
    async with opened(tmp_path) as session:
        await read(Agent(provider, tools=[tool("echo", echo)]).resume(session))
        await assert_legal(session, provider)
    for context, more in zip(provider.contexts, (2, 4), strict=True):
        mine = context[context.index(next(m for m in context if m.text == "hello")) :]
        assert len(mine) == 1 + 2 * steps + more
        assert [m.text for m in mine if m.text.startswith("step")] == [f"step {number}" for number in range(steps)]


async def test_a_turn_is_resumed_although_its_message_was_compacted(tmp_path: Path) -> None:
    async with opened(tmp_path) as session:
        await left_open(session, calls("echo"))
        result = session.append(Message.tool_result(ToolCall("call_0", "echo"), "nothing"))
        await session.tree.append_compaction("They said hello.", None)
        assert result.id not in {entry.id for entry in session.entries()}
        session.append(calls("echo", prefix="later-"))
        await session.saved()
    provider = ScriptedProvider(["done"])
    async with opened(tmp_path) as session:
        await read(Agent(provider, tools=[tool("echo", echo)]).resume(session))
        assert [message.text.rpartition("\n")[2] for message in provider.contexts[0]] == [
            *("They said hello.", "hello", "", "nothing")
        ]
        assert texts(session)[-1] == "done"


async def test_a_message_whose_turn_was_compacted_in_its_midst_is_still_unanswered(tmp_path: Path) -> None:
    async with opened(tmp_path) as session:
        asked = session.append(HELLO, idempotency_key="update-1")
        session.extend(
            [calls("echo"), Message.tool_result(ToolCall("call_0", "echo"), "nothing")], continues=[True] * 2
        )
        await session.tree.append_compaction("They said hello.", None)
        session.extend([calls("echo", prefix="later-")], continues=[True])
        await session.saved()
    provider = ScriptedProvider(["done"])
    async with opened(tmp_path) as session:
        agent = Agent(provider, tools=[tool("echo", echo)], session=session)
        await agent.reply(HELLO, idempotency_key="update-1")
        assert (await session.tree.get_branch())[0].id == asked.id
        assert texts(session)[-1] == "done"
        with pytest.raises(DuplicateMessage):
            await agent.reply(HELLO, idempotency_key="update-1")
        await assert_legal(session, provider)


@pytest.mark.parametrize("unanswered", list(Unanswered))
async def test_a_cancellation_at_any_moment_of_a_resumed_turn_leaves_a_session_that_can_go_on(
    tmp_path: Path, unanswered: Unanswered
) -> None:
    finished, steps, outcomes = False, 0, set()
    while not finished:
        async with opened(tmp_path / str(steps), "memory:") as session:
            await left_open(session, calls("echo", "count"))
            counting, provider = Counting(), ScriptedProvider([calls("echo", prefix="b"), "done"])
            agent = Agent(provider, tools=[counting.tool, tool("echo", echo)], session=session)
            finished = await ends_before(steps, partial(read, agent.resume(unanswered=unanswered)))
            assert not session.journal.turn_lock.is_held
            outcomes.add(tuple(roles(session)))
            again = ScriptedProvider(["next", "well"])
            if steps % 2:
                agent = Agent(again, tools=agent.tools, session=session)
                with suppress(NothingToResume):
                    await read(agent.resume(unanswered=unanswered))
            await Agent(again, session=session).reply(Message.user("go on"))
            assert len(counting.runs) <= (2 if unanswered is Unanswered.RUN else 0)
            await assert_legal(session, provider, again)
        steps += 1
        assert steps < 500
    assert len(outcomes) >= 4


# --- killed at any moment --------------------------------------------------------------------------------------------

KILLS = 15


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher("tests.agent.killed_process") as launcher:
        yield launcher


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def stored(workspace: Path, store: str) -> list[Message]:
    """The transcript as a restart finds it, of which nothing but its end may be open."""
    async with opened(workspace, store) as session:
        found = await transcript(session)
    context = build_context(found)
    assert is_legal(context) == []
    left = {call.id for call in open_calls(found)}
    assert {message.tool_call_id for message in context if message.text == NO_RESULT} == left
    return found


@pytest.mark.proof
@pytest.mark.parametrize("unanswered", list(Unanswered))
@pytest.mark.parametrize("store", ["sqlite:", "jsonl:"])
async def test_a_process_that_is_killed_at_any_moment_loses_and_doubles_nothing(
    launcher: Launcher, tmp_path: Path, store: str, unanswered: Unanswered
) -> None:
    orders = {
        "workspace": str(tmp_path / "workspace"),
        "store": store,
        "told": str(tmp_path / "told"),
        "done": str(tmp_path / "done"),
        "unanswered": unanswered.value,
        "turns": 3,
        "is_last": False,
    }
    chance = random.Random(f"{store} {unanswered}")
    left_open, open_calls_left = 0, 0
    for number in range(KILLS):
        moment = {"marks": chance.randrange(1, 12)} if number % 3 else {"rounds": chance.randrange(10, 1200)}
        life = {**orders, "rounds": None, "marks": None, **moment, "seed": number}
        launcher.start(life, log=tmp_path / "log").wait()
        found = await stored(tmp_path / "workspace", store)
        left_open += bool(open_calls(found))
        open_calls_left += len(open_calls(found))
    assert left_open > KILLS / 3, "hardly any kill came while tools ran: this proved nothing"
    life = {**orders, "rounds": None, "marks": None, "seed": "last", "turns": 1, "is_last": True}
    last = launcher.start(life, log=tmp_path / "log")
    assert last.wait() == 0, (tmp_path / "log").read_text()
    found = await stored(tmp_path / "workspace", store)
    assert open_calls(found) == []
    assert found[-1].text.startswith("re: ")

    told = lines(tmp_path / "told")
    said = Counter(message.text for message in found if message.text)
    assert max(said[text] for text in said if text.startswith(("user", "re:"))) == 1
    assert all(said[text] == 1 for one in told for text in one.values())
    runs = Counter(lines(tmp_path / "done"))
    asked = {call.id for message in found for call in message.tool_calls or ()}
    results = {message.tool_call_id: message for message in found if message.is_tool_result}
    assert asked == results.keys()
    assert runs.keys() <= asked, "a tool ran before its call was saved"
    assert all(runs[key] > 0 for key, result in results.items() if key and not result.is_error)
    twice = sum(count - 1 for count in runs.values())
    assert twice <= open_calls_left
    assert (twice > 0) == (unanswered is Unanswered.RUN)
