"""What a session's tree ought to be, said in the plainest way: a list of operations, folded anew at every question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.history.window import Window
from miniclaw_sessions.core.protocol.entries import INCOMPLETE, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, Role, Usage


class Said(NamedTuple):
    """A message, or what is told of a branch that was left."""

    message: Message
    begins_event: bool = True
    is_message: bool = True


class Model(NamedTuple):
    provider: str
    model: str


class Thinking(NamedTuple):
    level: str


class Title(NamedTuple):
    name: str


class Labelled(NamedTuple):
    target: str
    label: str


class Compacted(NamedTuple):
    summary: str
    first_kept: str | None
    messages: tuple[Message, ...] = ()


class Nothing(NamedTuple):
    """An entry that only stands in the tree."""


class Moved(NamedTuple):
    target: str | None


class Data(NamedTuple):
    data: Mapping[str, Any]


Operation = Said | Model | Thinking | Title | Labelled | Compacted | Nothing | Moved | Data


class Logged(NamedTuple):
    sequence: int
    entry_id: str
    operation: Operation
    parent: str | None = None
    timestamp: Any = None


class TreeModel:
    """One session as it ought to be."""

    def __init__(self, log: Sequence[Logged] = ()) -> None:
        self.log: list[Logged] = []
        self.acknowledged = 0
        self.totals_known = True
        self.tree: dict[str, Logged] = {}
        self.leaf: str | None = None
        self.labels: dict[str, str] = {}
        self.metadata: dict[str, Any] = {}
        self.counts = [0, 0, 0]  # messages, events, tokens
        for logged in log:
            self.add(logged.sequence, logged.entry_id, logged.operation, logged.timestamp)

    # --- folding -----------------------------------------------------------------------------------------------------

    def add(self, sequence: int, entry_id: str, operation: Operation, timestamp: Any = None) -> None:
        logged = Logged(sequence, entry_id, operation, self.leaf, timestamp)
        self.log.append(logged)
        match operation:
            case Moved(target):
                self.leaf = target
                if target is not None:
                    self._set_state(self.state_at(target))
                return
            case Data(data):
                self._set(data)
                return
            case Title(name):
                self._set({"title": name or None})
            case Labelled(target, label):
                self.labels[target] = label
            case Said(message, begins_event, is_message) if is_message:
                usage = message.usage or Usage()
                added = (1, begins_event, usage.total)
                self.counts = [count + more for count, more in zip(self.counts, added, strict=True)]
            case Compacted():
                self.counts[1] += 1
            case _:
                pass
        self._set_state(_next_state(self._state, operation))
        self.tree[entry_id] = logged
        self.leaf = entry_id

    @property
    def _state(self) -> tuple[str | None, ...]:
        return tuple(self.metadata.get(name) for name in ("provider", "model", "thinking_level"))

    def _set_state(self, state: tuple[str | None, ...]) -> None:
        self._set(dict(zip(("provider", "model", "thinking_level"), state, strict=True)))

    def _set(self, changes: Mapping[str, Any]) -> None:
        merged = {**self.metadata, **changes}
        self.metadata = {name: value for name, value in merged.items() if value is not None}

    def cut(self, last_sequence: int) -> TreeModel:
        """The same, but for what was not committed when the power went."""
        model = TreeModel([logged for logged in self.log if logged.sequence <= last_sequence])
        model.acknowledged = last_sequence
        model.totals_known = self.totals_known
        return model

    def forked(self) -> TreeModel:
        """The same tree in a session of its own: everything has moved on by one place."""
        model = TreeModel()
        model.add(1, "", Data({INCOMPLETE: "fork"}))
        for logged in self.log:
            if not isinstance(logged.operation, Data) or logged.operation.data.keys() != {INCOMPLETE}:
                model.add(model.last_sequence + 1, logged.entry_id, logged.operation, logged.timestamp)
        model.totals_known = self.totals_known
        return model

    def without_store(self, window: Sequence[MessageEntry], last_sequence: int) -> TreeModel:
        """What the snapshot has alone, when the store is lost: the window with its summary, and the metadata."""
        ids = [entry.id for entry in window]
        messages = {entry.id: entry.message for entry in window}  # calls may have left it
        compaction = self.compaction()
        kept = set(ids) | ({compaction} if compaction else set())
        model = TreeModel()
        for logged in self.log:
            if logged.entry_id in kept and logged is self.tree[logged.entry_id]:
                operation = logged.operation
                if isinstance(operation, Compacted) and operation.first_kept not in kept:
                    older = [i for i in ids if self.tree[i].sequence < logged.sequence]
                    operation = operation._replace(first_kept=older[0] if older else None)
                if isinstance(operation, Said):
                    operation = operation._replace(message=messages[logged.entry_id])
                model.add(logged.sequence, logged.entry_id, operation, logged.timestamp)
        model.add(last_sequence + 1, "", Data({**dict.fromkeys(model.metadata), **self.metadata}))
        model.totals_known = False
        return model

    # --- asking ------------------------------------------------------------------------------------------------------

    @property
    def last_sequence(self) -> int:
        return self.log[-1].sequence if self.log else 0

    @property
    def set_labels(self) -> dict[str, str]:
        return {target: label for target, label in self.labels.items() if label}

    def path(self, leaf: str | None = None) -> list[str]:
        path = []
        following = leaf or self.leaf
        while following is not None:
            path.append(following)
            following = self.tree[following].parent
        return path[::-1]

    def state_at(self, entry_id: str) -> tuple[str | None, ...]:
        """Provider, model and thinking level, as they follow from the path alone."""
        state: tuple[str | None, ...] = (None, None, None)
        for on_path in self.path(entry_id):
            state = _next_state(state, self.tree[on_path].operation)
        return state

    def compaction(self) -> str | None:
        return next((i for i in reversed(self.path()) if isinstance(self.tree[i].operation, Compacted)), None)

    def summary(self) -> list[Message]:
        """What stands for the part that was compacted."""
        newest = self.compaction()
        if newest is None:
            return []
        operation = self.tree[newest].operation
        assert isinstance(operation, Compacted)
        summary = [Message(Role.COMPACTION_SUMMARY, operation.summary)] if operation.summary else []
        return [*summary, *operation.messages]

    def kept_ids(self) -> list[str]:
        """The entries of the path from the first kept one to the leaf, of all kinds."""
        path, newest = self.path(), self.compaction()
        if newest is None:
            return path
        operation = self.tree[newest].operation
        assert isinstance(operation, Compacted)
        return path[path.index(operation.first_kept or newest) :]

    def kept(self) -> list[tuple[str, Message]]:
        """What is said by the entries that are kept."""
        operations = [(entry_id, self.tree[entry_id].operation) for entry_id in self.kept_ids()]
        return [(entry_id, each.message) for entry_id, each in operations if isinstance(each, Said)]

    def told(self) -> list[Message]:
        return [*self.summary(), *(message for _, message in self.kept())]

    def context(self) -> list[Message]:
        return build_context(self.told())

    def window(self, capacity: int) -> list[MessageEntry]:
        """The window of what is kept, as if it had all been said in one go."""
        return list(Window(capacity, (self._as_entry(entry_id) for entry_id, _ in self.kept())))

    def _as_entry(self, entry_id: str) -> MessageEntry:
        logged = self.tree[entry_id]
        assert isinstance(logged.operation, Said)
        return MessageEntry(
            id=entry_id,
            parent_id=None,
            timestamp=logged.timestamp,
            sequence=logged.sequence,
            message=logged.operation.message,
        )

    def longest_turn(self) -> int:
        """How many messages the longest turn of the path has, compacted or not: they have been in the window."""
        longest = length = 0
        for entry_id in self.path():
            operation = self.tree[entry_id].operation
            if isinstance(operation, Said):
                length = 1 if operation.message.is_user else length + 1
                longest = max(longest, length)
        return longest

    def has_open_calls(self) -> bool:
        answered: set[str | None] = set()
        for message in reversed(self.told()):
            if message.role in (Role.USER, Role.BRANCH_SUMMARY):
                return False
            if message.is_assistant:
                return any(call.id not in answered for call in message.tool_calls or ())
            answered.add(message.tool_call_id)
        return False

    def is_safe_cut(self, entry_id: str) -> bool:
        """Whether a summary may stand for everything before this entry."""
        kept = self.kept_ids()
        if entry_id not in kept or self.has_open_calls():
            return False
        order = [*kept[: kept.index(entry_id)], None, *kept[kept.index(entry_id) :]]
        called: set[str] = set()
        for place in order[: order.index(None)]:
            operation = self.tree[str(place)].operation
            if isinstance(operation, Said) and operation.message.is_assistant:
                called |= {call.id for call in operation.message.tool_calls or ()}
            elif isinstance(operation, Said):
                called.discard(operation.message.tool_call_id or "")
        later = [self.tree[str(place)].operation for place in order[order.index(None) + 1 :]]
        return not any(isinstance(each, Said) and each.message.tool_call_id in called for each in later)


def _next_state(state: tuple[str | None, ...], operation: Operation) -> tuple[str | None, ...]:
    provider, model, thinking = state
    match operation:
        case Model(new_provider, new_model):
            return new_provider or None, new_model or None, thinking
        case Thinking(level):
            return provider, model, level or None
        case Said(Message(role=Role.ASSISTANT, model=str(answered_by))):
            return provider, answered_by, thinking
        case _:
            return state
