"""The power cut itself: it must take what was not synced, and nothing that was."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.bare_writer import SAFE, UNSAFE
from tests.crash.filesystem import KINDS, LoopFilesystem, MountSpace
from tests.crash.launcher import PROJECT, Launcher
from tests.crash.trials import cut_bare_writer

pytestmark = pytest.mark.root

CUTS = 5
HIDDEN = {("replace-without-sync", "ext4")}
"""By default ext4 syncs a file that is renamed over another one."""

LOSING = [(how, kind) for how in UNSAFE for kind in KINDS if (how, kind) not in HIDDEN]


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher("tests.crash.bare_writer") as launcher:
        yield launcher


@pytest.mark.parametrize("filesystem", KINDS, indirect=True)
@pytest.mark.parametrize("how", SAFE)
def test_what_was_synced_survives_every_cut(filesystem: LoopFilesystem, launcher: Launcher, how: str) -> None:
    chance = random.Random(f"{filesystem.kind} {how}")
    lost = [cut_bare_writer(filesystem, launcher, how=how, chance=chance) for _ in range(CUTS)]
    assert lost == [[]] * CUTS


@pytest.mark.parametrize(("how", "filesystem"), LOSING, indirect=["filesystem"])
def test_a_writer_that_leaves_out_one_sync_is_caught(filesystem: LoopFilesystem, launcher: Launcher, how: str) -> None:
    chance = random.Random(f"{filesystem.kind} {how}")
    lost = [cut_bare_writer(filesystem, launcher, how=how, chance=chance) for _ in range(CUTS)]
    assert all(lost), "nothing was lost: this power cut would not notice a missing sync"


@pytest.mark.usefixtures("filesystem")
@pytest.mark.parametrize("filesystem", ["ext4"], indirect=True)
def test_no_mount_and_no_process_is_left_behind() -> None:
    with MountSpace() as space, LoopFilesystem(space, "ext4") as filesystem:
        assert str(filesystem.path) in Path("/proc/self/mounts").read_text()
        with Launcher("tests.crash.bare_writer") as launcher:
            orders = {"directory": str(filesystem.path), "how": "append", "saves": 1}
            writer = launcher.start(
                {**orders, "acknowledgements": str(space.path / "acknowledgements")}, log=space.path / "log"
            )
        assert writer.has_ended
    assert str(space.path) not in Path("/proc/self/mounts").read_text()
    assert not space.path.exists()


@pytest.mark.usefixtures("filesystem")
@pytest.mark.parametrize("filesystem", ["ext4"], indirect=True)
def test_mounts_vanish_even_when_the_test_run_is_killed() -> None:
    script = (
        "import signal, sys; from tests.crash.filesystem import *; space = MountSpace().__enter__();"
        "LoopFilesystem(space, 'ext4').__enter__(); print(space.path, flush=True); signal.pause()"
    )
    run = subprocess.Popen([sys.executable, "-c", script], cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    with run.stdout:
        path = Path(run.stdout.readline().strip())
    assert path.is_mount()
    run.kill()
    run.wait()
    deadline = time.monotonic() + 20
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not path.exists()
    assert str(path) not in Path("/proc/self/mounts").read_text()
