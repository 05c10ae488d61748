"""The program's name and version. Other programs ask for the version again and again, so this loads nothing else."""

from __future__ import annotations

from miniclaw_sessions import __version__

PROGRAM = "miniclaw-sessions"


def print_version() -> int:
    """Print name and version, and return the exit status."""
    print(f"{PROGRAM} {__version__}")  # noqa: T201 - this is the answer
    return 0
