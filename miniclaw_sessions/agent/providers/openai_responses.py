"""OpenAI's Responses, and servers that speak it: the only interface of OpenAI's that keeps a model's reasoning.

Nothing is stored at the service: each request holds the whole conversation, with the reasoning as the service's
encrypted items. They are kept in the reply and go back verbatim, at their place.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import anyio

from miniclaw_sessions.agent.provider import Begun, ModelEvent, ReasoningDelta, Reply, TextDelta
from miniclaw_sessions.agent.providers.openai import OpenAIClientProvider, function_of, schema_fields
from miniclaw_sessions.agent.providers.service import ServiceOptions, plain_reply
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.protocol.messages import Message, Role
from miniclaw_sessions.core.protocol.options import FUNCTION
from miniclaw_sessions.errors import ModelError
from miniclaw_sessions.files.formats.openai_items import from_response, to_items

if TYPE_CHECKING:
    from openai import AsyncStream
    from openai.types.responses import ResponseStreamEvent


class OpenAIResponsesProvider(OpenAIClientProvider):
    """A `Provider` for one model of a service that speaks Responses.

    Args:
        model: the model's name.
        reasoning: whether to ask for the model's reasoning, encrypted, and for a summary that people can read. A model
            that does not reason (gpt-4o) refuses the question, as OpenAI refuses summaries to organizations that it
            has not verified; what is refused is not asked for again.
        effort: how much the model reasons, such as "low"; empty: the model's default.
        max_output_tokens: the limit of a reply, reasoning included; None: the model's own.
        service: see `ServiceOptions`.

    Raises:
        ConfigError: the `openai` package is missing, no model is named, or OpenAI's own service is used without
            a key.
    """

    name = "openai-responses"
    takes_items = True
    known_options = OpenAIClientProvider.known_options - {"stop", "frequency_penalty", "presence_penalty"}

    def __init__(
        self,
        model: str,
        *,
        reasoning: bool = True,
        effort: str = "",
        max_output_tokens: int | None = None,
        **service: Unpack[ServiceOptions],
    ) -> None:
        super().__init__(model, **service)
        self._settings: dict[str, Any] = {}
        if reasoning:
            self._settings["include"] = ["reasoning.encrypted_content"]
        self._reasoning: dict[str, str] = {"summary": "auto"} if reasoning else {}
        if effort:
            self._reasoning["effort"] = effort
        if max_output_tokens is not None:
            self._settings["max_output_tokens"] = max_output_tokens

    async def _ask(self, context: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        response: Any = None
        paragraphs: set[tuple[int, int]] = set()  # those of what is shown of the reasoning; an empty line parts them
        stream = await self._open(self._request(context, tools))
        try:
            yield Begun()
            async for event in stream:
                match event.type:
                    case "response.output_text.delta" | "response.refusal.delta":
                        yield TextDelta(event.delta)
                    case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                        place = event.output_index, getattr(event, "summary_index", -1)
                        begins = bool(paragraphs) and place not in paragraphs
                        paragraphs.add(place)
                        yield ReasoningDelta(f"\n\n{event.delta}" if begins else event.delta)
                    case "response.completed" | "response.incomplete":
                        response = event.response
                    case "response.failed":
                        raise self._failed(event.response.error)
                    case "error":
                        raise self._failed(event)
        finally:
            with anyio.CancelScope(shield=True):
                await stream.close()
        if response is None:
            raise self._broken_off()
        messages = from_response(response.to_dict(mode="json")) or [Message(Role.ASSISTANT)]
        if len(messages) > 1 or not messages[0].is_assistant:
            raise ModelError(f"{self._host} sent a reply with items that no model makes")
        yield Reply(plain_reply(messages[0]))

    async def _open(self, request: dict[str, Any]) -> AsyncStream[ResponseStreamEvent]:
        from openai import BadRequestError  # noqa: PLC0415 - loaded with the client

        while True:
            try:
                stream: AsyncStream[ResponseStreamEvent] = await self._client.responses.create(**request)
            except BadRequestError as error:
                if error.param == "include" and request.pop("include", None):
                    self._settings.pop("include", None)
                elif error.param == "reasoning.summary" and request.get("reasoning", {}).pop("summary", None):
                    self._reasoning.pop("summary", None)
                    request["reasoning"] = request["reasoning"] or None
                else:
                    raise
            else:
                return stream

    def _request(self, context: Sequence[Message], tools: Sequence[Tool]) -> dict[str, Any]:
        """The request with the options in the terms of Responses; those about tools only if there are tools."""
        wanted = self._options
        text: dict[str, Any] = {} if wanted.verbosity is None else {"verbosity": wanted.verbosity}
        if wanted.format is not None:
            is_any = wanted.format.schema is None
            text["format"] = (
                {"type": "json_object"} if is_any else {"type": "json_schema", **schema_fields(wanted.format)}
            )
        fields: dict[str, Any] = {
            "temperature": wanted.temperature,
            "top_p": wanted.top_p,
            "max_output_tokens": wanted.max_output_tokens,
            "reasoning": self._reasoning | ({} if wanted.effort is None else {"effort": wanted.effort}) or None,
            "text": text or None,
        }
        if tools:
            # by default the service makes a tool strict, and then refuses schemas with optional fields
            fields["tools"] = [{"type": "function", "strict": False, **function_of(tool)} for tool in tools]
            chosen = wanted.tool_choice or ""
            name = chosen.removeprefix(FUNCTION)
            fields["tool_choice"] = {"type": "function", "name": name} if name != chosen else chosen or None
            fields["parallel_tool_calls"] = wanted.parallel_tool_calls
        return {
            "model": self.model,
            "input": to_items(context, for_request=True),
            "stream": True,
            "store": False,
            **self._settings,
            **{name: value for name, value in fields.items() if value is not None},
        }

    def _failed(self, said: Any) -> ModelError:
        """The error for a reply that the service itself ended with an error."""
        fields = {"code": getattr(said, "code", None), "message": getattr(said, "message", None)}
        return self._overflowed() if self._is_about_overflow(fields) else self._broken_off(fields)
