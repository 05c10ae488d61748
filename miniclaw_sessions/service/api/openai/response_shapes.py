"""The shapes of responses: what `POST /v1/responses` takes, and the response itself, as the `openai` package has them.

Fields that are here so that they can be refused by name, or are echoed and mean nothing, are told apart in
`response_request`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from miniclaw_sessions.service.api.openai.shapes import Item, Metadata
from miniclaw_sessions.service.api.shapes import Body, Reply

Document = dict[str, Any]


class NamedConversation(msgspec.Struct):
    """A conversation by its id."""

    id: str


class Reasoning(msgspec.Struct, kw_only=True):
    """How much the model thinks; of its thinking, what it shows is shown, whatever summary is wanted."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class WantedReasoning(Reasoning, kw_only=True):
    """The same as a request has it."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class TextConfig(msgspec.Struct, kw_only=True):
    """What the text of the answer is to be."""

    format: Document | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class CreateResponse(Body):
    """What is asked; null is as if a field was left out."""

    input: str | list[Item] | None = None
    model: str | None = None
    instructions: str | None = None
    conversation: str | NamedConversation | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    tools: list[Document] | None = None
    tool_choice: str | Document | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    reasoning: WantedReasoning | None = None
    text: TextConfig | None = None
    metadata: Metadata | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: list[str] | None = None
    stream_options: Document | None = None
    max_tool_calls: int | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Document | None = None
    service_tier: str | None = None
    background: bool | None = None
    prompt: Document | None = None
    top_logprobs: int | None = None
    context_management: list[Document] | None = None
    moderation: Document | None = None
    access_programs: Document | None = None
    image: Document | None = None


class Mark(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the entry says that a response begins with."""

    inputs: Annotated[int, Meta(ge=0)]
    digest: str = ""
    conversation: bool = False
    key: str | None = None
    store: bool = True
    model: str | None = None
    instructions: str | None = None
    tools: list[Document] = []
    tool_choice: str | Document = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    metadata: Metadata = {}
    truncation: str = "disabled"
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    previous_response_id: str | None = None


class ResponseUsage(Reply, kw_only=True):
    """Tokens that the answer cost."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class Response(Reply, kw_only=True):
    """A response: what was asked for, and what came of it."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool = False
    completed_at: int | None = None
    error: Document | None = None
    incomplete_details: Document | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    model: str
    output: list[Item]
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    conversation: NamedConversation | None = None
    prompt_cache_key: str | None = None
    reasoning: Document
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool = True
    temperature: float | None = None
    text: Document
    tool_choice: str | Document = "auto"
    tools: list[Document]
    top_logprobs: int = 0
    top_p: float | None = None
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    metadata: dict[str, str]


# --- the events of its stream ----------------------------------------------------------------------------------------


class StreamEvent(Reply, kw_only=True):
    """An event; its `type` is its name."""

    type: str
    sequence_number: int


class ResponseStateEvent(StreamEvent, kw_only=True):
    """The response as it is now: it has begun, or it is over, and the stream with it."""

    response: Response


class OutputItemEvent(StreamEvent, kw_only=True):
    """An item of the answer begins, or is complete."""

    output_index: int
    item: Item


class OfItemEvent(StreamEvent, kw_only=True):
    """Something of the item that is open."""

    item_id: str
    output_index: int


class OfPartEvent(OfItemEvent, kw_only=True):
    """Something of the part that is open."""

    content_index: int


class ContentPartEvent(OfPartEvent, kw_only=True):
    """A part of a message, or of reasoning, begins, or is complete."""

    part: Item


class ReasoningTextDeltaEvent(OfPartEvent, kw_only=True):
    """A further piece of what the model thinks."""

    delta: str


class ReasoningTextDoneEvent(OfPartEvent, kw_only=True):
    """What the model thought, whole."""

    text: str


class OutputTextDeltaEvent(OfPartEvent, kw_only=True):
    """A further piece of the answer's text."""

    delta: str
    logprobs: list[Document]


class OutputTextDoneEvent(OfPartEvent, kw_only=True):
    """A part's whole text."""

    text: str
    logprobs: list[Document]


class CallArgumentsDeltaEvent(OfItemEvent, kw_only=True):
    """The arguments of a call, which come at once."""

    delta: str


class CallArgumentsDoneEvent(OfItemEvent, kw_only=True):
    """The arguments of a call, whole."""

    arguments: str
    name: str


class StreamErrorEvent(StreamEvent, kw_only=True):
    """The end: what failed before a response began, when the status was sent already."""

    code: str
    message: str
    param: str | None


EVENTS: dict[str, type[msgspec.Struct]] = {
    "response.created": ResponseStateEvent,
    "response.in_progress": ResponseStateEvent,
    "response.output_item.added": OutputItemEvent,
    "response.content_part.added": ContentPartEvent,
    "response.reasoning_text.delta": ReasoningTextDeltaEvent,
    "response.reasoning_text.done": ReasoningTextDoneEvent,
    "response.output_text.delta": OutputTextDeltaEvent,
    "response.output_text.done": OutputTextDoneEvent,
    "response.content_part.done": ContentPartEvent,
    "response.function_call_arguments.delta": CallArgumentsDeltaEvent,
    "response.function_call_arguments.done": CallArgumentsDoneEvent,
    "response.output_item.done": OutputItemEvent,
    "response.completed": ResponseStateEvent,
    "response.incomplete": ResponseStateEvent,
    "response.failed": ResponseStateEvent,
    "error": StreamErrorEvent,
}
"""What a stream tells, by its names."""


class ResponseDeleted(Reply, kw_only=True):
    """What is left of a response."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True
