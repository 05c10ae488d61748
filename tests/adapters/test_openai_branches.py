"""Branches and usage of openai-agents: the same of its own `AdvancedSQLiteSession` and of ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents")
import agents
from agents.extensions.memory import AdvancedSQLiteSession
from agents.testing import ScriptedModel, assistant_message, function_call

from miniclaw_sessions.adapters import openai_branches as adapter
from miniclaw_sessions.adapters.openai_branch_log import DELETED, SWITCH, USAGE
from miniclaw_sessions.adapters.openai_branches import MiniclawBranchingSession
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from tests.adapters.examples import run_example
from tests.serving import asked

pytestmark = pytest.mark.anyio


class Places:
    """A session of its own kind, or of ours: opened again, it has what it had."""

    def __init__(self, kind: str, directory: Path) -> None:
        self._kind, self._directory = kind, directory

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Any]:
        if self._kind == "its own":
            path = self._directory / "sessions.db"
            session = AdvancedSQLiteSession(session_id="1", db_path=path, create_tables=True)
            yield session
            session.close()
            return
        async with SessionManager(self._directory) as manager:
            if self._kind == "held":
                yield MiniclawBranchingSession(await manager.get_or_create("telegram", 1))
            else:
                async with asked(manager) as client:
                    yield MiniclawBranchingSession(await client.get_or_create("telegram", 1))


@pytest.fixture(params=["its own", "held", "asked"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Places:
    return Places(request.param, tmp_path)


async def say(session: Any, *texts: str) -> None:
    for text in texts:
        await session.add_items([{"role": "user", "content": text}, {"role": "assistant", "content": f"{text}!"}])


async def said(session: Any, **where: Any) -> list[str]:
    return [item["content"] for item in await session.get_items(**where) if item["role"] == "user"]


async def listed(session: Any) -> list[tuple[str, int, int, bool]]:
    return [
        (branch["branch_id"], branch["message_count"], branch["user_turns"], bool(branch["is_current"]))
        for branch in await session.list_branches()
    ]


def test_the_example_runs(tmp_path: Path) -> None:
    assert run_example(adapter, tmp_path) == "main 2 False\nagain 2 True\n"


async def test_a_branch_begins_before_a_turn_and_each_goes_on_by_itself(places: Places) -> None:
    async with places.opened() as session:
        await say(session, "a", "b", "c")
        assert await session.create_branch_from_turn(2, "again") == "again"
        assert await said(session) == ["a"]
        await say(session, "x")
        await session.switch_to_branch("main")
        await say(session, "d")
        assert await said(session) == ["a", "b", "c", "d"]
        assert await said(session, branch_id="again") == ["a", "x"]
        await session.switch_to_branch("again")
        assert await said(session) == ["a", "x"]
        assert sorted(await listed(session)) == [("again", 4, 2, True), ("main", 8, 4, False)]
        assert await said(session, limit=3) == ["x"]


async def test_what_was_popped_on_a_branch_stays_popped_when_it_is_left(places: Places) -> None:
    async with places.opened() as session:
        await say(session, "a", "b")
        await session.pop_item()
        await session.create_branch_from_turn(2, "again")
        await say(session, "x")
        await session.switch_to_branch("main")
        assert [item["content"] for item in await session.get_items()] == ["a", "a!", "b"]


async def test_what_is_wrong_is_refused(places: Places) -> None:
    async with places.opened() as session:
        await say(session, "a", "b")
        await session.create_branch_from_turn(2, "again")
        await say(session, "x")
        for wrong in (
            session.create_branch_from_turn(9),
            session.create_branch_from_turn(1, " "),
            session.create_branch_from_turn(1, "again"),
            session.create_branch_from_content("nothing like it"),
            session.switch_to_branch("another"),
            session.delete_branch("another"),
            session.delete_branch("main"),
            session.delete_branch("again"),
        ):
            with pytest.raises(ValueError, match=r"."):
                await wrong
        assert await said(session) == ["a", "x"]


async def test_a_deleted_branch_is_gone_and_its_name_stays_taken(places: Places) -> None:
    async with places.opened() as session:
        await say(session, "a", "b")
        await session.create_branch_from_turn(2, "again")
        await say(session, "x")
        await session.delete_branch("again", force=True)
        assert await listed(session) == [("main", 4, 2, True)]
        assert await said(session) == ["a", "b"]
        with pytest.raises(ValueError, match="again"):
            await session.create_branch_from_turn(2, "again")


async def test_turns_are_listed_and_found_by_their_text(places: Places) -> None:
    async with places.opened() as session:
        await say(session, "the weather", "the time")
        assert [(turn["turn"], turn["content"]) for turn in await session.get_conversation_turns()] == [
            *((1, "the weather"), (2, "the time"))
        ]
        assert [turn["turn"] for turn in await session.find_turns_by_content("time")] == [2]
        await session.create_branch_from_content("time", "again")
        assert await said(session) == ["the weather"]


async def test_items_are_listed_by_turn_with_their_tools(places: Places) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}", "namespace": "weather"}
    plain = {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}", "namespace": "look"}
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    asked_mcp = {"type": "mcp_call", "id": "mcp_1", "server_label": "wiki", "name": "read", "arguments": "{}"}
    async with places.opened() as session:
        await session.add_items([{"role": "system", "content": "be brief"}])
        await session.add_items([{"role": "user", "content": "the weather?"}, call, plain])
        results = [{"type": "function_call_output", "call_id": one, "output": "rain"} for one in ("c1", "c2")]
        await session.add_items([*results, searched, asked_mcp, {"role": "assistant", "content": "rain"}])
        await say(session, "bye")
        await session.create_branch_from_turn(2, "again")
        assert await session.get_conversation_by_turns("main") == {
            0: [{"type": "other", "tool_name": None}],
            1: [
                {"type": "user", "tool_name": None},
                {"type": "function_call", "tool_name": "weather.look"},
                {"type": "function_call", "tool_name": "look"},
                *2 * [{"type": "function_call_output", "tool_name": None}],
                {"type": "web_search_call", "tool_name": "web_search_call"},
                {"type": "mcp_call", "tool_name": "wiki.read"},
                {"type": "assistant", "tool_name": None},
            ],
            2: [{"type": "user", "tool_name": None}, {"type": "assistant", "tool_name": None}],
        }
        assert list(await session.get_conversation_by_turns()) == [0, 1]


async def test_runs_are_counted_by_turn_and_branch(places: Places) -> None:
    call = function_call("look", {}, call_id="c1", item_id="fc_1")
    replies = [[call], [assistant_message("rain")], [assistant_message("bye")], [assistant_message("sun")]]

    @agents.function_tool(name_override="look")
    def look() -> str:
        """Looks."""
        return "rain"

    agent = agents.Agent(name="helper", model=ScriptedModel(replies), tools=[look])
    async with places.opened() as session:
        assert await session.get_session_usage() is None
        for question in ("the weather?", "bye"):
            result = await agents.Runner.run(agent, question, session=session)
            result.context_wrapper.usage.add(
                agents.Usage(requests=1, input_tokens=10, output_tokens=2, total_tokens=12)
            )
            await session.store_run_usage(result)
        first, second = await session.get_turn_usage()
        assert (first["user_turn_number"], first["input_tokens"], second["user_turn_number"]) == (1, 10, 2)
        assert (await session.get_turn_usage(2))["total_tokens"] == 12
        assert await session.get_turn_usage(7) == {}
        assert await session.get_tool_usage() == [("look", 1, 1)]
        usage = await session.get_session_usage()
        assert (usage["input_tokens"], usage["total_tokens"], usage["total_turns"]) == (20, 24, 2)
        await session.create_branch_from_turn(2, "again")
        await session.store_run_usage(await agents.Runner.run(agent, "and now?", session=session))
        assert (await session.get_session_usage("main"))["total_turns"] == 2
        assert (await session.get_session_usage("again"))["total_turns"] == 1
        assert (await session.get_session_usage())["total_turns"] == 3


# --- what ours promises besides --------------------------------------------------------------------------------------


async def test_branches_are_there_after_a_restart_for_everybody(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        session = MiniclawBranchingSession(await manager.get_or_create("telegram", 1))
        await say(session, "a", "b")
        await session.create_branch_from_turn(2)
        await say(session, "x")
    async with SessionManager(tmp_path) as manager:
        ours = await manager.get_or_create("telegram", 1)
        await ours.add_messages([Message.user("by another")])
        session = MiniclawBranchingSession(ours)
        assert await said(session) == ["a", "x", "by another"]
        assert await listed(session) == [("main", 4, 2, False), ("branch_from_turn_2_1", 5, 3, True)]


async def test_a_switch_that_a_kill_cut_in_two_did_not_take_place(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        ours = await manager.get_or_create("telegram", 1)
        session = MiniclawBranchingSession(ours)
        await say(session, "a", "b")
        await session.create_branch_from_turn(2, "again")
        await say(session, "x")
        tip = (await session._log()).tip("main")
        unit = ours.unit()
        unit.add_custom(SWITCH, {"to": "main", "at": tip})
        await unit.save()  # and the leaf does not move
        await say(session, "y")
        assert await listed(session) == [("main", 4, 2, False), ("again", 6, 3, True)]
        await session.switch_to_branch("main")
        assert await said(session) == ["a", "b"]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (SWITCH, {}),
        (SWITCH, {"to": "x"}),
        (SWITCH, {"to": 7, "at": None}),
        (DELETED, {}),
        (DELETED, {"branch": ["main"]}),
        (DELETED, {"branch": "main"}),
        (USAGE, {}),
        (USAGE, {"requests": "one"}),
    ],
)
async def test_strangers_custom_entries_of_our_type_do_no_harm(tmp_path: Path, kind: str, data: dict[str, Any]) -> None:
    async with SessionManager(tmp_path) as manager:
        ours = await manager.get_or_create("telegram", 1)
        session = MiniclawBranchingSession(ours)
        await say(session, "a", "b")
        await session.create_branch_from_turn(2, "again")
        await say(session, "x")
        await ours.tree.append_custom_entry(kind, data)
        assert await listed(session) == [("main", 4, 2, False), ("again", 4, 2, True)]
        assert await session.get_session_usage() is None
        assert await session.get_turn_usage() == []
        await session.switch_to_branch("main")
        assert await said(session) == ["a", "b"]


async def test_usage_counts_once_though_its_turn_is_repeated_without_an_entry_before_it(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        ours = await manager.get_or_create("telegram", 1)
        session = MiniclawBranchingSession(ours)
        await say(session, "a", "b")
        counts = {"requests": 1, "input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
        await ours.tree.append_custom_entry(USAGE, counts)
        await ours.tree.replace((await ours.tree.get_branch())[0].id)
        assert await session.get_session_usage() == {**counts, "total_turns": 1}


async def test_branches_are_switched_whatever_the_session_notes_of_itself_between(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        held = await manager.get_or_create("telegram", 1)
        ours = MiniclawBranchingSession(held)
        await say(ours, "one", "two")
        held.update(topic="first")
        await ours.create_branch_from_turn(2, "other")
        held.update(topic="second")
        await say(ours, "three")
        held.update(topic="third")
        await ours.switch_to_branch("main")
        assert await said(ours) == ["one", "two"]
        held.update(topic="fourth")
        await ours.switch_to_branch("other")
        assert await said(ours) == ["one", "three"]
        await say(ours, "four")
        fork = await held.fork(leaf_id=held.leaf_id)
        assert await said(MiniclawBranchingSession(fork)) == ["one", "three", "four"]
