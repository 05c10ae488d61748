"""Where the bad inputs are tried: in memory if possible, because there are many, and every file of ours is synced."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_IN_MEMORY = Path("/dev/shm")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users can reach, once it is theirs: `tmp_path` lies below one that they cannot enter."""
    with tempfile.TemporaryDirectory(prefix="bad-input-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None) as name:
        yield Path(name)
