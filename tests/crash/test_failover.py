"""Three gateways on a rack of servers: a standby takes over, and the power of all of them is cut."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.filesystem import LoopFilesystem, MountSpace
from tests.crash.gateways import Gateways
from tests.crash.launcher import Launcher
from tests.crash.rack import RACK_BYTES, Rack
from tests.crash.runs import CHATS

BETWEEN = 200
"""Acknowledgements before and after each blow."""


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher("tests.crash.gateway") as launcher:
        yield launcher


def test_a_promotion_under_load_takes_and_doubles_nothing(launcher: Launcher, tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="pg") as directory,
        Rack(Path(directory)) as rack,
        Gateways(launcher, tmp_path, rack.url, chats=CHATS, seed="promotion") as gateways,
    ):
        gateways.wait_for_acknowledgements(BETWEEN)
        with gateways.one_paused():
            rack.promote()
        gateways.wait_for_acknowledgements(BETWEEN)
        gateways.finish()
        assert gateways.problems() == []


@pytest.mark.root
def test_a_power_cut_of_the_whole_rack_takes_and_doubles_nothing(
    launcher: Launcher, space: MountSpace, tmp_path: Path
) -> None:
    with (
        LoopFilesystem(space, "ext4", size=RACK_BYTES) as filesystem,
        Rack(filesystem) as rack,
        Gateways(launcher, tmp_path, rack.url, chats=CHATS, seed="cut") as gateways,
    ):
        gateways.wait_for_acknowledgements(BETWEEN)
        rack.cut_power(gateways.kill_one)
        gateways.wait_for_acknowledgements(BETWEEN)
        rack.promote()  # the standby has what was acknowledged before the cut, too
        gateways.wait_for_acknowledgements(BETWEEN)
        gateways.finish()
        assert gateways.problems() == []


@pytest.mark.root
def test_a_server_that_acknowledges_too_early_is_caught(launcher: Launcher, space: MountSpace, tmp_path: Path) -> None:
    careless = {
        "synchronous_commit": "off",
        "wal_writer_delay": "10s",
        "wal_writer_flush_after": "1GB",  # with 0, each page is flushed at once, and only some cuts lose anything
        "bgwriter_lru_maxpages": "0",  # a page that is written flushes the log that it depends on
    }
    with LoopFilesystem(space, "ext4", size=RACK_BYTES) as filesystem, Rack(filesystem, careless) as rack:
        url = f"{rack.url}&allow_unsafe_commits=true"
        with Gateways(launcher, tmp_path, url, chats=CHATS, seed="control") as gateways:
            gateways.wait_for_acknowledgements(BETWEEN)
            rack.cut_power(gateways.kill_all)
            problems = gateways.problems()
    assert any("is lost" in problem for problem in problems), "nothing was lost: these cuts would not notice"
