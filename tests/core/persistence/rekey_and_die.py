"""A process that encrypts a workspace and kills itself in the middle of a stage."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import anyio

from miniclaw_sessions import SessionSettings
from miniclaw_sessions.disk import Directory
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.files.transfer.rekeying import Rekey

workspace, moment = Path(sys.argv[1]), sys.argv[2]
take_all = Directory.take_all


def die_before_the_second(directory: Directory, source: Directory) -> int:
    """One directory has its new files, another has not."""
    if getattr(die_before_the_second, "called", False):
        os.kill(os.getpid(), signal.SIGKILL)
    die_before_the_second.called = True  # type: ignore[attr-defined]
    return take_all(directory, source)


def die_in(stage: str, done: int, total: int | None) -> None:
    del done, total
    if stage.startswith(moment):
        os.kill(os.getpid(), signal.SIGKILL)


if moment == "swapping":
    setattr(Directory, "take_all", die_before_the_second)  # noqa: B010 - a type checker would not have it
rekey = Rekey(workspace, SessionSettings(store="jsonl:"), KeyRing([b"o" * 32]), decrypt=False, on_progress=die_in)
anyio.run(rekey.run)
