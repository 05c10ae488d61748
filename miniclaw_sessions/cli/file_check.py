"""Looking at a workspace that nobody holds, as it lies there: without the recovery that opening it begins with."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
from anyio import to_thread

from miniclaw_sessions.cli.output import Report
from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.config import LoadedSettings
from miniclaw_sessions.disk import DirectoryLock
from miniclaw_sessions.encryption import load_keys
from miniclaw_sessions.persistence.checking import Check, CheckReport
from miniclaw_sessions.persistence.marker import check_marker, check_store
from miniclaw_sessions.persistence.workspace import open_snapshots
from miniclaw_sessions.stores import open_store
from miniclaw_sessions.stores.encrypted import encrypted


async def check_files(loaded: LoadedSettings, report: Report) -> dict[str, Any]:
    """Compare snapshots and store: sound, sessions, entries, problems, notes.

    Nothing is repaired, set aside or written, except that the directory's lock is held meanwhile.

    Raises:
        DirectoryInUse: another process holds the workspace.
        SessionsError: something cannot be read.
    """
    found = await _check(loaded, report)
    return {"sound": found.sound, **msgspec.structs.asdict(found)}


async def _check(loaded: LoadedSettings, report: Report) -> CheckReport:
    workspace, settings = loaded.workspace.absolute(), loaded.settings.sessions
    if not (workspace / "sessions").is_dir():
        return CheckReport(notes=["the workspace holds no sessions yet"])
    async with AsyncExitStack() as stack:
        stack.callback((await to_thread.run_sync(DirectoryLock, workspace)).release)
        keys = load_keys(loaded.settings.encryption, os.environ)
        await to_thread.run_sync(check_marker, workspace, keys)
        clock = SystemClock()
        snapshots = open_snapshots(workspace, settings, clock=clock, encryption=keys)
        stack.callback(snapshots.close)
        names = await snapshots.names()
        if lost := await to_thread.run_sync(_missing_store, settings.store, workspace):
            return CheckReport(sessions=len(names), problems=[lost] if names else [])
        report("checking", 0, None)  # the store looks at itself first, and that can take long
        store = await stack.enter_async_context(encrypted(open_store(settings.store, workspace), keys))
        await check_store(store, keys)
        check = Check(
            snapshots,
            store,
            clock=clock,
            on_progress=lambda progress: report(progress.stage, progress.done, progress.total),
        )
        return await check.run()


def _missing_store(url: str, workspace: Path) -> str:
    """What is wrong when the store's file is not there; opening the store would make an empty one."""
    files = open_store(url, workspace).files
    if files and not files[0].exists():
        return f"the store {files[0]} is missing; the next start writes it anew from the snapshots"
    return ""
