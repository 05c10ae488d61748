"""What a framework is given: its own messages untouched, the others' legal, and every call brought to its own loop."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from anyio import to_thread
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.adapters.chats import newest_entries, read_messages
from miniclaw_sessions.adapters.home_loop import HomeLoop
from miniclaw_sessions.core.history.context import NO_RESULT, build_context
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, Role, TextPart, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.files.formats.codec import has_kept
from miniclaw_sessions.files.formats.histories import presented, traced
from tests.files.formats.legal_contexts import legal_contexts
from tests.legality import is_legal

pytestmark = pytest.mark.anyio

CALL = ToolCall("c1", "weather", "{}")

call_ids = st.sampled_from(["c1", "c2", "odd|id"])
calls = st.builds(ToolCall, call_ids, st.just("f"), st.sampled_from(["{}", "{"]))
any_messages = st.one_of(
    st.builds(Message.user, st.sampled_from(["hi", ""])),
    st.builds(Message.assistant, st.sampled_from(["ok", ""]), st.lists(calls, max_size=2).map(tuple)),
    call_ids.map(lambda call_id: Message(Role.TOOL_RESULT, "found", tool_call_id=call_id)),
    st.just(Message(Role.CUSTOM, "")),
)


def owned(message: Message) -> Message:
    return msgspec.structs.replace(message, extra={"ours": {}})


histories = st.lists(any_messages | any_messages.map(owned), max_size=8)


@given(histories)
def test_own_messages_stay_as_they_are_in_their_order(history: list[Message]) -> None:
    shown = presented(history, "ours")
    own = [message for message in history if has_kept(message.extra, "ours")]
    kept = [message for message in shown if has_kept(message.extra, "ours")]
    assert [m for m in kept if not m.is_tool_result] == [m for m in own if not m.is_tool_result]


@given(st.lists(any_messages.map(owned), max_size=8))
def test_a_history_of_ones_own_is_not_touched(history: list[Message]) -> None:
    assert all(shown is message for shown, message in zip(presented(history, "ours"), history, strict=True))


@given(st.lists(any_messages, max_size=8) | legal_contexts())
def test_a_history_of_others_is_legal(history: list[Message]) -> None:
    shown = presented(history, "ours")
    assert is_legal(shown) == []
    assert len(shown) == len(build_context(history))


@st.composite
def spoken_at_once(draw: st.DrawFn) -> list[Message]:
    """What several processes wrote into one chat at the same time, each in its order; some did not come to the end."""
    turns: list[list[Message]] = []
    for number in range(draw(st.integers(1, 4))):
        is_own = draw(st.booleans())
        asked = [ToolCall(f"call_{number}_{place}", "f", "{}") for place in range(draw(st.integers(0, 2)))]
        results = [Message.tool_result(call, f"result {call.id}") for call in asked]
        turn = [Message.user(f"question {number}"), Message.assistant("", tuple(asked)) if asked else None, *results]
        said = [message for message in [*turn, Message.assistant(f"answer {number}")] if message is not None]
        turns.append([owned(m) if is_own else m for m in said[: draw(st.integers(1, len(said)))]])
    whose = draw(st.permutations([number for number, turn in enumerate(turns) for _ in turn]))
    left = [iter(turn) for turn in turns]
    return [next(left[number]) for number in whose]


@given(spoken_at_once())
def test_what_processes_said_at_the_same_time_is_legal_where_a_framework_leaves_calls_open(
    history: list[Message],
) -> None:
    shown = [message for message, _ in traced(history, "ours", open_calls=())]
    assert is_legal(shown) == []
    texts = [message.text for message in shown if message.text not in {"", NO_RESULT}]
    assert sorted(texts) == sorted(message.text for message in history if message.text)


@given(histories)
def test_what_is_given_needs_no_second_round(history: list[Message]) -> None:
    shown = presented(history, "ours")
    assert presented(shown, "ours") == shown
    assert is_legal(build_context(shown)) == []


def test_others_results_answer_ones_own_calls_in_their_order() -> None:
    asked = owned(Message.assistant("", (CALL, ToolCall("c2", "clock", "{"))))
    second, first = (Message(Role.TOOL_RESULT, name, tool_call_id=name) for name in ("c2", "c1"))
    shown = presented([owned(Message.user("hi")), asked, second, first, Message.assistant("done")], "ours")
    assert [message.text for message in shown] == ["hi", "", "c1", "c2", "done"]


def test_a_result_of_ones_own_answers_a_call_of_others() -> None:
    odd = ToolCall("odd|id", "weather", "{}")
    result = owned(Message.tool_result(odd, "rain"))
    shown = presented([Message.user("hi"), Message.assistant("", (odd,)), result, owned(Message.user("ok"))], "ours")
    assert [message.text for message in shown] == ["hi", "", "rain", "ok"]
    assert shown[1].tool_calls is not None
    assert shown[2].tool_call_id == shown[1].tool_calls[0].id != "odd|id"
    assert has_kept(shown[2].extra, "ours")


def test_a_call_of_ones_own_is_answered_once_others_went_on() -> None:
    asked = [owned(Message.user("hi")), owned(Message.assistant("", (CALL,)))]
    assert presented(asked, "ours") == asked
    shown = presented([*asked, Message.user("well?")], "ours")
    assert [message.text for message in shown] == ["hi", "", NO_RESULT, "well?"]


@pytest.mark.parametrize(
    ("image", "shows"),
    [
        (ImagePart("image/png", "QUJD"), True),
        (ImagePart("", "QUJD"), True),
        (ImagePart("image/tiff", "QUJD"), False),
        (ImagePart("image/png", "not base64"), False),
        (ImagePart("image/png", ""), False),
        (ImagePart(), False),
        (ImagePart(url="https://example.org/a.png"), True),
        (ImagePart(url="file:///a.png"), False),
    ],
)
def test_an_image_that_no_service_shows_becomes_a_text(image: ImagePart, *, shows: bool) -> None:
    (shown,) = presented([Message.user((TextPart("this"), image))], "ours")
    assert isinstance(shown.content[1], ImagePart) is shows
    (own,) = presented([owned(Message.user((image,)))], "ours")
    assert own.content == (image,)


async def test_the_newest_entries_have_no_gap() -> None:
    session = Session.new(window=4)
    await session.add_messages([Message.user("go"), Message.assistant("", (CALL,)), Message.tool_result(CALL, "1")])
    for text in ("2", "3"):  # the window keeps the turn's question and drops what is oldest behind it
        await session.add_messages([Message.assistant("", (CALL,)), Message.tool_result(CALL, text)])
    assert [entry.message.text for entry in session.entries()] != [m.text for m in (await read_messages(session))[-4:]]

    newest = [entry.message for entry in newest_entries(session)]
    assert newest == (await read_messages(session))[-len(newest) :]
    assert newest


async def test_a_call_from_elsewhere_runs_at_home() -> None:
    home, here = HomeLoop(), asyncio.get_running_loop()

    async def where() -> bool:
        return asyncio.get_running_loop() is here

    assert await home.run(where)
    assert await to_thread.run_sync(lambda: asyncio.run(home.run(where)))
    assert await to_thread.run_sync(lambda: home.wait(where))


async def test_waiting_at_home_is_refused_because_it_would_never_end() -> None:
    async def nothing() -> None: ...

    home = HomeLoop()
    assert not home.is_elsewhere
    with pytest.raises(RuntimeError, match="async method"):
        home.wait(nothing)
