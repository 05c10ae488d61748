// The list as lines with their places: headings by day, and rows. Which are in sight is found without looking at all.

import { dayOf } from "./words.js";

export const ROW_PX = 66;
export const HEADING_PX = 30;

/**
 * @typedef {import("./sessions.js").Row} Row
 * @typedef {{top: number, height: number, key: string, heading: string} | {top: number, height: number, key: string, row: Row, place: number}} Line
 */

/**
 * The lines, and the rows in their order: those that are pinned first.
 * @param {Row[]} rows by time
 * @returns {{lines: Line[], ordered: Row[], height: number}}
 */
export function linesOf(rows) {
  const ordered = [...rows.filter((row) => row.pinned), ...rows.filter((row) => !row.pinned)];
  /** @type {Line[]} */
  const lines = [];
  let [top, last] = [0, ""];
  const midnight = new Date().setHours(0, 0, 0, 0);
  ordered.forEach((row, place) => {
    const heading = row.pinned ? "Pinned" : dayOf(row.last_accessed, midnight);
    if (heading !== last) {
      lines.push({ top, height: HEADING_PX, key: ` ${heading}`, heading });
      top += HEADING_PX;
      last = heading;
    }
    lines.push({ top, height: ROW_PX, key: row.session_id, row, place });
    top += ROW_PX;
  });
  return { lines, ordered, height: top };
}

/**
 * The first line that ends below a place.
 * @param {Line[]} lines
 * @param {number} top
 */
export function firstBelow(lines, top) {
  let [low, high] = [0, lines.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lines[middle].top + lines[middle].height > top) high = middle;
    else low = middle + 1;
  }
  return low;
}
