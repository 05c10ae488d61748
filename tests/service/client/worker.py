"""A worker process: appends with idempotency keys through the daemon, and says what was acknowledged.

    python -m tests.service.client.worker SOCKET NAME COUNT

Each line that it prints is a number that was acknowledged. Started again under the same name, it begins anew: what it
had acknowledged before is sent once more with the same keys, as after a crash.
"""

from __future__ import annotations

import sys

import anyio

from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.service.client import connect

SESSIONS = 3


async def work(socket: str, name: str, count: int) -> None:
    async with connect(f"unix:{socket}", patience_s=60) as client:
        for number in range(count):
            session = client.session(f"shared_{number % SESSIONS}")
            key = f"{name}:{number}"
            if number % 4 == 3:
                turn = [Message.user(key), Message.assistant(f"answer to {key}")]
                await session.save_turn(turn, idempotency_key=key)
            else:
                await session.add_message(Message.user(key), idempotency_key=key)
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    anyio.run(work, sys.argv[1], sys.argv[2], int(sys.argv[3]))
