"""Time, chance and identity: the only module that reads a clock or makes an id.

Everything that waits, expires or names something takes a `Clock`, so a test of thirty days takes milliseconds
(`miniclaw_sessions.testing.FakeClock`). Wall time is information only: order is sequence order, and intervals are
measured on the monotonic clock (rule R22).
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Protocol

import anyio


class Clock(Protocol):
    """Time, as the package needs it."""

    def now(self) -> datetime:
        """The wall clock, UTC, with time zone."""
        ...

    def monotonic(self) -> float:
        """Seconds that only ever grow; the origin means nothing."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for this many monotonic seconds."""
        ...

    def new_id(self) -> str:
        """A new UUIDv7 as text: unique, and in the order of creation within this process."""
        ...

    def jitter(self, seconds: float) -> float:
        """A random duration between half of `seconds` and `seconds`, so that retries spread out."""
        ...


class SystemClock:
    """The machine's clocks."""

    def __init__(self) -> None:
        import random  # noqa: PLC0415 - an import of this module loads neither

        import uuid_utils  # noqa: PLC0415 - same

        self._new_uuid = uuid_utils.uuid7
        self._uniform = random.uniform

    def now(self) -> datetime:
        """The wall clock, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """CLOCK_MONOTONIC in seconds."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the event loop."""
        await anyio.sleep(seconds)

    def new_id(self) -> str:
        """A UUIDv7."""
        return str(self._new_uuid())

    def jitter(self, seconds: float) -> float:
        """Between half and the whole of `seconds`."""
        return seconds * self._uniform(0.5, 1.0)  # spreads retries, guards nothing


def derived_id(text: str) -> str:
    """A UUIDv5: the same for the same text."""
    import uuid_utils  # noqa: PLC0415 - an import of this module does not load it

    return str(uuid_utils.uuid5(uuid_utils.NAMESPACE_OID, text))


def derived_ids(data: bytes) -> Callable[[], str]:
    """Make ids for a file without ids of its own: the same ones each time the same bytes are read.

    After a crash before the file is rewritten the store must still recognize the session by these ids.
    """

    def ids() -> Iterator[str]:
        digest = hashlib.sha256(data).hexdigest()  # only when the first id is needed: most files have their own
        for number in itertools.count():
            yield derived_id(f"{digest} {number}")

    return ids().__next__


async def sleep_unless(clock: Clock, seconds: float, event: anyio.Event | asyncio.Event) -> bool:
    """Wait for this long, or until the event is set; whether the event came first."""

    async def wait_for_event() -> None:
        await event.wait()
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        scope = tasks.cancel_scope
        tasks.start_soon(wait_for_event, name="sleep_unless")
        await clock.sleep(seconds)
        scope.cancel()
    return event.is_set()
