"""A file that grows by lines, and the reader that has read it so far.

A reader holds back entries that later lines may add to, such as a model's reply that is written block by block. When
nothing comes for a while, such an entry is taken as it is. An entry never changes afterwards: what comes later is
another entry behind it with only the new parts, so that no word and no token is stored twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from miniclaw_sessions.core.protocol.encoding import encode_entry
from miniclaw_sessions.core.protocol.entries import Compaction, Entry, Label, LeafMove, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, Part, TextPart
from miniclaw_sessions.files.formats.codec import Holding, Reader

T = TypeVar("T")


class GrowingFile:
    """A reader, and the entries that were taken from it before they were complete.

    Attributes:
        reader: has read the file up to the last place.
        bytes: how many bytes of the file it has read.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.bytes = 0
        self._early: dict[str, Entry] = {}  # entries that were taken before they were complete, as they were then
        self._instead: dict[
            str, str
        ] = {}  # of an entry that was taken in parts: the last part, which its children follow

    @property
    def is_settled(self) -> bool:
        """Whether the entries that are held back are likely to be complete."""
        return not isinstance(self.reader, Holding) or self.reader.is_settled

    def fed(self, lines: Iterable[bytes]) -> list[Entry]:
        """The entries of some lines, in the form in which they are stored."""
        entries = [entry for line in lines for entry in self.reader.feed(line)]
        self.reader.findings.clear()
        stored: list[Entry] = []
        for entry in entries:
            stored += self._stored(entry)
            self._early.pop(entry.id, None)
        return stored

    def pending(self) -> list[Entry]:
        """What the reader holds back and was not taken yet."""
        stored: list[Entry] = []
        for entry in self._held():
            stored += self._stored(entry)
            self._early[entry.id] = entry
        return stored

    @property
    def leaf_id(self) -> str | None:
        """Where the conversation goes on; None if the file does not say it, or that entry was not taken yet."""
        leaf_id = self.reader.facts.leaf_id
        if leaf_id is None or (leaf_id not in self._early and any(entry.id == leaf_id for entry in self._held())):
            return None
        return self._instead.get(leaf_id, leaf_id)

    def _held(self) -> Iterable[Entry]:
        return self.reader.pending() if isinstance(self.reader, Holding) else ()

    def _stored(self, entry: Entry) -> Sequence[Entry]:
        """The entry; if it was taken early, only its new parts, and nothing if it has none."""
        before = self._early.get(entry.id)
        if before is None:
            return [_behind(entry, self._instead)]
        rest, is_more = _new_parts(before, entry)
        if rest is None:
            return []
        end = entry.id
        if is_more:  # behind the last early entry of its row: results stand between its blocks
            for early in self._early.values():
                if early.parent_id == end:
                    end = early.id
            rest = replace(rest, parent_id=end)
        stored = _behind(rest, self._instead)
        said = hashlib.blake2b(encode_entry(stored), digest_size=4).hexdigest()
        self._instead[entry.id] = self._instead[end] = f"{entry.id}.{said}"
        return [replace(stored, id=self._instead[end])]


def _behind(entry: Entry, instead: Mapping[str, str]) -> Entry:
    """The entry with each reference to an entry that was taken in parts replaced by the last part."""
    if not instead:
        return entry
    changes: dict[str, Any] = {"parent_id": instead.get(entry.parent_id or "", entry.parent_id)}
    if isinstance(entry, Label | LeafMove):
        changes["target_id"] = instead.get(entry.target_id or "", entry.target_id)
    if isinstance(entry, Compaction):
        changes["first_kept_entry_id"] = instead.get(entry.first_kept_entry_id or "", entry.first_kept_entry_id)
    return replace(entry, **changes)


def _new_parts(before: Entry, entry: Entry) -> tuple[Entry | None, bool]:
    """What is new in an entry that was taken before, None if nothing; and whether it continues the earlier version.

    The usage is the difference in both cases.
    """
    if not isinstance(before, MessageEntry) or not isinstance(entry, MessageEntry):
        return None if before == entry else entry, False
    old, new = before.message, entry.message
    parts, calls = _more(_parts(old), _parts(new)), _more(old.tool_calls or (), new.tool_calls or ())
    usage = None if new.usage == old.usage else new.usage
    if usage is not None and old.usage is not None:
        usage -= old.usage
    if parts is None or calls is None:
        return replace(entry, message=replace(new, usage=usage)), False
    if not parts and not calls and usage is None:
        return None, True
    rest = replace(new, content=tuple(parts), tool_calls=tuple(calls) or None, usage=usage)
    return replace(entry, message=rest), True


def _more(old: Sequence[T], new: Sequence[T]) -> Sequence[T] | None:
    """The items behind the old ones; None if the new list does not begin with them."""
    return new[len(old) :] if new[: len(old)] == old else None


def _parts(message: Message) -> tuple[Part, ...]:
    content = message.content
    return content if not isinstance(content, str) else (TextPart(content),) if content else ()
