"""Reminders from the command line, and what the terminal's chat says of them: the commands of all chats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from miniclaw_sessions.errors import InvalidReminder
from miniclaw_sessions.printable import printable
from miniclaw_sessions.service.cli.invocation import Invocation, command
from miniclaw_sessions.service.cli.names import complete_session, find_session

if TYPE_CHECKING:
    from miniclaw_sessions.service.client import ClientSession

app = typer.Typer()
reminders = typer.Typer(no_args_is_help=True)
app.add_typer(reminders, name="reminders", help="Set, list, pause and delete what is said in a chat at its time.")

Session = Annotated[
    str,
    typer.Argument(
        metavar="SESSION",
        help="The chat: a session's id, or a unique beginning or part of an id or a title.",
        autocompletion=complete_session,
    ),
]
Number = Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="Its number in the list.")]


async def obeyed(session: ClientSession, words: str) -> tuple[str, bool]:
    """The reply to a command of `channels.commands`, as a person in the chat would get it; and whether it was done."""
    from miniclaw_sessions.channels.base import REPLY  # noqa: PLC0415 - loads agent and channels

    async with session.chat(words, commands=True) as events:
        async for event in events:
            if event.kind == "obeyed":
                return str(event.data[REPLY]), not event.data.get("failed", False)
    return "", True


async def _print(invocation: Invocation, name: str, words: str) -> None:
    async with invocation.sessions() as client:
        session = await find_session(client, name)
        reply, is_done = await obeyed(session, words)
        if not is_done:
            raise InvalidReminder(reply.removesuffix("."))
        if invocation.as_json:
            invocation.print_json({"session_id": session.session_id, "reply": reply})
        else:
            invocation.console.out(printable(reply, lines=True), highlight=False)


@command(reminders, name="list", examples={"reminders list telegram_123456789": "with their numbers and times"})
async def list_reminders(invocation: Invocation, session: Session) -> None:
    """List the reminders of a chat."""
    await _print(invocation, session, "/reminders")


@command(
    reminders,
    examples={
        "reminders add telegram_123456789 20m tea": "once",
        "reminders add telegram_123456789 every weekday 8:30 stand-up": "again and again",
        "reminders add telegram_123456789 'cron 0 9 1 * * the rent'": "by a cron expression",
    },
)
async def add(
    invocation: Invocation,
    session: Session,
    words: Annotated[list[str], typer.Argument(metavar="WHEN TEXT", help="As in a chat behind /remind.")],
) -> None:
    """Set a reminder; the daemon says it at its time."""
    await _print(invocation, session, f"/remind {' '.join(words)}")


@command(reminders, examples={"reminders pause telegram_123456789 2": "until it is resumed"})
async def pause(invocation: Invocation, session: Session, number: Number) -> None:
    """Let a reminder say nothing for now."""
    await _print(invocation, session, f"/reminders pause {number}")


@command(reminders, examples={"reminders resume telegram_123456789 2": "from its next time on"})
async def resume(invocation: Invocation, session: Session, number: Number) -> None:
    """Let a paused reminder go on."""
    await _print(invocation, session, f"/reminders resume {number}")


@command(reminders, examples={"reminders delete telegram_123456789 2": "for good"})
async def delete(invocation: Invocation, session: Session, number: Number) -> None:
    """Delete a reminder."""
    await _print(invocation, session, f"/reminders delete {number}")
