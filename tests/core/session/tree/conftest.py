"""The tests of trees run with a store in memory and with one on the disk; `faulty` is only in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.session.bench import Bench


@pytest.fixture(params=["memory", "sqlite"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    return Bench(tmp_path / "workspace", request.param)


@pytest.fixture
def faulty(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "workspace")
