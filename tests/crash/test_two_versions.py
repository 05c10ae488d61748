"""Gateways of two versions on one database, as while the machines are updated one after the other."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.crash.gateways import Gateways
from tests.crash.launcher import PROJECT, Launcher, Writer
from tests.crash.runs import CHATS

FORMER = "cc1d9d36bdad891d3b1c476d0cbafa841580aded"
"""The version before the heart was rebuilt, with the same tables. After a change of the tables take a newer one."""


class OfTwoVersions(Gateways):
    """Those with an even number are of one version, the others of the other one."""

    launchers: Sequence[Launcher]

    def _start(self, number: int) -> Writer:
        self._launcher = self.launchers[number % 2]
        return super()._start(number)


@pytest.fixture
def launchers(tmp_path: Path) -> Iterator[list[Launcher]]:
    former = tmp_path / "former"
    found = subprocess.run(["git", "archive", FORMER], cwd=PROJECT, capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"the history is not here: {found.stderr.decode().strip()[-300:]}")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)  # 3.11.2 has no filters
        archive.extractall(former)
    with ExitStack() as stack:
        trees = (former, PROJECT)
        yield [stack.enter_context(Launcher("tests.crash.gateway", project=tree)) for tree in trees]


def test_gateways_of_two_versions_lose_and_double_nothing_and_answer_each_message_once(
    launchers: list[Launcher], postgresql_url: str, tmp_path: Path
) -> None:
    gateways = OfTwoVersions(launchers[0], tmp_path, postgresql_url, chats=CHATS, seed="versions")
    gateways.launchers = launchers
    with gateways:
        gateways.live_through_kills_and_pauses()
        assert gateways.problems() == []
