"""A command line on an empty workspace."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import Cli


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(tmp_path / "workspace", monkeypatch)
