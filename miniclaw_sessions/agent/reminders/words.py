"""What people say about reminders in a chat: `/remind`, `/reminders` and `/timezone`."""

from __future__ import annotations

import re

from miniclaw_sessions.agent.reminders.reminders import Mark, Reminders
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import InvalidReminder

COMMANDS = ("/remind", "/reminders", "/timezone")
"""The commands about reminders."""

USAGE = "write /reminders, or /reminders pause 2, resume 2 or delete 2"

_CHANGE = re.compile(r"(pause|resume|delete)\s+#?(\d{1,9})", re.IGNORECASE)


async def obey_reminder(
    reminders: Reminders, session: Session, command: tuple[str, str], *, mark: Mark | None = None, chat: SessionKey
) -> str:
    """Do what a command asks for, and return the reply for people.

    Args:
        reminders: of all chats.
        session: of the chat.
        command: its word, and what stands behind it.
        mark: see `Reminders.set`.
        chat: the chat in which it is said.

    Raises:
        InvalidReminder: it cannot be done; `refusal` is the reply then.
        DuplicateMessage, StoreError: as for `Reminders.set`.
    """
    word, arguments = command[0], command[1].strip()
    if word == "/timezone":
        return await reminders.choose_zone(session, arguments, mark=mark)
    if word == "/remind" and arguments:
        _, reply = await reminders.set(session, arguments, mark=mark, chat=chat)
        return reply
    if not arguments:
        return listed(reminders, session)
    if (change := _CHANGE.fullmatch(arguments)) is None:
        raise InvalidReminder(USAGE)
    what, number = change[1].lower(), int(change[2])
    if what == "delete":
        return await reminders.delete(session, number, mark=mark)
    return await reminders.pause(session, number, paused=what == "pause", mark=mark)


def refusal(error: InvalidReminder) -> str:
    """The reply for people, where a command cannot be obeyed."""
    return f"{str(error)[:1].upper()}{str(error)[1:]}."


def listed(reminders: Reminders, session: Session) -> str:
    """The reminders of a chat, one a line."""
    rows = [reminders.described(session, one) for one in reminders.list(session)]
    now = f"It is {reminders.now_in(session)}."
    if not rows:
        return f"There are no reminders here. {now} /remind 20m tea sets one."
    return "\n".join([now, *rows])
