// What was said and is not known to be saved: each message with its key, so that it is said once however often it is sent.
// It is kept for the tab, and so over a reload.

const UNSENT = "unsent";

/** @typedef {{session_id: string, text: string, key: string}} Said */
/** @typedef {"again" | "saved" | "unanswered" | "back"} Outcome */

/** @returns {Said[]} */
function all() {
  return JSON.parse(sessionStorage.getItem(UNSENT) ?? "[]");
}

/** @param {string} session_id */
export function unsent(session_id) {
  return all().filter((one) => one.session_id === session_id);
}

/** @param {Said} said */
export function keep(said) {
  sessionStorage.setItem(UNSENT, JSON.stringify([...all().filter((one) => one.key !== said.key), said]));
}

/** @param {string | undefined} key of what the server has, or its writer */
export function drop(key) {
  sessionStorage.setItem(UNSENT, JSON.stringify(all().filter((one) => one.key !== key)));
}

/** Ask before the tab is closed with something in it that exists nowhere else. */
export function guardUnsent() {
  addEventListener("beforeunload", (event) => {
    if (all().length) event.preventDefault();
  });
}

/**
 * What becomes of a message that was refused: it is sent `again` with the same key, the server has `saved` and answered
 * it, or has saved it and it is `unanswered`, or it goes `back` to its writer.
 * @param {{type: string, passes: boolean, isUnanswered: boolean}} refused
 * @returns {Outcome}
 */
export function outcomeOf({ type, passes, isUnanswered }) {
  if (type === "duplicate_message") return "saved";
  if (type === "message_under_way" || passes) return "again";
  return isUnanswered ? "unanswered" : "back";
}
