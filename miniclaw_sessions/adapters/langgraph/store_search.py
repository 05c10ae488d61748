"""What a search in LangGraph's memory finds: filters, words, and patterns of namespaces."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from langgraph.store.base import Item, MatchCondition, get_text_at_path

ItemT = TypeVar("ItemT", bound=Item)

_WORD = re.compile(r"\w+")
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


class Found(NamedTuple):
    """An item as it is held.

    Attributes:
        namespace, key, value, created_at, updated_at: as LangGraph's `Item` has them.
        fields: the paths that a query looks at; None: all of the value, False: none.
    """

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any]
    fields: list[str] | bool | None
    created_at: datetime
    updated_at: datetime

    def as_item(self, kind: type[ItemT], **more: Any) -> ItemT:
        """The item for its reader, who may change the value."""
        return kind(
            namespace=self.namespace,
            key=self.key,
            value=deepcopy(self.value),
            created_at=self.created_at,
            updated_at=self.updated_at,
            **more,
        )


# --- words -----------------------------------------------------------------------------------------------------------


def ranked(items: Iterable[Found], query: str) -> list[tuple[Found, float]]:
    """The items with words of a query, the best first: its share of the query's words, of which rare ones count more.

    Items that are equally good stay in their order.
    """
    wanted = set(_WORD.findall(query.casefold()))
    having = [(item, {word for word in wanted if _has(words, word)}) for item in items for words in [_words(item)]]
    weights = {word: math.log(1 + len(having) / max(1, sum(word in found for _, found in having))) for word in wanted}
    whole = sum(weights.values()) or 1.0
    scored = [(item, sum(weights[word] for word in found) / whole) for item, found in having if found]
    return sorted(scored, key=lambda pair: pair[1], reverse=True)


def _words(item: Found) -> set[str]:
    if item.fields is False:
        return set()
    if isinstance(item.fields, list):
        texts = [text for path in item.fields for text in get_text_at_path(item.value, path)]
    else:
        texts = list(_texts(item.value))
    return {word for text in texts for word in _WORD.findall(text.casefold())}


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif value is not None:
        yield f"{value}"


def _has(words: set[str], wanted: str) -> bool:
    """Whether a word is among them, or begins like one of them as far as it goes."""
    return wanted in words or (len(wanted) > 2 and any(word.startswith(wanted) for word in words))  # noqa: PLR2004


# --- filters ---------------------------------------------------------------------------------------------------------


def matches(value: Any, wanted: Any) -> bool:
    """Whether a value is as a filter wants it: equal, field by field, or as its operators compare.

    Raises:
        ValueError: an operator that LangGraph does not have.
    """
    if isinstance(wanted, Mapping):
        if any(name.startswith("$") for name in wanted):
            return all(_compares(value, name, other) for name, other in wanted.items())
        return isinstance(value, Mapping) and all(matches(value.get(name), other) for name, other in wanted.items())
    if isinstance(wanted, list | tuple):
        return isinstance(value, list) and len(value) == len(wanted) and all(map(matches, value, wanted))
    return bool(value == wanted)


def _compares(value: Any, name: str, other: Any) -> bool:
    if name in ("$eq", "$ne"):
        return bool(value == other) is (name == "$eq")
    if name not in _COMPARISONS:
        raise ValueError(f"an operator that a filter cannot have: {name}")
    try:
        return bool(_COMPARISONS[name](float(value), float(other)))
    except (TypeError, ValueError):
        return False  # no number, or no such field


# --- namespaces ------------------------------------------------------------------------------------------------------


def meets(namespace: Sequence[str], rule: MatchCondition) -> bool:
    """Whether a namespace begins, or ends, as a rule says; `*` is any label."""
    size = len(rule.path)
    part = namespace[:size] if rule.match_type == "prefix" else namespace[max(0, len(namespace) - size) :]
    return len(part) == size and all(want in ("*", label) for want, label in zip(rule.path, part, strict=True))
