"""Sessions for Google's Agent Development Kit: a `BaseSessionService` over ours.

    import asyncio

    from google.adk.agents import BaseAgent
    from google.adk.events import Event
    from google.adk.runners import Runner
    from google.genai import types

    from miniclaw_sessions import SessionManager
    from miniclaw_sessions.adapters.google_adk import MiniclawSessionService

    class Greeter(BaseAgent):
        async def _run_async_impl(self, ctx):
            reply = types.Content(role="model", parts=[types.Part(text="Hello Ada!")])
            yield Event(invocation_id=ctx.invocation_id, author=self.name, content=reply)

    async def main() -> None:
        async with SessionManager("workspace") as manager:
            service = MiniclawSessionService(manager)
            runner = Runner(app_name="greeter", agent=Greeter(name="greeter"), session_service=service)
            chat = await service.create_session(app_name="greeter", user_id="ada")
            question = types.Content(role="user", parts=[types.Part(text="I am Ada.")])
            async for event in runner.run_async(user_id="ada", session_id=chat.id, new_message=question):
                print(event.content.parts[0].text)
            session = await manager.continue_recent(channel="greeter")
            print([message.text for message in session.messages()])

    asyncio.run(main())

An event's content is a message of the session, which other frameworks and this package's agent understand. Its other
fields are kept beside the message, and the event comes back as it was. An event without content is a custom entry. The
messages of others come as events, made legal for a model. Events are those of the current branch.

The state is metadata of the session, the same on all of its branches. State of an app or a user (`app:`, `user:`) is
metadata of a session of its own, in the channel `google_adk`; `temp:` state is never stored. An append is refused if
another message came since the session was read (`StaleSessionError`).

One commit cannot carry an event and its state for other sessions. So the event's commit records, in metadata, what must
still be shared, and the next commits share it. If the program ends between them, the next call that reads or continues
the event's session shares it, once.

google-adk 2 needs google-genai 2, and cannot be installed beside the extra `google`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeGuard
from urllib.parse import quote

import msgspec
from google.adk.errors._stale_session_error import StaleSessionError  # its only home
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event
from google.adk.sessions import Session as AdkSession
from google.adk.sessions import State
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.genai import types
from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from miniclaw_sessions.adapters.chats import Chat, New, chats_of
from miniclaw_sessions.adapters.chats import State as ChatState
from miniclaw_sessions.adapters.home_loop import HomeLoop, at_home
from miniclaw_sessions.adapters.verbatim import as_shape, kept_verbatim, verbatim
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import Custom, Entry, MessageEntry
from miniclaw_sessions.core.protocol.json_values import parse_json
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import InvalidMessage, LeafMoved, SessionNotFound, StoreCorrupt
from miniclaw_sessions.files.formats.codec import kept_fields
from miniclaw_sessions.files.formats.google import from_google, from_google_reply, to_google
from miniclaw_sessions.files.formats.histories import presented
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.service.api.shapes import NewCustom, NewMetadata
from miniclaw_sessions.service.client import Client

KEPT = "google_adk"
"""The key of `extra` under which the fields of an event are kept that its message has no place for.

Also the metadata that says whose session it is, and the channel of the sessions that hold shared state.
"""

EVENT = "google_adk.event"
"""The `custom_type` of an event that is no message."""

_STATE = "google_adk.state."
"""What the names of metadata begin with that is state; a value stands in a list, because null removes metadata."""

_SHARING = "google_adk.sharing."
"""What the names of metadata begin with that must still be set in other sessions: by chat, in the channel `KEPT`."""

_OF = "of"  # the event that a further message is part of
_PREFIXES = (State.APP_PREFIX, State.USER_PREFIX, State.TEMP_PREFIX)

log = get_logger(__name__)

Key = Callable[[str, str, str], SessionKey]


def session_key(app_name: str, user_id: str, session_id: str) -> SessionKey:
    """Which session of ours it is: channel `app_name`, chat `user_id/session_id`."""
    return SessionKey.of(app_name, f"{quote(user_id, safe='')}/{session_id}")


class _Own(msgspec.Struct):
    """What the metadata `KEPT` says: whose session it is, and when it was made."""

    app_name: str
    user_id: str
    id: str
    created: float


class MiniclawSessionService(BaseSessionService):
    """The sessions of a manager, or of a client, as ADK wants them.

    Made on the manager's event loop; it may be used from any other.

    Args:
        manager: the sessions: a manager, or a client (`miniclaw_sessions.connect`) of a daemon that holds them.
        agent_name: the author for the messages of other programs' assistants. ADK presents the words of other agents
            differently from an agent's own, so give your agent's name.
        key: which session of ours an app, a user and a session id stand for, for example a chat of Telegram.

    Raises, from every method:
        StoreUnavailable, StoreFull, UnsavedLimit: nothing can be stored, or read.
        InvalidKey: the names cannot name a session.
        InvalidMessage: an event is larger than `max_message_bytes`, or a state than `max_metadata_bytes`.
        SessionLimit: a session is needed, for a chat or for what chats share, and there are `max_sessions` already.
    """

    def __init__(self, manager: SessionManager | Client, *, agent_name: str = "model", key: Key = session_key) -> None:
        self.manager = manager
        self._chats = chats_of(manager)
        self.agent_name = agent_name
        self._key = key
        self._home = HomeLoop()

    @at_home
    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> AdkSession:
        """Make a session, or take up one of ours that ADK did not know, and return when it is acknowledged.

        Raises:
            AlreadyExistsError: there is one with this id.
        """
        session_id = (session_id or "").strip() or self._chats.clock.new_id()
        session = await self._chats.get_or_create(self._key(app_name, user_id, session_id))
        if _own_in(await session.state()) is not None:
            raise AlreadyExistsError(f"Session with id {session_id} already exists.")
        for chat_id, metadata in _to_share(app_name, user_id, state or {}).items():
            await (await self._shared_chat(chat_id)).append([NewMetadata(metadata=metadata)])
        created = self._chats.clock.now().timestamp()
        own = _Own(app_name=app_name, user_id=user_id, id=session_id, created=created)
        kept = msgspec.to_builtins(own)
        await session.append([NewMetadata(metadata={KEPT: kept, **_metadata(_scoped(state or {}, ""))})])
        return await self._loaded(session, own, [])

    @at_home
    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> AdkSession | None:
        """A session with its events, all or the newest; None if it does not exist."""
        try:
            session = await self._chats.use(self._key(app_name, user_id, session_id.strip()))
        except SessionNotFound:
            return None
        own = _own_in(await session.state())
        if own is None:
            return None
        return await self._loaded(session, own, await self._events(session, config or GetSessionConfig()))

    @at_home
    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """All sessions of an app, or of one of its users, with their states and without events, the latest last."""
        found: list[AdkSession] = []
        for one in await self._chats.ids():
            with suppress(SessionNotFound):
                session = await self._chats.find(one)
                own = _own_in(await session.state())
                if own is not None and own.app_name == app_name and user_id in (None, own.user_id):
                    found.append(await self._loaded(session, own, []))
        found.sort(key=lambda session: (session.last_update_time, session.user_id, session.id))
        return ListSessionsResponse(sessions=found)

    @at_home
    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session with everything in it; what is shared with others stays."""
        await self._chats.delete(self._key(app_name, user_id, session_id.strip()).session_id)

    @at_home
    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """What the sessions of a user share, without the prefix `user:`."""
        return await self._shared(_user_chat(app_name, user_id))

    async def append_event(self, session: AdkSession, event: Event) -> Event:
        """Append an event and apply its state, and return when both are acknowledged. A partial event is not stored.

        An event that is the same as the session's last one is not appended again. What of its state was not shared yet
        is shared then.

        Raises:
            SessionNotFoundError: there is no such session.
            StaleSessionError: another message came since it was read.
        """
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        if await self._append(session, event) and session.events[-1:] != [event]:
            session.last_update_time = event.timestamp
            return self._commit_event_to_session(session, event)
        return event

    # --- a session of theirs -----------------------------------------------------------------------------------------

    async def _loaded(self, session: Chat, own: _Own, events: list[Event]) -> AdkSession:
        state = await session.state()
        await self._share(session, state)
        newest = await _newest(session)
        shared: dict[str, Any] = {}
        for prefix, chat_id in (
            (State.APP_PREFIX, _app_chat(own.app_name)),
            (State.USER_PREFIX, _user_chat(own.app_name, own.user_id)),
        ):
            shared |= {prefix + name: value for name, value in (await self._shared(chat_id)).items()}
        loaded = AdkSession(
            app_name=own.app_name,
            user_id=own.user_id,
            id=own.id,
            state=_state_in(state.metadata) | shared,
            events=events,
            last_update_time=own.created if newest is None else _time_of(newest),
        )
        loaded._storage_update_marker = "" if newest is None else newest.id  # noqa: SLF001 - made for services
        return loaded

    async def _shared(self, chat_id: str) -> dict[str, Any]:
        try:
            session = await self._chats.use(SessionKey.of(KEPT, chat_id))  # it lives as long as it is used
        except SessionNotFound:
            return {}
        return _state_in((await session.state()).metadata)

    async def _shared_chat(self, chat_id: str) -> Chat:
        return await self._chats.get_or_create(SessionKey.of(KEPT, chat_id))

    async def _share(self, session: Chat, state: ChatState) -> None:
        """Share what events of this session have set in others, as far as that is not done yet.

        Another call may do the same now, and others may have set something newer since: its key lets each be set once.

        Raises:
            InvalidMessage: it is too large for where it belongs; it is given up, or no call would ever pass again.
        """
        for name in sorted(name for name in state.metadata if name.startswith(_SHARING)):  # the oldest first
            done = [NewMetadata(metadata={name: None})]
            by_chat = as_shape(state.metadata[name], dict[str, dict[str, Any]], session_id=session.session_id)
            try:
                for chat_id, metadata in (by_chat or {}).items():
                    shared = await self._shared_chat(chat_id)
                    await shared.append([NewMetadata(metadata=metadata)], idempotency_key=name)
            except InvalidMessage:
                await session.append(done)
                raise
            await session.append(done)

    @at_home
    async def _append(self, known: AdkSession, event: Event) -> bool:
        """Append an event, unless it is the newest already; whether `known` has all that was said before it."""
        try:
            session = await self._chats.use(self._key(known.app_name, known.user_id, known.id))
        except SessionNotFound:
            raise SessionNotFoundError(f"Session {known.id} not found.") from None
        while True:
            try:
                return await self._append_if_known(session, known, event)
            except LeafMoved:  # another writer came between the look and the append: look again
                continue

    async def _append_if_known(self, session: Chat, known: AdkSession, event: Event) -> bool:
        """Append an event where none came since the session was read, and share its state.

        Raises:
            StaleSessionError: another message came.
            LeafMoved: another entry came meanwhile; nothing was appended.
        """
        state = await session.state()
        await self._share(session, state)  # of the events before this one; or of this one, which is repeated
        leaf_id, newest = state.leaf_id or "", await _newest(session)
        marker: str | None = known._storage_update_marker  # noqa: SLF001 - made for services
        if newest is not None and verbatim(_kept(newest)) is not None and _event_of(newest) == event:
            return marker == newest.id  # it was delivered once more
        is_stale = (
            (newest is not None and _time_of(newest) > known.last_update_time)
            if marker is None
            else marker != ("" if newest is None else newest.id)
        )
        if is_stale:
            raise StaleSessionError("the session has newer messages than were read; get_session again, and repeat")
        said, delta = _entries(event), event.actions.state_delta
        metadata = _metadata(_scoped(delta, ""))
        to_share = _to_share(known.app_name, known.user_id, delta)
        for chat_id in to_share:
            await self._shared_chat(chat_id)  # else max_sessions refuses it behind the commit, and each later read
        if to_share:
            metadata[_SHARING + self._chats.clock.new_id()] = to_share
        appended = await session.append([*said, NewMetadata(metadata=metadata)] if metadata else said, if_leaf=leaf_id)
        known._storage_update_marker = appended[len(said) - 1].id  # noqa: SLF001 - made for services
        if to_share:
            await self._share(session, await session.state())
        return True

    # --- events ------------------------------------------------------------------------------------------------------

    async def _events(self, session: Chat, config: GetSessionConfig) -> list[Event]:
        """The events of the current branch, or its newest."""
        wanted, since = config.num_recent_events, config.after_timestamp
        if wanted == 0:
            return []
        entries: list[MessageEntry | Custom] = []
        found = 0
        is_beginning = True
        async for entry in session.walk():
            if not _is_said(entry):
                continue
            is_late = since is not None and _time_of(entry) < since
            if is_late or (wanted is not None and found >= wanted and not _continues(entry)):
                is_beginning = False
                break
            entries.append(entry)
            found += not _continues(entry)
        events = self._as_events(entries[::-1], is_beginning=is_beginning)
        return events if wanted is None else events[-wanted:]

    def _as_events(self, entries: Sequence[MessageEntry | Custom], *, is_beginning: bool) -> list[Event]:
        """Entries as events: ADK's own as they were, what others said made legal."""
        own = {id(entry.message): entry for entry in entries if isinstance(entry, MessageEntry)}
        silent = [entry for entry in entries if isinstance(entry, Custom)]
        events: list[Event] = []
        for message in presented((entry.message for entry in own.values()), KEPT, is_beginning=is_beginning):
            entry = own.get(id(message))
            while entry is not None and silent and silent[0].sequence < entry.sequence:
                events.append(_event_of(silent.pop(0)))
            if entry is None or not kept_fields(message.extra, KEPT):
                events.append(self._event_by_another(message, entry))
            elif not _continues(entry):
                events.append(_event_of(entry))
        return [*events, *(_event_of(entry) for entry in silent)]

    def _event_by_another(self, message: Message, entry: MessageEntry | None) -> Event:
        written = to_google([message])
        content = (written["contents"] or [{"role": "user", **written.get("system_instruction", {"parts": []})}])[0]
        is_agents = message.is_assistant or message.is_tool_result
        entry_id = self._chats.clock.new_id() if entry is None else entry.id
        said_at = message.timestamp or self._chats.clock.now()
        return Event(
            id=entry_id,
            invocation_id=entry_id,
            author=message.author or self.agent_name if is_agents else "user",
            content=types.Content.model_validate_json(msgspec.json.encode(content)),
            timestamp=said_at.timestamp(),
        )


# --- an event as entries ---------------------------------------------------------------------------------------------


def _entries(event: Event) -> list[New]:
    """An event as it is appended: its messages, or a custom entry."""
    fields: dict[str, Any] = parse_json(event.model_dump_json(exclude_none=True).encode(), depth=1_000)
    messages = _messages_of(event)
    if not messages:
        return [NewCustom(custom_type=EVENT, data=kept_verbatim(fields))]
    if len(messages) == 1 and _content_of(messages[0]) == event.content:
        del fields["content"]
    said: list[New] = []
    for place, message in enumerate(messages):
        extra = {**(message.extra or {}), KEPT: {_OF: event.id} if place else kept_verbatim(fields)}
        author = None if event.author == "user" else event.author or None
        moment = datetime.fromtimestamp(event.timestamp, UTC)
        said.append(msgspec.structs.replace(message, timestamp=moment, author=author, extra=extra))
    return said


def _messages_of(event: Event) -> list[Message]:
    """An event's content for other frameworks; empty if it has none, or none that they could read."""
    if event.content is None or not event.content.parts:
        return []
    content = event.content.model_dump(mode="json", exclude_none=True)
    content["role"] = content.get("role") or ("user" if event.author == "user" else "model")
    fields = event.model_dump(mode="json", exclude_none=True, include={"usage_metadata", "model_version"})
    candidate = {"content": content, "finish_reason": event.finish_reason and event.finish_reason.value}
    try:
        is_reply = content["role"] == "model"
        return from_google_reply({"candidates": [candidate], **fields}) if is_reply else from_google([content])
    except InvalidMessage:
        return []


def _content_of(message: Message) -> types.Content | None:
    """The content that a message was made of; None if it is not recorded."""
    contents = to_google([message])["contents"]
    try:
        return types.Content.model_validate_json(msgspec.json.encode(contents[0])) if len(contents) == 1 else None
    except ValidationError:
        return None


def _event_of(entry: MessageEntry | Custom) -> Event:
    """An event of ADK's own.

    Raises:
        StoreCorrupt: it is none.
    """
    try:
        event = Event.model_validate_json(msgspec.json.encode(verbatim(_kept(entry))))
    except ValidationError:
        raise StoreCorrupt(f"entry {entry.id} is no event that this version of google-adk can read") from None
    if isinstance(entry, MessageEntry) and event.content is None:
        event.content = _content_of(entry.message)
    return event


def _is_said(entry: Entry) -> TypeGuard[MessageEntry | Custom]:
    """Whether an entry is an event, or a part of one, or what others said."""
    return isinstance(entry, MessageEntry) or (
        isinstance(entry, Custom) and entry.custom_type == EVENT and _is_event(entry)
    )


def _is_event(entry: Custom) -> bool:
    """Whether an entry holds an event; a warning where another program wrote something else."""
    try:
        _event_of(entry)
    except StoreCorrupt as error:
        log.warning("an entry is passed over", action="recovery.entry_damaged", entry_id=entry.id, error=str(error))
        return False
    return True


def _continues(entry: MessageEntry | Custom) -> bool:
    """Whether an entry is a further part of the event before it."""
    return isinstance(entry, MessageEntry) and _OF in _kept(entry)


def _kept(entry: MessageEntry | Custom) -> Mapping[str, Any]:
    return entry.data if isinstance(entry, Custom) else kept_fields(entry.message.extra, KEPT)


def _time_of(entry: MessageEntry | Custom) -> float:
    timestamp = (verbatim(_kept(entry)) or {}).get("timestamp")
    if isinstance(timestamp, int | float):
        return float(timestamp)  # to the last digit, which a message's time does not have
    said_at = entry.message.timestamp if isinstance(entry, MessageEntry) else None
    return (said_at or entry.timestamp).timestamp()


async def _newest(session: Chat) -> MessageEntry | Custom | None:
    async for entry in session.walk():
        if _is_said(entry):
            return entry
    return None


# --- state -----------------------------------------------------------------------------------------------------------


def _app_chat(app_name: str) -> str:
    return f"app/{quote(app_name, safe='')}"


def _user_chat(app_name: str, user_id: str) -> str:
    return f"user/{quote(app_name, safe='')}/{quote(user_id, safe='')}"


def _to_share(app_name: str, user_id: str, state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What a state sets in other sessions: the metadata of each, by its chat in the channel `KEPT`."""
    parts = {
        _app_chat(app_name): _metadata(_scoped(state, State.APP_PREFIX)),
        _user_chat(app_name, user_id): _metadata(_scoped(state, State.USER_PREFIX)),
    }
    return {chat_id: metadata for chat_id, metadata in parts.items() if metadata}


def _scoped(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The part of a state with this prefix, without it; without a prefix, the session's own."""
    if prefix:
        return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    return {name: value for name, value in state.items() if not name.startswith(_PREFIXES)}


def _metadata(delta: Mapping[str, Any]) -> dict[str, Any]:
    return {_STATE + name: [to_jsonable_python(value, fallback=str)] for name, value in delta.items()}


def _own_in(state: ChatState) -> _Own | None:
    """Whose session it is; None if ADK does not know it."""
    kept = state.metadata.get(KEPT)
    return None if kept is None else as_shape(kept, _Own, metadata=KEPT)


def _state_in(metadata: Mapping[str, Any]) -> dict[str, Any]:
    values = {name.removeprefix(_STATE): value for name, value in metadata.items() if name.startswith(_STATE)}
    return {name: value[0] for name, value in values.items() if isinstance(value, list) and value}
