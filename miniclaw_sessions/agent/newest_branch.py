"""The newest part of a session's branch, read from the store once, and then followed in memory.

A turn needs its branch twice for every request: to see how large the context is, and to build it. What is on a branch
is decided by its leaf alone, so what was read stays right as long as only messages follow it; and whose children these
are, the session's window says. After anything else, a compaction, a move, an entry that is no message, and where the
window has lost a link, the store is read again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from miniclaw_sessions.core.history.branch import Branch, BranchCollector, told
from miniclaw_sessions.core.history.compaction import TokenCounter, tokens_of, tokens_with
from miniclaw_sessions.core.protocol.entries import Entry, MessageEntry
from miniclaw_sessions.core.session import Session


class NewestBranch:
    """Follows one session.

    Args:
        session: whose branch.
        max_tokens: about how much of it is ever asked for.
        count: how tokens are counted.
    """

    def __init__(self, session: Session, *, max_tokens: int, count: TokenCounter) -> None:
        self._session = session
        self._max_tokens = max_tokens
        self._count = count
        self._branch = Branch()
        self._tokens = 0
        self._context_tokens = 0

    def __repr__(self) -> str:
        return f"<NewestBranch of {self._session.session_id}, {len(self._branch.entries)} entries>"

    async def read(self, max_tokens: int | None = None) -> Branch:
        """The branch as it is now.

        Args:
            max_tokens: only the newest part, of about so many tokens, and back to a user's message; None: all that is
                known, which is at least what the constructor was asked for.

        Raises:
            StoreUnavailable: the store must be read, and cannot be.
        """
        new = self._said_since()
        if new is None or self._tokens > 2 * self._max_tokens:  # too much of it is old
            self._branch = await self._session.tree.read_branch(max_tokens=self._max_tokens, count=self._count)
            self._tokens = self._size(self._branch.entries)
            self._context_tokens = tokens_of(self._branch.entries, self._count)
        elif new:
            self._branch = msgspec.structs.replace(self._branch, entries=(*self._branch.entries, *new))
            self._tokens += self._size(new)
            self._context_tokens = tokens_with(self._context_tokens, new, self._count)
        if max_tokens is None or self._tokens <= max_tokens:
            return self._branch
        return self._newest(max_tokens)

    async def context_tokens(self) -> int:
        """The size of the context that the branch gives now, as `tokens_of` has it; only what is new is counted.

        Raises:
            StoreUnavailable: as for `read`.
        """
        await self.read()
        return self._context_tokens

    def _said_since(self) -> list[MessageEntry] | None:
        """The messages from what is known to the leaf; None where anything else may stand between."""
        if not self._branch.entries:
            return None
        known_id = self._branch.entries[-1].id
        new: list[MessageEntry] = []
        wanted = self._session.leaf_id
        for entry in reversed(self._session.entries()):
            if wanted == known_id:
                break
            if entry.id != wanted:
                return None
            new.append(entry)
            wanted = entry.parent_id
        return new[::-1] if wanted == known_id else None

    def _newest(self, max_tokens: int) -> Branch:
        collector = BranchCollector(at_most=max_tokens, size=self._count, needs_compaction=False)
        for entry in reversed(self._branch.entries):
            collector.feed(entry)
            if collector.has_enough:
                break
        return msgspec.structs.replace(collector.branch(), compaction=self._branch.compaction)

    def _size(self, entries: Sequence[Entry]) -> int:
        return sum(self._count(message) for entry in entries if (message := told(entry)) is not None)
