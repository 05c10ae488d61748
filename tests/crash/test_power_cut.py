"""The power is cut under a live writer, again and again: nothing that was acknowledged is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.crash.evidence import Evidence
from tests.crash.filesystem import LoopFilesystem
from tests.crash.injection import count_injected, lying_about_syncs
from tests.crash.launcher import Launcher
from tests.crash.trials import MORE_TRIALS, RECOVERING, Crashes, mixed_moments
from tests.sampled import repeated

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

CUTS = repeated(20)
KINDS = ("ext4", "xfs")
DURABLE = ("sqlite:", "jsonl:")


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher("tests.crash.writer") as launcher:
        yield launcher


def crashes_on(
    filesystem: LoopFilesystem,
    launcher: Launcher,
    store: str,
    scratch: Path,
    *,
    name: str = "workspace",
    faults: Sequence[str] = (),
) -> Crashes:
    (scratch / name).mkdir()
    return Crashes(
        launcher,
        filesystem.path / name,
        scratch / name,
        Evidence(scratch / "evidence"),
        filesystem=filesystem,
        store=store,
        seed=f"{filesystem.kind} {store} {name}",
        faults=faults,
    )


@pytest.mark.parametrize("filesystem", KINDS, indirect=True)
@pytest.mark.parametrize("store", DURABLE)
def test_no_power_cut_takes_an_acknowledged_message(
    filesystem: LoopFilesystem, launcher: Launcher, tmp_path: Path, store: str
) -> None:
    crashes = crashes_on(filesystem, launcher, store, tmp_path)
    assert crashes.run_all(mixed_moments(filesystem.kind, CUTS), acknowledging=CUTS * 20) == []


@pytest.mark.parametrize("filesystem", ["ext4-noauto_da_alloc", "xfs"], indirect=True)
@pytest.mark.parametrize("store", DURABLE)
def test_power_cuts_during_recovery_from_a_power_cut_take_nothing(
    filesystem: LoopFilesystem, launcher: Launcher, tmp_path: Path, store: str
) -> None:
    crashes = crashes_on(filesystem, launcher, store, tmp_path)
    for number in range(1, 5 + MORE_TRIALS):
        assert crashes.run(RECOVERING) == []
        if number >= 5 and crashes.tally.in_recovery:  # a fast machine may have recovered before the cut
            return
    pytest.fail(f"none of {crashes.tally.crashes} power cuts came during a recovery: nothing is proved")


@pytest.mark.parametrize("filesystem", KINDS, indirect=True)
@pytest.mark.parametrize("store", DURABLE)
def test_a_power_cut_during_the_very_first_start_does_no_harm(
    filesystem: LoopFilesystem, launcher: Launcher, tmp_path: Path, store: str
) -> None:
    for number in range(CUTS // 2):
        crashes = crashes_on(filesystem, launcher, store, tmp_path, name=str(number))
        assert crashes.run("creating") == []


@pytest.mark.parametrize("filesystem", KINDS, indirect=True)
def test_without_a_store_a_power_cut_takes_nothing_older_than_the_last_flush(
    filesystem: LoopFilesystem, launcher: Launcher, tmp_path: Path
) -> None:
    crashes = crashes_on(filesystem, launcher, "none:", tmp_path)
    assert crashes.run_all(mixed_moments(filesystem.kind, CUTS // 2), acknowledging=CUTS * 20) == []


@pytest.mark.usefixtures("tracing")
@pytest.mark.parametrize("filesystem", KINDS, indirect=True)
@pytest.mark.parametrize("store", [*DURABLE, "none:"])
def test_a_writer_whose_syncs_do_nothing_is_caught(
    filesystem: LoopFilesystem, launcher: Launcher, tmp_path: Path, store: str
) -> None:
    crashes = crashes_on(filesystem, launcher, store, tmp_path, faults=lying_about_syncs())
    problems = crashes.run("talking")
    assert count_injected(tmp_path / "workspace" / "00000.trace"), "nothing was injected"
    assert problems, "nothing was lost: these cuts would not notice a missing sync"
    (evidence,) = (tmp_path / "evidence").iterdir()
    assert (evidence / "workspace").is_dir()
    assert (evidence / "problems.txt").read_text().splitlines() == problems[:-1]
