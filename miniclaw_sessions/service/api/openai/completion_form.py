"""A response as a completion, and as the stream of chunks that clients of chat completions read.

What a model thinks stands in `reasoning_content`, as the services have it that show it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from miniclaw_sessions.service.api.openai.shapes import Document, Item, Response, ResponseUsage
from miniclaw_sessions.service.api.shapes import Reply

_RESPONSE, _COMPLETION = "resp_", "chatcmpl-"
_ENDED = b"data: [DONE]\n\n"
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class CalledFunction(Reply, kw_only=True):
    """The function that is called, and its arguments as JSON text."""

    name: str
    arguments: str


class CompletionCall(Reply, kw_only=True):
    """A call that the client runs."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class CompletionMessage(Reply, kw_only=True, omit_defaults=True):
    """What the model has said."""

    role: str
    content: str | None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CompletionCall] | None = None


class Choice(Reply, kw_only=True):
    """The answer; there is one."""

    index: int = 0
    message: CompletionMessage
    logprobs: None = None
    finish_reason: FinishReason


class CompletionUsage(Reply, kw_only=True):
    """Tokens that the answer cost."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]

    @classmethod
    def like(cls, usage: ResponseUsage | None) -> CompletionUsage:
        """The same counts by their other names; zeros where no service has known them."""
        if usage is None:
            nothing: dict[str, int] = {}
            return cls(
                prompt_tokens=0,
                completion_tokens=0,
                total_tokens=0,
                prompt_tokens_details=nothing,
                completion_tokens_details=nothing,
            )
        return cls(
            prompt_tokens=usage.input_tokens,
            completion_tokens=usage.output_tokens,
            total_tokens=usage.total_tokens,
            prompt_tokens_details={"cached_tokens": usage.input_tokens_details["cached_tokens"]},
            completion_tokens_details=usage.output_tokens_details,
        )


class Completion(Reply, kw_only=True):
    """An answer. Its `id` with `resp_` in place of `chatcmpl-` is that of the response that is kept."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage
    system_fingerprint: None = None
    service_tier: str = "default"


def completion_of(response: Response) -> Completion:
    """A response that is over, as a completion."""
    said = _Said(response.output)
    return Completion(
        id=_id_of(response),
        created=response.created_at,
        model=response.model,
        choices=[Choice(message=said.message, finish_reason=_finish_reason(response, said))],
        usage=CompletionUsage.like(response.usage),
    )


class _Said:
    """The items of an answer as the one message that a completion has."""

    def __init__(self, items: list[Item]) -> None:
        self.text = "".join(_texts(items, "output_text", "text"))
        self.reasoning = "\n\n".join(
            part["text"]
            for item in items
            if item.get("type") == "reasoning"
            for part in item.get("content") or item.get("summary") or ()
            if isinstance(part.get("text"), str)
        )
        self.refusal = "".join(_texts(items, "refusal", "refusal"))
        self.calls = [
            CompletionCall(
                id=item["call_id"], function=CalledFunction(name=item["name"], arguments=item["arguments"] or "{}")
            )
            for item in items
            if item.get("type") == "function_call"
        ]

    @property
    def message(self) -> CompletionMessage:
        is_silent = not self.text and bool(self.calls or self.refusal)
        return CompletionMessage(
            role="assistant",
            content=None if is_silent else self.text,
            refusal=self.refusal or None,
            reasoning_content=self.reasoning or None,
            tool_calls=self.calls or None,
        )


def _texts(items: list[Item], kind: str, field: str) -> list[str]:
    parts = [part for item in items if item.get("type") == "message" for part in item["content"]]
    return [part[field] for part in parts if isinstance(part, dict) and part.get("type") == kind]


def _id_of(response: Response) -> str:
    return _COMPLETION + response.id.removeprefix(_RESPONSE)


def _finish_reason(response: Response, said: _Said) -> FinishReason:
    if said.calls:
        return "tool_calls"
    match response.incomplete_details:
        case {"reason": "max_output_tokens"}:
            return "length"
        case {"reason": "content_filter"}:
            return "content_filter"
        case _:
            return "stop"


class ChunkWriter:
    """Makes the chunks; the results of its methods are sent in the order of the calls.

    Args:
        mark_id: the entry that the response begins with; the chunks have it from the response.
        is_usage_wanted: whether a last chunk, without a choice, says what the answer cost.
    """

    def __init__(self, mark_id: str, *, is_usage_wanted: bool = False) -> None:
        del mark_id
        self._is_usage_wanted = is_usage_wanted
        self._head: Document = {}
        self._text = self._reasoning = ""

    def begun(self, response: Response) -> list[bytes]:
        """The response has begun."""
        self._head = {
            "id": _id_of(response),
            "object": "chat.completion.chunk",
            "created": response.created_at,
            "model": response.model,
        }
        return [self._delta({"role": "assistant", "content": ""})]

    def text(self, delta: str) -> list[bytes]:
        """A piece of the reply's text."""
        self._text += delta
        return [self._delta({"content": delta})]

    def reasoning(self, delta: str) -> list[bytes]:
        """A piece of what the model thinks."""
        self._reasoning += delta
        return [self._delta({"reasoning_content": delta})]

    def replied(self) -> list[bytes]:
        """The reply is complete; another one may follow."""
        return []

    def ended(self, response: Response) -> list[bytes]:
        """The response is over, and stored: what was not streamed of it, and how it ended."""
        if response.status == "failed":
            error = response.error or {}
            return self.error(str(error.get("code")), str(error.get("message")))
        said = _Said(response.output)
        rest: Document = {}
        if said.text.startswith(self._text) and len(said.text) > len(self._text):
            rest["content"] = said.text[len(self._text) :]
        if said.reasoning and not self._reasoning:
            rest["reasoning_content"] = said.reasoning
        if said.refusal:
            rest["refusal"] = said.refusal
        if said.calls:
            calls = [msgspec.to_builtins(call) for call in said.calls]
            rest["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls)]
        written = [self._delta(rest)] if rest else []
        written.append(self._delta({}, _finish_reason(response, said)))
        if self._is_usage_wanted:
            usage = msgspec.to_builtins(CompletionUsage.like(response.usage))
            written.append(_event({**self._head, "choices": [], "usage": usage}))
        return [*written, _ENDED]

    def error(self, code: str, message: str) -> list[bytes]:
        """The answer failed when its status was sent already."""
        fault = {"message": message, "type": "server_error", "code": code, "param": None}
        return [_event({"error": fault})]

    def _delta(self, delta: Document, finish_reason: FinishReason | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _event({**self._head, "choices": [choice]})


def _event(data: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % msgspec.json.encode(data)
