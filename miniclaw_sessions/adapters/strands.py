"""Sessions for Strands Agents: a `SessionRepository` over ours, for its `RepositorySessionManager`.

    import asyncio
    from collections.abc import AsyncIterator

    from strands import Agent
    from strands.models import Model
    from strands.session.repository_session_manager import RepositorySessionManager

    from miniclaw_sessions.adapters.strands import MiniclawSessionRepository

    class Greeter(Model):
        stateful = False

        def get_config(self): return {}
        def update_config(self, **config): pass
        async def structured_output(self, *arguments, **options): yield {}

        async def stream(self, messages, *arguments, **options) -> AsyncIterator[dict]:
            yield {"messageStart": {"role": "assistant"}}
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": "Hello Ada!"}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}

    async def main() -> None:
        with MiniclawSessionRepository.opened("workspace") as repository:
            sessions = RepositorySessionManager(session_id="ada", session_repository=repository)
            agent = Agent(model=Greeter(), agent_id="greeter", session_manager=sessions, callback_handler=None)
            await agent.invoke_async("I am Ada.")
            print([message["content"][0]["text"] for message in agent.messages])

    asyncio.run(main())

Strands calls a repository synchronously, even on the event loop that its agent runs on. `opened` therefore keeps a
session manager of its own on a thread of its own. A repository over a manager that lives on an event loop already is
for agents that run in other threads; on that loop itself a call would wait for itself, and is refused.

A message is a message of the session, which other frameworks and this package's agent understand; Strands' other fields
are kept beside it. An agent's list has its own messages and those of others, on the session's current branch. The
messages of another agent of the same session belong to that agent's list alone. Strands loads no messages for an
agent that it does not know yet: to let one continue the others' conversation, make it with
`Agent(messages=repository.history(session_id, agent_id), ...)`; they are not stored again.

The states of agents and of multi-agent systems are custom entries. A redacted message stays on a branch that is left:
the conversation goes on without it, and the transcript keeps it.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from anyio.from_thread import start_blocking_portal
from strands.session.session_repository import SessionRepository
from strands.types.content import Message as StrandsMessage
from strands.types.exceptions import SessionException
from strands.types.session import Session as StrandsSession
from strands.types.session import SessionAgent, SessionMessage

from miniclaw_sessions.adapters.chats import Chat, chats_of
from miniclaw_sessions.adapters.home_loop import HomeLoop, waiting
from miniclaw_sessions.adapters.strands_messages import KEPT, from_strands, to_strands
from miniclaw_sessions.adapters.verbatim import as_shape, kept_verbatim, verbatim
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.history.pairing import pair
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import Custom, MessageEntry
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.stores.base import Store
from miniclaw_sessions.errors import EntryNotFound, SessionNotFound
from miniclaw_sessions.files.formats.codec import has_kept, kept_fields
from miniclaw_sessions.files.formats.histories import Shown, traced
from miniclaw_sessions.service.api.shapes import NewCustom, NewMetadata
from miniclaw_sessions.service.client import Client, connect

if TYPE_CHECKING:
    from strands.multiagent import MultiAgentBase

AGENT, MULTI_AGENT = "strands.agent", "strands.multi_agent"
"""The `custom_type` of an agent's state, and of a multi-agent system's; `name` says whose."""

BY_OTHERS = "miniclaw-sessions:"
"""What the `tracking_id` of a message begins with that others said; the id of its entry follows, if it has one."""

_INTERRUPTED = "Tool was interrupted."
"""What Strands says of a call that a history has no result of."""

_AGENT_OF, _ID, _OF = "agent", "message_id", "of"  # what a message's `extra` says beside its verbatim fields


class _Session(msgspec.Struct):
    """What Strands must say of a session."""

    session_id: str
    session_type: str


class _Message(msgspec.Struct):
    """What it says to a model."""

    role: str = ""
    content: list[dict[str, Any]] = []


class _Said(msgspec.Struct):
    """What it must say of a message."""

    message: _Message
    message_id: int
    redact_message: _Message | None = None


class _First(msgspec.Struct):
    """What the first entry of a message says beside that."""

    agent: str
    message_id: int


class _Agent(msgspec.Struct):
    """What it must say of an agent."""

    agent_id: str
    state: dict[str, Any]
    conversation_manager_state: dict[str, Any]


class _Looked(threading.local):
    """The id of the session that a thread looked for last and did not find: Strands creates it next in this thread."""

    missing: str | None = None


class MiniclawSessionRepository(SessionRepository):
    """The sessions of a manager, or of a client, as Strands wants them.

    Made on the manager's event loop, and called from other threads; `opened` sees to both. Each method is written as a
    coroutine, which runs on that loop while its caller waits.

    Args:
        manager: the sessions: a manager, or a client (`miniclaw_sessions.connect`) of a daemon that holds them.
        channel: the channel of the sessions; a session id of Strands is a chat id of it.

    Raises, from every method:
        StoreUnavailable, StoreFull, UnsavedLimit: nothing can be stored, or read.
        InvalidKey: the session id cannot name a session.
        InvalidMessage: a message, or a state, is larger than `max_message_bytes`.
        RuntimeError: it was called on the manager's own event loop.
    """

    def __init__(self, manager: SessionManager | Client, *, channel: str = "strands") -> None:
        self.manager = manager
        self.channel = channel
        self._chats = chats_of(manager)
        self._home = HomeLoop()
        self._looked = _Looked()

    @classmethod
    @contextmanager
    def opened(
        cls,
        workspace: str | Path | None = None,
        *,
        channel: str = "strands",
        settings: SessionSettings | None = None,
        store: str | Store | None = None,
    ) -> Generator[MiniclawSessionRepository, None, None]:
        """A repository with a manager of its own, on a thread of its own, for as long as the block lasts.

        Args:
            workspace: as for `SessionManager`; or `unix:/path/of/a.sock`, where a daemon that holds the sessions is
                asked.
            channel: as for the repository.
            settings: as for `SessionManager`.
            store: as for `SessionManager`.

        Raises:
            DirectoryInUse, StoreError, ConfigError, ...: as for opening and closing a `SessionManager`.
        """
        with start_blocking_portal(name="miniclaw-sessions") as portal:
            if isinstance(workspace, str) and workspace.startswith("unix:"):
                opened: AbstractAsyncContextManager[SessionManager | Client] = connect(workspace)
            else:
                opened = SessionManager(workspace, settings=settings, store=store)
            with portal.wrap_async_context_manager(opened) as sessions:
                yield portal.call(lambda: cls(sessions, channel=channel))

    # --- sessions ----------------------------------------------------------------------------------------------------

    def create_session(self, /, session: StrandsSession, **kwargs: Any) -> StrandsSession:
        """Make a session, or take up one of ours that Strands did not know.

        Strands looks for a session before it creates it. One that another caller created in between is taken up.

        Raises:
            SessionException: there is one with this id, and it was not missing when this thread looked last.
        """
        was_missing, self._looked.missing = self._looked.missing == session.session_id, None
        return self._home.wait(lambda: self._create_session(session, was_missing=was_missing))

    async def _create_session(self, session: StrandsSession, *, was_missing: bool) -> StrandsSession:
        own = await self._chats.get_or_create(SessionKey.of(self.channel, session.session_id))
        if (known := await _session_in(own)) is not None:
            if was_missing:
                return known
            raise SessionException(f"Session {session.session_id} already exists")
        await own.append([NewMetadata(metadata={KEPT: session.to_dict()})])
        return session

    def read_session(self, /, session_id: str, **kwargs: Any) -> StrandsSession | None:
        """A session; None if it does not exist."""
        found = self._home.wait(lambda: self._read_session(session_id))
        self._looked.missing = session_id if found is None else None
        return found

    async def _read_session(self, session_id: str) -> StrandsSession | None:
        session = await self._find(session_id)
        return None if session is None else await _session_in(session)

    @waiting
    async def delete_session(self, /, session_id: str, **kwargs: Any) -> None:
        """Delete a session with everything in it.

        Raises:
            SessionException: it does not exist.
        """
        if not await self._chats.delete(SessionKey.of(self.channel, session_id).session_id):
            raise SessionException(f"Session {session_id} does not exist")

    # --- agents ------------------------------------------------------------------------------------------------------

    @waiting
    async def create_agent(self, /, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Store a new agent's state.

        Raises:
            SessionException: there is no such session.
        """
        await self._write(session_id, AGENT, session_agent.agent_id, session_agent.to_dict())

    @waiting
    async def read_agent(self, /, session_id: str, agent_id: str, **kwargs: Any) -> SessionAgent | None:
        """An agent's newest state on the current branch; None without one."""
        fields = await self._read(session_id, AGENT, agent_id, _Agent)
        return None if fields is None else SessionAgent.from_dict(fields)

    @waiting
    async def update_agent(self, /, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Store an agent's state.

        Raises:
            SessionException: there is no such agent.
        """
        before = await self._read(session_id, AGENT, session_agent.agent_id, _Agent)
        if before is None:
            raise SessionException(f"Agent {session_agent.agent_id} in session {session_id} does not exist")
        session_agent.created_at = SessionAgent.from_dict(before).created_at
        await self._write(session_id, AGENT, session_agent.agent_id, session_agent.to_dict())

    @waiting
    async def create_multi_agent(self, /, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any) -> None:
        """Store the state of a new multi-agent system.

        Raises:
            SessionException: there is no such session.
        """
        await self._write(session_id, MULTI_AGENT, multi_agent.id, multi_agent.serialize_state())

    @waiting
    async def read_multi_agent(self, /, session_id: str, multi_agent_id: str, **kwargs: Any) -> dict[str, Any] | None:
        """The newest state of a multi-agent system on the current branch; None without one."""
        return await self._read(session_id, MULTI_AGENT, multi_agent_id)

    @waiting
    async def update_multi_agent(self, /, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any) -> None:
        """Store the state of a multi-agent system.

        Raises:
            SessionException: there is no such system.
        """
        if await self._read(session_id, MULTI_AGENT, multi_agent.id) is None:
            raise SessionException(f"MultiAgent state {multi_agent.id} in session {session_id} does not exist")
        await self._write(session_id, MULTI_AGENT, multi_agent.id, multi_agent.serialize_state())

    async def _write(self, session_id: str, kind: str, name: str, fields: Mapping[str, Any]) -> None:
        session = await self._existing(session_id)
        await session.append([NewCustom(custom_type=kind, data={"name": name, **kept_verbatim(fields)})])

    async def _read(self, session_id: str, kind: str, name: str, shape: type = dict) -> dict[str, Any] | None:
        session = await self._find(session_id)
        if session is None:
            return None
        async for entry in session.walk():
            if isinstance(entry, Custom) and entry.custom_type == kind and entry.data.get("name") == name:
                fields = verbatim(entry.data)
                if as_shape(fields, shape, entry_id=entry.id) is not None:
                    return fields
        return None

    # --- messages ----------------------------------------------------------------------------------------------------

    @waiting
    async def create_message(
        self, /, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any
    ) -> None:
        """Append a message, unless it is from the session's own history, or made up for calls without results.

        Raises:
            SessionException: there is no such session.
        """
        message = session_message.message
        if not str(message.get("tracking_id")).startswith(BY_OTHERS) and not _is_made_up(message):
            session = await self._existing(session_id)
            await session.append(_messages(agent_id, session_message))

    def read_message(self, session_id: str, agent_id: str, message_id: int, **kwargs: Any) -> SessionMessage | None:
        """One message of an agent's list; None if it is missing."""
        found = self.list_messages(session_id, agent_id)
        return next((message for message in found if message.message_id == message_id), None)

    @waiting
    async def update_message(
        self, /, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any
    ) -> None:
        """Let a message say something else: the session goes back before it, and repeats what came after.

        Raises:
            SessionException: there is no such message.
        """
        session = await self._existing(session_id)
        while True:
            try:
                return await self._update_message(session, agent_id, session_message)
            except EntryNotFound:  # another writer went elsewhere between the look and the move: look again
                continue

    async def _update_message(self, session: Chat, agent_id: str, session_message: SessionMessage) -> None:
        parts: list[str] = []
        async for entry in session.walk():
            if isinstance(entry, MessageEntry) and _is_of(entry, agent_id, session_message.message_id):
                break
            if isinstance(entry, MessageEntry) and _kept(entry).get(_OF) == session_message.message_id:
                parts.append(entry.id)
            else:
                parts.clear()  # only those right behind the message are its further results
        else:
            raise SessionException(f"Message {session_message.message_id} does not exist")
        before = verbatim(_kept(entry)) or {}
        session_message.created_at = before.get("created_at", session_message.created_at)
        await session.replace(entry.id, _messages(agent_id, session_message), without=parts)

    @waiting
    async def list_messages(
        self, /, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0, **kwargs: Any
    ) -> list[SessionMessage]:
        """An agent's messages on the current branch, oldest first, made legal where others said them."""
        try:
            session = await self._chats.find(SessionKey.of(self.channel, session_id).session_id)
        except SessionNotFound:
            return []
        entries = [
            entry
            async for entry in session.walk()
            if isinstance(entry, MessageEntry) and _kept(entry).get(_AGENT_OF, agent_id) == agent_id
        ]
        found = _listed(_as_written(entries[::-1]))
        return found[offset:] if limit is None else found[offset : offset + limit]

    def history(self, session_id: str, agent_id: str) -> list[StrandsMessage]:
        """What an agent that is made now should know: what was said in the session by others than Strands' agents."""
        return [message.to_message() for message in self.list_messages(session_id, agent_id)]

    # --- finding -----------------------------------------------------------------------------------------------------

    async def _find(self, session_id: str) -> Chat | None:
        try:
            session = await self._chats.use(SessionKey.of(self.channel, session_id))
        except SessionNotFound:
            return None
        return None if await _session_in(session) is None else session

    async def _existing(self, session_id: str) -> Chat:
        session = await self._find(session_id)
        if session is None:
            raise SessionException(f"Session {session_id} does not exist")
        return session


async def _session_in(session: Chat) -> StrandsSession | None:
    """What Strands says of a session; None if it does not know the session."""
    fields = (await session.state()).metadata.get(KEPT)
    if fields is None or as_shape(fields, _Session, session_id=session.session_id) is None:
        return None
    return StrandsSession.from_dict(fields)


# --- a message as it is kept ------------------------------------------------------------------------------------------


def _messages(agent_id: str, session_message: SessionMessage) -> list[Message]:
    """A message as it is appended: other frameworks see its present content, Strands gets back the original."""
    fields: dict[str, Any] = session_message.to_dict()
    said = fields["redact_message"] or fields["message"]
    messages = from_strands(said)
    if fields["redact_message"] is None and to_strands(messages) == [
        {"role": said["role"], "content": said["content"]}
    ]:
        fields["message"] = {name: value for name, value in said.items() if name not in ("role", "content")}
    first = {_AGENT_OF: agent_id, _ID: session_message.message_id, **kept_verbatim(fields)}
    appended: list[Message] = []
    for place, message in enumerate(messages):
        kept = {_AGENT_OF: agent_id, _OF: session_message.message_id} if place else first
        author = agent_id if message.is_assistant else None
        appended.append(msgspec.structs.replace(message, author=author, extra={KEPT: kept}))
    return appended


def _listed(entries: Sequence[MessageEntry]) -> list[SessionMessage]:
    """An agent's list: its own messages as they were, and what others said, numbered on."""
    by_identity = {id(entry.message): entry for entry in entries}
    listed: list[SessionMessage] = []
    others: list[Shown] = []
    parts: list[MessageEntry] = []

    def end_of_own() -> None:
        if not parts:
            return
        fields = dict(verbatim(_kept(parts[0])) or {})
        message = fields["message"]
        if "content" not in message:
            written = list(to_strands(part.message for part in parts))
            content = [block for one in written for block in one["content"]]
            fields["message"] = {"role": written[0]["role"] if written else "user", "content": content, **message}
        listed.append(SessionMessage.from_dict(fields))
        parts.clear()

    def end_of_others() -> None:
        for written, source in zip(to_strands(message for message, _ in others), _sources(others), strict=True):
            number = listed[-1].message_id + 1 if listed else 0
            written["tracking_id"] = BY_OTHERS + ("" if source is None else by_identity[id(source)].id)
            listed.append(SessionMessage.from_dict({"message": written, "message_id": number}))
        others.clear()

    for shown in traced((entry.message for entry in _results_behind_calls(entries)), KEPT):
        entry = by_identity.get(id(shown.message))
        if entry is None or not _kept(entry):
            end_of_own()
            others.append(shown)
            continue
        end_of_others()
        if _OF not in _kept(entry):
            end_of_own()
        parts.append(entry)
    end_of_own()
    end_of_others()
    return listed


def _results_behind_calls(entries: Sequence[MessageEntry]) -> list[MessageEntry]:
    """The entries, an agent's own results right behind its own calls: Strands drops a result that stands elsewhere.

    Two gateways that run an agent in one chat at the same time append what they say in turns.
    """
    calls = {result: caller for (caller, _), result in pair([entry.message for entry in entries]).items()}
    starts: list[int] = []  # where the message begins that an entry is part of; its parts stay together
    callers: dict[int, int] = {}  # the place of the call that a message answers, by where the message begins
    for place, entry in enumerate(entries):
        starts.append(starts[-1] if starts and _OF in _kept(entry) else place)
        caller = calls.get(place)
        if caller is not None and _kept(entry) and _kept(entries[caller]):
            callers.setdefault(starts[-1], caller)
    order = [callers.get(start, start) for start in starts]
    return [entries[place] for place in sorted(range(len(entries)), key=order.__getitem__)]


def _is_made_up(message: StrandsMessage) -> bool:
    """Whether Strands only says that calls have no results, as it does for those that a history ends with.

    Another gateway may still be at work on them. Its results come later, and would answer nothing if this was stored.
    """
    results = [block.get("toolResult") for block in message["content"]]
    return bool(results) and all(
        result is not None and result["status"] == "error" and result["content"] == [{"text": _INTERRUPTED}]
        for result in results
    )


def _sources(shown: Sequence[Shown]) -> list[Message | None]:
    """What each of Strands' messages was made from: a further result of one reply stands in the message before it."""
    return [
        source
        for place, (message, source) in enumerate(shown)
        if not (place and message.is_tool_result and shown[place - 1].message.is_tool_result)
    ]


def _kept(entry: MessageEntry) -> Mapping[str, Any]:
    return kept_fields(entry.message.extra, KEPT)


def _as_written(entries: Sequence[MessageEntry]) -> list[MessageEntry]:
    """The entries; those with this adapter's name that are not as it writes them are others', and say so."""
    found: list[MessageEntry] = []
    number: object = None  # of the message that an entry may be a further part of
    for entry in entries:
        if _OF in _kept(entry):
            is_own = _kept(entry)[_OF] == number
        else:
            is_own = _is_first(entry)
            number = _kept(entry)[_ID] if is_own else None
        found.append(entry if is_own or not has_kept(entry.message.extra, KEPT) else _as_others(entry))
    return found


def _as_others(entry: MessageEntry) -> MessageEntry:
    extra = {name: value for name, value in (entry.message.extra or {}).items() if name != KEPT}
    return msgspec.structs.replace(entry, message=msgspec.structs.replace(entry.message, extra=extra or None))


def _is_first(entry: MessageEntry) -> bool:
    """Whether a message of Strands begins with an entry."""
    kept = _kept(entry)
    return (
        bool(kept)
        and as_shape(kept, _First, entry_id=entry.id) is not None
        and as_shape(verbatim(kept), _Said, entry_id=entry.id) is not None
    )


def _is_of(entry: MessageEntry, agent_id: str, message_id: int) -> bool:
    kept = _kept(entry)
    return kept.get(_AGENT_OF) == agent_id and kept.get(_ID) == message_id and _is_first(entry)
