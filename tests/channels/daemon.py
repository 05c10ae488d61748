"""The daemon in a process of its own, with one channel, which ends by kill -9 unless it has ended before."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process

from tests.agent.providers.strict_server import StrictServer


@asynccontextmanager
async def running(home: Path, environment: Mapping[str, str], *arguments: str) -> AsyncIterator[Process]:
    """The program, with a home of its own, until kill -9.

    Args:
        home: where its files go, and its log.
        environment: its variables, beside HOME and PATH.
        arguments: its command line.
    """
    command = [sys.executable, "-m", "miniclaw_sessions", *arguments]
    given = {"HOME": str(home), "PATH": os.environ["PATH"], **environment}
    with (home / "log").open("ab") as log:
        daemon = await anyio.open_process(command, env=given, cwd=home, stdout=log, stderr=log)
        async with daemon:
            try:
                yield daemon
            finally:
                if daemon.returncode is None:
                    daemon.send_signal(signal.SIGKILL)
                with anyio.CancelScope(shield=True):
                    await daemon.wait()


def model_settings(model: StrictServer) -> dict[str, str]:
    """The variables with which a daemon asks this model."""
    return {
        "OPENAI_API_KEY": "k",
        "MINICLAW_MODEL_API_KEY_ENV": "OPENAI_API_KEY",
        "MINICLAW_MODEL_MODEL": "m",
        "MINICLAW_MODEL_BASE_URL": model.url_for("openai"),
    }


@asynccontextmanager
async def serving(channel: str, home: Path, settings: Mapping[str, str]) -> AsyncIterator[None]:
    """`serve --channel`, with its workspace in `home / "workspace"`; it is an error if it ends by itself."""
    environment = {"MINICLAW_WORKSPACE": str(home / "workspace"), **settings}
    async with running(home, environment, "serve", "--channel", channel) as daemon, anyio.create_task_group() as tasks:

        async def watch() -> None:
            status = await daemon.wait()
            pytest.fail(f"the daemon has ended with {status}: {(home / 'log').read_text()[-2000:]}")

        tasks.start_soon(watch)
        yield
        tasks.cancel_scope.cancel()
