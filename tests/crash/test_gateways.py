"""Three gateways on one database, killed and paused at random: nothing is lost, doubled, or answered twice."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from miniclaw_sessions.protocol.encoding import decode_entry
from miniclaw_sessions.protocol.entries import MessageEntry
from miniclaw_sessions.stores.sql.postgresql import PostgreSQLStore
from tests.crash.gateway import LEASE_S

pytestmark = pytest.mark.anyio

GATEWAYS = 3
CHATS = 24
QUESTIONS = int(os.environ.get("GATEWAYS_QUESTIONS", "40"))
DISTURBED_S = float(os.environ.get("GATEWAYS_DISTURBED_S", "20"))
FINISHED_S = 240.0


def start(number: int, url: str, directory: Path) -> subprocess.Popen[bytes]:
    arguments = [url, str(directory / f"gateway-{number}"), str(CHATS), str(QUESTIONS), str(directory / "acknowledged")]
    with (directory / f"log-{number}").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "tests.crash.gateway", *arguments], stdout=log, stderr=log)


def disturb(gateways: list[subprocess.Popen[bytes]], url: str, directory: Path) -> Counter[str]:
    """Kill some and pause some for a while; whoever was killed starts again."""
    done: Counter[str] = Counter()
    end = time.monotonic() + DISTURBED_S
    while time.monotonic() < end and all(gateway.poll() is None for gateway in gateways):
        time.sleep(random.uniform(0.3, 1.5))
        number = random.randrange(GATEWAYS)
        if random.random() < 0.5:
            gateways[number].send_signal(signal.SIGSTOP)
            time.sleep(random.uniform(0.1, 2.5 * LEASE_S))
            gateways[number].send_signal(signal.SIGCONT)
            done["paused"] += 1
        else:
            gateways[number].kill()
            gateways[number].wait()
            gateways[number] = start(number, url, directory)
            done["killed"] += 1
    return done


async def test_every_message_is_there_once_and_answered_once_whoever_is_killed_or_paused(
    postgresql_url: str, tmp_path: Path
) -> None:
    gateways = [start(number, postgresql_url, tmp_path) for number in range(GATEWAYS)]
    try:
        done = disturb(gateways, postgresql_url, tmp_path)
        for number, gateway in enumerate(gateways):
            status = gateway.wait(FINISHED_S)
            assert status == 0, (tmp_path / f"log-{number}").read_text()[-4000:]
    finally:
        for gateway in gateways:
            gateway.kill()
            gateway.wait()
    assert done["killed"] > 0
    assert done["paused"] > 0
    acknowledged = [line.split(" ", 1) for line in (tmp_path / "acknowledged").read_text().splitlines()]
    async with PostgreSQLStore(postgresql_url) as store:
        assert await store.check() == []
        for chat in range(CHATS):
            entries = [decode_entry(one.encoded) for one in await store.read(f"chat_{chat}")]
            said = [(one.id, one.message) for one in entries if isinstance(one, MessageEntry)]
            questions = [message.text for _, message in said if message.is_user]
            assert questions == [f"question {number}" for number in range(QUESTIONS)]
            replies = [message.text for _, message in said if message.is_assistant and not message.tool_calls]
            answered = [re.sub(" by .*", "", text) for text in replies]
            assert answered == [f"answer to question {number}" for number in range(QUESTIONS)]
            stored = {id_ for id_, _ in said} | set(replies)
            assert {what for who, what in acknowledged if who == str(chat)} <= stored
