"""The service as a whole: is it well, save everything, is everything sound, its numbers."""

from __future__ import annotations

import functools
import os
import time
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from miniclaw_sessions.core.protocol.keys import KeyBounds
from miniclaw_sessions.service.api.error_table import UNREACHABLE, RequestError
from miniclaw_sessions.service.api.operation import operation
from miniclaw_sessions.service.api.samples import SeriesReply
from miniclaw_sessions.service.api.shapes import Reply
from miniclaw_sessions.statistics import ChannelState, ManagerStatistics

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context


@functools.cache
def program_version() -> str:
    """Which version of this program it is, read from a file once."""
    from importlib.metadata import version  # noqa: PLC0415 - slow to load

    return version("miniclaw-sessions")


class Nothing(msgspec.Struct, frozen=True):
    """A request that says nothing."""


class ProbeReply(Reply, kw_only=True):
    """Whether messages are accepted and saved: `status` is ok or failing."""

    status: str


class AccessReply(Reply, kw_only=True):
    """Who asks, and what he may do.

    Attributes:
        name: the token's; `owner` by the Unix socket.
        scope: `read`, `write` or `admin`, each with what the one before may do.
        channels: there are sessions of these alone; null: of all.
        chat_prefix: and only those whose chat ids begin so.
        currency: what the costs of replies are in.
        max_message_bytes: the largest message, encoded, with the files in it.
    """

    name: str
    scope: str
    channels: list[str] | None
    chat_prefix: str
    currency: str = "USD"
    max_message_bytes: int = 0


class HealthReply(ProbeReply, kw_only=True):
    """Whether messages are accepted and saved; and, for those who may see all sessions, what is known of it.

    `losses` has what was lost with a former store, until a person acknowledges it. `workspace` is no path: who sees
    the directory can compare it (`disk.lock_identity`). `channels` are those that the settings turn on; why one is
    not listening is in the log, and all else is as well as `status` says.
    """

    problems: list[str] = []
    version: str = ""
    pid: int = 0
    workspace: str = ""
    uptime_s: float = 0.0
    sessions: int = 0
    store: str = ""
    store_state: str = ""
    losses: list[str] = []
    channels: dict[str, ChannelState] = {}


class FlushReply(Reply, kw_only=True):
    """What a flush wrote; `failed` counts sessions whose file could not be written, `problems` names some."""

    written: int
    failed: int
    bytes_written: int
    seconds: float
    problems: list[str] = []


class CheckReply(Reply, kw_only=True):
    """Whether everything on disk is sound, and what is not."""

    sound: bool
    sessions: int
    entries: int
    problems: list[str]
    notes: list[str]


class RepairReply(Reply, kw_only=True):
    """How many damaged entries are right again; and whether the next start must rebuild the store's files."""

    mended: int
    needs_start: bool


def _probe(context: Context) -> ProbeReply:
    is_well = context.whole.health().ok and not context.problems()
    return ProbeReply(status="ok" if is_well else "failing")


def _status(reply: ProbeReply) -> int:
    return 200 if reply.status == "ok" else UNREACHABLE


_STATUSES = {200: "All is well.", UNREACHABLE: "Messages are not accepted, or not saved."}


@operation("GET", "/health", Nothing, HealthReply, scope="probe", status=_status, statuses=_STATUSES, reads=False)
async def health(context: Context, request: Nothing) -> HealthReply:
    """Whether messages are accepted and saved; with a token for all sessions, what is known of it besides."""
    del request
    probe = _probe(context)
    if context.caller.bounds is not None or not context.caller.may("read"):
        return cast("HealthReply", probe)  # the rest of it is not for everybody
    health = context.manager.health()
    return HealthReply(
        status=probe.status,
        problems=context.without_paths([*health.problems, *context.problems()]),
        version=program_version(),
        pid=os.getpid(),
        workspace=await context.workspace(),
        uptime_s=round(time.monotonic() - context.started, 3),
        sessions=len(context.manager),
        store=health.store,
        store_state=health.store_state,
        losses=health.losses,
        channels=dict(context.channels()),
    )


@operation("GET", "/health/live", Nothing, ProbeReply, scope="probe", reads=False)
async def probe_live(context: Context, request: Nothing) -> ProbeReply:
    """Whether the process answers at all; it is of no use to start it again while it does."""
    del context, request
    return ProbeReply(status="ok")


@operation("GET", "/health/ready", Nothing, ProbeReply, scope="probe", status=_status, statuses=_STATUSES, reads=False)
async def probe_ready(context: Context, request: Nothing) -> ProbeReply:
    """Whether messages are accepted and saved; while they are not, requests are better sent elsewhere."""
    del request
    return _probe(context)


@operation("GET", "/v1/access", Nothing, AccessReply)
async def show_access(context: Context, request: Nothing) -> AccessReply:
    """Who asks, and what he may do, so that a program offers nothing that would be refused."""
    del request
    caller, bounds = context.caller, context.caller.bounds or KeyBounds()
    channels = None if bounds.channels is None else sorted(bounds.channels)
    return AccessReply(
        name=caller.name,
        scope=caller.scope,
        channels=channels,
        chat_prefix=bounds.chat_prefix,
        currency=context.whole.settings.currency,
        max_message_bytes=context.whole.settings.max_message_bytes,
    )


@operation("GET", "/v1/statistics", Nothing, ManagerStatistics)
async def statistics(context: Context, request: Nothing) -> ManagerStatistics:
    """The manager's numbers."""
    del request
    found: Any = context.manager.statistics()
    numbers: ManagerStatistics = await found if isawaitable(found) else found  # a reader without a manager counts first
    return numbers


class ShowSeries(msgspec.Struct, frozen=True):
    """Which samples.

    Attributes:
        after: those that were taken after this time, in seconds since 1970; by default all that there are.
    """

    after: float | None = None


@operation("GET", "/v1/statistics/series", ShowSeries, SeriesReply, reads=False)
async def show_series(context: Context, request: ShowSeries) -> SeriesReply:
    """The daemon's numbers of the last hour, one sample every five seconds; empty where none are taken."""
    context.manager.statistics()  # refuses who may not see what is about all sessions
    return context.series.reply(request.after)


@operation("POST", "/v1/flush", Nothing, FlushReply, scope="admin", errors=("flush_incomplete",), patient=True)
async def flush(context: Context, request: Nothing) -> FlushReply:
    """Commit and write everything that is dirty; an error when not all of it could be written."""
    del request
    report = await context.manager.flush()
    reply = FlushReply.of(report, problems=context.without_paths([*report.problems]))
    if report.failed:
        sentence = f"{report.failed} sessions could not be written to their files; they stay in memory and in the store"
        raise RequestError(UNREACHABLE, "flush_incomplete", sentence, details=msgspec.to_builtins(reply))
    return reply


@operation("POST", "/v1/check", Nothing, CheckReply, scope="admin", reads=True, patient=True)
async def check(context: Context, request: Nothing) -> CheckReply:
    """Compare snapshots and store; changes nothing."""
    del request
    report = await context.manager.check()
    problems, notes = context.without_paths(report.problems), context.without_paths(report.notes)
    return CheckReply.of(report, problems=problems, notes=notes)


@operation("POST", "/v1/repair", Nothing, RepairReply, scope="admin", patient=True)
async def repair(context: Context, request: Nothing) -> RepairReply:
    """Write what the session files have whole over damaged entries of the store."""
    del request
    mended = await context.manager.repair()
    return RepairReply(mended=mended.entries, needs_start=mended.needs_start)


OPERATIONS = (health, probe_live, probe_ready, show_access, statistics, show_series, flush, check, repair)
