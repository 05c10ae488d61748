"""The table of operations as an OpenAPI 3.1 document: made from their types, docstrings and errors, and from examples.

What an operation is called, takes and gives is said once, where it is made; here it only gets another form. The
examples are exchanges with a real server, recorded by `python -m tests.api_examples`: a file for each operation.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any, get_args, get_type_hints

import msgspec
import orjson

from miniclaw_sessions.core.protocol.entries import Entry, OtherEntry
from miniclaw_sessions.core.protocol.messages import OtherPart, Usage
from miniclaw_sessions.core.protocol.parts import EXTRA, OTHER, Value
from miniclaw_sessions.service.api.error_table import RequestError, error_document, known_errors
from miniclaw_sessions.service.api.event_stream import EVENT_STREAM
from miniclaw_sessions.service.api.openai.shapes import in_openai_form
from miniclaw_sessions.service.api.operation import BODY, HEADERS, IF_MATCH, Content, Operation, Stream
from miniclaw_sessions.service.api.shapes import MAX_MESSAGES_PER_REQUEST, NewEntries, NewEntry

OPENAPI = "3.1.1"
JSON = "application/json"
_FIRST_ERROR = 400
_REF = "#/components/schemas/{name}"
_ABOUT = (
    "Sessions of a chat gateway: every conversation is a log of entries with a tree of branches. A reply to an append "
    "means that the store has acknowledged it. Conversations can be paged backwards from any place, followed live, "
    "searched, forked, imported and exported."
)
_HEADERS = {
    "idempotency_key": "Repeated with the same key, the request is done once, and answered as it was at first.",
    IF_MATCH: "Only if the session is as it was at this ETag, else 412 `leaf_moved`; `*`: if it is there.",
    "retry_count": "How often the client has asked already; OpenAI's packages say it.",
    "last_event_id": "The `id` of the last event that came: the stream goes on behind it.",
}
_PATHS = {
    "conversation_id": "The conversation's id, which is its session's.",
    "response_id": "The response's id.",
    "item_id": "The item's id.",
    "file_id": "The file's id.",
    "session_id": "The session's id, `{channel}_{chat_id}`; percent-encoded, once more where it holds a `%` itself.",
    "entry_id": "The entry's id.",
}
_AT_THE_DOOR = (
    "unauthorized",
    "forbidden_host",
    "forbidden_origin",
    "forbidden",
    "not_permitted",
    "rate_limited",
    "bad_request",
)
_EVERYWHERE = (*_AT_THE_DOOR, "timeout", "manager_closed", "internal_error", "sessions_error")
_OF_A_SESSION = ("invalid_key", "session_not_found", "session_expired")
_OF_THE_STORE = ("store_corrupt", "store_error", "store_unavailable", "session_unavailable", "snapshot_unreadable")
_OF_WRITING = (
    *("session_deleted", "store_full", "store_conflict", "unsaved_limit", "turn_taken", "transcript_not_kept"),
    *("session_limit", "config_error", "leaf_moved", "turn_in_progress"),
)
_OF_A_BODY = ("invalid_json", "body_too_large", "unsupported_media_type", "invalid_request", "invalid_message")
"""The errors that everything of a kind may end with."""


# --- the document ----------------------------------------------------------------------------------------------------


def openapi_document(operations: Iterable[Operation[Any, Any]], version: str) -> dict[str, Any]:
    """The whole document.

    Args:
        operations: what there is.
        version: of the program.
    """
    operations = tuple(operations)
    schemas = Schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas)
    rooms = {one.room: _summary(sys.modules[one.handler.__module__].__doc__ or "") for one in operations}
    return {
        "openapi": OPENAPI,
        "info": {"title": "miniclaw-sessions", "version": version, "description": _ABOUT, "license": _LICENSE},
        "servers": [{"url": "/", "description": "where this document comes from"}],
        "security": [{"token": []}],
        "tags": [{"name": room, "description": about} for room, about in rooms.items()],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": _TOKEN}},
            "schemas": schemas.components(),
            "examples": _error_examples(operations),
        },
    }


_LICENSE = {"name": "MIT", "identifier": "MIT"}
_TOKEN = "A token of the daemon; on its Unix socket none is needed."  # noqa: S105 - it says what one is


def _operation(one: Operation[Any, Any], schemas: Schemas) -> dict[str, Any]:
    examples = examples_of(one.name)
    about, _ = parted(one.about)
    described: dict[str, Any] = {
        **({"security": []} if one.scope in ("probe", "open") else {}),
        "operationId": one.name,
        "tags": [one.room],
        "summary": _summary(about),
        "description": about,
        "x-scope": one.scope,
        "parameters": _parameters(one, schemas, examples),
        "responses": {**_successes(one, schemas, examples), **_errors(one)},
    }
    if BODY in one.fields:
        described["requestBody"] = _body(one, schemas, examples)
    if one.events:
        described["x-events"] = {
            name: {"description": _summary(shape.__doc__ or ""), "schema": {"$ref": _REF.format(name=shape.__name__)}}
            | ({} if (found := _event_example(name, one)) is None else {"example": found})
            for name, shape in one.events.items()
        }
    return described


# --- what it takes ---------------------------------------------------------------------------------------------------


def _parameters(one: Operation[Any, Any], schemas: Schemas, examples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    fields: dict[str, str] = {}
    for kind in reversed(one.request.__mro__):
        fields |= parted(kind.__doc__ or "")[1]
    known = {field.name: field for field in msgspec.structs.fields(one.request)}
    places = [
        *((name, "path", name) for name in re.findall(r"{(\w+)}", one.path)),
        *((name, "query", name) for name in one.in_query),
        *((name, "header", HEADERS[name]) for name in one.in_headers),
    ]
    found = []
    for field, place, name in places:
        schema = _without_null(schemas.of(one.fields[field]))
        default = known[field].default
        if place == "query" and default not in (None, msgspec.NODEFAULT, msgspec.UNSET):
            schema = {**schema, "default": default}
        described = {
            "name": name,
            "in": place,
            "required": known[field].required,
            "schema": schema,
            "description": fields.get(field) or _PATHS.get(field) or _HEADERS.get(field, ""),
        }
        shown = [example["request"].get(place, {}).get(name) for example in examples]
        if any(value is not None for value in shown):
            described["example"] = next(value for value in shown if value is not None)
        found.append(described)
    return found


def described_parameters(one: Operation[Any, Any]) -> list[dict[str, Any]]:
    """What an operation takes in path, query and headers, without the names of shapes."""
    return _parameters(one, Schemas((one,)), [])


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter is there or not: no text means null."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    others = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    return {**others, **kinds[0]} if len(kinds) == 1 else {**others, "anyOf": kinds} if kinds else others


def _body(one: Operation[Any, Any], schemas: Schemas, examples: list[dict[str, Any]]) -> dict[str, Any]:
    if one.accepts:
        fields = {"file": {"type": "string", "format": "binary"}, "purpose": {"type": "string"}}
        form = {"schema": {"type": "object", "properties": fields, "required": ["file", "purpose"]}}
        return {"required": True, "description": "A form.", "content": dict.fromkeys(one.accepts, form)}
    if one.uploads:
        file = {"schema": {"type": "string", "format": "binary"}}
        about = "The file, of any size."
        return {
            "required": True,
            "description": about,
            "content": {kind: dict(file) for kind in ("application/octet-stream", "application/x-ndjson", JSON)},
        }
    shown = [example for example in examples if "body" in example["request"]]
    content: dict[str, Any] = {"schema": schemas.of(one.fields[BODY])}
    if shown:
        content["examples"] = {_slug(one): {"summary": one["about"], "value": one["request"]["body"]} for one in shown}
    return {"required": True, "content": {JSON: content}}


# --- what it gives ---------------------------------------------------------------------------------------------------


_STREAMED = 200
"""The status of every stream."""


def _successes(one: Operation[Any, Any], schemas: Schemas, examples: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    statuses = one.statuses
    if isinstance(one.status, int):
        is_shape = isinstance(one.reply, type) and issubclass(one.reply, msgspec.Struct)
        in_words_of = parted(one.reply.__doc__ or "")[0] if is_shape else one.about
        statuses = {one.status: _summary(in_words_of)}
    found: dict[str, dict[str, Any]] = {}
    for status, about in statuses.items():
        shown = [example for example in examples if example["status"] == status and "reply" in example]
        content = _content(one, schemas, shown)
        if status != _STREAMED:
            content.pop(EVENT_STREAM, None)
        found[str(status)] = {"description": about, "content": content}
        if _is_tagged(one):
            found[str(status)]["headers"] = {"ETag": {"schema": {"type": "string"}, "description": _ETAG}}
    if _is_tagged(one) and one.method == "GET":
        found["304"] = {"description": "The client has it already, and said so with If-None-Match."}
    return found


_ETAG = "Changes when the thing does; for If-Match and If-None-Match."


def _is_tagged(one: Operation[Any, Any]) -> bool:
    return one.reply is Content or "etag" in getattr(one.reply, "__struct_fields__", ())


def _content(one: Operation[Any, Any], schemas: Schemas, shown: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {}
    for kind in one.media_types:
        if kind == JSON and one.reply not in (Stream, Content):
            found[kind] = {"schema": schemas.of(one.reply)}
        elif kind == JSON:
            found[kind] = {"schema": {"type": "object"}}
        else:
            found[kind] = {"schema": {"type": "string"}}
    if one.events:
        found[EVENT_STREAM] = {
            "schema": {"oneOf": [_event(name, shape.__name__) for name, shape in one.events.items()]}
        }
    elif EVENT_STREAM in found:
        found[EVENT_STREAM] = {"schema": _event(None, None)}
    for example in shown:
        kind = example["media_type"]
        if kind in found:
            examples = found[kind].setdefault("examples", {})
            examples[_slug(example)] = {"summary": example["about"], "value": example["reply"]}
    return found


def _event(name: str | None, shape: str | None) -> dict[str, Any]:
    """One event of a stream; its data are JSON of a shape."""
    data: dict[str, Any] = {"type": "string", "contentMediaType": JSON}
    if shape is not None:
        data["contentSchema"] = {"$ref": _REF.format(name=shape)}
    kind = {"type": "string"} if name is None else {"const": name}
    properties = {"event": kind, "data": data, "id": {"type": "string"}}
    return {"type": "object", "required": ["event", "data"], "properties": properties}


def _errors(one: Operation[Any, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for status, kind in sorted(errors_of(one)):
        content = {"schema": {"$ref": _REF.format(name="Error")}, "examples": {}}
        described = found.setdefault(str(status), {"description": "", "content": {JSON: content}})
        described["description"] += f"{', ' if described['description'] else ''}`{kind}`"
        name = f"{status}-{kind}" if (status, kind) in known_errors() else f"openai-{status}-{kind}"
        described["content"][JSON]["examples"][kind] = {"$ref": f"#/components/examples/{name}"}
    return found


def _error_examples(operations: Iterable[Operation[Any, Any]]) -> dict[str, Any]:
    """An example of every error: a recorded one where there is one."""
    recorded = {
        (example["status"], example["reply"]["error"]["type"]): example["reply"]
        for one in operations
        for example in examples_of(one.name)
        if example["status"] >= _FIRST_ERROR and "error" in example.get("reply", ())
    }
    found = {}
    for (status, kind), meant in sorted(known_errors().items()):
        made = RequestError(status, kind, meant)
        found[f"{status}-{kind}"] = {
            "summary": meant,
            "value": recorded.get((status, kind)) or error_document(made),
        }
        as_openai = in_openai_form(made)
        name = f"openai-{as_openai.status}-{as_openai.kind}"
        value = recorded.get((as_openai.status, as_openai.kind)) or error_document(as_openai)
        found.setdefault(
            name, {"summary": "As OpenAI's clients expect it; our own name is the `code`.", "value": value}
        )
    return dict(sorted(found.items()))


def errors_of(one: Operation[Any, Any]) -> set[tuple[int, str]]:
    """Status and `type` of the errors that an operation may end with."""
    kinds = {*_EVERYWHERE, *_OF_THE_STORE, *one.errors, "invalid_request"}  # parameters that it has not are refused
    if "session_id" in one.fields:
        kinds.update(_OF_A_SESSION)
    if "entry_id" in one.fields:
        kinds.add("entry_not_found")
    if not one.reads:
        kinds.update(_OF_WRITING)
    if BODY in one.fields:
        kinds.update(_OF_A_BODY)
    if one.openai:
        kinds.update(("not_found", "conflict"))
    absent = set() if BODY in one.fields else {(408, "timeout")}
    absent |= set() if IF_MATCH in one.fields else {(412, "leaf_moved")}
    found = {(status, kind) for status, kind in known_errors() if kind in kinds} - absent
    if not one.openai:
        return found
    at_the_door = {pair for pair in found if pair[1] in _AT_THE_DOOR}  # before it is known what is asked for
    as_openai = [in_openai_form(RequestError(status, kind, kind)) for status, kind in found]
    return at_the_door | {(error.status, error.kind) for error in as_openai}


# --- shapes ----------------------------------------------------------------------------------------------------------


class Schemas:
    """The schemas of all shapes, by the types that they are of."""

    def __init__(self, operations: tuple[Operation[Any, Any], ...]) -> None:
        kinds: list[Any] = [Entry, Usage, NewEntry, NewEntries]
        for one in operations:
            kinds += [kind for name, kind in one.fields.items() if not (name == BODY and one.uploads)]
            kinds += [*one.events.values()] + ([] if one.reply in (Stream, Content) else [one.reply])
        found, components = msgspec.json.schema_components(kinds, ref_template=_REF)
        self._by_kind = list(zip(kinds, found, strict=True))
        self._classes = {kind.__name__: kind for kind in _structs(kinds)}
        self._taken = _structs(one.fields[BODY] for one in operations if BODY in one.fields)
        self._components = components

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of a type."""
        schema: dict[str, Any] = _mended(next(schema for one, schema in self._by_kind if one is kind or one == kind))
        return schema

    def components(self) -> dict[str, Any]:
        """Those that have names."""
        own = {name: self._shape(name, schema) for name, schema in self._components.items() if name not in _INTERNAL}
        return dict(sorted({**own, "Entry": self.of(Entry), "NewEntry": self.of(NewEntry), **_BY_HAND}.items()))

    def _shape(self, name: str, schema: dict[str, Any]) -> dict[str, Any]:
        """A schema with its descriptions; `required` of a reply: all fields but those that may have no value."""
        kind = self._classes.get(name)
        about, fields = parted(schema.get("description", "") if kind is None else kind.__doc__ or "")
        shape: dict[str, Any] = _mended(schema) | ({"description": about} if about else {})
        properties = shape.get("properties", {})
        for field, one in properties.items():
            one.update({"description": fields[field]} if field in fields else {})
        omits_defaults = kind is not None and kind.__struct_config__.omit_defaults
        if kind is None or (kind in self._taken and not omits_defaults):
            return shape
        if not omits_defaults:
            always = {*shape.get("required", ()), *(field for field in properties if "default" in properties[field])}
            shape["required"] = _FOR_SOME.get(kind.__name__) or [field for field in properties if field in always]
        if issubclass(kind, Value):  # which keeps unknown fields
            shape.pop("additionalProperties", None)
        for one in properties.values():
            one.pop("default", None)
        return shape


def _structs(kinds: Iterable[Any]) -> set[type[msgspec.Struct]]:
    """The structs that types are made of."""
    found: set[type[msgspec.Struct]] = set()
    waiting = [*kinds]
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            if kind not in found:
                found.add(kind)
                waiting += get_type_hints(kind, include_extras=True).values()
        else:
            waiting += get_args(kind)
    return found


def _mended(schema: Any) -> Any:
    """A schema without internal names, and with roles that may be others."""
    if isinstance(schema, list):
        shown = [one for one in schema if not (isinstance(one, dict) and str(one.get("$ref")).endswith(_INTERNAL))]
        return [_mended(one) for one in shown]
    if not isinstance(schema, dict):
        return schema
    found = {name: _mended(value) for name, value in schema.items() if name not in (EXTRA, OTHER)}
    if "$ref" in found:
        return {"$ref": found["$ref"]}
    if found.get("type") == "object" and not found.keys() & {"properties", "additionalProperties"}:
        found["additionalProperties"] = True  # without it, generators take it for an object without fields
    return found


_INTERNAL = (OtherPart.__name__, OtherEntry.__name__)
"""The shapes of what is kept unread; to a reader they are no shapes."""

_FOR_SOME = {"HealthReply": ["status"]}
"""The fields of a health report that need no token."""

_BY_HAND: dict[str, Any] = {
    "Error": {
        "type": "object",
        "description": "What went wrong.",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "code", "param"],
                "properties": {
                    "message": {"type": "string", "description": "For people."},
                    "type": {"type": "string", "description": "For programs."},
                    "code": {"type": ["string", "null"]},
                    "param": {"type": ["string", "null"], "description": "The field or header that is wrong."},
                },
            }
        },
    },
    "Role": {
        "type": "string",
        "description": "Who speaks: user, assistant, system, tool_result, ...; a role of another program is kept.",
        "examples": ["user", "assistant", "system", "tool_result"],
    },
    "OneOrMoreMessages": {
        "description": "One message, or several as a unit.",
        "anyOf": [
            {"$ref": _REF.format(name="Message")},
            {
                "type": "object",
                "required": ["messages"],
                "additionalProperties": False,
                "properties": {
                    "messages": {
                        "type": "array",
                        "minItems": 1,
                        "maxItems": MAX_MESSAGES_PER_REQUEST,
                        "items": {"$ref": _REF.format(name="Message")},
                    }
                },
            },
        ],
    },
    "OneOrMoreEntries": {
        "description": "One entry, or several as a unit.",
        "anyOf": [{"$ref": _REF.format(name="NewEntries")}, {"$ref": _REF.format(name="NewEntry")}],
    },
    "ShownMessage": {
        "description": "A message with its entry's place; a summary of what was compacted has none.",
        "allOf": [
            {"$ref": _REF.format(name="Message")},
            {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "description": "The entry's id."},
                    "sequence": {"type": "integer", "description": "The entry's sequence, for `before` and `after`."},
                    "summary": {
                        "description": "true, and no sequence: it stands for what was compacted. Else a message's own."
                    },
                },
            },
        ],
    },
}


# --- docstrings and examples -----------------------------------------------------------------------------------------


def parted(docstring: str) -> tuple[str, dict[str, str]]:
    """A docstring's text without its sections, and what it says of each attribute."""
    text = re.sub(r"\n[ \t]+", "\n", docstring.strip())
    about = re.split(r"\n\n(?:Args|Attributes|Raises|Returns):\n", text)[0]
    section = re.search(r"\n\s*Attributes:\n(.*?)(?:\n\s*\n\s*\w+:\n|\Z)", docstring, re.DOTALL)
    fields: dict[str, str] = {}
    lines = section[1] if section else ""
    indent = min((len(line) - len(line.lstrip()) for line in lines.splitlines() if line.strip()), default=0)
    for item in re.split(rf"\n {{{indent}}}(?=\w)", "\n" + lines):
        names, colon, words = item.strip().partition(": ")
        if colon and re.fullmatch(r"\w+(, \w+)*", names):
            sentence = " ".join(words.split())
            fields |= dict.fromkeys(names.split(", "), sentence[:1].upper() + sentence[1:])
    return re.sub(r"(?<!\n)\n(?!\n)", " ", about), fields


def _summary(about: str) -> str:
    return " ".join(about.partition("\n\n")[0].split())


@functools.cache
def examples_of(name: str) -> list[dict[str, Any]]:
    """The recorded exchanges of an operation: `about`, `request`, `status`, `media_type`, `reply`."""
    file = resources.files("miniclaw_sessions.service.api").joinpath("examples", f"{name}.json")
    found: list[dict[str, Any]] = orjson.loads(file.read_bytes()) if file.is_file() else []
    return found


def _slug(example: Mapping[str, Any]) -> str:
    return re.sub(r"\W+", "_", example["about"].lower()).strip("_")


def _event_example(name: str, one: Operation[Any, Any]) -> Any:
    """The data of an event of this name in a recorded stream; else of one that has the same shape; else of a chat."""
    alike = [other for other, shape in one.events.items() if shape is one.events[name]]
    texts = [str(example.get("reply")) for example in examples_of(one.name)]
    chats = [str(example.get("reply")) for example in examples_of("chat")]
    for names, searched in ([name], texts), (alike, texts), ([name], chats):
        pattern = rf"^event: (?:{'|'.join(names)})\ndata: (.*)$"
        for text in searched:
            if (found := re.search(pattern, text, re.MULTILINE)) is not None:
                return orjson.loads(found[1])
    return None
