"""A model looks up what was said: in its own chat, or in all of them where that is wanted."""

from __future__ import annotations

from typing import Any

import anyio
import orjson
import pytest

from miniclaw_sessions.agent import history_tool as history_tool_module
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.history_tool import MAX_RESULTS, RESULT_LENGTH, history_tool
from miniclaw_sessions.agent.providers.configured import open_agent
from miniclaw_sessions.config import Settings, load_settings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.core.session import Session, searching
from miniclaw_sessions.errors import AgentError
from miniclaw_sessions.testing.provider import ScriptedProvider

pytestmark = pytest.mark.anyio


def call(**arguments: Any) -> Message:
    return Message.assistant("", (ToolCall("c1", "search_history", orjson.dumps(arguments).decode()),))


async def looked_up(session: Session, manager: SessionManager | None, **arguments: Any) -> Message:
    """What the model is told when it calls the tool, in a turn of the real loop."""
    provider = ScriptedProvider([call(**arguments), "I see."])
    agent = Agent(provider, tools=[history_tool(manager)])
    reply = await agent.reply(Message.user(f"What did I say about {arguments.get('query')}?"), session=session)
    assert reply.text == "I see."
    return provider.contexts[-1][-1]


async def test_a_model_finds_what_it_no_longer_sees(session: Session) -> None:
    await session.add_message(Message.user("My cat is called Mitzi."))
    for number in range(60):
        await session.add_message(Message.user(f"Something else {number}"))
    assert all("Mitzi" not in message.text for message in session.messages())
    result = await looked_up(session, None, query="cat")
    assert (result.is_error, result.name) == (False, "search_history")
    assert "My cat is called Mitzi." in result.text
    assert "user, entry 1]" in result.text
    assert "What did I say" not in result.text  # the question itself is no answer


async def test_a_model_finds_nothing_of_other_chats_unless_it_may(manager: SessionManager, session: Session) -> None:
    other = await manager.get_or_create("slack", 7)
    other.update(title="Secrets")
    await other.add_message(Message.user("The password is swordfish."))
    await session.add_message(Message.user("A password is needed."))
    own = await looked_up(session, None, query="password")
    assert "swordfish" not in own.text
    assert "slack" not in own.text
    everywhere = await looked_up(session, manager, query="password")
    assert "user, slack_7, entry 2 (Secrets)]\nThe password is swordfish." in everywhere.text
    assert "telegram_1, entry 1]\nA password is needed." in everywhere.text


async def test_a_model_finds_only_what_its_conversation_goes_on_from(session: Session) -> None:
    first = await session.add_message(Message.user("rome one"))
    await session.add_message(Message.user("rome two"))
    await session.tree.branch(first.id)
    found = (await looked_up(session, None, query="rome")).text
    assert "rome one" in found
    assert "rome two" not in found
    session.clear()
    assert "Nothing was found in this conversation" in (await looked_up(session, None, query="rome")).text


async def test_results_are_bounded_and_go_on(session: Session) -> None:
    for number in range(25):
        await session.add_message(Message.user(f"rome {number} " + "very long " * 5_000))
    entries, more = list[str](), dict[str, str]()
    while True:
        text = (await looked_up(session, None, query="rome long", role="user", before="2999-01-01", **more)).text
        assert len(text) <= MAX_RESULTS * (RESULT_LENGTH + 100) + 1_000
        found, _, cursor = text.partition("\n\nnext: ")
        entries += [line.split("entry ")[1] for line in found.splitlines() if line.startswith("[")]
        if not cursor:
            break
        more = {"next": cursor}
    assert len([one for one in entries if int(one.rstrip("]")) <= 25]) == 25
    assert len(entries) == len(set(entries))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "nothing to search for"),
        ({"query": "x" * 100_000}, "100,000 characters"),
        ({"query": "a\0b"}, "NUL"),
        ({"query": "x", "role": "boss"}, "no role 'boss'"),
        ({"query": "x", "after": "soon"}, "after is no time"),
        ({"query": "x", "next": "y"}, "cursor"),
        ({"query": 7}, "Nothing was found"),
        ({"query": "'; drop table entries; --"}, "Nothing was found"),
    ],
)
async def test_a_wrong_call_is_explained_to_the_model(
    session: Session, arguments: dict[str, Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider = ScriptedProvider([call(**arguments), "I see."])
    await Agent(provider, tools=[history_tool()]).reply(Message.user("hello"), session=session)
    assert told in provider.contexts[-1][-1].text
    assert "drop table" not in caplog.text
    assert "xxx" not in caplog.text


async def test_a_query_may_be_a_time_or_what_must_not_occur(session: Session) -> None:
    await session.add_message(Message.user("rome"))
    await session.add_message(Message.user("paris"))
    found = (await looked_up(session, None, query="", after="2020-01-01")).text
    assert "rome" in found
    found = (await looked_up(session, None, query="-rome", role="user")).text
    assert "paris" in found


async def test_a_page_without_results_is_not_the_end(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await session.add_message(Message.user("rome one"))
    await session.add_message(Message.user("the needle of rome"))
    for number in range(60):
        await session.tree.branch(first.id)
        await session.add_message(Message.user(f"rome {number}, no needle, on a branch that is left"))
    await session.tree.branch((await session.search('"the needle"')).results[0].entry_id)
    monkeypatch.setattr(searching, "WINDOW", 2)
    assert (await session.search("rome", branch="current")).results == ()
    with monkeypatch.context() as patch:
        patch.setattr(history_tool_module, "MAX_PAGES", 1)
        text = (await looked_up(session, None, query="rome")).text
    assert "not everything was looked through" in text
    assert "\n\nnext: " in text
    assert "the needle of rome" in (await looked_up(session, None, query="needle")).text


async def test_two_chats_that_ask_at_once_each_search_their_own(manager: SessionManager) -> None:
    found: dict[str, str] = {}
    agent = Agent(
        ScriptedProvider(lambda context: "done" if context[-1].is_tool_result else call(query="secret")),
        tools=[history_tool()],
    )

    async def ask(chat: str) -> None:
        session = await manager.get_or_create("telegram", chat)
        await session.add_message(Message.user(f"the secret of {chat}"))
        await agent.reply(Message.user("?"), session=session)
        found[chat] = session.messages()[-2].text

    async with anyio.create_task_group() as tasks:
        for chat in "abcdef":
            tasks.start_soon(ask, chat, name=f"chat {chat}")
    for chat, text in found.items():
        assert [other for other in "abcdef" if f"the secret of {other}" in text] == [chat]


async def test_outside_of_a_turn_the_tool_says_so() -> None:
    with pytest.raises(AgentError, match="within a turn"):
        await history_tool().run({"query": "x"})


async def test_the_settings_offer_the_tool_and_keep_it_in_its_own_chat(manager: SessionManager) -> None:
    async with open_agent(Settings(), manager) as agent:
        assert [tool.name for tool in agent.tools] == ["time", "calculator"]
    environ = {"MINICLAW_MODEL_TOOLS": "search_history"}
    for more, where in (({}, "this conversation"), ({"MINICLAW_MODEL_SEARCH_ALL_CHATS": "true"}, "all conversations")):
        async with open_agent(load_settings(None, {**environ, **more}).settings, manager) as agent:
            (tool,) = agent.tools
            assert (tool.name, where in tool.description) == ("search_history", True)
