"""Short names of entries, because a UUID is too long to type.

The ids of one session are in the order of time, so they begin alike and differ at their ends: what a screen shows of an
id is its end, just long enough to be unique. What a person gives may be an id, the beginning or the end
of one, a label, or `leaf`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from miniclaw_sessions.errors import SessionsError
from miniclaw_sessions.printable import printable
from miniclaw_sessions.service.cli.output import Brief

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.tree import TreeReply

LEAF = "leaf"
"""The name of the entry that the conversation goes on from; it wins over labels."""

FEWEST = 4
"""The least number of characters of an id."""

SHORTEST, LONGEST = 6, 12
"""How many characters of an id are shown: more where fewer are not unique in the session."""

_LISTED = 5  # candidates in an error


class ShortIds:
    """What is shown of the ids of one session.

    Attributes:
        width: how many columns they take.
    """

    def __init__(self, entry_ids: Collection[str]) -> None:
        lengths = range(SHORTEST, LONGEST)
        tells_apart = (length for length in lengths if len({one[-length:] for one in entry_ids}) == len(entry_ids))
        self._length = next(tells_apart, LONGEST)
        self.width = max((min(cell_len(self(entry_id)), LONGEST) for entry_id in entry_ids), default=0)

    def __call__(self, entry_id: str) -> str:
        """The end of an id, safe to print."""
        return printable(entry_id[-self._length :])

    def brief(self, entry_id: str) -> Brief:
        """The same for people; the whole id for programs."""
        return Brief(entry_id, self(entry_id))

    def cell(self, entry_id: str) -> str:
        """The same in exactly as many columns as all others."""
        return set_cell_size(self(entry_id), self.width)


class EntryNames:
    """The names of one session's entries."""

    def __init__(self, tree: TreeReply) -> None:
        self._session_id = tree.session_id
        self._leaf_id = tree.leaf_id
        self._labels = tree.labels
        self._ids = dict.fromkeys(tree.roots)
        for children in tree.children.values():
            self._ids.update(dict.fromkeys(children))
        self.short = ShortIds(self._ids)

    def find(self, name: str) -> str:
        """The id of the entry that a name means.

        Raises:
            SessionsError: it is none of this session's, or more than one; the text names the candidates.
        """
        if name in self._ids:
            return name
        if name == LEAF:
            if self._leaf_id is None:
                raise SessionsError(f"session {self._session_id} has no leaf: its conversation begins anew")
            return self._leaf_id
        labelled = [entry_id for entry_id, label in self._labels.items() if label == name]
        if labelled:
            return self._only(labelled, f"the label {name!r} is on")
        if len(name) < FEWEST:
            raise SessionsError(f"{self._unknown(name)}; of an id, at least {FEWEST} characters are needed")
        alike = [entry_id for entry_id in self._ids if entry_id.startswith(name) or entry_id.endswith(name)]
        if not alike:
            raise SessionsError(self._unknown(name))
        return self._only(alike, f"{name!r} begins or ends the ids of")

    def _only(self, candidates: list[str], sentence: str) -> str:
        if len(candidates) == 1:
            return candidates[0]
        raise SessionsError(f"{sentence} {len(candidates)} entries: {_listed(map(self.short, candidates))}; name one")

    def _unknown(self, name: str) -> str:
        labels = f"; its labels are {_listed(map(repr, self._labels.values()))}" if self._labels else ""
        return (
            f"session {self._session_id} has no entry {name!r}: `tree {self._session_id} --all` shows the ids of all"
            f"{labels}"
        )


def _listed(candidates: Iterable[str]) -> str:
    names = list(candidates)
    rest = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + rest
