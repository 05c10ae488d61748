"""Files that may not grow, and a log that cannot be written: nothing acknowledged is lost, and the error is told.

A write over the limit is cut short without an error, and only the next one fails (rules R3, R7): whoever does not count
bytes puts half a file in the place of a whole one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.crash.launcher import PROJECT
from tests.crash.limited_writer import SESSIONS
from tests.crash.verifier import Ledger, verify

STORES = ["sqlite:", "jsonl:", "none:"]


def run(workspace: Path, store: str, *, log: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.crash.limited_writer", str(workspace), store]
    with Path(log).open("wb") as stderr:
        done = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=stderr, timeout=60, check=False)
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def problems_of(workspace: Path, store: str, lines: list[dict[str, Any]]) -> list[str]:
    ledger = Ledger()
    assert ledger.learn(lines) >= 2 * SESSIONS
    return anyio.run(partial(verify, workspace, ledger, store=store))


@pytest.mark.parametrize("store", STORES)
def test_files_that_may_not_grow_lose_nothing_and_grow_again_when_they_may(tmp_path: Path, store: str) -> None:
    seen = run(tmp_path / "workspace", store, log=str(tmp_path / "log"))
    assert "File too large" in seen["refusal"] or "free space" in seen["refusal"]
    assert (store == "none:") == ("next_refusal" not in seen)
    assert seen.get("next_refusal", "StoreFull") == "StoreFull"
    assert seen.get("failed", SESSIONS) == SESSIONS
    assert seen["snapshots_are_whole"]
    assert not seen["was_healthy"]
    assert min(seen["readable"]) >= 1
    assert seen["is_healthy"]
    assert seen["problems"] == []
    assert "closed with" in seen["unsaved"], "closing did not say that something is lost"
    assert problems_of(tmp_path / "workspace", store, seen["lines"]) == []


def test_a_log_on_a_full_disk_harms_nothing(tmp_path: Path) -> None:
    seen = run(tmp_path / "workspace", "jsonl:", log="/dev/full")
    assert seen["is_healthy"]
    assert "closed with" in seen["unsaved"]
    assert problems_of(tmp_path / "workspace", "jsonl:", seen["lines"]) == []
