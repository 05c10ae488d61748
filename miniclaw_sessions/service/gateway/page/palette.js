// A palette of sessions and commands: one field, and a list that the arrows walk through while the field keeps the focus.

import { get } from "./api.js";
import { make } from "./elements.js";
import { nameOf, when } from "./words.js";

const PAUSE_MS = 150;
const RECENT = 7;
const FOUND = 12;
const IS_APPLE = /Mac|iPhone|iPad/.test(navigator.platform);

/** What opens it, for people. */
export const PALETTE_KEY = IS_APPLE ? "⌘K" : "Ctrl K";

/** @typedef {{text: string, hint?: string, about?: string, act: () => void}} Offer what can be chosen */
/** @typedef {{recent: import("./sessions.js").Row[], commands: Offer[], named: (id: string) => string | undefined}} Offered */

/** @param {() => void} open called when its keys are pressed, in a text field, too */
export function listenForPalette(open) {
  addEventListener("keydown", (event) => {
    const isMeant = (IS_APPLE ? event.metaKey : event.ctrlKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k";
    if (!isMeant) return;
    event.preventDefault();
    open();
  });
}

/** Show it until something is chosen, or it is left; the focus then is where it was. @param {Offered} offered */
export function openPalette(offered) {
  if (document.querySelector("dialog[open]")) return;
  new Palette(offered);
}

class Palette {
  /** @param {Offered} offered */
  constructor({ recent, commands, named }) {
    this.recent = recent;
    this.commands = commands;
    this.named = named;
    this.field = make("input", {
      role: "combobox", "aria-expanded": "true", "aria-controls": "offers", "aria-autocomplete": "list", "aria-label": "Find a session, words or a command",
      placeholder: "Sessions, words, commands", autocomplete: "off", spellcheck: "false", dir: "auto",
    });
    this.list = make("div", { id: "offers", role: "listbox", "aria-label": "Sessions and commands" });
    this.told = make("p", { class: "spoken", role: "status" });
    this.dialog = make("dialog", { class: "palette", "aria-label": "Sessions and commands" }, this.field, this.list, this.told);
    /** @type {Offer[]} */
    this.offers = [];
    this.at = 0;
    this.timer = 0;
    /** The last query that was asked for. @type {AbortController | null} */
    this.asking = null;
    this.field.addEventListener("input", () => this.written());
    this.field.addEventListener("keydown", (event) => this.pressed(event));
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    this.dialog.addEventListener("close", () => this.closed());
    document.body.append(this.dialog);
    this.dialog.showModal();
    this.field.focus();
    this.written();
  }

  closed() {
    clearTimeout(this.timer);
    this.asking?.abort();
    this.dialog.remove();
  }

  /** Show at once what fits by its name, and soon what the server finds. */
  written() {
    this.asking?.abort();
    clearTimeout(this.timer);
    this.show([]);
    if (this.field.value.trim()) this.timer = setTimeout(() => this.find(), PAUSE_MS);
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    const last = this.offers.length - 1;
    const to = { ArrowDown: this.at + 1, ArrowUp: this.at - 1, PageDown: Math.min(this.at + 8, last), PageUp: Math.max(this.at - 8, 0) }[event.key];
    if (to !== undefined) this.mark(to);
    else if (event.key === "Enter" && !event.isComposing) this.choose(this.at);
    else return;
    event.preventDefault();
  }

  async find() {
    const query = this.field.value.trim();
    const { signal } = (this.asking = new AbortController());
    const [names, said] = await Promise.all([
      get("v1/sessions", { part: query, limit: RECENT, last_words: true }, signal).catch(() => ({ sessions: [] })),
      get("v1/search", { query, limit: FOUND }, signal).catch(() => ({ results: [] })),
    ]);
    if (signal.aborted) return;
    const marked = this.offers[this.at]?.text;
    this.show([["By their ids", names.sessions.filter((/** @type {any} */ row) => !this.fitting.includes(row.session_id)).map(ofSession)], ["Said", this.newOf(said.results, names.sessions)]]);
    this.mark(Math.max(0, this.offers.findIndex((one) => one.text === marked)));
  }

  /**
   * What was said, but for the words that a session above is called by.
   * @param {any[]} hits
   * @param {any[]} others the sessions above beside those that fit by their names
   */
  newOf(hits, others) {
    const above = new Set([...this.fitting, ...others.map((row) => row.session_id)]);
    const named = hits.map((hit) => ({ hit, name: this.named(hit.session_id) ?? nameOf(hit) }));
    const isAbove = (/** @type {any} */ { hit, name }) => above.has(hit.session_id) && snippetOf(hit).startsWith(name.replace(/…$/, ""));
    return named.filter((one) => !isAbove(one)).map(({ hit, name }) => ofHit(hit, name));
  }

  /** The sessions that fit by their names. @type {string[]} */
  fitting = [];

  /** @param {[string, Offer[]][]} found what the server has found, in groups */
  show(found) {
    const query = this.field.value.trim().toLocaleLowerCase();
    const fits = (/** @type {string} */ text) => text.toLocaleLowerCase().includes(query);
    const rows = this.recent.filter((row) => fits([nameOf(row), ...row.labels].join("\n")));
    this.fitting = rows.slice(0, RECENT).map((row) => row.session_id);
    const commands = this.commands.filter((one) => fits(one.text));
    /** @type {[string, Offer[]][]} */
    const groups = [[query ? "Sessions" : "Recent sessions", rows.slice(0, RECENT).map(ofSession)], ["Commands", commands], ...found];
    this.offers = groups.flatMap(([, some]) => some);
    let number = 0;
    const shown = groups.filter(([, some]) => some.length);
    this.list.replaceChildren(...shown.map(([heading, some]) => make("div", { role: "group", "aria-label": heading }, make("p", { class: "heading", "aria-hidden": "true" }, heading), ...some.map((one) => this.option(one, number++)))));
    this.told.textContent = this.offers.length ? `${this.offers.length} to choose from` : "Nothing fits";
    this.mark(0);
  }

  /**
   * @param {Offer} offer
   * @param {number} place
   */
  option(offer, place) {
    const option = make(
      "div",
      { role: "option", id: `offer-${place}`, "aria-selected": "false", click: () => this.choose(place) },
      make("b", { dir: "auto" }, offer.text),
      offer.hint && make("span", { class: "where" }, offer.hint),
      offer.about && make("span", { class: "snippet", dir: "auto" }, offer.about),
    );
    option.addEventListener("pointermove", () => this.at !== place && this.mark(place, false));
    return option;
  }

  /**
   * @param {number} place
   * @param {boolean} [isScrolled] whether it is scrolled into view
   */
  mark(place, isScrolled = true) {
    const { length } = this.offers;
    this.at = length ? (place + length) % length : 0;
    this.list.querySelectorAll("[role=option]").forEach((option, number) => {
      option.setAttribute("aria-selected", String(number === this.at));
      if (isScrolled && number === this.at) option.scrollIntoView({ block: "nearest" });
    });
    if (length) this.field.setAttribute("aria-activedescendant", `offer-${this.at}`);
    else this.field.removeAttribute("aria-activedescendant");
  }

  /** @param {number} place */
  choose(place) {
    const chosen = this.offers[place];
    if (!chosen) return;
    this.dialog.close();
    chosen.act();
  }
}

/** @param {string} place what the address names */
function open(place) {
  location.hash = `#/session/${place}`;
}

/**
 * @param {import("./sessions.js").Row} row
 * @returns {Offer}
 */
function ofSession(row) {
  return { text: nameOf(row), hint: `${row.channel} · ${when(row.last_accessed)}`, act: () => open(encodeURIComponent(row.session_id)) };
}

/**
 * @param {any} hit
 * @param {string} name
 * @returns {Offer}
 */
function ofHit(hit, name) {
  return { text: name, about: snippetOf(hit), hint: when(hit.said_at), act: () => open(`${encodeURIComponent(hit.session_id)}/${hit.sequence}`) };
}

/** @param {any} hit */
function snippetOf(hit) {
  return hit.snippet.map((/** @type {any} */ piece) => piece.text.replace(/\*\*|`/g, "")).join("");
}
