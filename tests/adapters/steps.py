"""What each step of a conversation through many frameworks is given, and the steps that need no framework.

A step is a turn that one of them takes. A `Watch` hears what a model is asked with, which tools run, and what is
acknowledged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import NamedTuple, Protocol

from anyio.lowlevel import checkpoint

from miniclaw_sessions.agent.agent import Agent, Unanswered
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, TextPart
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import NothingToResume, UnsafeCompaction
from miniclaw_sessions.service.client import Client, ClientSession
from miniclaw_sessions.testing import ScriptedProvider
from tests.adapters.turns import Reply, Turn, canonical, result_of

CHANNEL, CHAT = "telegram", "42"
PICTURE = "iVBORw0KGgo="
AGENT = "helper"


class Watch(Protocol):
    """Who hears what happens."""

    def asked(self, context: list[Message]) -> None:
        """The model is asked with this."""
        ...

    def ran(self, label: str) -> None:
        """The tool of a call runs."""
        ...

    def acknowledged(self, *texts: str) -> None:
        """These texts are safe."""
        ...


class Place(NamedTuple):
    """Where a turn is taken.

    Attributes:
        manager: the sessions.
        session: the session itself.
        holder, chat: the same two, or a client and what it has of the session.
    """

    manager: SessionManager
    session: Session
    holder: SessionManager | Client
    chat: Session | ClientSession


Step = Callable[[Place, Turn, Watch], Awaitable[None]]


# --- our own ---------------------------------------------------------------------------------------------------------


async def with_our_own_agent(place: Place, turn: Turn, watch: Watch) -> None:
    async def work(arguments: dict[str, str]) -> str:
        watch.ran(arguments["label"])
        await checkpoint()
        return result_of(arguments["label"])

    def agent_of(replies: Iterator[Reply]) -> Agent:
        def reply(context: list[Message]) -> Message:
            watch.acknowledged(*(message.text for message in context))  # what was said so far was saved before
            watch.asked(context)
            return canonical(next(replies))

        tool = Tool("work", "Works.", {"type": "object"}, work)
        return Agent(ScriptedProvider(reply), tools=[tool], session=place.session, max_context_tokens=10**7)

    if turn.resumes is not None:
        resuming = agent_of(iter([Reply(turn.resumed, [])]))
        with suppress(NothingToResume):
            async with resuming.resume(unanswered=Unanswered(turn.resumes)) as events:
                _ = [event async for event in events]
            watch.acknowledged(turn.resumed)
    shown = (TextPart(turn.question), ImagePart("image/png", PICTURE))
    said = await agent_of(turn.replies()).reply(Message.user(shown if turn.picture else turn.question))
    watch.acknowledged(said.text)


async def with_another_program(place: Place, turn: Turn, watch: Watch) -> None:
    """What stands in a session that no framework of these has written: odd ids, and no promise kept about results."""
    heic = (TextPart(turn.question), ImagePart("image/heic", "QUJD"), ImagePart(url="gs://bucket/a.png"))
    said = [Message.user(heic if turn.picture else turn.question)]
    for reply in turn.replies():
        asked = canonical(reply)
        said.append(asked)
        results = [
            Message.tool_result(call, result_of(label))
            for call, (_, label) in zip(asked.tool_calls or (), reply.calls, strict=True)
        ]
        is_in_order = turn.number % 2 == 0 or not all(id_ for id_, _ in reply.calls)
        said += results[: 1 + turn.number % 3] if is_in_order else results[::-1]  # not all, or in another order
    await place.session.add_messages(said)
    watch.acknowledged(*(message.text for message in said))


async def with_a_compaction(place: Place, turn: Turn, watch: Watch) -> None:
    """Nobody speaks: what was said is told as a summary from now on, but for the newest message or not even that."""
    entries = place.session.entries()
    if entries:
        with suppress(UnsafeCompaction):  # in the midst of calls that a kill has left
            await place.session.tree.append_compaction("They spoke.", entries[-1].id if turn.picture else None)
            watch.acknowledged(f"compacted {turn.number}")


async def with_a_step_back(place: Place, turn: Turn, watch: Watch) -> None:
    """Nobody speaks: the conversation goes on from an earlier message, on a branch of its own."""
    entries = place.session.entries()
    if entries:
        await place.session.tree.branch(entries[turn.number * 7 % len(entries)].id)
        watch.acknowledged(f"went back {turn.number}")


WITHOUT_FRAMEWORK: dict[str, Step] = {
    "our own": with_our_own_agent,
    "another program": with_another_program,
    "a compaction": with_a_compaction,
    "a step back": with_a_step_back,
}
