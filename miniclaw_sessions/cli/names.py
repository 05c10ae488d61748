"""How people name a session: by its id, the beginning of one, or a part of an id or a title."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from miniclaw_sessions.cli.invocation import SHARED, Invocation
from miniclaw_sessions.errors import InvalidKey, SessionNotFound, SessionsError

if TYPE_CHECKING:
    from miniclaw_sessions.client import Client, ClientSession
    from miniclaw_sessions.statistics import SessionSummary

COMPLETIONS = 200
"""At most this many sessions are offered to the shell."""

_SEARCHED = 1_000  # of the newest sessions, for a part of an id or a title


async def find_session(client: Client, name: str) -> ClientSession:
    """The one session that a person means.

    Raises:
        SessionNotFound: it means none.
        AmbiguousName: it means several; the text names them.
    """
    if not name:
        raise SessionsError("the session id is empty; `list` shows those that exist")
    try:
        return await client.find(name)
    except (SessionNotFound, InvalidKey) as error:
        try:
            return await client.resolve(name)
        except SessionNotFound:
            raise error from None  # which says what is wrong with the name


class Offer(NamedTuple):
    """A completion, as the shells' scripts are given it."""

    value: str
    help: str | None = None
    type: str = "plain"


def complete_session(context: Any, parameter: Any, incomplete: str) -> Any:
    """What the shell offers for the beginning or a part of a session's id or title; nothing where nobody answers."""
    del parameter
    import asyncio  # noqa: PLC0415 - only the shell asks for it

    invocation = Invocation()
    for place in (context.parent, context):
        for option, value in ({} if place is None else place.params).items():
            if option in SHARED and value is not None:
                setattr(invocation, option, value)
    try:
        rows = asyncio.run(_offers(invocation, incomplete))
    except (SessionsError, OSError):
        return []
    return [Offer(row.session_id, row.title) for row in rows]


async def _offers(invocation: Invocation, incomplete: str) -> list[SessionSummary]:
    """Those whose id begins so; where there is none, those that have it in their id or title."""
    async with invocation.sessions(reads=True) as client:
        if found := await client.list(prefix=incomplete, limit=COMPLETIONS):
            return found
        wanted, rows = incomplete.casefold(), await client.list(limit=_SEARCHED)
    found = [row for row in rows if wanted in f"{row.session_id} {row.title or ''}".casefold()]
    return found[:COMPLETIONS]


def _argument(help: str) -> Any:  # noqa: A002 - as typer calls it
    return typer.Argument(metavar="SESSION", help=help, show_default=False, shell_complete=complete_session)


SessionId = Annotated[
    str, _argument("Which session: its id as `list` shows it, or a unique beginning or part of its id or title.")
]
"""The argument that most commands begin with."""

AnySessionId = Annotated[str | None, _argument("Which session, likewise.")]
"""The same where it can be left out."""
