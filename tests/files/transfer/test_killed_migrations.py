"""A migration that is killed again and again, in short: the whole of it is `python -m tests.files.transfer.moving`."""

from __future__ import annotations

import pytest

from tests.files.transfer.moving import run

pytestmark = pytest.mark.proof


def test_a_house_moves_to_a_server_and_back_the_same_though_killed_on_the_way() -> None:
    kills = 3
    runs = run(400, [kills], "sqlite")
    assert [one.report["sessions"] for one in runs] == [400, 400]
    assert sum(one.kills for one in runs) >= kills  # of twice as many: one may come when it is just done
    assert all(one.report["written"] < one.report["entries"] for one in runs if one.kills)  # it went on where it was
