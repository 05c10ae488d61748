"""How a client reaches the handlers: by a call in this process, or over HTTP.

Both carry the same operations and raise the same errors.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, Protocol, TypeVar

import msgspec

from miniclaw_sessions.errors import ReadOnlyWorkspace
from miniclaw_sessions.service.api.context import Context
from miniclaw_sessions.service.api.operation import Operation, in_one_piece
from miniclaw_sessions.service.api.shapes import ChatEvent, ChatRequest

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R")


class Transport(Protocol):
    """A way to the handlers."""

    async def call(self, operation: Operation[Q, R], request: Q) -> R:
        """Do something, and return what became of it."""
        ...

    def stream(self, operation: Operation[Q, Any], request: Q) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Do something whose reply is a stream of bytes; leaving the block ends it."""
        ...

    def chat(self, request: ChatRequest) -> AbstractAsyncContextManager[AsyncIterator[ChatEvent]]:
        """Say something and follow the answer."""
        ...


def new_key() -> str:
    """An idempotency key for one request: what has one is sent again where its reply was lost."""
    return os.urandom(16).hex()


class LocalTransport:
    """Calls the handlers over a manager of this process, or over a workspace that is only read.

    Attributes:
        context: what they work with.
        on_done: called after each operation, with its error or None.
    """

    def __init__(self, context: Context, *, readonly: bool = False) -> None:
        self.context = context
        self.on_done: Callable[[Operation[Any, Any], Context, Exception | None], object] = _ignore
        self._readonly = readonly

    def __repr__(self) -> str:
        return f"<in this process: {self.context.manager!r}>"

    async def call(self, operation: Operation[Q, R], request: Q) -> R:
        """The handler's reply; one that is made in pieces is put together."""
        return await in_one_piece(operation, await self._called(operation, request))

    async def _called(self, operation: Operation[Q, Any], request: Q) -> Any:
        if self._readonly and not operation.reads:
            raise ReadOnlyWorkspace(f"{operation.name}: the workspace is open to be read only")
        context = self.context.for_caller(self.context.caller)
        if isinstance(session_id := getattr(request, "session_id", None), str):
            context.note(session_id)
        try:
            reply = await operation.handler(context, request)
        except Exception as error:
            self.on_done(operation, context, error)
            raise
        self.on_done(operation, context, None)
        return reply

    @asynccontextmanager
    async def stream(self, operation: Operation[Q, Any], request: Q) -> AsyncIterator[AsyncIterator[bytes]]:
        """The handler's stream."""
        reply = await self._called(operation, request)
        async with aclosing(reply.chunks) as chunks:
            yield chunks

    def chat(self, request: ChatRequest) -> AbstractAsyncContextManager[AsyncIterator[ChatEvent]]:
        """Answers chats in this process."""
        return self.context.answering().ask(request)


def _ignore(operation: Operation[Any, Any], context: Context, error: Exception | None) -> None:
    """Ignore it."""
