"""A reminder as its chat's session keeps it: one value of the session's own metadata, which no caller and no file sets.

So deletion, retention and encryption hold for it as for all else of the session, on every branch of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from miniclaw_sessions.agent.reminders.times import When
from miniclaw_sessions.core.protocol.entries import OWN_METADATA
from miniclaw_sessions.core.session import Session

PREFIX = OWN_METADATA + "reminder."
"""The beginning of the metadata's name; its reminder's id follows."""

TIMEZONE = "timezone"
"""The metadata with the chat's time zone, an IANA name."""


class Reminder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reminder.

    Attributes:
        id: unique for ever.
        number: by which people name it; its own within the chat for as long as it is there.
        session_id: of the chat that it was set in: in a fork or a copy it says nothing.
        text: what is said, or what a model is asked.
        at: when it is due next, UTC.
        cron, every_s: how it comes again; see `times.When`.
        asks: whether a model answers the text, in place of the text itself being said.
        paused: whether it says nothing until that ends.
        schedule: the name of the settings' table that it comes from; empty: from the chat.
        network: whether a chat network must deliver it; else it is enough that the session has it.
        channel, chat_id: the chat in which it is said, where that is another one, for as long as that is linked with
            the session's.
    """

    id: str
    number: int
    session_id: str
    text: str
    at: datetime
    cron: str = ""
    every_s: int = 0
    asks: bool = False
    paused: bool = False
    schedule: str = ""
    network: bool = False
    channel: str = ""
    chat_id: str = ""

    @property
    def when(self) -> When:
        """Its time."""
        return When(self.at, self.cron, self.every_s)

    @property
    def key(self) -> str:
        """The idempotency key of what it says at its time: it is said once, whichever process says it."""
        return f"reminder:{self.id}:{self.at:%Y%m%dT%H%M%S}"


def reminders_in(session: Session) -> list[Reminder]:
    """The reminders of a session, in the order of their numbers; what is not readable as one is passed over."""
    found = (_read(value) for name, value in _metadata(session).items() if name.startswith(PREFIX))
    own = (one for one in found if one is not None and one.session_id == session.session_id)
    return sorted(own, key=lambda one: (one.number, one.id))


def reminder_in(session: Session, reminder_id: str) -> Reminder | None:
    """One reminder of a session."""
    found = _read(_metadata(session).get(PREFIX + reminder_id))
    return found if found is not None and found.session_id == session.session_id else None


def zone_name_in(session: Session) -> str:
    """The time zone that a chat has chosen; empty: none."""
    name = _metadata(session).get(TIMEZONE)
    return name if isinstance(name, str) else ""


def stored(reminder: Reminder) -> dict[str, Any]:
    """The metadata that keeps it."""
    return {PREFIX + reminder.id: msgspec.to_builtins(reminder)}


def removed(reminder: Reminder) -> dict[str, Any]:
    """The metadata that removes it."""
    return {PREFIX + reminder.id: None}


def _metadata(session: Session) -> Mapping[str, Any]:
    return session.journal.conversation.state.metadata  # `Session.metadata` copies all of it


def _read(value: Any) -> Reminder | None:
    try:
        return msgspec.convert(value, Reminder)
    except msgspec.ValidationError:  # any program may write metadata
        return None
