"""Commands that take session files in and write them out, in every format."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import aiofiles
import typer

from miniclaw_sessions.errors import SessionNotFound, SessionsError
from miniclaw_sessions.files.formats.registry import OURS
from miniclaw_sessions.service.cli.importing import Importing, found_files
from miniclaw_sessions.service.cli.invocation import Invocation, command, write_bytes
from miniclaw_sessions.service.cli.names import AnySessionId, find_session
from miniclaw_sessions.service.cli.output import counted, one_line, print_sentence
from miniclaw_sessions.service.cli.tables import Rows

app = typer.Typer()


EXPORTED = (*(form.name for form in OURS if form.is_written), "json")
"""How a session can be written."""

IMPORTED = tuple(form.name for form in OURS if form.is_read)
"""What an imported file can be."""

_Programs = Annotated[
    list[str] | None,
    typer.Option("--program", metavar="NAME", help="With --discover: those of this program."),
]


def _one_of(ours: Sequence[str], text: str) -> Any:
    """The option that names one of our formats, or of those that installed packages declare."""

    def named(name: str | None) -> str | None:
        if name is None or name in ours:
            return name
        from miniclaw_sessions.plugins import declared  # noqa: PLC0415 - only for a name that is none of ours

        if name in declared("formats"):
            return name
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(map(repr, ours))}.")

    listed = f"{text} ({', '.join(ours)})"
    return typer.Option("--format", help=listed, callback=named, metavar="FORMAT", autocompletion=[*ours].copy)


# --- in --------------------------------------------------------------------------------------------------------------


@command(
    app,
    "import",
    examples={
        "import chat.jsonl": "recognizes the format",
        "import ~/.pi/agent/sessions --recursive --dry-run": "what would become of a directory",
        "import ~/.pi/agent/sessions --recursive --skip-existing": "what is new in it since the last time",
        "import backup.jsonl --as telegram_123": "under this id",
        "import --discover": "what pi, Claude Code, Codex and others said on this machine; asks what to take",
        "import --discover --all --follow": "all of it, and what they say from now on; Ctrl-C ends it",
    },
)
async def import_files(  # noqa: PLR0913 - one for each option
    invocation: Invocation,
    *,
    paths: Annotated[list[Path] | None, typer.Argument(metavar="PATH", help="Files, and directories of files.")] = None,
    form: Annotated[str | None, _one_of(IMPORTED, "What the files are; recognized otherwise.")] = None,
    session_id: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="SESSION_ID", help="The new session's id; of one file, or one that --discover finds."
        ),
    ] = None,
    skip_existing: Annotated[
        bool, typer.Option("--skip-existing", help="Pass over files whose session is there already.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only read, and report.")] = False,
    recursive: Annotated[bool, typer.Option("--recursive", help="Directories within directories, too.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show everything that was wrong with a file.")] = False,
    discover: Annotated[bool, typer.Option("--discover", help="Find other programs' sessions, and ask.")] = False,
    programs: _Programs = None,
    everything: Annotated[bool, typer.Option("--all", help="With --discover: all of them.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="With --discover: keep up with them as they grow.")] = False,
) -> None:
    """Make sessions of other programs' files, or of our own exports; the files are only read.

    What is no session is refused, and the others go on; in a directory, where dot files are left out, it is skipped.
    """
    if discover or programs or everything or follow:  # with --as, only the session that is to have this id
        if not discover or paths or form or skip_existing or recursive:
            raise typer.BadParameter(
                "it finds the files itself: no PATH, only its own options", param_hint="'--discover'"
            )
        if (session_id is not None) + follow + dry_run > 1:
            raise typer.BadParameter("it is one of --as, --follow and --dry-run", param_hint="'--discover'")
        from miniclaw_sessions.service.cli import discovering  # noqa: PLC0415 - help does not need it

        of_programs = programs or []
        await discovering.discover(
            invocation, of_programs, session_id, everything=everything, follow=follow, dry_run=dry_run
        )
        return
    if not paths:
        raise typer.BadParameter("name files, or give --discover", param_hint="'PATH'")
    files = found_files(paths, recursive=recursive)
    if session_id is not None and len(files) != 1:
        raise typer.BadParameter(f"it names one session, and there are {len(files)} files", param_hint="'--as'")
    importing = Importing(
        files,
        form=form,
        session_id=session_id,
        skip_existing=skip_existing,
        dry_run=dry_run,
    )
    async with invocation.sessions(create=not dry_run) as client:
        await importing.run(client, invocation.report)
    if invocation.as_json:
        invocation.print_json(importing.document())
    else:
        _print_imports(invocation, importing.document(), verbose=verbose)
    if importing.refused:
        raise typer.Exit(1)


def _print_imports(invocation: Invocation, document: dict[str, Any], *, verbose: bool) -> None:
    from miniclaw_sessions.service.cli.import_report import (  # noqa: PLC0415 - loads rich
        finding_lines,
        report_lines,
        report_rows,
    )

    if not sys.stdout.isatty():
        invocation.print_rows(report_rows(document["imported"]))
    elif document["imported"]:
        for line in report_lines(document["imported"], invocation.console):
            invocation.console.print(line, soft_wrap=True)
    errors = invocation.errors
    for report in document["imported"]:
        for line in finding_lines(report, shows_all=verbose):
            errors.print(line, soft_wrap=True)
    if any(report["dry_run"] for report in document["imported"]):
        invocation.note("nothing was imported: this only shows what would be")
    for one in document["skipped"]:
        skipped = f"skipped: {one_line(one['path'])}: {one_line(one['reason'])}"
        errors.print(skipped, style="dim", no_wrap=not verbose, overflow="ellipsis")
    for one in document["refused"]:
        print_sentence(errors, f"refused: {one_line(one['path'])}: {one_line(one['reason'])}", "red")
    if not any(document.values()):
        errors.print("there are no files", style="dim")


# --- out -------------------------------------------------------------------------------------------------------------


@command(
    app,
    examples={
        "export telegram_123 --format markdown": "to read",
        "export telegram_123 --format html --output chat.html": "to look at, with its tree",
        "export telegram_123 --output chat.jsonl": "everything, for `import`",
        "export --user 4711 --output anna.zip": "everything about one person, with a page that says what is in it",
        "export --all --output chats": "every session, a file each in the directory `chats`; cut off, it goes on",
    },
)
async def export(  # noqa: PLR0913 - one for each option
    invocation: Invocation,
    *,
    session_id: AnySessionId = None,
    form: Annotated[str, _one_of(EXPORTED, "How it is written.")] = "jsonl",
    output: Annotated[
        Path | None,
        typer.Option(help="A file, made with mode 0600, or for --all a directory; standard output otherwise."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every session, into the directory --output.")] = False,
    user: Annotated[
        str | None,
        typer.Option(
            help="All in which this person is the chat, or an author, expired ones too: a ZIP archive.",
        ),
    ] = None,
) -> None:
    """Write out a session: its whole tree, or its current branch where the format has no tree.

    Exit status 1 if some of it is damaged, which is left out and named.
    """
    if user is not None:
        if everything or session_id is not None or output is None:
            raise typer.BadParameter("--user is for itself, and needs a file to write to", param_hint="'--output'")
        async with invocation.sessions(reads=True) as client:
            written = await _write(client.export_person(user), output, invocation)
        done = f"{output} has everything about {user}"
        invocation.done({"user": user, "output": str(output), "bytes": written}, done)
        return
    if everything == (session_id is not None):
        raise typer.BadParameter("name a session, or give --all", param_hint="'SESSION'")
    if everything:
        if output is None:
            raise typer.BadParameter("--all needs a directory to write to", param_hint="'--output'")
        await _export_all(invocation, form, output)
        return
    async with invocation.sessions(reads=True) as client:
        session = await find_session(client, session_id or "")
        written = await _write(session.export(form), output, invocation)
        problems = await session.damage()
    if output is not None:
        if invocation.as_json:
            document = {"session_id": session.session_id, "output": str(output), "bytes": written}
            invocation.print_json({**document, "problems": problems})
        else:
            invocation.note(f"{counted(written, 'byte', 'bytes')} written to {output}")
    _note_damage(invocation, problems)


async def _export_all(invocation: Invocation, form: str, directory: Path) -> None:
    """Every session into a file of its own, named after its id."""
    from miniclaw_sessions.files.transfer.exporting_all import export_all  # noqa: PLC0415 - help does not need it
    from miniclaw_sessions.service.api.transfer import format_rows  # noqa: PLC0415 - same

    problems: list[str] = []
    suffix = next(row.suffix for row in format_rows() if row.name == form)
    async with invocation.sessions(reads=True) as client:
        ids = [row.session_id for row in await client.list()]
        sizes = await export_all(ids, partial(client.export, form=form), directory, suffix, invocation.report)
        for done, session_id in enumerate(ids, 1):  # also of what was there already
            with suppress(SessionNotFound):
                problems += [f"{session_id}: {text}" for text in await client.session(session_id).damage()]
            invocation.report("looking for damage", done, len(ids))
    left = len(ids) - len(sizes)
    if invocation.as_json:
        written = [
            {"session_id": session_id, "output": str(directory / f"{session_id}{suffix}"), "bytes": size}
            for session_id, size in sizes.items()
        ]
        invocation.print_json({"exported": written, "left": left, "problems": problems})
    else:
        sessions = counted(len(sizes), "session", "sessions")
        sentence = f"{sessions}, {counted(sum(sizes.values()), 'byte', 'bytes')} written to {one_line(directory)}"
        if left:
            sentence += f"; {left:,} were there already, or are gone"
        invocation.note(sentence)
    _note_damage(invocation, problems)


def _note_damage(invocation: Invocation, problems: list[str]) -> None:
    """Name what an export lacks."""
    for problem in problems:
        invocation.note(f"problem: {problem}", "red")
    if problems:
        raise typer.Exit(1)


async def _write(exported: AsyncGenerator[bytes, None], output: Path | None, invocation: Invocation) -> int:
    """Write what is exported to a file or to standard output; how many bytes."""
    written = 0
    async with _sink(output) as write, aclosing(exported) as chunks:
        async for chunk in chunks:
            await write(chunk)
            written += len(chunk)
            invocation.report("exporting", written, None)
    return written


@asynccontextmanager
async def _sink(output: Path | None) -> AsyncIterator[Callable[[bytes], Awaitable[Any]]]:
    """Where to write: a private file that appears whole or not at all, or standard output."""
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
async def formats(invocation: Invocation) -> None:
    """List the formats of session files, and what a round trip through each loses."""
    from miniclaw_sessions.service.api.transfer import format_rows  # noqa: PLC0415 - help does not need it
    from miniclaw_sessions.service.cli.opening import find_daemon  # noqa: PLC0415 - same

    async with find_daemon(invocation) as daemon:
        rows = format_rows() if daemon is None else await daemon.formats()
    if invocation.as_json:
        invocation.print_json({"formats": rows})
        return
    table = Rows("FORMAT", "READ", "WRITE", "FILES", "ABOUT", fold={"ABOUT"})
    for row in rows:
        table.add(row.name, *("yes" if can else "-" for can in (row.read, row.write)), f"*{row.suffix}", row.about)
    invocation.print_rows(table)
