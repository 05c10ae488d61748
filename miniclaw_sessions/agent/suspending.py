"""What a suspended turn waits for: logged in the session's transcript, and found there again, also after a restart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from miniclaw_sessions.agent.events import PendingCall
from miniclaw_sessions.history.pairing import open_calls
from miniclaw_sessions.protocol.entries import SUSPENDED
from miniclaw_sessions.session import Session
from miniclaw_sessions.session.turn import Turn


async def log_pending(turn: Turn, pending: Sequence[PendingCall]) -> None:
    """Log which calls of a turn wait for an answer from outside, and for what."""
    await turn.tree.append_custom_entry(SUSPENDED, {"calls": documents_of(pending)})


def documents_of(pending: Sequence[PendingCall]) -> list[dict[str, Any]]:
    """Calls that wait, as they are logged."""
    return [{"id": one.call.id, "reason": one.reason, "data": dict(one.data)} for one in pending]


async def pending_calls(session: Session) -> list[PendingCall]:
    """The calls of a suspended turn that wait for an answer from outside.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    waiting = await session.tree.get_waiting()
    return [
        PendingCall(call, waiting[call.id].reason, waiting[call.id].data)
        for call in open_calls(session.messages())
        if call.id in waiting
    ]
