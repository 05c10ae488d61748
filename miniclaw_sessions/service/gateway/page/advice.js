// What to do about a sentence of the daemon's health: where to look, and what can be done from here.

import { make } from "./elements.js";

const SESSION = /(?:^|\bsession )([A-Za-z0-9%.-]+_[^\s:,;"']+)/;

/** What is found in a problem, and what helps; the first that fits is shown. @type {[RegExp, string, ("flush" | "check" | null)][]} */
const HELP = [
  [/no space|disk is full|full/i, "Make room on the disk of the workspace; what waits is then saved by itself.", "flush"],
  [/file descriptors/i, "Raise LimitNOFILE in the service's unit, and look for clients that leave connections open.", null],
  [/could not be written|last flush failed/i, "The messages are in the store. Look at the disk and at the owner of the directory, then write the files again.", "flush"],
  [/cannot be used|unreachable|connect/i, "Messages wait in memory and are saved when the store is back. Look whether its disk or its server is there.", null],
  [/damage|corrupt|malformed/i, "Check everything to see how far it goes, then restore a backup, or repair it with the command check --repair.", "check"],
  [/not acknowledged/i, "What is said in it now is not saved. Check everything to see whether the store is sound.", "check"],
  [/lost with a former store/i, "Restore a backup that has them, or acknowledge the loss.", null],
];

/**
 * A problem, with what leads on.
 * @param {string} sentence
 * @param {{flush?: () => void, check?: () => void}} acts what the token may do
 */
export function problem(sentence, acts) {
  const [, help, act] = HELP.find(([pattern]) => pattern.test(sentence)) ?? [null, "The daemon's log says more about it.", "check"];
  const session = SESSION.exec(sentence)?.[1];
  const names = { flush: "Write all files now", check: "Check everything" };
  const doIt = act && acts[act];
  return make(
    "li",
    {},
    make("span", {}, asSentence(sentence)),
    make("span", { class: "hint" }, help),
    session && make("a", { class: "button", href: `#/session/${encodeURIComponent(session)}` }, "Open the session"),
    doIt && make("button", { type: "button", click: doIt }, names[/** @type {"flush" | "check"} */ (act)]),
  );
}

/**
 * A reason as a sentence of its own; the name of a session stays as it is.
 * @param {string} text
 */
function asSentence(text) {
  const begun = text.search(SESSION) === 0 && !text.startsWith("session ") ? text : text.slice(0, 1).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}
