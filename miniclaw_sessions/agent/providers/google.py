"""Google's Gemini API, through the official `google-genai` package.

The package is an extra and loaded only when a provider is made. Its automatic function calling is off: the loop runs
the tools. The service's signatures on its thoughts and calls are kept in the reply and go back verbatim.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, cast

import anyio
import msgspec

from miniclaw_sessions.agent.provider import ModelEvent, ReasoningDelta, Reply, TextDelta
from miniclaw_sessions.agent.providers.service import ServiceOptions, ServiceProvider, missing, plain_reply
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.protocol.options import FUNCTION, Options
from miniclaw_sessions.errors import ModelError, OptionRefused
from miniclaw_sessions.files.formats.attached import PDF
from miniclaw_sessions.files.formats.google import SKIP_VALIDATION, from_google_reply, to_google

if TYPE_CHECKING:
    from google.genai import Client
    from google.genai.types import GenerateContentConfig, GenerateContentResponse
    from httpx2 import Response

_responses: ContextVar[list[Response]] = ContextVar("the responses to the request under way")

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 8.0

_WITH_BUDGET = re.compile(r"\bgemini-[12]\b")


class GoogleProvider(ServiceProvider):
    """A `Provider` for one Gemini model.

    Args:
        model: the model's name.
        max_output_tokens: the limit of a reply, thoughts included; None: the model's own.
        thinking: how many tokens the model may think, -1 or "adaptive": the model decides, 0: not at all. It then
            shows its thoughts. None: the model's default, without its thoughts.
        service: see `ServiceOptions`.

    Raises:
        ConfigError: the `google-genai` package is missing, no model is named, or Google's own service is used
            without a key.
    """

    name = "google"
    service_url = "https://generativelanguage.googleapis.com"
    known_options = frozenset(
        {
            *("temperature", "top_p", "max_output_tokens", "tool_choice", "parallel_tool_calls", "format"),
            *("effort", "stop", "frequency_penalty", "presence_penalty"),
        }
    )
    files = frozenset({PDF, "audio/wav", "audio/mpeg", "audio/flac", "audio/ogg", "audio/mp4"})
    overflow = re.compile(r"token count.*exceeds the maximum|payload size exceeds", re.IGNORECASE)

    def __init__(
        self,
        model: str,
        *,
        max_output_tokens: int | None = None,
        thinking: int | Literal["adaptive"] | None = None,
        **service: Unpack[ServiceOptions],
    ) -> None:
        super().__init__(model, **service)
        try:
            import httpx2  # noqa: PLC0415 - slow to load; the extra uses it if it is installed
            from google.genai import errors  # noqa: PLC0415 - an extra, and slow to load

            from miniclaw_sessions.agent.providers.connections import bounded_client  # noqa: PLC0415 - loads httpx2
        except ImportError:
            raise missing("google-genai", "google") from None
        self.failures = (errors.APIError, httpx2.HTTPError, ValueError)
        self._max_output_tokens = max_output_tokens
        self._thinking = -1 if thinking == "adaptive" else thinking
        self._connections = bounded_client(self._max_reply_bytes, hooks=[_note])
        self._client = _make_client(self._url, self._key_to_send, self.timeout_s, self._max_retries, self._connections)

    async def _close(self) -> None:
        await self._client.aio.aclose()
        await self._connections.aclose()
        self._client.close()

    async def _ask(self, context: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        request = to_google(context, stand_in=SKIP_VALIDATION)
        config = self._config(request.get("system_instruction"), tools)
        reply = _Assembly()
        stream = await self._client.aio.models.generate_content_stream(
            model=self.model, contents=_contents(request["contents"]), config=config
        )
        responses: list[Response] = []
        _responses.set(responses)
        try:
            async with aclosing(cast("AsyncGenerator[GenerateContentResponse, None]", stream)) as chunks:
                async for chunk in chunks:
                    for piece in reply.add(chunk):
                        yield piece
        finally:
            with anyio.CancelScope(shield=True):
                for response in responses:
                    await response.aclose()
        if reply.was_blocked:
            raise ModelError(f"{self._host} refused to let {self.model} answer this conversation")
        if not reply.is_whole:
            raise self._broken_off()
        yield Reply(reply.message(self.model))

    def with_options(self, options: Options) -> Self:
        """The same model over the same connections, with these options.

        Raises:
            OptionRefused: the service does not support one of them; it cannot be limited to one tool call at a time,
                and models before Gemini 3 have a budget of tokens to think with, and no levels.
        """
        if options.effort is not None and _WITH_BUDGET.search(self.model):
            raise OptionRefused("effort", f"{self.model} takes a number of tokens to think with, and no level")
        if options.parallel_tool_calls is False:
            raise OptionRefused("parallel_tool_calls", "the provider google always may call several tools at once")
        return super().with_options(options)

    def _config(self, system: Mapping[str, Any] | None, tools: Sequence[Tool]) -> GenerateContentConfig:
        from google.genai import types  # noqa: PLC0415 - loaded with the client

        functions = [
            types.FunctionDeclaration(
                name=tool.name, description=tool.description, parameters_json_schema=tool.parameters
            )
            for tool in tools
        ]
        thinking = None
        wanted = self._options
        if wanted.effort is not None:  # with a budget too, the service refuses it
            thinking = types.ThinkingConfig(
                thinking_level=types.ThinkingLevel(wanted.effort.upper()), include_thoughts=True
            )
        elif self._thinking is not None:
            thinking = types.ThinkingConfig(thinking_budget=self._thinking, include_thoughts=self._thinking != 0)
        tool_config = None  # then the model decides
        if functions and wanted.tool_choice is not None:
            name = wanted.tool_choice.removeprefix(FUNCTION)
            mode = {"auto": "AUTO", "none": "NONE"}.get(wanted.tool_choice, "ANY")
            calling = types.FunctionCallingConfig(
                mode=types.FunctionCallingConfigMode(mode),
                allowed_function_names=[name] if name != wanted.tool_choice else None,
            )
            tool_config = types.ToolConfig(function_calling_config=calling)
        return types.GenerateContentConfig(
            system_instruction=types.Content.model_validate(system) if system else None,
            tools=[types.Tool(function_declarations=functions)] if functions else None,
            tool_config=tool_config,
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            stop_sequences=list(wanted.stop) if wanted.stop else None,
            frequency_penalty=wanted.frequency_penalty,
            presence_penalty=wanted.presence_penalty,
            response_mime_type=None if wanted.format is None else "application/json",
            response_json_schema=None if wanted.format is None else wanted.format.schema,
            max_output_tokens=wanted.max_output_tokens or self._max_output_tokens,
            thinking_config=thinking,
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
        )


async def _note(response: Response) -> None:
    """Remember a response for the request that it answers.

    The package leaves a partly read stream to the garbage collector, and with it the connection.
    """
    _responses.get([]).append(response)


def _contents(contents: Sequence[Mapping[str, Any]]) -> Any:
    """The contents in the package's own types; it encodes only these as they are."""
    from google.genai import types  # noqa: PLC0415 - loaded with the client

    try:
        return [types.Content.model_validate_json(msgspec.json.encode(content)) for content in contents]
    except ValueError:
        raise ModelError(
            "the conversation holds something of Gemini's that the google-genai package does not know; update it"
        ) from None


def _make_client(url: str, key: str, timeout_s: float, max_retries: int, connections: Any) -> Client:
    from google import genai  # noqa: PLC0415 - an extra, and slow to load
    from google.genai import types  # noqa: PLC0415 - same

    from miniclaw_sessions.agent.providers.connections import trusted  # noqa: PLC0415 - loads httpx2

    waiting = types.HttpRetryOptions(
        attempts=max_retries + 1, initial_delay=_FIRST_WAIT_S, max_delay=_LONGEST_WAIT_S, jitter=_FIRST_WAIT_S
    )
    options = types.HttpOptions(
        base_url=url,
        api_version="v1beta",
        timeout=max(1, round(timeout_s * 1000)),
        retry_options=waiting,
        httpx_async_client=connections,  # the package's own choice depends on other packages and on variables
        client_args={"verify": trusted()},  # for clients that we do not use, but the package makes anyway
        async_client_args={"ssl": trusted()},
    )
    return genai.Client(api_key=key, vertexai=False, http_options=options)


# --- putting a reply together ----------------------------------------------------------------------------------------


class _Assembly:
    """A reply that is still streaming in."""

    def __init__(self) -> None:
        self.was_blocked = False
        self._finish_reason: str | None = None
        self._parts: list[dict[str, Any]] = []
        self._reply: dict[str, Any] = {}

    @property
    def is_whole(self) -> bool:
        """Whether the service has given the reason why the model stopped."""
        return self._finish_reason is not None

    def add(self, chunk: GenerateContentResponse) -> list[TextDelta | ReasoningDelta]:
        """Add the next piece, and return the texts and the thinking that it adds."""
        fields = msgspec.to_builtins(chunk.model_dump(exclude_none=True, exclude={"sdk_http_response", "parsed"}))
        self._reply |= {name: fields[name] for name in ("usage_metadata", "model_version") if name in fields}
        self.was_blocked = self.was_blocked or "block_reason" in fields.get("prompt_feedback", {})
        if not fields.get("candidates"):
            return []
        candidate = fields["candidates"][0]
        self._finish_reason = candidate.get("finish_reason") or self._finish_reason
        parts = candidate.get("content", {}).get("parts") or []
        for part in parts:
            last = self._parts[-1] if self._parts else {}
            if part.keys() <= {"text", "thought"} and part.keys() == last.keys() and "text" in part:
                last["text"] += part["text"]
            elif part.get("text") != "" or "thought_signature" in part:  # a signed part must go back unchanged
                self._parts.append(part)
        added = ((part.get("text", ""), ReasoningDelta if part.get("thought") else TextDelta) for part in parts)
        return [kind(text) for text, kind in added if text]

    def message(self, model: str) -> Message:
        """The whole reply."""
        candidate = {"content": {"role": "model", "parts": self._parts}, "finish_reason": self._finish_reason}
        (message,) = from_google_reply({"model_version": model, **self._reply, "candidates": [candidate]})
        return plain_reply(message)
