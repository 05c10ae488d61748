"""The whole tree of a session: every entry by its id, with children, labels, the leaf and problems.

For callers that need all of it at once: a picture of the tree, an export of one branch. A context needs only a branch,
see `history.branch`. Nothing here recurses, because a conversation is as deep as it is long. No file is trusted: if a
parent is missing or does not come before its child, the child is a root, and `problems` reports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from miniclaw_sessions.core.protocol.entries import Entry, Label, LeafMove, moves_leaf
from miniclaw_sessions.errors import EntryNotFound


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """An entry with its children, in the order of logging; `label` is its bookmark."""

    entry: Entry
    children: Sequence[TreeNode] = ()
    label: str | None = None


class Transcript:
    """A session's entries, fed in the order in which they were logged.

    The tree is that of the conversation. Metadata belongs to the session as a whole: it is among the `entries`, but not
    a root, child or leaf, unless an entry of the conversation follows it in a file.
    """

    def __init__(self, entries: Iterable[Entry] = (), *, session_id: str = "") -> None:
        """Add these entries; `session_id` is for errors only."""
        self.session_id = session_id
        self.leaf_id: str | None = None
        self.problems: list[str] = []
        self._entries: dict[str, Entry] = {}
        self._children: dict[str | None, list[str]] = {}
        self._parents: dict[str, str | None] = {}
        self._labels: dict[str, str] = {}
        self._followed: set[str] = set()  # metadata that an entry of the conversation follows
        for entry in entries:
            self.add(entry)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry_id: str) -> bool:
        return entry_id in self._entries

    def __repr__(self) -> str:
        return f"<Transcript {len(self)} entries, leaf {self.leaf_id}>"

    @property
    def entries(self) -> list[Entry]:
        """All entries but moves of the leaf, in the order of logging."""
        return list(self._entries.values())

    @property
    def labels(self) -> Mapping[str, str]:
        """The bookmarks, by entry id; the last one set counts."""
        return MappingProxyType(self._labels)

    @property
    def roots(self) -> list[Entry]:
        """The entries with which the conversation begins."""
        return self.children(None)

    @property
    def leaves(self) -> list[Entry]:
        """The entries without children: the ends of all branches."""
        return [entry for entry in self._entries.values() if self._is_shown(entry) and not self.children(entry.id)]

    def add(self, entry: Entry) -> None:
        """Add the next entry."""
        if isinstance(entry, LeafMove):
            if entry.target_id is not None and entry.target_id not in self._entries:
                self.problems.append(f"the leaf was moved to {entry.target_id}, which is missing; it stays where it is")
            else:
                self.leaf_id = entry.target_id
            return
        if entry.id in self._entries:
            self.problems.append(f"entry id {entry.id} occurs twice; the second entry is left out")
            return
        parent_id = entry.parent_id
        if parent_id is not None and parent_id not in self._entries:
            self.problems.append(f"the parent of entry {entry.id} is missing or comes after it; it begins a branch")
            parent_id = None
        self._entries[entry.id] = entry
        self._parents[entry.id] = parent_id
        self._children.setdefault(parent_id, []).append(entry.id)
        if isinstance(entry, Label):
            if entry.target_id not in self._entries:
                self.problems.append(f"label {entry.id} is on entry {entry.target_id}, which is missing")
            if entry.label:
                self._labels[entry.target_id] = entry.label
            else:
                self._labels.pop(entry.target_id, None)
        if moves_leaf(entry):
            self.leaf_id = entry.id
            while parent_id is not None and not self._is_shown(self._entries[parent_id]):
                self._followed.add(parent_id)
                parent_id = self._parents[parent_id]

    def get(self, entry_id: str) -> Entry:
        """One entry.

        Raises:
            EntryNotFound: no entry has this id.
        """
        try:
            return self._entries[entry_id]
        except KeyError:
            raise EntryNotFound(self.session_id, entry_id) from None

    def children(self, entry_id: str | None) -> list[Entry]:
        """The children of an entry, in the order of logging; of None the roots."""
        children = (self._entries[child] for child in self._children.get(entry_id, ()))
        return [child for child in children if self._is_shown(child)]

    def path(self, entry_id: str | None = None) -> list[Entry]:
        """The entries from the root to an entry; to the leaf if none is named.

        Raises:
            EntryNotFound: no entry has this id.
        """
        path: list[Entry] = []
        following = self.get(entry_id).id if entry_id is not None else self.leaf_id
        while following is not None:
            path.append(self._entries[following])
            following = self._parents[following]
        path.reverse()
        return path

    def tree(self) -> list[TreeNode]:
        """The roots, with all their descendants."""
        nodes: dict[str, TreeNode] = {}
        for entry_id, entry in reversed(self._entries.items()):  # children come after their parents
            found = [nodes.pop(child) for child in self._children.get(entry_id, ())]
            children = tuple(child for child in found if self._is_shown(child.entry))
            nodes[entry_id] = TreeNode(entry=entry, children=children, label=self._labels.get(entry_id))
        return [nodes[root.id] for root in self.roots]

    def _is_shown(self, entry: Entry) -> bool:
        return moves_leaf(entry) or entry.id in self._followed
