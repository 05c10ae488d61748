"""The two tools: a clock that is asked, and a calculator that cannot be made to do anything else."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.agent.tools import MAX_EXPRESSION_LENGTH, Tool, calculator_tool, evaluate, time_tool
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.testing.clock import FakeClock

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 2", "4"),
        ("(1.5 + 2) * 3 ** 2", "31.5"),
        ("2^10", "1024"),
        ("2 * 3 ^ 2", "18"),
        ("0.1 + 0.2", "0.3"),
        ("-7 // 2", "-4"),
        ("+7 % 4", "3"),
        ("10 / 4", "2.5"),
        ("2 ** -1", "0.5"),
        ("1e3 + 1", "1001"),
        ("(-1) ** 99999999999", "-1"),
        ("1 ** 99999999999", "1"),
        ("2 ** 4000 - 2 ** 4000", "0"),
        (" 7 ", "7"),
    ],
)
def test_arithmetic_is_evaluated(expression: str, value: str) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        " ",
        "__import__('os')",
        "().__class__",
        "1 if 1 else 2",
        "[1]",
        "1, 2",
        "1 < 2",
        "1j",
        "True",
        "e",
        "1 +",
        "1 2",
        "0777",
        "1e400",
        "1 / 0",
        "1 % 0",
        "0 ** -1",
        "(-8) ** 0.5",
        "9 ** 9 ** 9",
        "9 ** 9999999",
        "9.0 ** 9999999",
        "(2 ** 4000) * (2 ** 4000)",
        "(2 ** 4000) * 1.5",
        "(" * 99 + "1" + ")" * 99 + "+",
        "1" * (MAX_EXPRESSION_LENGTH + 1),
        "1\n+ 1",
        "1 << 2",
        "~1",
    ],
)
def test_what_is_not_bounded_arithmetic_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        evaluate(expression)


@given(st.text("0123456789.e+-*/%()^ ", max_size=MAX_EXPRESSION_LENGTH))
def test_no_expression_does_more_than_give_a_number_or_a_value_error(expression: str) -> None:
    with contextlib.suppress(ValueError, OverflowError):  # OverflowError: too large for this test's float
        float(evaluate(expression))


async def test_the_calculator_takes_an_expression() -> None:
    assert await calculator_tool().run({"expression": "6 * 7"}) == "42"


async def test_the_time_is_the_clocks() -> None:
    tool = time_tool(FakeClock())
    assert await tool.run({}) == "Thursday, 2026-01-01T00:00:00+00:00"
    assert await tool.run({"timezone": "Asia/Kolkata"}) == "Thursday, 2026-01-01T05:30:00+05:30"


@pytest.mark.parametrize("name", ["Nowhere/City", "../../etc/passwd", "Europe", "\0", 7])
async def test_an_unknown_time_zone_is_refused(name: object) -> None:
    with pytest.raises(ValueError, match="unknown time zone"):
        await time_tool(FakeClock()).run({"timezone": name})


@pytest.mark.parametrize("name", ["", "two words", "a.b", "x" * 65, "naïve"])
def test_a_tool_name_that_providers_refuse_is_refused_at_once(name: str) -> None:
    async def run(_: dict[str, object]) -> str:
        return ""

    with pytest.raises(ConfigError, match="tool name"):
        Tool(name, "", {}, run)
