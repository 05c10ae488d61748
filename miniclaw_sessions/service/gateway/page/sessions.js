// The list of sessions: pages are fetched while it is scrolled, and only the lines in sight are in the document, so that
// ten thousand cost no more than ten.

import { get } from "./api.js";
import { find, make } from "./elements.js";
import { firstBelow, linesOf } from "./lines.js";
import { attempt } from "./notices.js";
import { pinnedBeside } from "./pins.js";
import { isUnread, see } from "./seen.js";
import { moment, nameOf, when } from "./words.js";

const PAGE = 60;
const BEYOND_PX = 530;
const AGAIN_MS = 400;

/**
 * @typedef {{session_id: string, channel: string, chat_id: string, title: string | null, last_words: string | null,
 *   first_words: string | null, last_accessed: string, updated_at: string, message_count: number, lost: number,
 *   pinned: boolean, labels: string[], waiting: boolean, linked: string[]}} Row
 * @typedef {import("./lines.js").Line} Line
 */

export class SessionList {
  /** @param {() => void} changed called after each change of the rows */
  constructor(changed) {
    this.changed = changed;
    this.scroll = find("list");
    /** @type {HTMLUListElement} */
    this.ul = this.scroll.querySelector("ul");
    /** @type {Row[]} the most recently used first */
    this.rows = [];
    /** @type {Row[]} those that are pinned, and used before all others that have been read */
    this.beside = [];
    this.shape = linesOf([]);
    /** Of this channel alone; null: of all. @type {string | null} */
    this.channel = null;
    /** @type {string | null} */
    this.next = null;
    this.isLoaded = false;
    this.chosen = "";
    /** @type {Set<string>} the sessions that are being answered */
    this.answering = new Set();
    /** The sessions that are marked, and whether any can be. @type {Set<string>} */
    this.marks = new Set();
    this.isMarking = false;
    /** @type {() => void} called when others are marked */
    this.marked = () => {};
    /** @type {Map<string, HTMLLIElement>} */
    this.drawn = new Map();
    this.isLoading = false;
    this.timer = 0;
    this.frame = 0;
    this.asked = 0;
    /** What is in sight, as far as is known without a layout; at first as much as there may be. */
    this.sight = { top: 0, height: screen.height };
    this.scroll.addEventListener("scroll", () => this.look(), { passive: true });
    this.ul.addEventListener("keydown", (event) => this.moved(event));
    new ResizeObserver(() => this.look()).observe(this.scroll);
    setInterval(() => this.draw({ stale: true }), 60_000); // "5 min" gets older
  }

  /** Read the newest sessions again; those further down stay as they were. */
  async refresh() {
    const mine = ++this.asked;
    const page = await get("v1/sessions", { limit: PAGE, last_words: true, channel: this.channel });
    const fresh = new Set(page.sessions.map((/** @type {Row} */ row) => row.session_id));
    const last = page.sessions.at(-1)?.last_accessed ?? "";
    if (mine !== this.asked) return;
    const older = page.next === null ? [] : this.rows.filter((row) => !fresh.has(row.session_id) && row.last_accessed <= last);
    if (!older.length) this.next = page.next;
    this.rows = [...page.sessions, ...older];
    this.isLoaded = true;
    this.arrange();
    this.drawNow();
    this.changed();
    await this.findPins(mine);
  }

  /** @param {number} mine */
  async findPins(mine) {
    const pinned = (await pinnedBeside(this.rows)).filter((row) => this.channel === null || row.channel === this.channel);
    if (mine !== this.asked || (!pinned.length && !this.beside.length)) return;
    this.beside = pinned;
    this.arrange();
    this.draw();
  }

  /** Give each line its place. */
  arrange() {
    const known = new Set(this.rows.map((row) => row.session_id));
    this.shape = linesOf([...this.rows, ...this.beside.filter((row) => !known.has(row.session_id))]);
    this.isStale = true;
    this.scroll.classList.toggle("empty", !this.rows.length && this.channel === null);
  }

  /** @param {string | null} channel */
  async sift(channel) {
    this.channel = channel;
    [this.rows, this.beside, this.next] = [[], [], null];
    this.scroll.scrollTop = 0;
    await this.refresh();
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
    const { channel } = this;
    try {
      const page = await get("v1/sessions", { limit: PAGE, last_words: true, channel, after: this.next });
      if (channel !== this.channel) return;
      const known = new Set(this.rows.map((row) => row.session_id));
      this.rows.push(...page.sessions.filter((/** @type {Row} */ row) => !known.has(row.session_id)));
      this.next = page.next;
      this.arrange();
    } finally {
      this.isLoading = false;
    }
    this.draw();
    this.changed();
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

  /** @param {string} id */
  rowOf(id) {
    return this.shape.ordered.find((row) => row.session_id === id);
  }

  /**
   * The session above or below the chosen one.
   * @param {number} by
   */
  neighbour(by) {
    const { ordered } = this.shape;
    const at = ordered.findIndex((row) => row.session_id === this.chosen);
    return ordered[Math.min(Math.max(at + by, 0), ordered.length - 1)];
  }

  // --- marking several ---

  /** @param {boolean} isMarking */
  setMarking(isMarking) {
    this.isMarking = isMarking;
    if (!isMarking) this.marks.clear();
    this.drawAgain();
  }

  /** @param {string} id */
  mark(id) {
    if (!this.marks.delete(id)) this.marks.add(id);
    this.isMarking = true;
    this.drawAgain();
  }

  drawAgain() {
    this.isStale = true;
    this.drawNow();
    this.marked();
  }

  /** The session whose row has the focus. */
  get focused() {
    return /** @type {HTMLElement | null} */ (document.activeElement?.closest?.("#list li[data-id]"))?.dataset.id ?? "";
  }

  /** @param {KeyboardEvent} event arrows go from row to row */
  moved(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const at = this.shape.lines.findIndex((line) => line.key === this.focused);
    if (by === undefined || at === -1) return;
    event.preventDefault();
    let to = at + by;
    while (this.shape.lines[to] && !("row" in this.shape.lines[to])) to += by;
    const line = this.shape.lines[to];
    if (!line) return;
    const { clientHeight, scrollTop } = this.scroll;
    this.scroll.scrollTop = Math.min(line.top, Math.max(scrollTop, line.top + line.height - clientHeight));
    this.sight = { top: this.scroll.scrollTop, height: clientHeight };
    this.drawNow();
    this.drawn.get(line.key)?.querySelector("a")?.focus({ preventScroll: true });
  }

  // --- drawing ---

  /** @param {{stale?: boolean}} [how] `stale`: lines that are drawn may have changed */
  draw({ stale = false } = {}) {
    this.isStale ||= stale;
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.drawNow();
    });
  }

  isStale = false;

  drawNow() {
    const { lines, height } = this.shape;
    const { top, height: seen } = this.sight;
    this.ul.style.height = `${height}px`;
    const kept = new Map();
    const { focused } = this;
    const isBox = document.activeElement?.matches("#list input");
    let place = firstBelow(lines, top - BEYOND_PX);
    for (; place < lines.length && lines[place].top < top + seen + BEYOND_PX; place++) {
      const line = lines[place];
      const known = this.drawn.get(line.key);
      const item = known && !this.isStale ? known : "row" in line ? this.item(line.row, line.place) : make("li", { class: "day" }, make("h2", {}, line.heading));
      item.style.top = `${line.top}px`; // no transform: each would be a layer of every frame
      kept.set(line.key, known && isSame(known, item) ? known : item);
    }
    this.isStale = false;
    const items = [...kept.values()]; // one that stays is left alone: a key or button that is held down would be lost
    if (items.length !== this.ul.children.length || items.some((one, at) => one !== this.ul.children[at])) this.ul.replaceChildren(...items);
    this.drawn = kept;
    if (focused) /** @type {HTMLElement | null} */ (kept.get(focused)?.querySelector(isBox ? "input" : "a"))?.focus({ preventScroll: true });
    if (place === lines.length) attempt(() => this.more());
  }

  /**
   * @param {Row} row
   * @param {number} place
   */
  item(row, place) {
    const { session_id: id } = row;
    const isChosen = id === this.chosen;
    if (isChosen) see(row);
    const isNew = isUnread(row);
    const isAnswering = this.answering.has(id);
    const words = isAnswering ? "answering…" : row.waiting ? "waits for your yes or no" : (row.last_words ?? "nothing said yet");
    const link = make(
      "a",
      { href: `#/session/${encodeURIComponent(id)}`, "aria-current": isChosen ? "page" : null },
      make("span", { class: "name", dir: "auto" }, nameOf(row)),
      make("time", { datetime: row.last_accessed, title: moment(row.last_accessed) }, when(row.last_accessed)),
      make("span", { class: "words", dir: "auto" }, ...[...row.labels, ...row.linked.map((one) => `linked: ${one}`)].map((one) => make("span", { class: "label" }, one)), words),
      make("span", { class: "channel", title: id }, row.channel),
      isNew && make("span", { class: "spoken" }, ", new messages"),
      mark(row, isAnswering, isNew),
    );
    const box = this.isMarking && make("input", { type: "checkbox", "aria-label": `Mark ${nameOf(row)}`, change: () => this.mark(id) });
    if (box) box.checked = this.marks.has(id);
    const kinds = [isNew && "unread", row.waiting && !isAnswering && "waiting", this.isMarking && "marking"].filter(Boolean).join(" ");
    const known = this.next === null ? this.shape.ordered.length : -1;
    return make("li", { "data-id": id, class: kinds || null, "aria-posinset": place + 1, "aria-setsize": known }, box, link);
  }
}

/**
 * Whether two rows look and work alike.
 * @param {Element} one
 * @param {Element} other
 */
function isSame(one, other) {
  const isMarked = (/** @type {Element} */ row) => row.querySelector("input")?.checked;
  return one.isEqualNode(other) && isMarked(one) === isMarked(other);
}

/**
 * The one thing that most needs to be seen of a row.
 * @param {Row} row
 * @param {boolean} isAnswering
 * @param {boolean} isNew
 */
function mark(row, isAnswering, isNew) {
  if (isAnswering) return make("i", { class: "dot live", title: "being answered" });
  if (row.waiting) return make("i", { class: "dot asks", title: "waits for your yes or no" });
  if (row.lost > 0) return make("i", { class: "dot lost", title: `${row.lost} older messages were lost` });
  return isNew && make("i", { class: "dot new", title: "new messages" });
}
