"""Is everything on disk sound? The snapshots against the store, entry by entry. Changes nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from contextlib import aclosing
from types import MappingProxyType

import msgspec
from anyio import to_thread

from miniclaw_sessions.clock import Clock, derived_ids
from miniclaw_sessions.core.history.branch import as_message_entry
from miniclaw_sessions.core.history.state import Snapshot
from miniclaw_sessions.core.persistence.losses import Loss
from miniclaw_sessions.core.persistence.recovery import Progress
from miniclaw_sessions.core.persistence.snapshot_file import DamagedSnapshot, decode_snapshot
from miniclaw_sessions.core.persistence.snapshots import SUFFIX, Snapshots
from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.entries import BranchSummary, MessageEntry
from miniclaw_sessions.core.stores.base import Store, StoredEntry, StoredHead
from miniclaw_sessions.core.stores.branches import walk_up
from miniclaw_sessions.core.stores.reading import read_all
from miniclaw_sessions.disk import FileContent
from miniclaw_sessions.encryption import is_sealed
from miniclaw_sessions.errors import InvalidMessage, SchemaTooNew, SessionUnavailable, StoreCorrupt, StoreUnavailable


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at and what is wrong, one sentence each; `notes` are worth knowing but no damage."""

    sessions: int = 0
    entries: int = 0
    problems: list[str] = []
    notes: list[str] = []

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


class Check:
    """One run of it."""

    def __init__(
        self,
        snapshots: Snapshots,
        store: Store,
        *,
        clock: Clock,
        on_progress: Callable[[Progress], None],
        losses: Mapping[str, Loss] = MappingProxyType({}),
    ) -> None:
        self._snapshots = snapshots
        self._store = store
        self._clock = clock
        self._on_progress = on_progress
        self._problems: list[str] = [loss.sentence(session_id) for session_id, loss in losses.items()]
        self._notes: list[str] = []
        self._entries = 0

    async def run(self) -> CheckReport:
        """Look at every file and every entry."""
        try:
            await self._store.still_there()
        except StoreUnavailable as error:
            self._note_problem(str(error))
        self._problems += await self._store.check()
        heads: dict[str, StoredHead] = {}
        try:
            heads.update({stored.head.session_id: stored async for stored in self._store.heads()})
        except StoreCorrupt as error:
            self._note_problem(str(error))
        names = await self._snapshots.names()
        seen: set[str] = set()
        async for chunk in self._snapshots.read(names):
            for found in chunk:
                session_id = found.name.removesuffix(SUFFIX)
                seen.add(session_id)
                await self._check_file(found, heads.get(session_id))
                self._on_progress(Progress("checking", len(seen), len(names)))
        without_file = sorted(heads.keys() - seen)
        for session_id in without_file:
            await self._check_entries(session_id, None)
        if without_file:
            self._notes.append(f"{len(without_file)} sessions are in the store and have no snapshot yet")
        if count := await to_thread.run_sync(self._snapshots.quarantine.count):
            self._notes.append(f"{count} damaged files are in {self._snapshots.quarantine.path}")
        return CheckReport(
            sessions=len(seen | heads.keys()), entries=self._entries, problems=self._problems, notes=self._notes
        )

    async def _check_file(self, found: FileContent, stored: StoredHead | None) -> None:
        if found.data is None:
            self._problems.append(f"{found.name}: {found.error}")
            return
        mode = stat.S_IMODE(os.stat(self._snapshots.path / found.name, follow_symlinks=False).st_mode)
        if mode != 0o600:  # noqa: PLR2004 - a session file is private
            self._problems.append(f"{found.name}: mode is {mode:04o}, not 0600")
        stem = found.name.removesuffix(SUFFIX)
        if is_sealed(found.data):
            self._problems.append(f"{found.name}: it is encrypted, and damaged or not what belongs under this name")
            return
        try:
            snapshot = decode_snapshot(found.data, stem=stem, now=self._clock.now(), new_id=derived_ids(found.data))
        except (DamagedSnapshot, SchemaTooNew) as error:
            self._problems.append(f"{found.name}: {error}")
            return
        if self._store.keeps_entries:
            is_readable = await self._check_entries(stem, None if stored is None else snapshot)
            if is_readable or stored is not None:  # or else the store knows it, and cannot show it
                self._compare_heads(found.name, snapshot, stored)

    def _note_problem(self, problem: str) -> None:
        """Once: what is wrong with the store as a whole, every session meets again."""
        if problem not in self._problems:
            self._problems.append(problem)

    def _compare_heads(self, name: str, snapshot: Snapshot, stored: StoredHead | None) -> None:
        if stored is None:
            if snapshot.state.last_sequence:
                self._problems.append(f"{name}: the store does not know this session; a restart writes it back")
        elif stored.head.incarnation != snapshot.state.incarnation:
            self._problems.append(f"{name}: belongs to an earlier session of this name")
        elif snapshot.state.last_sequence > stored.last_sequence:
            self._problems.append(
                f"{name}: is ahead of the store ({snapshot.state.last_sequence} > {stored.last_sequence})"
            )

    async def _check_entries(self, session_id: str, snapshot: Snapshot | None) -> bool:
        """Read the transcript once: every message of the window must be as it is in the store. Whether it can be read.

        What is wrong within the transcript itself, gaps and unreadable entries, are in the store's own check.
        """
        try:
            await self._compare_entries(session_id, snapshot)
        except StoreCorrupt as error:
            self._note_problem(str(error))
        except SessionUnavailable as error:  # the store's own check says it in the same words
            self._note_problem(f"session {session_id}: {error}")
        else:
            return True
        return False

    async def _compare_entries(self, session_id: str, snapshot: Snapshot | None) -> None:
        expected = {entry.sequence: entry for entry in snapshot.entries} if snapshot else {}
        async for stored in read_all(self._store, session_id):
            self._entries += 1
            kept = expected.pop(stored.sequence, None)
            if kept is not None and not _agree(kept, stored):
                self._problems.append(f"{session_id}: message {stored.sequence} differs from the store's")
        self._problems += [f"{session_id}: message {sequence} is not in the store" for sequence in sorted(expected)]
        if snapshot is not None and not await _is_one_branch(self._store, snapshot):
            self._problems.append(
                f"{session_id}: the window holds messages of a branch that was left; remove the session's snapshot "
                "while nothing runs, and the next start rebuilds it from the store"
            )


async def problems_of_checkpoint(store: Store, snapshot: Snapshot, stored: StoredHead) -> list[str]:
    """How a checkpoint contradicts the entries of its session, one sentence each."""
    state = snapshot.state
    if state.incarnation != stored.head.incarnation:  # it is not used
        return []
    if state.last_sequence > stored.last_sequence:
        return [f"{state.session_id}: its checkpoint is ahead ({state.last_sequence} > {stored.last_sequence})"]
    expected = {entry.sequence: entry for entry in snapshot.entries}
    problems = []
    async for entry in read_all(store, state.session_id, after=min(expected, default=1) - 1):
        kept = expected.pop(entry.sequence, None)
        if kept is not None and not _agree(kept, entry):
            problems.append(f"{state.session_id}: message {entry.sequence} of its checkpoint differs from the entry")
        if not expected:
            break
    if not await _is_one_branch(store, snapshot):
        problems.append(f"{state.session_id}: its checkpoint holds messages of a branch that was left")
    return problems


async def _is_one_branch(store: Store, snapshot: Snapshot) -> bool:
    """Whether every message of the window stands on the way from the leaf to the root, as far as that is known."""
    places = [entry.sequence for entry in snapshot.entries]
    state = snapshot.state
    if state.leaf_id is None or not places:
        return True
    problems: list[str] = []
    path = walk_up(store, state.session_id, state.leaf_id, state.leaf_sequence, problems)
    async with aclosing(path):
        async for entry in path:
            if places[-1] > entry.sequence:  # where something is damaged, the snapshot may have the only right copy
                return bool(problems)
            if places[-1] == entry.sequence:
                places.pop()
            if not places:
                break
    return True


def _agree(kept: MessageEntry, stored: StoredEntry) -> bool:
    """Whether the window's message is the store's; a call that left an over-full window may be missing in it."""
    try:
        entry = decode_entry(stored.encoded)
    except InvalidMessage:
        return False
    shown = as_message_entry(entry) if isinstance(entry, MessageEntry | BranchSummary) else None
    if shown is None or kept.id != shown.id:
        return False
    trimmed = shown.message
    if kept.message.tool_calls and trimmed.tool_calls and len(kept.message.tool_calls) < len(trimmed.tool_calls):
        trimmed = msgspec.structs.replace(trimmed, tool_calls=kept.message.tool_calls)
    return kept.message == trimmed
