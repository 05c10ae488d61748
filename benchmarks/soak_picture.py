"""The picture of a soak: what was measured over the minutes, and what was done to the daemon meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks import charts
from benchmarks.soak_events import Event
from benchmarks.soak_samples import Sample

MOST_POINTS = 400
"""In one line; of a longer run each is the mean of several seconds."""


LOWEST_MS = 0.1
"""On a logarithmic scale, which has no place for nothing."""

_PANELS: tuple[tuple[str, dict[str, str], bool], ...] = (
    ("Memory, MB", {"rss_mb": "resident", "pss_mb": "proportional", "own_mb": "heap and stacks"}, False),
    ("Open descriptors and threads", {"descriptors": "descriptors", "threads": "threads"}, False),
    ("Event loop's delay, ms", {"loop_ms": "mean"}, True),
    ("Acknowledgement of a message, ms", {"p99_ms": "p99", "p50_ms": "median"}, True),
    ("Entries not yet acknowledged", {"unsaved": "entries"}, False),
)
"""Title, the lines with their names, and whether the scale is logarithmic."""


def draw(path: Path, title: str, subtitle: str, samples: Sequence[Sample], events: Sequence[Event]) -> None:
    """Write the picture."""
    figure, axes = charts.panels(len(_PANELS) + 1, width=11, height=12.5, share_x=True)
    charts.head(figure, title, subtitle)
    for panel, (name, lines, is_logarithmic) in zip(axes, _PANELS, strict=False):
        panel.set_title(name)
        for colour, (field, label) in zip(charts.SERIES, lines.items(), strict=False):
            value = partial(_mean, field, LOWEST_MS if is_logarithmic else 0.0)
            panel.plot(*_line(samples, value), color=colour, label=label, linewidth=1.1)
        if is_logarithmic:
            panel.set_yscale("log")
            panel.yaxis.set_major_formatter("{x:g}")
        else:
            panel.set_ylim(bottom=0)
        panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes[-1].set_title("Messages acknowledged per second")
    axes[-1].plot(*_line(samples, _rate), color=charts.OURS, linewidth=1.1)
    axes[-1].set_ylim(bottom=0)
    for panel in axes:
        _mark(panel, events)
    _explain_marks(axes[-1])
    axes[-1].set_xlabel("minutes")
    axes[-1].set_xlim(0, max((sample.at for sample in samples), default=60.0) / 60)
    figure.align_ylabels(axes)
    charts.save(figure, path)


def _line(samples: Sequence[Sample], value: Callable[[list[Sample]], float]) -> tuple[list[float], list[float]]:
    """Minutes and values, with a gap between two lives."""
    step = math.ceil(len(samples) / MOST_POINTS)
    minutes, values = [], []
    for _, samples_of_life in groupby(samples, key=lambda sample: sample.life):
        life = list(samples_of_life)
        for start in range(0, len(life), step):
            minutes.append(life[start].at / 60)
            values.append(value(life[start : start + step + 1]))
        minutes.append(life[-1].at / 60)
        values.append(math.nan)
    return minutes, values


def _mean(field: str, lowest: float, group: list[Sample]) -> float:
    known = [float(value) for sample in group if (value := getattr(sample, field)) is not None]
    return max(fmean(known), lowest) if known else math.nan


def _rate(group: list[Sample]) -> float:
    first, last = group[0], group[-1]
    return (last.acknowledged - first.acknowledged) / (last.at - first.at) if last is not first else math.nan


def _mark(panel: Axes, events: Sequence[Event]) -> None:
    for event in events:
        if event.kind == "full":
            panel.axvspan(event.at / 60, event.until / 60, color=charts.WARNING, alpha=0.25, linewidth=0)
        else:
            is_kill = event.kind == "kill"
            colour, style = (charts.BAD, "-") if is_kill else (charts.SOFT, "--")
            panel.axvline(event.at / 60, color=colour, linestyle=style, linewidth=0.8, alpha=0.8)


def _explain_marks(panel: Axes) -> None:
    handles = [
        Line2D([], [], color=charts.BAD, linewidth=1),
        Line2D([], [], color=charts.SOFT, linestyle="--", linewidth=1),
        Patch(color=charts.WARNING, alpha=0.25),
    ]
    panel.legend(handles, ["kill -9", "SIGTERM", "disk full"], loc="upper left", bbox_to_anchor=(1.0, 1.0))
