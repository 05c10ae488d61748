"""The picture of a soak: what was measured over the minutes, and what was done to the daemon meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks import charts
from benchmarks.soak_events import Event
from benchmarks.soak_samples import Sample

MOST_POINTS = 2400
"""In one line: more would only make the picture larger."""


LOWEST_MS = 0.1
"""On a logarithmic scale, which has no place for nothing."""

_PANELS: tuple[tuple[str, dict[str, str], bool], ...] = (
    ("Memory, MB", {"rss_mb": "resident", "pss_mb": "proportional", "own_mb": "heap and stacks"}, False),
    ("Open descriptors and threads", {"descriptors": "descriptors", "threads": "threads"}, False),
    ("Event loop's delay, ms", {"loop_ms": "mean of each second"}, True),
    ("Acknowledgement of a message, ms", {"p99_ms": "p99 of each second", "p50_ms": "median"}, True),
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
            panel.plot(
                *_line(samples, field, LOWEST_MS if is_logarithmic else 0.0), color=colour, label=label, linewidth=1.1
            )
        if is_logarithmic:
            panel.set_yscale("log")
            panel.yaxis.set_major_formatter("{x:g}")
        else:
            panel.set_ylim(bottom=0)
        panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _draw_rate(axes[-1], samples)
    for panel in axes:
        _mark(panel, events)
    _explain_marks(axes[-1])
    axes[-1].set_xlabel("minutes")
    axes[-1].set_xlim(0, max((sample.at for sample in samples), default=60.0) / 60)
    figure.align_ylabels(axes)
    charts.save(figure, path)


def _line(samples: Sequence[Sample], field: str, lowest: float) -> tuple[list[float], list[float]]:
    """Minutes and values, none below `lowest`, with a gap between two lives."""
    step = math.ceil(len(samples) / MOST_POINTS) or 1
    minutes, values, life = [], [], 0
    for sample in samples[::step]:
        if life and sample.life != life:
            minutes.append(sample.at / 60)
            values.append(math.nan)
        life = sample.life
        value = getattr(sample, field)
        minutes.append(sample.at / 60)
        values.append(math.nan if value is None else max(float(value), lowest))
    return minutes, values


def _draw_rate(panel: Axes, samples: Sequence[Sample]) -> None:
    panel.set_title("Messages acknowledged per second")
    step = math.ceil(len(samples) / MOST_POINTS) or 1
    chosen = samples[::step]
    minutes = [sample.at / 60 for sample in chosen[1:]]
    rates = [
        (now.acknowledged - before.acknowledged) / (now.at - before.at) if now.life == before.life else math.nan
        for before, now in pairwise(chosen)
    ]
    panel.plot(minutes, rates, color=charts.OURS, linewidth=1.1)
    panel.set_ylim(bottom=0)


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
