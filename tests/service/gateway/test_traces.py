"""Traces: what becomes a span, under which one, and that nothing that was said is in any of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from miniclaw_sessions.agent.providers.trace_headers import trace_headers
from miniclaw_sessions.config import Settings, TelemetrySettings
from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.service.gateway.daemon import open_spans
from miniclaw_sessions.service.gateway.otlp import OpenTelemetrySpans
from miniclaw_sessions.service.gateway.telemetry import Spans
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.agent.providers.strict_server import Answer, StrictServer, in_turn
from tests.service.gateway.conftest import EchoProvider
from tests.service.gateway.daemons import Here
from tests.service.gateway.observed import Kept, collecting, observed

pytestmark = pytest.mark.anyio

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"
CHAT = "POST /v1/chat"


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
async def spans(kept: Kept) -> AsyncIterator[OpenTelemetrySpans]:
    made = OpenTelemetrySpans(kept, TelemetrySettings())
    yield made
    await made.close()


async def ended(spans: OpenTelemetrySpans) -> None:
    """Wait until everything that has ended is exported."""
    await anyio.to_thread.run_sync(spans.flush)


def is_under(child: ReadableSpan, parent: ReadableSpan) -> bool:
    """Whether one span is the other's child."""
    assert child.context is not None
    assert parent.context is not None
    return (
        child.parent is not None
        and child.parent.span_id == parent.context.span_id
        and child.context.trace_id == parent.context.trace_id
    )


async def test_a_chat_is_one_trace_from_the_caller_to_the_model(
    short_path: Path, kept: Kept, spans: OpenTelemetrySpans
) -> None:
    async with observed(short_path, EchoProvider(), spans=spans) as it:
        await it.say("hello", traceparent=TRACEPARENT)
        await ended(spans)
        (request,), (turn,), (model,) = kept.named(CHAT), kept.named("invoke_agent"), kept.named("chat echo")
    assert request.kind is SpanKind.SERVER
    assert request.parent is not None
    assert request.context is not None
    assert (f"{request.context.trace_id:032x}", f"{request.parent.span_id:016x}") == (TRACE, CALLER)
    assert is_under(turn, request)
    assert is_under(model, turn)
    assert model.kind is SpanKind.CLIENT
    assert dict(request.attributes or {}) == {
        "http.request.method": "POST",
        "http.route": "/v1/chat",
        "http.response.status_code": 200,
    }
    assert dict(model.attributes or {}) | {"gen_ai.response.time_to_first_chunk": 0} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "test",
        "gen_ai.system": "test",
        "gen_ai.request.model": "echo",
        "gen_ai.response.time_to_first_chunk": 0,
        "gen_ai.usage.input_tokens": 2,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.cache_creation.input_tokens": 0,
    }
    assert (turn.attributes or {})["gen_ai.conversation.id"] == "cli_1"
    assert (turn.attributes or {})["miniclaw.outcome"] == "answered"


async def test_a_tool_call_is_under_its_turn(short_path: Path, kept: Kept, spans: OpenTelemetrySpans) -> None:
    async with observed(short_path, EchoProvider(), spans=spans) as it:
        await it.say("tool please")
        await ended(spans)
    (turn,), (tool,) = kept.named("invoke_agent"), kept.named("execute_tool time")
    assert is_under(tool, turn)
    assert dict(tool.attributes or {}) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "time",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c1",
    }
    assert [is_under(model, turn) for model in kept.named("chat echo")] == [True, True]


async def test_messages_that_wait_in_one_chat_are_each_under_their_own_request(
    short_path: Path, kept: Kept, spans: OpenTelemetrySpans
) -> None:
    provider = EchoProvider()
    async with observed(short_path, provider, spans=spans) as it:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.say, "slow")
            await provider.began.wait()
            tasks.start_soon(it.say, "second")
            await it.becomes(2, "messages_received_total", channel="cli")
            provider.gate.set()
        await ended(spans)
    requests, turns = kept.named(CHAT), kept.named("invoke_agent")
    assert [[is_under(turn, request) for request in requests].count(True) for turn in turns] == [1, 1]
    assert {turn.context.trace_id for turn in turns if turn.context} == {
        one.context.trace_id for one in requests if one.context
    }
    assert len({turn.context.trace_id for turn in turns if turn.context}) == 2


async def test_what_fails_says_so(short_path: Path, kept: Kept, spans: OpenTelemetrySpans) -> None:
    async with observed(short_path, EchoProvider(), spans=spans) as it:
        await it.say("fail")
        await ended(spans)
    for name, error_type in (("chat echo", "RuntimeError"), ("invoke_agent", "ModelError"), (CHAT, "502")):
        (span,) = kept.named(name)
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == error_type


async def test_nothing_that_was_said_is_in_any_span(short_path: Path, kept: Kept, spans: OpenTelemetrySpans) -> None:
    async with observed(short_path, EchoProvider(), spans=spans) as it:
        for text in ("xyzzy hello", "tool xyzzy", "fail xyzzy"):
            await it.say(text, chat_id=text[:4])
        await it.client.get("/v1/search", params={"q": "xyzzy"})
        await ended(spans)
    assert len(kept.get_finished_spans()) > 10
    assert not [span.to_json() for span in kept.get_finished_spans() if "xyzzy" in span.to_json()]
    assert not [span.to_json() for span in kept.get_finished_spans() if "sk-secret" in span.to_json()]


async def test_what_a_model_says_in_place_of_a_name_is_in_no_span(
    short_path: Path, kept: Kept, spans: OpenTelemetrySpans
) -> None:
    calls = (ToolCall("xyzzy id", "xyzzy tool", "{}"), ToolCall("c" * 5000, "xyzzy" * 100, "{}"))
    script = [Message.assistant("", calls), Message(Role.ASSISTANT, "done", model="xyzzy m", stop_reason="xyzzy s")]
    async with observed(short_path, ScriptedProvider(script), spans=spans) as it:
        await it.say("hello")
        await it.client.request("XYZZY", "/v1/sessions")
        await ended(spans)
    assert len(kept.named("execute_tool other")) == 2
    assert not [span.name for span in kept.get_finished_spans() if "xyzzy" in span.to_json().lower()]


async def test_a_commit_is_a_span_of_its_own(short_path: Path, kept: Kept, spans: OpenTelemetrySpans) -> None:
    async with observed(short_path, EchoProvider(), spans=spans) as it:
        await it.say("hello", traceparent=TRACEPARENT)
        await ended(spans)
    commits = kept.named("commit")
    assert sum((span.attributes or {})["miniclaw.entries"] for span in commits) == 2  # type: ignore[misc]
    assert all(span.parent is None and (span.end_time or 0) >= (span.start_time or 0) > 0 for span in commits)


async def test_the_caller_decides_whether_a_trace_is_kept(short_path: Path, kept: Kept) -> None:
    spans = OpenTelemetrySpans(kept, TelemetrySettings(sample_ratio=0.0))
    async with observed(short_path, EchoProvider(), spans=spans) as it:
        await it.say("not kept")
        await it.say("not kept either", traceparent=TRACEPARENT[:-1] + "0")
        await it.say("kept", traceparent=TRACEPARENT)
        await ended(spans)
        assert [len(kept.named(name)) for name in (CHAT, "invoke_agent", "chat echo", "commit")] == [1, 1, 1, 0]


@pytest.mark.parametrize("nonsense", ["", "00-0-0-01", "ff-" + TRACEPARENT, "é" * 500, TRACEPARENT + "-x" * 5000])
async def test_nonsense_for_a_traceparent_begins_a_trace_of_our_own(
    short_path: Path, kept: Kept, spans: OpenTelemetrySpans, nonsense: str
) -> None:
    async with observed(short_path, EchoProvider(), spans=spans) as it:
        answer = await it.client.get("/v1/sessions", headers={b"traceparent": nonsense.encode("latin-1")})
        assert answer.status_code == 200
        await ended(spans)
    (span,) = kept.named("GET /v1/sessions")
    assert span.parent is None


@pytest.mark.parametrize("propagate", [True, False])
async def test_the_model_is_told_of_the_trace_only_if_that_is_set(
    short_path: Path, kept: Kept, spans: OpenTelemetrySpans, *, propagate: bool
) -> None:
    told: list[dict[str, str]] = []

    class Listening(EchoProvider):
        async def generate(self, messages, tools):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            told.append(dict(trace_headers.get()))
            async for event in super().generate(messages, tools):
                yield event

    settings = Settings(telemetry=TelemetrySettings(propagate_traces=propagate))
    async with observed(short_path, Listening(), settings=settings, spans=spans) as it:
        await it.say("hello", traceparent=TRACEPARENT)
        await ended(spans)
    (model,) = kept.named("chat echo")
    assert model.context is not None
    assert told == [{"traceparent": f"00-{TRACE}-{model.context.span_id:016x}-01"} if propagate else {}]
    assert not trace_headers.get()


# --- the daemon, a collector and a model's service, over real sockets ------------------------------------------------


async def test_the_daemon_sends_its_traces_to_a_collector(short_path: Path) -> None:
    headers = short_path / "headers"
    headers.write_text("x-key: s3cret\nx-other: 1\n")
    headers.chmod(0o600)
    async with StrictServer(in_turn(Answer(text="hello yourself"))) as model:
        key = short_path / "key"
        key.write_text("sk-xyzzy")
        key.chmod(0o600)
        with collecting() as collector:
            environ = {
                "MINICLAW_TELEMETRY_OTLP_ENDPOINT": collector.url,
                "MINICLAW_TELEMETRY_OTLP_HEADERS_FILE": str(headers),
                "MINICLAW_TELEMETRY_SERVICE_NAME": "our-gateway",
                "MINICLAW_MODEL_BASE_URL": model.url_for("openai"),
                "MINICLAW_MODEL_MODEL": "m-2026",
                "MINICLAW_MODEL_API_KEY_FILE": str(key),
            }
            async with Here(short_path, **environ) as daemon:
                await daemon.notice("READY=1")
                async with daemon.client() as client:
                    said = {"channel": "cli", "chat_id": "1", "message": "xyzzy"}
                    answer = await client.post("/v1/chat", json=said, headers={"traceparent": TRACEPARENT})
                    assert answer.status_code == 200
                assert await daemon.stopped() == 0
            spans = {span.name: span for span in collector.spans}
            assert {CHAT, "invoke_agent", "chat m-2026", "commit"} <= spans.keys()
            assert spans[CHAT].trace_id.hex() == spans["chat m-2026"].trace_id.hex() == TRACE
            assert spans["chat m-2026"].parent_span_id == spans["invoke_agent"].span_id
            assert all(sent["x-key"] == "s3cret" and sent["x-other"] == "1" for sent in collector.headers)
            (resource,) = {
                attribute.value.string_value
                for request in collector.requests
                for resource in request.resource_spans
                for attribute in resource.resource.attributes
                if attribute.key == "service.name"
            }
            assert resource == "our-gateway"
            assert not [one for one in collector.requests if b"xyzzy" in one.SerializeToString()]


async def test_a_collector_that_is_gone_costs_the_spans_and_nothing_else(short_path: Path) -> None:
    with collecting() as collector:
        gone = collector.url
    spans = open_spans(TelemetrySettings(otlp_endpoint=gone))
    with anyio.fail_after(60):
        async with observed(short_path, EchoProvider(), spans=spans) as it:
            assert (await it.say("hello")).status_code == 200


@pytest.mark.proof
def test_without_a_collector_nothing_of_opentelemetry_is_loaded() -> None:
    script = (
        "import sys; from miniclaw_sessions.service.gateway.daemon import open_spans; "
        "from miniclaw_sessions.config import TelemetrySettings; open_spans(TelemetrySettings()); "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_spans_that_nobody_collects_are_one_object_that_does_nothing() -> None:
    spans = open_spans(TelemetrySettings())
    assert type(spans) is Spans
    assert spans.start("a", {}) is spans.start("b", {"c": 1})
    assert spans.headers() == {}


@pytest.mark.parametrize("endpoint", ["localhost:4318", "grpc://localhost", "file:///etc/passwd"])
def test_an_address_that_is_none_is_refused_by_name(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"telemetry\.otlp_endpoint"):
        open_spans(TelemetrySettings(otlp_endpoint=endpoint))


def test_headers_that_are_none_are_refused_without_being_shown(tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.write_text("s3cret\n")
    headers.chmod(0o600)
    wrong = TelemetrySettings(otlp_endpoint="http://127.0.0.1:1", otlp_headers_file=str(headers))
    with pytest.raises(ConfigError, match="one `name: value` a line") as refused:
        open_spans(wrong)
    assert "s3cret" not in str(refused.value)
