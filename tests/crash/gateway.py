"""One gateway of several on one database: in every chat it answers the next question, until it is told to stop.

All gateways look where a chat is and bring it the question that comes next, so that the same message comes to several
of them, as from a channel that hears no acknowledgement. What was acknowledged is written down after the
acknowledgement arrived: `CHAT ID SEQUENCE` of an entry, `CHAT REPLY FENCE OWNER` of a reply whose turn has ended.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec

from miniclaw_sessions import Message, Session, SessionManager, SessionSettings, ToolCall
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.sharing.turns import ClaimedTurn
from miniclaw_sessions.errors import DuplicateMessage, StoreError, StoreUnavailable

LEASE_S = 1.5
AT_ONCE = 12
AGAIN = 0.1
"""How often a question is brought again that was answered already."""


class Orders(msgspec.Struct, kw_only=True):
    """What a gateway is to do.

    Attributes:
        url: of the store.
        workspace: its own directory.
        chats: how many there are.
        acknowledged: the file that it adds to.
        stop: the file whose coming says that no new question is to be asked.
    """

    url: str
    workspace: str
    chats: int
    acknowledged: str
    stop: str


class Gateway:
    """What one process does."""

    def __init__(self, orders: Orders, manager: SessionManager) -> None:
        self._orders = orders
        self._manager = manager
        self._file = os.open(orders.acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._last = iter(random.sample(range(orders.chats), orders.chats))

    async def run(self) -> None:
        """Answer questions, some chats at a time; then leave none unanswered."""
        async with anyio.create_task_group() as tasks:
            for number in range(AT_ONCE):
                tasks.start_soon(self._work, name=f"worker {number}")

    async def _work(self) -> None:
        while not self._is_last():
            await self._visit(random.randrange(self._orders.chats))
        for chat in self._last:
            await self._visit(chat)

    async def _visit(self, chat: int) -> None:
        """Answer the newest question of a chat, or the next one; however often the store fails."""
        while True:
            try:
                session = await self._manager.get_or_create("chat", chat)
                await session.saved()
                if session.journal.committed_sequence < session.last_sequence:
                    continue  # whether the reply that waits here will be taken is not known yet
                number, is_answered = newest_question(session)
                is_last = self._is_last()
                if is_answered and is_last:
                    return
                is_again = is_answered and number > 0 and random.random() < AGAIN
                await self._answer(session, chat, number + 1 if is_answered and not is_again else number)
                if not is_last:
                    return
            except StoreError:
                await anyio.sleep(0.02)

    async def _answer(self, session: Session, chat: int, number: int) -> None:
        question = f"question {number}"
        with suppress(DuplicateMessage):
            async with session.turn(Message.user(question), idempotency_key=question) as turn:
                self._note(chat, [turn.message])
                ownership = turn._ownership
                assert isinstance(ownership, ClaimedTurn)
                assert ownership.claim is not None
                claim = ownership.claim.turn
                who = f"{claim.fence} {claim.owner}"
                if random.random() < 0.5:
                    call = ToolCall(id=turn.message.id, name="look_up")
                    turn.append(Message.assistant(f"step to {question} by {who}", tool_calls=(call,)))
                    turn.append(Message.tool_result(call, f"found for {question} by {who}"))
                    await turn.save()
                    self._note(chat, turn.entries())
                await anyio.sleep(random.random() / 50)
                turn.append(Message.assistant(f"reply to {question} by {who}"))
                if random.random() < 0.5:
                    await turn.save()
                    self._note(chat, turn.entries())
            self._write([f"{chat} REPLY {who}\n"])

    def _is_last(self) -> bool:
        return os.path.exists(self._orders.stop)  # noqa: PTH110 - asked before every question

    def _note(self, chat: int, entries: Iterable[MessageEntry]) -> None:
        self._write([f"{chat} {entry.id} {entry.sequence}\n" for entry in entries])

    def _write(self, lines: list[str]) -> None:
        os.write(self._file, "".join(lines).encode())


def newest_question(session: Session) -> tuple[int, bool]:
    """The number of the newest question of a chat, and whether it is answered; 0 before the first."""
    is_answered = False
    for message in reversed(session.messages()):
        if message.is_user:
            return int(message.text.removeprefix("question ")), is_answered
        is_answered |= message.is_assistant and not message.tool_calls
    return 0, True


async def serve(orders: Orders) -> None:
    """Open the store, as soon as it can be opened, and answer."""
    while True:
        async with AsyncExitStack() as stack:
            try:
                settings = SessionSettings(window=50, turn_lease_s=LEASE_S)
                manager = SessionManager(Path(orders.workspace), store=orders.url, settings=settings)
                await stack.enter_async_context(manager)
            except StoreUnavailable:
                await anyio.sleep(0.1)
                continue
            return await Gateway(orders, manager).run()


def main(orders: Mapping[str, Any]) -> int:
    """Do what the orders say; the exit status."""
    random.seed()  # it is a fork
    anyio.run(serve, msgspec.convert(orders, Orders))
    return 0
