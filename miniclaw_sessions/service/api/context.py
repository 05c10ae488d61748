"""What handlers work with: the caller and his sessions, the parts that answer chats, and the one that summarizes.

An operation names the scope that it needs (`Operation.scope`); `Caller.may` compares. A caller with bounds gets a view
of the manager that has no other sessions (`api.bounded`), so that no handler has to check.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, Self, cast

import anyio
from anyio import to_thread

from miniclaw_sessions.core.protocol.keys import KeyBounds, SessionKey, is_session_id
from miniclaw_sessions.errors import ConfigError, InvalidKey, NotPermitted
from miniclaw_sessions.service.api.samples import Series
from miniclaw_sessions.service.api.shapes import ChatEvent, ChatRequest
from miniclaw_sessions.statistics import ChannelState

if TYPE_CHECKING:
    from miniclaw_sessions.core.manager import SessionManager
    from miniclaw_sessions.core.session import Session
    from miniclaw_sessions.core.session.compacting import Summarizer
    from miniclaw_sessions.service.api.kept_tokens import TokenKeeper
    from miniclaw_sessions.service.api.openai.response_request import Responses

Scope = Literal["probe", "open", "read", "write", "admin"]
"""What is needed for an operation, each more than the one before.

`probe`: nothing, not even a `Host` that names this server; `open`: no token; `read`: looks at sessions; `write`:
changes them, or has them answered; `admin`: is about the workspace as a whole, or about who may do what.
"""

_RANK: dict[Scope, int] = {"probe": 0, "open": 0, "read": 1, "write": 2, "admin": 3}

REMEMBERED_DELETIONS = 1_000
"""How many idempotency keys of deletions are remembered, so that a repeated one gets the first one's answer."""

SEARCHES = 2
"""Searches at the same time: without an index each reads everything."""

LARGE_REPLIES = 4
"""Replies at the same time that hold what they send: a slow reader keeps his for a while."""

READINGS = 4
"""Small replies at the same time that are made of a whole session."""


@dataclass(frozen=True)
class Caller:
    """The sender of a request.

    Attributes:
        name: the token's name; `owner` for a request over the Unix socket.
        scope: what the caller may do; `open`: nothing but what needs no token.
        bounds: which sessions there are for the caller; None: all.
        token: the first digits of the token's SHA-256, because names can repeat; empty: no token.
    """

    name: str
    scope: Scope
    bounds: KeyBounds | None = None
    token: str = ""

    def may(self, scope: Scope) -> bool:
        """Whether the caller has this scope, or a greater one."""
        return _RANK[self.scope] >= _RANK[scope]

    def require(self, scope: Scope) -> None:
        """Raise NotPermitted unless the caller has this scope, or a greater one."""
        if not self.may(scope):
            raise NotPermitted(f"this needs a token of scope {scope}, and this one has scope {self.scope}")

    def sees(self, key: SessionKey) -> bool:
        """Whether a session is there for the caller."""
        return self.bounds is None or self.bounds.covers(key)

    def permit(self, key: SessionKey) -> None:
        """Raise NotPermitted unless the caller may make, and speak in, a session of this key.

        It says the same whether there is such a session or not.
        """
        if not self.sees(key):
            raise NotPermitted(f"this token is for {self.bounds}; session {key.session_id} is none of these")


OWNER = Caller("owner", "admin")
"""The holder of the manager in this process, or a user of the daemon's Unix socket."""

STRANGER = Caller("", "open")
"""A caller without a token."""


class Chats(Protocol):
    """Who answers what is said in a chat."""

    def ask(self, request: ChatRequest) -> AbstractAsyncContextManager[AsyncIterator[ChatEvent]]:
        """Hand a message over and follow its answer; leaving the block early does not undo what was saved.

        Of the daemon's, a wait for the next event can be given up, and nothing is missed.
        """
        ...

    def stop(self, session: Session) -> bool:
        """End the session's open turn; False when no turn is open."""
        ...

    async def models(self) -> Mapping[str, str]:
        """The models that a chat may choose, and who provides them; the first one answers unless it does."""
        ...

    async def takes(self) -> Mapping[str, Collection[str]]:
        """The media types of files that each of these models takes, beside texts."""
        ...

    async def thinking_levels(self) -> Mapping[str, Sequence[str]]:
        """The levels of thinking that each of these models takes, the least first."""
        ...


class BoundedChats:
    """`Chats` for a caller with bounds: nothing is said in what is not there for him."""

    def __init__(self, chats: Chats, caller: Caller) -> None:
        self._chats = chats
        self._caller = caller

    def ask(self, request: ChatRequest) -> AbstractAsyncContextManager[AsyncIterator[ChatEvent]]:
        """Hand a message over and follow its answer.

        Raises:
            NotPermitted: the chat is none of the caller's.
        """
        self._caller.permit(SessionKey.of(request.channel, request.chat_id))
        return self._chats.ask(request)

    def stop(self, session: Session) -> bool:
        """End the session's open turn; False when no turn is open."""
        self._caller.permit(session.key)
        return self._chats.stop(session)

    async def models(self) -> Mapping[str, str]:
        """The models that a chat may choose."""
        return await self._chats.models()

    async def takes(self) -> Mapping[str, Collection[str]]:
        """The media types of files that each of these models takes, beside texts."""
        return await self._chats.takes()

    async def thinking_levels(self) -> Mapping[str, Sequence[str]]:
        """The levels of thinking that each of these models takes."""
        return await self._chats.thinking_levels()


async def _without_bounds(session: Session) -> None:
    """There are no budgets."""


class Context:
    """One open manager, for those who do something with it; `for_caller` makes it a request's.

    Attributes:
        manager: whose sessions they are; or who reads them, where they are only read; for a caller with bounds a view
            (`api.bounded`) that has no others, and refuses what is about all of them.
        whole: the manager itself, for what no caller sees.
        caller: who asks.
        about: the session that the request is about, as it is written down; None: none, or none yet.
        made: the session that was made of that one, for the same purpose.
        of_token: the name of the token that was made or revoked, for the same purpose.
        also_about: further sessions that it is about; each is written down for itself.
        summarizer: summarizes where a request brings no summary; None: nothing does.
        may_spend: raises BudgetSpent where nothing more may be spent in a session.
        chats: answers chats; None: nothing does.
        responses: makes responses; None: nothing does.
        started: the monotonic second at which it was made.
        problems: what is wrong beside the manager, such as with the sockets; one sentence each.
        channels: how the channels are that the settings turn on, by name.
        tokens: keeps the tokens; None: nothing does.
        under_way: how far backups and their verification have come, by what is done.
        searches: bounds the searches under way.
        series: the numbers of the last hour; empty where nothing samples them.
        large_replies: bounds the replies under way that may hold a whole session in memory.
        readings: bounds the reads of a whole session for a small reply.
    """

    def __init__(
        self,
        manager: SessionManager,
        *,
        summarizer: Summarizer | None = None,
        chats: Chats | None = None,
        responses: Responses | None = None,
    ) -> None:
        self.manager = self.whole = manager
        self.caller = OWNER
        self.about: str | None = None
        self.made: str | None = None
        self.of_token: str | None = None
        self.also_about: list[str] = []
        self.summarizer = summarizer
        self.may_spend: Callable[[Session], Awaitable[None]] = _without_bounds
        self.chats = chats
        self.responses = responses
        self.started = time.monotonic()
        self.problems: Callable[[], list[str]] = list
        self.channels: Callable[[], Mapping[str, ChannelState]] = dict
        self.tokens: TokenKeeper | None = None
        self.under_way: dict[str, tuple[int, int]] = {}  # one for all requests
        self.searches = anyio.Semaphore(SEARCHES)
        self.series = Series()
        self.large_replies = anyio.Semaphore(LARGE_REPLIES)
        self.readings = anyio.Semaphore(READINGS)
        self._workspace: list[str] = []  # once it was looked up; one list for all requests
        self._deletions: OrderedDict[tuple[Caller, str, str], None] = OrderedDict()

    # --- who asks ----------------------------------------------------------------------------------------------------

    def for_caller(self, caller: Caller) -> Self:
        """A context for one request of a caller; state between requests is shared."""
        context = object.__new__(type(self))  # for each request, so without what `copy` costs
        context.__dict__.update(self.__dict__)
        context.caller = caller
        context.also_about = []
        if caller.bounds is not None:
            from miniclaw_sessions.service.api.bounded import BoundedSessions  # noqa: PLC0415 - a client has no manager

            context.manager = cast("SessionManager", BoundedSessions(self.whole, caller.bounds, caller.permit))
            context.chats = None if self.chats is None else BoundedChats(self.chats, caller)
        return context

    def note(self, session_id: str) -> None:
        """Say which session the request is about; the first one that is named counts."""
        if self.about is None and is_session_id(session_id):
            self.about = session_id

    async def workspace(self) -> str:
        """Which directory or database the sessions are in; empty if that cannot be seen.

        A directory goes by what its lock file is (`disk.lock_identity`), a database by its server and name.
        """
        where = self.whole.workspace
        if where is None:
            return self.whole.store.place.identity
        if not self._workspace:
            from miniclaw_sessions.disk import lock_identity  # noqa: PLC0415 - a client has these shapes, and no disk

            try:
                self._workspace.append(await to_thread.run_sync(lock_identity, where))
            except OSError:
                self._workspace.append("")
        return self._workspace[0]

    async def find(self, session_id: str) -> Session:
        """The session with this id; does not renew its time to live.

        Raises:
            SessionNotFound, InvalidKey: the caller has no such session, or the text is no session id.
        """
        self.note(session_id)
        return await self.manager.find(session_id)

    async def find_or_create(self, session_id: str) -> Session:
        """The session with this id, created if it is missing; renews its time to live.

        Raises:
            InvalidKey, SessionLimit: it is missing and cannot be created.
            NotPermitted: it is none of the caller's.
        """
        self.note(session_id)
        try:
            key = SessionKey.parse(session_id)
        except InvalidKey:  # it may be a shortened one
            if not is_session_id(session_id):
                raise
            key = (await self.manager.find(session_id)).key
        return await self.manager.get_or_create(key.channel, key.chat_id)

    def answering(self) -> Chats:
        """Who answers chats.

        Raises:
            ConfigError: nothing does.
        """
        if self.chats is None:
            raise ConfigError("nothing answers chats here; start the daemon, or open the workspace with an assistant")
        return self.chats

    def responding(self) -> Responses:
        """Who makes responses.

        Raises:
            ConfigError: nothing does.
        """
        if self.responses is None:
            raise ConfigError("nothing makes responses here; start the daemon")
        return self.responses

    def was_deleted(self, session_id: str, idempotency_key: str | None) -> bool:
        """Whether the caller has deleted a session with this key before."""
        return idempotency_key is not None and (self.caller, session_id, idempotency_key) in self._deletions

    def note_deletion(self, session_id: str, idempotency_key: str | None) -> None:
        """Remember a deletion."""
        if idempotency_key is not None:
            self._deletions[self.caller, session_id, idempotency_key] = None
            if len(self._deletions) > REMEMBERED_DELETIONS:
                self._deletions.popitem(last=False)

    def without_paths(self, sentences: list[str]) -> list[str]:
        """Sentences for strangers: they do not learn where the workspace is."""
        where = self.whole.workspace
        if where is None:
            return [sentence.replace(self.whole.store.place.shown, "<store>") for sentence in sentences]
        return [sentence.replace(str(where), "<workspace>") for sentence in sentences]
