"""What a transcript says of branches and usage, for the OpenAI Agents SDK: read from its beginning, entry by entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from miniclaw_sessions.adapters.openai_agents import KEPT
from miniclaw_sessions.adapters.verbatim import as_shape
from miniclaw_sessions.core.protocol.entries import Custom, Entry, LeafMove, MessageEntry, moves_leaf, original_id
from miniclaw_sessions.files.formats.histories import presented
from miniclaw_sessions.files.formats.openai_items import to_items

if TYPE_CHECKING:
    from agents.items import TResponseInputItem

MAIN = "main"
"""The branch that a session begins with."""

SWITCH, DELETED, USAGE = (f"openai_agents_{name}" for name in ("switch", "deleted", "usage"))
"""The `custom_type` of the entries: a switch to a branch, which the move of the leaf follows; a branch that was
deleted; what a run cost."""


class _Switch(msgspec.Struct):
    to: str
    at: str | None


class _Deleted(msgspec.Struct):
    branch: str


class _Usage(msgspec.Struct):
    requests: int
    input_tokens: int
    output_tokens: int
    total_tokens: int


_SHAPES: dict[str, type[_Switch | _Deleted | _Usage]] = {SWITCH: _Switch, DELETED: _Deleted, USAGE: _Usage}


class Used(NamedTuple):
    """What a turn cost, and where it was taken."""

    branch: str
    turn: int
    data: Mapping[str, Any]


class BranchLog:
    """What a transcript says of branches, entry by entry.

    Attributes:
        current: the current branch.
        began: the branches, and when each began.
        usage: what was stored last for each turn of each branch.
    """

    def __init__(self) -> None:
        self.current = MAIN
        self.began: dict[str, datetime] = {}
        self.usage: dict[tuple[str, str | None], Used] = {}
        self._tips: dict[str, str | None] = {MAIN: None}
        self._entries: dict[str, Entry] = {}
        self._turns: dict[str, tuple[int, str | None]] = {}  # of an entry: how many turns, and the last one's message
        self._deleted: set[str] = set()
        self._announced: tuple[str, str | None] | None = None

    def add(self, entry: Entry) -> None:
        """The next entry."""
        if not moves_leaf(entry):
            return  # metadata are on no branch, and no branch goes on behind them
        announced, self._announced = self._announced, None
        self.began.setdefault(MAIN, entry.timestamp)
        if isinstance(entry, LeafMove):
            if announced is not None and announced[1] == entry.target_id:
                self.current = announced[0]
                self.began.setdefault(self.current, entry.timestamp)
            self._tips[self.current] = entry.target_id
            return
        self._entries[entry.id] = entry
        number, begun_by = self._turns.get(entry.parent_id or "", (0, None))
        if isinstance(entry, MessageEntry) and entry.message.is_user:
            number, begun_by = number + 1, entry.id
        self._turns[entry.id] = number, begun_by
        said = _said(entry) if isinstance(entry, Custom) else None
        if isinstance(said, _Switch):
            self._announced = said.to, said.at
            return  # the tip of the branch that is left stays before it
        self._tips[self.current] = entry.id
        if isinstance(said, _Deleted) and said.branch not in (MAIN, self.current):
            self._forget(said.branch)
        elif isinstance(said, _Usage) and isinstance(entry, Custom):
            self.usage[self.current, begun_by] = Used(self.current, number, entry.data)

    def _forget(self, name: str) -> None:
        self._deleted.add(name)
        self.began.pop(name, None)
        self._tips.pop(name, None)
        self.usage = {key: used for key, used in self.usage.items() if used.branch != name}

    def tip(self, name: str) -> str | None:
        """Where a branch goes on. Raises ValueError if there is no such branch."""
        if name not in self._tips:
            raise ValueError(f"there is no branch '{name}'")
        return self._tips[name]

    def new_name(self, wanted: str | None, turn: int) -> str:
        """A name for a new branch. Raises ValueError if the wanted one is blank, or was used before."""
        used = self._tips.keys() | self._deleted
        if wanted is None:
            names = (f"branch_from_turn_{turn}_{number}" for number in range(1, len(used) + 2))
            return next(name for name in names if name not in used)
        if not wanted.strip():
            raise ValueError("a branch has a name")
        if wanted in used:
            raise ValueError(f"the name of branch '{wanted}' was used before")
        return wanted

    def messages(self, name: str) -> list[MessageEntry]:
        """The messages of a branch, oldest first."""
        return [entry for entry in self._path(name) if isinstance(entry, MessageEntry)][::-1]

    def turns(self, name: str) -> list[MessageEntry]:
        """Those of users."""
        return [entry for entry in self.messages(name) if entry.message.is_user]

    def items(self, name: str) -> list[TResponseInputItem]:
        """The items of a branch."""
        said: Sequence[Any] = to_items(presented((entry.message for entry in self.messages(name)), KEPT))
        return cast("list[TResponseInputItem]", said)

    def _path(self, name: str) -> Iterator[Entry]:
        entry_id = self.tip(name)
        while entry_id is not None and (entry := self._entries.get(entry_id)) is not None:
            yield entry
            entry_id = entry.parent_id


def _said(entry: Custom) -> _Switch | _Deleted | _Usage | None:
    """What an entry says of branches and usage; a copy of one says nothing new."""
    shape = _SHAPES.get(entry.custom_type)
    return None if shape is None or original_id(entry) != entry.id else as_shape(entry.data, shape, entry_id=entry.id)
