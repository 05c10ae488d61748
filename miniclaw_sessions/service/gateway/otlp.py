"""Spans for a collector, by OpenTelemetry's own SDK: OTLP over HTTP. Needs the extra `otel`.

Spans wait in memory, at most 2,048 of them, and are sent by a thread of the SDK; when the collector is slow or gone,
they are dropped and the daemon goes on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from time import time_ns
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import miniclaw_sessions
from miniclaw_sessions.config import TelemetrySettings, show_value
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.secret import read_secret
from miniclaw_sessions.service.gateway.telemetry import Attributes, Headers, Kind, Span, Spans

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

CLOSE_S = 5.0
"""Seconds for what is left at the end, from a collector that does not answer."""

SEND_S = 5.0
"""Seconds for one request to the collector."""

_PATH = "/v1/traces"
_KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
_CALLER = TraceContextTextMapPropagator()
_OF_TRACE = (b"traceparent", b"tracestate")


def collected(settings: TelemetrySettings) -> Spans:
    """Spans that go to the collector of the settings.

    Raises:
        ConfigError: the address is none, or the headers cannot be read.
    """
    endpoint = settings.otlp_endpoint.rstrip("/")
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(
            f"telemetry.otlp_endpoint is {show_value(endpoint)}; write http://host:port, such as a collector's 4318"
        )
    headers: dict[str, str] = {}
    secret = read_secret(settings.otlp_headers_file, "otlp_headers", os.environ, lines=True)
    if secret is not None:
        lines = [line.partition(":") for line in secret.reveal().splitlines() if line.strip()]
        if not all(name.strip() and colon for name, colon, _ in lines):
            raise ConfigError("telemetry.otlp_headers_file: write one `name: value` a line")
        headers = {name.strip(): value.strip() for name, _, value in lines}
    return OpenTelemetrySpans(
        OTLPSpanExporter(endpoint if endpoint.endswith(_PATH) else endpoint + _PATH, headers=headers, timeout=SEND_S),
        settings,
    )


class OpenTelemetrySpans(Spans):
    """Spans that the SDK keeps and sends.

    Args:
        exporter: where they go.
        settings: what they say that they are from, and how many are kept.
    """

    def __init__(self, exporter: SpanExporter, settings: TelemetrySettings) -> None:
        resource = Resource.create(
            {"service.name": settings.service_name, "service.version": miniclaw_sessions.__version__}
        )
        sampler = ParentBased(TraceIdRatioBased(settings.sample_ratio))
        self._provider = TracerProvider(resource=resource, sampler=sampler, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("miniclaw_sessions", miniclaw_sessions.__version__)

    def start(
        self, name: str, attributes: Attributes, *, kind: Kind = "internal", caller: Headers | None = None
    ) -> Span:
        """Begin a span; see `Spans.start`."""
        parent = None
        if caller is not None:
            named = {name.decode(): value.decode("latin-1") for name, value in caller if name in _OF_TRACE}
            parent = _CALLER.extract(named)
        return _OpenSpan(self._tracer.start_span(name, parent, _KINDS[kind], attributes))

    def record(self, name: str, attributes: Attributes, seconds: float) -> None:
        """Note a span of its own that ends now."""
        ended = time_ns()
        span = self._tracer.start_span(
            name, contexts.Context(), attributes=attributes, start_time=ended - int(seconds * 1e9)
        )
        span.end(ended)

    def here(self) -> AbstractContextManager[None]:
        """A block in which spans are under the one that is open now."""
        return _within(contexts.get_current())

    def headers(self) -> Mapping[str, str]:
        """The header `traceparent` of the span that is open; nothing where none is."""
        headers: dict[str, str] = {}
        _CALLER.inject(headers)
        return headers

    def flush(self) -> None:
        """Send what has ended; blocks."""
        self._provider.force_flush()

    async def close(self) -> None:
        """Send what is left, within a few seconds."""
        with anyio.move_on_after(CLOSE_S, shield=True):
            await to_thread.run_sync(self._provider.shutdown, abandon_on_cancel=True)


class _OpenSpan(Span):
    """A span that is open, in the task in which it began."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._task = anyio.get_current_task().id
        self._before = contexts.attach(trace.set_span_in_context(span))

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def failed(self, error_type: str) -> None:
        self._span.set_attribute("error.type", error_type)
        self._span.set_status(Status(StatusCode.ERROR))

    def end(self) -> None:
        if anyio.get_current_task().id == self._task:  # else that task has ended, or will, and its context with it
            contexts.detach(self._before)
        self._span.end()


@contextmanager
def _within(context: contexts.Context) -> Iterator[None]:
    before = contexts.attach(context)
    try:
        yield
    finally:
        contexts.detach(before)
