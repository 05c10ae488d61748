"""What a suspended turn waits for: logged in the session's transcript, and found there again, also after a restart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from miniclaw_sessions.agent.events import PendingCall
from miniclaw_sessions.core.history.pairing import open_calls
from miniclaw_sessions.core.protocol.entries import SUSPENDED
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import Turn, is_reply


async def log_pending(turn: Turn, pending: Sequence[PendingCall]) -> list[PendingCall]:
    """Log which calls of a turn wait for an answer from outside, and for what, unless that is logged already.

    Returns:
        The calls, with the question that they belong to.
    """
    if all(one.question for one in pending):
        return list(pending)
    entry_id = await turn.tree.append_custom_entry(SUSPENDED, {"calls": documents_of(pending)})
    return [msgspec.structs.replace(one, question=one.question or entry_id) for one in pending]


def documents_of(pending: Sequence[PendingCall]) -> list[dict[str, Any]]:
    """Calls that wait, as they are logged."""
    return [msgspec.to_builtins(one.waiting) for one in pending]


async def pending_calls(session: Session) -> list[PendingCall]:
    """The calls of a suspended turn that wait for an answer from outside.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    window = session.journal.conversation.window.kept
    if not window or is_reply(window[-1].message):  # as it is nearly always; then nothing is read
        return []
    waiting = await session.tree.get_waiting()
    return [
        PendingCall(call, one.reason, one.data, one.question)
        for call in open_calls(session.messages())
        if (one := waiting.get(call.id)) is not None
    ]
