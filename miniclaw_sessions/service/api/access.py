"""Who asks, and what that one may do: a scope, and where wanted bounds, within which there are sessions for him.

An operation names the scope that it needs (`Operation.scope`); `Caller.may` compares. Which sessions there are is
decided in one place, the context's: a caller with bounds is given a view of the manager that has no others
(`api.bounded`), so that no handler has to remember to look.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from miniclaw_sessions.core.protocol.keys import KeyBounds, SessionKey
from miniclaw_sessions.errors import NotPermitted

if TYPE_CHECKING:
    from miniclaw_sessions.core.session import Session
    from miniclaw_sessions.service.api.context import Chats
    from miniclaw_sessions.service.api.shapes import ChatEvent, ChatRequest

Scope = Literal["probe", "open", "read", "write", "admin"]
"""What is needed for an operation, each more than the one before.

`probe`: nothing, not even a `Host` that names this server; `open`: no token; `read`: looks at sessions; `write`:
changes them, or has them answered; `admin`: is about the workspace as a whole, or about who may do what.
"""

_RANK: dict[Scope, int] = {"probe": 0, "open": 0, "read": 1, "write": 2, "admin": 3}


@dataclass(frozen=True)
class Caller:
    """Whoever asks.

    Attributes:
        name: the token's; `owner` for whoever may open the Unix socket.
        scope: what the caller may do; `open`: nothing but what needs no token.
        bounds: which sessions there are for the caller; None: all.
        token: how the caller's token is told from others of that name: the first digits of its SHA-256; empty: none.
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
"""Whoever holds the manager in this process, or may open the daemon's Unix socket."""

STRANGER = Caller("", "open")
"""Whoever has shown no token."""


class BoundedChats:
    """`api.context.Chats` for a caller with bounds: nothing is said in what is not there for him."""

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
        """End the session's open turn; False when there is none."""
        self._caller.permit(session.key)
        return self._chats.stop(session)

    async def models(self) -> Mapping[str, str]:
        """The models that a chat may choose."""
        return await self._chats.models()
