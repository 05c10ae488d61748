// The list of sessions: pages are fetched while it is scrolled, and only the rows in sight are in the document, so that
// ten thousand cost no more than ten.

import { get } from "./api.js";
import { find, make } from "./elements.js";
import { attempt } from "./notices.js";
import { moment, nameOf, when } from "./words.js";

const PAGE = 60;
const ROW_PX = 66;
const BEYOND = 8;
const AGAIN_MS = 400;

/**
 * @typedef {{session_id: string, channel: string, chat_id: string, title: string | null, last_words: string | null,
 *   first_words: string | null, last_accessed: string, updated_at: string, message_count: number, lost: number}} Row
 */

export class SessionList {
  /** @param {() => void} changed called after each change of the rows */
  constructor(changed) {
    this.changed = changed;
    this.scroll = find("list");
    /** @type {HTMLUListElement} */
    this.ul = this.scroll.querySelector("ul");
    /** @type {Row[]} */
    this.rows = [];
    /** @type {string | null} */
    this.next = null;
    this.isLoaded = false;
    this.chosen = "";
    /** @type {Set<string>} the sessions that are being answered */
    this.answering = new Set();
    /** @type {Map<string, HTMLLIElement>} */
    this.drawn = new Map();
    this.isLoading = false;
    this.timer = 0;
    this.frame = 0;
    /** What is in sight, as far as is known without a layout; at first as much as there may be. */
    this.sight = { top: 0, height: screen.height };
    this.scroll.addEventListener("scroll", () => this.look(), { passive: true });
    new ResizeObserver(() => this.look()).observe(this.scroll);
    setInterval(() => this.draw({ stale: true }), 60_000); // "5 min" gets older
  }

  /** Read the newest sessions again; those further down stay as they were. */
  async refresh() {
    const page = await get("v1/sessions", { limit: PAGE, last_words: true });
    const fresh = new Set(page.sessions.map((/** @type {Row} */ row) => row.session_id));
    const last = page.sessions.at(-1)?.last_accessed ?? "";
    const older = page.next === null ? [] : this.rows.filter((row) => !fresh.has(row.session_id) && row.last_accessed <= last);
    if (!older.length) this.next = page.next;
    this.rows = [...page.sessions, ...older];
    this.isLoaded = this.isStale = true;
    this.scroll.classList.toggle("empty", !this.rows.length);
    this.drawNow();
    this.changed();
  }

  /** `refresh` soon, once for all who ask for it. */
  refreshSoon() {
    this.timer ||= setTimeout(() => {
      this.timer = 0;
      attempt(() => this.refresh());
    }, AGAIN_MS);
  }

  async more() {
    if (this.isLoading || this.next === null) return;
    this.isLoading = true;
    try {
      const page = await get("v1/sessions", { limit: PAGE, last_words: true, after: this.next });
      const known = new Set(this.rows.map((row) => row.session_id));
      this.rows.push(...page.sessions.filter((/** @type {Row} */ row) => !known.has(row.session_id)));
      this.next = page.next;
    } finally {
      this.isLoading = false;
    }
    this.draw();
  }

  look() {
    this.sight = { top: this.scroll.scrollTop, height: this.scroll.clientHeight };
    this.draw();
  }

  /** @param {string} id */
  choose(id) {
    if (id === this.chosen) return;
    this.chosen = id;
    this.draw({ stale: true });
  }

  /**
   * @param {string} id
   * @param {boolean} isAnswering
   */
  setAnswering(id, isAnswering) {
    if (isAnswering) this.answering.add(id);
    else this.answering.delete(id);
    this.draw({ stale: true });
  }

  /**
   * The session above or below the chosen one.
   * @param {number} by
   */
  beside(by) {
    const at = this.rows.findIndex((row) => row.session_id === this.chosen);
    return this.rows[Math.min(Math.max(at + by, 0), this.rows.length - 1)];
  }

  /** @param {{stale?: boolean}} [how] `stale`: rows that are drawn may have changed */
  draw({ stale = false } = {}) {
    this.isStale ||= stale;
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.drawNow();
    });
  }

  isStale = false;

  drawNow() {
    const { top, height } = this.sight;
    const first = Math.max(0, Math.floor(top / ROW_PX) - BEYOND);
    const end = Math.min(this.rows.length, Math.ceil((top + height) / ROW_PX) + BEYOND);
    this.ul.style.height = `${this.rows.length * ROW_PX}px`;
    const kept = new Map();
    const focused = document.activeElement?.closest?.("li")?.dataset.id;
    for (let place = first; place < end; place++) {
      const row = this.rows[place];
      const known = this.isStale ? undefined : this.drawn.get(row.session_id);
      const item = known ?? this.item(row);
      item.style.transform = `translateY(${place * ROW_PX}px)`;
      item.setAttribute("aria-posinset", String(place + 1));
      item.setAttribute("aria-setsize", String(this.next === null ? this.rows.length : -1));
      kept.set(row.session_id, item);
    }
    this.isStale = false;
    this.ul.replaceChildren(...kept.values());
    this.drawn = kept;
    if (focused) kept.get(focused)?.querySelector("a")?.focus({ preventScroll: true });
    if (end + BEYOND >= this.rows.length) attempt(() => this.more());
  }

  /** @param {Row} row */
  item(row) {
    const isAnswering = this.answering.has(row.session_id);
    const link = make(
      "a",
      { href: `#/session/${encodeURIComponent(row.session_id)}`, "aria-current": row.session_id === this.chosen ? "page" : null },
      make("span", { class: "name" }, nameOf(row)),
      make("time", { datetime: row.last_accessed, title: moment(row.last_accessed) }, when(row.last_accessed)),
      make("span", { class: "words" }, isAnswering ? "answering…" : (row.last_words ?? "nothing said yet")),
      make("span", { class: "channel", title: row.session_id }, row.channel),
      isAnswering && make("i", { class: "dot live", title: "being answered" }),
      row.lost > 0 && make("i", { class: "dot lost", title: `${row.lost} older messages were lost` }),
    );
    return make("li", { "data-id": row.session_id }, link);
  }
}
