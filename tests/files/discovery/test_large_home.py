"""Taking in what other programs said needs bounded memory; `python -m tests.files.discovery.large_home`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.files.discovery.large_home import measure

LIMIT_MB = 200


@pytest.mark.proof
def test_gigabytes_stream_within_200_mb(tmp_path: Path) -> None:
    run = measure(tmp_path, gigabytes=0.3, largest=0.2)
    assert run.messages > 50_000
    assert run.peak_mb < LIMIT_MB
