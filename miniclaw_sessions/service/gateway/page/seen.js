// What this browser's reader has seen: for each session the number of messages at the last look. Kept in the browser,
// for a bounded number of sessions; other tabs of it learn at once.

const KEY = "seen";
const MOST = 1000;

/** @typedef {{since: number, counts: Record<string, [number, number]>}} Seen by id: the messages, and when they were seen */

/** @returns {Seen} */
function read() {
  try {
    const { since, counts } = JSON.parse(localStorage.getItem(KEY) ?? "");
    if (typeof since === "number" && typeof counts === "object" && counts) return { since, counts };
  } catch {
    // a first visit, or what another program left there
  }
  return { since: Date.now(), counts: {} };
}

/** @type {Seen} */
let seen = read();
keep();
addEventListener("storage", (event) => {
  if (event.key === KEY) seen = read();
});

function keep() {
  try {
    localStorage.setItem(KEY, JSON.stringify(seen));
  } catch {
    // the browser keeps nothing more: then it is known for as long as the page is open
  }
}

/** @param {{session_id: string, message_count: number}} session that is looked at now */
export function see({ session_id: id, message_count: count }) {
  if (document.hidden || seen.counts[id]?.[0] === count) return;
  seen = read();
  delete seen.counts[id]; // the newest stand last
  seen.counts[id] = [count, Date.now()];
  const ids = Object.keys(seen.counts);
  for (const old of ids.slice(0, Math.max(0, ids.length - MOST))) {
    seen.since = Math.max(seen.since, seen.counts[old][1]); // what was forgotten does not come up as new
    delete seen.counts[old];
  }
  keep();
}

/**
 * Whether something was said since the last look; where there was none, since this browser first showed the page.
 * @param {{session_id: string, message_count: number, updated_at: string}} row
 */
export function isUnread({ session_id: id, message_count: count, updated_at: at }) {
  const known = seen.counts[id];
  return known ? count > known[0] : count > 0 && Date.parse(at) > seen.since;
}
