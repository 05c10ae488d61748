"""Three gateways on one database, killed and paused at random: nothing is lost, doubled, or answered twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.gateways import Gateways
from tests.crash.launcher import Launcher
from tests.crash.runs import CHATS


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher("tests.crash.gateway") as launcher:
        yield launcher


def test_whoever_is_killed_or_paused_every_message_is_there_once_and_answered_once(
    launcher: Launcher, postgresql_url: str, tmp_path: Path
) -> None:
    with Gateways(launcher, tmp_path, postgresql_url, chats=CHATS, seed="kills") as gateways:
        gateways.live_through_kills_and_pauses()
        assert gateways.problems() == []
