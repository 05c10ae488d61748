"""Sessions that grow entry by entry, for tests: each entry follows the leaf, and is a minute younger."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from miniclaw_sessions.core.protocol.entries import Entry, EntryBase, Label, LeafMove, MessageEntry, moves_leaf
from miniclaw_sessions.core.protocol.messages import Message, ToolCall

BEGINNING = datetime(2026, 3, 14, 9, 0, tzinfo=UTC)


class Growing:
    """A session; the ids are e1, e2, and so on."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.leaf_id: str | None = None

    def add(self, kind: type[EntryBase], **fields: Any) -> str:
        """The next entry; its id."""
        number = len(self.entries) + 1
        when = BEGINNING + timedelta(minutes=number)
        entry: Any = kind(**{"id": f"e{number}", **fields, "parent_id": self.leaf_id, "timestamp": when})
        self.entries.append(entry)
        if isinstance(entry, LeafMove):
            self.leaf_id = entry.target_id
        elif moves_leaf(entry):
            self.leaf_id = entry.id
        return str(entry.id)

    def say(self, message: Message) -> str:
        return self.add(MessageEntry, message=message)

    def user(self, text: str) -> str:
        return self.say(Message.user(text))

    def assistant(self, text: str, *calls: ToolCall) -> str:
        return self.say(Message.assistant(text, calls))

    def result(self, call: ToolCall, text: str, *, is_error: bool = False) -> str:
        return self.say(Message.tool_result(call, text, is_error=is_error))

    def go_to(self, entry_id: str | None) -> None:
        self.add(LeafMove, target_id=entry_id)


def grown_at_random(seed: int, size: int) -> list[Entry]:
    """A tree of messages, calls, results and labels with any number of branches and beginnings."""
    chance = random.Random(seed)
    session = Growing()
    said: list[str] = []
    while len(session.entries) < size:
        call = ToolCall(f"c{len(session.entries)}", "look", "{}")
        said.append(session.assistant("Let me look.", call) if chance.random() < 0.3 else session.user("Hello"))
        if session.entries[-1].message.tool_calls and chance.random() < 0.8:
            said.append(session.result(call, "seen"))
        if chance.random() < 0.2:
            session.add(Label, target_id=chance.choice(said), label="here")
        if chance.random() < 0.3:
            session.go_to(chance.choice([*said, None]))
    return session.entries
