"""The short form of fuzzing: each reader with a few cases, made by hypothesis; the corpus; and the harness itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Self

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from miniclaw_sessions.errors import InvalidMessage
from tests.fuzz import __main__ as command_line
from tests.fuzz.campaign import Campaign, attempt, smaller
from tests.fuzz.mutations import LONGEST, cut_at, damaged
from tests.fuzz.reader import SECRET, LogWatch, Reader, refused, watching_logs
from tests.fuzz.readers import READERS

CORPUS = Path(__file__).parent / "corpus"
EXAMPLES = {"database": 2, "arguments": 8, "imports": 25, "recovery": 8, "transcripts": 8, "raw-requests": 15}


@pytest.fixture
def logs() -> Iterator[LogWatch]:
    with watching_logs() as watch:
        yield watch


@pytest.mark.parametrize("name", READERS)
def test_damage_is_taken_in_or_refused_and_never_more(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One event loop and one reader for all examples: to start a server for each would take too long."""

    @settings(
        max_examples=EXAMPLES.get(name, 30),
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(random=st.randoms(use_true_random=False), number=st.integers(0, 100_000))
    def check(random: Random, number: int) -> None:
        case = reader.case(random, number)
        portal.call(attempt, reader, [case] * min(reader.batch, 2), logs)

    with anyio.from_thread.start_blocking_portal() as portal, watching_logs() as logs:
        opened = READERS[name](tmp_path_factory.mktemp("fuzz"))
        with portal.wrap_async_context_manager(opened) as reader:
            check()


# --- the corpus ------------------------------------------------------------------------------------------------------

CASES = sorted(path for path in CORPUS.rglob("*") if path.is_file())


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}-{path.name}")
@pytest.mark.anyio
async def test_what_once_failed_does_not_fail_again(path: Path, tmp_path: Path, logs: LogWatch) -> None:
    async with READERS[path.parent.name](tmp_path) as reader:
        await attempt(reader, [path.read_bytes()], logs)  # noqa: ASYNC240 - a small file


# --- the damage ------------------------------------------------------------------------------------------------------


def test_the_same_seed_does_the_same_damage() -> None:
    data = [b'{"a": [1, {"b": "c"}]}\n{"d": null}\n', b"other"]
    once, again = ([damaged(Random(seed), data[0], data) for seed in range(200)] for _ in range(2))
    assert once == again
    assert len(set(once)) > 150
    assert all(len(one) <= LONGEST for one in once)


@given(st.randoms(use_true_random=False), st.binary(max_size=50))
@settings(max_examples=50, deadline=None)
def test_anything_can_be_damaged(random: Random, data: bytes) -> None:
    assert isinstance(damaged(random, data, [b"", data]), bytes)


def test_seeds_are_cut_at_every_offset() -> None:
    assert [cut_at([b"ab", b"", b"c"], number) for number in range(7)] == [b"", b"a", b"ab", b"", b"", b"c", b""]


# --- the harness -----------------------------------------------------------------------------------------------------


class BrokenReader(Reader):
    """Crashes on a certain letter, and otherwise refuses."""

    name: ClassVar[str] = "broken"
    share: ClassVar[int] = 5_000
    batch: ClassVar[int] = 5

    async def __aenter__(self) -> Self:
        self.seeds = [b"abcdefgh" * 10]
        return self

    async def read(self, case: bytes) -> bool:
        if b"X" in case:
            raise KeyError("X")
        return refused(InvalidMessage("no"))

    def case(self, random: Random, number: int) -> bytes:
        del random
        return b"." * 20 + (b"X" if number in {7, 12} else b"y") + b"." * 20


@pytest.mark.anyio
async def test_a_crash_is_found_counted_and_made_small(tmp_path: Path, logs: LogWatch) -> None:
    done: list[int] = []
    async with BrokenReader(tmp_path) as reader:
        campaign = Campaign(reader, "seed", logs)
        await campaign.run(23, done.append)
    tally = campaign.tally
    assert (tally.cases, tally.accepted, tally.refused, tally.failed, sum(done)) == (23, 0, 21, 2, 23)
    assert [(failure.number, failure.case) for failure in tally.failures] == [(7, b"X"), (12, b"X")]
    assert tally.failures[0].what == "KeyError: 'X'"


@pytest.mark.anyio
async def test_what_fails_otherwise_when_it_is_made_smaller_stays_as_it_is(tmp_path: Path, logs: LogWatch) -> None:
    async with BrokenReader(tmp_path) as reader:
        assert await smaller(reader, b"abc", "KeyError at read:1", logs) == b"abc"


class WordyReader(BrokenReader):
    """Says what must not be said, in its errors or in the log."""

    async def read(self, case: bytes) -> bool:
        if case == b"log":
            import structlog  # noqa: PLC0415 - as the product's own loggers do

            structlog.get_logger().info("x", action="test", text=f"it was {SECRET}")
            return True
        if case == b"task":
            import logging  # noqa: PLC0415 - as asyncio does

            logging.getLogger("asyncio").error("Task exception was never retrieved")
            return True
        return refused(InvalidMessage(f"{SECRET} is wrong") if case == b"error" else ValueError("x"))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("case", "problem"),
    [
        (b"error", "repeats what was said"),
        (b"undocumented", "not a documented error"),
        (b"log", "the log repeats what was said"),
        (b"task", "never retrieved"),
    ],
)
async def test_words_and_undocumented_errors_are_failures(
    tmp_path: Path, logs: LogWatch, case: bytes, problem: str
) -> None:
    async with WordyReader(tmp_path) as reader:
        with pytest.raises(AssertionError, match=problem):
            await attempt(reader, [case], logs)


class HangingReader(BrokenReader):
    """Never comes back, in one way or the other."""

    async def read(self, case: bytes) -> bool:
        while case == b"busy":
            pass
        await anyio.sleep_forever()
        return True


@pytest.mark.anyio
@pytest.mark.parametrize("case", [b"busy", b"waiting"])
async def test_a_hang_is_a_failure(tmp_path: Path, logs: LogWatch, case: bytes) -> None:
    async with HangingReader(tmp_path) as reader:
        with pytest.raises(AssertionError, match="took longer"):
            await attempt(reader, [case], logs, deadline_s=0.3)


def test_the_command_line_tells_writes_down_and_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(READERS, BrokenReader.name, BrokenReader)
    arguments = ["--readers", "broken", "toml", "--cases", "60", "--seed", "s", "--failures", str(tmp_path)]
    assert command_line.main(arguments) == 1
    shown = capsys.readouterr().out
    assert "broken" in shown
    assert "seed s" in shown
    case = tmp_path / "broken" / "s-7"
    assert case.read_bytes() == b"X"
    assert "seed s, case 7\nKeyError: 'X'" in case.with_suffix(".txt").read_text(encoding="utf-8")
    assert command_line.main(["--replay", str(case)]) == 1
    case.write_bytes(b"y")
    assert command_line.main(["--replay", str(case)]) == 0


def test_the_command_line_tells_programs_too(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert command_line.main(["--readers", "toml", "flags", "--cases", "40", "--seed", "s", "--json"]) == 0
    sys.stdout.flush()
    document: dict[str, Any] = json.loads(capfdbinary.readouterr().out)
    assert document["seed"] == "s"
    assert document["failures"] == []
    assert sum(reader["cases"] for reader in document["readers"].values()) == 40


def test_the_long_form_is_a_hundred_thousand_cases_over_all_readers() -> None:
    shares = command_line.shared_out(100_000, list(READERS))
    assert shares == {name: reader.share for name, reader in READERS.items()}
    assert sum(shares.values()) == 100_000
