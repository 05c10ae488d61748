"""The command `follow`: one session or all, while others write."""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from miniclaw_sessions import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.service.client import connect
from tests.command_line import Cli
from tests.service.gateway.daemons import Process as Daemon


async def make(workspace: Path) -> None:
    async with SessionManager(workspace) as manager:
        await (await manager.get_or_create("a", 1)).add_message(Message.user("hello"))


def test_where_nobody_can_say_anything_or_no_session_is_named_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli(tmp_path / "workspace", monkeypatch)
    anyio.run(make, cli.workspace)
    for command, sentence in ((["follow"], "no daemon runs"), (["follow", "--last", "3"], "name the session")):
        result = cli(*command)
        assert result.status == 1
        assert sentence in result.error


@pytest.mark.proof
@pytest.mark.anyio
async def test_it_shows_what_is_said_and_goes_on_over_a_restart_of_the_daemon(short_path: Path) -> None:
    socket = short_path / "w" / "miniclaw.sock"
    command = [sys.executable, "-m", "miniclaw_sessions", "follow", "--json", "--socket", str(socket)]
    shown: list[dict[str, Any]] = []
    followers: list[tuple[Process, BufferedByteReceiveStream]] = []
    async with AsyncExitStack() as stack:
        for life in ("before", "after"):
            async with Daemon(short_path) as daemon, connect(f"unix:{socket}") as client:
                await daemon.notice("READY=1")
                if life == "before":
                    follower = await stack.enter_async_context(await anyio.open_process(command))
                    assert follower.stdout is not None
                    assert follower.stderr is not None
                    followers.append((follower, BufferedByteReceiveStream(follower.stdout)))
                    assert (await follower.stderr.receive()).startswith(b"following every chat")
                session = await client.get_or_create("a", life)
                with anyio.fail_after(60):
                    while not any(life in str(one.get("entry")) for one in shown):
                        await session.add_message(Message.user(life))
                        shown.append(json.loads(await followers[0][1].receive_until(b"\n", 1 << 20)))
                assert await daemon.stopped() == 0
        followers[0][0].kill()
    sequences = [one["entry"]["sequence"] for one in shown if one["session_id"] == "a_after" and "entry" in one]
    assert sequences == list(range(1, len(sequences) + 1))
