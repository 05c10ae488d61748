"""Where the bad inputs are tried."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users can reach, once it is theirs: `tmp_path` lies below one that they cannot enter."""
    with tempfile.TemporaryDirectory(prefix="mc") as name:
        yield Path(name)
