"""A few cases of many in the round of minutes, and all of them in the proofs; in CI, a part of what these repeat."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

PART = int(os.environ.get("PROOF_PART", "1"))
"""What CI divides random repetitions and long lists of cases by. By hand there is none: `make proof` has time."""

PART_NUMBER = int(os.environ.get("PROOF_PART_NUMBER", "0"))
"""Which part of a long list of cases CI runs: another one each time."""

_SHORT = 6
"""Shorter lists are never divided: they name stores, formats or programs, each of which CI tries."""

_ELSEWHERE = [pytest.mark.proof, pytest.mark.skip(reason="in another part of the proofs (PROOF_PART_NUMBER)")]


def in_part(number: int) -> pytest.MarkDecorator:
    """Let CI run a proof that takes long only with this part; by hand it runs each time."""
    is_elsewhere = number % PART != PART_NUMBER % PART
    return pytest.mark.skipif(is_elsewhere, reason="in another part of the proofs (PROOF_PART_NUMBER)")


def repeated(times: int) -> int:
    """How often a proof does what chance makes different each time, such as cutting the power."""
    return -(-times // PART)


def part(cases: Sequence[T], *, least: int = 1) -> Sequence[T]:
    """The cases that CI runs of a long list, `least` of them at least, for some miss by chance; all of them by hand."""
    if len(cases) <= _SHORT:
        return cases
    step = max(1, min(PART, len(cases) // least))
    return cases[PART_NUMBER % step :: step]


def sampled(cases: Iterable[Any], every: int) -> list[Any]:
    """The cases of a parametrized test or fixture. The round runs the first of each group, the proofs run the others.

    With `PROOF_PART=8` the proofs run an eighth of many others; `PROOF_PART_NUMBER` says which one.

    Args:
        cases: values, or tuples of values.
        every: how many cases make a group.
    """
    chosen = list(cases)
    others = [number for number in range(len(chosen)) if number % every]
    here = part(others)
    for number in others:
        case = chosen[number]
        values = case if type(case) is tuple else (case,)  # a named one is one value
        chosen[number] = pytest.param(*values, marks=[pytest.mark.proof] if number in here else _ELSEWHERE)
    return chosen
