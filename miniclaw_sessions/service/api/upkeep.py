"""Upkeep of a workspace: back it up, expire what is not used, bring that back, acknowledge what was lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from anyio import to_thread

from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.service.api.error_table import invalid
from miniclaw_sessions.service.api.operation import operation
from miniclaw_sessions.service.api.service import Nothing
from miniclaw_sessions.service.api.sessions import ONE, OneSession, session_reply
from miniclaw_sessions.service.api.shapes import Body, Reply, SessionReply

if TYPE_CHECKING:
    from miniclaw_sessions.files.transfer.backup import BackupReport
    from miniclaw_sessions.service.api.context import Context


_RESTORING = ("session_exists", "not_archived")


class BackUp(Body, kw_only=True):
    """Where to: a directory on the machine that holds the workspace, which is not there yet or is empty."""

    directory: str


class BackupReply(Reply, kw_only=True):
    """What a backup holds; `problems` has what was damaged already when it was made; once verified, `losses` too."""

    directory: str
    made_at: datetime
    store: str
    key: str | None
    sessions: int
    entries: int
    snapshots: int
    files: int
    bytes: int
    problems: list[str]
    losses: list[str] = []


class SweepReply(Reply, kw_only=True):
    """What a sweep did, or in a dry run would do; `postponed` says why nothing was done: the clock is in doubt.

    Attributes:
        freed_bytes: the stored size of the expired sessions' entries.
        held: those that were idle for too long and stay, because they are under legal hold.
        forgotten: the archived files that were kept for long enough, and are gone for good.
        remains: what may still have the words of removed sessions, one sentence each.
    """

    scanned: int
    expired: int
    archived: int
    sessions: list[str]
    dry_run: bool
    postponed: str | None
    freed_bytes: int = 0
    held: list[str] = []
    forgotten: list[str] = []
    remains: list[str] = []


class AcknowledgedReply(Reply, kw_only=True):
    """The number of sessions whose losses are reported no more."""

    acknowledged: int


class BackUpRequest(msgspec.Struct, frozen=True):
    """Where to, or which."""

    body: BackUp


@operation("POST", "/v1/backup", BackUpRequest, BackupReply, scope="admin", status=201, patient=True)
async def back_up(context: Context, request: BackUpRequest) -> BackupReply:
    """Copy the whole workspace into a directory, consistently, while it is used.

    Raises:
        RequestError: the directory is not named by its whole path.
        ConfigError: it is there already, or cannot be written.
    """
    from miniclaw_sessions.core.persistence.recovery import Progress  # noqa: PLC0415 - heavy
    from miniclaw_sessions.files.transfer import backup  # noqa: PLC0415 - heavy

    target, manager = _whole_path(request), context.manager
    with _under_way(context, "back_up") as note:

        def report(stage: str, done: int, total: int | None) -> None:
            note(stage, done, total)
            manager.on_progress(Progress(stage, done, total or 0))

        made = await backup.back_up(manager, target, report)
    return _without_paths(context, backup_reply(made, target))


@operation("POST", "/v1/backup/verify", BackUpRequest, BackupReply, scope="admin", reads=False, patient=True)
async def verify_backup(context: Context, request: BackUpRequest) -> BackupReply:
    """Read every byte of a backup again; `problems` has what is wrong with it, nothing if it is sound.

    Raises:
        RequestError: the directory is not named by its whole path.
        NotPermitted: the caller's own token has bounds.
        ConfigError: it is no backup, or not a complete one.
    """
    from miniclaw_sessions.files.transfer import backup  # noqa: PLC0415 - heavy

    context.manager.statistics()  # refuses who may not see what is about all sessions
    target = _whole_path(request)
    with _under_way(context, "verify_backup") as note:
        found = await backup.verify_backup(target, note)
    return _without_paths(context, backup_reply(found, target))


def _whole_path(request: BackUpRequest) -> Path:
    target = Path(request.body.directory)
    if not target.is_absolute() or "\0" in request.body.directory:
        raise invalid("name the directory by its whole path, which begins with /", param="directory")
    return target


def _without_paths(context: Context, reply: BackupReply) -> BackupReply:
    return msgspec.structs.replace(reply, problems=context.without_paths(reply.problems))


@contextmanager
def _under_way(context: Context, name: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """While it is done, others see how far it is (`show_progress`); what fails with a path in it says none."""

    def note(stage: str, done: int, total: int | None) -> None:
        del stage
        context.under_way[name] = done, total or 0

    note("", 0, None)
    try:
        yield note
    except ConfigError as error:
        (sentence,) = context.without_paths([str(error)])
        raise ConfigError(sentence) from error
    finally:
        context.under_way.pop(name, None)


class ProgressRow(Reply, kw_only=True):
    """How far one of them is; `total` is 0 while it is not known."""

    operation: str
    done: int
    total: int


class ProgressReply(Reply, kw_only=True):
    """The backups that are made or verified now, by their operations."""

    under_way: list[ProgressRow]


@operation("GET", "/v1/progress", Nothing, ProgressReply, reads=False)
async def show_progress(context: Context, request: Nothing) -> ProgressReply:
    """How far `back_up` and `verify_backup` are that are under way; empty where none is."""
    del request
    context.manager.statistics()  # refuses who may not see what is about all sessions
    rows = [ProgressRow(operation=name, done=one[0], total=one[1]) for name, one in context.under_way.items()]
    return ProgressReply(under_way=rows)


def backup_reply(report: BackupReport, directory: Path) -> BackupReply:
    """What there is to say of a backup."""
    return BackupReply.of(report, directory=str(directory), files=len(report.files))


class BackupRow(Reply, kw_only=True):
    """Where a backup was made, and when that began."""

    path: str
    made_at: datetime


class BackupsReply(Reply, kw_only=True):
    """The backups that may still be there, oldest first."""

    backups: list[BackupRow]


class QuarantinedRow(Reply, kw_only=True):
    """A damaged file: its name in the quarantine, what it was called, why and when it was set aside, its size."""

    name: str
    file: str
    reason: str
    at: datetime | None
    bytes: int


class QuarantineReply(Reply, kw_only=True):
    """What was set aside, the newest first."""

    files: list[QuarantinedRow]


@operation("GET", "/v1/backups", Nothing, BackupsReply, reads=False)
async def list_backups(context: Context, request: Nothing) -> BackupsReply:
    """Where backups were made that may still be there; only an admin learns their whole paths."""
    from miniclaw_sessions.core.persistence.backups import known_backups  # noqa: PLC0415 - heavy

    del request
    where = context.manager.workspace
    known = [] if where is None else await to_thread.run_sync(known_backups, where)
    is_whole = context.caller.may("admin")
    rows = [BackupRow(path=one.path if is_whole else Path(one.path).name, made_at=one.made_at) for one in known]
    return BackupsReply(backups=rows)


@operation("GET", "/v1/quarantine", Nothing, QuarantineReply, reads=False)
async def list_quarantine(context: Context, request: Nothing) -> QuarantineReply:
    """The damaged files that were set aside, and why; each is a decision for a person."""
    from miniclaw_sessions.core.persistence.quarantine import Quarantine  # noqa: PLC0415 - heavy

    del request
    where = context.manager.workspace
    if where is None:
        return QuarantineReply(files=[])
    quarantine = Quarantine(where / "quarantine", max_files=0, max_bytes=0)  # only to look
    files = await to_thread.run_sync(quarantine.files)
    rows = [QuarantinedRow.of(one) for one in files]
    reasons = context.without_paths([row.reason for row in rows])
    return QuarantineReply(
        files=[msgspec.structs.replace(row, reason=reason) for row, reason in zip(rows, reasons, strict=True)]
    )


class Sweep(msgspec.Struct, frozen=True):
    """How.

    Attributes:
        dry_run: change nothing, and report what would expire.
    """

    dry_run: bool = False


@operation("POST", "/v1/sweep", Sweep, SweepReply, scope="admin", reads=True, patient=True)
async def sweep(context: Context, request: Sweep) -> SweepReply:
    """Expire now what was idle for longer than its time to live: to the archive, where the setting says so.

    Raises:
        ReadOnlyWorkspace: it can only be read; a dry run can be made.
    """
    return SweepReply.of(await context.manager.sweep(dry_run=request.dry_run))


@operation("POST", f"{ONE}/unarchive", OneSession, SessionReply, status=201, errors=_RESTORING, patient=True)
async def unarchive_session(context: Context, request: OneSession) -> SessionReply:
    """Bring an expired session back from the archive, whole; its time to live starts again."""
    return session_reply(await context.manager.restore(request.session_id))


class AcknowledgeLosses(msgspec.Struct, frozen=True):
    """Which losses.

    Attributes:
        session_id: of this session; by default of all.
    """

    session_id: str | None = None


@operation("POST", "/v1/losses/acknowledge", AcknowledgeLosses, AcknowledgedReply, scope="admin")
async def acknowledge_losses(context: Context, request: AcknowledgeLosses) -> AcknowledgedReply:
    """Report no more what was lost with a former store."""
    return AcknowledgedReply(acknowledged=await context.manager.acknowledge_losses(request.session_id))


OPERATIONS = (
    back_up,
    verify_backup,
    show_progress,
    list_backups,
    list_quarantine,
    sweep,
    unarchive_session,
    acknowledge_losses,
)
