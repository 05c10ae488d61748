// The daemon's numbers of the last hour as plots (uPlot, vendored); the daemon keeps the series, the page draws them.

import { get } from "./api.js";
import { make } from "./elements.js";
import { clockTime } from "./words.js";

const HEIGHT = 132;

/**
 * @typedef {{every_s: number, at: number[], appended: number[], commits: number[], commit_seconds: number[],
 *   flush_seconds: number[], memory_bytes: number[], loop_delay_s: number[]}} Series
 */

/** @type {{name: string, unit: string, colour: string, values: (series: Series) => (number | null)[]}[]} */
const PLOTS = [
  { name: "Messages", unit: "per minute", colour: "--assistant", values: (series) => rates(series.appended, series.at, 60) },
  { name: "Time of a commit", unit: "ms", colour: "--user", values: (series) => ratios(series.commit_seconds, series.commits, 1000) },
  { name: "Time of the last flush", unit: "ms", colour: "--summary", values: (series) => series.flush_seconds.map((one) => one * 1000) },
  { name: "Memory", unit: "MB", colour: "--tool", values: (series) => series.memory_bytes.map((one) => one / 1e6) },
  { name: "Longest delay of the event loop", unit: "ms", colour: "--failed", values: (series) => series.loop_delay_s.map((one) => one * 1000) },
];

/**
 * How much a count grew, for each step.
 * @param {number[]} counts
 * @param {number[]} at
 * @param {number} factor
 */
function rates(counts, at, factor) {
  return counts.map((one, place) => (place ? ((one - counts[place - 1]) * factor) / (at[place] - at[place - 1]) : null));
}

/**
 * How much a sum grew for each that was counted; null where nothing was.
 * @param {number[]} sums
 * @param {number[]} counts
 * @param {number} factor
 */
function ratios(sums, counts, factor) {
  return sums.map((one, place) => {
    const grown = place ? counts[place] - counts[place - 1] : 0;
    return grown > 0 ? ((one - sums[place - 1]) * factor) / grown : null;
  });
}

export class Plots {
  constructor() {
    this.box = make("div", { class: "plots" });
    /** @type {{plot: any, now: HTMLElement, frame: HTMLElement}[]} */
    this.drawn = [];
    /** @type {Promise<void> | undefined} */
    this.drawing = undefined;
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(this.box);
  }

  close() {
    this.observer.disconnect();
    for (const { plot } of this.drawn) plot.destroy();
  }

  async refresh() {
    /** @type {Series} */
    const series = await get("v1/statistics/series");
    this.drawing ??= this.draw();
    await this.drawing;
    PLOTS.forEach(({ values, unit, name }, place) => {
      const found = values(series);
      const { plot, now, frame } = this.drawn[place];
      if (series.at.length > 1) plot.setData([series.at, found]); // of a single moment it makes two days
      const newest = found.findLast((one) => one !== null);
      now.textContent = newest === undefined || newest === null ? "" : `${rounded(newest)} ${unit}`;
      frame.setAttribute("aria-label", `${name}: ${now.textContent || "nothing yet"}`);
    });
  }

  /** Few look at the plots, so what draws them is loaded when the plots are opened. */
  async draw() {
    const { default: UPlot } = /** @type {any} */ (await import("./vendor/uPlot.esm.js"));
    const ink = colour(this.box, "--faint");
    const line = colour(this.box, "--line");
    this.drawn = PLOTS.map((one) => {
      const stroke = colour(this.box, one.colour);
      const now = make("b");
      const frame = make("div", { class: "plot", role: "img" });
      this.box.append(make("figure", {}, make("figcaption", {}, `${one.name}, ${one.unit}`, now), frame));
      const axis = { stroke: ink, font: "11px system-ui, sans-serif", grid: { stroke: line, width: 1 }, ticks: { show: false } };
      const options = {
        width: Math.max(frame.clientWidth, 120),
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false, points: { size: 6 } },
        scales: { y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ most) => [0, most > 0 ? most * 1.15 : 1] } },
        axes: [{ ...axis, grid: { show: false }, space: 70, size: 30, incrs: [1, 2, 5, 10, 15, 30, 60].map((minutes) => minutes * 60), values: (/** @type {any} */ _, /** @type {number[]} */ marks) => marks.map((mark) => clockTime(new Date(mark * 1000).toISOString())) }, { ...axis, size: 44, space: 34, values: (/** @type {any} */ _, /** @type {number[]} */ marks) => marks.map(rounded) }],
        series: [{}, { stroke, width: 1.6, fill: stroke.replace("rgb(", "rgba(").replace(")", ", 0.12)"), spanGaps: true, points: { show: false } }],
      };
      return { plot: new UPlot(options, [[], []], frame), now, frame };
    });
  }

  fit() {
    for (const { plot, frame } of this.drawn) plot.setSize({ width: Math.max(frame.clientWidth, 120), height: HEIGHT });
  }
}

/** @param {number} value */
function rounded(value) {
  if (value >= 10_000) return `${Math.round(value / 1000)}k`;
  return value >= 100 ? String(Math.round(value)) : String(Number(value.toPrecision(2)));
}

/**
 * A colour of the page as the canvas wants it.
 * @param {HTMLElement} box
 * @param {string} name
 */
function colour(box, name) {
  const probe = make("i");
  probe.style.color = `var(${name})`;
  box.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
