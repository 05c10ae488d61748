"""The calls that an adapter's own object has stored last, and whose results may still come from it."""

from __future__ import annotations

from collections.abc import Container, Iterable

from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message


class OpenCalls:
    """For each session, the ids of the calls at its end that this process is answering: no others are left open."""

    def __init__(self) -> None:
        self._waiting: dict[SessionKey, set[str]] = {}

    def of(self, key: SessionKey) -> Container[str]:
        """The ids of a session's open calls."""
        return self._waiting.get(key, ())

    def note(self, key: SessionKey, messages: Iterable[Message]) -> None:
        """These messages were stored."""
        waiting = self._waiting.pop(key, set())
        for message in messages:
            if message.is_tool_result:
                waiting.discard(message.tool_call_id or "")
            else:
                waiting = {call.id for call in message.tool_calls or ()}
        if waiting:
            self._waiting[key] = waiting
