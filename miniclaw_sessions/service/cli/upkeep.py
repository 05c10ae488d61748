"""Commands for the upkeep of a workspace: backups, expired sessions, another store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from miniclaw_sessions.errors import DirectoryInUse, SessionsError
from miniclaw_sessions.service.cli.invocation import Invocation, command
from miniclaw_sessions.service.cli.names import SessionId, find_session
from miniclaw_sessions.service.cli.output import counted, one_line, print_sentence

if TYPE_CHECKING:
    from miniclaw_sessions.config import LoadedSettings

app = typer.Typer()

_Backup = Annotated[Path, typer.Argument(metavar="DIRECTORY", help="The backup's directory.")]


# --- backups ---------------------------------------------------------------------------------------------------------


@command(
    app,
    examples={
        "backup ~/backups/monday": "the whole workspace, also while it is served; exit status 1 if some of it is lost",
        "backup --verify ~/backups/monday": "reads every byte of it again; exit status 1 if one is wrong",
    },
)
async def backup(
    invocation: Invocation,
    directory: _Backup,
    verify: Annotated[bool, typer.Option("--verify", help="Make none: look if this one is sound.")] = False,
) -> None:
    """Copy the whole workspace into a directory, consistently, while it is used; or verify such a copy.

    The daemon makes it if one runs: it must be allowed to write there. What is encrypted stays so, and no key is
    needed. `restore` puts it back.
    """
    from miniclaw_sessions.service.cli import copies  # noqa: PLC0415 - loads stores and formats

    target = directory.expanduser().absolute()
    made = await (copies.verified(invocation, target) if verify else copies.backed_up(invocation, target))
    if invocation.as_json:
        invocation.print_json(made)
    else:
        copies.print_backup(invocation, made, ("damaged" if made.problems else "verified") if verify else "backed up")
    if made.problems:
        raise typer.Exit(1)


@command(
    app,
    talks=False,
    examples={
        "restore ~/backups/monday": "where there is no workspace yet",
        "restore ~/backups/monday --workspace ~/looked-at": "beside the one that is used",
    },
)
async def restore(
    invocation: Invocation,
    directory: _Backup,
    damaged: Annotated[
        bool, typer.Option("--damaged", help="Restore also a damaged one: the next start makes of it what it can.")
    ] = False,
) -> None:
    """Put a backup where no workspace is; nothing that lives is ever replaced. The backup is verified first.

    If this is interrupted, run it again. One expired session is brought back by `unarchive`.
    """
    from miniclaw_sessions.service.cli import copies  # noqa: PLC0415 - loads stores and formats

    reply = await copies.restored(invocation, directory.expanduser().absolute(), damaged=damaged)
    if invocation.as_json:
        invocation.print_json(reply)
        return
    copies.print_backup(invocation, reply, "restored")
    if reply.key is not None:
        invocation.console.print(f"it is encrypted; its key is {one_line(reply.key)}", style="dim")


@command(
    app,
    talks=False,
    examples={
        "migrate --to postgresql://sessions@db1,db2/miniclaw": "from the workspace to a server that gateways share",
        "migrate --from postgresql://sessions@db1/miniclaw --to ~/alone": "and back into a workspace of its own",
        "migrate --to jsonl: --dry-run": "what would be copied into files that other programs read",
    },
)
async def migrate(  # noqa: PLR0913, PLR0917 - one parameter per option
    invocation: Invocation,
    to: Annotated[
        str, typer.Option("--to", metavar="URL", help="The new store, as in sessions.store, or a directory.")
    ],
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="URL", help="The old one, likewise.", show_default="the workspace's store"),
    ] = None,
    encrypt: Annotated[bool, typer.Option("--encrypt", help="Encrypt with the first key of --key-file.")] = False,
    decrypt: Annotated[bool, typer.Option("--decrypt", help="Leave nothing encrypted.")] = False,
    delete_others: Annotated[
        bool, typer.Option("--delete-others", help="Delete what only the target has, such as a chat deleted since.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing, only compare.")] = False,
) -> None:
    """Copy every session into another store, and compare the copies; the old one stays as it is.

    A daemon may go on using the old one: what is said meanwhile is carried over by further passes, and what is said
    afterwards by running this again, which copies only what is new. So: run it, stop the daemon, run it again, and set
    sessions.store to the new URL. Interrupted, it goes on where it was. Exit status 1: something is damaged, or
    different.
    """
    from miniclaw_sessions.service.cli import copies  # noqa: PLC0415 - loads stores and formats

    if encrypt and decrypt:
        raise typer.BadParameter("it is either --encrypt or --decrypt")
    moved = await copies.copied_into(
        invocation, source, to, encrypt=encrypt, decrypt=decrypt, delete_others=delete_others, dry_run=dry_run
    )
    if invocation.as_json:
        invocation.print_json(copies.as_document(moved))
    else:
        for text, style in copies.sentences(moved):
            print_sentence(invocation.console, one_line(text), style)
    if moved.copied.problems or moved.copied.different:
        raise typer.Exit(1)


# --- expired sessions ------------------------------------------------------------------------------------------------


@command(
    app,
    examples={
        "sweep --dry-run": "what would expire now",
        "sweep": "expires it: to the archive, if sessions.archive_expired says so",
    },
)
async def sweep(
    invocation: Invocation,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, only list them.")] = False,
) -> None:
    """Expire the sessions that were idle for longer than sessions.ttl_days, or list them."""
    async with invocation.sessions(reads=dry_run) as client:
        invocation.report("sweeping", 0, None)
        done = await client.sweep(dry_run=dry_run)
    if invocation.as_json:
        invocation.print_json(done)
        return
    for session_id in done.sessions:
        invocation.console.print(one_line(session_id), soft_wrap=True)
    for session_id in done.held:
        invocation.note(f"{session_id} is under legal hold and stays", "yellow")
    for name in done.forgotten:
        invocation.note(f"the archive {'would forget' if dry_run else 'has forgotten'} {name}")
    from rich.filesize import decimal  # noqa: PLC0415 - `--json` does not need it

    expired = counted(len(done.sessions), "session", "sessions")
    freed = f"{done.archived:,} of them archived, {decimal(done.freed_bytes)} freed in the store"
    invocation.note(f"{expired} would expire" if dry_run else f"{expired} expired, {freed}")
    for sentence in done.remains:
        invocation.note(f"remains: {sentence}", "yellow")
    if done.postponed is not None:
        invocation.note(f"nothing expires now: {done.postponed}", "yellow")


@command(app, examples={"unarchive telegram_123": "goes on where it ended"})
async def unarchive(
    invocation: Invocation,
    session_id: Annotated[str, typer.Argument(metavar="SESSION", help="The whole id of an expired session.")],
) -> None:
    """Bring an expired session back from the archive, whole; its time to live starts again."""
    async with invocation.sessions() as client:
        session = await client.restore(session_id)
        info = await session.info()
    sentence = f"{info.session_id} is back, with {counted(info.entries, 'entry', 'entries')}"
    invocation.done({"session_id": info.session_id, "entries": info.entries}, sentence)


# --- answers ---------------------------------------------------------------------------------------------------------


@command(app, examples={"stop telegram_123": "ends what is being answered there; what was said so far is kept"})
async def stop(invocation: Invocation, session_id: SessionId) -> None:
    """End the answer that is under way in a session, no matter who asked for it; what was said so far is kept."""
    from miniclaw_sessions.service.cli.opening import find_daemon  # noqa: PLC0415 - help does not need it

    async with find_daemon(invocation) as daemon:
        if daemon is None:
            raise SessionsError(_why_not_stopped(invocation.loaded))
        session = await find_session(daemon, session_id)
        stopped = await session.stop()
    sentence = "stopped" if stopped else f"nothing is being answered in {session.session_id}"
    invocation.done({"session_id": session.session_id, "stopped": stopped}, sentence)


def _why_not_stopped(loaded: LoadedSettings) -> str:
    """Why no daemon answers: no process has the workspace, or one that only its own user can stop."""
    if loaded.shared_store is not None:
        return "no daemon of this store is found here; name the one that answers with --url or --socket"
    workspace = loaded.workspace
    from miniclaw_sessions.disk import check_unlocked  # noqa: PLC0415 - help does not need it

    try:
        check_unlocked(workspace)
    except DirectoryInUse as held:
        holder = "another process" if held.pid is None else f"process {held.pid}"
        return f"{holder} holds this workspace and does not answer; stop there what it is answering"
    except OSError as error:
        return f"no daemon answers, and the workspace {workspace} cannot be looked at: {error.strerror}"
    return "no daemon holds this workspace: nothing is being answered in it"
