"""Commands that look at sessions, carry them off, and delete them."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from miniclaw_sessions.cli.backend import Backend, Document, Report
from miniclaw_sessions.cli.invocation import Invocation, command, write_bytes
from miniclaw_sessions.cli.opening import check_workspace, find_daemon, open_backend
from miniclaw_sessions.cli.output import age, local_time, message_block, one_line, plain_table, progress_on
from miniclaw_sessions.errors import SessionsError

T = TypeVar("T")
SessionId = Annotated[
    str, typer.Argument(metavar="SESSION_ID", help="Which session, as `list` shows it.", show_default=False)
]


class ExportFormat(StrEnum):
    """How an exported session is written."""

    JSON = "json"
    JSONL = "jsonl"
    MARKDOWN = "markdown"


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    command(
        app,
        "list",
        examples={"list": "newest first", "list --channel telegram --json": "for a script"},
    )(list_sessions)
    command(
        app,
        examples={"show telegram_123": "what a model would be reminded of", "show telegram_123 --all": "everything"},
    )(show)
    command(
        app,
        examples={
            "export telegram_123 --format markdown": "to read",
            "export telegram_123 --format jsonl --output chat.jsonl": "every entry, one per line",
        },
    )(export)
    command(app, examples={"delete telegram_123": "asks first", "delete telegram_123 --yes": "does not"})(delete)
    command(app, examples={"stats": "of the daemon, or of the files", "stats --json": "for a script"})(stats)
    command(app, examples={"check": "exit status 0: sound, 1: not", "check && tar c ~/.miniclaw": "before a backup"})(
        check
    )


def with_backend(invocation: Invocation, act: Callable[[Backend, Report], Awaitable[T]]) -> T:
    """Run a coroutine on the daemon or the files."""

    async def opened(report: Report) -> T:
        async with open_backend(invocation.loaded, report) as backend:
            return await act(backend, report)

    return run(invocation, opened)


def run(invocation: Invocation, act: Callable[[Report], Awaitable[T]]) -> T:
    """Run a coroutine, with a progress bar when it takes its time."""
    import anyio  # noqa: PLC0415 - help does not need it

    invocation.configure_logging()
    with progress_on(invocation.errors) as report:
        return anyio.run(act, report)


# --- looking ---------------------------------------------------------------------------------------------------------


def list_sessions(
    invocation: Invocation,
    channel: Annotated[str | None, typer.Option(help="Only this channel.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many; 0: all.")] = 0,
) -> None:
    """List the sessions, the most recently used first."""

    async def act(backend: Backend, report: Report) -> list[Document]:
        del report
        return await backend.sessions(channel)

    sessions = with_backend(invocation, act)
    shown = sessions[:limit] if limit else sessions
    if invocation.as_json:
        invocation.print_json({"sessions": shown})
        return
    if not sessions:
        invocation.errors.print("no sessions yet", style="dim")
        return
    table = plain_table(
        "SESSION", "TITLE", "MESSAGES", "ENTRIES", "LAST USED", numeric=frozenset({"MESSAGES", "ENTRIES"})
    )
    now = datetime.now(UTC)
    for session in shown:
        table.add_row(
            session["session_id"],
            one_line(session["title"]),
            str(session["messages"]),
            str(session["entries"]),
            age(session["last_accessed"], now),
        )
    invocation.console.print(table)
    if len(shown) < len(sessions):
        invocation.errors.print(f"{len(sessions) - len(shown)} more", style="dim")


def show(
    invocation: Invocation,
    session_id: SessionId,
    everything: Annotated[bool, typer.Option("--all", help="The whole transcript, not only the window.")] = False,
) -> None:
    """Show a session: its facts and the messages of its window."""

    async def act(backend: Backend, report: Report) -> tuple[Document, list[Document]]:
        session = await backend.session(session_id)
        if not everything:
            return session, await backend.messages(session_id)
        return session, [_parsed(line) async for line in _entries(backend, session, report)]

    session, items = with_backend(invocation, act)
    if invocation.as_json:
        invocation.print_json({"session": session, "entries" if everything else "messages": items})
        return
    _print_head(invocation, session)
    for item in items:
        if not everything or item.get("type") == "message":
            invocation.console.print()
            invocation.console.print(message_block(item["message"] if everything else item))
        else:
            invocation.console.print(f"\n· {one_line(_event_line(item))}", style="dim")
    if not everything and session["entries"] > session["messages"]:
        invocation.errors.print(f"\n{session['entries']} entries in all; --all shows them", style="dim")


def _print_head(invocation: Invocation, session: Document) -> None:
    table = plain_table("", "")
    table.show_header = False
    facts = {
        "session": session["session_id"],
        "channel": session["channel"],
        "chat": session["chat_id"],
        "created": local_time(session["created_at"]),
        "last used": local_time(session["last_accessed"]),
        "messages": f"{session['messages']} in the window of {session['window']}, {session['entries']} entries in all",
    }
    invocation.console.print(one_line(session["title"] or session["session_id"]), style="bold")
    for name, value in [*facts.items(), *session["metadata"].items()]:
        if name != "title" and value not in (None, ""):
            table.add_row(one_line(name), one_line(value), style="dim")
    invocation.console.print(table)


def _event_line(entry: Document) -> str:
    hidden = ("type", "id", "parent_id", "timestamp", "sequence")
    facts = ", ".join(f"{name} {value}" for name, value in entry.items() if name not in hidden)
    return f"{entry.get('type', 'unknown')} {facts}"


# --- carrying off ----------------------------------------------------------------------------------------------------


def export(
    invocation: Invocation,
    session_id: SessionId,
    form: Annotated[ExportFormat, typer.Option("--format", help="How it is written.")] = ExportFormat.JSONL,
    output: Annotated[
        Path | None, typer.Option(help="A file, made with mode 0600; standard output otherwise.", show_default=False)
    ] = None,
) -> None:
    """Write out a session with its whole transcript."""

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
            invocation.errors.print(f"{written} bytes written to {one_line(output)}", style="dim")


async def _rendered(
    backend: Backend, session: Document, form: ExportFormat, report: Report
) -> AsyncGenerator[bytes, None]:
    """The session in the chosen form, a piece at a time."""
    import orjson  # noqa: PLC0415 - help does not need it

    from miniclaw_sessions.formats.markdown import render_entry, render_head  # noqa: PLC0415 - same
    from miniclaw_sessions.protocol.encoding import decode_entry  # noqa: PLC0415 - same

    entries = _entries(backend, session, report)
    if form is ExportFormat.JSONL:
        async for encoded in entries:
            yield encoded + b"\n"
    elif form is ExportFormat.MARKDOWN:
        yield render_head(session).encode()
        async for encoded in entries:
            yield render_entry(decode_entry(encoded)).encode()
    else:
        yield b'{"session":' + orjson.dumps(session) + b',"entries":['
        separator = b""
        async for encoded in entries:
            yield separator + encoded
            separator = b","
        yield b"]}\n"


async def _entries(backend: Backend, session: Document, report: Report) -> AsyncGenerator[bytes, None]:
    """The session's transcript; tells how it advances."""
    done = 0
    async with aclosing(backend.transcript(session["session_id"])) as entries:
        async for encoded in entries:
            done += 1
            report("exporting", done, session["entries"])
            yield encoded


@asynccontextmanager
async def _sink(output: Path | None) -> AsyncIterator[Callable[[bytes], Awaitable[Any]]]:
    """Where to write: a private file that appears whole or not at all, or standard output."""
    import aiofiles  # noqa: PLC0415 - help does not need it

    if output is None:

        async def to_standard_output(data: bytes) -> None:
            write_bytes(data)

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


def _parsed(encoded: bytes) -> Document:
    import orjson  # noqa: PLC0415 - help does not need it

    document: Document = orjson.loads(encoded)
    return document


# --- upkeep ----------------------------------------------------------------------------------------------------------


def delete(
    invocation: Invocation,
    session_id: SessionId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a session with its transcript and its quarantined copies, for good."""

    async def act(backend: Backend, report: Report) -> bool:
        del report
        session = await backend.session(session_id)
        if not yes:
            _ask(session)
        await backend.delete(session_id)
        return True

    with_backend(invocation, act)
    if invocation.as_json:
        invocation.print_json({"deleted": True, "session_id": session_id})
    else:
        invocation.errors.print(f"deleted {one_line(session_id)}", style="dim")


def _ask(session: Document) -> None:
    if not sys.stdin.isatty():
        raise SessionsError(f"nobody can be asked whether to delete {session['session_id']}; add --yes")
    name = one_line(session["title"] or session["session_id"])
    typer.confirm(f"Delete {name} with its {session['entries']} entries, for good?", abort=True, err=True)


def stats(invocation: Invocation) -> None:
    """Show the numbers of the daemon, or of the files if no daemon runs."""

    async def act(backend: Backend, report: Report) -> Document:
        del report
        return await backend.statistics()

    numbers = with_backend(invocation, act)
    if invocation.as_json:
        invocation.print_json(numbers)
        return
    table = plain_table("", "", numeric=frozenset())
    table.show_header = False
    table.columns[1].justify = "right"
    for name, value in numbers.items():
        table.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int) else one_line(value))
    invocation.console.print(table)


def check(invocation: Invocation) -> None:
    """Compare every snapshot with the store; repairs nothing. The exit status is 0 only if everything is sound."""

    async def act(report: Report) -> Document:
        async with find_daemon(invocation.loaded) as daemon:
            if daemon is not None:
                report("checking", 0, None)
                return await daemon.check()
        check_workspace(invocation.loaded.workspace, create=False)
        from miniclaw_sessions.cli.file_check import check_files  # noqa: PLC0415 - loads the persistence layer

        return await check_files(invocation.loaded, report)

    found = run(invocation, act)
    if invocation.as_json:
        invocation.print_json(found)
    else:
        for problem in found["problems"]:
            invocation.console.print(f"problem: {one_line(problem)}", style="red")
        for note in found["notes"]:
            invocation.console.print(f"note: {one_line(note)}", style="dim")
        count = len(found["problems"])
        verdict = "sound" if found["sound"] else f"{count} problem{'s' if count > 1 else ''}"
        style = "bold green" if found["sound"] else "bold red"
        invocation.console.print(f"{verdict}: {found['sessions']} sessions, {found['entries']} entries", style=style)
    if not found["sound"]:
        raise typer.Exit(1)
