"""Signals as events: what asks the daemon to stop, to hurry, or to flush and look at its settings.

| Signal | Effect |
|---|---|
| SIGTERM, SIGINT, the first | stop: finish requests, save everything, exit |
| the second | the same without waiting for requests and turns; the final save is not touched |
| the third | exit at once with status 70; what was acknowledged is in the store |
| SIGHUP | flush now, and read the settings again: log, token, hosts and origins |

The handlers are the event loop's own: they stay until it closes, so that a second signal during the final save cannot
kill the process (rule R25).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import anyio

from miniclaw_sessions.log import get_logger
from miniclaw_sessions.service.gateway.exit_status import ExitStatus

log = get_logger(__name__)

_STOP = (signal.SIGTERM, signal.SIGINT)
_SECOND = 2


class Signals:
    """A context manager for the life of the daemon; `stop` and `hurry` are set by stop signals, `hangup` by SIGHUP."""

    def __init__(self) -> None:
        self.stop = anyio.Event()
        self.hurry = anyio.Event()
        self.hangup = anyio.Event()
        self._count = 0
        self._interrupts: anyio.CancelScope | None = None

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in _STOP:
            loop.add_signal_handler(number, self._stop_received, number)
        loop.add_signal_handler(signal.SIGHUP, self._hangup_received)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """From here on signals are ignored: everything is saved, and the exit status must say so."""
        loop = asyncio.get_running_loop()
        for number in (*_STOP, signal.SIGHUP):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[anyio.CancelScope]:
        """A scope that a stop signal cancels, until `shield` is called: for recovery, which may take long."""
        with anyio.CancelScope() as scope:
            self._interrupts = scope
            if self.stop.is_set():
                scope.cancel()
            yield scope

    def shield(self) -> None:
        """From here on a stop signal is only an event."""
        self._interrupts = None

    async def next_hangup(self) -> None:
        """Wait for a SIGHUP; those since the last wait count as one."""
        await self.hangup.wait()
        self.hangup = anyio.Event()

    def _stop_received(self, number: signal.Signals) -> None:
        self._count += 1
        log.info("a signal to stop came", action="daemon.stopping", signal=number.name, count=self._count)
        self.stop.set()
        if self._interrupts is not None:
            self._interrupts.cancel()
        if self._count == _SECOND:
            self.hurry.set()
        elif self._count > _SECOND:
            log.critical("forced to exit at once, unsaved", action="daemon.failed", status=int(ExitStatus.FORCED))
            os._exit(ExitStatus.FORCED)

    def _hangup_received(self) -> None:
        self.hangup.set()
