"""Numbers for Prometheus, in a registry of their own.

The manager's counts are read when Prometheus asks; `telemetry` counts what happens in the daemon.
No label ever holds an id, a name that a caller chose, or text from a message, so the number of series is bounded (rule
S22). docs/reference/metrics-and-traces.md explains each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
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
    "followers": "Clients that follow a session, or watch all of them.",
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
    "cache_loads": "Sessions that were loaded from disk.",
    "quarantined": "Damaged files set aside.",
    "expired": "Sessions that expired.",
    "recovered": "Sessions that were there at the start.",
}

_FAST_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_SLOW_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0)
_ENTRIES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


class Metrics:
    """All numbers of a daemon.

    Attributes:
        registry: holds them; further numbers are registered here.
    """

    def __init__(self, statistics: Callable[[], ManagerStatistics]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # one more series for each, of which Prometheus makes nothing in this format
        self.registry = registry = CollectorRegistry()
        registry.register(ManagerCollector(statistics))
        ProcessCollector(registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"miniclaw_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Iterable[float], *labels: str) -> Histogram:
            return Histogram(f"miniclaw_{name}", text, labels, buckets=tuple(buckets), registry=registry)

        self.requests = counter("http_requests", "Requests answered.", "route", "status")
        self.request_seconds = histogram("http_request_seconds", "From a request to its reply's end.", _FAST_S, "route")
        self.refused = counter("http_refused", "Requests that the caller may not make.", "scope", "status")

        self.received = counter("messages_received", "Messages that were handed over to be answered.", "channel")
        self.ended = counter("messages_ended", "What became of them.", "channel", "outcome")

        self.turns = counter("turns", "Turns of the agent.", "channel", "outcome")
        self.turns_running = Gauge("miniclaw_turns_running", "Turns that are open.", registry=registry)
        self.turn_seconds = histogram("turn_seconds", "From the question to the turn's end.", _SLOW_S, "channel")
        self.first_token_seconds = histogram(
            "first_token_seconds", "From the question to the first piece of the answer's text.", _SLOW_S, "channel"
        )
        self.compactions = counter("compactions", "Conversations that were to be summarized in a turn.", "status")

        self.tool_calls = counter("tool_calls", "Tools called.", "tool", "outcome")
        self.tool_seconds = histogram("tool_seconds", "How long a tool ran.", _SLOW_S, "tool")

        model = ("provider", "model")
        self.model_requests = counter("model_requests", "Requests to a model.", *model, "outcome")
        self.model_seconds = histogram("model_seconds", "From a request to its reply's end.", _SLOW_S, *model)
        self.model_first_token_seconds = histogram(
            "model_first_token_seconds", "From a request to the first piece of its text.", _SLOW_S, *model
        )
        self.model_tokens = counter("model_tokens", "Tokens, as the model's service counts them.", *model, "kind")
        self.model_cost = counter(
            "model_cost", "What they cost, as the service says, or by the prices that are set.", *model
        )

        self.commit_seconds = histogram("commit_seconds", "How long a group commit took.", _FAST_S)
        self.commit_entries = histogram("commit_entries", "Entries of a group commit.", _ENTRIES)
        self.flush_seconds = histogram("flush_seconds", "How long a flush took.", _SLOW_S)

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)


class ManagerCollector(Collector):
    """Turns the manager's statistics into metrics whenever they are asked for."""

    def __init__(self, statistics: Callable[[], ManagerStatistics]) -> None:
        self._statistics = statistics

    def collect(self) -> Iterable[Metric]:
        """All metrics with their values of this moment."""
        statistics = self._statistics()
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"miniclaw_{name}", text, value=getattr(statistics, name))
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"miniclaw_{name}", text, value=getattr(statistics, name))
        ok = statistics.store_state == "ok"
        yield GaugeMetricFamily("miniclaw_store_up", "Whether the store takes messages.", value=float(ok))

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not ask a manager that is not open yet."""
        return ()
