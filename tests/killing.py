"""Kill -9 for processes that tests start."""

from __future__ import annotations

import os
import signal

from anyio.lowlevel import checkpoint


async def kill_after(rounds: int) -> None:
    """Kill this process after this many rounds of its event loop."""
    for _ in range(rounds):
        await checkpoint()
    os.kill(os.getpid(), signal.SIGKILL)
