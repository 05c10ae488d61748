"""How pi lays out its JSON objects, and how what our values have no field for survives beside them.

Three names do that work. Under `extra["pi"]` stand the fields of pi that have no canonical place, verbatim. Under
`extra["pi-form"]` stands how the object was written, where pi's usual way would not give it back: above all its names,
when their order or their number is unusual. And in pi's file, under "miniclaw", stands what only we know; pi passes
such fields on without looking at them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from miniclaw_sessions.core.protocol.json_values import in_utc
from miniclaw_sessions.files.formats.codec import kept_fields

KEPT = "pi"
"""The key of `extra` under which pi's fields without a canonical place are kept."""

FORM = "pi-form"
"""The key of `extra` that says how an object was written, where that is not pi's usual way."""

OWN = "miniclaw"
"""The field of pi's objects in which we write what pi has no field for."""

_MADE = "made"  # within OWN: the fields that stand there only because pi expects them
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_SHAPES_REMEMBERED = 256  # distinct orders of names; a file has a handful


class Unusable(Exception):
    """A line of a known type does not hold what its type promises; the text says what is missing."""


class Shape:
    """The names of one kind of object, in pi's order; those in `always` are never left out."""

    __slots__ = ("_unusual", "always", "order")

    def __init__(self, *order: str, always: Iterable[str] = ()) -> None:
        self.order = order
        self.always = frozenset(always)
        self._unusual = lru_cache(_SHAPES_REMEMBERED)(self._find_unusual)

    def _find_unusual(self, names: tuple[str, ...]) -> list[str] | None:
        names = tuple(name for name in names if name != OWN)
        usual = [name for name in self.order if name in names or name in self.always]
        usual += [name for name in names if name not in self.order]
        return None if list(names) == usual else list(names)

    def keep(self, fields: Mapping[str, Any], rest: Mapping[str, Any], **form: Any) -> dict[str, Any] | None:
        """What must be remembered of an object, as an `extra`; None when that is nothing.

        Args:
            fields: the object as it was read.
            rest: those of its fields that were not understood.
            form: more about how it was written; None stands for what was written as usual.
        """
        names = self._unusual(tuple(fields))
        if not rest and names is None and not form:
            return None
        unusual = {name: value for name, value in form.items() if value is not None}
        if names is not None:
            unusual["names"] = list(names)
        return ({KEPT: dict(rest)} if rest else {}) | ({FORM: unusual} if unusual else {}) or None

    def restore(
        self,
        fields: Mapping[str, Any],
        extra: Mapping[str, Any] | None,
        *,
        defaults: Mapping[str, Any] | None = None,
        made: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The object as pi writes it, or as it was read.

        Args:
            fields: what our value says; nothing that was kept overrides it.
            extra: what `keep` remembered.
            defaults: what is written where neither says anything, unless it was absent when it was read.
            made: the same, for fields that mean nothing to us and only satisfy pi.
        """
        kept = kept_fields(extra, KEPT)
        names = _names(extra)
        absent: frozenset[str] = frozenset() if names is None else self.always.difference(names)
        whole = {**(made or {}), **(defaults or {})}
        if absent:
            whole = {name: value for name, value in whole.items() if name not in absent}
        written = [name for name in made or () if name in whole and name not in kept and name not in fields]
        whole |= kept
        whole |= fields
        if written:
            whole[OWN] = {**whole.get(OWN, {}), _MADE: written}
        ordered = {name: whole[name] for name in (names or self.order) if name in whole}
        return ordered if len(ordered) == len(whole) else {**ordered, **whole}


def form_of(extra: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """How an object was written, where that was unusual."""
    return kept_fields(extra, FORM)


def _names(extra: Mapping[str, Any] | None) -> list[str] | None:
    names = form_of(extra).get("names") if extra else None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else None


def take_own(rest: dict[str, Any]) -> Mapping[str, Any]:
    """Take out of an object's fields what we wrote for ourselves, and what we only wrote to satisfy pi."""
    if not isinstance(rest.get(OWN), dict):
        return {}
    own: dict[str, Any] = rest.pop(OWN)
    if isinstance(made := own.get(_MADE), list):
        for name in made:
            if isinstance(name, str):
                rest.pop(name, None)
    return own


def with_own(fields: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an object with those that only we know, if there are any."""
    return {**fields, OWN: dict(own)} if own else fields


# --- times -----------------------------------------------------------------------------------------------------------


def from_milliseconds(value: Any) -> datetime | None:
    """The moment that a count of Unix milliseconds stands for; None when it is not one."""
    if type(value) is not int:
        return None
    try:
        return _EPOCH + value * _MILLISECOND
    except OverflowError:
        return None


def to_milliseconds(moment: datetime) -> int:
    """A moment as Unix milliseconds; what is finer is cut off."""
    return (in_utc(moment) - _EPOCH) // _MILLISECOND


def to_text(moment: datetime) -> str:
    """A moment as pi writes it: with milliseconds and Z; finer only where the moment is."""
    moment = in_utc(moment)
    text = moment.isoformat(timespec="microseconds" if moment.microsecond % 1000 else "milliseconds")
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def from_text(value: Any) -> datetime | None:
    """The moment that an entry's time stands for, in UTC: ISO 8601, or Unix milliseconds; None when it is neither."""
    if not isinstance(value, str):
        return from_milliseconds(value)
    try:
        return in_utc(datetime.fromisoformat(value))
    except ValueError:
        return None
