"""What commands ask for sessions: a daemon, or the files themselves.

Both answer with the documents of the HTTP API, so a command does not know which one it talks to, and `--json` prints
the same either way.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

import msgspec

Document = dict[str, Any]
"""JSON as the HTTP API describes it."""

Report = Callable[[str, int, int | None], None]
"""Called with a stage, how much of it is done, and how much there is (None: that is unknown)."""


class ChatEvent(msgspec.Struct, frozen=True):
    """Something that happens while an answer is made.

    Attributes:
        kind: text, tool_started, tool_finished or done.
        data: as in the HTTP API's stream of events.
    """

    kind: str
    data: Document


class Backend(Protocol):
    """The sessions of one workspace. Errors are those of `miniclaw_sessions.errors`."""

    async def sessions(self, channel: str | None) -> list[Document]:
        """All sessions, or those of one channel, the most recently used first."""
        ...

    async def session(self, session_id: str) -> Document:
        """One session's description."""
        ...

    async def messages(self, session_id: str) -> list[Document]:
        """The messages of the window, oldest first."""
        ...

    def transcript(self, session_id: str) -> AsyncGenerator[bytes, None]:
        """Every entry as JSON, oldest first."""
        ...

    async def clear(self, session_id: str) -> None:
        """Empty the window."""
        ...

    async def delete(self, session_id: str) -> None:
        """Forget a session and its transcript."""
        ...

    async def statistics(self) -> Document:
        """The manager's numbers."""
        ...

    def chat(self, channel: str, chat_id: str, text: str) -> AsyncGenerator[ChatEvent, None]:
        """Say something and follow the answer; the last event is `done`."""
        ...
