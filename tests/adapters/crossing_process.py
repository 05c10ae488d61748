"""A process that takes one turn with one framework, or is killed in it; `tests/crash/launcher.py` starts it.

What happens is written down in a file, each time after it happened.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

import anyio
import msgspec

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.encoding import message_to_dict
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.service.client import connect
from tests.adapters.steps import CHANNEL, CHAT, WITHOUT_FRAMEWORK, Place
from tests.adapters.turns import Turn
from tests.crash.writer import log_past_the_injected_calls
from tests.killing import kill_after

try:
    from tests.adapters.frameworks import STEPS
except ModuleNotFoundError:  # in google-adk's own environment
    from tests.adapters.google_adk_step import STEPS

WINDOW = 12
"""Smaller than most of the conversations: the rest is read from the store."""


def main(orders: Mapping[str, Any]) -> int:
    """Take the turn, and die after so many `notes`, or `rounds` of the event loop, if the orders say so."""
    log_past_the_injected_calls()
    anyio.run(_take, orders)
    return 0


async def _take(orders: Mapping[str, Any]) -> None:
    watch = Account(orders["account"], orders["notes"])
    turn = msgspec.convert(orders["turn"], Turn)
    settings = SessionSettings(store=orders["store"], window=WINDOW)
    async with anyio.create_task_group() as tasks:
        if orders["rounds"]:
            tasks.start_soon(kill_after, orders["rounds"])
        async with SessionManager(orders["workspace"], settings=settings) as manager, connect(manager) as client:
            session = await manager.get_or_create(CHANNEL, CHAT)
            place = Place(manager, session, manager, session)
            if orders["over_client"]:
                place = Place(manager, session, client, client.session(session.session_id))
            await {**WITHOUT_FRAMEWORK, **STEPS}[orders["framework"]](place, turn, watch)
        tasks.cancel_scope.cancel()


class Account:
    """A `Watch` that writes everything down, and kills the process after some of it; 0: after none."""

    def __init__(self, path: str, dies_after: int = 0) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._left = dies_after

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def asked(self, context: list[Message]) -> None:
        self._note({"asked": [message_to_dict(message) for message in context]})

    def ran(self, label: str) -> None:
        self._note({"ran": label})

    def acknowledged(self, *texts: str) -> None:
        self._note({"acknowledged": [str(text) for text in texts]})  # LangChain has a class of its own for texts

    def _note(self, line: Mapping[str, Any]) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
