"""What a refusal says of the field that is wrong: its name, as it is in the document, and what is allowed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from miniclaw_sessions.core.protocol.messages import Role
from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.api.operation import shaped

Short = Annotated[str, Meta(max_length=3)]


class Inner(msgspec.Struct):
    """Something within."""

    verbosity: Literal["low", "high"] | None = None
    labels: dict[Short, Short] = {}
    counts: list[dict[str, int]] = []


class Whole(msgspec.Struct, forbid_unknown_fields=True):
    """A document."""

    text: Inner
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    roles: Annotated[list[Role], Meta(max_length=4)] = []
    name: Annotated[str, Meta(min_length=1)] = "x"


def refused(document: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        shaped(document, Whole)
    return caught.value


@pytest.mark.parametrize(
    ("document", "param", "sentence"),
    [
        ({"text": {}, "temperature": 3}, "temperature", "temperature: Expected `float` <= 2.0"),
        (
            {"text": {"verbosity": "loud"}},
            "text.verbosity",
            "text.verbosity: Invalid enum value 'loud'; 'high', 'low' are allowed",
        ),
        ({"text": {"labels": {"a": "b", "c": "long"}}}, "text.labels.c", "text.labels.c: at most 3 characters"),
        ({"text": {"labels": {"long": "b"}}}, "text.labels", "text.labels: at most 3 characters"),
        ({"text": {"counts": [{"a": 1}, {"a": 1, "b": 2, "c d": "x"}]}}, "text.counts[1].c d", "Expected `int`"),
        ({"text": {"labels": {"x" * 3: 5, "7": "ok"}}}, "text.labels.xxx", "Expected `str`, got `int`"),
        ({"text": {}, "roles": ["user", "alien"]}, "roles[1]", "'system', 'user', 'assistant'"),
        ({"text": {}, "hue": 1}, "hue", "Object contains unknown field `hue`"),
        ({"text": {}, "roles": ["user"] * 5}, "roles", "roles: at most 4 items"),
        ({"text": {}, "name": ""}, "name", "name: it is empty"),
        ({}, "text", "Object missing required field `text`"),
        ([], None, "Expected `object`, got `array`"),
    ],
)
def test_a_refusal_names_the_field_and_what_is_allowed(document: Any, param: str | None, sentence: str) -> None:
    error = refused(document)
    assert error.param == param
    assert sentence in error.message


@given(st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=40), st.text(min_size=1, max_size=3))
def test_the_key_that_is_wrong_is_found_among_any_others(labels: dict[str, str], wrong: str) -> None:
    assert refused({"text": {"labels": {**labels, wrong: "long"}}}).param == f"text.labels.{wrong}"


def test_a_key_of_any_length_makes_a_short_name() -> None:
    assert refused({"text": {"counts": [{"k" * 5000: None}]}}).param == f"text.counts[0].{'k' * 100}"
