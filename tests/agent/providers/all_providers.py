"""The providers of all services by name, for tests that hold for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from miniclaw_sessions.agent.provider import ModelEvent, Reply
from miniclaw_sessions.agent.providers.anthropic import AnthropicProvider
from miniclaw_sessions.agent.providers.google import GoogleProvider
from miniclaw_sessions.agent.providers.openai import OpenAIProvider
from miniclaw_sessions.agent.providers.openai_responses import OpenAIResponsesProvider
from miniclaw_sessions.agent.providers.service import ServiceProvider
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.protocol.messages import Message
from tests.agent.providers.strict_server import StrictServer

KEY = "sk-very-secret"
MODEL = "m-2026"
SERVICES = ("openai", "openai-responses", "anthropic", "google")
SHOWS_THINKING = ("openai-responses", "anthropic", "google")

CLASSES: dict[str, Any] = {
    "openai": OpenAIProvider,
    "openai-responses": OpenAIResponsesProvider,
    "anthropic": AnthropicProvider,
    "google": GoogleProvider,
}
_THINKING: dict[str, dict[str, Any]] = {"anthropic": {"thinking": 2048}, "google": {"thinking": -1}}


def provider_for(service: str, server: StrictServer, **options: Any) -> ServiceProvider:
    """The provider of that service, pointed at the server, with thinking where it must be asked for."""
    settings = {"base_url": server.url_for(service), "api_key": KEY, "timeout_s": 5, "max_retries": 0}
    provider: ServiceProvider = CLASSES[service](MODEL, **{**settings, **_THINKING.get(service, {}), **options})
    return provider


async def events_of(provider: ServiceProvider, messages: Sequence[Message], *tools: Tool) -> list[ModelEvent]:
    return [event async for event in provider.generate(messages, tools)]


async def reply_of(provider: ServiceProvider, *messages: Message) -> Message:
    last = (await events_of(provider, messages))[-1]
    assert isinstance(last, Reply)
    return last.message
