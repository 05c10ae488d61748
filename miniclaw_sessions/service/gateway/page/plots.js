// The daemon's numbers of the last hour as plots (uPlot, vendored); the daemon keeps the series, the page draws them.

import { get } from "./api.js";
import { make } from "./elements.js";
import { timeOfDay } from "./words.js";

const HEIGHT = 132;

/**
 * @typedef {{every_s: number, at: number[], appended: number[], commits: number[], commit_seconds: number[],
 *   flush_seconds: number[], memory_bytes: number[], loop_delay_s: number[]}} Series
 */

/**
 * `even`: up to this value the scale is even, and logarithmic above: one import or one slow disk flattens nothing else.
 * @type {{name: string, unit: string, colour: string, even?: number, values: (series: Series) => (number | null)[]}[]}
 */
const PLOTS = [
  { name: "Messages", unit: "per minute", colour: "--assistant", even: 10, values: (series) => rates(series.appended, series.at, 60) },
  { name: "Time of a commit", unit: "ms", colour: "--user", even: 5, values: (series) => ratios(series.commit_seconds, series.commits, 1000) },
  { name: "Time of the last flush", unit: "ms", colour: "--summary", even: 10, values: (series) => series.flush_seconds.map((one) => one * 1000) },
  { name: "Memory", unit: "MB", colour: "--tool", values: (series) => series.memory_bytes.map((one) => one / 1e6) },
  { name: "Longest delay of the event loop", unit: "ms", colour: "--failed", even: 10, values: (series) => series.loop_delay_s.map((one) => one * 1000) },
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
    /** @type {{plot: any, now: HTMLElement, top: HTMLElement, frame: HTMLElement}[]} */
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
      const { plot, now, top, frame } = this.drawn[place];
      if (series.at.length > 1) plot.setData([series.at, found]); // of a single moment it makes two days
      const newest = found.findLast((one) => one !== null);
      const peak = peakOf(found);
      now.textContent = newest === undefined || newest === null ? "" : `${rounded(newest)} ${unit}`;
      top.textContent = peak === null ? "" : `peak ${rounded(found[peak] ?? 0)} at ${timeOfDay(series.at[peak])}`;
      frame.setAttribute("aria-label", `${name}: ${now.textContent || "nothing yet"}${top.textContent && `, ${top.textContent}`}`);
    });
  }

  /** Few look at the plots, so what draws them is loaded when the plots are opened. */
  async draw() {
    const { default: UPlot } = /** @type {any} */ (await import("./vendor/uPlot.esm.js"));
    const ink = colour(this.box, "--faint");
    const line = colour(this.box, "--line");
    this.drawn = PLOTS.map((one) => {
      const stroke = colour(this.box, one.colour);
      const [now, top] = [make("b"), make("span")];
      const frame = make("div", { class: "plot", role: "img" });
      this.box.append(make("figure", {}, make("figcaption", {}, make("span", {}, `${one.name}, ${one.unit}`), now, top), frame));
      const axis = { stroke: ink, font: "11px system-ui, sans-serif", grid: { stroke: line, width: 1 }, ticks: { show: false } };
      const options = {
        width: Math.max(frame.clientWidth, 120),
        height: HEIGHT,
        padding: [8, null, null, null], // else half of a label at the top is cut off
        legend: { show: false },
        cursor: { y: false, points: { size: 6 } },
        scales: { y: { ...(one.even ? { distr: 4, asinh: one.even } : {}), range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ most) => [0, most > 0 ? most * (one.even && most > one.even ? 1.6 : 1.15) : 1] } },
        axes: [{ ...axis, grid: { show: false }, space: 70, size: 30, incrs: [1, 2, 5, 10, 15, 30, 60].map((minutes) => minutes * 60), values: (/** @type {any} */ _, /** @type {number[]} */ marks) => marks.map(timeOfDay) }, { ...axis, size: 44, space: 34, ...(one.even ? { splits: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ ___, /** @type {number} */ most) => marksUpTo(most, one.even ?? 1), filter: (/** @type {any} */ _, /** @type {number[]} */ marks) => marks } : {}), values: (/** @type {any} */ _, /** @type {number[]} */ marks) => marks.map(rounded) }],
        series: [{}, { stroke, width: 1.6, fill: stroke.replace("rgb(", "rgba(").replace(")", ", 0.12)"), spanGaps: true, points: { show: false } }],
      };
      return { plot: new UPlot(options, [[], []], frame), now, top, frame };
    });
  }

  fit() {
    for (const { plot, frame } of this.drawn) plot.setSize({ width: Math.max(frame.clientWidth, 120), height: HEIGHT });
  }
}

/**
 * The place of the greatest value, where it stands out; null where nothing does.
 * @param {(number | null)[]} values
 */
function peakOf(values) {
  let best = -1;
  values.forEach((one, place) => {
    if (one !== null && one > 0 && (best < 0 || one > (values[best] ?? 0))) best = place;
  });
  return best < 0 ? null : best;
}

/**
 * Where a scale that is even at first and logarithmic then has its lines.
 * @param {number} most
 * @param {number} even
 */
function marksUpTo(most, even) {
  if (most <= even) return [0, most / 2, most].map((one) => Number(one.toPrecision(1)));
  const marks = [even];
  const step = most / even > 1000 ? 100 : 10;
  for (let mark = even * step; mark <= most; mark *= step) marks.push(mark);
  return marks;
}

/** @param {number} value */
function rounded(value) {
  if (value >= 1e6) return `${Number((value / 1e6).toPrecision(2))}M`;
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
