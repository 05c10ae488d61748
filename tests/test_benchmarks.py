"""The soak and the benchmark of scale work, and the soak can see loss and growth: very short runs of each."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from rich.console import Console
from rich.progress import Progress

from benchmarks import scale, soak
from benchmarks.daemon import Daemon
from benchmarks.soak_samples import WARM_UP_S, Sample, common_slope, growth
from benchmarks.soak_writers import faults, faults_in_database

pytestmark = pytest.mark.proof


def said(writer: int, *numbers: int) -> list[str]:
    return [f"w{writer} {number} and so on" for number in numbers]


# --- loss ------------------------------------------------------------------------------------------------------------


def test_what_was_acknowledged_and_is_there_in_order_is_no_fault() -> None:
    texts = [text for pair in zip(said(1, 1, 2, 3), said(2, 1, 2, 3), strict=True) for text in pair]
    assert list(faults(texts, {1: 3, 2: 2}, is_whole=True)) == []
    assert list(faults(said(1, 7, 8, 9), {1: 8, 2: 4}, is_whole=False)) == []


@pytest.mark.parametrize(
    ("texts", "promised", "fault"),
    [
        (said(1, 1, 3), {1: 3}, "message 2 should be there is 3"),
        (said(1, 1, 2, 2), {1: 2}, "message 3 should be there is 2"),
        (said(1, 2, 1), {1: 2}, "message 1 should be there is 2"),
        (said(1, 1, 2), {1: 3}, "the last one there is 2"),
        ([], {1: 3}, "there are none"),
        (said(2, 1), {1: 0}, "w2 never talked in it"),
    ],
    ids=["lost", "doubled", "out of order", "the newest lost", "all lost", "a stranger's"],
)
def test_every_fault_is_seen(texts: list[str], promised: dict[int, int], fault: str) -> None:
    assert any(fault in found for found in faults(texts, promised, is_whole=True))


# --- growth ----------------------------------------------------------------------------------------------------------


def samples(*lives: tuple[float, float], seconds: int = 300) -> list[Sample]:
    """Lives of so many megabytes at their beginning, and so many more each hour."""
    made = []
    for life, (level, per_hour) in enumerate(lives, start=1):
        for age in range(seconds):
            noise = 0.3 if age % 3 else -0.5
            value = level + per_hour * age / 3600 + noise
            made.append(
                Sample(
                    at=(life - 1) * seconds + age,
                    life=life,
                    age=age,
                    is_full=False,
                    rss_mb=value,
                    pss_mb=value,
                    own_mb=value,
                    descriptors=20,
                    threads=3,
                    unsaved=0.0,
                    loop_ms=1.0,
                    p50_ms=None,
                    p99_ms=None,
                    acknowledged=0,
                )
            )
    return made


def test_a_slope_is_found_whatever_the_height_of_its_groups() -> None:
    found = common_slope([[(x, 2 * x + height) for x in range(5)] for height in (0, 100, -50)])
    assert found is not None
    assert found.value == pytest.approx(2)
    assert found.margin == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("lives", "verdict"),
    [
        ([(100, 0)] * 5, "flat"),
        ([(100, 300)] * 5, "grows"),
        ([(100, 0), (105, 0), (110, 0), (115, 0), (120, 0)], "grows"),
        ([(100, -300)] * 5, "flat"),
    ],
    ids=["flat", "within each life", "from life to life", "shrinks"],
)
def test_growth_is_told_from_noise(lives: list[tuple[float, float]], verdict: str) -> None:
    assert growth("rss_mb", samples(*lives)).verdict == verdict


def test_a_short_run_claims_nothing() -> None:
    assert growth("rss_mb", samples((100, 0), seconds=int(WARM_UP_S))).verdict == "unclear"


# --- the programs ----------------------------------------------------------------------------------------------------


@pytest.fixture
def daemon(tmp_path: Path, short_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path / "workspace", short_path) as one:
        yield one


def test_a_soak_finds_everything_and_draws_it(daemon: Daemon, tmp_path: Path) -> None:
    picture = tmp_path / "soak.png"
    arguments = soak.parsed(["--minutes", "0.06", "--writers", "6", "--rate", "120", "--every", "0.1", "--company"])
    run = soak.Soak(daemon, None, arguments)
    report = anyio.run(run.run, Progress(console=Console(file=io.StringIO())))
    assert report.problems == []
    assert report.found_in_database == report.acknowledged > 6 * 160
    assert report.kills + report.stops > 0
    assert report.looks > 0
    assert report.company.keys() | report.put_off.keys() >= {"chat", "search", "import", "branch", "expire", "page"}
    assert report.samples
    soak.draw(report, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")

    database = daemon.workspace / "sessions.db"
    with closing(sqlite3.connect(database)) as connection, connection:
        of_a_writer = "SELECT max(position) FROM entries JOIN sessions ON entries.session = sessions.id"
        connection.execute(f"DELETE FROM entries WHERE position = ({of_a_writer} WHERE session_id = 'soak_0')")
    found, problems = faults_in_database(run.book, database)
    assert found == report.acknowledged - 1
    assert len(problems) == 1


def test_a_population_larger_than_memory_is_served(
    tmp_path: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "_drop_page_cache", lambda: False)  # the whole machine would feel it
    sizes = scale.Sizes(stored=150, resident=20, touched=60, timed=5)
    rows = {row.name: row for row in scale._measure_stored(tmp_path, short_path, sizes)}
    assert rows["sessions in memory then"].ours == 20
    assert rows["messages of a sleeping session, longest"].ours > 0
