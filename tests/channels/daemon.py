"""The daemon in a process of its own, with one channel, until it is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio


@asynccontextmanager
async def killed_at_the_end(channel: str, home: Path, settings: dict[str, str]) -> AsyncIterator[None]:
    """`serve --channel`, with an empty home but for the workspace, until kill -9.

    Args:
        channel: the channel's name.
        home: where its files go, and its log.
        settings: further variables of its environment.
    """
    environment = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "MINICLAW_WORKSPACE": str(home / "workspace"),
        **settings,
    }
    command = [sys.executable, "-m", "miniclaw_sessions", "serve", "--channel", channel]
    with (home / "log").open("ab") as log:
        daemon = await anyio.open_process(command, env=environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            daemon.send_signal(signal.SIGKILL)
            await daemon.wait()
