"""Any service that speaks OpenAI's chat completions: OpenAI itself, and most model servers.

The official `openai` package is the client; it is an extra and loaded only when a provider is made. The stream is
assembled before anything leaves this module: a reply is complete or a `ModelError`, never half.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

import anyio

from miniclaw_sessions.agent.provider import Begun, ModelEvent, ReasoningDelta, Reply, TextDelta
from miniclaw_sessions.agent.providers.service import ServiceOptions, ServiceProvider, missing
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.protocol.messages import Message, Role, TextPart, ThinkingPart, ToolCall, Usage
from miniclaw_sessions.core.protocol.options import FUNCTION, Options, TextFormat
from miniclaw_sessions.files.formats.attached import PDF
from miniclaw_sessions.files.formats.codec import plain
from miniclaw_sessions.files.formats.openai_chat import KEPT, to_openai
from miniclaw_sessions.files.formats.openai_items import reasoned

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletionChunk
    from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall
    from openai.types.completion_usage import CompletionUsage

_SOUNDS = frozenset({"audio/wav", "audio/mpeg"})


class OpenAIClientProvider(ServiceProvider):
    """The common part of the providers that use the `openai` package.

    Args:
        model: the model's name.
        service: see `ServiceOptions`; a `base_url` has its version, such as http://localhost:11434/v1.

    Raises:
        ConfigError: the `openai` package is missing, no model is named, or OpenAI's own service is used without
            a key.
    """

    service_url = "https://api.openai.com/v1"
    known_options = frozenset(Options.__struct_fields__)
    files = frozenset({PDF})
    overflow = re.compile(r"maximum context length|context window|exceeds? the (available |max(imum)? )?context")

    def __init__(self, model: str, **service: Unpack[ServiceOptions]) -> None:
        super().__init__(model, **service)
        try:
            import httpx2  # noqa: PLC0415 - the extra loads it
            import openai  # noqa: PLC0415 - an extra, and slow to load

            from miniclaw_sessions.agent.providers.connections import bounded_client  # noqa: PLC0415 - loads httpx2
        except ImportError:
            raise missing("openai", "openai") from None
        self.failures = (openai.OpenAIError, httpx2.HTTPError, ValueError)
        self._client: AsyncOpenAI = openai.AsyncOpenAI(
            api_key=self._key_to_send,
            base_url=self._url,
            timeout=self.timeout_s,
            max_retries=self._max_retries,
            http_client=bounded_client(self._max_reply_bytes),
        )

    async def _close(self) -> None:
        await self._client.close()


class OpenAIProvider(OpenAIClientProvider):
    """A `Provider` for one model of a service that speaks chat completions; options as above."""

    name = "openai"

    @property
    def takes(self) -> frozenset[str]:
        """Pictures and PDF; sounds too where the model hears, as its name says."""
        return super().takes | _SOUNDS if self._url == self.service_url and "audio" in self.model else super().takes

    async def _ask(self, context: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        reply = _Assembly()
        stream = await self._client.chat.completions.create(**self._request(context, tools))
        try:
            yield Begun()
            async for chunk in stream:
                for piece in reply.add(chunk):
                    yield piece
        finally:
            with anyio.CancelScope(shield=True):
                await stream.close()
        if reply.stop_reason is None:
            raise self._broken_off()
        yield Reply(reply.message(self.model))

    def _request(self, context: Sequence[Message], tools: Sequence[Tool]) -> dict[str, Any]:
        """The request with the options in the terms of chat completions; those about tools only if there are tools."""
        wanted = self._options
        longest = "max_completion_tokens" if self._url == self.service_url else "max_tokens"  # others know the old name
        response_format: dict[str, Any] | None = None
        if wanted.format is not None and wanted.format.schema is None:
            response_format = {"type": "json_object"}
        elif wanted.format is not None:
            response_format = {"type": "json_schema", "json_schema": schema_fields(wanted.format)}
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": to_openai(context),
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": wanted.temperature,
            "top_p": wanted.top_p,
            longest: wanted.max_output_tokens,
            "reasoning_effort": wanted.effort,
            "verbosity": wanted.verbosity,
            "response_format": response_format,
            "stop": wanted.stop,
            "frequency_penalty": wanted.frequency_penalty,
            "presence_penalty": wanted.presence_penalty,
        }
        if tools:
            fields["tools"] = [{"type": "function", "function": function_of(tool)} for tool in tools]
            chosen = wanted.tool_choice or ""
            name = chosen.removeprefix(FUNCTION)
            fields["tool_choice"] = (
                {"type": "function", "function": {"name": name}} if name != chosen else chosen or None
            )
            fields["parallel_tool_calls"] = wanted.parallel_tool_calls
        return {name: value for name, value in fields.items() if value is not None}


def schema_fields(wanted: TextFormat) -> dict[str, Any]:
    """A schema for a reply's text, in OpenAI's terms."""
    fields = {"name": wanted.name, "description": wanted.description or None, "schema": wanted.schema}
    return {name: value for name, value in (fields | {"strict": wanted.strict}).items() if value is not None}


def function_of(tool: Tool) -> dict[str, Any]:
    """A tool's name, description and parameters, in OpenAI's terms."""
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


# --- putting a reply together ----------------------------------------------------------------------------------------


class _Call:
    """A tool call that is still streaming in."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments = ""
        self.kept: dict[str, Any] = {}

    def add(self, fragment: ChoiceDeltaToolCall) -> None:
        """Id and name come once, though some services repeat them; the arguments come in pieces."""
        self.id = self.id or fragment.id or ""
        self.kept |= fragment.model_extra or {}  # such as Gemini's thought signature, which it wants back
        if fragment.function is not None:
            self.name = self.name or fragment.function.name or ""
            self.arguments += fragment.function.arguments or ""

    def whole(self) -> ToolCall:
        return ToolCall(self.id, self.name, self.arguments, extra={KEPT: self.kept} if self.kept else None)


class _Assembly:
    """A reply that is still streaming in."""

    def __init__(self) -> None:
        self.stop_reason: str | None = None
        self._pieces: list[tuple[type[TextDelta | ReasoningDelta], list[str]]] = []
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._model: str | None = None
        self._usage: CompletionUsage | None = None

    def add(self, chunk: ChatCompletionChunk) -> list[TextDelta | ReasoningDelta]:
        """Add the next piece, and return what it adds."""
        self._model = chunk.model or self._model
        self._usage = chunk.usage or self._usage
        if not chunk.choices:
            return []
        choice = chunk.choices[0]
        self.stop_reason = choice.finish_reason or self.stop_reason
        if (delta := cast("ChoiceDelta | None", choice.delta)) is None:  # as some services end
            return []
        for fragment in delta.tool_calls or ():
            self._call_of(fragment).add(fragment)
        fields = delta.model_extra or {}  # OpenAI has no field for the model's thinking, and others have two
        shown = (fields.get(name) for name in ("reasoning_content", "reasoning"))
        thinking = next((text for text in shown if isinstance(text, str) and text), "")
        text = (delta.content or "") + (delta.refusal or "")
        pieces: list[TextDelta | ReasoningDelta] = [ReasoningDelta(thinking), TextDelta(text)]
        added = [piece for piece in pieces if piece.text]
        for piece in added:
            if not self._pieces or self._pieces[-1][0] is not type(piece):
                self._pieces.append((type(piece), []))
            self._pieces[-1][1].append(piece.text)
        return added

    def _call_of(self, fragment: ChoiceDeltaToolCall) -> _Call:
        """The call that a fragment belongs to: the one of its index, unless another id shows that a new one begins."""
        index = cast("int | None", fragment.index)  # some services send none
        if index is None:
            index = len(self._calls) if fragment.id else len(self._calls) - 1
        call = self._by_index.get(index)
        if call is None or (fragment.id and call.id and fragment.id != call.id):
            call = self._by_index[index] = _Call()
            self._calls.append(call)
        return call

    def message(self, model: str) -> Message:
        """The whole reply."""
        parts = tuple(
            ThinkingPart("".join(texts)) if kind is ReasoningDelta else TextPart("".join(texts))
            for kind, texts in self._pieces
        )
        return Message(
            Role.ASSISTANT,
            plain(parts),
            tool_calls=tuple(call.whole() for call in self._calls) or None,
            model=self._model or model,
            usage=_usage_of(self._usage),
            stop_reason=self.stop_reason,
        )


def _usage_of(usage: CompletionUsage | None) -> Usage | None:
    if usage is None:
        return None
    details = usage.prompt_tokens_details
    cached = (details.cached_tokens or 0) if details else 0
    thought = usage.completion_tokens_details
    cost = getattr(usage, "cost", None)  # some services other than OpenAI's own report it
    return Usage(
        input_tokens=(usage.prompt_tokens or 0) - cached,
        output_tokens=usage.completion_tokens or 0,
        cache_read_tokens=cached,
        total_tokens=usage.total_tokens,
        cost=float(cost) if isinstance(cost, int | float) else None,
        extra=reasoned(thought.model_dump() if thought else None),
    )
