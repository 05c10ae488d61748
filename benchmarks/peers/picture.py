"""The results as one picture. Needs the extra `benchmarks`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes

from benchmarks import charts
from benchmarks.peers.cuts import KILL, Outcome
from benchmarks.peers.report import Report, number, reading, writing


def draw(report: Report, path: Path) -> None:
    """Six panels: what is written, read, held and lost."""
    figure, panels = charts.panels(2, 3, width=11.0, height=6.2)
    largest = report.plan.sizes[-1]
    titles = {
        "appends_100": "Acknowledged appends per second,\n100 sessions (more is better)",
        f"append_{largest}": f"An append to a session of\n{largest:,} messages, us (less is better)",
        f"latest_{largest}": f"The newest 50 of {largest:,}\nmessages, us (less is better)",
        "open": f"Opening {report.plan.many:,} sessions,\nms (less is better)",
        "memory": "Memory then,\nMB (less is better)",
    }
    known = {column.key for column in (*writing(report.plan), *reading(report.plan))}
    assert titles.keys() <= known
    for axes, (key, title) in zip(panels, titles.items(), strict=False):
        values = {measured.peer.short: measured.numbers.get(key) for measured in report.stores}
        _bars(axes, values, title, is_first=axes in (panels[0], panels[3]), logarithmic=key != "memory")
    _lost(panels[5], report)
    if (engine := figure.get_layout_engine()) is not None:
        engine.set(rect=(0, 0, 1, 0.88))  # type: ignore[call-arg]  # below the title, which has no place of its own
    charts.head(
        figure,
        "The same work on our stores and on those of other frameworks",
        f"{report.date}, {report.machine['cores']} cores, {report.machine['file system']}; blue is ours; "
        "the scales are logarithmic but for memory and loss; the bare loop shows what the disk can do",
    )
    charts.save(figure, path)


def _bars(axes: Axes, values: Mapping[str, float | None], title: str, *, is_first: bool, logarithmic: bool) -> None:
    charts.bars(axes, values, ours="ours", title=title)
    for text, value in zip(axes.texts, values.values(), strict=True):
        text.set_text(number(value) or "not measured")
    there = [value for value in values.values() if value]
    if logarithmic and there:
        axes.set_xscale("log")
        axes.set_xlim(min(there) / 3, max(there) * 8)
        axes.minorticks_off()
    axes.tick_params(axis="x", length=0, labelbottom=False)  # every bar has its number
    axes.grid(visible=False)
    if not is_first:
        axes.set_yticks(axes.get_yticks(), [""] * len(values))


def _lost(axes: Axes, report: Report) -> None:
    """The share of acknowledged messages that both file systems lost with their power."""
    values: dict[str, float | None] = {}
    for measured in report.stores:
        outcomes = [one for one in report.cuts.get(measured.peer.name, ()) if one.kind != KILL]
        values[measured.peer.short] = _share(outcomes)
    cuts = max((one.trials for outcomes in report.cuts.values() for one in outcomes), default=0) * 2
    _bars(axes, values, f"Acknowledged messages lost\nin {cuts} power cuts, %", is_first=False, logarithmic=False)
    axes.set_xlim(0, 130)
    for bar, text, value in zip(axes.patches, axes.texts, values.values(), strict=True):
        bar.set_color(charts.BAD)
        text.set_text("not measured" if value is None else f"{value:.0f}" if value in (0, 100) else f"{value:.1f}")
        text.set_color(charts.BAD if value else charts.INK)


def _share(outcomes: list[Outcome]) -> float | None:
    acknowledged = sum(one.acknowledged for one in outcomes)
    return 100 * sum(one.lost for one in outcomes) / acknowledged if acknowledged else None
