// A button at each block of code, which copies it.

import { make } from "./elements.js";

const SHOWN_MS = 2000;
const NAME = "Copy the code";

/**
 * Give the blocks of code their buttons.
 * @param {ParentNode} within what the server rendered
 */
export function addCopyButtons(within) {
  for (const block of within.querySelectorAll("div.code")) {
    if (block.querySelector(":scope > button.copy")) continue;
    const button = make("button", { type: "button", class: "copy", "aria-label": NAME });
    button.addEventListener("click", () => copyCode(button, /** @type {HTMLElement} */ (block.querySelector("pre"))));
    block.append(button);
  }
}

/**
 * Copy the code; where the browser allows no copying, mark it for the keys that do.
 * @param {HTMLButtonElement} button
 * @param {HTMLElement} code
 */
async function copyCode(button, code) {
  let done = "copied";
  try {
    await navigator.clipboard.writeText(code.textContent ?? "");
  } catch {
    getSelection()?.selectAllChildren(code);
    done = "marked";
  }
  button.classList.add(done);
  button.setAttribute("aria-label", done === "copied" ? "Copied" : "Marked: copy it with Ctrl C");
  setTimeout(() => {
    button.classList.remove(done);
    button.setAttribute("aria-label", NAME);
  }, SHOWN_MS);
}
