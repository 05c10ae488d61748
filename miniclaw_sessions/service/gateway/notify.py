"""Talking to the service manager: readiness, status, watchdog (sd_notify(3)).

Does nothing where no manager listens. `watchdog` pings only while flusher and committer prove to be alive (rule R29):
a thread that hangs in a system call ends the pings, and systemd restarts the service. A disk that is full or gone does
not: its errors come back in time, the committer goes on trying, and killing the daemon would only lose what waits.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping

import anyio

from miniclaw_sessions.log import get_logger

log = get_logger(__name__)

EXTENSION_S = 30.0
"""Seconds that one step of progress buys while starting or stopping."""

_PROGRESS_EVERY_S = 1.0


class Notifier:
    """One datagram socket to the service manager, or nothing.

    Args:
        address: where the manager listens, a path or an abstract name beginning with `@`; empty: nowhere.
        watchdog_s: the interval within which the manager wants a sign of life; 0: none wanted.
    """

    def __init__(self, address: str = "", *, watchdog_s: float = 0.0) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if address else None
        self._extended_at = float("-inf")
        self.watchdog_s = watchdog_s if address else 0.0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Notifier:
        """What the service manager asks for: NOTIFY_SOCKET, and WATCHDOG_USEC if WATCHDOG_PID means this process."""
        watchdog = environ.get("WATCHDOG_USEC", "")
        mine = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watchdog_s = int(watchdog) / 1e6 if mine and watchdog.isascii() and watchdog.isdigit() else 0.0
        return cls(environ.get("NOTIFY_SOCKET", ""), watchdog_s=watchdog_s)

    def send(self, *assignments: str) -> None:
        """Send assignments such as `READY=1`, in one datagram; a manager that is gone is not an error."""
        if self._socket is None:
            return
        text = "\n".join(assignment.replace("\n", " ") for assignment in assignments)
        try:
            self._socket.sendto(text.encode("utf-8", "backslashreplace"), socket.MSG_DONTWAIT, self._address)
        except OSError as error:
            log.warning("the service manager could not be reached", action="notify.failed", errno=error.errno)

    def progress(self, status: str) -> None:
        """Say what is being done and ask for more time to do it; call it only when something really advanced (R27)."""
        now = time.monotonic()
        if now - self._extended_at >= _PROGRESS_EVERY_S:
            self._extended_at = now
            self.send(f"EXTEND_TIMEOUT_USEC={int(EXTENSION_S * 1e6)}", f"STATUS={status}")

    def close(self) -> None:
        """Close the socket; sending afterwards does nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


async def watchdog(notifier: Notifier, silence: Callable[[], float], *, deadline_s: float) -> None:
    """Ping the service manager three times per interval, as long as saving makes progress; never returns.

    Args:
        notifier: whom to ping; if it wants no watchdog, this only waits for its cancellation.
        silence: seconds since flusher and committer both last proved to be alive.
        deadline_s: how long they may be silent.
    """
    if not notifier.watchdog_s:
        await anyio.sleep_forever()
    was_alive = True
    while True:
        alive = silence() <= deadline_s
        if alive:
            notifier.send("WATCHDOG=1")
        elif was_alive:
            log.critical("saving has hung: no more watchdog pings", action="watchdog.silent", deadline_s=deadline_s)
            notifier.send("STATUS=saving has hung; waiting to be restarted")
        was_alive = alive
        await anyio.sleep(notifier.watchdog_s / 3)
