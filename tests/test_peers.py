"""The comparison with other frameworks' stores measures what it says: a small run, and a writer that is killed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from benchmarks.peers.catalogue import OURS, PEERS, Peer
from benchmarks.peers.cuts import KILL, Outcome, Server, tally
from benchmarks.peers.environments import Environments, NotAvailable
from benchmarks.peers.measurements import Bench, Measured, Plan
from benchmarks.peers.report import BEGIN, END, Report, best_of, machine, show, write_markdown, writing

pytestmark = pytest.mark.proof

TINY = Plan(rounds=1, single=5, concurrent=2, append_limit_s=20.0, sizes=(50, 60), size_limit_s=0.0, many=3, imports=1)
NUMBERS = {"appends_1", "appends_100", "latest_50", "latest_60", "append_50", "append_60", "open", "memory", "import"}


def named(*names: str) -> list[Peer]:
    return [peer for peer in PEERS if peer.short in names]


def measured(peers: Sequence[Peer], directory: Path) -> list[Measured]:
    return Bench(Environments(None), directory, TINY, lambda _: None).measure(peers)


def report_of(stores: list[Measured], cuts: dict[str, list[Outcome]], directory: Path) -> Report:
    return Report("1 January 2026", machine(directory), TINY, stores, cuts, None if cuts else "not asked for", "seed")


def test_a_small_run_measures_everything_and_names_what_it_cannot(tmp_path: Path) -> None:
    missing = msgspec.structs.replace(PEERS[2], name="missing", package="no-such-package-here")
    stores = measured([*named("ours, sqlite:", "strands", "bare loop"), missing], tmp_path)

    assert [one.reason for one in stores[:3]] == [None, None, None]
    for one in stores[:3]:
        assert one.numbers.keys() == NUMBERS
        assert all(value > 0 for name, value in one.numbers.items() if name != "import"), one
        assert not one.refused
    assert stores[3].reason == "no-such-package-here is not installed"

    results = tmp_path / "RESULTS.md"
    results.write_text(f"# Ours\n\nbefore\n\n{BEGIN}\nan older run\n{END}\n\nafter\n")
    write_markdown(report_of(stores, {}, tmp_path), results, None)
    text = results.read_text()
    assert text.startswith("# Ours\n\nbefore\n")
    assert text.endswith("\nafter\n")
    assert "an older run" not in text
    assert "| missing | not measured: no-such-package-here is not installed |" in text
    assert "Skipped: not asked for." in text
    for one in stores:
        assert f"| {one.peer.name} |" in text


def test_a_store_that_does_not_do_its_work_is_not_measured(tmp_path: Path) -> None:
    forgetful = msgspec.structs.replace(named("bare loop")[0], adapter="bare:NoSuchStore")
    (one,) = measured([forgetful], tmp_path)
    assert one.reason is not None
    assert "NoSuchStore" in one.reason


def test_the_writers_that_are_killed_are_read_back(tmp_path: Path) -> None:
    (bare,) = named("bare loop")
    notes = tmp_path / "notes.txt"
    with Server(bare, Environments(None).interpreter(bare)) as server:
        with server.act("begin", tmp_path / "store", tmp_path) as begun:
            assert begun.wait() == 0
        with server.act("go_on", tmp_path / "store", tmp_path, acknowledgements=str(notes)) as writer:
            writer.wait_for(notes, 12)
            writer.kill()
        with server.act("read_back", tmp_path / "store", tmp_path) as reader:
            assert reader.wait() == 0
            kept = reader.result()
        with server.act("read_back", tmp_path / "nowhere", tmp_path) as reader:
            reader.wait()
            gone = reader.result()

    outcome = tally(Outcome(KILL), notes, kept)
    assert outcome.acknowledged >= 12
    assert (outcome.lost, outcome.old, outcome.old_lost, outcome.unreadable) == (0, 80, 0, 0)
    outcome = tally(outcome, notes, gone)
    assert (outcome.trials, outcome.harmful, outcome.unreadable) == (2, 1, 1)
    assert outcome.lost * 2 == outcome.acknowledged
    assert (outcome.old_lost, outcome.old) == (80, 160)
    assert "FileNotFoundError" in outcome.error


def test_the_best_is_marked_whoever_it_is_but_never_the_bare_loop(tmp_path: Path) -> None:
    ours, theirs, bare = named("ours, sqlite:", "openai-agents", "bare loop")
    first, *_ = writing(TINY)
    stores = [
        Measured(ours, "1", None, {first.key: 10.0}),
        Measured(theirs, "1", None, {first.key: 20.0}),
        Measured(bare, "1", None, {first.key: 30.0}),
    ]
    assert best_of(first, stores) == 20.0
    harmed = Outcome("xfs", trials=10, harmful=9, acknowledged=500, lost=90, old=800, old_lost=8, unreadable=2)
    report = report_of(stores, {theirs.name: [harmed]}, tmp_path)
    write_markdown(report, tmp_path / "new.md", Path("peers.png"))
    text = (tmp_path / "new.md").read_text()
    assert f"| {theirs.name} | **20** |" in text
    assert "**90 of 500, 8 of 800 older ones, unreadable 2 of 10**" in text
    assert "(peers.png)" in text
    console = Console(record=True, width=200, file=(tmp_path / "terminal").open("w"))
    show(msgspec.json.decode(msgspec.json.encode(report), type=Report), console)
    console.file.close()
    assert "90 of 500" in console.export_text()


def test_every_store_says_what_it_is() -> None:
    assert sum(peer.package == OURS for peer in PEERS) == 2
    assert len({peer.short for peer in PEERS}) == len({peer.adapter for peer in PEERS}) == len(PEERS)
    for peer in PEERS:
        assert peer.calls in ("async", "sync")
        assert peer.requirement is None or "==" in peer.requirement, "a comparison names the versions it compares"


def test_a_peer_without_an_environment_says_why(tmp_path: Path) -> None:
    (tmp_path / "environments").write_text("a file")
    with pytest.raises(NotAvailable, match="Not a directory"):
        Environments(tmp_path / "environments").interpreter(PEERS[2])
