"""Which field of a document has not the shape that it must have, in words that name it and say what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import inspect

_PATH = re.compile(r"`\$(.*)`")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_NAMED = re.compile(r" field `(.{1,100})")
_LENGTH = re.compile(r"Expected `(\w+)` of length ([<>])= (\d+)")
_COUNTED = {"str": "characters", "array": "items", "object": "fields"}
_ANY_KEY = "..."  # how msgspec writes the key of an object that may have any
_LONGEST_KEY = 100

Step = str | int


def wrong_field(
    error: msgspec.ValidationError, data: Any, kind: Any, name: str | None = None
) -> tuple[str, str | None]:
    """A sentence for people, and the field's name for programs; None where it is the whole document.

    Args:
        error: why `msgspec` did not convert it.
        data: what came.
        kind: what it should be.
        name: what it is called, where it is a part of something.
    """
    sentence, _, place = str(error).partition(" - at ")
    sentence = _LENGTH.sub(_length_in_words, sentence)
    found = _PATH.search(place)
    steps = _with_keys([name or number for name, number in _STEP.findall(found[1] if found else "")], place, data, kind)
    if allowed := [repr(value) for value in _allowed_at(inspect.type_info(kind), steps)]:
        sentence += f"; {', '.join(allowed)} are allowed"
    whole = [*([] if name is None else [name]), *steps]
    if missing := _NAMED.search(sentence):  # unknown, or missing: the path is the object's
        return sentence, _joined([*whole, missing[1].partition("`")[0]])
    param = _joined(whole)
    return (f"{param}: {sentence}" if param else sentence), param or None


def _length_in_words(found: re.Match[str]) -> str:
    kind, sign, bound = found.groups()
    if (sign, bound) == (">", "1"):
        return "it is empty"
    return f"{'at most' if sign == '<' else 'at least'} {int(bound):,} {_COUNTED[kind]}"


def _joined(steps: Sequence[Step]) -> str:
    written = "".join(f"[{step}]" if isinstance(step, int) else f".{step[:_LONGEST_KEY]}" for step in steps)
    return written.removeprefix(".")


def _with_keys(names: Sequence[str], place: str, data: Any, kind: Any) -> list[Step]:
    """The steps to the field, with the keys that are in the document where `msgspec` says only that there is one."""

    def is_wrong(document: Any) -> bool:
        try:
            msgspec.convert(document, kind)
        except msgspec.ValidationError as error:
            return str(error).endswith(place)
        return False

    steps: list[Step] = []
    for name in names:
        if name == _ANY_KEY:
            node = _at(data, steps)
            keys = list(node)
            while len(keys) > 1:  # the key whose value is wrong, by halves
                half = keys[: len(keys) // 2]
                keys = half if is_wrong(_with(data, steps, {key: node[key] for key in half})) else keys[len(half) :]
            data = _with(data, steps, {keys[0]: node[keys[0]]})
            steps.append(str(keys[0]))
        else:
            steps.append(int(name) if name.isdecimal() and isinstance(_at(data, steps), list) else name)
    return steps


def _at(data: Any, steps: Sequence[Step]) -> Any:
    for step in steps:
        data = data[step]
    return data


def _with(data: Any, steps: Sequence[Step], node: Any) -> Any:
    """The document with another node there."""
    if not steps:
        return node
    first, rest = steps[0], steps[1:]
    changed: Any = list(data) if isinstance(data, list) else dict(data)
    changed[first] = _with(data[first], rest, node)
    return changed


def _allowed_at(kind: inspect.Type, steps: Sequence[Step]) -> Iterator[Any]:
    """The values that a field may have, if these are few and known."""
    match kind:
        case inspect.Metadata(type=inner):
            yield from _allowed_at(inner, steps)
        case inspect.UnionType(types=types):
            for one in types:
                yield from _allowed_at(one, steps)
        case inspect.LiteralType(values=values) if not steps:
            yield from values
        case inspect.EnumType(cls=cls) if not steps:
            yield from (member.value for member in cls)
        case inspect.StructType(fields=fields) if steps:
            for field in fields:
                if field.encode_name == steps[0]:
                    yield from _allowed_at(field.type, steps[1:])
        case inspect.ListType(item_type=inner) | inspect.DictType(value_type=inner) if steps:
            yield from _allowed_at(inner, steps[1:])
        case _:
            pass
