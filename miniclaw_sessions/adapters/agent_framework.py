"""Sessions for the Microsoft Agent Framework: a `HistoryProvider` over ours.

    import asyncio

    from agent_framework import Agent, BaseChatClient, ChatResponse, Message

    from miniclaw_sessions import SessionManager
    from miniclaw_sessions.adapters.agent_framework import MiniclawHistoryProvider

    class Greeter(BaseChatClient):
        async def _inner_get_response(self, *, messages, stream, options, **_):
            return ChatResponse(messages=[Message("assistant", ["Hello Ada!"])])

    async def main() -> None:
        async with SessionManager("workspace") as manager:
            history = MiniclawHistoryProvider(manager, channel="telegram")
            agent = Agent(client=Greeter(), context_providers=[history])
            result = await agent.run("I am Ada.", session=agent.create_session(session_id="123456789"))
            session = await manager.find("telegram_123456789")
            print(result.text, [message.text for message in session.messages()])

    asyncio.run(main())

The framework saves a run when it has ended; with `require_per_service_call_history_persistence=True` an agent of it
saves after each reply of the model. Its messages come back as its own `to_dict` writes them: all contents, ids and
properties. The messages of others come with the same text, images, calls and results; their thinking, which only they
can replay, is left out. A run's usage is kept with its last reply. What an `AgentSession` has as its state is no
message, and stays where the framework keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec
from agent_framework import AgentSession, HistoryProvider, SessionContext, SupportsAgentRun
from agent_framework import Message as FrameworkMessage

from miniclaw_sessions.adapters.agent_framework_messages import KEPT, from_agent_framework, to_agent_framework
from miniclaw_sessions.adapters.chats import chats_of
from miniclaw_sessions.adapters.home_loop import HomeLoop, at_home
from miniclaw_sessions.adapters.open_calls import OpenCalls
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message, Usage
from miniclaw_sessions.core.protocol.parts import REASONING
from miniclaw_sessions.errors import SessionNotFound
from miniclaw_sessions.service.client import Client

__all__ = ["KEPT", "MiniclawHistoryProvider", "from_agent_framework", "to_agent_framework"]

_USAGE: ContextVar[Mapping[str, Any] | None] = ContextVar("usage of the run that is being saved", default=None)


class MiniclawHistoryProvider(HistoryProvider):
    """The conversations of a workspace as the Agent Framework's agents want them, one for each of its session ids.

    Made on the event loop of the manager or client; it may then be used from any loop. A call without a result is
    answered with an error, unless this very object saved it last, or a person is still asked to approve it.

    Args:
        sessions: whose sessions they are: a manager, or a client.
        channel: of all of them; the framework's session id is the chat's.
        source_id: the framework's name for this provider.
        options: the framework's own: `load_messages`, `store_inputs`, `store_outputs`, `store_context_messages`,
            `store_context_from`.
    """

    def __init__(
        self,
        sessions: SessionManager | Client,
        *,
        channel: str = "agent-framework",
        source_id: str = "miniclaw",
        **options: Any,
    ) -> None:
        super().__init__(source_id, **options)
        self.channel = channel
        self._chats = chats_of(sessions)
        self._home = HomeLoop()
        self._open_calls = OpenCalls()

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **_: Any
    ) -> list[FrameworkMessage]:
        """The conversation, oldest first, behind the summary of what was compacted; empty for an unknown session.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        del state
        return await self._load(self._key(session_id))

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[FrameworkMessage],
        *,
        state: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Append messages, all or none, and return when they are acknowledged: the store has committed them.

        A transcript that is handed over again as a whole, as workflows do, adds only what is new in it.

        Raises:
            InvalidMessage: a message is not JSON, or is too large.
            StoreFull, StoreUnavailable, UnsavedLimit, SessionDeleted: as for `Session.add_messages`.
        """
        del state
        if messages:
            await self._save(self._key(session_id), list(messages), _USAGE.get())

    async def after_run(
        self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Save what a run, or one reply, said. Raises as `save_messages` does, and with it fails the run."""
        usage = _USAGE.set(context.response.usage_details if context.response else None)
        try:
            await super().after_run(agent=agent, session=session, context=context, state=state)
        finally:
            _USAGE.reset(usage)

    @at_home
    async def _load(self, key: SessionKey) -> list[FrameworkMessage]:
        try:
            chat = await self._chats.use(key)
        except SessionNotFound:
            return []
        return to_agent_framework(await chat.messages(), open_calls=self._open_calls.of(key))

    @at_home
    async def _save(
        self, key: SessionKey, messages: Sequence[FrameworkMessage], usage: Mapping[str, Any] | None
    ) -> None:
        chat = await self._chats.get_or_create(key)
        stored = to_agent_framework(await chat.messages(), open_calls=self._open_calls.of(key))
        new = from_agent_framework(_not_in(stored, messages))
        if new:
            await chat.append(_with_usage(new, usage))
            self._open_calls.note(key, new)

    def _key(self, session_id: str | None) -> SessionKey:
        return SessionKey.of(self.channel, session_id or "default")


def _not_in(stored: Sequence[FrameworkMessage], messages: Sequence[FrameworkMessage]) -> Sequence[FrameworkMessage]:
    """The messages without the beginning that repeats all that is stored, and without what has the id of its equal."""
    known = [message.to_dict() for message in stored]
    given = [message.to_dict() for message in messages]
    behind = len(known) if len(known) > 1 and given[: len(known)] == known else 0  # one message may be said twice
    return [
        message
        for message, fields in zip(messages[behind:], given[behind:], strict=True)
        if message.message_id is None or fields not in known
    ]


def _with_usage(messages: Sequence[Message], counted: Mapping[str, Any] | None) -> list[Message]:
    """The messages, with what they cost at the last reply among them."""
    changed = list(messages)
    last = max((place for place, message in enumerate(messages) if message.is_assistant), default=None)
    if counted and last is not None:
        changed[last] = msgspec.structs.replace(changed[last], usage=_usage(counted))
    return changed


def _usage(counted: Mapping[str, Any]) -> Usage:
    read = counted.get("cache_read_input_token_count") or 0
    written = counted.get("cache_creation_input_token_count") or 0
    given = counted.get("input_token_count") or 0  # those of the cache among them
    thought = counted.get("reasoning_output_token_count")
    return Usage(
        max(given - read - written, 0),
        counted.get("output_token_count") or 0,
        read,
        written,
        total_tokens=counted.get("total_token_count"),
        extra={REASONING: thought} if thought else None,
    )
