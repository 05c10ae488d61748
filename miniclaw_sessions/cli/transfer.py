"""Commands that take session files in and write them out, in every format."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from miniclaw_sessions.cli.backend import Backend, Document, Report
from miniclaw_sessions.cli.invocation import Invocation, command, write_bytes
from miniclaw_sessions.cli.opening import find_daemon
from miniclaw_sessions.cli.output import one_line, plain_table
from miniclaw_sessions.cli.running import SessionId, read_entries, run, with_backend
from miniclaw_sessions.errors import SessionsError

app = typer.Typer()


class ExportFormat(StrEnum):
    """How an exported session is written: `json` is the session and its entries as stored; for the others, `formats`.

    As `formats.registry.WRITABLE` has them: help must not load every format.
    """

    JSONL = "jsonl"
    JSON = "json"
    PI = "pi"
    DIVE = "dive"
    NANOBOT = "nanobot"
    MINICLAW = "miniclaw"
    OPENAI_ITEMS = "openai-items"
    GOOGLE = "google"
    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    MARKDOWN = "markdown"
    HTML = "html"


class ImportFormat(StrEnum):
    """What an imported file is; as `formats.registry.READABLE` has them."""

    JSONL = "jsonl"
    PI = "pi"
    DIVE = "dive"
    CLAUDE_CODE = "claude-code"
    CODEX = "codex"
    NANOBOT = "nanobot"
    MINICLAW = "miniclaw"
    OPENAI_ITEMS = "openai-items"
    GOOGLE = "google"
    ANTHROPIC = "anthropic"
    OPENAI = "openai"


# --- in --------------------------------------------------------------------------------------------------------------


@command(
    app,
    "import",
    examples={
        "import chat.jsonl": "recognises the format",
        "import ~/.pi/agent/sessions --recursive --dry-run": "what would become of a directory",
        "import backup.jsonl --as telegram_123": "under this id",
    },
)
def import_files(  # noqa: PLR0913 - one for each option
    invocation: Invocation,
    *,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Files, and directories of files.")],
    form: Annotated[
        ImportFormat | None, typer.Option("--format", help="What the files are; recognised otherwise.")
    ] = None,
    session_id: Annotated[
        str | None,
        typer.Option("--as", metavar="SESSION_ID", help="The new session's id; of one file only.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only read, and report.")] = False,
    recursive: Annotated[bool, typer.Option("--recursive", help="Directories within directories, too.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Tell everything that was wrong with a file.")] = False,
) -> None:
    """Make sessions of other programs' files, or of our own exports; the files are only read.

    What is no session is refused, and the others go on; in a directory, where dot files are left out, it is skipped.
    """
    from miniclaw_sessions.cli.importing import Importing, found_files  # noqa: PLC0415 - help does not need it

    files = found_files(paths, recursive=recursive)
    if session_id is not None and len(files) != 1:
        raise typer.BadParameter(f"it names one session, and there are {len(files)} files", param_hint="'--as'")
    importing = Importing(files, form=None if form is None else form.value, session_id=session_id, dry_run=dry_run)
    with_backend(invocation, importing.run, create=not dry_run)
    if invocation.as_json:
        invocation.print_json(importing.document())
    else:
        _tell_imports(invocation, importing.document(), verbose=verbose)
    if importing.refused:
        raise typer.Exit(1)


def _tell_imports(invocation: Invocation, document: Document, *, verbose: bool) -> None:
    from miniclaw_sessions.cli.import_report import report_lines  # noqa: PLC0415 - help does not need it

    console = invocation.console
    if document["imported"]:
        for line in report_lines(document["imported"], width=console.width):
            console.print(line, soft_wrap=True)
    for report in document["imported"]:
        if report["findings"]:
            _tell_findings(invocation, report, verbose=verbose)
    errors = invocation.errors
    for one in document["skipped"]:
        told = f"skipped: {one_line(one['path'])}: {one_line(one['reason'])}"
        errors.print(told, style="dim", no_wrap=not verbose, overflow="ellipsis")
    for one in document["refused"]:
        errors.print(f"refused: {one_line(one['path'])}: {one_line(one['reason'])}", style="red", soft_wrap=True)
    if not any(document.values()):
        errors.print("there are no files", style="dim")


def _tell_findings(invocation: Invocation, report: Document, *, verbose: bool) -> None:
    from miniclaw_sessions.cli.import_report import finding_table, untold  # noqa: PLC0415 - help does not need it

    invocation.console.print(f"\n{one_line(report['path'])}", style="bold", soft_wrap=True)
    invocation.console.print(finding_table(report, shows_all=verbose))
    if rest := untold(report, shows_all=verbose):
        hint = "" if verbose else "; --verbose shows them"
        invocation.console.print(f"  {rest} more{hint}", style="dim")


# --- out -------------------------------------------------------------------------------------------------------------


@command(
    app,
    examples={
        "export telegram_123 --format markdown": "to read",
        "export telegram_123 --format html --output chat.html": "to look at, with its tree",
        "export telegram_123 --output chat.jsonl": "everything, for `import`",
    },
)
def export(
    invocation: Invocation,
    session_id: SessionId,
    form: Annotated[ExportFormat, typer.Option("--format", help="How it is written.")] = ExportFormat.JSONL,
    output: Annotated[
        Path | None, typer.Option(help="A file, made with mode 0600; standard output otherwise.", show_default=False)
    ] = None,
) -> None:
    """Write out a session: its whole tree, or its current branch where the format has no tree."""

    async def act(backend: Backend, report: Report) -> int:
        session = await backend.session(session_id)
        written = 0
        async with _sink(output) as write, aclosing(_rendered(backend, session, form, report)) as chunks:
            async for chunk in chunks:
                await write(chunk)
                written += len(chunk)
        return written

    written = with_backend(invocation, act)
    if output is not None:
        if invocation.as_json:
            invocation.print_json({"session_id": session_id, "output": str(output), "bytes": written})
        else:
            invocation.errors.print(f"{written} bytes written to {one_line(output)}", style="dim", soft_wrap=True)


async def _rendered(
    backend: Backend, session: Document, form: ExportFormat, report: Report
) -> AsyncGenerator[bytes, None]:
    """The session in the chosen form, a piece at a time."""
    if form is not ExportFormat.JSON:
        done = 0
        async with aclosing(backend.export(session["session_id"], form.value)) as chunks:
            async for chunk in chunks:
                done += len(chunk)
                report("exporting", done, None)
                yield chunk
        return
    import orjson  # noqa: PLC0415 - help does not need it

    yield b'{"session":' + orjson.dumps(session) + b',"entries":['
    separator = b""
    async for encoded in read_entries(backend, session, report):
        yield separator + encoded
        separator = b","
    yield b"]}\n"


@asynccontextmanager
async def _sink(output: Path | None) -> AsyncIterator[Callable[[bytes], Awaitable[Any]]]:
    """Where to write: a private file that appears whole or not at all, or standard output."""
    import aiofiles  # noqa: PLC0415 - help does not need it

    if output is None:
        characters = codecs.getincrementaldecoder("utf-8")()  # a chunk may end in the middle of one

        async def to_standard_output(data: bytes) -> None:
            write_bytes(characters.decode(data).encode() if sys.stdout.isatty() else data)

        yield to_standard_output
        sys.stdout.buffer.flush()
        return
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        async with aiofiles.open(partial, "xb", opener=_private) as file:
            yield file.write
            await file.flush()
        partial.replace(output)
    except OSError as error:
        raise SessionsError(f"cannot write {output}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


# --- formats ---------------------------------------------------------------------------------------------------------


@command(app, examples={"formats": "what can be read and written, and what a round trip loses"})
def formats(invocation: Invocation) -> None:
    """List the formats of session files, and what a round trip through each loses."""

    async def act(report: Report) -> Document:
        del report
        async with find_daemon(invocation.loaded) as daemon:
            return _known_formats() if daemon is None else await daemon.formats()

    document = run(invocation, act)
    if invocation.as_json:
        invocation.print_json(document)
        return
    table = plain_table("FORMAT", "READ", "WRITE", "FILES", "ABOUT")
    for form in document["formats"]:
        marks = ("yes" if form[can] else "-" for can in ("read", "write"))
        table.add_row(one_line(form["name"]), *marks, f"*{one_line(form['suffix'])}", one_line(form["about"]))
    invocation.console.print(table)


def _known_formats() -> Document:
    """The formats of this program, in the words of GET /v1/formats."""
    from miniclaw_sessions.formats.registry import FORMATS, READABLE, WRITABLE  # noqa: PLC0415 - loads every format

    return {
        "formats": [
            {
                "name": form.name,
                "about": form.about,
                "suffix": form.suffix,
                "read": form in READABLE,
                "write": form in WRITABLE,
            }
            for form in FORMATS
        ]
    }
