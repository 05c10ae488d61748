"""Any model that pydantic-ai knows: some thirty services by their own names, such as `mistral:mistral-large-latest`.

Only its model layer is used: it gets the context and streams one reply, stored as the adapter for pydantic-ai stores
it. Turns, tools and retries of turns stay ours. If the settings name no key, pydantic-ai looks for it under the
service's own name in the environment, such as MISTRAL_API_KEY.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

import msgspec

from miniclaw_sessions.agent.provider import Begun, ModelEvent, ReasoningDelta, Reply, TextDelta
from miniclaw_sessions.agent.providers.service import ServiceOptions, ServiceProvider, missing
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.protocol.options import FUNCTION
from miniclaw_sessions.errors import ConfigError

if TYPE_CHECKING:
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.settings import ModelSettings


def _anthropic_thinking(tokens: int | str) -> dict[str, Any]:
    if not tokens:
        return {"anthropic_thinking": {"type": "disabled"}}
    kind = {"type": "adaptive"} if tokens == "adaptive" else {"type": "enabled", "budget_tokens": tokens}
    return {"anthropic_thinking": kind}


def _google_thinking(tokens: int | str) -> dict[str, Any]:
    budget = -1 if tokens == "adaptive" else tokens
    return {"google_thinking_config": {"thinking_budget": budget, "include_thoughts": bool(tokens)}}


_BUDGETS = {"anthropic": _anthropic_thinking, "google": _google_thinking}


class PydanticAIProvider(ServiceProvider):
    """A `Provider` for one model of a service that pydantic-ai knows.

    Args:
        model: `service:model`, as pydantic-ai names it.
        thinking: how many tokens the model may think, or "adaptive"; for Anthropic's and Google's models.
            None: the model's default.
        service: see `ServiceOptions`; a `base_url` only if that service accepts one.

    Raises:
        ConfigError: pydantic-ai, or the package that it needs for this service, is missing, it does not know the
            model's service, or the key is missing.
    """

    name = "pydantic-ai"
    service_url = ""
    known_options = frozenset(
        {
            *("temperature", "top_p", "max_output_tokens", "tool_choice", "parallel_tool_calls", "effort"),
            *("stop", "frequency_penalty", "presence_penalty"),
        }
    )
    overflow = re.compile(
        r"maximum context length|context (window|length|limit)|prompt is too long|exceeds the maximum", re.IGNORECASE
    )

    def __init__(
        self, model: str, *, thinking: int | Literal["adaptive"] | None = None, **service: Unpack[ServiceOptions]
    ) -> None:
        super().__init__(model, **service)
        try:
            import httpx2  # noqa: PLC0415 - the extra loads it
            from pydantic_ai import exceptions  # noqa: PLC0415 - an extra, and slow to load

            from miniclaw_sessions.agent.providers.connections import bounded_client  # noqa: PLC0415 - loads httpx2
        except ImportError:
            raise missing("pydantic-ai-slim", "pydantic-ai") from None
        self.failures = (exceptions.AgentRunError, exceptions.UserError, httpx2.HTTPError, ValueError)
        self._thinking = thinking
        self._connections = bounded_client(self._max_reply_bytes)
        self._connections.timeout = httpx2.Timeout(self.timeout_s)
        self._vendor, _, _ = model.partition(":")
        self._host = self._vendor
        self._model = self._made(exceptions.UserError)
        if thinking is not None and self._vendor not in _BUDGETS:
            raise ConfigError(f"{self._vendor} has no budget for thinking; set an effort, such as model.thinking = low")

    def _made(self, user_error: type[Exception]) -> Model:
        from pydantic_ai.models import infer_model  # noqa: PLC0415 - loaded with the provider
        from pydantic_ai.providers import infer_provider_class  # noqa: PLC0415 - same

        def provider(name: str) -> Any:
            kind = infer_provider_class(name)
            takes = inspect.signature(kind).parameters
            given: dict[str, Any] = {"api_key": self._key, "base_url": self._url}
            if lacking := [one for one, value in given.items() if value and one not in takes]:
                raise ConfigError(f"{name} takes no {lacking[0]} in pydantic-ai; leave it out of [model]")
            given["http_client"] = self._connections
            if self._url:  # else it would look for a key in the environment, and send it to another service
                given["api_key"] = self._key_to_send
            return kind(**{one: value for one, value in given.items() if value and one in takes})

        try:
            return infer_model(self.model, provider)
        except (user_error, ValueError, ImportError) as error:
            raise ConfigError(f"pydantic-ai cannot use model.model = {self.model!r}: {error}") from None

    async def _close(self) -> None:
        await self._connections.aclose()

    async def _ask(self, context: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        from pydantic_ai.direct import model_request_stream  # noqa: PLC0415 - loaded with the provider
        from pydantic_ai.messages import (  # noqa: PLC0415 - same
            PartDeltaEvent,
            PartStartEvent,
            TextPart,
            TextPartDelta,
            ThinkingPart,
            ThinkingPartDelta,
        )

        from miniclaw_sessions.agent.providers.pydantic_ai_messages import (  # noqa: PLC0415 - loads pydantic-ai
            from_model_messages,
            to_own_model,
        )

        messages, settings = to_own_model(context), cast("ModelSettings", self._settings())
        request = model_request_stream(
            self._model,
            messages,
            model_settings=settings,
            model_request_parameters=_offered(tools),
            instrument=False,
        )
        async with request as stream, aclosing(cast("AsyncGenerator[Any, None]", aiter(stream))) as events:
            yield Begun()
            async for event in events:
                match event:
                    case PartStartEvent(part=TextPart(content=text)) if text:
                        yield TextDelta(text)
                    case PartDeltaEvent(delta=TextPartDelta(content_delta=text)) if text:
                        yield TextDelta(text)
                    case PartStartEvent(part=ThinkingPart(content=text)) if text:
                        yield ReasoningDelta(text)
                    case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text)) if text:
                        yield ReasoningDelta(text)
            reply = stream.get()
        if reply.state != "complete" or reply.finish_reason is None:
            raise self._broken_off()
        (message,) = from_model_messages([reply])
        yield Reply(msgspec.structs.replace(message, model=message.model or self.model, timestamp=None))

    def _settings(self) -> dict[str, Any]:
        """The options in the terms of pydantic-ai."""
        wanted = self._options
        choice: Any = wanted.tool_choice
        fields = {
            "timeout": self.timeout_s,
            "temperature": wanted.temperature,
            "top_p": wanted.top_p,
            "max_tokens": wanted.max_output_tokens,
            "parallel_tool_calls": wanted.parallel_tool_calls,
            "tool_choice": [choice.removeprefix(FUNCTION)] if choice and choice.startswith(FUNCTION) else choice,
            "thinking": wanted.effort,
            "stop_sequences": list(wanted.stop) if wanted.stop else None,
            "frequency_penalty": wanted.frequency_penalty,
            "presence_penalty": wanted.presence_penalty,
        }
        budget = {} if self._thinking is None else _BUDGETS[self._vendor](self._thinking)
        return {name: value for name, value in fields.items() if value is not None} | budget


def _offered(tools: Sequence[Tool]) -> ModelRequestParameters:
    from pydantic_ai.models import ModelRequestParameters  # noqa: PLC0415 - loaded with the provider
    from pydantic_ai.tools import ToolDefinition  # noqa: PLC0415 - same

    definitions = [
        ToolDefinition(
            name=tool.name, description=tool.description, parameters_json_schema=dict(tool.parameters), strict=False
        )
        for tool in tools
    ]
    return ModelRequestParameters(function_tools=definitions, allow_text_output=True)
