// What was said and is not known to be answered: each message with its key, so that it is said once however often it is
// sent, and oldest first. It is kept for the tab, and so over a reload.

const UNSENT = "unsent";

/** @typedef {{session_id: string, text: string, key: string, files?: number, isSaved?: boolean}} Said */
/** @typedef {"again" | "saved" | "unanswered" | "overtaken" | "back"} Outcome */

/** The files of messages, by key: they are too large to be kept over a reload. @type {Map<string, import("./attachments.js").Attached[]>} */
const carried = new Map();

/** @returns {Said[]} */
function all() {
  return JSON.parse(sessionStorage.getItem(UNSENT) ?? "[]");
}

/** @param {string} session_id */
export function unsent(session_id) {
  return all().filter((one) => one.session_id === session_id);
}

/**
 * The files of a message; null: they were lost with a reload.
 * @param {Said} said
 */
export function filesOf({ key, files }) {
  return files ? (carried.get(key) ?? null) : [];
}

/**
 * @param {Said} said
 * @param {import("./attachments.js").Attached[]} [files]
 */
export function keep(said, files) {
  if (files) carried.set(said.key, files);
  sessionStorage.setItem(UNSENT, JSON.stringify([...all().filter((one) => one.key !== said.key), said]));
}

/** @param {string | undefined} key of what is answered, or refused, or back with its writer */
export function drop(key) {
  carried.delete(key ?? "");
  sessionStorage.setItem(UNSENT, JSON.stringify(all().filter((one) => one.key !== key)));
}

/** @param {string | undefined} key of what the server has, and has not answered yet */
export function markSaved(key) {
  sessionStorage.setItem(UNSENT, JSON.stringify(all().map((one) => (one.key === key ? { ...one, isSaved: true } : one))));
}

/** Ask before the tab is closed with something in it that exists nowhere else. */
export function guardUnsent() {
  addEventListener("beforeunload", (event) => {
    if (all().some((one) => !one.isSaved)) event.preventDefault();
  });
}

/**
 * What becomes of a message that was refused: it is sent `again` with the same key, the server has saved it and it is
 * `unanswered`, or will stay so because it was `overtaken` by a newer message, or it goes `back` to its writer.
 * @param {{type: string, passes: boolean, isUnanswered: boolean}} refused
 * @returns {Outcome}
 */
export function outcomeOf({ type, passes, isUnanswered }) {
  if (type === "duplicate_message") return "overtaken";
  if (type === "message_under_way" || passes) return "again";
  return isUnanswered ? "unanswered" : "back";
}
