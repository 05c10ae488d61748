"""Copies of a whole workspace: backups, and moves into another store. Loaded when such a command runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.filesize import decimal

from miniclaw_sessions.core.manager.choosing import choose
from miniclaw_sessions.encryption import load_keys
from miniclaw_sessions.errors import ConfigError, DirectoryInUse
from miniclaw_sessions.files.transfer.backup import back_up_closed, store_of, verify_backup
from miniclaw_sessions.files.transfer.backup import restore as put_back
from miniclaw_sessions.files.transfer.migrating import Change, Moved, location
from miniclaw_sessions.files.transfer.migrating import migrate as move
from miniclaw_sessions.service.api.upkeep import BackupReply, backup_reply
from miniclaw_sessions.service.cli.invocation import Invocation
from miniclaw_sessions.service.cli.opening import find_daemon, refused
from miniclaw_sessions.service.cli.output import counted, one_line, print_sentence

# --- backups ---------------------------------------------------------------------------------------------------------


async def backed_up(invocation: Invocation, target: Path) -> BackupReply:
    """Back up the workspace: through its daemon if one runs, else from the files."""
    async with find_daemon(invocation) as daemon:
        if daemon is not None:
            invocation.report("backing up", 0, None)
            return await daemon.back_up(target)
    loaded = invocation.local
    if loaded.shared_store is None and (problem := refused(loaded, create=False)) is not None:
        raise problem
    made = await back_up_closed(loaded.workspace.absolute(), loaded.settings.sessions, target, invocation.report)
    return backup_reply(made, target)


async def verified(invocation: Invocation, target: Path) -> BackupReply:
    """Read every byte of a backup again."""
    return backup_reply(await verify_backup(target, invocation.report), target)


def print_backup(invocation: Invocation, made: BackupReply, done: str) -> None:
    """Print what a backup holds, and its problems."""
    for problem in made.problems:
        print_sentence(invocation.console, f"problem: {one_line(problem)}", "red")
    for loss in made.losses:
        print_sentence(invocation.console, f"missing since it was made: {one_line(loss)}", "yellow")
    entries = counted(made.entries, "entry", "entries") if made.store != "none:" else "no transcripts (none:)"
    holds = (
        f"{counted(made.sessions, 'session', 'sessions')}, {entries}, "
        f"{counted(made.files, 'file', 'files')}, {decimal(made.bytes)}"
    )
    verdict = f"{done}, with {counted(len(made.problems), 'problem', 'problems')}" if made.problems else done
    style = "bold red" if made.problems else "bold green"
    print_sentence(invocation.console, f"{verdict}: {holds} in {one_line(made.directory)}", style)


async def restored(invocation: Invocation, source: Path, *, damaged: bool) -> BackupReply:
    """Put a backup where no workspace is."""
    loaded = invocation.loaded
    workspace, settings = loaded.workspace.expanduser().absolute(), loaded.settings.sessions
    if loaded.sources["sessions.store"] == "default":
        settings = msgspec.structs.replace(settings, store=await store_of(source) or settings.store)
    try:
        restored = await put_back(source, workspace, settings, invocation.report, damaged=damaged)
    except DirectoryInUse as error:
        raise ConfigError(
            f"cannot restore to {workspace}: there is a workspace already, which a process uses, and a restore never "
            "writes over one; nothing was changed. --workspace names another directory"
        ) from error
    choice = choose(workspace, settings.store)
    where = str(choice.directory or choice.store)
    return msgspec.structs.replace(backup_reply(restored, source), directory=where)


# --- another store ---------------------------------------------------------------------------------------------------


async def copied_into(  # noqa: PLR0913 - one for each option
    invocation: Invocation,
    source: str | None,
    to: str,
    *,
    encrypt: bool,
    decrypt: bool,
    delete_others: bool,
    dry_run: bool,
) -> Moved:
    """Copy every session into another store, and compare the copies."""
    loaded = invocation.local if source is None else invocation.loaded
    workspace = loaded.workspace.expanduser().absolute()
    store = loaded.settings.sessions.store
    old, new = location(source or store, workspace, store), location(to, workspace, store)
    if old.workspace == workspace and (problem := refused(loaded, create=False)) is not None:
        raise problem
    return await move(
        old,
        new,
        load_keys(loaded.settings.encryption, os.environ),
        change=Change.ENCRYPT if encrypt else Change.DECRYPT if decrypt else Change.NONE,
        delete_others=delete_others,
        dry_run=dry_run,
        settings=loaded.settings.sessions,
        on_progress=invocation.report,
    )


def as_document(moved: Moved) -> dict[str, object]:
    """For programs."""
    rest = msgspec.structs.asdict(moved)
    ends = {"from": rest.pop("source"), "to": rest.pop("target")}
    copied = msgspec.structs.asdict(rest.pop("copied"))
    del copied["alike"]
    return {**ends, **copied, **rest}


def sentences(moved: Moved) -> Iterator[tuple[str, str]]:
    """For people: each with its style, in the order of how much it matters to them."""
    copied = moved.copied
    sessions, written = counted(copied.sessions, "session", "sessions"), counted(copied.written, "entry", "entries")
    if moved.is_dry:
        yield f"{sessions} would be copied to {moved.target}: {written} of {copied.entries:,} are not there", "bold"
    else:
        entries = counted(copied.entries, "entry", "entries")
        yield f"{moved.target} has {sessions}, {entries}, all checksums agree; {written} written now", "bold green"
    if moved.archived:
        yield f"copied {counted(moved.archived, 'archived session', 'archived sessions')} too", "green"
    if copied.meanwhile:
        yield f"{counted(copied.meanwhile, 'session', 'sessions')} changed meanwhile; that is in the copy", "dim"
    for damage in copied.problems:
        yield f"damaged, and kept as it is: {damage}", "yellow"
    for difference in copied.different:
        yield f"left as it is: {difference}", "red"
    if copied.others:
        others = counted(copied.others, "session is", "sessions are")
        yield f"{others} in the target only, and left alone; --delete-others if the source had them once", "yellow"
    if not moved.is_dry:
        yield from _what_next(moved)


def _what_next(moved: Moved) -> Iterator[tuple[str, str]]:
    if moved.held_by is not None:
        holder = f"process {moved.held_by}" if moved.held_by else "a process"
        yield f"{holder} uses the source: stop it and run this again, which copies what was said since", "yellow"
    elif moved.is_shared:
        yield "if gateways use the source still, stop them and run this again, which copies what was said since", "dim"
    if not moved.copied.different:
        is_url = ":" in moved.target.partition("/")[0]
        setting = f"set sessions.store to {moved.target!r}" if is_url else f"set workspace to {moved.target!r}"
        yield f"now {setting}", "dim"
