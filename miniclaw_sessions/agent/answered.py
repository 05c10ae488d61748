"""What a turn that is over has ended with: found in the session again, for who asks the same once more."""

from __future__ import annotations

from miniclaw_sessions.agent.events import TurnFinished, TurnStopped
from miniclaw_sessions.core.protocol.entries import MessageEntry, moves_leaf
from miniclaw_sessions.core.protocol.messages import ABORTED, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import begins_turn, is_reply


async def end_of_turn(session: Session, entry_id: str) -> TurnFinished | TurnStopped | None:
    """The end of the turn of a user's message; None where it has none, because the chat went on without a reply.

    Args:
        session: in which it was said.
        entry_id: the message's entry, or one that follows it in its turn.

    Raises:
        EntryNotFound: the session has no such entry.
        StoreUnavailable: the store cannot be read.
    """
    place = (await session.tree.get_entry(entry_id)).sequence
    chain, usage = {entry_id}, Usage()
    async for entry in session.tree.read_entries(after=place):
        if entry.parent_id not in chain or not moves_leaf(entry):
            continue
        chain.add(entry.id)
        if not isinstance(entry, MessageEntry):
            continue
        if begins_turn(entry):
            return None
        usage += entry.message.usage or Usage()
        if is_reply(entry.message):
            end = TurnStopped if entry.message.stop_reason == ABORTED else TurnFinished
            return end(entry.message, usage)
    return None
