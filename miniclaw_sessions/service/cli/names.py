"""How people name a session: by its id, the beginning of one, or a part of an id or a title."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from miniclaw_sessions.errors import InvalidKey, SessionNotFound, SessionsError
from miniclaw_sessions.service.cli.invocation import SHARED, Invocation
from miniclaw_sessions.service.cli.output import one_line

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.shapes import ShownReply
    from miniclaw_sessions.service.client import Client, ClientSession
    from miniclaw_sessions.statistics import SessionSummary

_EVALUATED = re.compile(r"""[\\`$"'!]""")

COMPLETIONS = 200
"""At most this many sessions are offered to the shell."""


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


def name_of(session: SessionSummary | ShownReply) -> str:
    """What people call a session: its title, else the first words that were said in it, else its id."""
    return one_line(session.title or session.first_words or session.session_id)


def complete_session(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """What the shell offers for the beginning of a session's id; nothing where no sessions can be read.

    Parts of an id and titles are not offered: typer lets nothing through that does not begin with what was typed.
    """
    import asyncio  # noqa: PLC0415 - only the shell asks for it

    invocation = Invocation()
    for place in (context.parent, context):
        for option, value in ({} if place is None else place.params).items():
            if option in SHARED and value is not None:
                setattr(invocation, option, value)
    try:
        return asyncio.run(_offers(invocation, incomplete))
    except (SessionsError, OSError):
        return []


async def _offers(invocation: Invocation, incomplete: str) -> list[tuple[str, str]]:
    async with invocation.sessions(reads=True) as client:
        rows, _ = await client.page(prefix=incomplete, limit=COMPLETIONS, last_words=True)
    return [(row.session_id, harmless(row.title or row.first_words or "")) for row in rows]


def harmless(title: str) -> str:
    """A title that a shell may be given: zsh evaluates what it is offered, and a title is a stranger's text."""
    return _EVALUATED.sub("·", one_line(title))


def _argument(help: str) -> Any:  # noqa: A002 - as typer calls it
    return typer.Argument(metavar="SESSION", help=help, autocompletion=complete_session)


SessionId = Annotated[
    str, _argument("Which session: its id as `list` shows it, or a unique beginning or part of its id or title.")
]
"""The argument that most commands begin with."""

OneOrAll = Annotated[
    str | None,
    _argument("Which session: its id as `list` shows it, or a unique beginning or part of its id or title; else all."),
]
"""The argument of what is about one session or about all."""

AnySessionId = Annotated[
    str | None, _argument("Which session: its id, or a unique beginning or part of its id or title.")
]
"""The same where it can be left out."""
