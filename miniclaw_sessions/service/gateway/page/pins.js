// Pinned sessions stand first. That one is pinned is in its metadata, so every browser learns it with its row. A list by
// time has no place for those of long ago: this browser remembers which it has met, and asks for these by their names.

import { Refused, get, send, sessionPath } from "./api.js";
import { labelsIn } from "./labels.js";

const KEY = "pinned";
const MOST = 60;

/** @typedef {import("./sessions.js").Row} Row */

/** Those that the list has no row of, as they were last read. @type {Map<string, Row>} */
const read = new Map();

/** @param {string} id of a session that has changed */
export function readAgain(id) {
  read.delete(id);
}

/** @returns {string[]} */
function known() {
  try {
    const ids = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(ids) ? ids.filter((one) => typeof one === "string").slice(0, MOST) : [];
  } catch {
    return [];
  }
}

/**
 * Learn from rows that have come which sessions are pinned, and find those that are not among them.
 * @param {Row[]} rows
 * @returns {Promise<Row[]>}
 */
export async function pinnedBeside(rows) {
  const shown = new Map(rows.map((row) => [row.session_id, row]));
  const before = known();
  const absent = await Promise.all(before.filter((id) => !shown.has(id)).map(one));
  const beside = absent.filter((row) => row !== null);
  const still = new Set(beside.map((row) => row.session_id));
  const kept = before.filter((id) => still.has(id) || shown.get(id)?.pinned);
  const met = rows.filter((row) => row.pinned && !kept.includes(row.session_id)).map((row) => row.session_id);
  const ids = JSON.stringify([...kept, ...met].slice(0, MOST));
  if (ids !== JSON.stringify(before)) localStorage.setItem(KEY, ids);
  return beside;
}

/**
 * @param {string} id
 * @returns {Promise<Row | null>} null where it is gone, or pinned no more
 */
async function one(id) {
  const found = read.get(id);
  if (found) return found;
  try {
    const session = await get(sessionPath(id), { last_words: true });
    if (session.metadata.pinned !== true) return null;
    read.set(id, { ...session, pinned: true, labels: labelsIn(session.metadata), linked: session.linked ?? [], lost: 0 });
    return read.get(id) ?? null;
  } catch (error) {
    if (error instanceof Refused) return null;
    throw error;
  }
}

/**
 * @param {string} id
 * @param {boolean} isPinned
 */
export function pin(id, isPinned) {
  return send("PATCH", sessionPath(id), { metadata: { pinned: isPinned || null } });
}
