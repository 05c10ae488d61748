"""The process is killed at any moment of its life: nothing that was acknowledged is lost, and everything is sound."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.evidence import Evidence
from tests.crash.launcher import Launcher
from tests.crash.trials import BACKING_UP, Crashes, mixed_moments
from tests.sampled import repeated

KILLS = repeated(15)


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher("tests.crash.writer") as launcher:
        yield launcher


@pytest.mark.parametrize("store", ["sqlite:", "jsonl:", "none:"])
def test_no_kill_takes_what_was_acknowledged(launcher: Launcher, tmp_path: Path, store: str) -> None:
    crashes = Crashes(launcher, tmp_path / "workspace", tmp_path, Evidence(tmp_path), store=store, seed=f"kill {store}")
    assert crashes.run_all(mixed_moments(f"kill {store}", KILLS), acknowledging=KILLS * 20) == []


@pytest.mark.parametrize("store", ["sqlite:", "jsonl:", "none:"])
def test_a_backup_made_meanwhile_restores_to_all_that_was_acknowledged_before_it(
    launcher: Launcher, tmp_path: Path, store: str
) -> None:
    crashes = Crashes(launcher, tmp_path / "workspace", tmp_path, Evidence(tmp_path), store=store, seed=f"back {store}")
    for _ in range(4):
        assert crashes.run(BACKING_UP) == []
    assert crashes.tally.backups > 0


def test_a_writer_that_is_left_alone_closes_well_and_has_saved_everything(launcher: Launcher, tmp_path: Path) -> None:
    crashes = Crashes(
        launcher, tmp_path / "workspace", tmp_path, Evidence(tmp_path), store="sqlite:", seed="left alone"
    )
    assert crashes.run("closed") == []
    assert (tmp_path / "00000.jsonl").read_bytes().endswith(b'{"kind": "closed"}\n')
