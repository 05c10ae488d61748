"""Moving house, in short: the whole of it is `python -m tests.transfer.moving`."""

from __future__ import annotations

import pytest

from tests.transfer.moving import run

pytestmark = pytest.mark.proof


@pytest.mark.parametrize("begin", ["sqlite", "jsonl"])
def test_a_house_moves_to_a_server_and_back_the_same_though_killed_on_the_way(begin: str) -> None:
    sessions, kills = 600, 4
    runs = run(sessions, kills, begin)
    assert [one.report["sessions"] for one in runs] == [sessions] * 4
    assert [one.kills for one in runs[:2]] == [0, 0]
    assert sum(one.kills for one in runs[2:]) >= kills  # of twice as many; some come when it is just done
    assert all(one.report["written"] < one.report["entries"] for one in runs[2:])  # it went on where it was
