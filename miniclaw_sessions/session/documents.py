"""A session in the exact words of documents 001 (Dive) and 003 (the Go session manager), where ours are others.

Thin: each object wraps a `Session` and adds nothing of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from miniclaw_sessions.history.transcript import TreeNode
from miniclaw_sessions.protocol.keys import SessionKey
from miniclaw_sessions.protocol.messages import Message, Part, Role, Usage
from miniclaw_sessions.session.compacting import CompactionOutcome, Summarizer
from miniclaw_sessions.session.session import Session, SessionContext


class DiveSession:
    """Document 001's `Session`: messages, turns with usage, title, fork, compact."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def id(self) -> str:
        """The session's id."""
        return self.session.session_id

    def title(self) -> str:
        """The display name; empty if there is none."""
        return self.session.title or ""

    def set_title(self, title: str) -> None:
        """Set the display name; accepted like a message."""
        self.session.update(title=title)

    def event_count(self) -> int:
        """How many turns and compactions there were."""
        return self.session.event_count

    def total_usage(self) -> Usage:
        """What all turns cost together."""
        return self.session.total_usage

    async def messages(self) -> list[Message]:
        """The conversation: everything that is kept of it, behind the summary of what was compacted.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        return (await self.session.tree.read_branch()).messages()

    async def save_turn(self, messages: Sequence[Message], usage: Usage | None = None) -> None:
        """Append a turn as one unit; see `Session.save_turn` for what it raises."""
        await self.session.save_turn(messages, usage)

    async def fork(self, new_id: str) -> DiveSession:
        """A copy under a new id; see `Session.fork` for what it raises."""
        return DiveSession(await self.session.fork(new_id))

    async def compact(self, summarizer: Summarizer) -> CompactionOutcome:
        """Let the summarizer's messages stand for everything; see `Session.compact` for what it raises."""
        return await self.session.compact(summarizer)


class GoSession:
    """Document 003's `Session`: an append-only tree of entries. Calls that append return the new entry's id.

    Every call raises what the call of `Session` or `SessionTree` raises that it stands for.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._tree = session.tree

    async def append_message(self, role: Role | str, content: str | Sequence[Part]) -> str:
        """Append a message."""
        said = content if isinstance(content, str) else tuple(content)
        return await self._tree.append_message(Message(Role(role), said))

    async def append_thinking_level_change(self, level: str) -> str:
        """From here on the model thinks this hard."""
        return await self._tree.append_thinking_level_change(level)

    async def append_model_change(self, provider: str, model_id: str) -> str:
        """From here on this model answers."""
        return await self._tree.append_model_change(provider, model_id)

    async def append_compaction(self, summary: str, first_kept_id: str, tokens: int) -> str:
        """Let a summary stand for what comes before an entry."""
        return await self._tree.append_compaction(summary, first_kept_id, tokens)

    async def append_session_info(self, name: str) -> str:
        """Set the display name."""
        return await self._tree.append_session_info(name)

    async def append_custom_entry(self, custom_type: str, data: Mapping[str, Any]) -> str:
        """Keep an extension's data."""
        return await self._tree.append_custom_entry(custom_type, data)

    async def set_label(self, target_id: str, label: str) -> str:
        """Bookmark an entry; an empty label removes the bookmark."""
        return await self._tree.set_label(target_id, label)

    async def branch(self, entry_id: str) -> None:
        """Go back to an entry."""
        await self._tree.branch(entry_id)

    async def branch_with_summary(self, branch_from_id: str, summary: str) -> str:
        """Go back to an entry, with a summary of the path that is left."""
        return await self._tree.branch_with_summary(branch_from_id, summary)

    async def create_branched_session(self, leaf_id: str, key: SessionKey | str | None = None) -> GoSession:
        """A new session with the path from the root to an entry."""
        return GoSession(await self.session.fork(key, leaf_id=leaf_id))

    async def get_context(self) -> SessionContext:
        """What may be sent to a model at the leaf."""
        return await self.session.get_context()

    async def get_tree(self) -> list[TreeNode]:
        """The whole session as a tree."""
        return await self._tree.get_tree()
