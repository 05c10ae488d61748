"""Chatting: what there is beside the stream of an answer, which whoever answers makes himself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miniclaw_sessions.api.operation import operation
from miniclaw_sessions.api.sessions import ONE, OneSession
from miniclaw_sessions.api.shapes import StoppedReply

if TYPE_CHECKING:
    from miniclaw_sessions.api.context import Context


@operation("POST", f"{ONE}/stop", OneSession, StoppedReply)
async def stop_turn(context: Context, request: OneSession) -> StoppedReply:
    """End the session's open turn; what was said so far is kept."""
    session = await context.find(request.session_id)
    return StoppedReply(stopped=await context.answering().stop(session))


OPERATIONS = (stop_turn,)
