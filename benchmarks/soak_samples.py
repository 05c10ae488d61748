"""What a soak measures once per second, and whether it stays flat.

A quantity may grow while the daemon lives, and it may be larger in each life than in the one before. So both are looked
at: the common slope within the lives that last long enough, each around its own mean, and the slope from life to life,
all of them at the same age.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import anyio
import msgspec

from benchmarks.daemon import Daemon
from benchmarks.soak_writers import Book
from benchmarks.unix_http import Connection

WARM_UP_S = 60.0
"""So old a life must be before its samples say whether it grows."""

SAME_AGE_S = (10.0, 40.0)
"""At this age lives are compared with each other."""

TOLERANCE = 0.1
"""What grows by less than this part of itself while it is measured is flat."""

SLACK = {"descriptors": 1.0, "threads": 1.0, "unsaved": 50.0, "loop_ms": 5.0, "p50_ms": 5.0, "p99_ms": 10.0}
"""So much each may grow in any case, in its own unit: a twentieth of nearly nothing is nothing."""

BLOCK_S = 10.0
"""Samples that are so near to each other say the same: the median of such a block is one point."""

SAMPLE_LIMIT_S = 10.0
_FEWEST_POINTS = 3
_FEWEST_LIVES = 4
_DEVIATIONS = 2.0  # about 95 of 100


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One second.

    Attributes:
        at: seconds since the run began.
        life: which life of the daemon it was, from 1 on.
        age: how many seconds that life had been ready.
        is_full: whether the disk was.
        rss_mb, pss_mb, own_mb: the daemon's memory, see `daemon.Usage`.
        descriptors, threads: how many the daemon has open.
        unsaved: entries accepted and not yet acknowledged.
        loop_ms: how late its event loop was, on average since the sample before.
        p50_ms, p99_ms: how long acknowledged requests took since then; None without any.
        acknowledged: messages since the run began.
    """

    at: float
    life: int
    age: float
    is_full: bool
    rss_mb: float
    pss_mb: float
    own_mb: float
    descriptors: int
    threads: int
    unsaved: float
    loop_ms: float
    p50_ms: float | None
    p99_ms: float | None
    acknowledged: int


class Sampler:
    """Looks at one life of the daemon.

    Attributes:
        ready_at: when it began, seconds since the run began.
    """

    def __init__(self, daemon: Daemon, book: Book, life: int, ready_at: float) -> None:
        self.ready_at = ready_at
        self._daemon = daemon
        self._book = book
        self._life = life
        self._loop_before = (0.0, 0.0)

    async def sample(self, at: float, *, is_full: bool) -> Sample:
        """One sample of this moment.

        Raises:
            OSError, anyio.BrokenResourceError, anyio.EndOfStream: the daemon has just ended.
            TimeoutError: it does not answer.
        """
        usage = self._daemon.usage()
        with anyio.fail_after(SAMPLE_LIMIT_S):
            async with await Connection.open(self._daemon.socket) as connection:
                numbers = metrics_of((await connection.get("/metrics")).body.decode())
        latencies, self._book.latencies = sorted(self._book.latencies), []
        return Sample(
            at=at,
            life=self._life,
            age=at - self.ready_at,
            is_full=is_full,
            rss_mb=usage.resident,
            pss_mb=usage.proportional,
            own_mb=usage.own,
            descriptors=usage.descriptors,
            threads=usage.threads,
            unsaved=numbers["miniclaw_unsaved_entries"],
            loop_ms=self._loop_delay(numbers) * 1e3,
            p50_ms=_quantile(latencies, 0.50),
            p99_ms=_quantile(latencies, 0.99),
            acknowledged=self._book.total,
        )

    def _loop_delay(self, numbers: Mapping[str, float]) -> float:
        total, count = (numbers[f"miniclaw_event_loop_delay_seconds_{name}"] for name in ("sum", "count"))
        total_before, count_before = self._loop_before
        self._loop_before = (total, count)
        return (total - total_before) / (count - count_before) if count > count_before else 0.0


def metrics_of(text: str) -> dict[str, float]:
    """The metrics without labels of a page in Prometheus' format."""
    lines = (line.split(" ") for line in text.splitlines() if not line.startswith("#") and "{" not in line)
    return {name: float(value) for name, value in lines}


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1e3 if ordered else None


# --- growth ----------------------------------------------------------------------------------------------------------


class Estimate(msgspec.Struct, frozen=True):
    """A number, and how far the true one may be from it in about 95 of 100 runs."""

    value: float
    margin: float


class Growth(msgspec.Struct, frozen=True):
    """How one quantity developed.

    Attributes:
        name: of the quantity, a field of `Sample`.
        level: its median over all samples that count.
        within: its growth within the longest life; None: too short to measure.
        across: its growth from the first life to the last.
        verdict: `flat`, `grows`, or `unclear`: the run was too short.
    """

    name: str
    level: float
    within: Estimate | None
    across: Estimate | None
    verdict: str


def common_slope(groups: Iterable[Sequence[tuple[float, float]]]) -> Estimate | None:
    """The slope that fits several groups of points best, when each group has a height of its own.

    None when there are too few points to estimate both the slope and its uncertainty.
    """
    centred: list[tuple[float, float]] = []
    parameters = 1
    for points in groups:
        if len(points) > 1:
            parameters += 1
            x_mean = statistics.fmean(x for x, _ in points)
            y_mean = statistics.fmean(y for _, y in points)
            centred += [(x - x_mean, y - y_mean) for x, y in points]
    spread = sum(x * x for x, _ in centred)
    freedom = len(centred) - parameters
    if freedom < 1 or not spread:
        return None
    slope = sum(x * y for x, y in centred) / spread
    variance = sum((y - slope * x) ** 2 for x, y in centred) / freedom
    margin = _DEVIATIONS * math.sqrt(variance / spread)
    return Estimate(slope, margin)


def growth(name: str, samples: Sequence[Sample]) -> Growth:
    """Whether a quantity grew; the times of a full disk do not count."""
    old: dict[int, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    young: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        value = getattr(sample, name)
        if value is None or sample.is_full:
            continue
        point = (sample.at, value)
        if sample.age >= WARM_UP_S:
            old[sample.life][int(sample.age / BLOCK_S)].append(point)
        elif SAME_AGE_S[0] <= sample.age < SAME_AGE_S[1]:
            young[sample.life].append(point)
    groups = [[_middle(points) for points in blocks.values()] for blocks in old.values()]
    middles = [_middle(points) for points in young.values()]
    values = [y for points in [*groups, middles] for _, y in points]
    level = statistics.median(values) if values else 0.0
    within = _growth_along([points for points in groups if len(points) >= _FEWEST_POINTS])
    across = _growth_along([middles]) if len(middles) >= _FEWEST_LIVES else None
    allowed = max(TOLERANCE * level, SLACK.get(name, 0.0))
    return Growth(name, level, within, across, _verdict((within, across), allowed))


def _growth_along(groups: Sequence[Sequence[tuple[float, float]]]) -> Estimate | None:
    """The common slope, as growth along the longest group."""
    slope = common_slope(groups)
    if slope is None:
        return None
    longest = max(points[-1][0] - points[0][0] for points in groups)
    return Estimate(slope.value * longest, slope.margin * longest)


def _middle(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(x for x, _ in points), statistics.median(y for _, y in points)


def _verdict(slopes: Iterable[Estimate | None], allowed: float) -> str:
    """Certain growth in one of them is growth; flat is what cannot have grown by more than is allowed."""
    known = [slope for slope in slopes if slope is not None]
    if any(one.value - one.margin > allowed for one in known):
        return "grows"
    return "flat" if known and all(one.value + one.margin <= allowed for one in known) else "unclear"
