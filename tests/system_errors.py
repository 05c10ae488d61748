"""Errors of the operating system, for tests that let a call fail."""

from __future__ import annotations

import os
from collections.abc import Callable


def failing(number: int) -> Callable[..., None]:
    """A function that fails with this error for any arguments."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail
