// Labels of sessions: words to find them by, in their metadata, so that every browser shows them.

import { send, sessionPath } from "./api.js";
import { askText } from "./dialogs.js";

const MOST = 10; // as a row of the list has them

/** @param {string[]} labels */
function written(labels) {
  return [...new Set(labels.map((one) => one.replace(/\s+/g, " ").trim()).filter(Boolean))];
}

/**
 * Ask for the labels that some sessions have in common.
 * @param {string[][]} known those of each
 * @returns {Promise<((labels: string[]) => string[]) | null>} what then are the labels of one that had these; null: nothing is changed
 */
export async function askLabels(known) {
  const common = (known[0] ?? []).filter((one) => known.every((labels) => labels.includes(one)));
  const text = await askText({
    title: "Labels", label: "Words to find it by, with commas between them", value: common.join(", "),
    hint: known.length > 1 ? "Those that all of them have; what else one has, it keeps." : `At most ${MOST}. An empty text removes them.`,
  });
  if (text === null) return null;
  const wanted = written(text.split(","));
  return (labels) => written([...labels.filter((one) => !common.includes(one)), ...wanted]).slice(0, MOST);
}

/**
 * @param {string} id
 * @param {string[]} labels
 */
export function setLabels(id, labels) {
  return send("PATCH", sessionPath(id), { metadata: { labels: labels.length ? labels : null } });
}

/**
 * The labels in a session's metadata, which other programs may have written.
 * @param {any} metadata
 * @returns {string[]}
 */
export function labelsIn(metadata) {
  return Array.isArray(metadata.labels) ? metadata.labels.filter((/** @type {unknown} */ one) => typeof one === "string").slice(0, MOST) : [];
}
