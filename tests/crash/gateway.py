"""One gateway of several on one database: answers every question in every chat, until it has, or is killed.

The same questions are brought to every gateway, as a channel does that hears no acknowledgement. What was acknowledged
is written down after the acknowledgement arrived.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import anyio

from miniclaw_sessions import Message, SessionManager, SessionSettings, ToolCall
from miniclaw_sessions.errors import DuplicateMessage, StoreError
from miniclaw_sessions.session import turn as turns

LEASE_S = 1.5
AT_ONCE = 12


def main() -> None:
    url, workspace, chats, questions, acknowledged = sys.argv[1:]
    turns.TURN_S = LEASE_S
    anyio.run(serve, url, Path(workspace), int(chats), int(questions), Path(acknowledged))


async def serve(url: str, workspace: Path, chats: int, questions: int, acknowledged: Path) -> None:
    """Answer all questions of all chats, some chats at a time."""
    file = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    async with SessionManager(workspace, store=url, settings=SessionSettings(window=1000)) as manager:
        order = random.sample(range(chats), chats)
        limit = anyio.CapacityLimiter(AT_ONCE)

        async def converse(chat: int) -> None:
            async with limit:
                for number in range(questions):
                    await answer(manager, chat, number, file)

        async with anyio.create_task_group() as tasks:
            for chat in order:
                tasks.start_soon(converse, chat, name=f"chat {chat}")


async def answer(manager: SessionManager, chat: int, number: int, file: int) -> None:
    """Answer one question, unless it was answered; however often the store fails."""
    key = f"question {number}"
    while True:
        try:
            session = await manager.get_or_create("chat", chat)
            async with session.turn(Message.user(key), idempotency_key=key) as turn:
                os.write(file, f"{chat} {turn.message.id}\n".encode())
                if random.random() < 0.5:
                    call = ToolCall(id=turn.message.id, name="look_up")
                    turn.append(Message.assistant("I look it up", tool_calls=(call,)))
                    turn.append(Message.tool_result(call, "found"))
                    await turn.save()
                await anyio.sleep(random.random() / 50)
                reply = f"answer to {key} by {os.getpid()}"
                turn.append(Message.assistant(reply))
            os.write(file, f"{chat} {reply}\n".encode())
        except DuplicateMessage:
            return
        except StoreError:
            await anyio.sleep(0.02)
        else:
            return


if __name__ == "__main__":
    main()
