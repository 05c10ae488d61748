"""Any service that speaks OpenAI's chat completions: OpenAI itself, and most model servers.

The official `openai` package is the client; it is an extra and loaded only when a provider is made. What streams in is
put together before anything leaves here: a reply is complete or a `ModelError`, never half. Errors name the service and
what to do, and hold neither the key nor anything that was said. Key and address never come from the environment.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import urlsplit

import anyio

from miniclaw_sessions.agent.provider import ModelEvent, Reply, TextDelta
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.config import Secret
from miniclaw_sessions.errors import ConfigError, ModelError
from miniclaw_sessions.formats.openai_chat import KEPT, to_openai
from miniclaw_sessions.history.context import build_context
from miniclaw_sessions.protocol.messages import Message, Role, ToolCall, Usage

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletionChunk
    from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall
    from openai.types.completion_usage import CompletionUsage

OPENAI_URL = "https://api.openai.com/v1"
"""Where requests go unless told otherwise."""

_ADVICE = {
    400: "it found the request wrong: check the model's name and what it supports",
    401: "check the API key",
    403: "the API key may not use this model",
    404: "check base_url and the model's name",
    408: "try again",
    413: "the conversation is too large for it",
    429: "too many requests, or the quota is used up; try again later",
}


class OpenAIProvider:
    """A `Provider` for one model of a service; an async context manager that closes its connections.

    Args:
        model: the model's name.
        base_url: the service's address with its version, such as http://localhost:11434/v1; empty: OpenAI's.
        api_key: the key; a service of your own may need none.
        timeout_s: seconds for a connection, and between two pieces of a reply.
        max_retries: how often a request is repeated that failed before its reply began.

    Raises:
        ConfigError: the `openai` package is missing, or OpenAI's own service is to be used without a key.
    """

    name = "openai"

    def __init__(
        self,
        model: str,
        *,
        base_url: str = "",
        api_key: Secret | str | None = None,
        timeout_s: float = 120.0,
        max_retries: int = 2,
    ) -> None:
        if not model:
            raise ConfigError("an OpenAI provider needs the name of a model")
        if api_key is None and not base_url:
            raise ConfigError(f"{OPENAI_URL} needs an API key; give one, or the base_url of another service")
        self.model = model
        self.timeout_s = timeout_s
        self._host = urlsplit(base_url or OPENAI_URL).hostname or "the model service"
        self._client = _make_client(base_url or OPENAI_URL, api_key, timeout_s, max_retries)

    def __repr__(self) -> str:
        return f"<OpenAIProvider {self.model} at {self._host}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; the provider cannot be used again."""
        with anyio.CancelScope(shield=True):
            await self._client.close()

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        """Ask the model and stream its reply; the history is made legal first.

        Raises:
            ModelError: the service cannot be reached, refused the request, or broke off its reply.
        """
        import httpx2  # noqa: PLC0415 - loaded with the client, and not before
        import openai  # noqa: PLC0415 - same

        reply = _Assembly()
        try:
            stream = await self._client.chat.completions.create(**self._request(messages, tools))
            try:
                async for chunk in stream:
                    if text := reply.add(chunk):
                        yield TextDelta(text)
            finally:
                with anyio.CancelScope(shield=True):
                    await stream.close()
        except (openai.OpenAIError, httpx2.HTTPError, ValueError) as error:
            raise self._explained(error) from None
        if reply.stop_reason is None:
            raise ModelError(f"{self._host} broke off the reply of {self.model}; try again")
        yield Reply(reply.message(self.model))

    def _request(self, messages: Sequence[Message], tools: Sequence[Tool]) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self.model,
            "messages": to_openai(build_context(messages)),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if tools:
            request["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
                }
                for tool in tools
            ]
        return request

    def _explained(self, error: Exception) -> ModelError:
        """The error in our words: its own may quote the conversation, or the key."""
        import httpx2  # noqa: PLC0415 - loaded with the client
        import openai  # noqa: PLC0415 - same

        match error:
            case openai.APIStatusError(status_code=status):
                advice = _ADVICE.get(status, "try again later")
                return ModelError(f"{self._host} refused to run {self.model} with status {status}: {advice}")
            case openai.APITimeoutError() | httpx2.TimeoutException():
                return ModelError(f"{self._host} did not answer within {self.timeout_s:g} seconds")
            case openai.APIConnectionError() | httpx2.TransportError():
                return ModelError(f"{self._host} cannot be reached, or closed the connection; check base_url")
            case openai.APIError():
                return ModelError(f"{self._host} broke off the reply of {self.model} with an error; try again later")
            case _:
                return ModelError(f"{self._host} sent a reply that cannot be read ({type(error).__name__})")


def _make_client(base_url: str, api_key: Secret | str | None, timeout_s: float, max_retries: int) -> AsyncOpenAI:
    try:
        from openai import AsyncOpenAI  # noqa: PLC0415 - an extra, and slow to load
    except ImportError:
        raise ConfigError("the openai package is missing: pip install 'miniclaw-sessions[openai]'") from None
    key = api_key.reveal() if isinstance(api_key, Secret) else api_key
    # With no key given the client would look for one in the environment, and send it to whatever base_url says.
    return AsyncOpenAI(api_key=key or "none", base_url=base_url, timeout=timeout_s, max_retries=max_retries)


# --- putting a reply together ----------------------------------------------------------------------------------------


class _Call:
    """A tool call that is still coming in."""

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
    """A reply that is still coming in."""

    def __init__(self) -> None:
        self.stop_reason: str | None = None
        self._texts: list[str] = []
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._model: str | None = None
        self._usage: CompletionUsage | None = None

    def add(self, chunk: ChatCompletionChunk) -> str:
        """Take the next piece in and return the text that it adds."""
        self._model = chunk.model or self._model
        self._usage = chunk.usage or self._usage
        if not chunk.choices:
            return ""
        choice = chunk.choices[0]
        self.stop_reason = choice.finish_reason or self.stop_reason
        if (delta := cast("ChoiceDelta | None", choice.delta)) is None:  # as some services end
            return ""
        for fragment in delta.tool_calls or ():
            self._call_of(fragment).add(fragment)
        text = (delta.content or "") + (delta.refusal or "")
        self._texts.append(text)
        return text

    def _call_of(self, fragment: ChoiceDeltaToolCall) -> _Call:
        """The call that a fragment belongs to: that of its index, unless another id shows that a new one begins."""
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
        return Message(
            Role.ASSISTANT,
            "".join(self._texts),
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
    return Usage(
        input_tokens=(usage.prompt_tokens or 0) - cached,
        output_tokens=usage.completion_tokens or 0,
        cache_read_tokens=cached,
        total_tokens=usage.total_tokens,
    )
