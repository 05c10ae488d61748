// Keys: one letter each, outside of text fields.

import { ask } from "./dialogs.js";
import { make } from "./elements.js";

/** @typedef {{key: string, name?: string, about?: string, act: () => void}} Key one without a name is listed with another */

/** @param {Key[]} keys */
export function listenToKeys(keys) {
  addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (target.closest("input, textarea, select, dialog, [popover]")) return;
    const found = keys.find((one) => one.key === event.key);
    if (!found) return;
    event.preventDefault();
    found.act();
  });
}

/** @param {Key[]} keys */
export function showKeys(keys) {
  const rows = keys.filter((one) => one.name).flatMap((one) => [make("dt", {}, make("kbd", {}, one.name)), make("dd", {}, one.about)]);
  const writing = [make("dt", {}, make("kbd", {}, "Enter")), make("dd", {}, "send; with Shift a new line"), make("dt", {}, make("kbd", {}, "Esc")), make("dd", {}, "stop the answer, leave a field or a dialog")];
  return ask({ title: "Keys", cancel: null, confirm: "Close", body: [make("dl", { class: "keys" }, ...rows, ...writing)] });
}
