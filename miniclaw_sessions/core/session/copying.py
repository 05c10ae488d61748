"""Copying a session's tree into a new session, entry by entry; the two share nothing afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.core.history.branch import rejoined
from miniclaw_sessions.core.history.links import Links
from miniclaw_sessions.core.history.placing import Places
from miniclaw_sessions.core.protocol.encoding import encode_entry
from miniclaw_sessions.core.protocol.entries import (
    COPIES,
    FORK,
    INCOMPLETE,
    METADATA,
    OWN_METADATA,
    Custom,
    Entry,
    Label,
    LeafMove,
    MessageEntry,
    ModelChange,
    ThinkingLevelChange,
)
from miniclaw_sessions.core.protocol.json_values import in_utc
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session.journal import Journal
from miniclaw_sessions.core.session.unit import Unit
from miniclaw_sessions.core.stores.base import in_batches
from miniclaw_sessions.errors import InvalidMessage, SessionDeleted

MAX_CHAT_ID = 1_000
"""How many characters of the source's chat id a fork's begins with; ids have a limit in bytes."""

PARENT_SESSION = "parent_session"
"""The metadata of a fork: the id of the session that it was made of."""

NOT_STORED = "import.too_large"
"""The `custom_type` of what stands in the place of an entry that cannot be stored."""

_OF_THE_BRANCH = frozenset({"title", "provider", "model", "thinking_level"})  # entries of the branch set these


def key_of_fork(key: SessionKey, clock: Clock) -> SessionKey:
    """A key for a fork without a given one: the same channel, and a chat id made from the source's."""
    return SessionKey.of(key.channel, f"{key.chat_id[:MAX_CHAT_ID]}.fork-{clock.new_id()[-12:]}")


async def copy_session(source: Journal, target: Journal, leaf_id: str | None) -> None:
    """Give a new session everything of another one, or one branch of it.

    Args:
        source: is only read.
        target: a session that is not in use yet.
        leaf_id: the end of the branch; None copies the whole tree.

    Raises:
        EntryNotFound: the source has no such entry.
        SessionDeleted: the source was deleted meanwhile.
        StoreError: the source cannot be read, or the target not be written.
    """
    if leaf_id is None:
        await adopt_all(target, but_for_unfinished(source.reader.entries([])))
    else:
        path = [entry async for entry in source.reader.walk(await source.reader.get(leaf_id))][::-1]
        await adopt_all(target, _each(rejoined(path)))
        for target_id, label in await _labels_on(source, path):
            unit = Unit(target)
            unit.add(Label, target_id=target_id, label=label)
            await unit.save()
        await _choose_beside(source, target)
    if source.is_deleted:
        raise SessionDeleted(f"session {source.session_id} was deleted; there is nothing to copy any more")
    _copy_metadata(
        source, target, but=() if leaf_id is None else _OF_THE_BRANCH, also={PARENT_SESSION: source.session_id}
    )


async def _choose_beside(source: Journal, target: Journal) -> None:
    """Let what was chosen last, on any branch, be chosen beside the branch that was copied."""
    state, wanted, chosen, unit = target.conversation.state, source.conversation.state, None, Unit(target)
    if state.chosen_model != wanted.chosen_model:
        async for entry in source.reader.entries([]):
            chosen = entry if isinstance(entry, ModelChange) else chosen
    if chosen is not None:
        unit.add(ModelChange, provider=chosen.provider, model_id=chosen.model_id)
    if state.chosen_level != wanted.chosen_level:
        unit.add(ThinkingLevelChange, thinking_level=wanted.chosen_level or "")
    if unit:
        unit.add(LeafMove, target_id=state.leaf_id, target_sequence=state.leaf_sequence or None)
        await unit.save()
        await target.settle()


async def copy_branch(source: Journal, target: Journal) -> None:
    """Give a new session the current branch of another one, and the metadata; for a store that keeps no transcript.

    Args:
        source: is only read.
        target: a session that is not in use yet.

    Raises:
        StoreError: the source cannot be read.
    """
    path = [entry async for entry in source.reader.walk()][::-1]
    await adopt_all(target, _each(rejoined(path)))
    _copy_metadata(source, target, but=_OF_THE_BRANCH - {"title"})


def _copy_metadata(
    source: Journal, target: Journal, *, but: Collection[str], also: Mapping[str, Any] = MappingProxyType({})
) -> None:
    known, wanted = target.conversation.state.metadata, source.conversation.state.metadata
    changes = {name: wanted.get(name) for name in {*known, *wanted} if known.get(name) != wanted.get(name)}
    changes.pop(INCOMPLETE, None)
    kept = {name: value for name, value in changes.items() if name not in but}
    own = {name: kept.pop(name) for name in list(kept) if name.startswith(OWN_METADATA)}
    if own:
        target.note(own)
    unit = Unit(target)
    unit.add_metadata(**{**kept, **also})
    unit.accept()


async def but_for_unfinished(entries: AsyncIterator[Entry]) -> AsyncIterator[Entry]:
    """Without what says that the source was unfinished once, and is no more: the copy still is."""
    async for entry in entries:
        if not _says_unfinished(entry):
            yield entry


async def as_restored(entries: AsyncIterator[Entry]) -> AsyncIterator[Entry]:
    """As `but_for_unfinished`, for a session that comes back; which messages are paid for elsewhere is kept."""
    async for entry in entries:
        if isinstance(entry, Custom) and _says_unfinished(entry):
            if INCOMPLETE not in entry.data:
                yield entry
            elif (purpose := entry.data[INCOMPLETE]) in (FORK, None):
                yield msgspec.structs.replace(entry, data={COPIES: purpose})
        else:
            yield entry


def _says_unfinished(entry: Entry) -> bool:
    return isinstance(entry, Custom) and entry.custom_type == METADATA and entry.data.keys() in ({INCOMPLETE}, {COPIES})


async def adopt_all(target: Journal, entries: AsyncIterator[Entry], places: Places | None = None) -> None:
    """Append entries from elsewhere to a session: the one way in which a fork, `put` and an import are made.

    They come in the batches of every copy, so that neither memory nor the store's queue fills up.

    Args:
        target: a session that is not in use yet, or without an open turn.
        entries: as they come.
        places: where the entries stand that the session has already; None: it has none that these name.

    Raises:
        StoreError: they cannot be stored.
        InvalidMessage: one of them cannot be stored faithfully, or is too large.
        LeafMoved: another message came meanwhile; the entries before it are stored.
    """
    placed = _placed(entries, target.last_sequence, places or Places())
    async for batch in in_batches(placed, lambda one: len(one[1])):
        # an entry that takes everything off the branch begins a part of its own
        starts = [place for place, (entry, _) in enumerate(batch) if place == 0 or _is_clearing(entry)]
        for start, end in zip(starts, [*starts[1:], len(batch)], strict=True):
            if _is_clearing(batch[start][0]):
                await target.settle()  # what is in force there stays in force
            target.accept(batch[start:end])
            target.checkpoint.not_used_later()
            await target.saved()
    await target.settle()


def storable(target: Journal, entries: Iterable[Entry]) -> tuple[list[Entry], list[str]]:
    """The entries, and what was wrong with those that cannot be stored: each leaves a note in its place in the tree."""
    fitting, problems = list[Entry](), list[str]()
    for entry in entries:
        try:
            target.check_entry(entry, len(encode_entry(entry)))
            fitting.append(entry)
        except InvalidMessage as error:
            problems.append(f"entry {entry.id}: {error}")
            data = {"reason": str(error)}
            note = Custom(
                id=entry.id, parent_id=entry.parent_id, timestamp=entry.timestamp, custom_type=NOT_STORED, data=data
            )
            fitting.append(note)
    return fitting, problems


async def _placed(entries: AsyncIterator[Entry], last: int, places: Places) -> AsyncIterator[tuple[Entry, bytes]]:
    """The entries, numbered from the place behind the last one, and their bytes.

    Every message that is kept has a time (miniclaw); one that came without has its entry's.
    """
    links = Links(is_whole=True)
    async for entry in entries:
        last += 1
        timed = links.follow(entry)
        if isinstance(entry, MessageEntry) and entry.message.timestamp is None:
            message = msgspec.structs.replace(entry.message, timestamp=in_utc(entry.timestamp))
            timed = msgspec.structs.replace(timed, message=message)
        placed = places.place(timed, last)
        yield placed, encode_entry(placed)


def _is_clearing(entry: Entry) -> bool:
    return isinstance(entry, LeafMove) and entry.target_id is None


async def _labels_on(source: Journal, path: Iterable[Entry]) -> Iterable[tuple[str, str]]:
    """The bookmarks of a path's entries if the path's own labels do not have them, each with the entry that has it.

    An empty one stands for a bookmark of the path that was removed elsewhere.
    """
    own: dict[str, str] = {}
    on_path: set[str] = set()
    for entry in path:
        on_path.add(entry.id)
        if isinstance(entry, Label):
            own[entry.target_id] = entry.label
    labels: dict[str, str] = {}
    async for entry in source.reader.entries([]):
        if isinstance(entry, Label) and entry.target_id in on_path:
            labels[entry.target_id] = entry.label
    return [(target_id, label) for target_id, label in labels.items() if label != own.get(target_id, "")]


async def _each(entries: Iterable[Entry]) -> AsyncIterator[Entry]:
    for entry in entries:
        yield entry
