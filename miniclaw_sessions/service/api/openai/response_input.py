"""The items that a response is asked with: of which shape each must be, and what not every model can be shown.

An item that is no message of a known shape would reach no model: it travels whole, and only a service that speaks
items itself understands it. So everything is looked at here, part by part. What is wrong is refused at once (400); what
only such a service takes is named, and refused when it is known who answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from miniclaw_sessions.core.protocol.content import DATA_URL
from miniclaw_sessions.core.protocol.images import IMAGE_TYPES, MAX_IMAGE_BYTES, image_of
from miniclaw_sessions.files.formats.openai_items import summary_within
from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.api.openai.items import REFERENCE, check_items
from miniclaw_sessions.service.api.openai.shapes import UNSUPPORTED, Item, bad_request

ROLES = ("assistant", "developer", "system", "user")
_COMMANDS = {
    REFERENCE: "send the item itself, or go on from the response that has it",
    "additional_tools": "send functions in tools",
    "configuration_update": "send what is wanted with the request",
    "compaction_trigger": "the daemon summarizes by itself what the model's context cannot hold",
}
"""Items that say nothing but want something done, and what to do in their place."""

_ADDRESS = re.compile(r"https?://[^\s/]\S*")
_LONGEST_SHOWN = 50
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_OF_SCHEMAS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_LISTS_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = (
    *("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames", "contains"),
    *("not", "if", "then", "else"),
)
_TEXTS = ("$ref", "description", "title", "format", "pattern")
_LONGEST = 100


class OfTheService(NamedTuple):
    """Something that only a service which speaks items itself takes.

    Attributes:
        param: where it stands in the request.
        kind: its type, or the field that makes it so.
    """

    param: str
    kind: str


def check_input(items: Sequence[Item]) -> tuple[OfTheService, ...]:
    """Check the items of a request, and name what not every service takes.

    Raises:
        RequestError: an item is none, or says nothing that could be answered (400, with its place as `param`).
    """
    check_items(items, "input")
    return tuple(found for place, item in enumerate(items) for found in _looked_at(item, f"input[{place}]"))


def _looked_at(item: Item, at: str) -> Iterator[OfTheService]:
    match item.get("type") or "message":
        case "message":
            role = item["role"]
            if role not in ROLES:
                raise not_one_of(f"{at}.role", role, ROLES)
            parts = _OUTPUT_PARTS if role == "assistant" else _INPUT_PARTS
            yield from check_content(item.get("content"), f"{at}.content", parts)
        case "function_call":
            for field in ("call_id", "name", "arguments"):
                need_text(item, field, at)
        case "function_call_output":
            need_text(item, "call_id", at)
            yield from check_content(item.get("output"), f"{at}.output", _INPUT_PARTS)
        case "reasoning":
            if not isinstance(item.get("summary"), list):
                raise wrong(f"{at}.summary", "a list", item.get("summary"))
        case str(kind) if kind in _COMMANDS:
            raise not_taken(f"{at}.type", _COMMANDS[kind])
        case kind:
            if summary_within(item) is None:
                yield OfTheService(f"{at}.type", str(kind)[:_LONGEST_SHOWN])


def check_content(content: Any, at: str, known: Mapping[str, Look]) -> Iterator[OfTheService]:
    """Check a message's content: text, or parts of known types. Names what not every service takes.

    Raises:
        RequestError: it is of another shape (400, with the place as `param`).
    """
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise wrong(at, "a text or a list of parts", content)
    for place, part in enumerate(content):
        here = f"{at}[{place}]"
        if not isinstance(part, dict):
            raise wrong(here, "an object", part)
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in known:
            raise not_one_of(f"{here}.type", kind, known)
        yield from known[kind](part, here)


def check_text(part: Item, at: str, *, field: str = "text") -> Iterator[OfTheService]:
    """Check a part that is a text.

    Raises:
        RequestError: it has none in this field (400).
    """
    need_text(part, field, at)
    yield from ()


def check_image(part: Item, at: str) -> Iterator[OfTheService]:
    """Check an image: an address, or data of a type and size that every service takes.

    Raises:
        RequestError: it is neither (400).
    """
    url = part.get("image_url")
    if url is None and part.get("file_id") is not None:
        yield OfTheService(f"{at}.file_id", "image by file_id")
        return
    if not isinstance(url, str):
        raise wrong(f"{at}.image_url", "an address", url)
    types = ", ".join(IMAGE_TYPES)
    if inline := DATA_URL.fullmatch(url):
        image = image_of(inline[2])
        if image is None or image.media_type != inline[1]:
            whole = f"an image in base64 of one of the types {types}, as it says, of at most {MAX_IMAGE_BYTES} bytes"
            raise bad_request(f"Invalid '{at}.image_url': expected {whole}.", f"{at}.image_url")
    elif not _ADDRESS.fullmatch(url):
        wanted = "an address that begins with http:// or https://, or a data URL in base64"
        raise bad_request(f"Invalid '{at}.image_url': expected {wanted} ({types}).", f"{at}.image_url")


def _check_file(part: Item, at: str) -> Iterator[OfTheService]:
    """A file: its own data are looked at where the model is known; its name at a service, or its address, not here."""
    if not isinstance(part.get("file_data"), str):
        field = next((name for name in ("file_id", "file_url") if part.get(name) is not None), None)
        if field is None:
            raise wrong(f"{at}.file_data", "a file as a data URL", part.get("file_data"))
        yield OfTheService(f"{at}.{field}", f"file by {field}")


def check_sound(part: Item, at: str) -> Iterator[OfTheService]:
    """Check a sound: its data and their format.

    Raises:
        RequestError: one of them is missing (400).
    """
    sound = part.get("input_audio")
    if not isinstance(sound, dict):
        raise wrong(f"{at}.input_audio", "an object with data and format", sound)
    for field in ("data", "format"):
        need_text(sound, field, f"{at}.input_audio")
    yield from ()


Look = Callable[[Item, str], Iterable[OfTheService]]
"""Checks one part of a content, and names what not every service takes."""

_INPUT_PARTS: Mapping[str, Look] = {
    "input_text": check_text,
    "text": check_text,
    "input_image": check_image,
    "input_file": _check_file,
    "input_audio": check_sound,
}
_OUTPUT_PARTS: Mapping[str, Look] = {
    "output_text": check_text,
    "refusal": partial(check_text, field="refusal"),
}


# --- refusals --------------------------------------------------------------------------------------------------------


def not_taken(param: str, why: str) -> RequestError:
    """The error for what nothing here can do."""
    return bad_request(f"Unsupported parameter: '{param}' is not supported here: {why}.", param, UNSUPPORTED)


def refuse_each(body: object, refused: Mapping[str, str]) -> None:
    """Refuse parameters that nothing stands behind, each with why; a value that asks for nothing is let through.

    Raises:
        RequestError: one of them asks for something (400).
    """
    for name, why in refused.items():
        if getattr(body, name):
            raise not_taken(name, why)


def need_text(fields: Item, name: str, at: str) -> None:
    """Raise unless a field is a text (400).

    Raises:
        RequestError: it is something else, or missing.
    """
    value = fields.get(name)
    if not isinstance(value, str) or (name == "call_id" and not value):
        raise wrong(f"{at}.{name}", "a text", value)


def wrong(param: str, wanted: str, value: Any) -> RequestError:
    """The error for a value of a wrong type; None: it is missing."""
    if value is None:
        sentence = f"Missing required parameter: '{param}': {wanted} is expected."
        return bad_request(sentence, param, "missing_required_parameter")
    return bad_request(f"Invalid type for '{param}': {wanted} is expected.", param, "invalid_type")


def not_one_of(param: str, value: Any, known: Sequence[str] | Mapping[str, Any]) -> RequestError:
    """The error for a value that is none of the known ones."""
    if value is None:
        return wrong(param, f"one of {', '.join(known)}", value)
    allowed = ", ".join(f"'{one}'" for one in known)
    sentence = f"Invalid value: '{str(value)[:_LONGEST_SHOWN]}'. Supported values of '{param}' are: {allowed}."
    return bad_request(sentence, param)


# --- JSON schemas -----------------------------------------------------------------------------------------------------


def check_schema(schema: Any, at: str, code: str) -> None:
    """Check a schema and all that are within it.

    Args:
        schema: what a client sent.
        at: where it stands in the request.
        code: the `code` of the refusal.

    Raises:
        RequestError: it is none (400, with the place within it as `param`).
    """
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise _wrong_schema(at, "an object or a boolean", code)
    for name, wanted in _wrong_words(schema):
        raise _wrong_schema(f"{at}.{name}", wanted, code)
    for name in _OF_SCHEMAS:
        for key, inner in schema.get(name, {}).items():
            check_schema(inner, f"{at}.{name}.{key[:_LONGEST]}", code)
    for name in (*_LISTS_OF_SCHEMAS, *_SCHEMAS):
        if isinstance(inner := schema.get(name, True), list):
            for place, one in enumerate(inner):
                check_schema(one, f"{at}.{name}[{place}]", code)
        else:
            check_schema(inner, f"{at}.{name}", code)


def _wrong_schema(place: str, wanted: str, code: str) -> RequestError:
    return bad_request(f"Invalid schema: '{place}' must be {wanted}.", place, code)


def _wrong_words(schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What is said wrongly of a value itself, and what it must be."""
    types = schema.get("type", [])
    if any(one not in TYPES for one in (types if isinstance(types, list) else [types])):
        yield "type", f"of {', '.join(TYPES)}"
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        yield "required", "a list of names"
    for name in ("enum", *_LISTS_OF_SCHEMAS):
        if not isinstance(schema.get(name, []), list):
            yield name, "a list"
    for name in _OF_SCHEMAS:
        if not isinstance(schema.get(name, {}), dict):
            yield name, "an object"
    for name in _TEXTS:
        if not isinstance(schema.get(name, ""), str):
            yield name, "a text"
