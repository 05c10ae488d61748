"""Acknowledged appends through the client and the daemon, beside a bare starlette echo on a socket of the same kind.

Both are asked by the same client, in turns, each server in a process of its own; and once more over bare connections,
which take less of the two cores than a client does and so show what the servers can do.
"""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import orjson

from benchmarks.daemon import Daemon
from benchmarks.unix_http import Connection
from benchmarks.workload import Row, message
from miniclaw_sessions.service.api.messages import AddMessages
from miniclaw_sessions.service.api.operation import Operation
from miniclaw_sessions.service.client import connect
from miniclaw_sessions.service.client.client import Client
from miniclaw_sessions.service.client.said import as_dict
from miniclaw_sessions.service.client.transport import new_key

CALLERS = (1, 100)
TARGET = 0.5
Work = Callable[[int], Awaitable[None]]


def measure(directory: Path, *, quick: bool = False) -> list[Row]:
    """Appends per second with 1 and 100 callers, ours and the echo's."""
    with tempfile.TemporaryDirectory(prefix="mc") as scratch:
        return anyio.run(_measure, directory, Path(scratch), 1 if quick else 5, 300 if quick else 1_000)


async def _measure(directory: Path, scratch: Path, rounds: int, requests: int) -> list[Row]:
    rows: list[Row] = []
    with Daemon(directory / "client", scratch) as daemon, served_echo(scratch / "echo.sock") as (echo_socket, echo_pid):
        await daemon.start()
        async with (
            connect(f"unix:{daemon.socket}") as ours,
            connect(f"unix:{echo_socket}") as echo,
        ):
            for callers in CALLERS:
                pairs = [
                    (await _rate(_appending(ours), callers, requests), await _rate(_echoing(echo), callers, requests))
                    for _ in range(rounds)
                ]
                rows.append(_row("through the client", callers, pairs))
        for callers in CALLERS:
            spent = [processor_s(daemon.pid), processor_s(echo_pid)]
            pairs = [
                (await _bare(daemon.socket, callers, requests), await _bare(echo_socket, callers, requests))
                for _ in range(rounds)
            ]
            rows.append(_row("over bare connections", callers, pairs))
            ours_s, floor_s = processor_s(daemon.pid) - spent[0], processor_s(echo_pid) - spent[1]
            each = 1e6 / (rounds * requests)
            name = f"the server's processor time for one of them, {callers} callers"
            rows.append(Row(name, "us", ours_s * each, floor_s * each))
    return rows


def processor_s(pid: int) -> float:
    """How long a process has run on a processor, in seconds, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _row(what: str, callers: int, pairs: list[tuple[float, float]]) -> Row:
    ours, floor = (sorted(values)[len(values) // 2] for values in zip(*pairs, strict=True))
    name = f"acknowledged appends {what}, {callers} callers"
    return Row(name, "per s", ours, floor, f"at least {TARGET} of the echo", ours / floor >= TARGET)


def _appending(client: Client) -> Work:
    async def append(number: int) -> None:
        await client.session(f"bench_{number % 100}").add_message(message(number))

    return append


def _echoing(client: Client) -> Work:
    """The same request to the echo, by the same way through the client."""

    async def never(context: Any, request: AddMessages) -> Any:
        raise NotImplementedError

    echo = Operation("echo", "POST", "/v1/sessions/{session_id}/messages", AddMessages, dict[str, Any], never, "write")

    async def call(number: int) -> None:
        body = {"messages": [as_dict(message(number))]}
        wanted = AddMessages(session_id=f"bench_{number % 100}", body=body, idempotency_key=new_key())
        await client.transport.call(echo, wanted)

    return call


async def _rate(work: Work, callers: int, requests: int) -> float:
    numbers = iter(range(requests))

    async def caller() -> None:
        for number in numbers:
            await work(number)

    for number in range(20):
        await work(number)
    begun = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(callers):
            tasks.start_soon(caller)
    return requests / (time.perf_counter() - begun)


async def _bare(socket: Path, callers: int, requests: int) -> float:
    numbers = iter(range(requests))

    async def caller() -> None:
        async with await Connection.open(socket) as connection:
            for number in numbers:
                body = {"messages": [as_dict(message(number))]}
                reply = await connection.post(f"/v1/sessions/bench_{number % 100}/messages", body)
                assert reply.status == 201, reply

    begun = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(callers):
            tasks.start_soon(caller)
    return requests / (time.perf_counter() - begun)


@contextmanager
def served_echo(socket: Path) -> Iterator[tuple[Path, int]]:
    process = multiprocessing.get_context("spawn").Process(target=_serve_echo, args=(str(socket),), daemon=True)
    process.start()
    while not socket.exists():
        time.sleep(0.01)
    try:
        yield socket, process.pid or 0
    finally:
        process.terminate()
        process.join()


def _serve_echo(socket: str) -> None:
    import uvicorn  # noqa: PLC0415 - only in the echo's process
    from starlette.applications import Starlette  # noqa: PLC0415 - same
    from starlette.requests import Request  # noqa: PLC0415 - same
    from starlette.responses import Response  # noqa: PLC0415 - same
    from starlette.routing import Route  # noqa: PLC0415 - same

    async def echo(request: Request) -> Response:
        document = msgspec.json.decode(await request.body())
        return Response(orjson.dumps(document), 201, media_type="application/json")

    kept = sqlite3.connect(f"{socket}.sqlite", check_same_thread=False, isolation_level=None)
    for statement in ("pragma journal_mode = wal", "pragma synchronous = full", "create table kept (document)"):
        kept.execute(statement)
    turn = anyio.Lock()

    async def keep(request: Request) -> Response:
        """What it costs not to lose it: a row, committed with a sync before the answer."""
        document = msgspec.json.decode(await request.body())
        async with turn:
            await anyio.to_thread.run_sync(kept.execute, "insert into kept values (?)", (orjson.dumps(document),))
        return Response(orjson.dumps(document), 201, media_type="application/json")

    async def show(request: Request) -> Response:
        one = {
            "role": "user",
            "content": "how is the weather in the mountains today? " * 5,
            "id": 36 * "x",
            "sequence": 1,
        }
        document = {"session_id": request.path_params["session_id"], "messages": [one] * 10}
        return Response(orjson.dumps(document), media_type="application/json")

    path = "/v1/sessions/{session_id}/messages"
    routes = [
        Route(path, echo, methods=["POST"]),
        Route(path, show, methods=["GET"]),
        Route("/kept", keep, methods=["POST"]),
    ]
    app = Starlette(routes=routes)
    uvicorn.run(app, uds=socket, http="httptools", loop="asyncio", access_log=False, log_level="critical")
