"""A gateway, its dispatcher and its agent, observed as the daemon has them; and a collector of traces on loopback."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import httpx2
from anyio.lowlevel import checkpoint
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from miniclaw_sessions import SessionManager
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.provider import Provider
from miniclaw_sessions.agent.summarizing import summarizer_of
from miniclaw_sessions.agent.tools import time_tool
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.config import Settings
from miniclaw_sessions.service.gateway.http import make_app
from miniclaw_sessions.service.gateway.listeners import listen_tcp, listen_unix
from miniclaw_sessions.service.gateway.security import AccessPolicy
from miniclaw_sessions.service.gateway.server import Server
from miniclaw_sessions.service.gateway.telemetry import Spans, Telemetry
from miniclaw_sessions.service.gateway.token_table import TokenTable
from miniclaw_sessions.testing.clock import FakeClock
from tests.service.gateway.conftest import TOKEN

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Observed:
    """What is observed, and how it is reached: `tcp` sends the token."""

    manager: SessionManager
    dispatcher: Dispatcher
    client: httpx2.AsyncClient
    tcp: httpx2.AsyncClient

    async def say(self, text: str, chat_id: str = "1", *, channel: str = "cli", **headers: str) -> httpx2.Response:
        """Say something and wait for the answer."""
        said = {"channel": channel, "chat_id": chat_id, "message": text}
        return await self.client.post("/v1/chat", json=said, headers=headers)

    async def numbers(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """All samples of `/metrics`, by name and labels."""
        text = (await self.client.get("/metrics")).text
        families = text_string_to_metric_families(text)
        return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}

    async def number(self, name: str, **labels: str) -> float | None:
        """One sample of `/metrics`; None where there is none."""
        return (await self.numbers()).get((f"miniclaw_{name}", frozenset(labels.items())))

    async def becomes(self, value: float, name: str, **labels: str) -> None:
        """Wait until a sample of `/metrics` has this value."""
        with anyio.fail_after(60):
            while await self.number(name, **labels) != value:
                await checkpoint()


@asynccontextmanager
async def observed(
    directory: Path, provider: Provider, *, settings: Settings | None = None, spans: Spans | None = None
) -> AsyncIterator[Observed]:
    """The parts of a daemon that tell its telemetry of what they do, put together as there."""
    settings = settings or Settings()
    listeners = [listen_unix(directory / "s"), *listen_tcp("127.0.0.1:0")]
    port = listeners[1].port
    manager = SessionManager(directory / "workspace", store="memory:")
    telemetry = Telemetry(manager.statistics, settings, spans)
    telemetry.listen(manager.events)
    agent = Agent(telemetry.model(provider), tools=[time_tool(FakeClock())], observer=telemetry)
    transport = httpx2.AsyncHTTPTransport(uds=str(directory / "s"), verify=False)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        telemetry,
        manager,
        httpx2.AsyncClient(transport=transport, base_url="http://miniclaw", timeout=30) as client,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30, verify=False) as tcp,
        Dispatcher(manager, Assistant(agent), limits=settings.channels, watch=telemetry) as dispatcher,
        anyio.create_task_group() as tasks,
    ):
        tokens = TokenTable(TOKEN, [directory / "tokens.json"], SystemClock())
        policy = AccessPolicy.of(tokens, [f"127.0.0.1:{port}"], [])
        app = make_app(manager, dispatcher, settings, policy, summarizer_of(agent.provider), telemetry)
        server = Server(app, max_connections=100, request_timeout_s=5.0, graceful_timeout_s=1.0)
        tasks.start_soon(server.serve_until_stopped, [listener.socket for listener in listeners])
        await server.listening.wait()
        yield Observed(manager, dispatcher, client, tcp)
        await client.aclose()
        dispatcher.cut_off(anyio.current_time())
        server.hurry()


class Kept(InMemorySpanExporter):
    """The spans that were ended, by their names."""

    def named(self, name: str) -> list[ReadableSpan]:
        """Those of this name, in the order in which they ended."""
        return [span for span in self.get_finished_spans() if span.name == name]


class Collector:
    """What was sent to a collector: requests, and their headers.

    Attributes:
        url: where it listens.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[Mapping[str, str]] = []

    @property
    def spans(self) -> list[Any]:
        """The spans of all requests."""
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector of traces that listens on loopback, and takes what it is sent."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            collector.headers.append(dict(self.headers))
            collector.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing is written."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
