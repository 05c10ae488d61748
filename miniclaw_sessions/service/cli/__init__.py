"""The command line: one command per thing to do, text for people, `--json` for programs.

Exit statuses, for every command:

| Status | Meaning |
|---|---|
| 0 | done; for `check`: everything is sound |
| 1 | it could not be done (one line on standard error says why); for `check`: something is damaged |
| 2 | the command line is wrong |
| 3 | `check` could not look |
| 130 | interrupted from the keyboard |

`serve` ends with the statuses of `miniclaw_sessions.service.gateway.exit_status`, which say more to a service manager.

Standard output carries the answer and nothing else; progress, questions, notes and errors go to standard error. Nothing
heavy is imported before it is known what is asked for.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Sequence

from miniclaw_sessions.service.cli.version import print_version

INTERRUPTED = 130

_COLLECT_AFTER = 200_000
"""What a command loads stays: the collector would walk it again and again, and once more at the process's end."""

_OF_THE_EXTRA = frozenset({"typer", "click", "rich", "prompt_toolkit", "markdown_it", "httptools", "prometheus_client"})
"""What commands and the daemon load, and a program that only uses the library does without."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status.

    Args:
        arguments: without the program's name; those of this process by default.
    """
    if arguments is not None:
        return _run(list(arguments))
    gc.set_threshold(_COLLECT_AFTER)
    try:
        return _run(sys.argv[1:])
    finally:
        gc.freeze()


def _run(given: list[str]) -> int:
    _open_what_was_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character shows its code
    try:
        if given == ["--version"]:  # asked for by other programs, again and again
            status = print_version()
        else:
            from miniclaw_sessions.service.cli.app import run  # noqa: PLC0415 - an interrupt during the import is handled too

            status = run(given)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 - the last edge: every error becomes one line
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _OF_THE_EXTRA:
            from miniclaw_sessions.errors import to_install  # noqa: PLC0415 - only a failure pays for it

            sentence = f"commands need {error.name}, which the library does without: {to_install('daemon')}"
            print(f"error: {sentence}", file=sys.stderr)  # noqa: T201 - for the person who called
            return 1
        from miniclaw_sessions.service.cli.failures import print_error  # noqa: PLC0415 - only a failure pays for it

        return print_error(error, debug="--debug" in given)
    return status


def _open_what_was_closed() -> None:
    """Open /dev/null for closed standard streams; else the next file opened would take their place."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != descriptor:
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115 - for the process's life
