// Short messages at the bottom of the page, read out by screen readers, gone after a while.

import { Refused } from "./api.js";
import { find, make } from "./elements.js";

const SHOWN_MS = 6_000;

/**
 * @param {string} text
 * @param {{failed?: boolean}} [how]
 */
export function notify(text, how = {}) {
  const notice = make("p", { class: how.failed ? "notice failed" : "notice" }, text);
  for (const old of [...find("notices").children]) if (old.textContent === text || !(how.failed || old.matches(".failed"))) old.remove();
  find("notices").append(notice);
  setTimeout(() => notice.remove(), SHOWN_MS);
  return notice;
}

/**
 * Do something that may fail, and say so if it does.
 * @template T
 * @param {() => Promise<T>} act
 * @returns {Promise<T | undefined>}
 */
export async function attempt(act) {
  try {
    return await act();
  } catch (error) {
    if (!(error instanceof Error)) throw error;
    const isSaid = error.name === "AbortError" || (error instanceof Refused && error.status === 401); // a form asks for the token
    if (!isSaid) notify(error.message, { failed: true });
    return undefined;
  }
}
