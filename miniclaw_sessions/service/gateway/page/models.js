// Which model answers in a conversation, and how much it thinks: a menu in its head, where there is something to choose.

import { may } from "./access.js";
import { get } from "./api.js";
import { icon, make } from "./elements.js";
import { openMenu } from "./menu.js";
import { attempt } from "./notices.js";

/**
 * @typedef {{id: string, owned_by: string, thinking_levels: string[]}} Model
 * @typedef {{provider?: string, model?: string, thinking_level?: string | null}} Change as the session's `PATCH` takes it
 * @typedef {{chosen_model: string | null, chosen_level: string | null}} Chosen
 */

export class ModelMenu {
  /**
   * @param {() => Chosen} chosen what was chosen
   * @param {(change: Change) => Promise<unknown>} choose
   */
  constructor(chosen, choose) {
    this.chosen = chosen;
    this.choose = choose;
    /** @type {Model[]} */
    this.models = [];
    this.name = make("span", { dir: "auto" });
    this.button = make("button", { type: "button", class: "model", hidden: true, "aria-haspopup": "menu", "aria-expanded": "false", click: () => openMenu(this.button, this.choices()) }, icon("model"), this.name);
  }

  /** Ask which there are. */
  learn() {
    return attempt(async () => {
      this.models = (await get("v1/models")).data;
      this.draw();
    });
  }

  /** The model that answers here. */
  get current() {
    return this.models.find((one) => one.id === this.chosen().chosen_model) ?? this.models[0];
  }

  /** The level at which it thinks; empty: its own. */
  get level() {
    const { chosen_level: level } = this.chosen();
    return level && this.current?.thinking_levels.includes(level) ? level : "";
  }

  draw() {
    const { current, level } = this;
    this.button.hidden = !may("write") || !this.choices().length;
    if (!current) return;
    this.name.textContent = level ? `${current.id} · ${level}` : current.id;
    this.button.title = `Model: ${current.id}${level ? `, thinking: ${level}` : ""}`;
    this.button.setAttribute("aria-label", this.button.title);
  }

  /** What can be chosen, as a menu has it. */
  choices() {
    const { models, current, level } = this;
    const ofModels = models.length < 2 ? [] : models.map((one) => this.choice("Model", one.id, one === current, { provider: one.owned_by, model: one.id }));
    const levels = current?.thinking_levels.length ? ["", ...current.thinking_levels] : [];
    return [...ofModels, ...levels.map((one) => this.choice("Thinking", one || "default", one === level, { thinking_level: one || null }))];
  }

  /**
   * @param {string} group
   * @param {string} text
   * @param {boolean} checked
   * @param {Change} change
   */
  choice(group, text, checked, change) {
    const act = async () => {
      if (checked) return; // else the conversation would have a note of no change
      await attempt(() => this.choose(change));
      this.draw();
    };
    return { group, text, checked, act };
  }
}
