"""Copying a session's tree into a new session, entry by entry; the two share nothing afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

from miniclaw_sessions.history.placing import Places
from miniclaw_sessions.protocol.entries import Entry, Label

if TYPE_CHECKING:
    from miniclaw_sessions.session.live import Session

BATCH = 500
"""How many entries are accepted before their commit is waited for."""

PARENT_SESSION = "parent_session"
"""The metadata of a fork: the id of the session that it was made of."""

_OF_THE_BRANCH = frozenset({"title", "provider", "model", "thinking_level"})  # entries of the branch set these


async def copy_session(source: Session, target: Session, leaf_id: str | None) -> None:
    """Give a new session everything of another one, or one branch of it.

    Args:
        source: is only read.
        target: a session that nobody else uses yet.
        leaf_id: the end of the branch; None copies the whole tree.

    Raises:
        EntryNotFound: the source has no such entry.
        StoreError: the source cannot be read, or the target not be written.
    """
    if leaf_id is None:
        await adopt_all(target, source.read_entries())
    else:
        path = await source.get_branch(leaf_id)
        await adopt_all(target, _each(path))
        for label in await _labels_on(source, {entry.id for entry in path}):
            await target.set_label(label.target_id, label.label)
    known = target.metadata
    missing = {name: value for name, value in source.metadata.items() if known.get(name) != value}
    kept = {name: value for name, value in missing.items() if leaf_id is None or name not in _OF_THE_BRANCH}
    target.update(**kept, **{PARENT_SESSION: source.session_id})


async def adopt_all(target: Session, entries: AsyncIterator[Entry]) -> None:
    """Append entries from elsewhere to a new session, as they come.

    Raises:
        StoreError: they cannot be stored.
        InvalidMessage: one of them cannot be stored faithfully, or is too large.
    """
    places = Places()
    batch: list[Entry] = []
    async for entry in entries:
        batch.append(entry)
        if len(batch) == BATCH:
            target.adopt(batch, places)
            await target.saved()
            batch = []
    target.adopt(batch, places)
    await target.saved()


async def _labels_on(source: Session, entry_ids: set[str]) -> Iterable[Label]:
    """The bookmarks of these entries that count, and whose own entries are not among them."""
    labels: dict[str, Label] = {}
    async for entry in source.read_entries():
        if isinstance(entry, Label) and entry.target_id in entry_ids:
            labels[entry.target_id] = entry
    return [label for label in labels.values() if label.label and label.id not in entry_ids]


async def _each(entries: Iterable[Entry]) -> AsyncIterator[Entry]:
    for entry in entries:
        yield entry
