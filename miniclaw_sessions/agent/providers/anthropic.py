"""Anthropic's Messages API, and services that speak it.

The official `anthropic` package is the client; it is an extra and loaded only when a provider is made. The package's
own assembly of a stream completes the arguments of a call that was cut off, so that they look whole. Here they stay the
text that came.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

import anyio
import msgspec

from miniclaw_sessions.agent.provider import Begun, ModelEvent, ReasoningDelta, Reply, TextDelta
from miniclaw_sessions.agent.providers.service import ServiceOptions, ServiceProvider, missing, plain_reply
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.protocol.options import FUNCTION, Options
from miniclaw_sessions.errors import ConfigError, OptionRefused
from miniclaw_sessions.files.formats.anthropic import from_anthropic, to_anthropic
from miniclaw_sessions.files.formats.attached import PDF
from miniclaw_sessions.files.formats.tool_calls import arguments_object

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

MAX_TOKENS = 8192
"""The default limit of an answer; the service requires a number."""

LEAST_THINKING = 1024
"""Tokens; the service refuses a smaller budget."""

_CACHE_MARK = {"type": "ephemeral"}


class AnthropicProvider(ServiceProvider):
    """A `Provider` for one model of a service that speaks the Messages API.

    Args:
        model: the model's name.
        max_tokens: the limit of an answer; thinking within a budget is not counted.
        thinking: how many tokens the model may think before it answers, at least 1024; "adaptive": the model decides,
            if it can; None or 0: not at all.
        cache: whether to ask the service to cache the input, so that the next request costs a tenth for it.
        service: see `ServiceOptions`.

    Raises:
        ConfigError: the `anthropic` package is missing, no model is named, Anthropic's own service is used
            without a key, or an option is out of bounds.
    """

    name = "anthropic"
    service_url = "https://api.anthropic.com"
    known_options = frozenset(
        {"temperature", "top_p", "max_output_tokens", "tool_choice", "parallel_tool_calls", "effort", "format", "stop"}
    )
    files = frozenset({PDF})
    overflow = re.compile(r"^prompt is too long|exceed(s|ed)? (the )?(model )?context (limit|window)", re.IGNORECASE)

    def __init__(
        self,
        model: str,
        *,
        max_tokens: int = MAX_TOKENS,
        thinking: int | Literal["adaptive"] | None = None,
        cache: bool = True,
        **service: Unpack[ServiceOptions],
    ) -> None:
        super().__init__(model, **service)
        thinking = thinking or None
        if max_tokens < 1 or (isinstance(thinking, int) and thinking < LEAST_THINKING):
            raise ConfigError(f"max_tokens must be positive, and thinking at least {LEAST_THINKING} tokens")
        try:
            import anthropic  # noqa: PLC0415 - an extra, and slow to load
            import httpx2  # noqa: PLC0415 - the extra loads it

            from miniclaw_sessions.agent.providers.connections import bounded_client  # noqa: PLC0415 - loads httpx2
        except ImportError:
            raise missing("anthropic", "anthropic") from None
        self.failures = (anthropic.AnthropicError, httpx2.HTTPError, ValueError)
        self._max_tokens = max_tokens
        self._thinking = thinking
        self._cache = cache
        self._client: AsyncAnthropic = anthropic.AsyncAnthropic(
            api_key=self._key_to_send,
            base_url=self._url,
            timeout=self.timeout_s,
            max_retries=self._max_retries,
            http_client=bounded_client(self._max_reply_bytes),
        )

    async def _close(self) -> None:
        await self._client.close()

    async def _ask(self, context: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        reply = _Assembly()
        stream = await self._client.messages.create(**self._request(context, tools))
        try:
            yield Begun()
            async for event in stream:
                if piece := reply.add(event.to_dict(mode="json")):
                    yield piece
        finally:
            with anyio.CancelScope(shield=True):
                await stream.close()
        if not reply.is_whole:
            raise self._broken_off()
        yield Reply(reply.message())

    # --- the request -------------------------------------------------------------------------------------------------

    def _request(self, context: Sequence[Message], tools: Sequence[Tool]) -> dict[str, Any]:
        """The request with the options in the terms of the Messages API; those about tools only if there are tools."""
        conversation, wanted = _without_marks(to_anthropic(context)), self._options
        request = {
            "model": self.model,
            "max_tokens": wanted.max_output_tokens or self._max_tokens,
            "stream": True,
            **(_marked(conversation) if self._cache else conversation),
        }
        if tools:
            request["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in tools
            ]
        if self._thinking == "adaptive":
            request["thinking"] = {"type": "adaptive"}
        elif self._thinking is not None and not _continues_without_thinking(conversation["messages"]):
            request["thinking"] = {"type": "enabled", "budget_tokens": self._thinking}
            request["max_tokens"] += self._thinking
        output: dict[str, Any] = {} if wanted.effort is None else {"effort": wanted.effort}
        if wanted.format is not None:
            output["format"] = {"type": "json_schema", "schema": wanted.format.schema}
        sampling = {"temperature": wanted.temperature, "top_p": wanted.top_p}  # the package knows them no more
        fields = {
            "extra_body": {name: value for name, value in sampling.items() if value is not None} or None,
            "output_config": output or None,
            "stop_sequences": list(wanted.stop) if wanted.stop else None,
            "tool_choice": _tool_choice(wanted) if tools else None,
        }
        return request | {name: value for name, value in fields.items() if value is not None}

    def with_options(self, options: Options) -> Self:
        """The same model over the same connections, with these options.

        Raises:
            OptionRefused: the service does not support one of them; of formats, it accepts one with a schema.
        """
        if options.format is not None and options.format.schema is None:
            raise OptionRefused("format", "the provider anthropic takes a format with a schema, and no other")
        return super().with_options(options)


def _tool_choice(wanted: Options) -> dict[str, Any] | None:
    if wanted.tool_choice is None and wanted.parallel_tool_calls is None:
        return None
    chosen = wanted.tool_choice or "auto"
    name = chosen.removeprefix(FUNCTION)
    if name != chosen:
        choice: dict[str, Any] = {"type": "tool", "name": name}
    else:
        choice = {"type": "any" if chosen == "required" else chosen}
    if wanted.parallel_tool_calls is False and chosen != "none":
        choice["disable_parallel_tool_use"] = True
    return choice


def _continues_without_thinking(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last reply calls tools without thinking first, as other models' replies do.

    After such a reply the service refuses a budget: the next answer must not think either.
    """
    replies = [message["content"] for message in messages if message["role"] == "assistant"]
    if not replies or isinstance(replies[-1], str):
        return False
    kinds = [block["type"] for block in replies[-1]]
    return "tool_use" in kinds and not kinds[0].endswith("thinking")


# --- what the service keeps ------------------------------------------------------------------------------------------


def _marked(conversation: Mapping[str, Any]) -> dict[str, Any]:
    """The conversation with a cache mark behind the system prompt, and one behind the last message that is no reply.

    The next request begins with everything up to the second mark, so the service finds it in its cache.
    """
    messages = list(conversation["messages"])
    last = next((index for index in reversed(range(len(messages))) if messages[index]["role"] == "user"), None)
    if last is not None:
        messages[last] = {**messages[last], "content": _marked_content(messages[last]["content"])}
    system = conversation.get("system")
    return {**({"system": _marked_content(system)} if system else {}), "messages": messages}


def _marked_content(content: str | Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    return [*blocks[:-1], {**blocks[-1], "cache_control": _CACHE_MARK}]


def _without_marks(conversation: Mapping[str, Any]) -> dict[str, Any]:
    """The conversation without the marks of other programs: the service accepts four in all."""
    messages = [{**message, "content": _unmarked(message["content"])} for message in conversation["messages"]]
    system = conversation.get("system")
    return {**({"system": _unmarked(system)} if system else {}), "messages": messages}


def _unmarked(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    blocks = [{name: value for name, value in block.items() if name != "cache_control"} for block in content]
    return [{**block, "content": _unmarked(block["content"])} if "content" in block else block for block in blocks]


# --- putting a reply together ----------------------------------------------------------------------------------------


class _Assembly:
    """A reply that is still streaming in."""

    def __init__(self) -> None:
        self.is_whole = False
        self._reply: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._arguments: dict[int, str] = {}

    def add(self, event: Mapping[str, Any]) -> TextDelta | ReasoningDelta | None:
        """Add the next event, and return the text or the thinking that it adds; None: neither."""
        match event:
            case {"type": "message_start", "message": dict(message)}:
                self._reply = message
                self._count(message.get("usage"))
            case {"type": "content_block_start", "index": int(index), "content_block": dict(block)}:
                self._blocks[index] = block
                return TextDelta(text) if (text := str(block.get("text", ""))) else None
            case {"type": "content_block_delta", "index": int(index), "delta": dict(delta)}:
                return self._add_delta(index, delta)
            case {"type": "message_delta", "delta": dict(delta)}:
                self._reply |= delta
                self._count(event.get("usage"))
            case {"type": "message_stop"}:
                self.is_whole = self._reply.get("stop_reason") is not None
        return None

    def _add_delta(self, index: int, delta: Mapping[str, Any]) -> TextDelta | ReasoningDelta | None:
        block = self._blocks.setdefault(index, {})
        match delta:
            case {"type": "text_delta", "text": str(text)}:
                block["text"] = block.get("text", "") + text
                return TextDelta(text) if text else None
            case {"type": "input_json_delta", "partial_json": str(piece)}:
                self._arguments[index] = self._arguments.get(index, "") + piece
            case {"type": "thinking_delta", "thinking": str(text)}:
                block["thinking"] = block.get("thinking", "") + text
                return ReasoningDelta(text) if text else None
            case {"type": "signature_delta", "signature": str(signature)}:
                block["signature"] = signature
            case {"type": "citations_delta", "citation": dict(citation)}:
                block["citations"] = [*(block.get("citations") or ()), citation]
        return None

    def _count(self, usage: Any) -> None:
        """The counts at the end replace those at the beginning; null means not counted."""
        if isinstance(usage, dict):
            self._usage |= {name: value for name, value in usage.items() if value is not None}

    def message(self) -> Message:
        """The whole reply, with the arguments of its calls as they were sent."""
        blocks: list[dict[str, Any]] = []
        streamed: list[str] = []
        for index, block in sorted(self._blocks.items()):
            if block.get("type") == "tool_use":
                streamed.append(self._arguments.get(index, ""))
                blocks.append(block)
            elif index in self._arguments:  # the service's own calls have their arguments as an object
                blocks.append({**block, "input": arguments_object(self._arguments[index])})
            else:
                blocks.append(block)
        (message,) = from_anthropic([{**self._reply, "content": blocks, "usage": self._usage}])
        if message.tool_calls:
            calls = zip(message.tool_calls, streamed, strict=True)
            exact = tuple(msgspec.structs.replace(call, arguments=text or call.arguments) for call, text in calls)
            message = msgspec.structs.replace(message, tool_calls=exact)
        return plain_reply(message)
