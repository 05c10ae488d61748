"""What commands ask for sessions: a daemon, or the files themselves.

Both answer with the documents of the HTTP API, so a command does not know which one it talks to, and `--json` prints
the same either way.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

Document = dict[str, Any]
"""JSON as the HTTP API describes it."""

Report = Callable[[str, int, int | None], None]
"""Called with a stage, how much of it is done, and how much there is (None: that is unknown)."""


class ChatEvent(msgspec.Struct, frozen=True):
    """Something that happens while an answer is made.

    Attributes:
        kind: text, tool_started, tool_finished, usage, compacted or done.
        data: as in the HTTP API's stream of events.
    """

    kind: str
    data: Document


class Backend(Protocol):
    """The sessions of one workspace. Errors are those of `miniclaw_sessions.errors`."""

    async def sessions(self, channel: str | None, limit: int | None) -> list[Document]:
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

    def chat(self, channel: str, chat_id: str, text: str | None) -> AsyncGenerator[ChatEvent, None]:
        """Say something and follow the answer; the last event is `done`. None: the newest message is answered again."""
        ...

    # --- the tree ----------------------------------------------------------------------------------------------------

    async def tree(self, session_id: str) -> Document:
        """Who follows whom, the labels and the leaf; what was said is in the transcript."""
        ...

    async def branch(self, session_id: str, entry_id: str | None, summary: str | None) -> Document:
        """Go back to an entry, None is the root, with a summary of what is left or without; where the leaf is then."""
        ...

    async def label(self, session_id: str, entry_id: str, label: str) -> str:
        """Bookmark an entry; an empty label removes the bookmark. The label's own entry's id."""
        ...

    async def fork(self, session_id: str, new_id: str | None, leaf_id: str | None) -> Document:
        """A new session with the whole tree, or with the branch that ends at `leaf_id`; its description."""
        ...

    async def compact(
        self, session_id: str, keep_tokens: int, summary: str | None, first_kept_entry_id: str | None
    ) -> Document:
        """Let a summary stand for the older part of the branch: the configured model's, or this one. What became of it.

        With a summary, what is kept begins at `first_kept_entry_id`, or is nothing; `keep_tokens` is for the model's.
        """
        ...

    # --- files -------------------------------------------------------------------------------------------------------

    def export(self, session_id: str, form: str) -> AsyncGenerator[bytes, None]:
        """A session in the format of this name, piece by piece."""
        ...

    async def import_file(
        self, path: Path, form: str | None, session_id: str | None, report: Report, *, dry_run: bool
    ) -> Document:
        """A new session from a file, or what it would become; `report` is told how many bytes are done.

        Raises:
            ImportRefused: it is not a session in a known format, or cannot be read.
            SessionExists: there is a session with this id.
        """
        ...
