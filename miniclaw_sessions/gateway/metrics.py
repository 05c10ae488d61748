"""Numbers for Prometheus: read from the manager when asked, in a registry of their own.

No label ever holds an id, a name or text from a message, so the number of series is fixed (rule S22).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import anyio
from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from miniclaw_sessions.statistics import ManagerStatistics

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_GAUGES = {
    "sessions": "Sessions there are.",
    "cached": "Sessions held in memory.",
    "dirty": "Sessions whose snapshot is behind.",
    "messages_in_memory": "Messages in all windows.",
    "unsaved_entries": "Entries accepted but not yet acknowledged.",
    "unsaved_bytes": "Bytes accepted but not yet acknowledged.",
    "last_flush_seconds": "How long the last flush took.",
}
_COUNTERS = {
    "appended": "Entries accepted.",
    "committed": "Entries acknowledged.",
    "commits": "Group commits.",
    "commit_failures": "Group commits that failed.",
    "flushes": "Flushes.",
    "flush_failures": "Snapshots that could not be written.",
    "snapshots_written": "Snapshots written.",
    "evicted_from_window": "Messages that left a window.",
    "cache_evictions": "Sessions that left the memory.",
    "cache_loads": "Sessions that were loaded again.",
    "quarantined": "Damaged files set aside.",
    "expired": "Sessions that expired.",
    "recovered": "Sessions loaded at the start.",
}


RequestCounts = Counter[tuple[str, int]]
"""How many requests were answered, by what was asked and status."""


class LoopDelay:
    """How late the event loop comes to what is due: what every answer waits for on top of its own work."""

    EVERY_S = 0.25
    BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

    def __init__(self) -> None:
        text = "How late the event loop woke a task that had slept."
        self.histogram = Histogram("miniclaw_event_loop_delay_seconds", text, buckets=self.BUCKETS_S, registry=None)

    async def watch(self) -> None:
        """Measure until cancelled."""
        while True:
            due = anyio.current_time() + self.EVERY_S
            await anyio.sleep_until(due)
            self.histogram.observe(max(0.0, anyio.current_time() - due))


class ManagerCollector(Collector):
    """Turns the manager's statistics into metrics whenever they are asked for."""

    def __init__(self, statistics: Callable[[], ManagerStatistics], requests: RequestCounts) -> None:
        self._statistics = statistics
        self._requests = requests

    def collect(self) -> Iterable[Metric]:
        """All metrics with their values of this moment."""
        statistics = self._statistics()
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"miniclaw_{name}", text, value=getattr(statistics, name))
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"miniclaw_{name}", text, value=getattr(statistics, name))
        ok = statistics.store_state == "ok"
        yield GaugeMetricFamily("miniclaw_store_up", "Whether the store takes messages.", value=float(ok))
        requests = CounterMetricFamily("miniclaw_http_requests", "Requests answered.", labels=("route", "status"))
        for (route, status), count in self._requests.items():
            requests.add_metric((route, str(status)), count)
        yield requests


def make_registry(
    statistics: Callable[[], ManagerStatistics], requests: RequestCounts, delay: LoopDelay
) -> CollectorRegistry:
    """A registry with the manager's, the requests', the event loop's and the process's numbers."""
    registry = CollectorRegistry()
    registry.register(ManagerCollector(statistics, requests))
    registry.register(delay.histogram)
    ProcessCollector(registry=registry)
    return registry


def render(registry: CollectorRegistry) -> bytes:
    """Everything in Prometheus' text format."""
    return generate_latest(registry)
