"""Commands that look at sessions, delete them, and check them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from miniclaw_sessions.cli.backend import Backend, Document, Report
from miniclaw_sessions.cli.invocation import Invocation, command
from miniclaw_sessions.cli.opening import check_workspace, find_daemon
from miniclaw_sessions.cli.output import age, local_time, message_block, one_line, plain_table
from miniclaw_sessions.cli.running import SessionId, parsed, read_entries, run, with_backend
from miniclaw_sessions.errors import SessionsError

app = typer.Typer()


# --- looking ---------------------------------------------------------------------------------------------------------


@command(app, "list", examples={"list": "newest first", "list --channel telegram --json": "for a script"})
def list_sessions(
    invocation: Invocation,
    channel: Annotated[str | None, typer.Option(help="Only this channel.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many; 0: all.")] = 0,
) -> None:
    """List the sessions, the most recently used first."""

    async def act(backend: Backend, report: Report) -> list[Document]:
        del report
        return await backend.sessions(channel, limit + 1 if limit else None)  # one more tells whether there are more

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
        invocation.errors.print("there are more", style="dim")


@command(
    app, examples={"show telegram_123": "what a model would be reminded of", "show telegram_123 --all": "everything"}
)
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
        return session, [parsed(line) async for line in read_entries(backend, session, report)]

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


# --- upkeep ----------------------------------------------------------------------------------------------------------


@command(app, examples={"delete telegram_123": "asks first", "delete telegram_123 --yes": "does not"})
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


@command(app, examples={"stats": "of the daemon, or of the files", "stats --json": "for a script"})
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


@command(app, examples={"check": "exit status 0: sound, 1: not", "check && tar c ~/.miniclaw": "before a backup"})
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
