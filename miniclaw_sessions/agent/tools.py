"""Tools: what a model may call, and two of them, a clock and a calculator.

A tool takes the arguments that the model chose and returns text or content parts. It may raise any exception: the
agent turns an exception into an error result that the model sees. Each runs in a task of its own, at the same time as
the others that the same reply called, and is cancelled when its time is up.
"""

from __future__ import annotations

import ast
import hashlib
import math
import operator
import re
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.core.protocol.messages import Part
from miniclaw_sessions.errors import ConfigError

MAX_EXPRESSION_LENGTH = 200
"""Characters of an expression that the calculator reads."""

MAX_BITS = 4096
"""Size of the integers that the calculator goes on with: some 1,200 decimal digits."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what every provider accepts

Content = str | tuple[Part, ...]


class Unanswered(StrEnum):
    """What `resume` does with calls that a crash left without a result."""

    RUN = "run"
    """Run their tools: right where running twice does no harm, for it may have run before."""

    CLOSE = "close"
    """Answer them with an error, and let the model decide."""


class Tool(msgspec.Struct, frozen=True):
    """Something that a model may call.

    Attributes:
        name: letters, digits, `_` and `-`, at most 64.
        description: for the model: what it does and when to use it.
        parameters: a JSON schema of type object; the agent passes on any object, so check what matters.
        run: the work; takes the arguments as a dict.
        needs_approval: a person must agree to each call, before it runs (`approving`).
        timeout_s: seconds after which it is cancelled; None: the agent's own time for tools.

    Raises:
        ConfigError: the name is one that providers refuse.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    run: Callable[[dict[str, Any]], Awaitable[Content]]
    needs_approval: bool = False
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"the tool name {self.name!r} is not one: use 1 to 64 letters, digits, '_' and '-'")

    @property
    def fingerprint(self) -> str:
        """Changes with the tool's description for the model: a person who agreed to a call agreed to this tool."""
        described = msgspec.json.encode((self.name, self.description, self.parameters), order="deterministic")
        return hashlib.sha256(described).hexdigest()


# --- the clock -------------------------------------------------------------------------------------------------------


def time_tool(clock: Clock) -> Tool:
    """The tool `time`: the date and time of this clock, in UTC or another time zone."""

    async def run(arguments: dict[str, Any]) -> str:
        try:
            zone = ZoneInfo(str(arguments.get("timezone") or "UTC"))
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError("unknown time zone; give an IANA name such as Europe/Vienna") from None
        now = clock.now().astimezone(zone)
        return f"{now:%A}, {now.isoformat(timespec='seconds')}"

    timezone = {"type": "string", "description": "IANA name such as Europe/Vienna; UTC when left out"}
    return Tool(
        "time",
        "The current date, time and day of the week.",
        {"type": "object", "properties": {"timezone": timezone}, "additionalProperties": False},
        run,
    )


# --- the calculator --------------------------------------------------------------------------------------------------


def calculator_tool() -> Tool:
    """The tool `calculator`: arithmetic with + - * / // % ** and parentheses."""

    async def run(arguments: dict[str, Any]) -> str:
        return evaluate(str(arguments.get("expression", "")))

    expression = {"type": "string", "description": "for example (1.5 + 2) * 3 ** 4"}
    return Tool(
        "calculator",
        "Evaluates an arithmetic expression of numbers, + - * / // % ** and parentheses.",
        {
            "type": "object",
            "properties": {"expression": expression},
            "required": ["expression"],
            "additionalProperties": False,
        },
        run,
    )


Number = int | float

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_EXPRESSION = re.compile(r"[0-9.eE+\-*/%()^ ]+")


def evaluate(expression: str) -> str:
    """The value of an arithmetic expression, as text. Nothing is ever executed, and no result can grow without bound.

    `^` is read as a power. Floats are rounded to 15 digits, so that 0.1 + 0.2 is 0.3.

    Raises:
        ValueError: it is not an arithmetic expression, is too long, divides by zero, or has a result beyond the bounds.
    """
    if len(expression) > MAX_EXPRESSION_LENGTH:
        raise ValueError(f"the expression has more than {MAX_EXPRESSION_LENGTH} characters")
    if not _EXPRESSION.fullmatch(expression):
        raise ValueError("not an arithmetic expression; use numbers, + - * / // % ** and parentheses")
    try:
        value = _value_of(ast.parse(expression.strip().replace("^", "**"), mode="eval").body)
    except SyntaxError:
        raise ValueError("not a complete arithmetic expression") from None
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except (OverflowError, RecursionError, MemoryError):
        raise ValueError("the expression or its result is too large") from None
    return str(value) if isinstance(value, int) else f"{value:.15g}"


def _value_of(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value):
            return _bounded(value)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value_of(operand)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value_of(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _bounded(_power(_value_of(left), _value_of(right)))
        case ast.BinOp(left=left, op=chosen, right=right) if type(chosen) in _OPERATORS:
            return _bounded(_OPERATORS[type(chosen)](_value_of(left), _value_of(right)))
        case _:
            raise ValueError("not an arithmetic expression; use numbers, + - * / // % ** and parentheses")


def _power(base: Number, exponent: Number) -> Number:
    """The power, refused before it is computed where it would be too large."""
    is_whole = isinstance(base, int) and isinstance(exponent, int)
    if is_whole and abs(base) > 1 and (int(base).bit_length() - 1) * exponent > MAX_BITS:
        raise ValueError("the power is too large")
    result: Number | complex = base**exponent
    if isinstance(result, complex):
        raise ValueError("the power is not a real number")  # noqa: TRY004 - the arguments are of the right type
    return result


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError("the result is too large")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("the result is too large")
    return value
