"""How a command reaches the sessions: a coroutine on the daemon or the files, with a bar when it takes its time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Annotated, TypeVar

import typer

from miniclaw_sessions.cli.backend import Backend, Document, Report
from miniclaw_sessions.cli.invocation import Invocation
from miniclaw_sessions.cli.opening import open_backend
from miniclaw_sessions.cli.output import progress_on

T = TypeVar("T")

SessionId = Annotated[
    str, typer.Argument(metavar="SESSION_ID", help="Which session, as `list` shows it.", show_default=False)
]
"""The argument that most commands begin with."""


def with_backend(invocation: Invocation, act: Callable[[Backend, Report], Awaitable[T]], *, create: bool = False) -> T:
    """Run a coroutine on the daemon or the files; `create` makes a workspace that does not exist yet."""

    async def opened(report: Report) -> T:
        async with open_backend(invocation.loaded, report, create=create) as backend:
            return await act(backend, report)

    return run(invocation, opened)


def run(invocation: Invocation, act: Callable[[Report], Awaitable[T]]) -> T:
    """Run a coroutine, with a progress bar when it takes its time."""
    import anyio  # noqa: PLC0415 - help does not need it

    invocation.configure_logging()
    with progress_on(invocation.errors) as report:
        return anyio.run(act, report)


async def read_entries(backend: Backend, session: Document, report: Report) -> AsyncGenerator[bytes, None]:
    """Every entry of a session as JSON, oldest first; tells how it advances."""
    done = 0
    async with aclosing(backend.transcript(session["session_id"])) as entries:
        async for encoded in entries:
            done += 1
            report("reading", done, session["entries"])
            yield encoded


def parsed(encoded: bytes) -> Document:
    """JSON as a document."""
    import orjson  # noqa: PLC0415 - help does not need it

    document: Document = orjson.loads(encoded)
    return document
