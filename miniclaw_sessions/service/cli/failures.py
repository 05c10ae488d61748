"""What a user sees when something goes wrong: one line that says what and what to do, never a stack trace."""

from __future__ import annotations

import sys
import traceback

import typer

from miniclaw_sessions.errors import SessionsError, first_cause
from miniclaw_sessions.printable import printable
from miniclaw_sessions.service.cli.output import print_sentence

FAILED = 1
WRONG_USAGE = 2

_UNAUTHORIZED = 401


def print_error(error: Exception, *, debug: bool = False) -> int:
    """Print the error as one line on standard error and return the exit status that belongs to it."""
    cause = first_cause(error)
    if debug:
        traceback.print_exception(error)
    line = f"error: {sentence(cause)}"
    if sys.stderr.isatty():
        from rich.console import Console  # noqa: PLC0415 - a script that sees a failure does without

        print_sentence(Console(stderr=True, highlight=False, markup=False, emoji=False), line)
    else:
        print(line, file=sys.stderr)  # noqa: T201 - this is what the function is for
    return WRONG_USAGE if isinstance(cause, typer.TyperException) else FAILED


def sentence(error: Exception) -> str:
    """The error on one line. The text of an unforeseen one is not shown: it may quote messages."""
    if isinstance(error, SessionsError):
        text = str(error).partition("\n")[0]
        if said := getattr(error, "provider_message", None):
            text += f": {said}"  # the provider's own sentence, for the person who asked
        if getattr(error, "status", None) == _UNAUTHORIZED:
            text = "the daemon asks for its token, which is missing or wrong: --token-file names the file that holds it"
    elif isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "miniclaw-sessions"
        wrong = error.format_message().replace(": Value error, ", ": ", 1)
        text = f"{wrong or 'no command is named'} ({path} --help explains)"
    elif isinstance(error, typer.Abort):
        text = "nothing was done"
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        text = f"unexpected {type(error).__name__}; the same command with --debug shows where"
    return printable(text)
