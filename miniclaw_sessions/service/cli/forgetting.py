"""Commands that forget: one session, or all by a rule; and the hold that keeps them from it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.errors import AmbiguousName, SessionNotFound, SessionsError
from miniclaw_sessions.service.cli.invocation import Invocation, command
from miniclaw_sessions.service.cli.names import AnySessionId, SessionId, find_session
from miniclaw_sessions.service.cli.output import counted, one_line, seconds_in
from miniclaw_sessions.service.cli.tables import Rows

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.forgetting import ForgetReply
    from miniclaw_sessions.service.client import Client

app = typer.Typer()


@command(
    app,
    examples={
        "delete telegram_123": "asks first; says where its words may still be, such as a backup",
        "delete telegram_123 --yes": "does not",
        "delete --channel telegram --older-than 90d --dry-run": "what was not used there for 90 days",
        "delete --user 4711": "all that a person has said or was answered; shows it, and asks first",
    },
)
async def delete(  # noqa: PLR0913 - one for each option
    invocation: Invocation,
    session_id: AnySessionId = None,
    *,
    channel: Annotated[str | None, typer.Option(help="All of this channel.")] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="All that was not used for so long: 12h, 90d, 1y.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="All in which this person is the chat, or an author, by that very name.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing: list what these options mean.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    everywhere: Annotated[bool, typer.Option("--everywhere", hidden=True, help="What it always does.")] = True,
) -> None:
    """Delete a session with its transcript, its archived and its quarantined copies, for good; or all by a rule.

    Its words are in no file of the workspace then, nor in the store's log, but for what it reports. An expired session,
    which only the archive has, is named by its whole id. Of --channel, --older-than and --user all that are given must
    be true; expired sessions are among them.
    What is under legal hold (`hold`) stays.
    """
    del everywhere  # scripts may say it
    rule: dict[str, Any] = {"channel": channel, "user": user, "older_than_s": _seconds(older_than)}
    is_rule = any(value is not None for value in rule.values())
    if is_rule == (session_id is not None):
        raise typer.BadParameter("name a session, or say which by --channel, --older-than or --user")
    if dry_run and not is_rule:
        raise typer.BadParameter("one session is deleted or not; `show` says what it has", param_hint="'--dry-run'")
    if is_rule or session_id is None:
        await _delete_by_rule(invocation, rule, dry_run=dry_run, yes=yes)
        return
    async with invocation.sessions() as client:
        remains = await _deleted(client, session_id) if yes and session_id else None
        if remains is None:  # it was no id, or no person has confirmed it yet
            session_id = await _meant(client, session_id, yes=yes)
            remains = await _deleted(client, session_id)
        if remains is None:
            raise SessionNotFound(session_id)
    remains += _typed()
    if invocation.as_json:
        invocation.print_json({"deleted": True, "session_id": session_id, "remains": remains})
        return
    invocation.note(f"deleted {session_id}")
    for sentence in remains:
        invocation.note(f"remains: {sentence}", "yellow")


async def _deleted(client: Client, session_id: str) -> list[str] | None:
    """Delete what has this very id, in use or in the archive; what remains of it, or None if there is nothing."""
    try:
        return await client.erase(session_id)
    except SessionNotFound:
        return None


async def _meant(client: Client, name: str, *, yes: bool) -> str:
    """The id of the session to delete, which the caller named by its id or a person has confirmed."""
    try:
        session = await (await find_session(client, name)).info()
    except AmbiguousName:
        raise
    except SessionNotFound:
        if yes:
            raise
        _ask(name, f"No session {one_line(name)} is in use. Delete what the archive has of it, for good?")
        return name
    if not yes:
        shown = session.session_id if session.session_id == name or not session.title else f"{session.title!r}"
        entries = counted(session.entries, "entry", "entries")
        _ask(session.session_id, f"Delete {one_line(session.title or shown)} with its {entries}, for good?")
    return session.session_id


def _ask(session_id: str, question: str) -> None:
    if not sys.stdin.isatty():
        raise SessionsError(f"nobody can be asked whether to delete {session_id}; add --yes")
    typer.confirm(question, abort=True, err=True)


async def _delete_by_rule(invocation: Invocation, rule: dict[str, Any], *, dry_run: bool, yes: bool) -> None:
    """Show what a rule means, and delete what was shown once a person agrees."""
    async with invocation.sessions(reads=dry_run) as client:
        invocation.report("looking for sessions", 0, None)
        done = await client.forget(**rule, dry_run=True)
        if not dry_run and done.sessions:
            if not yes:
                _show_meant(invocation, done)
                sessions = counted(len(done.sessions), "session", "sessions")
                entries = counted(sum(row.entries for row in done.sessions), "entry", "entries")
                _ask("them", f"Delete {sessions} with {entries}, for good?")
            invocation.report("deleting", 0, None)
            done = await client.forget(**rule, only=[*done.sessions, *done.held])
    remains = done.remains + (_typed() if done.sessions and not dry_run else [])
    if invocation.as_json:
        invocation.print_json(msgspec.structs.replace(done, remains=remains))
        return
    if dry_run:
        _show_meant(invocation, done)
    else:
        invocation.note(f"deleted {counted(len(done.sessions), 'session', 'sessions')}")
        _note_kept(invocation, done)
    for sentence in remains:
        invocation.note(f"remains: {sentence}", "yellow")


def _show_meant(invocation: Invocation, found: ForgetReply) -> None:
    if found.sessions:
        rows = Rows(
            *("SESSION", "TITLE", "ENTRIES", "USED", ""),
            now=SystemClock().now(),
            numeric={"ENTRIES"},
            cut={"TITLE"},
            fold={"SESSION"},
            title="TITLE",
        )
        for row in found.sessions:
            is_expired = "expired" if row.archived else ""
            rows.add(row.session_id, row.title or "", f"{row.entries:,}", row.last_used, is_expired)
        invocation.print_rows(rows)
    else:
        invocation.note("this means no session")
    _note_kept(invocation, found)


def _note_kept(invocation: Invocation, found: ForgetReply) -> None:
    for row in found.held:
        invocation.note(f"{row.session_id} is under legal hold ({row.held or 'since just now'}) and stays", "yellow")
    for row in found.changed:
        invocation.note(f"{row.session_id} was used meanwhile and stays", "yellow")


def _seconds(text: str | None) -> float | None:
    seconds = None if text is None else seconds_in(text)
    if seconds is None and text is not None:
        raise typer.BadParameter("an age is a number of h, d, w or y, such as 90d", param_hint="'--older-than'")
    return seconds and min(seconds, 1e11)  # nothing is older, and no larger number can be sent


def _typed() -> list[str]:
    """The file of this user's typed lines, of any chat."""
    from miniclaw_sessions.service.cli.keyboard import HISTORY  # noqa: PLC0415 - loads the line editor

    path = HISTORY.expanduser()
    if not path.is_file() or not path.stat().st_size:
        return []
    return [f"{path} has the lines that were typed in `chat`, of all sessions; remove it"]


@command(
    app,
    examples={
        "hold telegram_123 'case 12'": "nothing deletes it, and it does not expire",
        "hold telegram_123 --release": "it may go again",
    },
)
async def hold(
    invocation: Invocation,
    session_id: SessionId,
    reason: Annotated[str | None, typer.Argument(metavar="REASON", help="Why, such as the number of a case.")] = None,
    *,
    release: Annotated[bool, typer.Option("--release", help="End it.")] = False,
) -> None:
    """Put a session under legal hold: no command, rule or expiry deletes it while that stands. `show` has the reason.

    An expired one is brought back first, by `unarchive`. A fork of it is held too: it has its words.
    """
    if release == (reason is not None):
        raise typer.BadParameter("say why, or give --release", param_hint="'REASON'")
    async with invocation.sessions() as client:
        session = await find_session(client, session_id)
        info = await (session.hold(reason) if reason is not None else session.release())
    sentence = f"{info.session_id} is under legal hold: {reason}" if reason else f"{info.session_id} is not held"
    invocation.done({"session_id": info.session_id, "held": reason}, sentence)
