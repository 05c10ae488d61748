"""Bytes that become values: entries and snapshot files, without any disk."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from typing import ClassVar, Self

from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.history.state import Snapshot
from miniclaw_sessions.core.persistence.snapshot_file import DamagedSnapshot, decode_snapshot, encode_snapshot
from miniclaw_sessions.core.protocol.encoding import decode_entry, encode_entry
from miniclaw_sessions.errors import InvalidMessage, SchemaTooNew
from tests.fuzz.reader import Reader, refused
from tests.fuzz.seeds import SESSION_ID, conversation, snapshots

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class EntryReader(Reader):
    """An entry as a store keeps it: what is understood can be written again, and means the same."""

    name: ClassVar[str] = "entries"
    share: ClassVar[int] = 19_000

    async def __aenter__(self) -> Self:
        self.seeds = conversation().entries
        return self

    async def read(self, case: bytes) -> bool:
        try:
            entry = decode_entry(case)
        except InvalidMessage as error:
            return refused(error)
        assert decode_entry(encode_entry(entry)) == entry
        return True


class SnapshotReader(Reader):
    """A snapshot file: what is understood can be lived with, written again, and means the same."""

    name: ClassVar[str] = "snapshots"
    share: ClassVar[int] = 18_000

    async def __aenter__(self) -> Self:
        self.seeds = snapshots()
        return self

    async def read(self, case: bytes) -> bool:
        try:
            snapshot = decoded(case)
        except (DamagedSnapshot, SchemaTooNew) as error:
            return refused(error)
        written = encode_snapshot(snapshot)
        again = decoded(written)
        assert encode_snapshot(again) == written
        lived_with = Conversation.from_snapshot(snapshot, capacity=4).capture(snapshot.state.last_sequence)
        assert lived_with is not None
        assert decoded(encode_snapshot(lived_with)).state.key == snapshot.state.key
        return True


def decoded(case: bytes) -> Snapshot:
    """The session in a snapshot file."""
    numbers = count(1)
    return decode_snapshot(case, stem=SESSION_ID, now=NOW, new_id=lambda: f"new-{next(numbers)}")
