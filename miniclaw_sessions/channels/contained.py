"""A channel's own code, kept from doing harm: its errors end only itself, and no log shows its secrets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from miniclaw_sessions.errors import SessionsError


def reason_of(error: Exception) -> str:
    """What a log may say of a channel's error: a sentence of ours, else where it was raised; more may show secrets."""
    if isinstance(error, SessionsError):
        return str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" in {trace.tb_frame.f_globals.get('__name__')}, line {trace.tb_lineno}"
    return f"{type(error).__name__}{place}"


@contextmanager
def ending_only_itself() -> Iterator[None]:
    """Make an ordinary error of what would end more than a channel: a stray cancellation, or an exit.

    Libraries leak the first from connections that close.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, anyio.get_cancelled_exc_class()) and anyio.current_effective_deadline() == -math.inf:
            raise
        raise SessionsError(f"the channel's code has raised {type(error).__name__}") from error
