"""Sessions that are kept by others: any object with the methods that the kernel and Dive ask of a `Session`.

An agent works in a `Session` of ours. Another object's messages it loads into one in memory, and gives the turn back
when it has ended: Dive's load, hooks, generation, hooks, save. What such an object cannot keep is not kept: a
turn that fails leaves nothing in it, and a call that waits for an answer from outside waits for it no more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any, Protocol

import msgspec

from miniclaw_sessions.agent.events import TurnEnd
from miniclaw_sessions.config import MAX_MESSAGES
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, Usage, as_message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.documents import DiveSession, GoSession, KernelSession, session_of
from miniclaw_sessions.core.session.turn import Opening
from miniclaw_sessions.core.stores.reading import readable
from miniclaw_sessions.errors import AgentError, ConfigError, SessionsError

Said = Sequence[Message | Mapping[str, Any]]
GiveBack = Callable[[TurnEnd, Sequence[Message]], Awaitable[None]]


class KeepsTurns(Protocol):
    """Dive's `Session`: its id, its messages, and a way to save a turn's."""

    @property
    def id(self) -> object:
        """Its name, or a method that returns it."""
        ...

    def messages(self) -> Said | Awaitable[Said]:
        """The whole conversation, oldest first."""
        ...

    def save_turn(self, messages: Sequence[Message], usage: Usage | None, /) -> Awaitable[object] | object:
        """Append what was said in a turn, and what it cost."""
        ...


class KeepsMessages(Protocol):
    """The kernel's `Session`: its id, its messages, and a way to add one."""

    @property
    def id(self) -> object:
        """Its name, or a method that returns it."""
        ...

    def messages(self) -> Said | Awaitable[Said]:
        """The whole conversation, oldest first."""
        ...

    def add_message(self, message: Message, /) -> Awaitable[object] | object:
        """Append a message."""
        ...


AnySession = Session | KernelSession | DiveSession | GoSession | KeepsTurns | KeepsMessages
"""What an agent takes for a session."""


async def borrow(
    session: AnySession | None, message: Message | Opening | None, idempotency_key: str | None
) -> tuple[Session, GiveBack]:
    """A session to work in, and what is called with the end of the turn and with what the agent has said in it.

    Args:
        session: the session of the turn; None: no session, and nothing is kept.
        message: what the turn begins with.
        idempotency_key: the sender's own id of the message.

    Raises:
        ConfigError: it has not the methods of a session, or cannot do what is needed.
        InvalidKey: its id cannot name a session.
        AgentError: its messages could not be loaded; what it is given back may raise the same.
    """
    if session is None:
        return Session.new(), _keep_as_it_is
    if isinstance(session, Session | KernelSession | DiveSession | GoSession):
        return session_of(session), _keep_as_it_is
    missing = [name for name in ("id", "messages") if not hasattr(session, name)]
    if not hasattr(session, "save_turn") and not hasattr(session, "add_message"):
        missing.append("save_turn (or add_message)")
    if missing:
        raise ConfigError(
            f"an object of type {type(session).__name__} is no session: it has no {' and no '.join(missing)}; "
            "give a Session, or an object with these"
        )
    if idempotency_key is not None or isinstance(message, Opening):
        what = "where a turn begins" if idempotency_key is None else "an idempotency key"
        raise ConfigError(f"an object of type {type(session).__name__} cannot keep {what}; only a Session can")
    return await _loaded(session)


async def _loaded(session: KeepsTurns | KeepsMessages) -> tuple[Session, GiveBack]:
    name = session.id() if callable(session.id) else session.id
    with _loading(session):
        said = list(await _awaited(session.messages()))
    # all of it, and a turn: how much of it the model is sent, the agent's limits say
    copy = Session.new(str(name), window=len(said) + MAX_MESSAGES)
    with _loading(session):
        # what was spent before is on no account of this turn
        copy.extend([msgspec.structs.replace(as_message(message), usage=None) for message in said])
    loaded = copy.last_sequence

    async def give_back(end: TurnEnd, said: Sequence[Message]) -> None:
        entries = readable(await copy.tree.read_after(loaded))
        turn = [entry.message for entry in entries if isinstance(entry, MessageEntry)]
        method = "save_turn" if hasattr(session, "save_turn") else "add_message"
        try:
            if hasattr(session, "save_turn"):
                await _awaited(session.save_turn(turn, end.usage if end.usage.total or end.usage.cost else None))
            else:
                for message in turn:
                    await _awaited(session.add_message(message))
        except Exception as error:
            failed = _failed(session, method, error)
            failed.messages, failed.usage = tuple(said), end.usage
            raise failed from error

    return copy, give_back


@contextmanager
def _loading(session: object) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _failed(session, "messages", error) from error


async def _keep_as_it_is(_: TurnEnd, __: Sequence[Message]) -> None:
    """It has all of the turn already."""


async def _awaited(value: Any) -> Any:
    return await value if isawaitable(value) else value


def _failed(session: object, method: str, error: Exception) -> AgentError:
    reason = str(error) if isinstance(error, SessionsError) else type(error).__name__
    return AgentError(f"{method} of the {type(session).__name__} that keeps the session failed: {reason}")
