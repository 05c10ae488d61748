"""A few cases of many in the round of minutes, and all of them in the proofs; in CI, a part of what these repeat."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

PART = int(os.environ.get("PROOF_PART", "1"))
"""What CI divides random repetitions by. By hand there is no such limit, as `make proof` has time."""


def repeated(times: int) -> int:
    """How often a proof does what chance makes different each time, such as cutting the power."""
    return -(-times // PART)


def sampled(cases: Iterable[Any], every: int) -> list[Any]:
    """The cases of a parametrized test or fixture. The round runs the first of each group, the proofs run the others.

    Args:
        cases: values, or tuples of values.
        every: how many cases make a group.
    """
    chosen = []
    for number, case in enumerate(cases):
        if number % every == 0:
            chosen.append(case)
            continue
        values = case if type(case) is tuple else (case,)  # a named one is one value
        chosen.append(pytest.param(*values, marks=pytest.mark.proof))
    return chosen
