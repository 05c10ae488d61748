"""What the tests of the agent layer share: tools, scripted replies, and real sessions that are restarted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from miniclaw_sessions.agent.events import AgentEvent, Events
from miniclaw_sessions.agent.tools import Content, Tool
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message, ToolCall, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.legality import is_legal

HELLO = Message.user("hello")


def tool(name: str, run: Callable[[dict[str, Any]], Awaitable[Content]]) -> Tool:
    """A tool that takes anything."""
    return Tool(name, f"does {name}", {"type": "object"}, run)


async def echo(arguments: dict[str, Any]) -> str:
    """What the arguments say."""
    return str(arguments.get("say", "nothing"))


def calls(*names: str, arguments: str = "{}", prefix: str = "call_") -> Message:
    """A reply that calls these tools, with the same ids in every reply, as some providers have them."""
    return Message.assistant("", tuple(ToolCall(f"{prefix}{i}", name, arguments) for i, name in enumerate(names)))


def costing(reply: Message | str, tokens: int) -> Message:
    """A reply whose provider tells how large the context was."""
    message = Message.assistant(reply) if isinstance(reply, str) else reply
    return msgspec.structs.replace(message, usage=Usage(tokens - 1, 1))


def roles(session: Session) -> list[str]:
    """The window: who spoke; an error result with an exclamation mark."""
    return [f"{message.role.value}{'!' * message.is_error}" for message in session.messages()]


def roles_and_texts(session: Session) -> list[tuple[str, str]]:
    """The window: who said what."""
    return [(message.role.value, message.text) for message in session.messages()]


async def read(turn: AbstractAsyncContextManager[Events]) -> list[AgentEvent]:
    """All events of a turn."""
    async with turn as events:
        return [event async for event in events]


async def transcript(session: Session) -> list[Message]:
    """Every message of the session's branch, as the store has it, compacted or not."""
    return [entry.message for entry in await session.tree.get_branch() if hasattr(entry, "message")]


async def assert_legal(session: Session, *providers: ScriptedProvider) -> None:
    """No call of the whole transcript is open, and no model has been asked with anything illegal."""
    stored = await transcript(session)
    assert is_legal(build_context(stored)) == []
    results = [message.tool_call_id for message in stored if message.is_tool_result]
    asked = [call.id for message in stored for call in message.tool_calls or ()]
    assert sorted(filter(None, results)) == sorted(asked)
    for provider in providers:
        assert provider.closed == len(provider.contexts)
        for context in provider.contexts:
            assert is_legal(context) == []


@asynccontextmanager
async def opened(
    workspace: Path, store: str = "sqlite:", settings: SessionSettings | None = None
) -> AsyncIterator[Session]:
    """The same session each time, behind a manager that was started for it."""
    async with SessionManager(workspace, store=store, settings=settings) as manager:
        yield await manager.get_or_create("telegram", 1)


async def ends_before(steps: int, work: Callable[[], Awaitable[object]]) -> bool:
    """Do some work that is cancelled after this many rounds of the event loop; whether it had ended by then."""
    with anyio.CancelScope() as scope:

        async def cancel() -> None:
            for _ in range(steps):
                await checkpoint()
            scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel)
            await work()
            tasks.cancel_scope.cancel()
    return not scope.cancelled_caught
