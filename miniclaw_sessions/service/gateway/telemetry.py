"""What happens in the daemon, as numbers and as spans: the one place where it becomes both.

The gateway reports requests to it, the dispatcher messages (`channels.base.Watch`), the agent turns and requests to the
model (`agent.hooks.Observer`); it listens to commits and flushes (`events.listeners.Topics`).
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from types import TracebackType
from typing import Literal, Self

import anyio
from prometheus_client import Counter, Histogram

from miniclaw_sessions import errors
from miniclaw_sessions.agent.events import (
    AgentEvent,
    ReplyFinished,
    SessionCompacted,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStopped,
    TurnSuspended,
)
from miniclaw_sessions.agent.provider import AroundProvider, ModelEvent, Provider, Reply, TextDelta
from miniclaw_sessions.agent.providers.trace_headers import trace_headers
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.channels.base import Answered, Last, NotAnswered, Watch
from miniclaw_sessions.clock import Clock, SystemClock
from miniclaw_sessions.config import Settings
from miniclaw_sessions.core.events.listeners import Commit, Flush, Topics
from miniclaw_sessions.core.protocol.messages import Message, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.service.api.table import OPERATIONS
from miniclaw_sessions.service.gateway.exchange import Exchange
from miniclaw_sessions.service.gateway.metrics import Metrics
from miniclaw_sessions.statistics import ManagerStatistics

Attributes = Mapping[str, str | bool | int | float | Sequence[str]]
"""A span's attributes, by the names of OpenTelemetry's conventions; never content."""

Headers = Sequence[tuple[bytes, bytes]]
"""A request's, as ASGI has them."""

Kind = Literal["server", "client", "internal"]

OTHER = "other"
"""The label of a name that the settings do not list."""

_OPERATIONS = {one.name: one for one in OPERATIONS}
_NOT_ALLOWED = frozenset({401, 403, 429})
_SERVER_FAULT = 500
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_NAME = re.compile(r"[\w.:/@+-]{1,128}", re.ASCII)
_OUTCOMES: Sequence[tuple[type[BaseException], str]] = (
    (errors.DuplicateMessage, "duplicate"),
    (errors.ModelError, "model_failed"),
    (errors.IterationLimit, "model_failed"),
    (errors.StoreError, "store_failed"),
    (Exception, "failed"),
    (BaseException, "cut_off"),
)


class Span:
    """A span that is not kept."""

    def rename(self, name: str) -> None:
        """It turned out what it is."""

    def set(self, attributes: Attributes) -> None:
        """Say something of it."""

    def failed(self, error_type: str) -> None:
        """It went wrong, in a way that has this name."""

    def end(self) -> None:
        """It is over."""


_NOTHING = Span()


class Spans:
    """Makes spans that cost nothing."""

    def start(
        self,
        name: str,  # noqa: ARG002 - for those who override it
        attributes: Attributes,  # noqa: ARG002 - same
        *,
        kind: Kind = "internal",  # noqa: ARG002 - same
        caller: Headers | None = None,  # noqa: ARG002 - same
    ) -> Span:
        """Begin a span under the one that is open in this task; what is begun in this task until its end is under it.

        Args:
            name: what it is, with few different values.
            attributes: its attributes.
            kind: whether it answers a request, sends one, or neither.
            caller: the headers of a request, which may name a span of the caller's: then it is under that.
        """
        return _NOTHING

    def record(self, name: str, attributes: Attributes, seconds: float) -> None:
        """Note a span of its own that ends now."""

    def here(self) -> AbstractContextManager[None]:
        """A block, for any task, in which spans are under the one that is open now in this one."""
        return nullcontext()

    def headers(self) -> Mapping[str, str]:
        """What is sent to those who are asked on behalf of the span that is open, so that they can join it."""
        return {}

    async def close(self) -> None:
        """Send what is left."""


class Telemetry(Watch):
    """The numbers and the spans of one daemon; at the end of its block, the spans that are left are sent.

    Args:
        statistics: the manager's numbers.
        settings: which names are known, and have numbers of their own.
        spans: where spans go; by default they are dropped.
        clock: measures; the machine's by default.

    Attributes:
        metrics: the numbers.
        spans: where spans go.
        channels: the channels that have numbers of their own.
        propagates: whether models' services get the header that names the span.
    """

    def __init__(
        self,
        statistics: Callable[[], ManagerStatistics],
        settings: Settings,
        spans: Spans | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.now = (clock or SystemClock()).monotonic  # the loop's own, under uvloop, counts whole milliseconds
        self.metrics = Metrics(statistics)
        self.spans = spans or Spans()
        self.channels = set(settings.telemetry.channels)
        self._tools = set(settings.model.tools)
        self._series: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self.propagates = settings.telemetry.propagate_traces

    def __repr__(self) -> str:
        return f"<Telemetry of {len(self.channels)} channels>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.spans.close()

    def knows(self, channels: Iterable[str], tools: Iterable[str]) -> None:
        """There are these channels too, and these are the tools."""
        self.channels.update(channels)
        self._tools.update(tools)

    def channel(self, name: str) -> str:
        """The label of a channel."""
        return name if name in self.channels else OTHER

    def tool(self, name: str) -> str:
        """The label of a tool."""
        return name if name in self._tools else OTHER

    # --- requests ----------------------------------------------------------------------------------------------------

    def asked(self, exchange: Exchange) -> Span:
        """A request has come: the span of its answer, to be given to `answered`."""
        method = exchange.method if exchange.method in _METHODS else "_OTHER"
        return self.spans.start(method, {"http.request.method": method}, kind="server", caller=exchange.headers)

    def answered(self, exchange: Exchange, seconds: float, span: Span) -> None:
        """It is answered, or given up."""
        route, status = exchange.operation, exchange.status
        if (series := self._series.get((route, status))) is None:  # looking labels up takes longer than counting
            requests, durations = self.metrics.requests, self.metrics.request_seconds
            series = self._series[route, status] = requests.labels(route, str(status)), durations.labels(route)
        series[0].inc()
        series[1].observe(seconds)
        if status in _NOT_ALLOWED:
            self.metrics.refused.labels(exchange.scope, str(status)).inc()
        if span is not _NOTHING:
            _describe(span, exchange)
            span.end()

    # --- messages ----------------------------------------------------------------------------------------------------

    def taken(self, channel: str) -> AbstractContextManager[None]:
        """A message was handed over; its turn will be under the span that is open here."""
        self.metrics.received.labels(self.channel(channel)).inc()
        return self.spans.here()

    def ended(self, channel: str, last: Last) -> None:
        """What became of it."""
        match last:
            case Answered(event=event):
                outcome = _end_of(event)
            case NotAnswered(reason=reason):
                outcome = reason.value
            case _:
                outcome = "command"
        self.metrics.ended.labels(self.channel(channel), outcome).inc()

    # --- turns -------------------------------------------------------------------------------------------------------

    @contextmanager
    def turn(self, session: Session) -> Iterator[Callable[[AgentEvent], None]]:
        """A turn runs in this block."""
        watched = _Turn(self, session)
        self.metrics.turns_running.inc()
        try:
            yield watched.on_event
        except BaseException as error:
            watched.outcome = next(outcome for kind, outcome in _OUTCOMES if isinstance(error, kind))
            watched.span.failed(type(error).__name__)
            raise
        finally:
            self.metrics.turns_running.dec()
            watched.end()

    # --- models ------------------------------------------------------------------------------------------------------

    def model(self, provider: Provider) -> Provider:
        """The same model, of which each request is counted and measured."""
        return _ObservedProvider(provider, self)

    # --- saving ------------------------------------------------------------------------------------------------------

    def listen(self, topics: Topics) -> None:
        """Count and measure commits and flushes from now on."""
        topics.commits.subscribe(self._committed)
        topics.flushes.subscribe(self._flushed)

    def _committed(self, commit: Commit) -> None:
        self.metrics.commit_seconds.observe(commit.seconds)
        self.metrics.commit_entries.observe(commit.entries)
        self.spans.record("commit", {"miniclaw.entries": commit.entries}, commit.seconds)

    def _flushed(self, flush: Flush) -> None:
        self.metrics.flush_seconds.observe(flush.seconds)


def _describe(span: Span, exchange: Exchange) -> None:
    """Say in a request's span what it was and how it was answered."""
    span.set({"http.response.status_code": exchange.status})
    if (operation := _OPERATIONS.get(exchange.operation)) is not None:
        span.rename(f"{exchange.method} {operation.path}")
        span.set({"http.route": operation.path})
    if exchange.status >= _SERVER_FAULT:
        span.failed(str(exchange.status))


class _Turn:
    """A turn that is observed: its events become numbers and spans."""

    def __init__(self, telemetry: Telemetry, session: Session) -> None:
        self.outcome = "failed"
        self._telemetry = telemetry
        self._metrics = telemetry.metrics
        self._channel = telemetry.channel(session.key.channel)
        self._began = telemetry.now()
        self._has_text = False
        self._usage = Usage()
        self._tools: dict[str, tuple[float, Span]] = {}
        self.span = telemetry.spans.start(
            "invoke_agent",
            {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.conversation.id": session.session_id,
                "miniclaw.channel": self._channel,
            },
        )

    def on_event(self, event: AgentEvent) -> None:
        """Count and measure an event."""
        match event:
            case TextDelta():
                if not self._has_text:
                    self._has_text = True
                    since = self._telemetry.now() - self._began
                    self._metrics.first_token_seconds.labels(self._channel).observe(since)
            case ReplyFinished(message=message):
                self._usage += message.usage or Usage()
            case ToolStarted(call=call):
                name = _named(call.name)
                about = {
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": name,
                    "gen_ai.tool.type": "function",
                    "gen_ai.tool.call.id": _named(call.id),
                }
                began = self._telemetry.now()
                self._tools[call.id] = began, self._telemetry.spans.start(f"execute_tool {name}", about)
            case ToolFinished(call=call, result=result):
                began, span = self._tools.pop(call.id)
                label = self._telemetry.tool(call.name)
                self._metrics.tool_calls.labels(label, "failed" if result.is_error else "done").inc()
                self._metrics.tool_seconds.labels(label).observe(self._telemetry.now() - began)
                if result.is_error:
                    span.failed("tool_error")
                span.end()
            case SessionCompacted(outcome=outcome):
                self._metrics.compactions.labels(outcome.status.value).inc()
            case TurnFinished() | TurnStopped() | TurnSuspended():
                self.outcome = _end_of(event)
            case _:
                pass

    def end(self) -> None:
        """The turn is over, by success or failure."""
        for _, span in self._tools.values():
            span.end()
        self._metrics.turns.labels(self._channel, self.outcome).inc()
        self._metrics.turn_seconds.labels(self._channel).observe(self._telemetry.now() - self._began)
        self.span.set({"miniclaw.outcome": self.outcome, **_tokens_of(self._usage)})
        self.span.end()


class _ObservedProvider(AroundProvider):
    """A model of which each request is observed."""

    def __init__(self, provider: Provider, telemetry: Telemetry) -> None:
        super().__init__(provider)
        self._telemetry = telemetry

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        watched, spans = _Request(self._telemetry, self.provider), self._telemetry.spans
        try:
            with _sending_along(spans.headers()) if self._telemetry.propagates else nullcontext():
                async with aclosing(self.provider.generate(messages, tools)) as answer:
                    async for event in answer:
                        watched.on_event(event)
                        yield event
        except GeneratorExit:  # the reader has stopped
            raise
        except BaseException as error:
            kind = "overflow" if isinstance(error, errors.ContextOverflow) else "failed"
            watched.outcome = kind if isinstance(error, Exception) else "cut_off"
            watched.span.failed(type(error).__name__)
            raise
        finally:
            watched.end()


class _Request:
    """One request to a model."""

    def __init__(self, telemetry: Telemetry, provider: Provider) -> None:
        self.outcome = "cut_off"
        self._telemetry = telemetry
        self._metrics = telemetry.metrics
        self._labels = provider.name, provider.model
        self._began = telemetry.now()
        self._has_text = False
        about = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider.name,
            "gen_ai.system": provider.name,
            "gen_ai.request.model": provider.model,
        }
        self.span = telemetry.spans.start(f"chat {provider.model}", about, kind="client")

    def on_event(self, event: ModelEvent) -> None:
        """Count and measure a piece of the reply."""
        if not isinstance(event, Reply):
            if not self._has_text:
                self._has_text = True
                since = self._telemetry.now() - self._began
                self._metrics.model_first_token_seconds.labels(*self._labels).observe(since)
                self.span.set({"gen_ai.response.time_to_first_chunk": since})
            return
        reply = event.message
        self.outcome = "done"
        usage = reply.usage or Usage()
        counted = {
            "input": usage.input_tokens,
            "output": usage.output_tokens,
            "cache_read": usage.cache_read_tokens,
            "cache_write": usage.cache_write_tokens,
        }
        for kind, tokens in counted.items():
            self._metrics.model_tokens.labels(*self._labels, kind).inc(max(0, tokens))
        if usage.cost is not None:
            self._metrics.model_cost.labels(*self._labels).inc(max(0.0, usage.cost))
        self.span.set(_tokens_of(usage))
        if reply.model is not None:
            self.span.set({"gen_ai.response.model": _named(reply.model)})
        if reply.stop_reason is not None:
            self.span.set({"gen_ai.response.finish_reasons": [_named(reply.stop_reason)]})

    def end(self) -> None:
        """It is over, by success or failure."""
        self._metrics.model_requests.labels(*self._labels, self.outcome).inc()
        self._metrics.model_seconds.labels(*self._labels).observe(self._telemetry.now() - self._began)
        self.span.end()


def _named(text: str) -> str:
    """What a model or its service names, if it looks like a name: what else it says belongs to the conversation."""
    return text if _NAME.fullmatch(text) else OTHER


def _end_of(event: TurnFinished | TurnStopped | TurnSuspended) -> str:
    match event:
        case TurnFinished():
            return "answered"
        case TurnStopped():
            return "stopped"
        case TurnSuspended():
            return "suspended"


def _tokens_of(usage: Usage) -> Mapping[str, int]:
    """Usage by the conventions' names, where what was read from a cache is a part of the input."""
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
    }


@contextmanager
def _sending_along(headers: Mapping[str, str]) -> Iterator[None]:
    before = trace_headers.set(headers)
    try:
        yield
    finally:
        trace_headers.reset(before)


class LoopDelay:
    """How late the event loop comes to what is due: what every answer waits for on top of its own work."""

    EVERY_S = 0.25
    BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

    def __init__(self, metrics: Metrics) -> None:
        self.histogram = Histogram(
            "miniclaw_event_loop_delay_seconds",
            "How late the event loop woke a task that had slept.",
            buckets=self.BUCKETS_S,
            registry=metrics.registry,
        )
        self._worst = 0.0

    def take_worst(self) -> float:
        """The longest since this was asked before, in seconds."""
        worst, self._worst = self._worst, 0.0
        return worst

    async def watch(self) -> None:
        """Measure until cancelled."""
        while True:
            due = anyio.current_time() + self.EVERY_S
            await anyio.sleep_until(due)
            late = max(0.0, anyio.current_time() - due)
            self.histogram.observe(late)
            self._worst = max(self._worst, late)
