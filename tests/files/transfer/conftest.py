"""A workspace that a test fills, reopens and changes the keys of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.persistence.encrypted_homes import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "w")
