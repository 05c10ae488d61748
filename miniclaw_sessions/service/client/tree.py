"""The tree of a session, wherever it is held: the words of `SessionTree`, each a request."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from miniclaw_sessions.core.history.transcript import Transcript, TreeNode
from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.service.api import messages, sessions, tree
from miniclaw_sessions.service.api.shapes import (
    AppendedEntry,
    EntriesAppendedReply,
    NewCustom,
    NewEntry,
    NewModelChange,
    NewSessionInfo,
    NewThinkingLevel,
    SessionReply,
)
from miniclaw_sessions.service.api.tree import Compact, GoTo, MovedReply, Replace, SetLabel, TreeReply
from miniclaw_sessions.service.client.said import Said, as_dict
from miniclaw_sessions.service.client.transport import Transport, new_key

PAGE = 256
"""How many entries are asked for at a time."""

_FIRST_PAGE = 16


class _Session(Protocol):
    """What a tree asks of its session."""

    @property
    def session_id(self) -> str: ...

    async def add_message(self, message: Said) -> AppendedEntry: ...

    async def append(self, entries: Sequence[NewEntry]) -> EntriesAppendedReply: ...

    def transcript(self) -> AsyncGenerator[bytes, None]: ...


class ClientTree:
    """The tree of a client's session, in the Go manager's words."""

    def __init__(self, session: _Session, transport: Transport) -> None:
        self._session = session
        self._transport = transport

    async def branch(
        self,
        entry_id: str | None,
        *,
        then: Sequence[Said] = (),
        if_leaf: str | None = None,
        idempotency_key: str | None = None,
    ) -> MovedReply:
        """Go back to an entry, None is the root; `then` follows it there as one turn.

        Args:
            entry_id: where to go on from.
            then: messages.
            if_leaf: only if this is the leaf.
            idempotency_key: the sender's own id of the move; one whose key is known is not done again. By default a new
                one, with which a request whose reply was lost is repeated.

        Raises:
            EntryNotFound: the session has no such entry.
            LeafMoved: the leaf is not `if_leaf` any more; nothing was changed.
        """
        body = GoTo(entry_id=entry_id, then=[as_dict(message) for message in then])
        return await self._go_to(body, if_leaf, idempotency_key)

    async def branch_with_entries(
        self,
        entry_id: str | None,
        entries: Sequence[NewEntry],
        *,
        if_leaf: str | None = None,
        idempotency_key: str | None = None,
    ) -> MovedReply:
        """`branch`, with entries of any kind.

        Raises:
            EntryNotFound: the session has no such entry.
            LeafMoved: the leaf is not `if_leaf` any more; nothing was changed.
        """
        return await self._go_to(GoTo(entry_id=entry_id, entries=list(entries)), if_leaf, idempotency_key)

    async def branch_with_summary(
        self, entry_id: str | None, summary: str, *, idempotency_key: str | None = None
    ) -> MovedReply:
        """`branch`, with a summary for the model of the branch that is left."""
        return await self._go_to(GoTo(entry_id=entry_id, summary=summary), None, idempotency_key)

    async def _go_to(self, body: GoTo, if_leaf: str | None, key: str | None) -> MovedReply:
        wanted = tree.GoToRequest(self._session.session_id, body, if_leaf, key or new_key())
        return await self._transport.call(tree.go_to, wanted)

    async def replace(
        self,
        entry_id: str,
        messages: Sequence[Said] = (),
        *,
        without: Collection[str] = (),
        if_leaf: str | None = None,
        idempotency_key: str | None = None,
    ) -> SessionReply:
        """Go on without an entry of the current branch: what follows it is appended again, as copies, without it.

        Args:
            entry_id: the entry.
            messages: what stands in its place.
            without: the ids of later entries that are left out, too.
            if_leaf: only if this is the leaf; None: what is said meanwhile follows, too.
            idempotency_key: as for `branch`.

        Raises:
            EntryNotFound: the current branch has no such entry.
            LeafMoved: the leaf is not `if_leaf` any more; nothing was changed.
        """
        body = Replace(entry_id=entry_id, messages=[as_dict(message) for message in messages], without=list(without))
        wanted = tree.ReplaceRequest(self._session.session_id, body, if_leaf, idempotency_key or new_key())
        return await self._transport.call(tree.replace_entry, wanted)

    async def set_label(self, entry_id: str, label: str) -> str:
        """Bookmark an entry, an empty label removes the bookmark; the label's own entry's id."""
        wanted = tree.SetLabelRequest(self._session.session_id, SetLabel(entry_id=entry_id, label=label), new_key())
        return (await self._transport.call(tree.set_label, wanted)).id

    async def append_message(self, message: Said) -> str:
        """Append a message; the id of its entry."""
        return (await self._session.add_message(message)).id

    async def append_model_change(self, provider: str, model_id: str) -> str:
        """From here on this model answers; the entry's id."""
        return (await self._session.append([NewModelChange(provider=provider, model_id=model_id)])).id

    async def append_thinking_level_change(self, level: str) -> str:
        """From here on the model thinks this hard; the entry's id."""
        return (await self._session.append([NewThinkingLevel(thinking_level=level)])).id

    async def append_session_info(self, name: str) -> str:
        """Set the display name; the entry's id."""
        return (await self._session.append([NewSessionInfo(name=name)])).id

    async def append_custom_entry(self, custom_type: str, data: Mapping[str, Any] | None = None) -> str:
        """Keep anything else; it never reaches a model. The entry's id."""
        return (await self._session.append([NewCustom(custom_type=custom_type, data=dict(data or {}))])).id

    async def append_compaction(self, summary: str, first_kept_entry_id: str | None, tokens_before: int = 0) -> str:
        """Let a summary stand for what comes before an entry; the compaction's id.

        Raises:
            UnsafeCompaction, EntryNotFound: the cut is not possible.
        """
        body = Compact(summary=summary, first_kept_entry_id=first_kept_entry_id, tokens_before=tokens_before)
        reply = await self._transport.call(tree.compact_session, tree.CompactRequest(self._session.session_id, body))
        return reply.entry_id or ""

    async def get_entry(self, entry_id: str) -> Entry:
        """One entry.

        Raises:
            EntryNotFound: the session has no such entry.
        """
        wanted = messages.OneEntry(self._session.session_id, entry_id)
        encoded: msgspec.Raw = await self._transport.call(messages.show_entry, wanted)
        return decode_entry(bytes(encoded))

    async def get_branch(self, entry_id: str | None = None, *, limit: int | None = None) -> list[Entry]:
        """The entries from the root to one of them, to the leaf if none is named; `limit`: only the newest."""
        found: list[Entry] = []
        async for entry in self.walk(entry_id, page=min(limit or PAGE, PAGE)):
            found.append(entry)
            if len(found) == limit:
                break
        return found[::-1]

    async def walk(self, entry_id: str | None = None, *, page: int = PAGE) -> AsyncGenerator[Entry, None]:
        """The entries of the branch that ends at an entry, or at the leaf, newest first; read as far as it is asked.

        The first pages are short: many want only the newest entries.
        """
        limit = min(page, _FIRST_PAGE)
        while True:
            wanted = tree.ShowBranch(self._session.session_id, entry_id, limit=limit)
            limit = min(page, 4 * limit)
            reply = await self._transport.call(tree.show_branch, wanted)
            entries = [decode_entry(bytes(encoded)) for encoded in reply.entries]
            for entry in reversed(entries):
                yield entry
            if not reply.truncated or not entries or entries[0].parent_id is None:
                return
            entry_id = entries[0].parent_id

    async def shape(self) -> TreeReply:
        """Which entries follow which, the labels and the leaf; the messages are in the transcript."""
        return await self._transport.call(tree.show_tree, sessions.OneSession(self._session.session_id))

    async def get_transcript(self) -> Transcript:
        """The whole tree, in memory."""
        found = Transcript(session_id=self._session.session_id)
        async for encoded in self._session.transcript():
            found.add(decode_entry(encoded))
        return found

    async def get_tree(self) -> list[TreeNode]:
        """The roots of the tree with everything that follows them, and the labels."""
        return (await self.get_transcript()).tree()

    async def get_children(self, entry_id: str | None) -> list[Entry]:
        """The entries that follow one directly; None gives the roots."""
        return (await self.get_transcript()).children(entry_id)

    async def get_label(self, entry_id: str) -> str | None:
        """The bookmark of an entry; None when it has none."""
        return (await self.get_transcript()).labels.get(entry_id)
