"""What callers say: a message, or one as JSON has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from miniclaw_sessions.core.protocol.encoding import message_to_dict
from miniclaw_sessions.core.protocol.messages import Message

Said = Message | Mapping[str, Any]
"""A message, or one as JSON has it, such as {"role": "user", "content": "hello"}."""


def as_dict(message: Said) -> dict[str, Any]:
    """A message as it is sent."""
    return message_to_dict(message) if isinstance(message, Message) else dict(message)
