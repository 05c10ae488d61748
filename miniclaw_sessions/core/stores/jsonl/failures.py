"""Errors of files as those of `errors`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from miniclaw_sessions.disk import is_no_space
from miniclaw_sessions.errors import StoreFull, StoreUnavailable


@contextmanager
def failing(attempted: str, path: Path) -> Iterator[None]:
    """Translate errors of the operating system into `StoreUnavailable`.

    Args:
        attempted: the attempted action, to follow "cannot" in the text.
        path: the store's directory.
    """
    try:
        yield
    except OSError as error:
        raise unavailable(error, attempted, path) from error


def unavailable(error: OSError, attempted: str, path: Path) -> StoreUnavailable:
    """The store's error for an error of the operating system."""
    what = f"cannot {attempted} {path}: {error}"
    if is_no_space(error):
        return StoreFull(f"{what}; free space on its disk or quota, nothing that was acknowledged is lost")
    return StoreUnavailable(f"{what}; see that the disk works, and that the directory is ours alone and writable")
