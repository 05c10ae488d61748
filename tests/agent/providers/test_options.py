"""What one request wants of its model, in every service's words; the strict server refuses what it does not know."""

from __future__ import annotations

from typing import Any

import pytest

from miniclaw_sessions.agent.provider import Provider, Reply, adjusted
from miniclaw_sessions.agent.providers.offline import OfflineProvider
from miniclaw_sessions.agent.tools import calculator_tool, time_tool
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.protocol.options import FUNCTION, Options, TextFormat
from miniclaw_sessions.errors import OptionRefused
from miniclaw_sessions.testing import FakeClock, ScriptedProvider
from tests.agent.providers.all_providers import KEY, SERVICES, provider_for
from tests.agent.providers.strict_server import Answer, StrictServer

pytestmark = pytest.mark.anyio

TOOLS = (time_tool(FakeClock()), calculator_tool())
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
PLAIN = Options(temperature=0.5, top_p=0.9, max_output_tokens=100)
CHOSEN = Options(tool_choice=FUNCTION + "time")
REQUIRED = Options(tool_choice="required")
SHAPED = Options(format=TextFormat(SCHEMA, "person", "somebody", strict=True))

EXPECTED: dict[str, list[tuple[Options, dict[str, Any]]]] = {
    "openai": [
        (PLAIN, {"temperature": 0.5, "top_p": 0.9, "max_tokens": 100}),
        (CHOSEN, {"tool_choice": {"type": "function", "function": {"name": "time"}}}),
        (REQUIRED, {"tool_choice": "required"}),
        (Options(parallel_tool_calls=False, effort="low"), {"parallel_tool_calls": False, "reasoning_effort": "low"}),
        (
            SHAPED,
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "person", "description": "somebody", "schema": SCHEMA, "strict": True},
                }
            },
        ),
        (Options(format=TextFormat()), {"response_format": {"type": "json_object"}}),
    ],
    "openai-responses": [
        (PLAIN, {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 100}),
        (CHOSEN, {"tool_choice": {"type": "function", "name": "time"}}),
        (REQUIRED, {"tool_choice": "required"}),
        (
            Options(effort="low", verbosity="low"),
            {"reasoning": {"summary": "auto", "effort": "low"}, "text": {"verbosity": "low"}},
        ),
        (
            SHAPED,
            {
                "text": {
                    "format": {
                        "type": "json_schema",
                        "name": "person",
                        "description": "somebody",
                        "schema": SCHEMA,
                        "strict": True,
                    }
                }
            },
        ),
    ],
    "anthropic": [
        (PLAIN, {"temperature": 0.5, "top_p": 0.9, "max_tokens": 2148}),  # beside the 2048 that it may think
        (CHOSEN, {"tool_choice": {"type": "tool", "name": "time"}}),
        (Options(tool_choice="none"), {"tool_choice": {"type": "none"}}),
        (
            Options(parallel_tool_calls=False),
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        ),
        (SHAPED, {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        (Options(effort="low"), {"output_config": {"effort": "low"}}),
    ],
    "google": [
        (PLAIN, {"temperature": 0.5, "topP": 0.9, "maxOutputTokens": 100}),
        (CHOSEN, {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["time"]}}}),
        (REQUIRED, {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}),
        (SHAPED, {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}),
    ],
}


@pytest.mark.parametrize("service", SERVICES)
async def test_each_option_is_said_in_the_services_words(service: str) -> None:
    async with StrictServer(lambda _: Answer(text="yes"), key=KEY) as server, provider_for(service, server) as provider:
        for options, expected in EXPECTED[service]:
            wanted = adjusted(provider, options)
            events = [event async for event in wanted.generate([Message.user("hi")], TOOLS)]
            assert isinstance(events[-1], Reply)
            body = server.requests[-1].body
            sent = {**body, **body.get("generationConfig", {})}
            assert {name: sent.get(name) for name in expected} == expected
        plain = [event async for event in provider.generate([Message.user("hi")], ())]
        assert isinstance(plain[-1], Reply)
        assert "temperature" not in server.requests[-1].body
        assert server.problems == []


async def test_what_is_about_tools_is_left_out_where_there_are_none() -> None:
    async with (
        StrictServer(lambda _: Answer(text="yes"), key=KEY) as server,
        provider_for("openai", server) as provider,
    ):
        wanted = adjusted(provider, Options(tool_choice="auto", parallel_tool_calls=True))
        _ = [event async for event in wanted.generate([Message.user("hi")], ())]
        assert not {"tool_choice", "parallel_tool_calls", "tools"} & server.requests[-1].body.keys()


@pytest.mark.parametrize(
    ("service", "options", "refused"),
    [
        ("anthropic", Options(verbosity="low"), "verbosity"),
        ("anthropic", Options(format=TextFormat()), "format"),
        ("google", Options(verbosity="low"), "verbosity"),
        ("google", Options(parallel_tool_calls=False), "parallel_tool_calls"),
    ],
)
async def test_what_a_service_has_nothing_like_is_refused_by_name(service: str, options: Options, refused: str) -> None:
    async with StrictServer() as server, provider_for(service, server) as provider:
        with pytest.raises(OptionRefused) as caught:
            adjusted(provider, options)
        assert caught.value.option == refused


async def test_the_built_in_responder_calls_no_tool_where_it_may_not() -> None:
    async def answer(provider: Provider) -> Message:
        last = [event async for event in provider.generate([Message.user("2+2")], TOOLS)][-1]
        assert isinstance(last, Reply)
        return last.message

    assert (await answer(OfflineProvider())).tool_calls
    assert not (await answer(adjusted(OfflineProvider(), Options(tool_choice="none", temperature=1.0)))).tool_calls
    for impossible in (SHAPED, REQUIRED):
        with pytest.raises(OptionRefused):
            adjusted(OfflineProvider(), impossible)


async def test_a_provider_without_options_refuses_any_and_stays_itself_without() -> None:
    provider = ScriptedProvider([])
    assert adjusted(provider, Options()) is provider
    with pytest.raises(OptionRefused, match="temperature"):
        adjusted(provider, Options(temperature=1.0))
