"""The texts of messages, as a test compares them."""

from __future__ import annotations

from collections.abc import Iterable

from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session


def texts_of(messages: Iterable[Message]) -> list[str]:
    return [message.text for message in messages]


def texts(session: Session) -> list[str]:
    """The texts in a session's window."""
    return texts_of(session.messages())
