"""A channel's own chats, where it shows people their history: never a session of another channel.

A channel names a chat by its id alone. The channel's half of the key is fixed here, so nothing that a stranger sends to
the channel can name another channel's session.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import anyio

from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.channels.base import ANNOUNCED, Incoming, command_note
from miniclaw_sessions.channels.delivered import DELIVERED, Note
from miniclaw_sessions.channels.linking import said_last
from miniclaw_sessions.core.events.listeners import SessionCreated, TurnEvent
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import COMMAND, Entry
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import EntryNotFound, SessionNotFound, TranscriptNotKept

LOOK_EVERY_S = 15.0
"""How often a chat that is not there yet is looked for: another process may have made it."""

LOOKED_AT = 500
"""How many chats a start looks at for what was left behind: a crash has interrupted those that were used last."""


class OwnChats:
    """The chats of one channel.

    Args:
        manager: whose sessions they are.
        assistant: who answers them.
        channel: the channel's name.
    """

    def __init__(self, manager: SessionManager, assistant: Assistant, channel: str) -> None:
        self._manager = manager
        self._assistant = assistant
        self._channel = channel

    def __repr__(self) -> str:
        return f"<OwnChats of {self._channel}>"

    @property
    def directory(self) -> Path | None:
        """Where the channel may keep a file of its own; None: the sessions are on a server, for several processes."""
        return self._manager.workspace

    @property
    def takes(self) -> frozenset[str]:
        """The media types of files that the usual model takes, as they are or in words, beside texts."""
        return self._assistant.agent.taken_with(self._assistant.agent.provider)

    async def find(self, chat_id: str) -> Session | None:
        """The session of a chat, without renewing its time to live; None: the chat has no session yet.

        Raises:
            InvalidKey: no chat can have such an id.
            StoreUnavailable: the store cannot be read.
        """
        try:
            return await self._manager.find(self._id_of(chat_id))
        except SessionNotFound:
            return None

    async def newest_key(self, chat_id: str, is_wanted: Callable[[str], bool]) -> str | None:
        """The id of the newest message or command of a chat whose id is wanted; None: it has none.

        Raises:
            InvalidKey, StoreUnavailable: as for `find`.
        """
        if (session := await self.find(chat_id)) is None:
            return None
        with suppress(EntryNotFound):  # it was deleted meanwhile
            async for entry in session.tree.walk(None):
                if entry.idempotency_key and is_wanted(entry.idempotency_key):
                    return entry.idempotency_key
        return None

    async def note(self, chat_id: str, text: str, key: str) -> None:
        """Keep what is said in a chat and answers nothing, unless the session has something under this key already.

        A chat without a session is gone, and hears nothing.

        Raises:
            InvalidKey, StoreError: as for `find`; or it cannot be saved.
        """
        session = await self.find(chat_id)
        if session is None or await session.journal.find_by_key(key) is not None:
            return
        unit = session.unit()
        with suppress(TranscriptNotKept):
            unit.add_custom(COMMAND, command_note(ANNOUNCED, text), idempotency_key=key)
            await unit.save()

    async def awaited(self, chat_id: str) -> AsyncGenerator[Session | None, None]:
        """The session of a chat as soon as there is one, and None each time that it was waited for in vain."""
        session_id = self._id_of(chat_id)
        made = anyio.Event()

        def look(created: SessionCreated) -> None:
            if created.head.session_id == session_id:
                made.set()

        self._manager.events.created.subscribe(look)
        try:
            while (session := await self.find(chat_id)) is None:
                yield None
                with anyio.move_on_after(LOOK_EVERY_S):
                    await made.wait()
            yield session
        finally:
            self._manager.events.created.unsubscribe(look)

    async def left_behind(self, since: datetime) -> AsyncGenerator[Incoming, None]:
        """What was said last in a chat, since then, and whose outcome its network has not taken, as after a crash.

        It is for channels with `shows_twice`. Only the chats that were used last are looked at; those that have had no
        answer yet are left out.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        for _, session_id in await self._manager.source.newest(channel=self._channel, since=since, limit=LOOKED_AT):
            with suppress(SessionNotFound):
                own = await self._manager.find(session_id)
                found = await said_last(self._manager, own) if DELIVERED in own.metadata else None
                if found is None or found[0].timestamp < since:
                    continue
                said, key = found
                if not await Note(self._manager, own, key).is_there():
                    yield Incoming(own.key.chat_id, said.message, key, answer_again=True)

    def watch(self, chat_id: str, after: int) -> AsyncGenerator[list[Entry | TurnEvent], None]:
        """What happens in a chat behind a place, as `manager.events.watch` has it; leave it with `aclosing`."""
        return self._manager.events.watch(self._id_of(chat_id), after=after)

    def _id_of(self, chat_id: str) -> str:
        return SessionKey.of(self._channel, chat_id).session_id
