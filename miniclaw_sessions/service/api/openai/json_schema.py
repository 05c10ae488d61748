"""Whether a JSON Schema is one: a service refuses what only looks like it, and with it the whole request.

Only what a schema says of shapes is looked at. Whether its patterns, references and formats mean something is left to
the service: each knows others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.api.openai.errors import bad_request

TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_OF_SCHEMAS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_LISTS_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = (
    *("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames", "contains"),
    *("not", "if", "then", "else"),
)
_TEXTS = ("$ref", "description", "title", "format", "pattern")
_LONGEST = 100


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
        raise _wrong(at, "an object or a boolean", code)
    for name, wanted in _wrong_words(schema):
        raise _wrong(f"{at}.{name}", wanted, code)
    for name, inner in _within(schema):
        check_schema(inner, f"{at}.{name}", code)


def _wrong(place: str, wanted: str, code: str) -> RequestError:
    return bad_request(f"Invalid schema: '{place}' must be {wanted}.", place, code)


def _within(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas within one, each with its place there."""
    for name in _OF_SCHEMAS:
        for key, inner in schema.get(name, {}).items():
            yield f"{name}.{key[:_LONGEST]}", inner
    for name in (*_LISTS_OF_SCHEMAS, *_SCHEMAS):
        if isinstance(inner := schema.get(name, True), list):
            yield from ((f"{name}[{place}]", one) for place, one in enumerate(inner))
        else:
            yield name, inner


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
