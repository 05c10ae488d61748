"""The numbers: turns, models, tools, messages, saving, requests; and that their labels have few values."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from miniclaw_sessions.config import ChannelSettings, Settings, TelemetrySettings
from miniclaw_sessions.core.protocol.messages import Message, ToolCall, Usage
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.service.gateway.conftest import EchoProvider
from tests.service.gateway.observed import observed

pytestmark = pytest.mark.anyio


async def test_a_turn_is_counted_and_measured(short_path: Path) -> None:
    async with observed(short_path, EchoProvider()) as it:
        assert (await it.say("hello there")).status_code == 200
        assert await it.number("turns_total", channel="cli", outcome="answered") == 1
        assert await it.number("turns_running") == 0
        assert await it.number("turn_seconds_count", channel="cli") == 1
        assert await it.number("first_token_seconds_count", channel="cli") == 1
        assert await it.number("messages_received_total", channel="cli") == 1
        assert await it.number("messages_ended_total", channel="cli", outcome="answered") == 1


async def test_a_turn_that_runs_is_seen_and_one_that_is_stopped_is_counted_as_that(short_path: Path) -> None:
    provider = EchoProvider()
    async with observed(short_path, provider) as it, anyio.create_task_group() as tasks:
        tasks.start_soon(it.say, "slow")
        await provider.began.wait()
        assert await it.number("turns_running") == 1
        await it.client.post("/v1/sessions/cli_1/stop")
        await it.becomes(0, "turns_running")
        assert await it.number("turns_total", channel="cli", outcome="stopped") == 1
        assert await it.number("model_requests_total", provider="test", model="echo", outcome="cut_off") == 1


async def test_a_model_is_counted_with_tokens_and_cost_and_errors(short_path: Path) -> None:
    priced = Usage(input_tokens=7, output_tokens=5, cache_read_tokens=3, cache_write_tokens=2, cost=0.25)
    reply = Message.assistant("yes")
    provider = ScriptedProvider([Message(reply.role, reply.content, usage=priced)])
    model = {"provider": provider.name, "model": provider.model}
    async with observed(short_path, provider) as it:
        await it.say("hello")
        assert (await it.say("again, and the script is over")).status_code != 200
        tokens = {
            kind: await it.number("model_tokens_total", **model, kind=kind)
            for kind in ("input", "output", "cache_read", "cache_write")
        }
        assert tokens == {"input": 7, "output": 5, "cache_read": 3, "cache_write": 2}
        assert await it.number("model_cost_total", **model) == 0.25
        assert await it.number("model_requests_total", **model, outcome="done") == 1
        assert await it.number("model_requests_total", **model, outcome="failed") == 1
        assert await it.number("model_seconds_count", **model) == 2
        assert await it.number("turns_total", channel="cli", outcome="model_failed") == 1


async def test_a_summary_is_a_request_to_the_model_too(short_path: Path) -> None:
    async with observed(short_path, EchoProvider()) as it:
        await it.say("hello")
        await it.say("hello again")
        compacted = await it.client.post("/v1/sessions/cli_1/compact", json={"keep_tokens": 1})
        assert compacted.status_code == 200
        assert await it.number("model_requests_total", provider="test", model="echo", outcome="done") == 3


async def test_tools_are_counted(short_path: Path) -> None:
    async with observed(short_path, EchoProvider()) as it:
        await it.say("tool please")
        (name,) = Settings().model.tools[:1]
        assert await it.number("tool_calls_total", tool=name, outcome="done") == 1
        assert await it.number("tool_seconds_count", tool=name) == 1


async def test_labels_have_few_values_whatever_callers_and_models_say(short_path: Path) -> None:
    """Rule S22: no series for what a stranger named."""
    calls = [
        Message.assistant("", (ToolCall(f"c{number}", f"invented_{number}", "{}"),)) if number % 2 else "done"
        for number in range(1, 21)
    ]
    settings = Settings(telemetry=TelemetrySettings(channels=("cli",)))
    async with observed(short_path, ScriptedProvider(calls), settings=settings) as it:
        await it.say("hello", channel="stranger0")
        before = set(await it.numbers())
        for number in range(1, 10):
            await it.say("hello", chat_id=f"chat-{number}", channel=f"stranger{number}")
            await it.client.get(f"/v1/sessions/stranger{number}_chat-{number}")
            await it.client.get(f"/nowhere/{number}")
        after = set(await it.numbers())
        assert {name for name, _ in after - before} <= {
            f"miniclaw_http_{what}"
            for what in ("requests_total", *(f"request_seconds_{part}" for part in ("bucket", "sum", "count")))
        }
        assert not [one for one in after if "stranger" in str(one) or "invented" in str(one) or "chat-" in str(one)]
        assert await it.number("turns_total", channel="other", outcome="answered") == 10
        assert await it.number("tool_calls_total", tool="other", outcome="failed") == 10


async def test_messages_that_are_refused_or_come_twice_are_counted_as_that(short_path: Path) -> None:
    provider = EchoProvider()
    settings = Settings(channels=ChannelSettings(max_messages=1))
    async with observed(short_path, provider, settings=settings) as it:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.say, "slow")
            await provider.began.wait()
            assert (await it.say("me too", "2")).status_code == 503
            provider.gate.set()
        assert await it.number("messages_received_total", channel="cli") == 2
        assert await it.number("messages_ended_total", channel="cli", outcome="busy") == 1
        assert await it.number("messages_ended_total", channel="cli", outcome="answered") == 1


async def test_commits_and_flushes_are_measured(short_path: Path) -> None:
    async with observed(short_path, EchoProvider()) as it:
        await it.say("hello")
        await it.manager.flush()
        commits = await it.number("commits_total")
        assert (commits or 0) >= 2
        assert await it.number("commit_seconds_count") == commits
        assert await it.number("commit_entries_sum") == await it.number("committed_total")
        assert await it.number("flush_seconds_count") == 1


async def test_followers_are_counted_while_they_follow(short_path: Path) -> None:
    async with observed(short_path, EchoProvider()) as it:
        await it.say("hello")
        assert await it.number("followers") == 0
        async with it.client.stream("GET", "/v1/sessions/cli_1/follow") as following:
            assert following.status_code == 200
            await it.becomes(1, "followers")
            async with it.client.stream("GET", "/v1/events"):
                await it.becomes(2, "followers")
        await it.becomes(0, "followers")


async def test_what_a_token_does_not_allow_is_counted(short_path: Path) -> None:
    async with observed(short_path, EchoProvider()) as it:
        wrong = await it.tcp.get("/v1/sessions", headers={"Authorization": "Bearer 0123456789abcdef"})
        assert wrong.status_code == 401
        refused = {name: value for (name, _), value in (await it.numbers()).items() if "http_refused_total" in name}
        assert list(refused.values()) == [1]


async def test_a_response_is_a_turn_with_one_request_to_the_model(short_path: Path) -> None:
    async with observed(short_path, EchoProvider()) as it:
        reply = await it.client.post("/v1/responses", json={"model": "any", "input": "hello"})
        assert reply.status_code == 200, reply.text
        assert await it.number("turns_total", channel="resp", outcome="answered") == 1
        assert await it.number("model_requests_total", provider="test", model="echo", outcome="done") == 1
