"""Strands Agents on our sessions: its messages come back, and it continues what others said."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from anyio import to_thread
from anyio.from_thread import start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("strands")
from strands import Agent, tool
from strands.models import Model
from strands.session.repository_session_manager import RepositorySessionManager
from strands.types.exceptions import SessionException
from strands.types.session import Session as StrandsSession
from strands.types.session import SessionAgent, SessionMessage, SessionType

from miniclaw_sessions.adapters import strands as adapter
from miniclaw_sessions.adapters.chats import read_messages
from miniclaw_sessions.adapters.strands import MiniclawSessionRepository
from miniclaw_sessions.adapters.strands_messages import from_strands, to_strands
from miniclaw_sessions.agent.agent import Agent as OurAgent
from miniclaw_sessions.agent.tools import calculator_tool
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import Custom, Entry, MessageEntry
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, Role, TextPart, ToolCall, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.tree import SessionTree
from miniclaw_sessions.core.session.unit import Unit
from miniclaw_sessions.core.stores import open_store
from miniclaw_sessions.core.stores.base import Store
from miniclaw_sessions.errors import InvalidMessage, SessionsError
from miniclaw_sessions.service.client import Client, ClientSession
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.adapters.examples import run_example
from tests.adapters.full_store import FullAfter
from tests.legality import is_legal
from tests.serving import asked

pytestmark = pytest.mark.anyio


PAID = Message(Role.ASSISTANT, "paid", usage=Usage(10, 5, cost=1.0), model="m")


class Scripted(Model):
    """A model that says what it is told to, and remembers what it was asked with."""

    stateful = False

    def __init__(self, *replies: list[dict[str, Any]]) -> None:
        self.replies = iter(replies)
        self.asked: list[list[dict[str, Any]]] = []

    def get_config(self) -> Any:
        return {}

    def update_config(self, **config: Any) -> None:
        """There is nothing to configure."""

    async def structured_output(self, *_: Any, **__: Any) -> Any:
        yield {}

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        self.asked.append([dict(message) for message in messages])
        blocks = next(self.replies)
        yield {"messageStart": {"role": "assistant"}}
        for block in blocks:
            use = block.get("toolUse")
            yield {"contentBlockStart": {"start": {"toolUse": use} if use else {}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": use["input"]}} if use else block}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if any("toolUse" in block for block in blocks) else "end_turn"}}


@tool
def double(x: int) -> str:
    """Doubles a number."""
    return f"{2 * x}"


def agent_of(repository: MiniclawSessionRepository, model: Model) -> Agent:
    return Agent(
        model=model,
        agent_id="helper",
        messages=repository.history("42", "helper"),
        session_manager=RepositorySessionManager(session_id="42", session_repository=repository),
        tools=[double],
        callback_handler=None,
    )


@pytest.fixture(params=["held", "asked"])
def repository(request: pytest.FixtureRequest, tmp_path: Path, store_url: str) -> Iterator[MiniclawSessionRepository]:
    """Over the manager of a process, and over a client that asks for its sessions."""
    with opened(tmp_path / "workspace", request.param, store_url) as repository:
        yield repository


@contextmanager
def opened(workspace: Path, place: str, store: str | Store) -> Iterator[MiniclawSessionRepository]:
    with start_blocking_portal() as portal, ExitStack() as stack:
        manager = stack.enter_context(portal.wrap_async_context_manager(SessionManager(workspace, store=store)))
        sessions: SessionManager | Client = manager
        if place == "asked":
            sessions = stack.enter_context(portal.wrap_async_context_manager(asked(manager)))
        repository = portal.call(MiniclawSessionRepository, sessions)
        repository.create_session(StrandsSession("s", SessionType.AGENT))
        repository.create_agent("s", SessionAgent("a", {"mood": "good"}, {}))
        yield repository


def said(text: str, number: int, role: str = "user") -> SessionMessage:
    return SessionMessage.from_dict({"message": {"role": role, "content": [{"text": text}]}, "message_id": number})


def calling(call_id: str) -> dict[str, Any]:
    use = {"toolUseId": call_id, "name": "double", "input": {"x": 1}}
    return {"role": "assistant", "content": [{"toolUse": use}]}


def answering(call_id: str) -> dict[str, Any]:
    result = {"toolUseId": call_id, "status": "success", "content": [{"text": f"result of {call_id}"}]}
    return {"role": "user", "content": [{"toolResult": result}]}


def shown(repository: MiniclawSessionRepository, session_id: str = "s", channel: str = "strands") -> list[str]:
    """What everybody else sees of the session."""

    async def read() -> list[str]:
        session = await repository.manager.get(channel, session_id)
        if isinstance(session, ClientSession):
            return [message.text for message in await session.messages()]
        assert session.journal.committed_sequence == session.last_sequence  # everything was acknowledged
        return [message.text for message in session.messages()]

    return repository._home.wait(read)


def in_session(repository: MiniclawSessionRepository, message: Message) -> None:
    async def add() -> None:
        await (await repository.manager.get("strands", "s")).add_message(message)

    repository._home.wait(add)


def cost(repository: MiniclawSessionRepository) -> float | None:
    async def read() -> float | None:
        session = await repository.manager.get("strands", "s")
        usage = await session.total_usage() if isinstance(session, ClientSession) else session.total_usage
        return usage.cost

    return repository._home.wait(read)


# --- one conversation ------------------------------------------------------------------------------------------------


def test_example_runs(tmp_path: Path) -> None:
    assert run_example(adapter, tmp_path) == "['I am Ada.', 'Hello Ada!']\n"


async def test_our_agent_and_strands_continue_each_other_over_restarts(tmp_path: Path) -> None:
    call = ToolCall("c1", "calculator", '{"expression": "6 * 7"}')
    provider = ScriptedProvider([Message.assistant("", (call,)), "It is 42."])
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", 42)
        agent = OurAgent(provider, tools=[calculator_tool()])
        await agent.reply(Message.user("What is 6 times 7?"), session=session)
    use = {"toolUseId": "c2", "name": "double", "input": '{"x": 42}'}
    model = Scripted([{"toolUse": use}], [{"text": "The double is 84."}])
    with MiniclawSessionRepository.opened(tmp_path, channel="telegram") as repository:
        helper = agent_of(repository, model)
        await helper.invoke_async("And the double?")
    seen = model.asked[0]
    assert [message["role"] for message in seen] == ["user", "assistant", "user", "assistant", "user"]
    assert seen[1]["content"][0]["toolUse"]["input"] == {"expression": "6 * 7"}
    assert seen[2]["content"][0]["toolResult"]["content"] == [{"text": "42"}]

    provider = ScriptedProvider(["You asked for 42 and 84."])
    async with SessionManager(tmp_path) as manager:
        session = await manager.get("telegram", 42)
        await OurAgent(provider).reply(Message.user("What did I ask?"), session=session)
    (context,) = provider.contexts
    assert is_legal(context) == []
    said = ["What is 6 times 7?", "", "42", "It is 42.", "And the double?", "", "84", "The double is 84."]
    assert [message.text for message in context] == [*said, "What did I ask?"]

    model = Scripted([{"text": "Goodbye."}])
    with MiniclawSessionRepository.opened(tmp_path, channel="telegram") as repository:
        await agent_of(repository, model).invoke_async("Bye.")
        everything = [*said, "What did I ask?", "You asked for 42 and 84.", "Bye.", "Goodbye."]
        assert shown(repository, "42", "telegram") == everything
    assert len(model.asked[0]) == len(everything) - 1


async def test_strands_agent_runs_on_a_loop_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    use = {"toolUseId": "c2", "name": "double", "input": '{"x": 21}'}
    with MiniclawSessionRepository.opened(tmp_path) as repository:
        agent = agent_of(repository, Scripted([{"toolUse": use}], [{"text": "It is 42."}]))
        agent.state.set("mood", "good")
        await agent.invoke_async("Double 21.")
    model = Scripted([{"text": "Goodbye."}])
    with MiniclawSessionRepository.opened(tmp_path) as repository:
        agent = agent_of(repository, model)
        assert agent.state.get("mood") == "good"
        await agent.invoke_async("Bye.")
        assert shown(repository, "42") == ["Double 21.", "", "42", "It is 42.", "Bye.", "Goodbye."]
    assert [message["role"] for message in model.asked[0]] == ["user", "assistant", "user", "assistant", "user"]
    async with SessionManager(tmp_path) as manager:
        session = await manager.get("strands", 42)
        context = (await session.get_context()).messages
        assert is_legal(context) == []
        assert context[1].tool_calls == (ToolCall("c2", "double", '{"x":21}'),)
        assert (context[1].author, context[2].tool_call_id) == ("helper", "c2")
        kinds = [entry.custom_type async for entry in session.tree.read_entries() if isinstance(entry, Custom)]
        assert "strands.agent" in kinds


def test_agent_is_given_what_others_said_and_numbers_on(repository: MiniclawSessionRepository) -> None:
    repository.create_message("s", "a", said("one", 0))
    in_session(repository, Message.assistant("from elsewhere"))
    listed = repository.list_messages("s", "a")
    assert [(m.message_id, m.message["content"][0]["text"]) for m in listed] == [(0, "one"), (1, "from elsewhere")]
    repository.create_message("s", "a", said("two", 2))
    assert [m.message_id for m in repository.list_messages("s", "a", offset=1, limit=2)] == [1, 2]
    found = repository.read_message("s", "a", 2)
    assert found is not None
    assert found.message["content"] == [{"text": "two"}]
    assert repository.read_message("s", "a", 3) is None


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize(
    "field",
    [
        *({}, 5, [], {"agent": "a"}, {"agent": "a", "of": 7}, {"of": 7}, {"of": []}, {"fields": {}}, {"json": "{"}),
        {"agent": "a", "message_id": 0},
        {"agent": "a", "message_id": "x", "fields": {"message": {}, "message_id": "x"}},
        {"agent": "a", "message_id": 9, "fields": {"message": {}, "message_id": 9}},
        {"agent": "a", "message_id": 9, "fields": {"message": {"role": "user", "content": 5}, "message_id": 9}},
        {"agent": "a", "message_id": 9, "fields": {"message": {"content": [5]}, "message_id": 9}},
    ],
)
def test_message_that_others_wrote_with_the_adapters_field_is_shown_as_theirs(
    repository: MiniclawSessionRepository, field: Any, role: str
) -> None:
    repository.create_message("s", "a", said("one", 0))
    in_session(repository, Message(Role(role), "by others", extra={"strands": field}))
    repository.create_message("s", "a", said("two", 2))
    assert shown(repository) == ["one", "by others", "two"]
    repository.update_message("s", "a", said("[redacted]", 0))
    assert shown(repository) == ["[redacted]", "by others", "two"]


def test_result_whose_first_part_was_taken_out_over_the_api_is_shown(repository: MiniclawSessionRepository) -> None:
    results = {"role": "user", "content": [*answering("c0")["content"], *answering("c1")["content"]]}
    calls = {"role": "assistant", "content": [*calling("c0")["content"], *calling("c1")["content"]]}
    for number, message in enumerate([calls, results]):
        repository.create_message("s", "a", SessionMessage.from_dict({"message": message, "message_id": number}))
    repository.create_message("s", "a", said("end", 2))

    async def take_out_the_first_result() -> None:
        tree = (await repository.manager.get("strands", "s")).tree
        branch = await tree.get_branch()
        await tree.replace(
            next(one.id for one in branch if isinstance(one, MessageEntry) and one.message.is_tool_result)
        )

    repository._home.wait(take_out_the_first_result)
    listed = [message.message for message in repository.list_messages("s", "a")]
    assert [block["toolResult"]["toolUseId"] for block in listed[1]["content"]] == ["c0", "c1"]
    assert listed[1]["content"][0]["toolResult"]["status"] == "error"
    assert shown(repository)[-1] == "end"


def test_agents_of_one_session_have_their_own_lists(repository: MiniclawSessionRepository) -> None:
    repository.create_message("s", "a", said("for a", 0))
    repository.create_message("s", "b", said("for b", 0))
    in_session(repository, Message.user("for all"))
    for name in ("a", "b"):
        listed = repository.list_messages("s", name)
        assert [m.message["content"][0]["text"] for m in listed] == [f"for {name}", "for all"]
    assert shown(repository) == ["for a", "for b", "for all"]


def test_what_others_say_while_a_message_is_redacted_stays_in_the_conversation(
    repository: MiniclawSessionRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, text in enumerate(("secret", "two")):
        repository.create_message("s", "a", said(text, number))
    look = SessionTree._around

    async def slow_look(self: SessionTree, *what: Any) -> tuple[Entry | None, list[Entry]]:
        monkeypatch.setattr(SessionTree, "_around", look)
        found = await look(self, *what)
        others = Unit(self._journal)
        others.add_message(Message.user("by others"))
        await others.save()
        return found

    monkeypatch.setattr(SessionTree, "_around", slow_look)  # the daemon is in this process, too
    repository.update_message("s", "a", said("[redacted]", 0))
    assert shown(repository) == ["[redacted]", "two", "by others"]


def test_reply_is_paid_for_once_though_a_message_before_it_is_redacted(repository: MiniclawSessionRepository) -> None:
    repository.create_message("s", "a", said("secret", 0))
    in_session(repository, PAID)
    repository.update_message("s", "a", said("[redacted]", 0))
    assert shown(repository) == ["[redacted]", "paid"]
    assert cost(repository) == 1.0


def test_a_message_with_several_results_is_replaced_as_a_whole(repository: MiniclawSessionRepository) -> None:
    results = {"role": "user", "content": [*answering("c0")["content"], *answering("c1")["content"]]}
    for number, message in enumerate([calling("c0"), results]):
        repository.create_message("s", "a", SessionMessage.from_dict({"message": message, "message_id": number}))
    repository.create_message("s", "a", said("end", 2))
    repository.update_message("s", "a", said("[redacted]", 1))
    assert shown(repository) == ["", "[redacted]", "end"]


def test_states_stay_though_a_message_before_them_is_redacted(repository: MiniclawSessionRepository) -> None:
    repository.create_message("s", "a", said("secret", 0))
    repository.create_agent("s", SessionAgent("b", {"mood": "new"}, {}))
    repository.create_message("s", "b", said("two", 0))
    repository.update_message("s", "a", said("[redacted]", 0))
    agent = repository.read_agent("s", "b")
    assert agent is not None
    assert agent.state == {"mood": "new"}


@pytest.mark.parametrize("place", ["held", "asked"])
@pytest.mark.parametrize("commits", [0, 1])
def test_conversation_is_whole_after_each_commit_of_a_redaction(tmp_path: Path, place: str, commits: int) -> None:
    store = FullAfter(open_store("sqlite:", tmp_path))
    with suppress(SessionsError), opened(tmp_path, place, store) as repository:
        for number, text in enumerate(("secret", "two", "three")):
            repository.create_message("s", "a", said(text, number))
            repository.create_agent("s", SessionAgent("b", {}, {}))
        store.commits = commits
        with suppress(SessionsError):
            repository.update_message("s", "a", said("[redacted]", 0))
    with MiniclawSessionRepository.opened(tmp_path) as repository:
        texts = [message["content"][0]["text"] for message in repository.history("s", "a")]
    assert texts == ["[redacted]" if commits else "secret", "two", "three"]


def test_redacted_message_is_gone_for_everybody_and_the_rest_stays(repository: MiniclawSessionRepository) -> None:
    for number, text in enumerate(("one", "secret", "three")):
        repository.create_message("s", "a", said(text, number))
    message = repository.list_messages("s", "a")[1]
    message.redact_message = {"role": "user", "content": [{"text": "[redacted]"}]}
    repository.update_message("s", "a", message)
    assert [m.to_message()["content"][0]["text"] for m in repository.list_messages("s", "a")] == [
        "one",
        "[redacted]",
        "three",
    ]
    assert shown(repository) == ["one", "[redacted]", "three"]
    assert repository.read_agent("s", "a") is not None
    with pytest.raises(SessionException, match="does not exist"):
        repository.update_message("s", "a", said("x", 9))


def test_states_are_kept_and_belong_to_the_branch(repository: MiniclawSessionRepository) -> None:
    agent = repository.read_agent("s", "a")
    assert agent is not None
    assert (agent.state, repository.read_agent("s", "b")) == ({"mood": "good"}, None)
    agent.state = {"mood": b"\xff", "deep": [[[2**70]]]}
    repository.update_agent("s", agent)
    assert repository.read_agent("s", "a") == agent
    with pytest.raises(SessionException, match="does not exist"):
        repository.update_agent("s", SessionAgent("b", {}, {}))
    with pytest.raises(SessionException, match="does not exist"):
        repository.create_agent("nobody", agent)


def test_strangers_entries_and_metadata_of_our_names_do_no_harm(repository: MiniclawSessionRepository) -> None:
    async def write() -> None:
        session = await repository.manager.get("strands", "s")
        for kind in (adapter.AGENT, adapter.MULTI_AGENT):
            for data in ({}, {"name": "a"}, {"name": "a", "fields": {}}, {"name": "a", "fields": 7}):
                if kind == adapter.AGENT or data != {"name": "a", "fields": {}}:
                    await session.tree.append_custom_entry(kind, data)

    repository._home.wait(write)
    agent = repository.read_agent("s", "a")
    assert agent is not None
    assert agent.state == {"mood": "good"}
    repository.update_agent("s", agent)
    assert repository.read_multi_agent("s", "a") is None


@pytest.mark.parametrize("metadata", [{}, 7, {"session_id": "s"}])
def test_session_with_strangers_metadata_of_our_name_is_taken_up(
    repository: MiniclawSessionRepository, metadata: Any
) -> None:
    async def write() -> None:
        session: Any = await repository.manager.get_or_create("strands", "t")
        updating = session.update(strands=metadata)
        await (session.saved() if isinstance(session, Session) else updating)

    repository._home.wait(write)
    assert repository.read_session("t") is None
    repository.create_session(StrandsSession("t", SessionType.AGENT))
    assert repository.read_session("t") is not None


def test_results_stand_behind_their_calls_where_two_gateways_spoke_in_turns(
    repository: MiniclawSessionRepository,
) -> None:
    for number, message in enumerate([*("q0", "q1"), *map(calling, ("c0", "c1")), *map(answering, ("c0", "c1")), "q2"]):
        told = {"role": "user", "content": [{"text": message}]} if isinstance(message, str) else message
        repository.create_message("s", "a", SessionMessage.from_dict({"message": told, "message_id": number}))
    listed = repository.history("s", "a")
    expected = ["q0", "q1", calling("c0"), answering("c0"), calling("c1"), answering("c1"), "q2"]
    assert [m["content"][0].get("text") or {"role": m["role"], "content": m["content"]} for m in listed] == expected


def test_results_of_one_message_stand_behind_the_call_that_any_of_them_answers(
    repository: MiniclawSessionRepository,
) -> None:
    results = {"role": "user", "content": [*answering("lost")["content"], *answering("c0")["content"]]}
    question = {"role": "user", "content": [{"text": "q0"}]}
    for number, message in enumerate([calling("c0"), question, results]):
        repository.create_message("s", "a", SessionMessage.from_dict({"message": message, "message_id": number}))
    assert [m.message_id for m in repository.list_messages("s", "a")] == [0, 2, 1]
    assert repository.list_messages("s", "a")[1].message == results


@pytest.mark.parametrize("begins", ["before the call", "behind the call"])
async def test_another_gateways_turn_while_a_tool_runs_takes_no_result_from_it(tmp_path: Path, begins: str) -> None:
    use = {"toolUseId": "c2", "name": "ask_elsewhere", "input": "{}"}
    others: list[Agent] = []

    with MiniclawSessionRepository.opened(tmp_path) as repository:
        model = Scripted([{"text": "Meanwhile."}])

        @tool
        async def ask_elsewhere() -> str:
            """Lets the same agent take a turn elsewhere."""
            agent = others.pop() if others else agent_of(repository, model)
            await agent.invoke_async("And?")
            return "done"

        agent = agent_of(repository, Scripted([{"toolUse": use}], [{"text": "It is done."}]))
        agent.tool_registry.register_tool(ask_elsewhere)
        if begins == "before the call":
            others.append(agent_of(repository, model))
        await agent.invoke_async("Do it.")
        said = [message["content"][0] for message in agent_of(repository, model).messages]
    assert [block.get("text") for block in said if "text" in block] == ["Do it.", "And?", "Meanwhile.", "It is done."]
    (place,) = (place for place, block in enumerate(said) if "toolUse" in block)
    assert said[place + 1]["toolResult"] == {"toolUseId": "c2", "status": "success", "content": [{"text": "done"}]}
    async with SessionManager(tmp_path) as manager:
        context = (await (await manager.get("strands", 42)).get_context()).messages
        assert is_legal(context) == []
        assert [message.text for message in context if message.is_tool_result] == ["done"]


def test_session_that_another_gateway_made_meanwhile_is_taken_up(repository: MiniclawSessionRepository) -> None:
    assert repository.read_session("new") is None
    elsewhere = repository._home.wait(lambda: _another(repository))
    assert elsewhere.read_session("new") is None
    made = elsewhere.create_session(StrandsSession("new", SessionType.AGENT))
    assert repository.create_session(StrandsSession("new", SessionType.AGENT)) == made
    with pytest.raises(SessionException, match="already exists"):
        repository.create_session(StrandsSession("new", SessionType.AGENT))


def test_of_two_threads_that_make_one_session_at_once_the_second_takes_it_up(
    repository: MiniclawSessionRepository,
) -> None:
    session = StrandsSession("new", SessionType.AGENT)
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        for thread in (first, second):
            assert thread.submit(repository.read_session, "new").result() is None
        made = first.submit(repository.create_session, session).result()
        assert second.submit(repository.create_session, session).result() == made
        for thread in (first, second):
            with pytest.raises(SessionException, match="already exists"):
                thread.submit(repository.create_session, session).result()


async def _another(repository: MiniclawSessionRepository) -> MiniclawSessionRepository:
    return MiniclawSessionRepository(repository.manager)


def test_session_is_made_once_and_deleted_whole(repository: MiniclawSessionRepository) -> None:
    with pytest.raises(SessionException, match="already exists"):
        repository.create_session(StrandsSession("s", SessionType.AGENT))
    found = repository.read_session("s")
    assert found is not None
    assert (found.session_id, found.session_type) == ("s", "AGENT")
    repository.delete_session("s")
    assert repository.read_session("s") is None
    assert repository.list_messages("s", "a") == []
    with pytest.raises(SessionException, match="does not exist"):
        repository.delete_session("s")


async def test_repository_of_a_loop_is_for_other_threads(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        repository = MiniclawSessionRepository(manager)
        with pytest.raises(RuntimeError, match="event loop"):
            repository.read_session("s")
        session = StrandsSession("s", SessionType.AGENT)
        assert await to_thread.run_sync(repository.create_session, session) == session


# --- messages --------------------------------------------------------------------------------------------------------

texts = st.text(max_size=5)
data = st.binary(max_size=9).map(lambda value: {"bytes": value})
results = st.lists(
    st.one_of(
        st.builds(lambda text: {"text": text}, texts),
        st.builds(lambda value: {"json": value}, st.dictionaries(texts, st.integers(), max_size=2)),
    ),
    max_size=2,
)
blocks = st.one_of(
    st.builds(lambda text: {"text": text}, texts),
    st.builds(lambda value: {"image": {"format": "png", "source": value}}, data),
    st.builds(lambda value: {"document": {"format": "pdf", "name": "d", "source": value}}, data),
    st.builds(lambda text: {"reasoningContent": {"reasoningText": {"text": text, "signature": "s"}}}, texts),
    st.builds(lambda value: {"reasoningContent": {"redactedContent": value}}, st.binary(max_size=4)),
    st.builds(lambda n: {"toolUse": {"toolUseId": n, "name": "f", "input": {n: 1}}}, st.sampled_from("pq")),
    st.builds(lambda n: {"toolUse": {"toolUseId": "p", "name": "f", "input": {"x": n}}}, st.integers()),
    st.builds(
        lambda n, content: {"toolResult": {"toolUseId": n, "status": "success", "content": content}},
        st.sampled_from("pq"),
        results,
    ),
)
messages = st.builds(
    lambda role, content: {"role": role, "content": content, "tracking_id": "t"},
    st.sampled_from(["user", "assistant"]),
    st.lists(blocks, max_size=3),
)


@given(st.lists(messages, max_size=4))
@settings(max_examples=40, deadline=None)
def test_any_messages_come_back(drawn: list[Any]) -> None:
    with TemporaryDirectory() as workspace, MiniclawSessionRepository.opened(workspace, store="memory:") as repository:
        repository.create_session(StrandsSession("s", SessionType.AGENT))
        given_messages = [SessionMessage.from_message(message, number) for number, message in enumerate(drawn)]
        for message in given_messages:
            repository.create_message("s", "a", message)
        listed = repository.list_messages("s", "a")
        assert sorted(listed, key=lambda message: message.message_id) == given_messages
        for place, message in enumerate(listed):
            if all(later.message_id > message.message_id for later in listed[place + 1 :]):
                continue  # it stands where it was said
            caller = max(at for at in range(place) if listed[at].message["role"] == "assistant")
            between = listed[caller + 1 : place + 1]
            called = ids_in(listed[caller], "toolUse")
            assert all(called & ids_in(one, "toolResult") for one in between), "what moved is behind another's call"


def ids_in(message: SessionMessage, kind: str) -> set[str]:
    content: list[Any] = list(message.message["content"])
    return {block[kind]["toolUseId"] for block in content if kind in block}


def test_message_is_told_to_others_in_their_words() -> None:
    image = {"image": {"format": "jpeg", "source": {"bytes": {"__bytes_encoded__": True, "data": "/9g="}}}}
    result = {"toolResult": {"toolUseId": "c1", "status": "error", "content": [{"json": {"rows": 2}}, image]}}
    first, second = from_strands({"role": "user", "content": [result, {"text": "see?"}]})
    assert (first.role, first.tool_call_id, first.is_error, first.text) == (Role.TOOL_RESULT, "c1", True, '{"rows":2}')
    assert first.content[1] == ImagePart("image/jpeg", "/9g=")
    assert second == Message.user("see?")
    with pytest.raises(InvalidMessage):
        from_strands({"role": "user", "content": "text"})


def test_what_only_others_can_use_is_left_out() -> None:
    picture = Message.user((ImagePart("image/png", url="https://example.org/a.png"),))
    (written,) = to_strands([picture])
    assert written["content"] == [{"text": "(a message without anything that can be shown here)"}]


def test_altered_messages_of_others_are_not_stored_again_and_keep_their_order(tmp_path: Path) -> None:
    odd = ToolCall("functions.weather:0", "the weather", "{}")
    heic = ImagePart("image/heic", "QUJD")
    with MiniclawSessionRepository.opened(tmp_path) as repository:

        async def said_by_others(messages: list[Message]) -> None:
            await (await repository.manager.get_or_create("strands", "42")).add_messages(messages)

        async def stored() -> list[Message]:
            session = await repository.manager.get("strands", "42")
            assert isinstance(session, Session)
            return await read_messages(session)

        in_home(
            repository, lambda: said_by_others([Message.user((TextPart("look"), heic)), Message.assistant("", (odd,))])
        )
        for turn in ("one", "two"):
            model = Scripted([{"text": f"reply {turn}"}])
            agent = agent_of(repository, model)
            agent(turn)
            calls = [b["toolUse"]["toolUseId"] for m in model.asked[0] for b in m["content"] if "toolUse" in b]
            results = [b["toolResult"]["toolUseId"] for m in model.asked[0] for b in m["content"] if "toolResult" in b]
            assert calls == results
            assert len(calls) == 1
        kept = in_home(repository, stored)
    assert [message.text for message in kept] == ["look", "", "one", "reply one", "two", "reply two"]


def in_home(repository: MiniclawSessionRepository, call: Any) -> Any:
    return repository._home.wait(call)
