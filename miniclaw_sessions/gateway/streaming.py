"""Turns that outlive the request that began them, and replies that are sent piece by piece.

A turn runs in a task of its own and hands its events over through a bounded buffer. A client that goes away, or does
not keep up, loses the events and nothing else: the turn goes on for a while and is saved (document 004, section 10.3).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

import anyio
import orjson
import structlog
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectReceiveStream
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from miniclaw_sessions.agent.loop import Agent, AgentEvent, TurnFinished, TurnSuspended
from miniclaw_sessions.gateway.replies import RETRY_AFTER_S, RequestError
from miniclaw_sessions.protocol.messages import Message
from miniclaw_sessions.session import Session

log = structlog.get_logger(__name__)

PIECE_BYTES = 65_536
"""About how much of a long reply is sent at a time."""

_BUFFERED_EVENTS = 4096


class RunningTurn:
    """One turn that is under way; iterate over it for its events, the last of which is TurnFinished or an error.

    The finishing event comes after the turn has been saved.
    """

    def __init__(self) -> None:
        self._sender, self._receiver = anyio.create_memory_object_stream[AgentEvent | Exception](_BUFFERED_EVENTS)
        self.scope = anyio.CancelScope()

    def __aiter__(self) -> MemoryObjectReceiveStream[AgentEvent | Exception]:
        return self._receiver

    async def next_within(self, seconds: float) -> AgentEvent | Exception | None:
        """The next event, or None when there was none within this time."""
        with anyio.move_on_after(seconds):
            return await self._receiver.receive()
        return None

    def abandon(self, patience_s: float) -> None:
        """Nobody listens any more: the turn may go on for this long. May be called after its end."""
        self._receiver.close()
        self.hurry(patience_s)

    def hurry(self, patience_s: float) -> None:
        """The turn may go on for this long."""
        self.scope.deadline = min(self.scope.deadline, anyio.current_time() + patience_s)

    def tell(self, event: AgentEvent | Exception) -> bool:
        """Hand an event over; False when nobody takes it."""
        try:
            self._sender.send_nowait(event)
        except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return False
        return True

    def end(self) -> None:
        """There are no more events."""
        self._sender.close()


class Turns:
    """Runs the agent's turns, each in its own task; an async context manager that waits for them at the end.

    Args:
        agent: who answers.
        limit: how many turns may be under way at once.
        patience_s: how long a turn may go on after its client has gone.
    """

    def __init__(self, agent: Agent, *, limit: int, patience_s: float) -> None:
        self._agent = agent
        self._limit = limit
        self._patience_s = patience_s
        self._running: set[RunningTurn] = set()
        self._tasks: TaskGroup | None = None
        self._closing = False
        self._idle = anyio.Event()

    def __repr__(self) -> str:
        return f"<Turns {len(self._running)} running>"

    @property
    def running(self) -> int:
        """How many turns are under way."""
        return len(self._running)

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            await tasks.__aexit__(kind, error, trace)

    def start(self, session: Session, message: Message, *, idempotency_key: str | None = None) -> RunningTurn:
        """Begin a turn.

        Raises:
            RequestError: the daemon is stopping, or too many turns are under way.
        """
        if self._closing or self._tasks is None:
            raise RequestError(503, "manager_closed", "the daemon is stopping")
        if len(self._running) >= self._limit:
            retry = {"Retry-After": str(RETRY_AFTER_S)}
            raise RequestError(503, "too_many_turns", "too many turns are under way; try again later", headers=retry)
        turn = RunningTurn()
        self._running.add(turn)
        self._tasks.start_soon(self._run, turn, session, message, idempotency_key, name=f"turn {session.session_id}")
        return turn

    def cut_off(self, at: float) -> None:
        """Begin no more turns, and cancel those that are still under way at this time of the event loop."""
        self._closing = True
        for turn in self._running:
            turn.scope.deadline = min(turn.scope.deadline, at)

    async def finished(self) -> None:
        """Wait until no turn is under way."""
        while self._running:
            self._idle = anyio.Event()
            await self._idle.wait()

    def abandon(self, turn: RunningTurn) -> None:
        """A turn's client has gone, or has seen its end; to be called in either case."""
        turn.abandon(self._patience_s)

    async def _run(self, turn: RunningTurn, session: Session, message: Message, idempotency_key: str | None) -> None:
        last: AgentEvent | Exception = RequestError(503, "turn_cut_off", "the turn was cut off; its steps are saved")
        try:
            with turn.scope:
                last = await self._answer(turn, session, message, idempotency_key)
            if turn.scope.cancelled_caught:
                log.warning("a turn was cut off", action="turn.cut_off", session_id=session.session_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the request that began the turn
            last = error
        finally:
            self._running.discard(turn)
            self._idle.set()
            is_told = turn.tell(last) or turn.scope.cancelled_caught
            if not is_told and isinstance(last, Exception):
                log.warning(
                    "a turn failed after its client had gone",
                    action="turn.failed",
                    session_id=session.session_id,
                    error_type=type(last).__name__,
                )
            turn.end()

    async def _answer(
        self, turn: RunningTurn, session: Session, message: Message, idempotency_key: str | None
    ) -> AgentEvent | Exception:
        """Run the agent, pass its events on, and return the last one once the turn has been saved."""
        finished: AgentEvent | Exception = RuntimeError("the agent ended its turn without a reply")
        listening = True
        async with self._agent.run(message, session=session, idempotency_key=idempotency_key) as events:
            async for event in events:
                if isinstance(event, TurnFinished | TurnSuspended):
                    finished = event
                elif not turn.tell(event) and listening:
                    listening = False
                    turn.end()  # a client that is this slow sees its stream end early
                    turn.hurry(self._patience_s)
        return finished


class ByteStream(Response):
    """A response whose body is produced while it is sent.

    A client that goes away ends the production; one that takes nothing for `stall_s` seconds is disconnected. In
    every case `at_end` is called.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        media_type: str,
        *,
        stall_s: float,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(None, 200, {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}, media_type)
        del self.headers["content-length"]
        self._chunks = chunks
        self._stall_s = stall_s
        self._at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, unless the client goes away."""
        try:
            async with aclosing(self._chunks), anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_when_gone, receive, tasks.cancel_scope, name="client watch")
                await self._send_all_or_break_off(scope, send)
                tasks.cancel_scope.cancel()
        finally:
            self._at_end()

    async def _send_all_or_break_off(self, scope: Scope, send: Send) -> None:
        """Too late for an error reply: the client sees a broken end."""
        try:
            await self._send_all(send)
        except TimeoutError:
            log.info("a client did not take its reply and was disconnected", action="http.stalled")
            scope["state"]["abort"]()
        except Exception as error:  # noqa: BLE001 - an edge: nobody above could still answer
            log.error("a reply broke off", action="http.broke_off", error_type=type(error).__name__)
            scope["state"]["abort"]()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._chunks:
            await self._send_piece(send, chunk, more=True)
        await self._send_piece(send, b"", more=False)

    async def _send_piece(self, send: Send, chunk: bytes, *, more: bool) -> None:
        with anyio.fail_after(self._stall_s):
            await send({"type": "http.response.body", "body": chunk, "more_body": more})
            await checkpoint()  # a client that takes everything at once must not keep the others waiting


async def cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    """Wait for the client to go away, and cancel what is done for it."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def with_first(first: bytes, rest: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """A first chunk that had to be seen before the reply could begin, and then the others."""
    yield first
    async for chunk in rest:
        yield chunk


async def document_in_pieces(
    fields: dict[str, Any], name: str, items: Iterable[bytes], *, brackets: bytes = b"[]"
) -> AsyncGenerator[bytes, None]:
    """A JSON document with one long field, made while it is sent: all at once would not fit, or keep others waiting.

    Args:
        fields: the other fields; at least one.
        name: the long field's.
        items: its items as JSON; in an object, with their keys.
        brackets: `[]` or `{}`.
    """
    piece = bytearray(orjson.dumps(fields)[:-1] + b',"%s":' % name.encode() + brackets[:1])
    for place, item in enumerate(items):
        piece += b"," + item if place else item
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece + brackets[1:] + b"}")


def server_sent_event(name: str, data: Any) -> bytes:
    """One event of a text/event-stream; `data` becomes one line of JSON."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(data))
