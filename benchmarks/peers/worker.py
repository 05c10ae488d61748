"""Does the work of one measurement with one store, in a process of its own: `python -m benchmarks.peers.worker`.

It is started with the interpreter of the store's environment, and imports nothing but the standard library and that
store's adapter. Orders come as JSON and results go to a file, because a library may print what it likes.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, repeat
from pathlib import Path
from typing import Any

from benchmarks.peers.adapters.base import Adapter, number_of

HISTORY = 50
ENOUGH = 200
"""The number of samples of one thing; its median is taken after these, or when its time is up."""

AT_LEAST = 5
BEGINNING = 20
"""How many messages each session has, long saved, when its writer is killed."""

Result = Mapping[str, Any]


def adapter_of(name: str) -> type[Adapter]:
    """The class that `module:Class` below `benchmarks.peers.adapters` names."""
    module, _, class_ = name.partition(":")
    found: type[Adapter] = getattr(importlib.import_module(f"benchmarks.peers.adapters.{module}"), class_)
    return found


# --- measurements ----------------------------------------------------------------------------------------------------


async def fill(store: Adapter, orders: Mapping[str, Any]) -> Result:
    """Make stores that are to be measured later, each in a directory of its own."""
    for name, sessions in orders["stores"].items():
        filled = type(store)(store.directory / name)
        await filled.open()
        for session, messages in sessions.items():
            await filled.fill(session, range(messages))
        await filled.close()
    return {}


async def appends(store: Adapter, orders: Mapping[str, Any]) -> Result:
    """Acknowledged appends per second, from empty sessions on."""
    sessions, per_session = int(orders["sessions"]), int(orders["per_session"])
    await store.open()
    await store.append("warm-up", 0)
    tally = Tally(store, time.perf_counter() + float(orders["limit_s"]))
    started = time.perf_counter()
    await tally.write([f"session-{number}" for number in range(sessions)], range(per_session))
    seconds = time.perf_counter() - started
    await store.close()
    hundredths = statistics.quantiles(tally.seconds, n=100) if len(tally.seconds) > 1 else [0.0] * 99
    return {
        "per_s": tally.acknowledged / seconds,
        "p50_ms": hundredths[49] * 1e3,
        "p99_ms": hundredths[98] * 1e3,
        "acknowledged": tally.acknowledged,
        "refused": tally.refused,
    }


async def sizes(store: Adapter, orders: Mapping[str, Any]) -> Result:
    """The cost of reading the newest messages and of an append, in microseconds, in sessions of this length."""
    limit_s = float(orders["limit_s"])
    latest: dict[str, float] = {}
    append: dict[str, float] = {}
    await store.open()
    for size in orders["sizes"]:
        session = f"of-{size}"
        messages = await store.latest(session, HISTORY)
        _check(store, messages, min(size, HISTORY), size - 1)
        latest[str(size)] = await _cost(partial(store.latest, session, HISTORY), repeat(()), limit_s)
        append[str(size)] = await _cost(partial(store.append, session), zip(count(size)), limit_s)
    await store.close()
    return {"latest_us": latest, "append_us": append}


async def cold_open(store: Adapter, orders: Mapping[str, Any]) -> Result:
    """Open a store with many sessions and read each one's history: milliseconds in all, and the memory it takes."""
    started = time.perf_counter()
    await store.open()
    histories = [await store.reload(session) for session in orders["sessions"]]
    seconds = time.perf_counter() - started
    for history in histories:
        _check(store, history, HISTORY, HISTORY - 1)
    gc.collect()
    memory = _resident_bytes()
    await store.close()
    return {"ms": seconds * 1e3, "memory_mb": memory / 1e6}


class Tally:
    """Writes, and counts what the store acknowledged and what it refused."""

    def __init__(self, store: Adapter, deadline: float, on_saved: Callable[[str, int], None] | None = None) -> None:
        self.acknowledged = 0
        self.refused = 0
        self.seconds: list[float] = []
        self._store = store
        self._deadline = deadline
        self._on_saved = on_saved

    async def write(self, sessions: Sequence[str], numbers: range) -> None:
        """The same numbers to every session, in tasks of their own or in turns, until the time is up."""
        if self._store.concurrent:
            await asyncio.gather(*(self._write_session(session, numbers) for session in sessions))
            return
        for number in numbers:
            for session in sessions:
                if not await self._save(session, number):
                    return

    async def _write_session(self, session: str, numbers: range) -> None:
        for number in numbers:
            if not await self._save(session, number):
                return

    async def _save(self, session: str, number: int) -> bool:
        """Until the store takes it: a busy database is asked again, as a caller would. False: the time is up."""
        begun = time.perf_counter()
        while time.perf_counter() < self._deadline:
            try:
                await self._store.append(session, number)
            except Exception:
                self.refused += 1
                if not self.acknowledged:
                    raise
                continue
            self.acknowledged += 1
            self.seconds.append(time.perf_counter() - begun)
            if self._on_saved is not None:
                self._on_saved(session, number)
            return True
        return False


async def _cost(call: Callable[..., Awaitable[object]], arguments: Iterator[Sequence[int]], limit_s: float) -> float:
    """The median of what a call costs with the next arguments each time, in microseconds."""
    seconds: list[float] = []
    begun = time.perf_counter()
    while len(seconds) < ENOUGH and (len(seconds) < AT_LEAST or time.perf_counter() - begun < limit_s):
        argument = next(arguments)
        started = time.perf_counter()
        await call(*argument)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1e6


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _check(store: Adapter, messages: Sequence[Any], length: int, last: int) -> None:
    if len(messages) != length or number_of(store.text(messages[-1])) != last:
        raise AssertionError(f"expected {length} messages up to number {last}, found {len(messages)}")


MEASUREMENTS = {"fill": fill, "appends": appends, "sizes": sizes, "cold_open": cold_open}


# --- writers that are killed -----------------------------------------------------------------------------------------


async def begin(store: Adapter, orders: Mapping[str, Any]) -> Result:
    """Make sessions with a few messages each and end in good order."""
    await store.open()
    for session in orders["sessions"]:
        await store.fill(session, range(BEGINNING))
    await store.close()
    return {}


async def go_on(store: Adapter, orders: Mapping[str, Any]) -> Result:
    """Append to these sessions until killed; each acknowledgement is noted in a file on another file system."""
    notes = os.open(orders["acknowledgements"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    await store.open()
    tally = Tally(store, float("inf"), lambda session, number: _note(notes, session, number))
    await tally.write(orders["sessions"], range(BEGINNING, sys.maxsize))
    return {}


async def read_back(store: Adapter, orders: Mapping[str, Any]) -> Result:
    """The numbers of the messages that each session still has, or what kept it from being read."""
    await store.open()
    found: dict[str, Any] = {}
    for session in orders["sessions"]:
        try:
            found[session] = [number_of(store.text(message)) for message in await store.whole(session)]
        except Exception as error:  # noqa: BLE001 - every exception of a damaged store is a result here
            found[session] = f"{type(error).__name__}: {error}"
    return {"found": found}


def _note(notes: int, session: str, number: int) -> None:
    os.write(notes, f"{session} {number}\n".encode())


ACTS = {"begin": begin, "go_on": go_on, "read_back": read_back}


def serve(adapter: type[Adapter]) -> None:
    """Fork a process for each line of orders, one after the other, and say its id and then its exit status.

    What is imported once serves all of them, which makes a power cut twenty times as fast.
    """
    answers = os.dup(1)
    os.dup2(2, 1)
    gc.freeze()
    for line in sys.stdin:
        orders = json.loads(line)
        if not (pid := os.fork()):
            _perform_and_exit(adapter, orders)
        os.write(answers, json.dumps({"pid": pid}).encode() + b"\n")
        _, status = os.waitpid(pid, 0)
        os.write(answers, json.dumps({"status": os.waitstatus_to_exitcode(status)}).encode() + b"\n")


def _perform_and_exit(adapter: type[Adapter], orders: Mapping[str, Any]) -> None:
    status = 70
    try:
        _perform(ACTS[orders["act"]], adapter, orders)
        status = 0
    except BaseException as error:  # noqa: BLE001 - a fork must never go on as its parent
        Path(orders["result"]).write_text(json.dumps({"error": f"{type(error).__name__}: {error}"}), encoding="utf-8")
    finally:
        os._exit(status)


# --- the process -----------------------------------------------------------------------------------------------------


def _perform(
    act: Callable[[Adapter, Mapping[str, Any]], Any], adapter: type[Adapter], orders: Mapping[str, Any]
) -> None:
    result = asyncio.run(act(adapter(Path(orders["directory"])), orders))
    Path(orders["result"]).write_text(json.dumps(result), encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    """`ADAPTER serve`, or `ADAPTER MEASUREMENT ORDERS`."""
    adapter = adapter_of(arguments[0])
    if arguments[1] == "serve":
        serve(adapter)
    else:
        _perform(MEASUREMENTS[arguments[1]], adapter, json.loads(arguments[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
