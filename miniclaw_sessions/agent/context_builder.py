"""The layers of a model's context: the system prompt, the history, and the current message, exactly once.

The history layer is the session's window, or as much of its transcript as a budget of tokens allows. Which older
messages are worth sending is decided here; that the result is legal, in `history.context`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import msgspec

from miniclaw_sessions.config import MAX_MESSAGES
from miniclaw_sessions.core.history.branch import Branch, BranchCollector, shown_message, summary_messages
from miniclaw_sessions.core.history.compaction import TokenCounter, count_by_characters, tokens_of, tokens_with
from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.protocol.entries import Entry, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, Role
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import Turn
from miniclaw_sessions.errors import ConfigError


class ContextBuilder:
    """Builds the context of every iteration of a turn.

    Args:
        limit: how many messages from before the current one are sent at most, newest first. What the turn has said
            since the current message is always sent whole: a model that forgets its own steps repeats them. The
            summary of what was compacted does not count.
        max_tokens: in place of `limit` and the window: about this many tokens of the transcript.
        count: how tokens are counted.
        newest: knows the branch of the one session that this builder is for; by default the store is read each time.

    Raises:
        ConfigError: a limit is negative.
    """

    def __init__(
        self,
        *,
        limit: int = MAX_MESSAGES,
        max_tokens: int | None = None,
        count: TokenCounter = count_by_characters,
        newest: NewestBranch | None = None,
    ) -> None:
        if limit < 0 or (max_tokens is not None and max_tokens < 0):
            raise ConfigError(f"a context has at least 0 messages or tokens, not {min(limit, max_tokens or 0)}")
        self.limit = limit
        self.max_tokens = max_tokens
        self.count = count
        self._newest = newest

    def __repr__(self) -> str:
        bound = f"{self.limit} messages" if self.max_tokens is None else f"{self.max_tokens} tokens"
        return f"<ContextBuilder at most {bound}>"

    async def build(self, turn: Turn, system_prompt: str = "") -> list[Message]:
        """The context for going on with a turn.

        Args:
            turn: its session's history, the message that is being answered, and what was said since.
            system_prompt: the first instruction to the model; empty: no system message. It is never stored in a
                session.

        Raises:
            StoreUnavailable: the budget reaches beyond the window, and the store cannot be read.
        """
        current = turn.message.message
        if self.max_tokens is None:
            return with_system(system_prompt, fitted(turn.messages(), current, self.limit))
        if self._newest is None:
            branch = await turn.tree.read_branch(max_tokens=self.max_tokens, count=self.count)
        else:
            branch = await self._newest.read(self.max_tokens)
        # the turn's own entries come last, so that its messages are the same objects: `fitted` looks for one of them
        entries: dict[str, Entry] = {entry.id: entry for entry in (*branch.entries, *turn.entries())}
        in_order = sorted(entries.values(), key=lambda entry: entry.sequence)
        said = (message for entry in in_order if (message := shown_message(entry)) is not None)
        messages = [*summary_messages(branch.compaction), *said, *turn.staged]
        return with_system(system_prompt, fitted(messages, current, len(messages)))


def fitted(messages: Sequence[Message], current: Message, limit: int) -> list[Message]:
    """A legal context of the newest messages.

    Args:
        messages: the conversation with the turn's steps, oldest first.
        current: the message that is being answered. It is found by identity, because an older one may say the same;
            if it is not there, because it was compacted, it is put in front of what is there.
        limit: how many messages from before it are sent at most; the summary in front of them does not count.
    """
    summary = list(takewhile(lambda message: message.role is Role.COMPACTION_SUMMARY, messages))
    said = messages[len(summary) :]
    place = next((index for index in reversed(range(len(said))) if said[index] is current), None)
    before = [] if place is None else said[:place]
    steps = said if place is None else said[place + 1 :]
    history = before[max(0, len(before) - limit) :]
    return build_context([*summary, *history, current, *steps])


def with_system(system_prompt: str, context: list[Message]) -> list[Message]:
    """The context behind the first instruction."""
    return [Message.system(system_prompt), *context] if system_prompt else context


# --- the newest part of the branch -----------------------------------------------------------------------------------


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
            max_tokens: only the newest part, of about this many tokens, and back to a user's message; None: all that is
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
        collector = BranchCollector(at_most=max_tokens, size=self._count, needs_compaction=False)
        for entry in reversed(self._branch.entries):
            collector.feed(entry)
            if collector.has_enough:
                break
        return msgspec.structs.replace(collector.branch(), compaction=self._branch.compaction)

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

    def _size(self, entries: Sequence[Entry]) -> int:
        return sum(self._count(message) for entry in entries if (message := shown_message(entry)) is not None)
