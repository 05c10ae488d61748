"""What discovery needs of a workspace that it imports into; a client offers it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol


class SessionInfo(Protocol):
    """What is known of a session."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Its metadata, with what says which file it is of."""
        ...


class TargetSession(Protocol):
    """A session by its id, whether it is there or not."""

    async def info(self) -> SessionInfo:
        """What is known of it.

        Raises:
            SessionNotFound: it is not there; `SessionExpired`: it was.
        """
        ...


class ImportResult(Protocol):
    """What became of an imported file."""

    @property
    def session_id(self) -> str:
        """The session that it became, or was added to."""
        ...

    @property
    def entries(self) -> int:
        """How many were new."""
        ...

    @property
    def messages(self) -> int:
        """How many of these were messages."""
        ...

    @property
    def repaired(self) -> int:
        """How many pieces were taken in a changed form."""
        ...

    @property
    def set_aside(self) -> int:
        """How many pieces were not taken."""
        ...


class ImportTarget(Protocol):
    """Where the sessions are kept."""

    def session(self, session_id: str) -> TargetSession:
        """The session with this id, without asking whether there is one."""
        ...

    async def import_stream(  # noqa: PLR0913 - as the client has it
        self,
        chunks: AsyncIterator[bytes],
        *,
        name: str,
        session_id: str | None = None,
        form: str | None = None,
        update: bool = False,
        place: str | None = None,
    ) -> ImportResult:
        """Take in a file that comes in pieces.

        Args:
            chunks: its bytes.
            name: what the file is called, without its suffix.
            session_id: the session that it becomes.
            form: the name of its format; None: it is recognized.
            update: a session that was made of this file before gets what it lacks of it.
            place: a JSON object that is kept with the session (`FOLLOWED`).

        Raises:
            ImportRefused: it is not a session in a known format, or cannot be taken in.
            SessionExists: there is a session with this id that was not made of this file.
            SessionNotFound: with `place`: the session was deleted, or has expired.
            Unreachable: the process that keeps the sessions does not answer.
        """
        ...
