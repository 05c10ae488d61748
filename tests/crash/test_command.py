"""`python -m tests.crash`: it adds up what its workers did, says what it left out, and ends when it is told to."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.crash import __main__ as command
from tests.crash.filesystem import KINDS
from tests.crash.runs import ACTS, STORES, Choice, CrashPiece, FaultPiece, RackPiece, Result, StatesPiece, pieces_of
from tests.crash.summary import Summary, markdown_of
from tests.crash.worker import Done, Told, Tried, Workers

SEED = ["--seed", "a-seed"]


def summary_of(*results: Result) -> Summary:
    summary = Summary(
        command="python -m tests.crash --kills 2",
        seed="a-seed",
        started=datetime(2026, 11, 21, tzinfo=UTC),
        machine={"kernel": "Linux 6.18"},
        evidence="/nowhere",
    )
    for result in results:
        summary.add(result)
    return summary


def test_a_small_run_reports_every_trial_in_each_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.md"
    chosen = ["--kills", "2", "--states", "10", "--stores", "none:", "--jobs", "2", "--json", "--report", str(report)]

    assert command.main([*chosen, "--evidence", str(tmp_path / "evidence"), *SEED]) == 0

    told = json.loads(capsys.readouterr().out)
    trials = {(result["tier"], result["name"]): result["trials"] for result in told["results"]}
    assert trials == {("A", "crash states, none:"): 10, ("A", "kills, none:"): 2}
    assert told["command"].endswith("--seed a-seed")
    assert "| A | kills, none: | 2 |" in report.read_text()
    assert not (tmp_path / "evidence").exists()


@pytest.mark.parametrize("tier", ["B", "C", "D"])
def test_a_tier_that_cannot_run_is_named_with_its_reason(
    tier: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("reason_not_to_mount", "reason_not_to_trace", "reason_not_to_boot"):
        monkeypatch.setattr(command, name, lambda *_: "no root")
    options = {"B": ["--faults"], "C": ["--cuts", "1"], "D": ["--units"]}[tier]

    assert command.main([*options, *SEED]) == 2

    assert f"skipped: tier {tier}, no root" in capsys.readouterr().out


def test_nothing_to_do_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([])

    assert ended.value.code == 2
    assert "--all" in capsys.readouterr().err


def test_workers_that_are_stopped_tell_what_they_have_done_so_far(tmp_path: Path) -> None:
    (piece,) = pieces_of(Choice(kills=25, stores=("none:",), seed="stopped"))
    told: list[Told] = []
    with Workers(1, space=tmp_path, evidence=tmp_path / "evidence") as workers:
        for one in workers.run([piece]):
            told.append(one)
            if isinstance(one.said, Tried):
                workers.stop()
                told += workers.rest()
                break
    last = told[-1].said
    assert isinstance(last, Done)
    assert last.result.problems == []
    assert 1 <= last.result.trials < piece.planned
    assert list(tmp_path.iterdir()) == [], "something was left behind"


def test_what_the_harness_trips_over_is_a_problem_and_ends_only_that_piece(tmp_path: Path) -> None:
    good, bad = pieces_of(Choice(states=20, stores=("jsonl:", "none:"), seed="harness"))
    assert isinstance(bad, StatesPiece)
    bad.store = "no such store:"
    with Workers(1, space=tmp_path, evidence=tmp_path / "evidence") as workers:
        done = [told.said.result for told in workers.run([bad, good]) if isinstance(told.said, Done)]
    assert "the harness failed" in done[0].problems[0]
    assert (done[1].trials, done[1].problems) == (20, [])


def test_everything_covers_every_store_kind_and_act() -> None:
    chosen = Choice(promotions=30, cuts=60, kills=60, states=10, faults=True, units=True, kinds=KINDS, seed="all")
    pieces = pieces_of(chosen)
    lives = [piece for piece in pieces if isinstance(piece, CrashPiece)]
    for store in STORES:
        for kind in (None, *KINDS):
            assert sum(life.planned for life in lives if (life.store, life.kind) == (store, kind)) == 60
    assert {(piece.store, piece.act) for piece in pieces if isinstance(piece, FaultPiece)} == {
        (store, act) for store in STORES for act in ACTS[store]
    }
    assert len({life.seed for life in lives}) == len(lives), "two lives are the same"
    assert {str(life.settings) for life in lives} == {"{}", "{'max_cached': 3}"}
    assert {piece.tier for piece in pieces} == {"A", "B", "C", "D", "E"}
    racks = [piece for piece in pieces if isinstance(piece, RackPiece)]
    assert sum(rack.planned for rack in racks) == 2 * 30, "as many cuts as promotions"


def test_results_of_one_run_are_added_up_and_shown_once() -> None:
    summary = summary_of(
        Result(tier="C", name="cuts, xfs, sqlite:", trials=25, crashes=30, acknowledged=4000),
        Result(tier="A", name="kills, sqlite:", trials=1, skipped=2),
        Result(tier="C", name="cuts, xfs, sqlite:", trials=25, crashes=28, problems=["one is lost"]),
    )
    summary.skip("B", "strace is not installed")
    assert [result.name for result in summary.results] == ["kills, sqlite:", "cuts, xfs, sqlite:"]
    text = markdown_of(summary)
    assert "| C | cuts, xfs, sqlite: | 50 | 58 |  |  |  |  |  | 4,000 | 1 |" in text
    assert "|  | together | 51 | 58 |  |  |  |  |  | 4,000 | 1 |" in text
    assert "skipped: tier B, strace is not installed" in text
    assert "skipped: 2 tests of kills, sqlite:" in text
