// A list of things that can be done, opened by a button: arrows move, Escape and a click elsewhere close it.

import { make } from "./elements.js";

/**
 * @typedef {{text: string, act: () => void, danger?: boolean, hint?: string, group?: string, checked?: boolean}} Choice of
 *   those of a group, which stand together, one is checked
 */

/**
 * @param {HTMLElement} button
 * @param {(Choice | null)[]} choices null draws a line
 */
export function openMenu(button, choices) {
  const menu = make("div", { class: "menu", role: "menu", "aria-label": button.title || null, popover: "auto" });
  /** @type {HTMLElement} */
  let box = menu;
  let group = "";
  for (const choice of choices) {
    if (!choice) {
      menu.append(make("hr"));
      continue;
    }
    if ((choice.group ?? "") !== group) {
      group = choice.group ?? "";
      box = group ? make("div", { role: "group", "aria-label": group }, make("p", { class: "heading", "aria-hidden": "true" }, group)) : menu;
      if (group) menu.append(box);
    }
    box.append(item(menu, choice));
  }
  menu.addEventListener("keydown", (event) => move(menu, event));
  menu.addEventListener("toggle", (event) => {
    const isOpen = /** @type {ToggleEvent} */ (event).newState === "open";
    button.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) return;
    if (menu.contains(document.activeElement)) button.focus();
    menu.remove();
  });
  (button.closest("#main, #side, #tree") ?? document.body).append(menu);
  menu.showPopover();
  place(menu, button.getBoundingClientRect());
  /** @type {HTMLElement} */ (menu.querySelector("button")).focus();
}

/**
 * @param {HTMLElement} menu
 * @param {Choice} choice
 */
function item(menu, choice) {
  const act = () => {
    menu.hidePopover();
    choice.act();
  };
  const isOne = choice.checked !== undefined;
  const hint = choice.hint && make("span", { class: "hint" }, choice.hint);
  const kind = { role: isOne ? "menuitemradio" : "menuitem", "aria-checked": isOne ? String(choice.checked) : null };
  return make("button", { type: "button", ...kind, class: choice.danger ? "danger" : null, click: act }, choice.text, hint);
}

/**
 * @param {HTMLElement} menu
 * @param {DOMRect} beside
 */
function place(menu, beside) {
  const { offsetWidth: width, offsetHeight: height } = menu;
  const isBelow = beside.bottom + height + 12 < innerHeight || beside.top < height + 12;
  const top = isBelow ? beside.bottom + 4 : beside.top - height - 4;
  menu.style.left = `${Math.max(8, Math.min(beside.right - width, innerWidth - width - 8))}px`;
  menu.style.top = `${Math.max(8, Math.min(top, innerHeight - height - 8))}px`;
}

/**
 * @param {HTMLElement} menu
 * @param {KeyboardEvent} event
 */
function move(menu, event) {
  const items = [...menu.querySelectorAll("button")];
  const at = items.indexOf(/** @type {any} */ (document.activeElement));
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  items[(to + items.length) % items.length].focus();
}
