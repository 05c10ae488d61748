"""Who answers chats, as the settings say: a model, or, where none is named, the built-in responder."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from miniclaw_sessions.agent.loop import Agent
from miniclaw_sessions.agent.provider import Provider
from miniclaw_sessions.agent.tools import calculator_tool, time_tool
from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.config import ModelSettings, read_secret
from miniclaw_sessions.providers.offline import OfflineProvider


@asynccontextmanager
async def open_agent(settings: ModelSettings) -> AsyncGenerator[Agent, None]:
    """An agent with the tools of this package; its model's connections are closed at the end of the block.

    Raises:
        ConfigError: the key cannot be read, or the model's library is not installed.
    """
    async with _provider(settings) as provider:
        yield Agent(
            provider,
            tools=[time_tool(SystemClock()), calculator_tool()],
            system_prompt=settings.system_prompt,
            max_iterations=settings.max_iterations,
            tool_timeout_s=settings.tool_timeout_s,
        )


def _provider(settings: ModelSettings) -> AbstractAsyncContextManager[Provider]:
    if not (settings.base_url or settings.model):
        return nullcontext(OfflineProvider())
    from miniclaw_sessions.providers.openai import OpenAIProvider  # noqa: PLC0415 - loads half a second of library

    key = read_secret(settings.api_key_file, "model_api_key", os.environ, variable=settings.api_key_env)
    return OpenAIProvider(settings.model, base_url=settings.base_url, api_key=key, timeout_s=settings.timeout_s)
