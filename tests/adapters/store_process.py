"""A process that puts items into LangGraph's memory until it is killed; `tests/crash/launcher.py` starts it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import anyio
import msgspec

from miniclaw_sessions.adapters.langgraph import MiniclawStore
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.service.client import connect
from tests.crash.writer import log_past_the_injected_calls
from tests.killing import kill_after


def main(orders: Mapping[str, Any]) -> int:
    """Put items, write each down after it was acknowledged, and die some rounds of the event loop after some `puts`."""
    log_past_the_injected_calls()
    anyio.run(_put, orders)
    return 0


async def _put(orders: Mapping[str, Any]) -> None:
    account = os.open(orders["account"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    settings = SessionSettings(store=orders["store"])
    async with (
        anyio.create_task_group() as tasks,
        SessionManager(orders["workspace"], settings=settings) as manager,
        connect(manager) as client,
    ):
        store = MiniclawStore(client if orders["over_client"] else manager)
        number = orders["first"]
        while True:
            number += 1
            if number == orders["first"] + orders["puts"]:
                tasks.start_soon(kill_after, orders["rounds"])
            namespace, key = ("users", f"{number % 3}"), f"{number % 7}"
            value = None if number % 11 == 0 else {"number": number}
            await (store.adelete(namespace, key) if value is None else store.aput(namespace, key, value))
            os.write(account, msgspec.json.encode([namespace, key, value]) + b"\n")
