"""The Agents SDK's own `OpenAIConversationsSession` against a daemon of ours: what its tests check, and its examples.

Nothing of the SDK is changed; its session has the `openai` package's client, whose base URL is ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx2
import openai
import pytest
from agents import Agent, OpenAIConversationsSession, Runner, SessionSettings, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from miniclaw_sessions.adapters.openai_agents import MiniclawSession
from miniclaw_sessions.agent.agent import Agent as Assistant
from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.testing import ScriptedProvider
from tests.legality import is_legal
from tests.serving import serving

pytestmark = pytest.mark.anyio

Item = dict[str, Any]


@asynccontextmanager
async def daemon(directory: Path) -> AsyncIterator[tuple[SessionManager, AsyncOpenAI]]:
    """A daemon on a workspace, and the package's client on its socket."""
    socket = directory / "s"
    http = DefaultAsyncHttpxClient(transport=httpx2.AsyncHTTPTransport(uds=str(socket), verify=False))
    async with (
        SessionManager(directory / "w") as manager,
        serving(manager, socket, Assistant(ScriptedProvider([]))),
        AsyncOpenAI(base_url="http://miniclaw/v1", api_key="any", http_client=http, max_retries=0) as client,
    ):
        yield manager, client


@pytest.fixture
async def held(short_path: Path) -> AsyncIterator[tuple[SessionManager, AsyncOpenAI]]:
    async with daemon(short_path) as both:
        yield both


@pytest.fixture
def manager(held: tuple[SessionManager, AsyncOpenAI]) -> SessionManager:
    return held[0]


@pytest.fixture
def client(held: tuple[SessionManager, AsyncOpenAI]) -> AsyncOpenAI:
    return held[1]


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def said(items: list[Any]) -> list[str]:
    return [
        item["content"][0]["text"] if item["type"] == "message" else item.get("name") or item.get("output")
        for item in items
    ]


# --- what its own tests check ----------------------------------------------------------------------------------------


async def test_it_begins_with_the_first_call_and_can_be_taken_up_by_its_id(client: AsyncOpenAI) -> None:
    session = OpenAIConversationsSession(openai_client=client)
    with pytest.raises(ValueError, match="not yet available"):
        _ = session.session_id
    assert await session.get_items() == []
    await session.add_items([user("hello")])
    again = OpenAIConversationsSession(conversation_id=session.session_id, openai_client=client)
    assert said(await again.get_items()) == ["hello"]


@pytest.mark.parametrize("count", [1, 20, 21, 45])
async def test_items_of_any_number_come_back_in_order(client: AsyncOpenAI, count: int) -> None:
    session = OpenAIConversationsSession(openai_client=client)
    await session.add_items([user(f"{number}") for number in range(count)])
    assert said(await session.get_items()) == [f"{number}" for number in range(count)]


async def test_a_limit_gives_the_newest_in_order_also_beyond_a_page(client: AsyncOpenAI) -> None:
    session = OpenAIConversationsSession(openai_client=client, session_settings=SessionSettings(limit=3))
    await session.add_items([user(f"{number}") for number in range(230)])
    assert said(await session.get_items()) == ["227", "228", "229"]
    assert said(await session.get_items(limit=150)) == [f"{number}" for number in range(80, 230)]
    assert said(await session.get_items(limit=500)) == [f"{number}" for number in range(230)]
    assert await session.get_items(limit=0) == []


async def test_pop_takes_the_newest_until_there_is_none(manager: SessionManager, client: AsyncOpenAI) -> None:
    session = OpenAIConversationsSession(openai_client=client)
    answer = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
    await session.add_items(cast("Any", [user("weather?"), {"role": "assistant", "content": "I look."}, answer]))
    for expected in ("weather", "I look.", "weather?"):
        popped: Any = await session.pop_item()
        assert said([popped]) == [expected]
    assert await session.pop_item() is None
    ours = await manager.find(session.session_id)
    assert ours.messages() == []


async def test_clearing_forgets_the_conversation_and_the_next_item_begins_another(
    manager: SessionManager, client: AsyncOpenAI
) -> None:
    session = OpenAIConversationsSession(openai_client=client)
    await session.clear_session()  # there is nothing yet
    await session.add_items([user("one")])
    before = session.session_id
    await session.clear_session()
    with pytest.raises(openai.NotFoundError):
        await client.conversations.retrieve(before)
    await session.add_items([user("two")])
    assert session.session_id != before
    assert said(await session.get_items()) == ["two"]
    assert [summary.session_id for summary in await manager.list()] == [session.session_id]


async def test_first_writes_at_once_share_one_conversation(manager: SessionManager, client: AsyncOpenAI) -> None:
    session = OpenAIConversationsSession(openai_client=client)
    await asyncio.gather(*(session.add_items([user(f"{number}")]) for number in range(8)))
    assert sorted(said(await session.get_items())) == [f"{number}" for number in range(8)]
    assert len(await manager.list()) == 1


async def test_conversations_are_kept_apart(client: AsyncOpenAI) -> None:
    sessions = [OpenAIConversationsSession(openai_client=client) for _ in range(3)]
    await asyncio.gather(*(one.add_items([user(f"of {place}")]) for place, one in enumerate(sessions)))
    for place, one in enumerate(sessions):
        assert said(await one.get_items()) == [f"of {place}"]


async def test_a_failure_is_told_and_the_session_is_usable_after_it(client: AsyncOpenAI) -> None:
    session = OpenAIConversationsSession(conversation_id="conv_nobody", openai_client=client)
    for call in (session.get_items(), session.add_items([user("x")]), session.pop_item(), session.clear_session()):
        with pytest.raises(openai.NotFoundError):
            await call
    session.session_id = (await client.conversations.create()).id
    await session.add_items([user("now")])
    with pytest.raises(openai.BadRequestError):
        await session.add_items([user("fine"), cast("Any", {"content": "whose?"})])
    assert said(await session.get_items()) == ["now"]


# --- its examples ----------------------------------------------------------------------------------------------------


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"18 degrees in {city}"


async def test_a_run_with_tools_is_remembered_over_a_restart(short_path: Path) -> None:
    model = ScriptedModel(
        [
            [
                function_call("weather", {"city": "Paris"}, call_id="c1"),
                function_call("weather", {"city": "Oslo"}, call_id="c2"),
            ],
            [assistant_message("Mild in both.")],
            [assistant_message("You asked about Paris and Oslo.")],
        ]
    )
    agent = Agent(name="assistant", model=model, tools=[weather])
    async with daemon(short_path) as (_, client):
        session = OpenAIConversationsSession(openai_client=client)
        result = await Runner.run(agent, "Weather in Paris and Oslo?", session=session)
        assert result.final_output == "Mild in both."
        conversation = session.session_id
    expected = ["Weather in Paris and Oslo?", "weather", "weather", "18 degrees in Paris", "18 degrees in Oslo"]
    async with daemon(short_path) as (manager, client):
        session = OpenAIConversationsSession(conversation_id=conversation, openai_client=client)
        assert said(await session.get_items()) == [*expected, "Mild in both."]
        ours = await manager.find(conversation)
        assert is_legal(build_context(ours.messages())) == []
        assert (await Runner.run(agent, "Where?", session=session)).final_output.startswith("You asked")
        assert model.last_call is not None
        heard: Any = model.last_call.input
        assert [item.get("type", "message") for item in heard] == [
            *("message", "function_call", "function_call", "function_call_output", "function_call_output"),
            *("message", "message"),
        ]
        assert [item.get("call_id") for item in heard[1:5]] == ["c1", "c2", "c1", "c2"]


async def test_a_streamed_run_is_kept_like_any_other(client: AsyncOpenAI) -> None:
    session = OpenAIConversationsSession(openai_client=client)
    agent = Agent(name="assistant", model=ScriptedModel([[assistant_message("Hello Ada!")]]))
    result = Runner.run_streamed(agent, "I am Ada.", session=session)
    assert [event.type async for event in result.stream_events()]
    assert said(await session.get_items()) == ["I am Ada.", "Hello Ada!"]


async def test_a_handoff_goes_on_in_the_same_conversation(client: AsyncOpenAI) -> None:
    spanish = Agent(name="Spanish", model=ScriptedModel([[assistant_message("¡Hola!")], [assistant_message("Adiós.")]]))
    triage = Agent(
        name="Triage",
        model=ScriptedModel([[function_call("transfer_to_spanish", {}, call_id="h1")]]),
        handoffs=[spanish],
    )
    session = OpenAIConversationsSession(openai_client=client)
    result = await Runner.run(triage, "Hola", session=session)
    assert (result.final_output, result.last_agent.name) == ("¡Hola!", "Spanish")
    assert (await Runner.run(spanish, "Adiós", session=session)).final_output == "Adiós."
    items = await session.get_items()
    assert [cast("Any", item)["type"] for item in items] == [
        *("message", "function_call", "function_call_output", "message", "message", "message")
    ]


async def test_an_approval_is_waited_for_and_the_run_goes_on(client: AsyncOpenAI) -> None:
    @function_tool(needs_approval=True)
    def delete_all() -> str:
        """Delete everything."""
        return "all is gone"

    model = ScriptedModel([[function_call("delete_all", {}, call_id="d1")], [assistant_message("Done.")]])
    agent = Agent(name="assistant", model=model, tools=[delete_all])
    session = OpenAIConversationsSession(openai_client=client)
    result = await Runner.run(agent, "Delete it.", session=session)
    assert len(result.interruptions) == 1
    state = result.to_state()
    state.approve(result.interruptions[0])
    result = await Runner.run(agent, state, session=session)
    assert result.final_output == "Done."
    assert said(await session.get_items()) == ["Delete it.", "delete_all", "all is gone", "Done."]


async def test_both_ways_of_the_framework_see_the_same_items(manager: SessionManager, client: AsyncOpenAI) -> None:
    """`MiniclawSession` on a session, and `OpenAIConversationsSession` on the conversation that it is."""
    theirs = OpenAIConversationsSession(openai_client=client)
    await theirs.add_items([user("over HTTP")])
    ours = MiniclawSession(await manager.find(theirs.session_id))
    await ours.add_items([user("in process")])
    assert [cast("Any", item)["content"] for item in await ours.get_items()] == ["over HTTP", "in process"]
    assert said(await theirs.get_items()) == ["over HTTP", "in process"]
    await theirs.pop_item()
    assert [cast("Any", item)["content"] for item in await ours.get_items()] == ["over HTTP"]


async def test_what_only_python_can_say_is_listed_all_the_same(manager: SessionManager, client: AsyncOpenAI) -> None:
    ours = MiniclawSession(await manager.get_or_create("telegram", 1))
    odd: Any = [{"role": "user", "content": "half \ud83d"}, {"type": "mcp_call", "id": "m_1", "big": 2**70}]
    await ours.add_items(odd)
    items = [item.model_dump() async for item in client.conversations.items.list("telegram_1", order="asc")]
    assert (items[0]["content"][0]["text"], items[1]["big"]) == ("half \ud83d", 2**70)
    for item in items:
        found = await client.conversations.items.retrieve(item["id"], conversation_id="telegram_1")
        assert found.model_dump() == item


async def test_ids_that_the_framework_gives_many_items_are_not_the_conversations(
    manager: SessionManager, client: AsyncOpenAI
) -> None:
    """Runs on `MiniclawSession` keep what models say, such as `__fake_id__`; a page begins behind one item."""
    ours = MiniclawSession(await manager.get_or_create("telegram", 2))
    model = ScriptedModel([[assistant_message(f"answer {number}", item_id="__fake_id__")] for number in range(5)])
    for number in range(5):
        await Runner.run(Agent(name="assistant", model=model), f"{number}", session=ours)
    for order in ("asc", "desc"):
        pages = client.conversations.items.list("telegram_2", order=order, limit=1)
        items = [item.model_dump() async for item in pages]
        assert len({item["id"] for item in items}) == len(items) == 10
    assert "__fake_id__" in {item.get("id") for item in cast("Any", await ours.get_items())}
