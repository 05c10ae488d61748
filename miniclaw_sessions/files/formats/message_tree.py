"""Conversations that are a tree: messages that name their parents, in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.files.formats.codec import Chain, text_of
from miniclaw_sessions.files.formats.conversation import ConversationReader


def parents_first(messages: Iterable[Any], id_name: str, parent_name: str, last: Any = None) -> Iterator[Any]:
    """Messages in an order in which each follows its parent, and otherwise as they came; a circle is cut somewhere.

    The branch that ends with the message of the id `last` comes last, as far as other branches do not need it.
    """
    given = list(messages)
    known = {
        message[id_name]: message
        for message in reversed(given)
        if isinstance(message, dict) and isinstance(message.get(id_name), str)
    }
    waiting = dict(known)

    def branch(key: Any) -> list[Any]:
        above: dict[str, Any] = {}
        while isinstance(key, str) and key in waiting and key not in above:
            above[key] = waiting[key]
            key = waiting[key].get(parent_name)
        return [waiting.pop(one) for one in reversed(above)]

    current = {message[id_name] for message in branch(last)}
    waiting = dict(known)
    for message in given:
        key = text_of(message, id_name) if isinstance(message, dict) else None
        if key is None or known[key] is not message:
            yield message
        elif key in waiting and key not in current:
            yield from branch(key)
    for message in given:
        if isinstance(message, dict) and text_of(message, id_name) in waiting:
            yield from branch(message[id_name])


Place = Callable[[dict[str, Any]], tuple[str | None, str | None]]
"""The id of a message, and that of its parent; None for the first one, and for what is no message."""


class MessageTreeReader(ConversationReader):
    """A `ConversationReader` of messages that name their parents, each behind its own."""

    def __init__(self, chain: Chain, name: str, place_of: Place) -> None:
        super().__init__(chain, name)
        self._place_of = place_of
        self._ends: dict[str, str | None] = {}  # of each message: the last of its entries
        self._current: str | None = None

    def _take(self, line: dict[str, Any]) -> list[Entry]:
        message_id, parent_id = self._place_of(line)
        if message_id is not None:
            self._chain.last_id = self._ends.get(parent_id) if parent_id is not None else None
        entries = super()._take(line)
        if message_id is not None:
            self._ends.setdefault(message_id, self._chain.last_id)
        return entries

    def finish(self) -> list[Entry]:
        """Where the conversation goes on, if the file says it."""
        self.facts.leaf_id = self._ends.get(self._current or "") or self._chain.last_id
        return []
