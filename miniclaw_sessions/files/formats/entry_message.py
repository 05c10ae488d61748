"""A message within an entry, as the Go manager writes it, from and to the form in which we store it.

The Go manager nests what a part holds under the part's type and keeps calls and results among the parts:
`{"type": "text", "text": {"content": "..."}}`. What it has no field for stands next to its fields under the names of
our stored form, where its readers pass over it. Both forms are JSON here, as dicts: `protocol.encoding` alone decides
what a message may be, and a message in our stored form is read as it is.

A message of the Go manager may answer several calls at once, ours answers one. Such a message is read as several
pieces, one behind the other, and `joined` puts them together again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from miniclaw_sessions.core.protocol.json_values import check_json, parse_json
from miniclaw_sessions.core.protocol.messages import Role
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.codec import PLACE, in_pieces, keeping, kept_fields, without
from miniclaw_sessions.files.formats.tool_calls import arguments_text

KEPT = "jsonl"
"""The key of `extra` under which we keep what others put into places of the Go manager that are no places of ours."""

PIECE_ID = "entry"
"""The key of a part with which a further piece begins, for that piece's id."""

_FORM = "content_form"  # beside the content, where it is text or parts against what its parts look like
_TOOL = "tool"  # the Go manager's name for the role of a result
_CALL_FIELDS = ("id", "name", "input", "arguments", "output")
_RESULT_FIELDS = ("tool_use_id", "is_error", "content", "parts")
_RESULT_NAMES = {"tool_call_id": "tool_use_id", "is_error": "is_error"}


# --- writing ---------------------------------------------------------------------------------------------------------


def written_message(stored: dict[str, Any]) -> dict[str, Any]:
    """A message in our stored form as the Go manager has it."""
    fields = dict(stored)
    role, content = fields.pop("role"), fields.pop("content")
    parts: list[dict[str, Any]]
    if isinstance(content, str):
        parts = [{"type": "text", "text": {"content": content}}] if content else []
    else:
        parts = [_written_part(part) for part in content]
    if role == Role.TOOL_RESULT and not fields.get("tool_calls"):
        kept = _popped(fields)
        result = without(kept_fields(kept, "tool_result"), *_RESULT_FIELDS)
        if "tool_call_id" in fields:
            result["tool_use_id"] = fields.pop("tool_call_id")
        result["is_error"] = fields.pop("is_error", False)
        if isinstance(content, str):
            result["content"] = content
        else:
            result["content"] = "".join(part["text"] for part in content if part.get("type") == "text")
            result["parts"] = parts
        part = {**kept_fields(kept, "part"), "type": "tool_result", "tool_result": result}
        return {"role": kept.get("role", _TOOL), "content": [part], **fields}
    fits_parts = not any(call.keys() & {"type", "tool_use"} for call in fields.get("tool_calls") or ())
    if role == Role.ASSISTANT and fits_parts:
        parts = _with_calls(parts, fields.pop("tool_calls", ()))
    message = {"role": _TOOL if role == Role.TOOL_RESULT else role, "content": parts, **fields}
    if isinstance(content, str) != _looks_like_text(parts):
        message[_FORM] = "text" if isinstance(content, str) else "parts"
    return message


def _written_part(part: dict[str, Any]) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": text, **rest}:
            return {"type": "text", "text": {**_popped(rest), "content": text}, **rest}
        case {"type": "image", "data": _} | {"type": "image", "url": _}:
            image = without(part, "type", "data", "url")
            kept = _popped(image)
            source = {**kept_fields(kept, "source"), "type": "base64", "media_type": image.pop("media_type", "")}
            if "data" not in part:
                source |= {"type": "url", "data": part["url"]}
            else:
                source |= {name: part[name] for name in ("data", "url") if name in part}
            return {"type": "image", "image": {**kept, "source": source}, **image}
        case {"type": "tool_use" | "tool_result" | "jsonl"}:
            return {"type": KEPT, "part": part}  # or else it would be read as a call or a result
        case _:
            return part  # thinking, and unknown parts: the Go manager has neither


def _with_calls(parts: list[dict[str, Any]], calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts with the calls among them, each at its place."""
    pieces: list[dict[str, Any]] = []
    written = 0
    for call in calls:
        rest = dict(call)
        place = rest.get(PLACE)
        if isinstance(place, int) and written <= place < len(parts):
            del rest[PLACE]  # where it stands says it
        else:
            place = written if isinstance(place, int) and place < written else len(parts)
        pieces += parts[written:place]
        written = place
        pieces.append(_written_call(rest))
    return pieces + parts[written:]


def _written_call(call: dict[str, Any]) -> dict[str, Any]:
    """A call with its arguments as a map, and with the model's own text where the map would be written otherwise."""
    kept = _popped(call)
    use: dict[str, Any] = {**without(kept, *_CALL_FIELDS), "id": call.pop("id"), "name": call.pop("name"), "input": {}}
    arguments = call.pop("arguments", "")
    try:
        value = check_json(parse_json(arguments.encode()))
    except InvalidMessage:
        value = None
    if isinstance(value, dict):
        use["input"] = value
    if not isinstance(value, dict) or arguments_text(value) != arguments:
        use["arguments"] = arguments
    if "output" in call:
        use["output"] = call.pop("output")
    return {"type": "tool_use", "tool_use": use, **call}


def joined(whole: dict[str, Any], piece: dict[str, Any], piece_id: str) -> bool:
    """Add a further piece to a message that was read as several; whether that was possible.

    Args:
        whole: the message so far, as the Go manager has it; it is changed.
        piece: the further piece, as the Go manager has it.
        piece_id: its id, by which it is found again.
    """
    parts, more = whole["content"], piece["content"]
    if piece.keys() != {"role", "content"} or piece["role"] != whole["role"] or _FORM in whole or not parts or not more:
        return False
    if not (_is_result(parts[-1]) or _is_result(more[0])):
        return False  # the border between the two could not be found again
    more[0][PIECE_ID] = piece_id
    parts.extend(more)
    return True


# --- reading ---------------------------------------------------------------------------------------------------------


def read_messages(message: Any) -> list[Any]:
    """A message of a file in our stored form, whichever of both it has; several, where it answers several calls.

    What is not understood is passed on, for the decoder to refuse.
    """
    if not isinstance(message, dict) or not isinstance(content := message.get("content"), list):
        return [message]
    if not any(map(_is_result, content)):
        return [_read_message(message, content)]
    first, *further = in_pieces(content, _is_result)
    rest = without(message, "role", "content")
    return [_read_piece(message, first, rest), *(_read_piece(message, piece, {}) for piece in further)]


def piece_ids(message: dict[str, Any]) -> list[Any]:
    """The ids of the further pieces of a message that answers several calls; None where it has none."""
    return [
        piece[0].get(PIECE_ID) if isinstance(piece[0], dict) else None
        for piece in in_pieces(message["content"], _is_result)[1:]
    ]


def _read_piece(message: dict[str, Any], content: list[Any], rest: dict[str, Any]) -> dict[str, Any]:
    role, first = message.get("role"), content[0]
    if isinstance(first, dict):
        first = without(first, PIECE_ID)
    if not _is_result(first):
        return _read_message({**rest, "role": role}, [first, *content[1:]])
    result = first["tool_result"]
    said = result.get("content")
    if isinstance(parts := result.get("parts", said), list):
        said = [_read_part(part) for part in parts]
    fields = {**rest, "role": Role.TOOL_RESULT, "content": said}
    fields |= {name: result[key] for name, key in _RESULT_NAMES.items() if key in result}
    kept = {
        "tool_result": without(result, *_RESULT_FIELDS),
        "part": without(first, "type", "tool_result"),
        "role": None if role == _TOOL else role,
    }
    return {**fields, **_kept({name: value for name, value in kept.items() if value})}


def _read_message(message: dict[str, Any], content: list[Any]) -> dict[str, Any]:
    fields = dict(message)
    parts: list[Any] = []
    calls: list[tuple[dict[str, Any], int]] = []
    for part in content:
        if isinstance(part, dict) and part.get("type") == "tool_use" and isinstance(part.get("tool_use"), dict):
            use, call = part["tool_use"], without(part, "type", "tool_use")
            call |= {"id": "", "name": ""}  # a call that lacks them is kept, but never sent to a model
            call |= {name: use[name] for name in ("id", "name", "output") if name in use}
            call["arguments"] = use.get("arguments")
            if call["arguments"] is None:
                call["arguments"] = "" if use.get("input") is None else arguments_text(use["input"])
            calls.append(({**call, **_kept(without(use, *_CALL_FIELDS))}, len(parts)))
        else:
            parts.append(_read_part(part))
    form = fields.pop(_FORM, None) or ("text" if _looks_like_text(content) else "parts")
    fields["content"] = parts
    if form == "text" and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        fields["content"] = "".join(part["text"] for part in parts)
    if calls:
        fields["tool_calls"] = [
            call if place == len(parts) or PLACE in call else {**call, PLACE: place} for call, place in calls
        ]
    return fields


def _looks_like_text(parts: Sequence[Any]) -> bool:
    """Whether the Go manager's parts, calls left out, are those of a plain text."""
    said = [part for part in parts if not (isinstance(part, dict) and isinstance(part.get("tool_use"), dict))]
    if len(said) != 1:
        return len(parts) > len(said) == 0
    match said[0]:
        case {"type": "text", "text": {"content": str(text), **inner}, **outer}:
            return bool(text) and not inner and not outer
        case _:
            return False


def _read_part(part: Any) -> Any:
    image: dict[str, Any]
    source: dict[Any, Any]
    inner: dict[Any, Any]
    match part:
        case {"type": "jsonl", "part": dict(wrapped)}:
            return wrapped
        case {"type": "text", "text": {"content": str(text), **inner}, **rest}:
            return {"type": "text", "text": text, **rest, **_kept(inner)}
        case {"type": "image", "image": {"source": {"type": "base64", "data": str(data), **source}, **inner}, **rest}:
            image = {"data": data}
        case {"type": "image", "image": {"source": {"type": "url", "data": str(url), **source}, **inner}, **rest}:
            image = {"url": url}
        case {"type": "image", "image": {"source": {"type": "url", "url": str(url), **source}, **inner}, **rest}:
            image = {"url": url}
        case _:
            return part  # ours already, or for the decoder to judge
    image |= {name: source.pop(name) for name in ("media_type", "url") if isinstance(source.get(name), str)}
    kept = {**inner, "source": source} if source else inner
    return {"type": "image", **image, **rest, **_kept(kept)}


def _is_result(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "tool_result" and isinstance(part.get("tool_result"), dict)


def _popped(fields: dict[str, Any]) -> dict[str, Any]:
    """What was kept of a part, taken out of its fields."""
    return fields.pop(KEPT) if isinstance(fields.get(KEPT), dict) else {}


def _kept(fields: dict[Any, Any]) -> dict[str, Any]:
    return keeping(fields, KEPT) or {}
