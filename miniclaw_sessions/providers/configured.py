"""Who answers chats, as the settings say: a model, or, where none is named, the built-in responder."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Protocol

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.asking import ReplyLimits
from miniclaw_sessions.agent.history_tool import history_tool
from miniclaw_sessions.agent.observer import Observer
from miniclaw_sessions.agent.provider import Provider
from miniclaw_sessions.agent.tools import Tool, calculator_tool, time_tool
from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.config import ModelSettings, Settings
from miniclaw_sessions.manager.reader import SessionReader
from miniclaw_sessions.providers.offline import OfflineProvider
from miniclaw_sessions.secret import Secret, read_secret

_TOOLS: dict[str, Callable[[SessionReader | None], Tool]] = {
    "time": lambda _: time_tool(SystemClock()),
    "calculator": lambda _: calculator_tool(),
    "search_history": history_tool,
}
"""The tools by their names in the settings; each is made with the sessions that it may search beside its own."""


@asynccontextmanager
async def open_agent(
    settings: Settings, manager: SessionReader | None = None, *, observer: Observer | None = None
) -> AsyncGenerator[Agent, None]:
    """An agent with the tools that the settings name, which sends its model as much as a session's window holds.

    Its model's connections are closed at the end of the block.

    Args:
        settings: who answers, and how.
        manager: whose sessions `search_history` may search, if the settings let it search them all.
        observer: who counts and measures its turns, and the requests to its model.

    Raises:
        ConfigError: the key cannot be read, the model's library is not installed, or a provider other than the
            default is named without a model.
    """
    model = settings.model
    everywhere = manager if model.search_all_chats else None
    async with _provider(model) as provider:
        yield Agent(
            provider if observer is None else observer.model(provider),
            tools=[_TOOLS[name](everywhere) for name in model.tools],
            system_prompt=model.system_prompt,
            max_iterations=model.max_iterations,
            history_limit=settings.sessions.window,
            tool_timeout_s=model.tool_timeout_s,
            limits=ReplyLimits(model.max_reply_bytes, model.reply_timeout_s),
            observer=observer,
        )


def _provider(settings: ModelSettings) -> AbstractAsyncContextManager[Provider]:
    if settings.provider == ModelSettings().provider and not (settings.base_url or settings.model):
        return nullcontext(OfflineProvider())
    key = read_secret(settings.api_key_file, "model_api_key", os.environ, variable=settings.api_key_env)
    return _class_of(settings)(
        settings.model,
        base_url=settings.base_url,
        api_key=key,
        timeout_s=settings.timeout_s,
        max_reply_bytes=settings.max_reply_bytes,
    )


class _ProviderClass(Protocol):
    """What all providers of remote models are made with."""

    def __call__(
        self, model: str, *, base_url: str, api_key: Secret | None, timeout_s: float, max_reply_bytes: int
    ) -> AbstractAsyncContextManager[Provider]: ...


def _class_of(settings: ModelSettings) -> _ProviderClass:
    """The class; each loads a library that takes up to a second, so only the chosen one is imported."""
    match settings.provider:
        case "openai":
            from miniclaw_sessions.providers.openai import OpenAIProvider  # noqa: PLC0415 - see above

            return OpenAIProvider
        case "openai-responses":
            from miniclaw_sessions.providers.openai_responses import OpenAIResponsesProvider  # noqa: PLC0415 - same

            return OpenAIResponsesProvider
        case "anthropic":
            from miniclaw_sessions.providers.anthropic import AnthropicProvider  # noqa: PLC0415 - same

            return AnthropicProvider
        case "google":
            from miniclaw_sessions.providers.google import GoogleProvider  # noqa: PLC0415 - same

            return GoogleProvider
