"""What the checkpoint of a session lacks: whether it must be written, and when the session was used."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from weakref import ref

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.history.state import Snapshot
from miniclaw_sessions.core.persistence.committer import CommitQueue
from miniclaw_sessions.core.session.home import Flushes

ACCESS_RESOLUTION = timedelta(hours=1)
"""An access that changes nothing is written to disk at most this often."""


class SessionCheckpoint:
    """The state of one session's checkpoint. It is dirty while `revision` and `written` differ.

    Args:
        journal: the session's, which the flusher holds while it is dirty: so there are never two for one session.
        conversation: what is written.
        queue: says how much of it is committed.
        flusher: writes it.
        clock: time.

    Attributes:
        conversation: see above; another one when other processes have gone on with the session.
        revision: how often the session has changed.
        written: the revision whose snapshot is safe.
        is_retired: the session is about to be deleted or replaced: its file is gone or another object's.
    """

    __slots__ = (
        *("_clock", "_flusher", "_journal", "_queue", "_used_on_disk"),
        *("conversation", "is_retired", "revision", "written"),
    )

    def __init__(
        self, journal: Any, conversation: Conversation, queue: CommitQueue, flusher: Flushes, clock: Clock
    ) -> None:
        self._journal = ref(journal)
        self._queue = queue
        self._flusher = flusher
        self._clock = clock
        self.conversation = conversation
        self.revision = self.written = 0
        self.is_retired = False
        self._used_on_disk = conversation.state.last_accessed

    def __repr__(self) -> str:
        return f"<SessionCheckpoint of {self.conversation.state.session_id}, {self.revision - self.written} behind>"

    @property
    def is_dirty(self) -> bool:
        """Whether it lacks something."""
        return self.revision != self.written

    def changed(self) -> None:
        """The session has changed."""
        if self.is_retired:  # nothing would ever make it clean again
            return
        if self.revision == self.written and (journal := self._journal()) is not None:
            self._flusher.add(journal)
        self.revision += 1

    def capture(self) -> tuple[int, Snapshot] | None:
        """Its revision and the snapshot that may be written now, in one step between two awaits (rule R10)."""
        snapshot = None if self.is_retired else self.conversation.capture(self._queue.committed)
        if snapshot is None:
            return None
        return (self.revision if snapshot.state.complete else self.revision - 1), snapshot

    def flushed(self, revision: int) -> None:
        """The snapshot of this revision is safe."""
        self.written = max(self.written, revision)
        self._used_on_disk = self.conversation.state.last_accessed

    def revive(self) -> None:
        """The session was not deleted after all."""
        self.is_retired = False
        self.changed()
        if (journal := self._journal()) is not None:
            self._flusher.add(journal)  # which had forgotten it, dirty or not

    # --- when the session was used -----------------------------------------------------------------------------------

    def touch(self) -> None:
        """The session is being used: its time to live starts again."""
        now, state = self._clock.now(), self.conversation.state
        state.last_accessed = max(state.last_accessed, now)
        if now - self._used_on_disk >= ACCESS_RESOLUTION:
            self.changed()

    def not_used_later(self) -> None:
        """Let it have been used now at the latest: entries from elsewhere may have any date."""
        self.conversation.state.last_accessed = min(self.conversation.state.last_accessed, self._clock.now())

    @property
    def unsaved_use(self) -> datetime | None:
        """When the session was last used, if that is not written down yet."""
        used = self.conversation.state.last_accessed
        return used if used > self._used_on_disk else None

    def use_saved(self, moment: datetime) -> None:
        """It is written down that the session was used at this moment."""
        self._used_on_disk = max(self._used_on_disk, moment)

    def forgive(self, jump: timedelta, *, before: datetime) -> None:
        """The wall clock jumped: unless it was used since, the session is as idle as it was."""
        if self.conversation.state.last_accessed <= before:
            self.conversation.state.last_accessed += jump
            self.changed()
