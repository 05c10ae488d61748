"""What `POST /v1/responses` is asked for, checked: what can be done, what means nothing, and what is refused by name.

A model stands behind that the daemon's settings name, so `model` may be any name, and the response says who answered.
What a provider cannot do is refused by it, when it is known which one it is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from miniclaw_sessions.core.history.pairing import open_calls, pair
from miniclaw_sessions.core.protocol.encoding import encode_message
from miniclaw_sessions.core.protocol.entries import Custom
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message, Role
from miniclaw_sessions.core.protocol.options import FUNCTION, Options, TextFormat
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.files.formats.openai_items import to_messages
from miniclaw_sessions.service.api.openai.input_files import GivenFile, with_real_types
from miniclaw_sessions.service.api.openai.response_input import (
    OfTheService,
    check_input,
    check_schema,
    not_taken,
    refuse_each,
)
from miniclaw_sessions.service.api.openai.shapes import CreateResponse, Document, bad_request
from miniclaw_sessions.service.api.openai.stored_responses import StoredResponse
from miniclaw_sessions.service.api.openai.unseen import Unseen

_REFUSED = {
    "background": "the client that asks gets the answer; one that goes away finds it by its id",
    "prompt": "there are no stored prompts; send instructions and input",
    "top_logprobs": "no model here gives log probabilities",
    "context_management": "the daemon summarizes by itself what the model's context cannot hold",
    "moderation": "nothing is moderated here",
    "access_programs": "they are OpenAI's own",
    "image": "images are sent as they are",
}
"""Parameters that nothing stands behind, and why; a value that asks for nothing (false, 0, an empty list) is let
through."""

_LOGPROBS = "message.output_text.logprobs"
_ECHOED = (
    *("model", "instructions", "tools", "tool_choice", "parallel_tool_calls", "max_output_tokens", "temperature"),
    *("top_p", "reasoning", "text", "metadata", "truncation", "user", "safety_identifier", "prompt_cache_key"),
    *("max_tool_calls", "previous_response_id"),
)
"""What a response says again of its request."""

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_OF_A_TOOL = frozenset({"type", "name", "description", "parameters", "strict"})


class FunctionTool(msgspec.Struct, frozen=True):
    """A function of the client's that the model may call; the client runs it."""

    name: str
    description: str
    parameters: dict[str, Any]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a response, checked.

    Attributes:
        messages: what is said, as messages that give back the items as they came.
        instructions: the system prompt of this response; None: the daemon's own.
        tools: what the model may call.
        options: how it is asked.
        echo: what the response says again of its request.
        stores: whether the response is kept.
        conversation: the conversation that it belongs to.
        previous: the response that it follows.
        stream: whether its events are sent while it is made.
        key: the client's name for the request, which is done once.
        is_repeated: whether the client says that it asked before.
        of_the_service: what of the input only a service takes that speaks items itself.
        files: those of the input, with their places in the request.
        beginning: the session that it begins in, where it follows nothing: as another branch, if that is there already.
            None: a session of its own.
        as_beginning: the mark that the same request would have had, had the conversation not been there yet.
    """

    messages: tuple[Message, ...]
    instructions: str | None
    tools: tuple[FunctionTool, ...]
    options: Options
    echo: Document
    stores: bool
    conversation: str | None
    previous: str | None
    stream: bool
    key: str | None = None
    is_repeated: bool = False
    of_the_service: tuple[OfTheService, ...] = ()
    files: tuple[GivenFile, ...] = ()
    beginning: SessionKey | None = None
    as_beginning: Document | None = None

    @property
    def is_done_once(self) -> bool:
        """Whether a request that says the same is the same one."""
        return self.is_repeated or self.key is not None

    @property
    def digest(self) -> str:
        """What all requests have in common that say the same, and have the same name."""
        mark = self.as_beginning or self.mark
        return hashlib.sha256(msgspec.json.encode([mark, self.previous], order="sorted")).hexdigest()

    @property
    def mark(self) -> Document:
        """What the entry says that the response begins with."""
        belongs = {} if self.conversation is None else {"conversation": True}
        named = {} if self.key is None else {"key": self.key}
        said = hashlib.sha256()
        for message in self.messages:
            said.update(encode_message(message))
        return {"inputs": len(self.messages), "digest": said.hexdigest(), **belongs, **named, **self.echo}


def behind(wanted: Wanted, previous: str, messages: Sequence[Message]) -> Wanted:
    """The same request for a response that follows another one, with the messages that are new behind it."""
    echo = {**wanted.echo, "previous_response_id": previous}
    return msgspec.structs.replace(wanted, previous=previous, messages=tuple(messages), echo=echo)


class Place(msgspec.Struct, frozen=True):
    """Where a response is made.

    Attributes:
        key: the session.
        session: the session itself, where it belongs to no manager; it is gone with the answer.
        at: the entry that it follows; unset: the session's leaf.
        again: begins a response of a conversation that came to nothing, and is tried again: its place is decided when
            no other task has the turn (`place_again`).
        made: the response, where the request is one that was answered before.
        is_new: whether the session is still to be made; another one that is deleted meanwhile is not made again.
    """

    key: SessionKey
    session: Session | None = None
    at: str | UnsetType | None = UNSET
    again: Custom | None = None
    made: StoredResponse | None = None
    is_new: bool = False


class ResponseEvent(msgspec.Struct, frozen=True):
    """What happens on the way to a response.

    Attributes:
        kind: `begun` (its first entry is acknowledged), `answering` (the model's service has taken the request),
            `reasoning` (a piece of what the model thinks), `text` (a piece of a reply), `replied` (the reply is
            complete, another one may follow), `ended` (it is all acknowledged).
        session: whose it is.
        mark: the entry that it begins with.
        text: the piece.
    """

    kind: str
    session: Session
    mark: Custom
    text: str = ""


class Responses(Protocol):
    """Who makes responses (`api.openai.responses`).

    Attributes:
        unseen: knows which answers no client has seen.
    """

    unseen: Unseen

    def check(self, wanted: Wanted) -> None:
        """Refuse what the model that is asked for cannot do, before anything is made.

        Raises:
            OptionRefused, RequestError: it cannot.
        """
        ...

    def size(self, wanted: Wanted, before: Sequence[Message]) -> int:
        """How many tokens the model would be sent for a response, about.

        Args:
            wanted: the request.
            before: the conversation that it follows.
        """
        ...

    def respond(self, wanted: Wanted, place: Place) -> AbstractAsyncContextManager[AsyncIterator[ResponseEvent]]:
        """Begin a response and follow it; leaving the block early does not undo what was saved.

        A wait for the next event can be given up, and nothing is missed.
        """
        ...

    def is_running(self, mark_id: str) -> bool:
        """Whether the response that begins with this entry is being made in this process."""
        ...

    def stop(self, mark_id: str) -> bool:
        """Stop the response that begins with this entry; False if it is not being made in this process."""
        ...


def read_request(
    body: CreateResponse, key: str | None = None, *, is_repeated: bool = False, may_follow_alone: bool = False
) -> Wanted:
    """Check a request.

    Args:
        body: what was sent.
        key: the client's name for the request.
        is_repeated: whether the client says that it asked before.
        may_follow_alone: whether it needs no input where it follows something.

    Raises:
        RequestError: it is not one that can be answered; 400, with the parameter's name.
    """
    given = body.input
    items = [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given
    follows = body.conversation is not None or body.previous_response_id is not None
    if not items and not (may_follow_alone and follows):
        raise bad_request("Missing required parameter: 'input'.", "input", "missing_required_parameter")
    items, files = with_real_types(items or [], "input")
    of_the_service = check_input(items)
    wanted = wanted_with(body, to_messages(items), key, is_repeated=is_repeated, of_the_service=of_the_service)
    return msgspec.structs.replace(wanted, files=files)


def wanted_with(
    body: CreateResponse,
    messages: Sequence[Message],
    key: str | None = None,
    *,
    is_repeated: bool = False,
    of_the_service: tuple[OfTheService, ...] = (),
) -> Wanted:
    """Check everything of a request but its input, which is given as messages.

    Raises:
        RequestError: it is not one that can be answered; 400, with the parameter's name.
    """
    _refuse(body)
    body = msgspec.structs.replace(body, user=body.named_user())
    tools = _tools(body.tools or ())
    choice, tools = _tool_choice(body.tool_choice, tools)
    conversation = body.conversation
    return Wanted(
        messages=tuple(messages),
        of_the_service=of_the_service,
        instructions=body.instructions,
        tools=tools,
        options=Options(
            temperature=body.temperature,
            top_p=body.top_p,
            max_output_tokens=body.max_output_tokens,
            tool_choice=choice,
            parallel_tool_calls=body.parallel_tool_calls if tools else None,
            effort=None if body.reasoning is None else body.reasoning.effort,
            verbosity=None if body.text is None else body.text.verbosity,
            format=None if body.text is None else _format(body.text.format),
        ),
        echo={name: value for name in _ECHOED if (value := msgspec.to_builtins(getattr(body, name))) is not None}
        | ({} if body.store is not False else {"store": False}),
        stores=body.store is not False,
        conversation=conversation if conversation is None or isinstance(conversation, str) else conversation.id,
        previous=body.previous_response_id,
        stream=body.stream is True,
        key=key,
        is_repeated=is_repeated,
    )


def _refuse(body: CreateResponse) -> None:
    refuse_each(body, _REFUSED)
    if body.service_tier not in (None, "auto", "default"):
        raise not_taken("service_tier", "there is one, default")
    if _LOGPROBS in (body.include or ()):
        raise not_taken("include", f"no model here gives log probabilities ({_LOGPROBS})")
    if body.conversation is not None and body.previous_response_id is not None:
        sentence = "Mutually exclusive parameters: 'conversation' and 'previous_response_id'. Ensure you are only "
        raise bad_request(f"{sentence}providing one of them.", "conversation", "mutually_exclusive_parameters")


# --- input -----------------------------------------------------------------------------------------------------------


def check_calls(before: Sequence[Message], said: Sequence[Message], waiting: Collection[str]) -> None:
    """Refuse what would leave a call without its output, or an output without its call.

    Args:
        before: the conversation that the input follows.
        said: the input.
        waiting: the ids of the calls there whose outputs a client owes.

    Raises:
        RequestError: a call has no output, or an output no call; or there is nothing that could be answered (400).
    """
    whole = [*before, *said]
    answers = set(pair(whole).values())
    for place, message in enumerate(whole[len(before) :], len(before)):
        if message.is_tool_result and place not in answers:
            sentence = f"No tool call found for function call output with call_id {message.tool_call_id}."
            raise bad_request(sentence, "input")
    owed = [call.id for call in open_calls(before) if call.id in waiting]
    answered = {message.tool_call_id for message in said if message.is_tool_result}
    missing = [call_id for call_id in owed if call_id not in answered] or [call.id for call in open_calls(said)]
    if missing:
        raise bad_request(f"No tool output found for function call {missing[0]}.", "input")
    speakers = (Role.USER, Role.ASSISTANT, Role.TOOL_RESULT)
    newest = next((one for one in reversed(whole) if one.role in speakers), None)
    if newest is None:
        sentence = "The input says nothing that can be answered: a message of 'user', or an output, is expected."
        raise bad_request(sentence, "input")
    if newest.is_assistant:
        raise bad_request("The input ends with an answer; say something that can be answered.", "input")


# --- tools -----------------------------------------------------------------------------------------------------------


def _tools(given: Sequence[Document]) -> tuple[FunctionTool, ...]:
    tools = tuple(_tool(tool, f"tools[{place}]") for place, tool in enumerate(given))
    for place, tool in enumerate(tools):
        if any(tool.name == other.name for other in tools[:place]):
            raise bad_request(f"Duplicate tool name: '{tool.name}'.", f"tools[{place}].name")
    return tools


def _tool(tool: Document, name: str) -> FunctionTool:
    if tool.get("type") != "function":
        kind = str(tool.get("type"))[:50]
        raise bad_request(
            f"Unsupported value: '{kind}' is not supported with '{name}.type': the tools here are the client's own, "
            "of type 'function'.",
            f"{name}.type",
            "unsupported_value",
        )
    for field in tool.keys() - _OF_A_TOOL:
        if tool[field] not in (None, False):
            raise not_taken(f"{name}.{field}"[:100], "a function has a name, a description and parameters")
    called, described, parameters = tool.get("name"), tool.get("description"), tool.get("parameters")
    if not isinstance(called, str) or not _TOOL_NAME.fullmatch(called):
        sentence = f"Invalid '{name}.name': a text of 1 to 64 letters, digits, '_' and '-' is expected."
        raise bad_request(sentence, f"{name}.name")
    if not isinstance(described, str | None) or not isinstance(parameters, dict | None):
        wrong = "parameters" if isinstance(described, str | None) else "description"
        raise bad_request(f"Invalid type for '{name}.{wrong}'.", f"{name}.{wrong}", "invalid_type")
    if parameters:
        check_schema(parameters, f"{name}.parameters", "invalid_function_parameters")
    return FunctionTool(called, described or "", parameters or {"type": "object", "properties": {}})


def _tool_choice(
    wanted: str | Document | None, tools: tuple[FunctionTool, ...]
) -> tuple[str | None, tuple[FunctionTool, ...]]:
    """The choice as an option, and the tools that are left to choose from."""
    choice: str
    match wanted:
        case None | "auto":
            return None, tools
        case "none" | "required":
            choice = wanted
        case {"type": "function", "name": str(name)}:
            choice = FUNCTION + _offered(name, tools)
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": list(allowed)}:
            names = [tool.get("name") if isinstance(tool, dict) else None for tool in allowed]
            names = [_offered(str(name), tools) for name in names]
            tools, choice = tuple(tool for tool in tools if tool.name in names), mode
        case _:
            raise not_taken("tool_choice", "auto, none, required, a function or allowed functions are")
    if not tools and choice != "none":
        raise bad_request("Tool choice 'required' must be specified with 'tools' parameter.", "tool_choice")
    return (choice if tools and choice != "auto" else None), tools


def _offered(name: str, tools: Sequence[FunctionTool]) -> str:
    if all(tool.name != name for tool in tools):
        raise bad_request(f"Tool choice '{name[:64]}' not found in 'tools' parameter.", "tool_choice")
    return name


# --- text ------------------------------------------------------------------------------------------------------------


def _format(given: Document | None) -> TextFormat | None:
    match given:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return TextFormat()
        case {"type": "json_schema", "name": str(name), "schema": dict(schema)}:
            description, strict = given.get("description"), given.get("strict")
            is_described = isinstance(description, str | None) and isinstance(strict, bool | None)
            if is_described and _TOOL_NAME.fullmatch(name):
                check_schema(schema, "text.format.schema", "invalid_json_schema")
                return TextFormat(schema, name, description or "", strict)
        case _:
            pass
    sentence = "Invalid 'text.format': one of type 'text', 'json_object', or 'json_schema' with name and schema."
    raise bad_request(sentence, "text.format")


def place_of(option: str) -> str:
    """The parameter that an option of the model's comes from."""
    known = {"effort": "reasoning.effort", "verbosity": "text.verbosity", "format": "text.format"}
    return known.get(option, option)
