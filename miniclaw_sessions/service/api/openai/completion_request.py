"""What `POST /v1/chat/completions` is asked for, checked, in the terms of a response.

A request has the whole conversation. What its last answer follows is found (`known_branches`); the rest is the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from miniclaw_sessions.core.protocol.messages import Message, Role
from miniclaw_sessions.core.protocol.options import Options
from miniclaw_sessions.files.formats.openai_chat import from_openai
from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.api.openai.input_files import GivenFile, with_real_types
from miniclaw_sessions.service.api.openai.response_input import (
    Look,
    check_content,
    check_image,
    check_sound,
    check_text,
    need_text,
    not_one_of,
    not_taken,
    refuse_each,
    wrong,
)
from miniclaw_sessions.service.api.openai.response_request import Wanted, wanted_with
from miniclaw_sessions.service.api.openai.shapes import (
    AnswerRequest,
    CreateResponse,
    Document,
    Effort,
    MaxTokens,
    TextConfig,
    Verbosity,
    WantedReasoning,
)

SESSION = "session"
"""The name in a request's metadata under which it names the session that it speaks in."""

_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_REFUSED = {
    "logprobs": "no model here gives log probabilities",
    "top_logprobs": "no model here gives log probabilities",
    "logit_bias": "no model here takes it",
    "functions": "send them as tools",
    "function_call": "send tool_choice",
    "audio": "the answers are texts",
    "web_search_options": "the tools here are the client's own",
}
"""Parameters that nothing stands behind, and why; a value that asks for nothing is let through."""

_PARAMETERS = {
    "effort": "reasoning_effort",
    "format": "response_format",
    "max_output_tokens": "max_completion_tokens",
    "reasoning.effort": "reasoning_effort",
    "text.format": "response_format",
    "text.verbosity": "verbosity",
    "input": "messages",
}
"""The names of options, and of parameters of a response, in a request for a completion."""


class CreateCompletion(AnswerRequest, kw_only=True):
    """What is asked; null is as if a field was left out."""

    messages: Annotated[list[Document], Meta(min_length=1)]
    max_completion_tokens: MaxTokens | None = None
    max_tokens: MaxTokens | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    stop: str | Annotated[list[str], Meta(max_length=16)] | None = None
    reasoning_effort: Effort | None = None
    verbosity: Verbosity | None = None
    response_format: Document | None = None
    n: int | None = None
    seed: int | None = None
    modalities: list[str] | None = None
    prediction: Document | None = None
    logprobs: bool | None = None
    logit_bias: Document | None = None
    functions: list[Document] | None = None
    function_call: str | Document | None = None
    audio: Document | None = None
    web_search_options: Document | None = None


class Conversation(msgspec.Struct, frozen=True):
    """The messages of a request.

    Attributes:
        instructions: the texts of the system at its beginning; None: there are none.
        messages: what follows, as it was sent.
        files: those within it, with their places in the request.
    """

    instructions: str | None
    messages: tuple[Message, ...]
    files: tuple[GivenFile, ...] = ()

    @property
    def behind_answer(self) -> tuple[Message, ...]:
        """What follows the last answer."""
        ends = [place for place, message in enumerate(self.messages, 1) if message.is_assistant]
        return self.messages[ends[-1] :] if ends else self.messages

    @property
    def opening(self) -> tuple[Message, ...]:
        """What precedes the first answer."""
        ends = (place for place, message in enumerate(self.messages) if message.is_assistant)
        return self.messages[: next(ends, len(self.messages))]


def read_conversation(given: Sequence[Document]) -> Conversation:
    """Check the messages of a request.

    Raises:
        RequestError: a message is of no known shape, or has something that no model here is shown (400, with its place
            as `param`).
    """
    real, files = with_real_types(given, "messages")
    read = [_message(fields, f"messages[{place}]") for place, fields in enumerate(real)]
    begins = next((place for place, message in enumerate(read) if message.role is not Role.SYSTEM), len(read))
    texts = [message.text for message in read[:begins]]
    return Conversation("\n\n".join(texts) if texts else None, tuple(read[begins:]), files)


def read_completion(
    body: CreateCompletion, conversation: Conversation, key: str | None = None, *, is_repeated: bool = False
) -> Wanted:
    """A request as one for a response to the whole conversation.

    Args:
        body: what was sent.
        conversation: its messages.
        key: the client's name for the request.
        is_repeated: whether the client says that it asked before.

    Raises:
        RequestError: it is not one that can be answered (400, with the parameter's name).
    """
    _refuse(body)
    metadata = {name: value for name, value in (body.metadata or {}).items() if name != SESSION}
    form = None if body.response_format is None else _text_format(body.response_format)
    try:
        asked = CreateResponse(
            **{
                **{name: getattr(body, name) for name in AnswerRequest.__struct_fields__},
                "instructions": conversation.instructions,
                "tools": None if body.tools is None else [_flat(tool) for tool in body.tools],
                "tool_choice": _flat(body.tool_choice) if isinstance(body.tool_choice, dict) else body.tool_choice,
                "max_output_tokens": body.max_completion_tokens or body.max_tokens,
                "reasoning": None if body.reasoning_effort is None else WantedReasoning(effort=body.reasoning_effort),
                "text": TextConfig(format=form, verbosity=body.verbosity) if form or body.verbosity else None,
                "metadata": metadata or None,
            }
        )
        wanted = wanted_with(asked, conversation.messages, key, is_repeated=is_repeated)
    except RequestError as error:
        raise in_words_of_completions(error) from error
    options = _with_more_options(wanted.options, body)
    return msgspec.structs.replace(wanted, options=options, files=conversation.files)


def in_words_of_completions(error: RequestError) -> RequestError:
    """An error of a response, with the names that the parameters have here."""
    if error.param is None or (name := parameter_of(error.param)) == error.param:
        return error
    message = error.message.replace(f"'{error.param}'", f"'{name}'").replace("The input", "The conversation")
    return RequestError(
        error.status, error.kind, message, param=name, headers=error.headers, details=error.details, close=error.close
    )


def parameter_of(name: str) -> str:
    """The name that an option, or a parameter of a response, has in a request for a completion."""
    known = next((one for one in _PARAMETERS if name == one or name.startswith(f"{one}.")), None)
    if known is not None:
        return _PARAMETERS[known] + name.removeprefix(known)
    within, dot, field = name.partition("].")
    return f"{within}].function.{field}" if dot and within.startswith("tools[") and field != "type" else name


def _refuse(body: CreateCompletion) -> None:
    refuse_each(body, _REFUSED)
    if body.n not in (None, 1):
        raise not_taken("n", "a request has one answer; ask again for another one")
    if "audio" in (body.modalities or ()):
        raise not_taken("modalities", "the answers are texts")


def _with_more_options(options: Options, body: CreateCompletion) -> Options:
    """With what only completions have; a penalty of 0 is none."""
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return msgspec.structs.replace(
        options,
        stop=stop or None,
        frequency_penalty=body.frequency_penalty or None,
        presence_penalty=body.presence_penalty or None,
    )


def _flat(tool: Document) -> Document:
    """A tool, or the choice of one, as a response has it: the function's fields stand beside its type."""
    match tool:
        case {"type": "function", "function": dict(function), **rest}:
            return {**rest, "type": "function", **function}
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}:
            flat = [_flat(one) if isinstance(one, dict) else one for one in tools]
            return {"type": "allowed_tools", "mode": mode, "tools": flat}
        case _:
            return tool


def _text_format(given: Document) -> Document:
    match given:
        case {"type": "json_schema", "json_schema": dict(schema)}:
            return {"type": "json_schema", **schema}
        case _:
            return given


# --- messages --------------------------------------------------------------------------------------------------------


def _message(fields: Document, at: str) -> Message:
    role = fields.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise not_one_of(f"{at}.role", role, _ROLES)
    kept = _ROLES[role](fields, at)
    (message,) = from_openai([{"role": role, **{name: value for name, value in kept.items() if value is not None}}])
    return message


def _of_a_system(fields: Document, at: str) -> Document:
    return {"content": _content(fields, at, _TEXTS)}


def _of_a_user(fields: Document, at: str) -> Document:
    name = fields.get("name")
    return {"content": _content(fields, at, _PARTS), "name": name if isinstance(name, str) and name else None}


def _of_a_tool(fields: Document, at: str) -> Document:
    need_text(fields, "tool_call_id", at)
    if not fields["tool_call_id"]:
        raise wrong(f"{at}.tool_call_id", "a text", None)
    return {"content": _content(fields, at, _TEXTS), "tool_call_id": fields["tool_call_id"]}


def _of_an_assistant(fields: Document, at: str) -> Document:
    if fields.get("function_call") is not None:
        raise not_taken(f"{at}.function_call", "send tool_calls")
    calls = fields.get("tool_calls") or []
    if not isinstance(calls, list):
        raise wrong(f"{at}.tool_calls", "a list", calls)
    made = [_call(call, f"{at}.tool_calls[{place}]") for place, call in enumerate(calls)]
    if fields.get("content") is None:
        refusal = fields.get("refusal")
        content: Any = refusal if isinstance(refusal, str) else ""
    else:
        content = _content(fields, at, _OF_ANSWERS)
    return {"content": content, "tool_calls": made or None}


def _call(call: Any, at: str) -> Document:
    if not isinstance(call, dict):
        raise wrong(at, "an object", call)
    need_text(call, "id", at)
    function = call.get("function")
    if call.get("type", "function") != "function" or not isinstance(function, dict):
        raise wrong(f"{at}.function", "a function with name and arguments", None)
    for field in ("name", "arguments"):
        need_text(function, field, f"{at}.function")
    named = {"name": function["name"], "arguments": function["arguments"]}
    return {"id": call["id"], "type": "function", "function": named}


def _content(fields: Document, at: str, known: Mapping[str, Look]) -> Any:
    content = fields.get("content")
    if content is None:
        raise wrong(f"{at}.content", "a text or a list of parts", None)
    tuple(check_content(content, f"{at}.content", known))
    return content if isinstance(content, str) else [_part(part) for part in content]


def _part(part: Document) -> Document:
    match part:
        case {"type": "image_url", "image_url": {"url": url, "detail": str(detail)}} if detail != "auto":
            return {"type": "image_url", "image_url": {"url": url, "detail": detail}}
        case {"type": "image_url", "image_url": {"url": url}}:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": "refusal", "refusal": text}:
            return {"type": "text", "text": text}
        case {"type": "file", "file": file}:
            return {"type": "file", "file": {"filename": file["filename"], "file_data": file["file_data"]}}
        case {"type": "input_audio", "input_audio": sound}:
            return {"type": "input_audio", "input_audio": {"data": sound["data"], "format": sound["format"]}}
        case _:
            return {"type": "text", "text": part["text"]}


def _image(part: Document, at: str) -> Sequence[Any]:
    image = part.get("image_url")
    if not isinstance(image, dict):
        raise wrong(f"{at}.image_url", "an object with a url", image)
    return tuple(check_image({"image_url": image.get("url")}, at))


def _file(part: Document, at: str) -> Sequence[Any]:
    file = part.get("file")
    if not isinstance(file, dict):
        raise wrong(f"{at}.file", "an object with file_data", file)
    if file.get("file_id") is not None and file.get("file_data") is None:
        raise not_taken(f"{at}.file.file_id", "there is no such file; upload it (POST /v1/files), or send file_data")
    need_text(file, "file_data", f"{at}.file")
    return ()


_TEXTS: Mapping[str, Look] = {"text": check_text}
_OF_ANSWERS: Mapping[str, Look] = {"text": check_text, "refusal": partial(check_text, field="refusal")}
_PARTS: Mapping[str, Look] = {"text": check_text, "image_url": _image, "input_audio": check_sound, "file": _file}
_ROLES = {
    "assistant": _of_an_assistant,
    "developer": _of_a_system,
    "system": _of_a_system,
    "tool": _of_a_tool,
    "user": _of_a_user,
}
