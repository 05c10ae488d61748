"""A turn that begins with several messages, somewhere in the tree: one unit, under the session's turn."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import anyio
import pytest

from miniclaw_sessions.core.protocol.entries import SUSPENDED, Custom, LeafMove
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import ABANDONED, Opening
from miniclaw_sessions.errors import EntryNotFound, InvalidMessage
from tests.core.session.bench import Bench
from tests.texts import texts_of

pytestmark = pytest.mark.anyio

CALL, OTHER = ToolCall("call-1", "search", "{}"), ToolCall("call-2", "fetch", "{}")


def saying(*messages: Message, **where: object) -> Opening:
    return Opening(messages, **where)  # type: ignore[arg-type]


async def test_all_of_it_is_one_commit_before_the_body_runs(session: Session, bench: Bench) -> None:
    await session.add_messages([Message.user("old"), Message.assistant("answer")])
    commits = bench.store.calls["append"]
    opening = saying(Message.system("now"), Message.user("ask"), mark=("a.mark", {"n": 1}))
    async with session.turn(opening) as turn:
        assert bench.store.calls["append"] == commits + 1
        assert turn.message.message.text == "ask"
        assert [type(entry).__name__ for entry in opening.entries] == ["Custom", "MessageEntry", "MessageEntry"]
        assert texts_of(turn.messages()) == ["old", "answer", "now", "ask"]
        turn.append(Message.assistant("done"))
    assert texts_of(session.messages()) == ["old", "answer", "now", "ask", "done"]


async def test_it_goes_on_from_an_entry_that_is_not_the_leaf(session: Session) -> None:
    first, _, last = await session.add_messages([Message.user("one"), Message.user("two"), Message.user("three")])
    async with session.turn(saying(Message.user("else"), at=first.id)) as turn:
        assert texts_of(turn.messages()) == ["one", "else"]
    assert texts_of(session.messages()) == ["one", "else"]
    assert (await session.tree.get_branch(last.id))[0].id == first.id
    async with session.turn(saying(Message.user("root"), at=None)) as turn:
        assert texts_of(turn.messages()) == ["root"]


async def test_the_leaf_is_not_moved_where_it_is_already(session: Session) -> None:
    (entry,) = await session.add_messages([Message.user("one")])
    opening = saying(Message.user("two"), at=entry.id)
    async with session.turn(opening):
        pass
    assert not any(isinstance(one, LeafMove) for one in opening.entries)


async def test_it_is_given_what_it_follows_and_what_waits_there(session: Session) -> None:
    await session.add_messages([Message.user("ask"), Message.assistant("", (CALL, OTHER))])
    await session.tree.append_custom_entry(SUSPENDED, {"calls": [{"id": CALL.id}]})
    given: list[tuple[list[str], set[str]]] = []

    class Answer(Opening):
        def messages(self, before: Sequence[Message], waiting: Collection[str]) -> Sequence[Message]:
            given.append((texts_of(before), set(waiting)))
            return [Message.tool_result(CALL, "found")]

    async with session.turn(Answer()) as turn:
        assert turn.message.message.text == "ask"
        assert [message.role.value for message in turn.messages()] == [
            *("user", "assistant", "tool_result", "tool_result")
        ]
        assert turn.messages()[2].text == ABANDONED  # nobody waits for the other call
    assert given == [(["ask", "", ABANDONED], {CALL.id})]


async def test_what_refuses_it_leaves_the_session_as_it_was(session: Session) -> None:
    await session.add_message(Message.user("one"))
    before = (session.last_sequence, session.leaf_id)

    class Refused(Opening):
        def messages(self, before: Sequence[Message], waiting: Collection[str]) -> Sequence[Message]:  # noqa: ARG002
            raise InvalidMessage("no")

    for opening, error in (
        (Refused(), InvalidMessage),
        (saying(Message.user("x" * 2**24)), InvalidMessage),
        (saying(Message.user("x"), at="nowhere"), EntryNotFound),
    ):
        with pytest.raises(error):
            async with session.turn(opening):
                pytest.fail("it was refused")
    assert (session.last_sequence, session.leaf_id) == before
    assert not session.journal.turn_lock.is_held


async def test_two_turns_from_one_entry_are_two_branches_one_after_the_other(session: Session) -> None:
    (entry,) = await session.add_messages([Message.user("one")])
    seen: list[list[str]] = []

    async def branch(text: str) -> None:
        async with session.turn(saying(Message.user(text), at=entry.id)) as turn:
            seen.append(texts_of(turn.messages()))
            await anyio.lowlevel.checkpoint()
            turn.append(Message.assistant(f"to {text}"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(branch, "left")
        tasks.start_soon(branch, "right")
    assert sorted(seen) == [["one", "left"], ["one", "right"]]
    assert texts_of(session.messages()) in (["one", "left", "to left"], ["one", "right", "to right"])
    assert len(await session.tree.get_children(entry.id)) == 2


async def test_a_mark_is_no_message_and_survives_a_restart(bench: Bench) -> None:
    async with bench.opened() as session, session.turn(saying(Message.user("a"), mark=("m", {"k": "v"}))) as turn:
        turn.append(Message.assistant("b"))
    async with bench.opened() as session:
        (mark,) = [entry async for entry in session.tree.read_entries() if isinstance(entry, Custom)]
        assert (mark.custom_type, mark.data) == ("m", {"k": "v"})
        assert texts_of(session.messages()) == ["a", "b"]
