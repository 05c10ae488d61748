"""The messages of branches that are longer than their windows, so that a second context reads nothing again."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import msgspec

from miniclaw_sessions.core.history.conversation import Conversation

MOST_BRANCHES = 64
"""How many branches are remembered; for one more, the one that was used least recently is forgotten."""

LONGEST_BRANCH = 2**20
"""A branch whose messages have more bytes than this is read each time."""


class _Remembered(msgspec.Struct):
    """Messages as JSON, complete up to a sequence, for as long as the conversation has no more `branch_changes`."""

    messages: list[bytes]
    up_to: int
    branch_changes: int


class BranchMemory:
    """What was read of branches, as JSON, which no reader can change.

    A branch is forgotten with its conversation, and once that does anything else than adding messages at its end.
    """

    def __init__(self) -> None:
        self._remembered: WeakKeyDictionary[Conversation, _Remembered] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<BranchMemory of {len(self._remembered)} branches>"

    def messages_of(self, conversation: Conversation) -> list[bytes] | None:
        """The messages of the current branch, without the summary in front of them; None if not all are known.

        The window has what was said since they were remembered, unless some of that has left it already.
        """
        known, window = self._remembered.pop(conversation, None), conversation.window
        if known is None or known.branch_changes != conversation.branch_changes or window.newest_evicted > known.up_to:
            return None
        messages = known.messages + [kept.encoded for kept in window.kept if kept.sequence > known.up_to]
        self.remember(conversation, messages, up_to=conversation.state.last_sequence)
        return messages

    def remember(self, conversation: Conversation, messages: list[bytes], *, up_to: int) -> None:
        """Remember the messages of the current branch, which are complete up to this sequence."""
        if sum(map(len, messages)) > LONGEST_BRANCH:
            return
        self._remembered[conversation] = _Remembered(messages, up_to, conversation.branch_changes)
        if len(self._remembered) > MOST_BRANCHES:
            self._remembered.pop(next(iter(self._remembered)), None)
