"""Claude Code's transcripts: `~/.claude/projects/<project>/<session>.jsonl`, read only.

Every line that belongs to the conversation has a `uuid` and a `parentUuid`: a tree, in which a rewind makes a branch.
What the file says in several lines becomes one entry, and lines that follow one of these lines follow that entry:

- A model's reply is written block by block, with the same `message.id`, and results may stand between its blocks. As
  far as they hang together they become one message; its usage, which every block repeats, counts once. The results of
  its parallel calls, which the file hangs on the block that asked, follow each other, so that one branch holds them.
- Messages have the shape of Anthropic's Messages API. Results become messages of their own; a content block that has no
  canonical part is kept as it came.
- A `compact_boundary` and the summary behind it become one `Compaction`. Where the boundary preserves a segment,
  that is what it keeps, and what the file hangs on the segment's end follows the compaction, as in the program itself.

A subagent's lines (`isSidechain`) are a branch of their own and never the leaf. What no model ever gets (hooks,
progress, snapshots of files, the program's own error messages) becomes a `Custom` entry with the whole line.

A session that was branched off begins with the lines of the other one, each with `forkedFrom`. What such a reply cost
was paid there: its usage is kept as it came, and counts for nothing here.

A parent that was never written, as the program often leaves one out, is replaced by what stands before the line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from miniclaw_sessions.core.protocol.entries import Compaction, Custom, Entry, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, Part, Role, TextPart, ToolCall, Usage
from miniclaw_sessions.files.formats.blocks import read_block, read_usage
from miniclaw_sessions.files.formats.codec import (
    Chain,
    Format,
    any_line,
    content_of,
    count_of,
    keeping,
    kept_apart,
    kept_whole,
    object_in,
    stated,
    text_of,
    without,
)
from miniclaw_sessions.files.formats.json_lines import LineReader

NAME = "claude-code"
"""The format's name, and the key of `extra` under which fields without a canonical place are kept."""

_MOST_HELD = 512
"""How many entries may wait for the rest of a reply; results stand between its blocks, but fewer."""

_COMMON = ("sessionId", "version", "cwd", "gitBranch", "userType", "entrypoint", "slug", "isSidechain")
_PLACED = frozenset({"type", "uuid", "parentUuid", "timestamp", "message"})
_OF_A_REPLY = ("role", "content", "model", "usage", "stop_reason")
_TITLES = {"summary": "summary", "ai-title": "aiTitle", "custom-title": "customTitle"}
_TITLE_RANKS = {kind: rank for rank, kind in enumerate(_TITLES)}
_SIGNS = {"summary": "leafUuid", "file-history-snapshot": "snapshot", "queue-operation": "operation"}
_REASONS = {"auto": "threshold"}


def _is_ours(line: Mapping[str, Any]) -> bool:
    kind = line.get("type")
    if isinstance(kind, str) and (sign := _SIGNS.get(kind)) is not None:
        return sign in line
    if not {"uuid", "parentUuid", "sessionId"} <= line.keys():
        return False
    message = line.get("message")
    if kind in ("user", "assistant"):
        return isinstance(message, dict) and "content" in message  # others keep their parts elsewhere
    return kind in ("system", "attachment", "progress")


class _Open:
    """An entry of which the file may yet say more."""

    def __init__(self, entry_id: str, parent_id: str | None, timestamp: datetime, extra: dict[str, Any]) -> None:
        self.id = entry_id
        self.parent_id = parent_id
        self.timestamp = timestamp
        self.extra = extra
        self.is_open = True

    def entry(self) -> Entry:
        """The entry, as far as it is known."""
        raise NotImplementedError

    def _base(self) -> dict[str, Any]:
        about = {"id": self.id, "parent_id": self.parent_id, "timestamp": self.timestamp}
        return {**about, "extra": keeping(self.extra, NAME)}


class _Reply(_Open):
    """A model's reply, block by block."""

    def __init__(self, message: Mapping[str, Any], *, is_copy: bool, **place: Any) -> None:
        super().__init__(**place)
        self.parts: list[Part] = []
        self.calls: list[ToolCall] = []
        self.is_copy = is_copy  # its usage counts elsewhere
        self.model: str | None = None
        self.usage: Usage | None = None
        self.stop_reason: str | None = None
        self.message_id = text_of(message, "id") or ""
        self.kept = without(stated(message), *(name for name in _OF_A_REPLY if name != "usage" or not is_copy))
        self.last_result: str | None = None
        self.answered: set[str] = set()
        self.add(message)

    def add(self, message: Mapping[str, Any]) -> None:
        """The next block; the last usage is the final one."""
        content = message.get("content")
        for block in content if isinstance(content, list) else [content or ""]:
            piece = _read_piece(block)
            if isinstance(piece, ToolCall):
                self.calls.append(piece)
            else:
                self.parts.append(piece)
        if not self.is_copy:
            self.usage = read_usage(message.get("usage"), NAME) or self.usage
        self.model = text_of(message, "model") or self.model
        self.stop_reason = text_of(message, "stop_reason") or self.stop_reason

    def entry(self) -> Entry:
        message = Message(
            Role.ASSISTANT,
            tuple(self.parts),
            timestamp=self.timestamp,
            tool_calls=tuple(self.calls) or None,
            model=self.model,
            usage=self.usage,
            stop_reason=self.stop_reason,
            extra=keeping(self.kept, NAME),
        )
        return MessageEntry(**self._base(), message=message)


class _Boundary(_Open):
    """A compaction whose summary is yet to come."""

    summary = ""
    first_kept: str | None = None

    def entry(self) -> Entry:
        meta = object_in(self.extra, "compactMetadata")
        trigger = text_of(meta, "trigger") or ""
        return Compaction(
            **self._base(),
            summary=self.summary,
            first_kept_entry_id=self.first_kept,
            tokens_before=count_of(meta, "preTokens") or 0,
            tokens_after=count_of(meta, "postTokens"),
            reason=_REASONS.get(trigger, trigger),
        )


class _Reader(LineReader):
    def __init__(self, chain: Chain) -> None:
        super().__init__(chain, NAME)
        self._ids: set[str] = set()
        self._stand_ins: dict[str, str] = {}  # what hangs on the one hangs on the other
        self._queue: deque[Entry | _Open] = deque()
        self._owners: dict[str, _Open] = {}  # of what waits: the open entry that it follows
        self._replies: dict[str, _Reply] = {}
        self._early: dict[str, str] = {}  # what hangs on a line that has not come yet
        self._side_id: str | None = None
        self._title_rank = -1

    def finish(self) -> list[Entry]:
        """The entries that are still open."""
        for held in self._queue:
            if isinstance(held, _Open):
                held.is_open = False
        return self._released()

    @property
    def is_settled(self) -> bool:
        """Whether every reply that is open says why it stopped; a model's next block may take its time."""
        return all(held.stop_reason is not None for held in self._queue if isinstance(held, _Reply) and held.is_open)

    def pending(self) -> list[Entry]:
        """What `finish` would give now."""
        return [held.entry() if isinstance(held, _Open) else held for held in self._queue]

    # --- lines -------------------------------------------------------------------------------------------------------

    def _take(self, line: dict[str, Any]) -> list[Entry]:
        if (uuid := text_of(line, "uuid")) and (uuid in self._ids or uuid in self._stand_ins):
            self._lines.set_aside("a line with the same uuid stands before it")
            return self._released()
        self._note_facts(line)
        match line:
            case {"type": "user", "isCompactSummary": True, "message": {"content": content}}:
                read = _read_content(content)
                texts = [read] if isinstance(read, str) else [part.text for part in read if isinstance(part, TextPart)]
                self._take_summary(line, "\n".join(texts))
            case {"type": "user", "message": {"content": content}}:
                self._take_user(line, content)
            case {"type": "assistant", "message": {"content": _} as message} if not line.get("isApiErrorMessage"):
                self._take_reply(line, message)
            case {"type": "system", "subtype": "compact_boundary"}:
                self._take_boundary(line)
            case {"type": "attachment", "attachment": {"type": "queued_command", "prompt": str() | list() as prompt}}:
                self._take_user(line, prompt)  # said while the model was at work
            case _:
                self._take_other(line)
        return self._released()

    def _take_other(self, line: dict[str, Any]) -> None:
        named = text_of(line, "parentUuid")
        awaited = named if named is not None and self._known(named) is None else None
        parent_id = self._parent(line)
        entry = Custom(
            id=self._own_id(line),
            parent_id=parent_id,
            timestamp=self._time,
            custom_type=f"{NAME}.{text_of(line, 'type') or 'unknown'}",
            data=line,
        )
        self._place(entry, line)
        if awaited is not None:
            self._early[awaited] = entry.id

    def _take_user(self, line: dict[str, Any], content: Any) -> None:
        """A user's line: the results in it, one message each, and what the user says beside them."""
        blocks = content if isinstance(content, list) else []
        messages = [_read_result(block) for block in blocks if _is_result(block)]
        said = [block for block in blocks if not _is_result(block)] if messages else content
        if said or not messages:
            messages.append(Message(Role.USER, _read_content(said)))
        parent_id = self._parent(line)
        reply = self._owners.get(parent_id or "")
        if not messages[0].is_tool_result or not isinstance(reply, _Reply):
            reply = None
        else:
            answers = {message.tool_call_id for message in messages if message.is_tool_result and message.tool_call_id}
            if reply.last_result is not None and not answers & reply.answered:  # else they are another branch
                parent_id = self._end(reply.last_result)
            reply.answered |= answers
        self._close(parent_id, unless=messages[-1].is_tool_result)
        before = parent_id
        extra = self._kept(line, parent_id)
        first_id = entry_id = self._own_id(line)
        for number, message in enumerate(messages):
            if number:
                entry_id = self._chain.new_id()
            entry = MessageEntry(
                id=entry_id,
                parent_id=parent_id,
                timestamp=self._time,
                message=replace(message, timestamp=self._time),
                extra=None if number else keeping(extra, NAME),
            )
            self._place(entry, line)
            parent_id = entry_id
        if entry_id != first_id:
            self._stand_ins[first_id] = entry_id
        if reply is not None:
            if reply.last_result is not None and self._end(reply.last_result) == before:
                self._stand_ins[before] = first_id
            reply.last_result = first_id

    def _take_reply(self, line: dict[str, Any], message: Mapping[str, Any]) -> None:
        reply = self._reply_of(line, text_of(message, "id") or "")
        if reply is not None:
            reply.add(message)
            more: dict[str, Any] = {name: line[name] for name in ("uuid", "parentUuid", "timestamp") if name in line}
            reply.extra.setdefault("lines", []).append({**more, **self._kept(line, None, compared_to=reply.extra)})
            if uuid := text_of(line, "uuid"):
                self._stand_ins[uuid] = reply.id
            return
        parent_id = self._parent(line)
        self._close(parent_id)
        place = {"entry_id": self._own_id(line), "parent_id": parent_id, "timestamp": self._time}
        reply = _Reply(message, is_copy=_origin(line) is not None, **place, extra=self._kept(line, parent_id))
        if reply.message_id:
            self._replies[reply.message_id] = reply
        else:
            reply.is_open = False
        self._place(reply, line)

    def _reply_of(self, line: dict[str, Any], message_id: str) -> _Reply | None:
        """The reply of this id that a line goes on with: it hangs on it, or where its first line hangs.

        A line whose parent was never written goes on with the newest.
        """
        if not message_id:
            return None
        named = line.get("parentUuid") or None
        parent_id = self._known(named) if isinstance(named, str) else None
        owner = self._owners.get(parent_id or "")
        if isinstance(owner, _Reply) and owner.message_id == message_id and owner.id in self._owners:
            return owner
        newest = self._replies.get(message_id)
        if newest is None or (parent_id is None and (named is not None or "parentUuid" not in line)):
            return newest
        beside = None if newest.parent_id is None else self._end(newest.parent_id)
        return newest if parent_id == beside else None

    def _take_boundary(self, line: dict[str, Any]) -> None:
        parent_id = self._parent(line) or self._before(line)
        self._close(parent_id)
        boundary = _Boundary(self._own_id(line), parent_id, self._time, self._kept(line, parent_id))
        head: str | None = None  # the first and the last uuid of the segment that it preserves
        tail: str | None = None
        match line.get("compactMetadata"):
            case {"preservedSegment": {"headUuid": str(first), "tailUuid": str(last)}}:
                head, tail = first, last
            case {"preservedMessages": {"uuids": [str(first), *_, str(last)]}}:
                head, tail = first, last
            case {"preservedMessages": {"uuids": [str(only)]}}:
                head = tail = only
        if head is not None:
            boundary.first_kept = head if head in self._ids else self._stand_ins.get(head)
            if boundary.first_kept is None:
                self._lines.repaired("the segment that this compaction preserves is not in the file")
        self._place(boundary, line)
        if tail is not None and (end := self._known(tail)) is not None and end != boundary.id:
            self._stand_ins[end] = boundary.id

    def _take_summary(self, line: dict[str, Any], summary: str) -> None:
        parent_id = self._parent(line) or self._before(line)
        boundary = self._owners.get(parent_id or "")
        if not isinstance(boundary, _Boundary) or not boundary.is_open:
            boundary = _Boundary(self._own_id(line), parent_id, self._time, self._kept(line, parent_id))
            self._place(boundary, line)
        else:
            boundary.extra["summary"] = {"uuid": line.get("uuid"), **self._kept(line, None, compared_to=boundary.extra)}
            if uuid := text_of(line, "uuid"):
                self._stand_ins[uuid] = boundary.id
        boundary.summary = summary
        boundary.is_open = False

    # --- places ------------------------------------------------------------------------------------------------------

    def _before(self, line: Mapping[str, Any]) -> str | None:
        """What stands before a line, in the conversation or among the subagents' lines."""
        return self._side_id if _is_side(line) else self.facts.leaf_id

    def _own_id(self, line: Mapping[str, Any]) -> str:
        return text_of(line, "uuid") or self._chain.new_id()

    def _parent(self, line: Mapping[str, Any]) -> str | None:
        """The entry that a line follows; a line that has no place in the tree follows what stands before it."""
        uuid = text_of(line, "uuid")
        if uuid is not None and (early := self._early.pop(uuid, None)) is not None:
            before = self._end(early)
            self._stand_ins[before] = uuid  # the two change places, so that one branch holds both
            return before
        named = line.get("parentUuid") or line.get("logicalParentUuid")
        if named is None:
            return None if "parentUuid" in line else self._before(line)
        if isinstance(named, str) and (known := self._known(named)) is not None:
            return known
        self._lines.repaired("its parent is not in the file before it; it follows what stands before it")
        return self._before(line)

    def _known(self, uuid: str) -> str | None:
        end = self._end(uuid)
        return end if end in self._ids else None

    def _end(self, uuid: str) -> str:
        while (stand_in := self._stand_ins.get(uuid)) is not None:
            uuid = stand_in
        return uuid

    def _place(self, item: Entry | _Open, line: Mapping[str, Any]) -> None:
        """Put an entry at the end of what waits, and let the following lines find it."""
        self._ids.add(item.id)
        owner = item if isinstance(item, _Open) else self._owners.get(item.parent_id or "")
        if owner is not None:
            self._owners[item.id] = owner
        if _is_side(line):
            self._side_id = item.id
        elif not isinstance(item, Custom) or item.parent_id == self.facts.leaf_id:  # a hook may end on a branch left
            self.facts.leaf_id = item.id
        self._queue.append(item)

    def _close(self, parent_id: str | None, *, unless: bool = False) -> None:
        """A message follows: the open entry before it is complete."""
        if not unless and (owner := self._owners.get(parent_id or "")) is not None:
            owner.is_open = False

    def _released(self) -> list[Entry]:
        released: list[Entry] = []
        while self._queue:
            item = self._queue[0]
            if isinstance(item, _Open):
                if item.is_open and len(self._queue) <= _MOST_HELD:
                    break
                if isinstance(item, _Reply) and self._replies.get(item.message_id) is item:
                    del self._replies[item.message_id]
                item = item.entry()
            self._queue.popleft()
            self._owners.pop(item.id, None)
            released.append(item)
        return released

    # --- what else a line says ---------------------------------------------------------------------------------------

    def _note_facts(self, line: Mapping[str, Any]) -> None:
        facts = self.facts
        moment = self._lines.moment_in(line)
        self._time = moment or self._time
        facts.created_at = facts.created_at or moment
        for name in _COMMON:
            if name in line and name not in facts.header:
                facts.header[name] = line[name]
        facts.parent_session = facts.parent_session or _origin(line)
        facts.source_id = facts.source_id or text_of(line, "sessionId") or ""
        kind = text_of(line, "type") or ""
        title = text_of(line, _TITLES[kind]) if kind in _TITLES else None
        if title and (rank := _TITLE_RANKS[kind]) >= self._title_rank:
            facts.title, self._title_rank = title, rank

    def _kept(
        self, line: Mapping[str, Any], parent_id: str | None, *, compared_to: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """A line's fields without a place, as far as they are not those of the whole file or of the line before."""
        known = {**self.facts.header, **(compared_to or {})}
        kept: dict[str, Any] = {n: v for n, v in line.items() if n not in _PLACED and (n not in known or known[n] != v)}
        message = line.get("message")
        if line.get("type") == "user" and isinstance(message, dict) and (rest := without(message, "role", "content")):
            kept["message"] = rest
        if compared_to is None and line.get("parentUuid") != parent_id:
            kept["parentUuid"] = line.get("parentUuid")
        return kept


def _origin(line: Mapping[str, Any]) -> str | None:
    """The session that a line is a copy from, if it is one."""
    return text_of(object_in(line, "forkedFrom"), "sessionId")


def _is_side(line: Mapping[str, Any]) -> bool:
    return line.get("isSidechain") is True


# --- messages ---------------------------------------------------------------------------------------------------------


def _read_content(content: Any) -> str | tuple[Part, ...]:
    """Content as text or parts; what is neither is kept as a part of our own."""
    return content_of(content, _read_part)


def _read_part(block: Any) -> Part:
    """One content block that is no call, or stands where none can be."""
    piece = _read_piece(block)
    return kept_whole(block, NAME, "block") if isinstance(piece, ToolCall) else piece


def _read_piece(block: Any) -> Part | ToolCall:
    """One content block; what is not as its type has it is kept as it came."""
    if isinstance(block, str):
        return TextPart(block)
    fields = stated(block) if isinstance(block, dict) else {}
    piece = read_block({"input": {}, **fields} if fields.get("type") == "tool_use" else fields, NAME)
    return kept_whole(block, NAME, "block") if piece is None else piece


def _is_result(block: Any) -> bool:
    """Whether a block of a user's message is a tool's result."""
    return isinstance(block, dict) and block.get("type") == "tool_result"


def _read_result(block: Mapping[str, Any]) -> Message:
    """A tool's result as a message; without an id it answers by its place."""
    return Message(
        Role.TOOL_RESULT,
        _read_content(block.get("content")),
        tool_call_id=text_of(block, "tool_use_id"),
        is_error=block.get("is_error") is True,
        extra=kept_apart(stated(block), ("type", "tool_use_id", "content", "is_error"), NAME),
    )


CLAUDE_CODE = Format(
    name=NAME,
    about="Claude Code's transcript, with its branches, compactions and subagents; read only",
    suffix=".jsonl",
    recognize=any_line(_is_ours),
    reader=_Reader,
)
