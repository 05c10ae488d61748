// The buttons under a message for what is done most; the menu has the rest. One stop of the Tab key: arrows move within.

import { may } from "./access.js";
import { edit } from "./editing.js";
import { iconButton, make } from "./elements.js";
import { answerAgain } from "./versions.js";
import { copyWords, quote } from "./written.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("./articles.js").Article} Article */

/**
 * @param {Conversation} conversation
 * @param {Article} article
 * @param {HTMLElement} more opens the menu
 */
export function addRow(conversation, article, more) {
  const { classList } = article.node;
  const isUser = classList.contains("user");
  const isSaid = isUser || classList.contains("assistant");
  const buttons = [
    isSaid && iconButton("copy", "Copy as Markdown", () => copyWords(conversation, article)),
    isSaid && may("write") && iconButton("again", "Answer again", () => answerAgain(conversation, article)),
    isUser && may("write") && iconButton("edit", "Edit", () => edit(conversation, article)),
    isSaid && may("write") && iconButton("quote", "Quote", () => quote(conversation, article)),
    more,
  ].filter((one) => one instanceof HTMLElement);
  buttons.forEach((one, place) => (one.tabIndex = place ? -1 : 0));
  article.node.append(make("span", { class: "row", role: "toolbar", "aria-label": "What can be done with this message", keydown: moveWithin }, ...buttons));
}

/** @param {KeyboardEvent} event */
function moveWithin(event) {
  const buttons = /** @type {HTMLElement[]} */ ([.../** @type {HTMLElement} */ (event.currentTarget).children]);
  const at = buttons.indexOf(/** @type {any} */ (document.activeElement));
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
  if (to === undefined || at === -1) return;
  event.preventDefault();
  const next = buttons[(to + buttons.length) % buttons.length];
  for (const one of buttons) one.tabIndex = one === next ? 0 : -1;
  next.focus();
}
