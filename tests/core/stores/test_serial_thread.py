"""A thread that coroutines take turns with."""

from __future__ import annotations

import asyncio
import threading

import pytest
from anyio import to_thread

from miniclaw_sessions.core.stores.serial_thread import SerialThread

pytestmark = pytest.mark.anyio


async def test_calls_run_one_after_the_other_in_the_thread() -> None:
    thread, order = SerialThread("test"), list[int]()
    threads = {await thread.call(threading.get_ident) for _ in range(3)}
    await asyncio.gather(*(thread.call(order.append, number) for number in range(100)))
    assert order == list(range(100))
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    thread.stop()


async def test_what_a_call_raises_reaches_its_caller_and_nobody_else() -> None:
    thread = SerialThread("test")
    first, second = thread.call(int, "no number"), thread.call(int, "2")
    assert [str(one) for one in await asyncio.gather(first, second, return_exceptions=True)] == [
        "invalid literal for int() with base 10: 'no number'",
        "2",
    ]
    thread.stop()


async def test_a_call_outlives_its_cancelled_caller() -> None:
    thread, begun, go_on, done = SerialThread("test"), threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        begun.set()
        assert go_on.wait(10)
        done.append("work")

    caller = asyncio.create_task(thread.call(work), name="caller")
    await to_thread.run_sync(begun.wait)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    go_on.set()
    await thread.call(done.append, "next")
    assert done == ["work", "next"]
    thread.stop()


async def test_stopping_lets_what_was_called_finish() -> None:
    thread = SerialThread("test")
    call = asyncio.create_task(thread.call(threading.current_thread), name="call")
    await asyncio.sleep(0)
    thread.stop()
    running = await call
    await to_thread.run_sync(running.join)
    assert not running.is_alive()


def test_a_thread_survives_the_loop_that_called_it() -> None:
    thread, go_on = SerialThread("test"), threading.Event()

    async def leave() -> None:
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().stop)
        await thread.call(go_on.wait, 10)

    loop = asyncio.new_event_loop()
    task = loop.create_task(leave(), name="leave")
    loop.run_forever()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
    go_on.set()
    assert asyncio.run(thread.call(int, "3")) == 3
    thread.stop()
