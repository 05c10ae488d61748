"""Pictures of measurements: one look for all of them, made without a display and small enough for a repository.

Needs the extra `benchmarks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

OURS = "#0072b2"
OTHER = "#9aa5b1"
GOOD = "#009e73"
BAD = "#d55e00"
WARNING = "#e69f00"
INK = "#24292f"
SOFT = "#6e7781"
SERIES = (OURS, WARNING, GOOD, BAD, "#cc79a7", "#56b4e9", SOFT)
"""Colours that people with red-green colour blindness can distinguish."""

DOTS_PER_INCH = 110
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e9ec",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
}


def panels(
    rows: int, columns: int = 1, *, width: float = 10.0, height: float = 6.0, share_x: bool = False
) -> tuple[Figure, list[Axes]]:
    """An empty figure of `width` by `height` inches, and its panels row by row."""
    rcParams.update(_STYLE)
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=share_x)
    return figure, list(axes.flat)


def head(figure: Figure, title: str, subtitle: str = "") -> None:
    """What the picture says, in large, and below it how that was measured."""
    inch = 1 / figure.get_figheight()
    figure.text(0.01, 1 - 0.1 * inch, title, va="top", fontsize=14, fontweight="bold", color=INK)
    figure.text(0.01, 1 - 0.42 * inch, subtitle, va="top", fontsize=9, color=SOFT)
    if isinstance(layout := figure.get_layout_engine(), ConstrainedLayoutEngine):
        layout.set(rect=(0, 0, 1, 1 - 0.65 * inch))


def bars(axes: Axes, values: Mapping[str, float | None], *, ours: str, title: str, number: str = "{:,.0f}") -> None:
    """Horizontal bars with their numbers, the first on top; None is drawn as a missing value.

    Args:
        axes: the panel.
        values: a length for each name.
        ours: the name that is drawn in our colour; those that begin with it are, too.
        title: the panel's title, with the unit and which direction is better.
        number: how a value is written.
    """
    names = list(values)
    lengths = [value or 0.0 for value in values.values()]
    colours = [OURS if name.startswith(ours) else OTHER for name in names]
    drawn = axes.barh(range(len(names)), lengths, color=colours, height=0.7)
    axes.bar_label(drawn, ["n/a" if v is None else number.format(v) for v in values.values()], padding=3, fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.18)
    axes.set_title(title)


def save(figure: Figure, path: Path) -> None:
    """Write the picture as PNG with few colours, which makes it several times smaller.

    Nothing but the picture is in the file: the same numbers give the same bytes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})
    _reduce_colours(path)


def _reduce_colours(path: Path) -> None:
    from PIL import Image  # noqa: PLC0415 - comes with matplotlib

    with Image.open(path) as picture:
        picture.convert("RGB").quantize(64).save(path, optimize=True)
