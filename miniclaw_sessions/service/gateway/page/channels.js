// The list of one channel: a small menu of the channels that this browser has met.

import { find, make } from "./elements.js";
import { attempt } from "./notices.js";

const KEY = "channels";
const MOST = 60;

export class Channels {
  /** @param {import("./sessions.js").SessionList} list */
  constructor(list) {
    this.list = list;
    this.field = find("channel");
    const kept = (localStorage.getItem(KEY) ?? "").split(",").filter(Boolean);
    /** @type {Set<string>} */
    this.names = new Set();
    this.learn(kept);
    this.field.addEventListener("change", () => attempt(() => list.sift(this.field.value || null)));
  }

  /** @param {string[]} names */
  learn(names) {
    const before = this.names.size;
    for (const name of names) if (this.names.size < MOST) this.names.add(name);
    if (this.names.size === before) return;
    const sorted = [...this.names].sort();
    localStorage.setItem(KEY, sorted.join(","));
    const chosen = this.field.value;
    this.field.replaceChildren(make("option", { value: "" }, "All channels"), ...sorted.map((name) => make("option", { value: name }, name)));
    this.field.value = chosen;
    this.field.hidden = sorted.length < 2;
  }
}
