"""Compaction of a live session: plan, let the caller's coroutine summarize, append, or say why not.

The summary is made without any lock: a model takes its time, and the conversation goes on. What was said meanwhile is
kept. A failure changes nothing: the old history is readable before, during and after.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Any

import anyio
import msgspec

from miniclaw_sessions.core.history.branch import Branch, shown_message
from miniclaw_sessions.core.history.compaction import (
    SummaryPlan,
    TokenCounter,
    check_cut,
    count_tokens,
    has_open_calls,
    plan_compaction,
    plan_compaction_of_all,
)
from miniclaw_sessions.core.protocol.entries import Compaction
from miniclaw_sessions.core.protocol.messages import Message, Role
from miniclaw_sessions.core.session.journal import Journal
from miniclaw_sessions.core.session.unit import Unit
from miniclaw_sessions.errors import LeafMoved, SessionDeleted, UnsafeCompaction
from miniclaw_sessions.log import get_logger

SUMMARY_TIMEOUT_S = 300.0
"""How long a summary may take."""

log = get_logger(__name__)

Summarizer = Callable[[Sequence[Message]], Awaitable[str | Message | Sequence[Message]]]
"""Summarizes messages, oldest first: a text, or the messages that are to stand for them, as in Dive."""


class CompactionStatus(StrEnum):
    """How a compaction ended. Only DONE changed anything."""

    DONE = "done"
    SKIPPED = "skipped"
    """There was nothing to summarize."""

    FAILED = "failed"
    """The summary could not be made, took too long, or was empty."""

    ABORTED = "aborted"
    """The conversation went another way meanwhile, so that the summary no longer fits."""


class CompactionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a compaction; `detail` says why, without anything that was said."""

    status: CompactionStatus
    detail: str = ""
    entry_id: str | None = None
    tokens_before: int = 0
    tokens_after: int = 0


async def compact(  # noqa: PLR0913 - what may be chosen, each with a default at the session's call
    journal: Journal,
    summarizer: Summarizer,
    *,
    keep_tokens: int,
    count: TokenCounter,
    reason: str,
    timeout_s: float,
) -> CompactionOutcome:
    """Summarize the older part of a session's branch.

    Args:
        journal: whose branch.
        summarizer: makes the summary of the messages it is given, the former summary first. Its failure is an outcome,
            not an error.
        keep_tokens: how much of the newest part is kept as it is, about.
        count: how tokens are counted.
        reason: stands in the entry: manual, threshold or overflow.
        timeout_s: how long the summary may take.

    Raises:
        StoreFull, StoreUnavailable: the compaction was accepted or not, but is not acknowledged.
        SessionDeleted, UnsavedLimit, InvalidMessage: the compaction was not accepted.
    """
    if not journal.home.store.keeps_entries:
        detail = "the store `none:` keeps no transcript: what was summarized would be lost"
        return CompactionOutcome(status=CompactionStatus.SKIPPED, detail=detail)
    branch = await journal.reader.branch()
    plan: SummaryPlan | None
    if keep_tokens > 0:
        plan = plan_compaction(branch.entries, keep_tokens=keep_tokens, count=count)
    else:
        plan = plan_compaction_of_all(branch.entries, count=count)
    if plan is None:
        return CompactionOutcome(status=CompactionStatus.SKIPPED, detail="there is nothing to summarize now")
    try:
        with anyio.fail_after(timeout_s):
            summary = _as_messages(await summarizer(plan.summarized))
    except Exception as error:  # noqa: BLE001 - the caller's coroutine may raise anything; nothing has changed
        return _unchanged(
            journal, plan, CompactionStatus.FAILED, f"the summary could not be made: {type(error).__name__}"
        )
    if not any(message.text.strip() for message in summary):
        return _unchanged(journal, plan, CompactionStatus.FAILED, "the summary is empty")
    return await _append(journal, branch, plan, summary, count=count, reason=reason)


async def _append(  # noqa: PLR0913 - the parts of one compaction
    journal: Journal,
    planned_on: Branch,
    plan: SummaryPlan,
    summary: Sequence[Message],
    *,
    count: TokenCounter,
    reason: str,
) -> CompactionOutcome:
    """Append the compaction, provided that the branch is still the one that it was planned on."""
    tokens_after = count_tokens(summary, count) + plan.tokens_kept
    costs = [m.usage for m in summary if m.role is Role.COMPACTION_SUMMARY and m.usage is not None]
    text = "\n\n".join(message.text for message in summary if message.role is Role.COMPACTION_SUMMARY)
    try:
        entry_id = await append_compaction(
            journal,
            partial(_first_kept, plan, planned_on),
            summary=text,
            tokens_before=plan.tokens_before,
            tokens_after=tokens_after,
            reason=reason,
            model=next((message.model for message in summary if message.model), None),
            usage=sum(costs[1:], costs[0]) if costs else None,
            messages=(*plan.instructions, *(m for m in summary if m.role is not Role.COMPACTION_SUMMARY)),
        )
    except LeafMoved:  # in another process; the plan may be good still
        return await _append(journal, planned_on, plan, summary, count=count, reason=reason)
    except UnsafeCompaction as error:
        return _unchanged(journal, plan, CompactionStatus.ABORTED, str(error))
    except SessionDeleted:
        return _unchanged(journal, plan, CompactionStatus.ABORTED, "the session was deleted meanwhile")
    log.info(
        "compacted",
        action="compaction.done",
        session_id=journal.session_id,
        reason=reason,
        tokens_before=plan.tokens_before,
        tokens_after=tokens_after,
    )
    return CompactionOutcome(
        status=CompactionStatus.DONE, entry_id=entry_id, tokens_before=plan.tokens_before, tokens_after=tokens_after
    )


async def append_compaction(journal: Journal, first_kept: Callable[[Branch], str | None], **fields: Any) -> str:
    """Append a compaction whose first kept entry is chosen on the branch as it is at that very moment; its id.

    Args:
        journal: whose branch.
        first_kept: returns what is kept, or raises UnsafeCompaction if the compaction is no longer wanted.
        fields: those of the entry.

    Raises:
        UnsafeCompaction, LeafMoved, StoreFull, StoreUnavailable, InvalidMessage, UnsavedLimit, SessionDeleted: see
            `SessionTree.append_compaction`.
    """
    leaf_id: object = object()
    branch, kept_id = Branch(), None
    while leaf_id != journal.conversation.state.leaf_id:  # what is said meanwhile may be a call without its result
        leaf_id = journal.conversation.state.leaf_id
        branch = await journal.reader.branch()
        kept_id = first_kept(branch)
        await _check_cut(journal, branch, kept_id)
    place = next((entry.sequence for entry in branch.entries if entry.id == kept_id), None)
    unit = Unit(journal)
    entry = unit.add(Compaction, first_kept_entry_id=kept_id, first_kept_sequence=place, **fields)
    await unit.save(if_sequence=journal.last_sequence)  # behind what others say, it would stand for that as well
    return entry.id


async def _check_cut(journal: Journal, branch: Branch, first_kept_entry_id: str | None) -> None:
    if first_kept_entry_id is not None:
        if branch.compaction is not None and all(entry.id != first_kept_entry_id for entry in branch.entries):
            async for entry in journal.reader.walk():
                if entry.id == first_kept_entry_id:
                    raise UnsafeCompaction(
                        f"cannot keep what follows {first_kept_entry_id!r}: compaction {branch.compaction.id} stands "
                        "for it already; keep an entry that is still in the context"
                    )
        check_cut(branch.entries, first_kept_entry_id)
    elif has_open_calls(branch.entries):
        raise UnsafeCompaction(
            f"session {journal.session_id} cannot be compacted now: a tool call has no result yet; wait for it"
        )


def _first_kept(plan: SummaryPlan, seen: Branch, current: Branch) -> str | None:
    """The entry that is wanted, or the first one that the summary has not seen, whichever comes first.

    Raises:
        UnsafeCompaction: the branch is another one.
    """
    wanted = plan.first_kept_entry_id
    seen_ids = {entry.id for entry in seen.entries}
    ids = {entry.id for entry in current.entries}
    is_left = wanted is None and seen.entries and seen.entries[-1].id not in ids
    if is_left or _compaction_id(current) != _compaction_id(seen):
        raise UnsafeCompaction("the branch was compacted, or left, meanwhile")
    if wanted is not None and wanted not in ids:
        return wanted  # which is refused for what it is
    kept = (
        entry.id
        for entry in current.entries
        if entry.id == wanted or (entry.id not in seen_ids and shown_message(entry) is not None)
    )
    return next(kept, None)


def _as_messages(summary: str | Message | Sequence[Message]) -> list[Message]:
    """What a summarizer gave, as messages; a text is the summary itself.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(summary, str):
        return [Message(Role.COMPACTION_SUMMARY, summary)]
    messages = [summary] if isinstance(summary, Message) else list(summary)
    if not all(isinstance(message, Message) for message in messages):
        raise TypeError("a summarizer gives a text or messages")
    return messages


def _compaction_id(branch: Branch) -> str | None:
    return None if branch.compaction is None else branch.compaction.id


def _unchanged(journal: Journal, plan: SummaryPlan, status: CompactionStatus, detail: str) -> CompactionOutcome:
    log.warning(
        "a compaction changed nothing",
        action="compaction.unchanged",
        session_id=journal.session_id,
        status=status.value,
        detail=detail,
    )
    return CompactionOutcome(
        status=status, detail=detail, tokens_before=plan.tokens_before, tokens_after=plan.tokens_before
    )
