"""Checkpoints as rows of a shared store. They are a cache there.

One that is gone, damaged or of an earlier session is passed over, and the session is folded from its entries.
"""

from __future__ import annotations

from collections.abc import Sequence

from anyio import to_thread

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.core.history.state import Snapshot
from miniclaw_sessions.core.persistence.checkpoints import Written
from miniclaw_sessions.core.persistence.snapshot_file import decode_snapshot, encode_snapshot
from miniclaw_sessions.core.stores.base import Checkpoint
from miniclaw_sessions.core.stores.shared_store import SharedStore
from miniclaw_sessions.encryption import KeyRing, is_sealed, of_snapshot
from miniclaw_sessions.errors import SessionsError, StoreError

LONG_AGO_S = 1e9
"""The age, in seconds, of a use that changes nothing in the recorded uses of a session."""


class StoredCheckpoints:
    """Checkpoints in the database that has the entries too."""

    def __init__(self, store: SharedStore, *, clock: Clock, max_bytes: int, encryption: KeyRing | None) -> None:
        self._store = store
        self._clock = clock
        self._max_bytes = max_bytes
        self._encryption = encryption

    async def write(self, snapshots: Sequence[Snapshot], *, as_used: bool = True) -> list[Written]:
        """Write a group of them in one statement; what another process has written meanwhile stays if it is newer.

        Args:
            snapshots: the snapshots to keep.
            as_used: write down as well when the sessions were used.
        """
        checkpoints = await to_thread.run_sync(lambda: [self._encoded(one, as_used=as_used) for one in snapshots])
        sound = [one for one in checkpoints if isinstance(one, Checkpoint)]
        failure: StoreError | None = None
        try:
            await self._store.write_checkpoints(sound)
        except StoreError as error:
            failure = error
        return [
            Written(snapshot.state.session_id, len(one.encoded), failure)
            if isinstance(one, Checkpoint)
            else Written(snapshot.state.session_id, 0, one)
            for snapshot, one in zip(snapshots, checkpoints, strict=True)
        ]

    async def remove(self, session_id: str) -> int:  # noqa: ARG002 - as of files
        """They go with the session itself."""
        return 0

    def decoded(self, checkpoint: Checkpoint) -> Snapshot | None:
        """What a checkpoint says; None if it is of no use."""
        session_id, data = checkpoint.session_id, checkpoint.encoded
        try:
            if self._encryption is not None:
                data = self._encryption.open(data, of_snapshot(session_id), f"the checkpoint of {session_id}")
            elif is_sealed(data):
                return None
            snapshot = decode_snapshot(data, stem=session_id, now=self._clock.now(), new_id=self._clock.new_id)
        except SessionsError:  # with any fault of it, the entries have the same content
            return None
        same = (checkpoint.incarnation, checkpoint.sequence)
        return snapshot if (snapshot.state.incarnation, snapshot.state.last_sequence) == same else None

    def _encoded(self, snapshot: Snapshot, *, as_used: bool) -> Checkpoint | SessionsError:
        state = snapshot.state
        try:
            encoded = encode_snapshot(snapshot, max_bytes=self._max_bytes)
        except SessionsError as error:
            return error
        if self._encryption is not None:
            encoded = self._encryption.seal(encoded, of_snapshot(state.session_id))
        used_s = max(0.0, (self._clock.now() - state.last_accessed).total_seconds()) if as_used else LONG_AGO_S
        return Checkpoint(state.session_id, state.incarnation, state.last_sequence, encoded, used_s)
