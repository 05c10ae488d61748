"""What google-adk asks of a session service, on its own services and on ours, and one conversation for all.

Run by `test_google_adk.py`, in an environment that has google-adk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import BaseSessionService, InMemorySessionService
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

from miniclaw_sessions.adapters import google_adk as adapter
from miniclaw_sessions.adapters.chats import _HeldChat, _RemoteChat
from miniclaw_sessions.adapters.google_adk import MiniclawSessionService
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import Custom
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.errors import InvalidMessage, SessionLimit
from miniclaw_sessions.service.client import Client
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.adapters.examples import run_example

pytestmark = pytest.mark.anyio

ADA: dict[str, Any] = {"app_name": "app", "user_id": "ada"}


@pytest.fixture
async def ours(sessions: SessionManager | Client) -> MiniclawSessionService:
    return MiniclawSessionService(sessions)


@pytest.fixture(params=["ours", "in memory", "sqlite"])
def service(request: pytest.FixtureRequest, ours: MiniclawSessionService, tmp_path: Path) -> BaseSessionService:
    """Ours, and theirs to be compared with."""
    services = {"ours": ours, "in memory": InMemorySessionService()}
    return services.get(request.param) or SqliteSessionService(str(tmp_path / "theirs.db"))


def said(text: str, author: str = "user", *, at: float | None = None, **state: Any) -> Event:
    content = types.Content(role="user" if author == "user" else "model", parts=[types.Part(text=text)])
    actions = EventActions(state_delta={name.replace("__", ":"): value for name, value in state.items()})
    event = Event(id=Event.new_id(), invocation_id="i1", author=author, content=content, actions=actions)
    return event if at is None else event.model_copy(update={"timestamp": at})


def texts(events: list[Event]) -> list[str]:
    return ["".join(part.text or "" for part in event.content.parts or []) if event.content else "" for event in events]


# --- what every service must do ----------------------------------------------------------------------------------


async def test_session_is_made_read_listed_and_deleted(service: BaseSessionService) -> None:
    made = await service.create_session(**ADA, state={"key": "value"}, session_id=" s1 ")
    assert (made.id, made.state, made.events) == ("s1", {"key": "value"}, [])
    assert await service.get_session(**ADA, session_id="s1") == made
    other = await service.create_session(app_name="app", user_id="bob/s1")
    await service.create_session(app_name="other", user_id="ada")
    listed = (await service.list_sessions(app_name="app")).sessions
    assert [session.id for session in listed] == ["s1", other.id]
    assert [session.id for session in (await service.list_sessions(**ADA)).sessions] == ["s1"]
    assert listed[0].state == {"key": "value"}
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**ADA, session_id="s1")
    await service.delete_session(**ADA, session_id="s1")
    await service.delete_session(**ADA, session_id="s1")
    assert await service.get_session(**ADA, session_id="s1") is None
    assert (await service.list_sessions(**ADA)).sessions == []


async def test_state_is_shared_as_its_prefix_says(service: BaseSessionService) -> None:
    first = await service.create_session(**ADA, session_id="1", state={"user:a": 1, "app:b": 2, "c": 3, "temp:t": 4})
    second = await service.create_session(**ADA, session_id="2")
    bobs = await service.create_session(app_name="app", user_id="bob", session_id="1")
    assert first.state == {"user:a": 1, "app:b": 2, "c": 3}
    assert second.state == {"user:a": 1, "app:b": 2}
    assert bobs.state == {"app:b": 2}
    delta: dict[str, Any] = {"user__a": None, "app__b": [1], "c": {"d": None}, "temp__t": 5}
    await service.append_event(first, said("hi", **delta))
    assert first.state == {"user:a": None, "app:b": [1], "c": {"d": None}, "temp:t": 5}
    assert "temp:t" not in first.events[0].actions.state_delta
    again = await service.get_session(**ADA, session_id="1")
    assert again is not None
    assert again.state == {"user:a": None, "app:b": [1], "c": {"d": None}}
    assert (await service.get_session(**ADA, session_id="2")).state == {"user:a": None, "app:b": [1]}  # type: ignore[union-attr]
    assert await service.get_user_state(**ADA) == {"a": None}
    assert await service.get_user_state(app_name="app", user_id="nobody") == {}


async def test_newest_events_are_chosen(service: BaseSessionService) -> None:
    session = await service.create_session(**ADA, session_id="1")
    for place in range(1, 6):
        await service.append_event(session, said(str(place), at=float(place)))

    async def events(**config: Any) -> list[str]:
        found = await service.get_session(**ADA, session_id="1", config=GetSessionConfig(**config))
        assert found is not None
        return texts(found.events)

    assert await events() == ["1", "2", "3", "4", "5"]
    assert await events(num_recent_events=2) == ["4", "5"]
    assert await events(num_recent_events=0) == []
    assert await events(num_recent_events=9) == ["1", "2", "3", "4", "5"]
    assert await events(after_timestamp=4.0) == ["4", "5"]
    assert await events(after_timestamp=50.0) == []
    assert await events(after_timestamp=2.0, num_recent_events=3) == ["3", "4", "5"]


async def test_event_comes_back_as_it_was(service: BaseSessionService) -> None:
    session = await service.create_session(**ADA, session_id="1")
    call = types.FunctionCall(id="c1", name="look", args={"x": [1, None]})
    answers = [
        types.Part(function_response=types.FunctionResponse(id=f"c{n}", name="look", response={"rows": [n]}))
        for n in (1, 2)
    ]
    events = [
        said("hello"),
        Event(author="agent", content=types.Content(role="model", parts=[types.Part(function_call=call)])),
        Event(author="agent", content=types.Content(role="user", parts=answers)),
        Event(
            author="agent",
            content=types.Content(
                role="model",
                parts=[
                    types.Part(text="hm", thought=True, thought_signature=b"\xff\xfe\x00sig"),
                    types.Part.from_bytes(data=bytes(range(256)), mime_type="image/png"),
                    types.Part(executable_code=types.ExecutableCode(code="1", language=types.Language.PYTHON)),
                ],
            ),
            grounding_metadata=types.GroundingMetadata(search_entry_point=types.SearchEntryPoint(sdk_blob=b"\x00\xff")),
            usage_metadata=types.GenerateContentResponseUsageMetadata(prompt_token_count=3),
            model_version="gemini",
            finish_reason=types.FinishReason.STOP,
        ),
        Event(author="agent", content=types.Content(parts=[types.Part(text="no role")])),
        Event(
            author="agent",
            turn_complete=True,
            partial=False,
            actions=EventActions(artifact_delta={"file": 0}, transfer_to_agent="agent", escalate=True),
            long_running_tool_ids={"tool1"},
            error_code="error_code",
            error_message="error_message",
            interrupted=True,
            branch="a.b",
        ),
        Event(author="agent", custom_metadata={"big": 2**70, "deep": [[[[[[[[[["x"]]]]]]]]]]}),
    ]
    for event in events:
        event.invocation_id = "i1"
        await service.append_event(session, event)
    loaded = await service.get_session(**ADA, session_id="1")
    assert loaded is not None
    assert [event.model_dump() for event in loaded.events] == [event.model_dump() for event in events]
    assert loaded.last_update_time == session.last_update_time


async def test_partial_events_are_not_stored(service: BaseSessionService) -> None:
    session = await service.create_session(**ADA, session_id="1")
    await service.append_event(session, said("par").model_copy(update={"partial": True}))
    assert (await service.get_session(**ADA, session_id="1")).events == []  # type: ignore[union-attr]


async def test_append_to_a_deleted_session_is_refused(service: BaseSessionService) -> None:
    session = await service.create_session(**ADA, session_id="1")
    await service.delete_session(**ADA, session_id="1")
    with pytest.raises(SessionNotFoundError):
        await service.append_event(session, said("hello"))


async def test_stale_session_is_refused(ours: MiniclawSessionService, tmp_path: Path) -> None:
    for service in (ours, SqliteSessionService(str(tmp_path / "theirs.db"))):
        first = await service.create_session(**ADA, session_id="1")
        second = await service.get_session(**ADA, session_id="1")
        assert second is not None
        await service.append_event(first, said("one"))
        with pytest.raises(StaleSessionError):
            await service.append_event(second, said("two"))
        fresh = await service.get_session(**ADA, session_id="1")
        assert fresh is not None
        await service.append_event(fresh, said("two"))
        assert texts((await service.get_session(**ADA, session_id="1")).events) == ["one", "two"]  # type: ignore[union-attr]


async def test_of_two_writers_at_once_one_passes_and_a_refused_event_leaves_no_state(
    ours: MiniclawSessionService, manager: SessionManager
) -> None:
    await ours.create_session(**ADA, session_id="1")
    writers = [await ours.get_session(**ADA, session_id="1") for _ in range(3)]
    events = [said(f"{n}", n=n, app__n=n, user__n=n) for n in range(3)]
    appends = [ours.append_event(known, event) for known, event in zip(writers, events, strict=True) if known]
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    (passed,) = [outcome for outcome in outcomes if isinstance(outcome, Event)]
    assert sum(isinstance(outcome, StaleSessionError) for outcome in outcomes) == 2
    found = await ours.get_session(**ADA, session_id="1")
    assert found is not None
    assert texts(found.events) == texts([passed])
    wanted = int(texts([passed])[0])
    assert found.state == {"n": wanted, "app:n": wanted, "user:n": wanted}
    assert len((await manager.get("app", "ada/1")).messages()) == 1


# --- an event and its state, cut between two commits ---------------------------------------------------------------


class CutOff(BaseException):
    """The program ends here."""


@contextmanager
def cut_off_before_append(wanted: int) -> Iterator[None]:
    """Of all appends, in whatever session, this one is never made, nor any behind it."""
    made = 0

    def cutting(append: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def appended(self: Any, *arguments: Any, **options: Any) -> Any:
            nonlocal made
            if made == wanted:
                raise CutOff
            made += 1
            return await append(self, *arguments, **options)

        return appended

    with pytest.MonkeyPatch.context() as patch:
        for kind in (_HeldChat, _RemoteChat):
            patch.setattr(kind, "append", cutting(kind.append))
        with pytest.raises(CutOff):
            yield


SHARED: dict[str, Any] = {"own": 1, "app__a": {"b": None}, "app__n": None, "user__u": [1]}
STATE = {"own": 1, "app:a": {"b": None}, "app:n": None, "user:u": [1]}
APPENDS = 4  # the event, what the app shares, what the user shares, and that it is shared


async def state_of(service: MiniclawSessionService, session_id: str) -> dict[str, Any]:
    found = await service.get_session(**ADA, session_id=session_id)
    assert found is not None
    state: dict[str, Any] = found.state
    return state


@pytest.mark.parametrize("appends", range(APPENDS))
async def test_an_event_that_is_repeated_after_a_kill_completes_its_state(
    sessions: SessionManager | Client, ours: MiniclawSessionService, appends: int
) -> None:
    made, event = await ours.create_session(**ADA, session_id="1"), said("one", **SHARED)
    await ours.create_session(**ADA, session_id="2")
    with cut_off_before_append(appends):
        await ours.append_event(made, event.model_copy(deep=True))
    again = MiniclawSessionService(sessions)
    known = await again.get_session(**ADA, session_id="1") if appends == 0 else made
    assert known is not None
    await again.append_event(known, event)
    assert await state_of(again, "2") == {name: value for name, value in STATE.items() if name != "own"}
    assert await state_of(again, "1") == known.state == STATE
    assert texts(known.events) == ["one"]
    await again.append_event(known, said("two"))
    assert texts((await again.get_session(**ADA, session_id="1")).events) == ["one", "two"]  # type: ignore[union-attr]


@pytest.mark.parametrize("appends", range(1, APPENDS))
async def test_what_a_kill_left_unshared_is_shared_by_the_next_call_that_reads_the_session(
    sessions: SessionManager | Client, ours: MiniclawSessionService, appends: int
) -> None:
    made = await ours.create_session(**ADA, session_id="1")
    with cut_off_before_append(appends):
        await ours.append_event(made, said("one", **SHARED))
    again = MiniclawSessionService(sessions)
    assert await state_of(again, "1") == STATE
    assert await again.get_user_state(**ADA) == {"u": [1]}
    await again.append_event(made, said("two"))  # it was made of what is stored, and nothing was said since
    assert await state_of(again, "1") == STATE


async def test_what_was_shared_before_a_kill_does_not_come_back_over_what_is_newer(
    sessions: SessionManager | Client, ours: MiniclawSessionService
) -> None:
    made, event = await ours.create_session(**ADA, session_id="1"), said("one", app__a=1, user__u=1)
    other = await ours.create_session(**ADA, session_id="2")
    with cut_off_before_append(APPENDS - 1):
        await ours.append_event(made, event.model_copy(deep=True))
    await ours.append_event(other, said("newer", app__a=2, user__u=2))
    again = MiniclawSessionService(sessions)
    assert await state_of(again, "1") == {"app:a": 2, "user:u": 2}
    await again.append_event(made, event)
    assert await state_of(again, "1") == {"app:a": 2, "user:u": 2}


async def test_a_state_too_large_to_be_shared_is_refused_once_and_does_not_close_the_session(tmp_path: Path) -> None:
    small = SessionSettings(max_metadata_bytes=1_000)
    async with SessionManager(tmp_path, settings=small) as manager:
        ours = MiniclawSessionService(manager)
        made = await ours.create_session(**ADA, session_id="1")
        await ours.append_event(made, said("fits", app__a="x" * 500))
        with pytest.raises(InvalidMessage, match="max_metadata_bytes"):
            await ours.append_event(made, said("too much", app__b="x" * 500))
        found = await ours.get_session(**ADA, session_id="1")
        assert found is not None
        await ours.append_event(found, said("goes on"))
        assert await state_of(ours, "1") == {"app:a": "x" * 500}


async def test_an_event_is_refused_whole_where_no_session_can_be_made_for_its_state(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, settings=SessionSettings(max_sessions=1)) as manager:
        ours = MiniclawSessionService(manager)
        made = await ours.create_session(**ADA, session_id="1")
        for event in (said("refused", own=1, app__a=1), said("refused", own=1, user__u=1)):
            with pytest.raises(SessionLimit, match="max_sessions"):
                await ours.append_event(made, event)
            assert await state_of(ours, "1") == {}
        await ours.append_event(made, said("goes on", own=2))
        found = await ours.get_session(**ADA, session_id="1")
        assert found is not None
        assert (texts(found.events), found.state) == (["goes on"], {"own": 2})


# --- one conversation --------------------------------------------------------------------------------------------


async def test_session_is_stale_when_others_spoke_in_it_and_not_when_it_was_named(
    ours: MiniclawSessionService, manager: SessionManager
) -> None:
    made = await ours.create_session(**ADA, session_id="1")
    session = await manager.get("app", "ada/1")
    await ours.append_event(made, said("one"))
    session.update(title="A talk")
    await ours.append_event(made, said("two"))
    await session.add_message(Message.user("from elsewhere"))
    with pytest.raises(StaleSessionError):
        await ours.append_event(made, said("three"))


async def test_event_delivered_twice_is_stored_once(ours: MiniclawSessionService, manager: SessionManager) -> None:
    made = await ours.create_session(**ADA, session_id="1")
    event = said("one")
    await ours.append_event(made, event)
    await ours.append_event(made, event.model_copy(deep=True))
    assert texts(made.events) == ["one"]
    assert [message.text for message in (await manager.get("app", "ada/1")).messages()] == ["one"]


async def test_everything_is_acknowledged_when_a_call_returns(
    ours: MiniclawSessionService, manager: SessionManager
) -> None:
    made = await ours.create_session(**ADA, session_id="1", state={"user:a": 1, "b": 1})
    await ours.append_event(made, said("one", user__a=2, app__c=3, b=2))
    if not manager.store.shared:
        assert [summary.dirty for summary in await manager.list()] == [True] * 3, "nothing was flushed"
    for summary in await manager.list():
        session = await manager.find(summary.session_id)
        assert session.journal.committed_sequence == session.last_sequence > 0


class Scripted(BaseLlm):
    """A model that says what it is told to, and remembers what it was asked with."""

    replies: list[types.Part]
    asked: list[list[types.Content]] = []  # noqa: RUF012 - pydantic copies it

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: ARG002 - ADK's signature
    ) -> AsyncGenerator[LlmResponse, None]:
        self.asked.append(list(llm_request.contents))
        yield LlmResponse(content=types.Content(role="model", parts=[self.replies[len(self.asked) - 1]]))


def double(x: int) -> dict[str, int]:
    """Doubles a number."""
    return {"double": 2 * x}


async def test_our_agent_and_adks_continue_each_other_over_restarts(tmp_path: Path) -> None:
    def key(app_name: str, user_id: str, session_id: str) -> SessionKey:  # noqa: ARG001 - of an app for one chat
        return SessionKey.of("telegram", session_id)

    call = ToolCall("c1", "time", "{}")
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", 42)
        asked = [Message.user("when?"), Message.assistant("", (call,)), Message.tool_result(call, "noon")]
        await session.add_messages([*asked, Message.assistant("it is noon")])
    model = Scripted(
        model="scripted",
        replies=[types.Part.from_function_call(name="double", args={"x": 21}), types.Part(text="it is 42")],
    )
    async with SessionManager(tmp_path) as manager:
        service = MiniclawSessionService(manager, agent_name="helper", key=key)
        agent = LlmAgent(name="helper", model=model, tools=[double])
        runner = Runner(app_name="app", agent=agent, session_service=service)
        await service.create_session(**ADA, session_id="42")
        question = types.Content(role="user", parts=[types.Part(text="double 21?")])
        events = [e async for e in runner.run_async(user_id="ada", session_id="42", new_message=question)]
    assert len(events) == 3
    seen = model.asked[0]
    assert [content.role for content in seen] == ["user", "model", "user", "model", "user"]
    assert seen[1].parts[0].function_call.name == "time"  # type: ignore[index, union-attr]
    assert seen[2].parts[0].function_response.response == {"output": "noon"}  # type: ignore[index, union-attr]
    provider = ScriptedProvider(["goodbye"])
    async with SessionManager(tmp_path) as manager:
        session = await manager.get("telegram", 42)
        await Agent(provider).reply(Message.user("bye"), session=session)
    (context,) = provider.contexts
    assert [message.text for message in context] == [
        *("when?", "", "noon", "it is noon", "double 21?", "", '{"double":42}', "it is 42", "bye"),
    ]
    assert context[5].tool_calls is not None
    assert (context[5].tool_calls[0].name, context[5].author) == ("double", "helper")
    assert context[6].tool_call_id == context[5].tool_calls[0].id


async def test_events_are_those_of_the_current_branch(ours: MiniclawSessionService, manager: SessionManager) -> None:
    made = await ours.create_session(**ADA, session_id="1")
    for text in ("one", "two"):
        await ours.append_event(made, said(text))
    session = await manager.get("app", "ada/1")
    await session.tree.branch(session.entries()[0].id)
    loaded = await ours.get_session(**ADA, session_id="1")
    assert loaded is not None
    await ours.append_event(loaded, said("three"))
    assert texts((await ours.get_session(**ADA, session_id="1")).events) == ["one", "three"]  # type: ignore[union-attr]
    session.clear()
    assert (await ours.get_session(**ADA, session_id="1")).events == []  # type: ignore[union-attr]


async def test_silent_events_keep_their_place(ours: MiniclawSessionService, manager: SessionManager) -> None:
    made = await ours.create_session(**ADA, session_id="1")
    silent = Event(id="e2", invocation_id="i1", author="agent", actions=EventActions(escalate=True))
    for event in (said("one"), silent, said("two", "agent")):
        await ours.append_event(made, event)
    loaded = await ours.get_session(**ADA, session_id="1")
    assert loaded is not None
    assert loaded.events == made.events
    session = await manager.get("app", "ada/1")
    kinds = [e.custom_type async for e in session.tree.read_entries() if isinstance(e, Custom)]
    assert kinds.count("google_adk.event") == 1
    assert [message.text for message in session.messages()] == ["one", "two"]


parts = st.lists(
    st.one_of(
        st.builds(lambda text: types.Part(text=text), st.text(max_size=5)),
        st.builds(lambda data: types.Part.from_bytes(data=data, mime_type="image/png"), st.binary(max_size=9)),
        st.builds(lambda n: types.Part.from_function_call(name=n, args={"a": n}), st.sampled_from(["f", "g"])),
        st.builds(lambda n: types.Part.from_function_response(name=n, response={n: 1}), st.sampled_from("fg")),
    ),
    max_size=4,
)
contents = st.one_of(st.none(), st.builds(types.Content, role=st.sampled_from(["user", "model"]), parts=parts))


@given(st.lists(st.tuples(contents, st.sampled_from(["user", "agent"])), max_size=5))
@settings(max_examples=60, deadline=None)
def test_any_events_come_back(drawn: list[tuple[types.Content | None, str]]) -> None:
    async def check() -> None:
        service = InMemorySessionService()
        expected = await service.create_session(**ADA, session_id="1")
        with TemporaryDirectory() as workspace:
            async with SessionManager(workspace, store="memory:") as manager:
                ours = MiniclawSessionService(manager)
                made = await ours.create_session(**ADA, session_id="1")
                for place, (content, author) in enumerate(drawn):
                    event = Event(id=f"e{place}", invocation_id="i", author=author, content=content)
                    await service.append_event(expected, event.model_copy(deep=True))
                    await ours.append_event(made, event)
                loaded = await ours.get_session(**ADA, session_id="1")
                assert loaded is not None
                assert loaded.events == expected.events

    asyncio.run(check())


async def test_strangers_entries_and_metadata_of_our_names_do_no_harm(
    ours: MiniclawSessionService, manager: SessionManager
) -> None:
    session = await ours.create_session(app_name="app", user_id="u", session_id="1", state={"mood": "good"})
    held = await manager.get("app", "u/1")
    strange: list[dict[str, Any]] = [{}, {"fields": 7}, {"json": "{"}, {"fields": {"author": 7}}]
    for data in strange:
        await held.tree.append_custom_entry(adapter.EVENT, data)
    metadata: Any = {"google_adk.state.x": 5, "google_adk.state.y": [], "google_adk.sharing.z": 7}
    held.update(**metadata)
    await held.saved()
    for number, other in enumerate(({}, 7, {"app_name": "app"})):
        another = await manager.get_or_create("app", f"u/bad{number}")
        another.update(google_adk=other)
        await another.saved()
        assert await ours.get_session(app_name="app", user_id="u", session_id=f"bad{number}") is None
    await ours.append_event(session, said("hello"))
    again = await ours.get_session(app_name="app", user_id="u", session_id="1")
    assert again is not None
    assert (texts(again.events), again.state) == (["hello"], {"mood": "good"})
    assert [one.id for one in (await ours.list_sessions(app_name="app")).sessions] == ["1"]
    assert (await ours.create_session(app_name="app", user_id="u", session_id="bad0")).id == "bad0"


def test_example_runs(tmp_path: Path) -> None:
    assert run_example(adapter, tmp_path) == "Hello Ada!\n['I am Ada.', 'Hello Ada!']\n"
