"""The shapes of conversations. What a body has more than these is let through: newer clients send more."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from miniclaw_sessions.service.api.error_table import RETRY_AFTER_S, RequestError
from miniclaw_sessions.service.api.shapes import Body, Reply

MAX_ITEMS_PER_REQUEST = 20
MAX_PAGE = 100
"""Items of a page; also where a client does not say how many it wants: it asks for fewer pages then."""

MAX_METADATA = 16
Item = dict[str, Any]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=MAX_METADATA)
]

Document = dict[str, Any]
MaxTokens = Annotated[int, Meta(ge=1, le=2**31)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]

_STATUS = {410: 404, 412: 409, 422: 400}
UNSUPPORTED = "unsupported_parameter"
"""The `code` of a refusal: nothing here can do what a parameter asks for."""

ATTEMPTS = 10
"""How often something is tried again that others were before."""

_TYPES = {401: "authentication_error", 403: "permission_error", 424: "upstream_error", 429: "rate_limit_error"}
_CODES = {"model_rate_limited": "rate_limit_exceeded", "context_overflow": "context_length_exceeded"}
"""Our names for errors for which the service has a `code` of its own."""

_OF_THE_UPSTREAM = ("upstream_status", "provider_message")
_BAD_REQUEST, _NOT_FOUND, _CONFLICT, _SERVER = 400, 404, 409, 500


class Conversation(Reply, kw_only=True):
    """A session, as a conversation; its `id` is the session's."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


class ConversationDeleted(Reply, kw_only=True):
    """What is left of a conversation."""

    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


class ItemList(Reply, kw_only=True):
    """Some items; `last_id` is the `after` of the page that follows, where there are more."""

    object: Literal["list"] = "list"
    first_id: str | None
    last_id: str | None
    has_more: bool
    data: list[Item]

    @classmethod
    def holding(cls, items: list[Item], *, has_more: bool = False) -> ItemList:
        """A list of these items."""
        first_id, last_id = (items[0]["id"], items[-1]["id"]) if items else (None, None)
        return cls(first_id=first_id, last_id=last_id, has_more=has_more, data=items)


class CreateConversation(msgspec.Struct, kw_only=True):
    """What a new conversation begins with."""

    items: Annotated[list[Item], Meta(max_length=MAX_ITEMS_PER_REQUEST)] | None = None
    metadata: Metadata | None = None


class UpdateConversation(msgspec.Struct, kw_only=True):
    """All of the metadata that it has from here on; null is none."""

    metadata: Metadata | None


class CreateItems(msgspec.Struct, kw_only=True):
    """New items: all of them are added, or none."""

    items: Annotated[list[Item], Meta(min_length=1, max_length=MAX_ITEMS_PER_REQUEST)]


# --- responses -------------------------------------------------------------------------------------------------------


class NamedConversation(msgspec.Struct):
    """A conversation by its id."""

    id: str


class Reasoning(msgspec.Struct, kw_only=True):
    """How much the model thinks; of its thinking, what it shows is shown, with any summary that is wanted."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class WantedReasoning(Reasoning, kw_only=True):
    """The same as a request has it."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class TextConfig(msgspec.Struct, kw_only=True):
    """The form of the answer's text."""

    format: Document | None = None
    verbosity: Verbosity | None = None


class AnswerRequest(Body):
    """What requests for responses and for completions have in common; null is as if a field was left out."""

    model: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: Document | None = None
    tools: list[Document] | None = None
    tool_choice: str | Document | None = None
    parallel_tool_calls: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: int | None = None
    metadata: Metadata | None = None
    user: str | Document | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None

    def named_user(self) -> str | None:
        """Who asks, as a text: of an object, as Open WebUI sends it for its pipelines, the id."""
        match self.user:
            case {"id": str(named)}:
                return named
            case dict():
                return msgspec.json.encode(self.user, order="sorted").decode()
            case _:
                return self.user


class CreateResponse(AnswerRequest):
    """What is asked; null is as if a field was left out."""

    input: str | list[Item] | None = None
    instructions: str | None = None
    conversation: str | NamedConversation | None = None
    previous_response_id: str | None = None
    max_output_tokens: MaxTokens | None = None
    reasoning: WantedReasoning | None = None
    text: TextConfig | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: list[str] | None = None
    max_tool_calls: int | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Document | None = None
    background: bool | None = None
    prompt: Document | None = None
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
"""The events of a stream, by their names."""


class ResponseDeleted(Reply, kw_only=True):
    """What is left of a response."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


# --- errors ----------------------------------------------------------------------------------------------------------


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> RequestError:
    """The error for a request that is not what it must be."""
    return RequestError(_BAD_REQUEST, code, message, param=param)


def not_found(kind: str, name: str) -> RequestError:
    """The error for what is not there, or may not be seen: in the words that the service has for it."""
    return RequestError(_NOT_FOUND, "not_found", f"{kind} with id '{name}' not found.")


def contended() -> RequestError:
    """The error for what others were before, again and again: it may be asked again."""
    sentence = "others change this conversation all the time; try again"
    return RequestError(_CONFLICT, "conflict", sentence, headers={"Retry-After": str(RETRY_AFTER_S)})


def key_taken(what: str) -> RequestError:
    """The error for an idempotency key that stands for something else already."""
    return RequestError(_CONFLICT, "conflict", f"this Idempotency-Key stands for {what}; use another one")


def code_of_failure(error: RequestError) -> str:
    """Why a response failed, in the service's words: what it has none for is its server's fault."""
    if error.kind == "model_refused":
        return "invalid_prompt"
    return _CODES.get(error.kind, "server_error")


def in_openai_form(error: RequestError) -> RequestError:
    """An error as the package reads it; our own name for it is the `code`, where the service gives one."""
    status = _STATUS.get(error.status, error.status)
    kind = _TYPES.get(status, "invalid_request_error" if status < _SERVER else "server_error")
    headers = dict(error.headers)
    if (wait_s := error.details.get("retry_after_s")) is not None:
        headers["retry-after-ms"] = str(round(wait_s * 1000))  # the package looks at it first
    if status == _CONFLICT and "Retry-After" not in headers:
        headers["x-should-retry"] = "false"  # the same request would meet the same conflict
    code = error.details.get("code", None if status == _NOT_FOUND else _CODES.get(error.kind, error.kind))
    upstream = {name: error.details[name] for name in _OF_THE_UPSTREAM if name in error.details}
    details = {"code": code, **upstream}
    return RequestError(
        status, kind, error.message, param=error.param, headers=headers, details=details, close=error.close
    )
