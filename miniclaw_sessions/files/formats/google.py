"""Google's Gemini API (`contents`), from and to canonical messages.

`to_google` expects what `history.context.build_context` returns, and gives exactly what the service accepts: the roles
user and model in turn, arguments and responses as objects, the responses of one model turn in one content, system
messages as `system_instruction`. It is written as the google-genai SDK's dict form in JSON: snake_case, bytes as
base64. `from_google` understands camelCase too, and keeps every field that the canonical form has no place for
(`thought_signature`, ...) under `extra["google"]`, from where `to_google` writes it back. The `extra` of other formats
is never sent.

The rules come from the service's documentation ("Function calling", "Thought signatures", the reference of `Content`)
and from what it answers to requests that break them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from miniclaw_sessions.core.protocol.images import inlined
from miniclaw_sessions.core.protocol.messages import (
    ImagePart,
    Message,
    OtherPart,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
    Usage,
)
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.attached import attached
from miniclaw_sessions.files.formats.codec import (
    count_of,
    has_kept,
    in_order,
    keeping,
    kept_apart,
    kept_but,
    kept_fields,
    marked,
    taken,
    taken_apart,
    text_of,
    without,
)
from miniclaw_sessions.files.formats.message_list import (
    IMAGES_OF_RESULTS,
    NOTHING_TO_SHOW,
    MessageList,
    MessageReader,
    Request,
    message_list_format,
)
from miniclaw_sessions.files.formats.tool_calls import CallIds, arguments_object, arguments_text, fitting_name

KEPT = "google"
"""The key of `extra` under which fields without a canonical place are kept.

On a message it also says that the parts of unknown type in it are this service's own; on thinking, that it is.
"""

SKIP_VALIDATION = "skip_thought_signature_validator"
"""What the documentation gives as the signature of a call that another model made; see `to_google`."""

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LONGEST_NAME = 64
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")
_IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"})
_CAMEL = re.compile(r"(?<=[a-z0-9])([A-Z])")
_OF_THE_FUNCTION = frozenset({"args", "response", "part_metadata"})  # the names in it are the function's own
_COUNTED = ("prompt", "tool_use_prompt", "cached_content", "candidates", "thoughts")
_WITHOUT_ID = "without_id"
_WHOLE_RESPONSE = "whole_response"
_IMAGES_INSIDE = "images_inside"
_SAID = ("text", "thought", "inline_data", "file_data", "function_call", "function_response")  # one of them in a part
_NOTES = (_WITHOUT_ID, _WHOLE_RESPONSE, _IMAGES_INSIDE)  # how it was said, not what: never sent


# --- writing ---------------------------------------------------------------------------------------------------------


def to_google(messages: Sequence[Message], *, stand_in: str | None = None) -> dict[str, Any]:
    """A legal context as the `contents`, and where there is one the `system_instruction`, of a request.

    Thinking is sent only if this service signed it or gave it. Images in a tool result follow the results as a user's
    content, because not every model takes them inside; those that came inside are written there.

    Args:
        messages: what `build_context` returns; other roles than its four are written as the user's.
        stand_in: the signature of a call that has none. Gemini 3 refuses calls of the current turn without one, and
            `SKIP_VALIDATION` is what its documentation gives for calls of other models; older models need none.
    """
    request = _Request(stand_in)
    return {"contents": request.all_of(messages), **request.system_fields()}


class _Request(Request):
    def __init__(self, stand_in: str | None = None) -> None:
        self._stand_in = stand_in
        self._ids = CallIds(_ID)
        self._names: dict[str, str] = {}  # of the calls that were written, for their responses
        self._without_id: set[str] = set()
        self._images: list[dict[str, Any]] = []
        self._contents: list[dict[str, Any]] = []  # the last one may grow
        self._system: list[dict[str, Any]] = []

    def add(self, message: Message) -> list[dict[str, Any]]:
        if message.role is Role.SYSTEM:
            self._system += [
                _write_text(part) for part in in_order(message) if isinstance(part, TextPart) and part.text
            ]
        elif message.is_tool_result:
            self._put_response(message)
        else:
            self._show_images()
            role = "model" if message.is_assistant else "user"
            self._put(role, self._parts_of(message))
        done, self._contents = self._contents[:-1], self._contents[-1:]
        return done

    def end(self) -> list[dict[str, Any]]:
        self._show_images()
        return self._contents

    def _parts_of(self, message: Message) -> list[dict[str, Any]]:  # noqa: C901 - one case for each part
        written: list[dict[str, Any]] = []
        for piece in in_order(message):
            match piece:
                case ToolCall():
                    function = dict(kept_fields(kept_fields(piece.extra, KEPT), "function_call"))
                    if kept_fields(piece.extra, KEPT).get(_WITHOUT_ID) is True:
                        self._without_id.add(piece.id)
                    else:
                        self._without_id.discard(piece.id)
                        function["id"] = self._ids.of_call(piece.id)
                    self._names[piece.id] = _fitting(piece.name)
                    function |= {"name": self._names[piece.id], "args": arguments_object(piece.arguments)}
                    written.append({**kept_but(piece.extra, KEPT, *_NOTES, *_SAID), "function_call": function})
                case TextPart():
                    part = _write_text(piece)
                    written += [part] if piece.text or "thought_signature" in part else []  # empty text is refused
                case ThinkingPart() if message.is_assistant and has_kept(piece.extra, KEPT):
                    signed = {} if piece.signature is None else {"thought_signature": piece.signature}
                    thought = {"text": piece.thinking, "thought": True, **signed}
                    written.append({**kept_fields(piece.extra, KEPT), **thought})
                case ImagePart():
                    written.append(_write_image(piece))
                case OtherPart(fields=fields) if has_kept(message.extra, KEPT):
                    written.append(fields)
                case OtherPart() if (file := attached(piece)) is not None:
                    written.append({"inline_data": {"mime_type": file.media_type, "data": file.data}})
        if not written and not message.is_assistant:
            return [{"text": NOTHING_TO_SHOW}]
        first_call = next((part for part in written if "function_call" in part), None)
        if first_call is not None and self._stand_in is not None:  # of parallel calls only the first one is signed
            first_call.setdefault("thought_signature", self._stand_in)
        return written

    def system_fields(self) -> dict[str, Any]:
        return {"system_instruction": {"parts": self._system}} if self._system else {}

    def _put_response(self, message: Message) -> None:
        """A response; its images are shown behind all of them."""
        kept = kept_fields(message.extra, KEPT)
        if kept.get(_WHOLE_RESPONSE) is True:
            response = arguments_object(message.text)
        else:
            response = {"error" if message.is_error else "output": message.text}
        function, call_id = dict(kept_fields(kept, "function_response")), message.tool_call_id or ""
        if call_id not in self._without_id:
            function["id"] = self._ids.of_result(call_id)
        function |= {"name": self._names.get(call_id) or _fitting(message.name or ""), "response": response}
        shown = [_write_image(part) for part in message.content if isinstance(part, ImagePart)]
        if shown and kept.get(_IMAGES_INSIDE) is True:
            function["parts"] = shown
        else:
            self._images += shown
        self._put("user", [{**kept_but(message.extra, KEPT, *_NOTES, *_SAID), "function_response": function}])

    def _show_images(self) -> None:
        if self._images:
            self._put("user", [{"text": IMAGES_OF_RESULTS}, *self._images])
            self._images = []

    def _put(self, role: str, parts: list[dict[str, Any]]) -> None:
        """Put parts behind the others of the same role; responses stay apart, in one content for one model turn."""
        if not parts:
            return
        last = self._contents[-1] if self._contents else None
        if last is not None and last["role"] == role and _is_response(last["parts"][0]) == _is_response(parts[0]):
            last["parts"] += parts
        else:
            self._contents.append({"role": role, "parts": parts})


def _is_response(part: Mapping[str, Any]) -> bool:
    return "function_response" in part


def _write_text(part: TextPart) -> dict[str, Any]:
    return {**kept_but(part.extra, KEPT, *_SAID), "text": part.text}


def _write_image(part: ImagePart) -> dict[str, Any]:
    image = inlined(part)
    media_type = image.media_type or "image/png"
    if media_type not in _IMAGE_TYPES:
        return {"text": f"(an image of type {media_type}, which cannot be shown)"}
    if image.data is not None:
        field, own = "inline_data", {"mime_type": media_type, "data": image.data}
    elif image.url:
        field, own = "file_data", {"mime_type": media_type, "file_uri": image.url}
    else:
        return {"text": "(an image that is not at hand)"}
    more = kept_fields(kept_fields(part.extra, KEPT), field)
    return {**kept_but(part.extra, KEPT, *_SAID), field: {**more, **own}}


def _fitting(name: str) -> str:
    if _NAME.fullmatch(name):
        return name
    fitting = fitting_name(name, _LONGEST_NAME)
    return fitting if fitting[0].isalpha() or fitting[0] == "_" else fitting_name(f"_{fitting}", _LONGEST_NAME)


# --- reading ---------------------------------------------------------------------------------------------------------


def from_google(contents: Iterable[Mapping[str, Any]], system_instruction: Any = None) -> list[Message]:
    """The contents of a request as canonical messages; `from_google(**to_google(messages))` reads back.

    A content with function responses becomes one message for each of them, and one for the rest of it. A call without
    an id gets one, made from its name and its place; its response is found by name and order.

    Args:
        contents: the `contents` of a request, in snake_case or camelCase, as JSON or as the SDK dumps them.
        system_instruction: the `system_instruction` of the request: text, a part, or a content.

    Raises:
        InvalidMessage: a content or a part has a wrong shape.
    """
    reader = _ContentReader()
    read = [] if system_instruction is None else reader.feed(_system_content(system_instruction))
    for content in contents:
        read += reader.feed(content)
    return read


def from_google_reply(reply: Mapping[str, Any]) -> list[Message]:
    """What the first candidate of a reply says, with the reply's model, usage and reason to stop; empty if nothing.

    Raises:
        InvalidMessage: the reply has a wrong shape.
    """
    fields = _snake(reply)
    match fields.get("candidates"):
        case [dict(candidate), *_]:
            pass
        case _:
            return []
    content = candidate.get("content")
    if not isinstance(content, dict):
        return []
    pieces = _ContentReader().pieces(content)
    parts, calls = taken_apart(pieces)
    return [
        Message(
            Role.ASSISTANT,
            parts,
            tool_calls=calls,
            model=text_of(fields, "model_version"),
            usage=_read_usage(fields.get("usage_metadata")),
            stop_reason=text_of(candidate, "finish_reason"),
            extra=marked(None, parts, KEPT),
        )
    ]


def _system_content(instruction: Any) -> dict[str, Any]:
    if isinstance(instruction, str):
        instruction = {"parts": [{"text": instruction}]}
    if isinstance(instruction, dict) and "parts" not in instruction:
        instruction = {"parts": [instruction]}
    parts = instruction.get("parts") if isinstance(instruction, dict) else instruction
    return {"role": "system", "parts": parts}


class _ContentReader(MessageReader):
    """Reads contents one after the other; knows which calls wait for a response."""

    def __init__(self) -> None:
        self._calls = 0
        self._waiting: list[ToolCall] = []

    def feed(self, content: Mapping[str, Any]) -> list[Message]:
        """The messages of one content."""
        role = content.get("role") or "user"
        pieces = self.pieces(content)
        match role:
            case "model":
                parts, calls = taken_apart(pieces)
                self._waiting = list(calls or ())
                return [Message(Role.ASSISTANT, parts, tool_calls=calls, extra=marked(None, parts, KEPT))]
            case "user" | "function" | "tool":
                results: list[Message] = []
                rest: list[Part] = []
                for piece in pieces:
                    if isinstance(piece, OtherPart) and isinstance(piece.fields.get("function_response"), dict):
                        results.append(self._result(piece.fields))
                    elif not isinstance(piece, ToolCall):
                        rest.append(piece)
                if rest or not results:
                    results.append(Message(Role.USER, tuple(rest), extra=marked(None, tuple(rest), KEPT)))
                return results
            case "system":
                return [Message(Role.SYSTEM, tuple(part for part in pieces if not isinstance(part, ToolCall)))]
            case _:
                raise InvalidMessage("a content's role is neither user nor model")

    def pieces(self, content: Mapping[str, Any]) -> list[Part | ToolCall]:
        """The parts of a content, in order."""
        parts = content.get("parts") or []
        if "parts" not in content and content.keys() - {"role"}:
            raise InvalidMessage('what a content says must be in its "parts"')
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise InvalidMessage('"parts" must be a list of objects')
        return [self._piece(_snake(part)) for part in parts]

    def _piece(self, part: dict[str, Any]) -> Part | ToolCall:
        match part:
            case {"function_call": dict(function), **kept}:
                name, arguments, call_id = function.get("name"), function.get("args"), text_of(function, "id")
                if not isinstance(name, str) or not isinstance(arguments, dict | None):
                    raise InvalidMessage("a function call needs a name, and arguments that are an object")
                self._calls += 1
                if more := without(function, "name", "args", "id"):
                    kept["function_call"] = more
                if call_id is None:
                    kept[_WITHOUT_ID], call_id = True, f"{name}-{self._calls}"
                text = "" if arguments is None else arguments_text(arguments)
                return ToolCall(call_id, name, text, extra=keeping(kept, KEPT))
            case {"text": str(text), "thought": True, **rest}:
                return ThinkingPart(text, taken(rest, "thought_signature", str), extra={KEPT: rest})
            case {"text": str(text), **rest}:
                return TextPart(text, extra=keeping(rest, KEPT))
            case {"inline_data": dict(blob), **rest} | {"file_data": dict(blob), **rest}:
                image = _read_image(blob, rest, "inline_data" if "inline_data" in part else "file_data")
                return OtherPart(part) if image is None else image
            case _:
                return OtherPart(part)

    def _result(self, part: dict[str, Any]) -> Message:
        function = part["function_response"]
        name, response, call_id = text_of(function, "name"), function.get("response"), text_of(function, "id")
        waiting = (call for call in self._waiting if (call.id == call_id if call_id else call.name == name))
        if (call := next(waiting, None)) is not None:  # by its id, else the first of its name
            self._waiting.remove(call)
        content, is_error, notes = _read_response(response, function.get("parts"))
        more = without(function, "name", "response", "id", *(["parts"] if _IMAGES_INSIDE in notes else []))
        kept = {**without(part, "function_response"), **notes, **({"function_response": more} if more else {})}
        return Message(
            Role.TOOL_RESULT,
            content,
            tool_call_id=call_id or (call.id if call else None),
            name=name or (call.name if call else None),
            is_error=is_error,
            extra=keeping(kept, KEPT),
        )


def _read_response(response: Any, parts: Any) -> tuple[str | tuple[Part, ...], bool, dict[str, Any]]:
    """The content of a response, whether it is an error, and how it was said."""
    notes: dict[str, Any] = {}
    match response:
        case {"output": str(text)} if len(response) == 1:
            is_error = False
        case {"error": str(text)} if len(response) == 1:
            is_error = True
        case dict():
            text, is_error, notes[_WHOLE_RESPONSE] = arguments_text(response), "error" in response, True
        case _:
            raise InvalidMessage("a function response must be an object")
    images: list[Part | None] = []
    if isinstance(parts, list) and all(isinstance(part, dict) for part in parts):
        fields = ["inline_data" if "inline_data" in part else "file_data" for part in parts]
        images = [
            _read_image(part[field], without(part, field), field) if isinstance(part.get(field), dict) else None
            for part, field in zip(parts, fields, strict=True)
        ]
    found = [image for image in images if image is not None]
    if not found or len(found) < len(images):
        return text, is_error, notes
    return (TextPart(text), *found), is_error, {**notes, _IMAGES_INSIDE: True}


def _read_image(blob: dict[str, Any], rest: dict[str, Any], field: str) -> ImagePart | None:
    """The image; None for anything else (sound, a document, a film)."""
    media_type = blob.get("mime_type")
    place = blob.get("data" if field == "inline_data" else "file_uri")
    if not isinstance(media_type, str) or not media_type.startswith("image/") or not isinstance(place, str):
        return None
    more = without(blob, "mime_type", "data", "file_uri")
    image = {"data" if field == "inline_data" else "url": place}
    return ImagePart(media_type, **image, extra=keeping({**rest, field: more} if more else rest, KEPT))


def _read_usage(usage: Any) -> Usage | None:
    """The counts; tokens of the prompt from the cache count apart from the rest of it, thoughts count as output."""
    if not isinstance(usage, dict):
        return None
    prompt, of_tools, cached, said, thought = (max(count_of(usage, f"{name}_token_count") or 0, 0) for name in _COUNTED)
    counted = ("total_token_count", *(f"{name}_token_count" for name in _COUNTED))
    return Usage(
        input_tokens=max(prompt + of_tools - cached, 0),
        output_tokens=said + thought,
        cache_read_tokens=cached,
        total_tokens=count_of(usage, "total_token_count"),
        extra=kept_apart(usage, counted, KEPT),
    )


def _snake(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The field names in snake_case; what is None is not there, bytes are base64, as in JSON."""
    stated = ((name, value) for name, value in fields.items() if value is not None)
    snake = {name if name.islower() else _CAMEL.sub(r"_\1", name).lower(): value for name, value in stated}
    return {name: value if name in _OF_THE_FUNCTION else _snake_value(value) for name, value in snake.items()}


def _snake_value(value: Any) -> Any:
    match value:
        case dict():
            return _snake(value)
        case list():
            return [_snake_value(item) for item in value]
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            return value


# --- files -----------------------------------------------------------------------------------------------------------


def _is_ours(found: MessageList) -> bool:
    return all(
        isinstance(content.get("parts"), list) and content.get("role", "user") in ("user", "model", "function")
        for content in found.messages
    )


GOOGLE = message_list_format(
    name="google",
    about="Google Gemini API: a list of contents or a request with one; times, and the places of system messages "
    "behind the first, are lost",
    fields=["contents"],
    before={"system_instruction": _system_content, "systemInstruction": _system_content},
    is_ours=_is_ours,
    reader=_ContentReader,
    request=_Request,
)
