// The part of a branch that is in the document: read a page at a time in both directions, and never more than a bounded
// number of articles, so that a conversation can be scrolled without end.

import { get, sessionPath } from "./api.js";
import { addCopyButtons } from "./copying.js";
import { make } from "./elements.js";
import { fragment } from "./fragments.js";

const PAGE = 40;
const STEP = 16; // while it is scrolled: what one frame can take in
const FIRST = 12; // fills a screen; what comes before it is read at once, too, but behind it
const MOST = 400;
const NEAR_PX = 1500;
const AT_END_PX = 60;

/**
 * @typedef {{entry_id: string, parent_id: string | null, sequence: number, last: number, html: string,
 *   node: HTMLElement}} Article
 */

export class Articles {
  /**
   * @param {HTMLElement} scroll what is scrolled
   * @param {string} id of the session
   * @param {{made: (article: Article) => void, moved: () => void, shown: () => void, known: () => number}} hooks `made`
   *   decorates a new article, `moved` is called when the window has been scrolled or changed, `shown` before what was
   *   read is drawn; `known` gives the newest entry that may be shown
   */
  constructor(scroll, id, hooks) {
    this.scroll = scroll;
    this.id = id;
    this.hooks = hooks;
    this.box = make("div", { class: "articles" });
    this.start = make("p", { class: "start" });
    this.scroll.append(this.start, this.box);
    /** @type {Article[]} */
    this.shown = [];
    /** @type {number | null} the place of what comes before the first article */
    this.behind = null;
    this.later = false;
    /** @type {string | null} the end of the branch that is shown; null: the leaf, wherever it goes */
    this.end = null;
    /** @type {string | null} */
    this.leaf = null;
    /** The newest entry that there was when something was read the last time. */
    this.entries = 0;
    /** @type {Promise<void>} one change at a time */
    this.turn = Promise.resolve();
    this.isPaging = false;
    /** Whether the end stays in sight as more comes: until the reader scrolls up. */
    this.staysAtEnd = true;
    this.lastTop = 0;
    /** Whether room is held below what is shown, so that a shorter version does not move what stands above it. */
    this.holdsRoom = false;
    this.scroll.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.observer = new ResizeObserver(() => {
      if (this.staysAtEnd && !this.later && this.end === null) this.toEnd();
    });
    this.observer.observe(this.scroll);
    this.observer.observe(this.box);
  }

  /**
   * Show the end of a branch, or of what the conversation goes on from.
   * @param {string | null} [end]
   */
  showEnd(end = null) {
    return this.alone(async () => {
      this.end = end;
      this.replace(await this.page({ limit: FIRST }));
      this.toEnd();
      this.scrolled();
    });
  }

  /**
   * Show the place of an entry, wherever in the tree it is.
   * @param {number} sequence
   * @param {{entry: string, end: string} | null} [elsewhere] the entry, and the end of a branch through it, if it is
   *   known not to be on the current one
   */
  async showPlace(sequence, elsewhere = null) {
    const known = this.at(sequence);
    if (known && (!elsewhere || elsewhere.end === this.end)) return this.point(known);
    await this.alone(async () => {
      this.end = elsewhere?.end ?? null;
      let page = await this.page({ after: sequence - 1, limit: PAGE });
      if (!elsewhere && !(page.articles[0]?.sequence <= sequence && sequence <= page.articles[0]?.last)) {
        const [entry] = (await get(sessionPath(this.id, "entries"), { after: sequence - 1, limit: 1 })).entries;
        if (entry) {
          this.end = entry.id;
          page = await this.page({ limit: PAGE });
        }
      }
      this.replace(page);
      await this.earlier();
    });
    const article = this.at(sequence) ?? this.shown.at(-1);
    if (article) this.point(article);
  }

  /** Read what has come since, where the end is shown; what cannot be joined is shown again. */
  refresh() {
    return this.alone(async () => {
      if (this.end !== null || this.later) {
        this.hooks.shown();
        return this.hooks.moved();
      }
      const after = this.shown.at(-2)?.last;
      if (after === undefined) {
        this.replace(await this.page({ limit: PAGE }));
      } else {
        const page = await this.page({ after, limit: 200 });
        if (page.behind !== after) this.replace(await this.page({ limit: PAGE }));
        else this.join(page);
      }
      this.hooks.moved();
    });
  }

  /**
   * Show how the conversation goes on after an article, in the place of what followed it; what stands above stays where
   * it is.
   * @param {Article | null} kept null: from the beginning
   * @param {() => unknown} move decides how it goes on
   */
  showAfter(kept, move) {
    return this.alone(async () => {
      await move();
      this.end = null;
      const page = await this.page({ after: kept?.last ?? 0, limit: PAGE });
      const place = kept ? this.shown.findIndex((one) => one.entry_id === kept.entry_id) : -1;
      const top = this.scroll.scrollTop;
      this.staysAtEnd = false;
      if (place === -1) this.replace(page);
      else {
        for (const one of this.shown.splice(place + 1)) one.node.remove();
        this.join(page);
      }
      this.holdRoom(top);
      this.scroll.scrollTop = top;
      this.hooks.moved();
    });
  }

  /** @param {number} top what is scrolled to: 0 holds no room */
  holdRoom(top) {
    const { scroll } = this;
    if (this.holdsRoom) scroll.style.paddingBottom = "";
    const missing = top - (scroll.scrollHeight - scroll.clientHeight);
    this.holdsRoom = top > 0 && missing > 0;
    if (this.holdsRoom) scroll.style.paddingBottom = `${Number.parseFloat(getComputedStyle(scroll).paddingBottom) + missing}px`;
  }

  /**
   * The article before another one; it is read where it is not shown.
   * @param {Article} article
   * @returns {Promise<Article | null>}
   */
  async before(article) {
    if (this.shown[0]?.entry_id === article.entry_id) await this.alone(() => this.earlier());
    return this.shown[this.shown.findIndex((one) => one.entry_id === article.entry_id) - 1] ?? null;
  }

  /** Up to which entry all is shown; nothing that is saved waits to be shown where the end is out of the document. */
  get reached() {
    return this.later || this.end !== null ? Infinity : Math.min(this.entries, this.hooks.known());
  }

  get isAtEnd() {
    return !this.later && this.scroll.scrollHeight - this.scroll.scrollTop - this.scroll.clientHeight < AT_END_PX;
  }

  /** Whether a branch is shown that the conversation does not go on from. */
  get isAside() {
    return this.end !== null && this.end !== this.leaf;
  }

  toEnd() {
    this.staysAtEnd = true;
    if (this.holdsRoom) this.holdRoom(0);
    this.scroll.scrollTop = this.scroll.scrollHeight;
  }

  /** @param {number} sequence */
  at(sequence) {
    return this.shown.find((one) => one.sequence <= sequence && sequence <= one.last);
  }

  /** @param {string} entry */
  of(entry) {
    return this.shown.find((one) => one.entry_id === entry);
  }

  /** The article that is marked, or the newest one that is shown. */
  get marked() {
    return this.shown.find((one) => one.node.classList.contains("chosen")) ?? this.shown.at(-1);
  }

  /** @param {Article} article */
  point(article) {
    for (const one of this.box.querySelectorAll(".chosen")) one.classList.remove("chosen");
    article.node.classList.add("chosen");
    const { node } = article;
    this.staysAtEnd = false;
    node.scrollIntoView({ block: node.offsetHeight > this.scroll.clientHeight / 2 ? "start" : "center" });
  }

  // --- reading ---

  /** @param {Record<string, any>} query */
  async page(query) {
    const page = await get(sessionPath(this.id, "articles"), { entry_id: this.end, ...query });
    this.leaf = page.leaf_id;
    this.entries = page.entries;
    const known = this.hooks.known(); // what comes behind it stands below the articles until the stream has its entry
    return { ...page, articles: page.articles.filter((/** @type {Article} */ one) => one.sequence <= known) };
  }

  /**
   * @template T
   * @param {() => Promise<T>} act
   * @returns {Promise<T>}
   */
  alone(act) {
    const done = this.turn.then(act);
    this.turn = done.then(
      () => {},
      () => {},
    );
    return done;
  }

  scrolled() {
    const { scrollTop: top } = this.scroll;
    if (this.isAtEnd && !this.holdsRoom) this.staysAtEnd = true;
    else if (top < this.lastTop) this.staysAtEnd = false;
    this.lastTop = top;
    this.hooks.moved();
    if (this.isPaging || !this.shown.length) return;
    const { scrollTop, scrollHeight, clientHeight } = this.scroll;
    const wanted = scrollTop < NEAR_PX && this.behind !== null ? () => this.earlier() : null;
    const other = this.later && scrollHeight - scrollTop - clientHeight < NEAR_PX ? () => this.after() : null;
    const act = wanted ?? other;
    if (!act) return;
    this.isPaging = true;
    const before = this.shown.length;
    this.alone(act)
      .catch(() => {})
      .finally(() => {
        this.isPaging = false;
        const fits = this.scroll.scrollHeight <= this.scroll.clientHeight; // then nothing is scrolled that would ask for more
        if (fits && this.shown.length > before) this.scrolled();
      });
  }

  /** The page before the first article. */
  async earlier() {
    const first = this.shown[0];
    if (!first || this.behind === null) return;
    const page = await this.page({ before: first.sequence, limit: STEP });
    const top = first.node.getBoundingClientRect().top;
    const made = page.articles.map((/** @type {Article} */ one) => this.made(one));
    this.box.prepend(...made.map((/** @type {Article} */ one) => one.node));
    this.shown.unshift(...made);
    this.behind = page.behind;
    if (this.shown.length > MOST) {
      for (const one of this.shown.splice(MOST)) one.node.remove();
      this.later = true;
    }
    this.markSteps();
    this.scroll.scrollTop += first.node.getBoundingClientRect().top - top;
    this.tellStart();
  }

  /** The page after the last one. */
  async after() {
    const last = this.shown.at(-1);
    if (!last) return;
    const page = await this.page({ after: last.last, limit: STEP });
    if (page.behind !== last.last) return this.replace(await this.page({ limit: PAGE }));
    this.join(page);
    if (this.shown.length > MOST) {
      const kept = this.shown[this.shown.length - MOST];
      const top = kept.node.getBoundingClientRect().top;
      for (const one of this.shown.splice(0, this.shown.length - MOST)) {
        this.behind = one.last;
        one.node.remove();
      }
      this.scroll.scrollTop += kept.node.getBoundingClientRect().top - top;
      this.tellStart();
    }
  }

  // --- changing what is in the document ---

  /** @param {any} page */
  replace(page) {
    this.shown = page.articles.map((/** @type {Article} */ one) => this.made(one));
    this.box.replaceChildren(...this.shown.map((one) => one.node));
    this.behind = page.behind;
    this.later = page.later;
    this.markSteps();
    this.tellStart();
    this.hooks.shown();
    this.hooks.moved();
  }

  /**
   * Append what follows; an article that has changed, because its tools have answered, takes its own place.
   * @param {any} page
   */
  join(page) {
    this.later = page.later;
    for (const fresh of page.articles) {
      const at = this.shown.findIndex((one) => one.entry_id === fresh.entry_id);
      if (at === -1) {
        const made = this.made(fresh);
        this.shown.push(made);
        this.box.append(made.node);
      } else if (this.shown[at].html !== fresh.html) {
        const made = this.made(fresh);
        keepOpen(this.shown[at].node, made.node);
        this.shown[at].node.replaceWith(made.node);
        this.shown[at] = made;
      }
    }
    this.markSteps();
    this.hooks.shown();
  }

  /** What the assistant did in a row is below one heading; where ways part, another one begins. */
  markSteps() {
    let before = false;
    for (const { node } of this.shown) {
      const isAssistant = node.classList.contains("assistant");
      node.classList.toggle("goes-on", before && isAssistant);
      before = isAssistant && !node.querySelector(":scope > nav");
    }
  }

  /**
   * @param {Article} article
   * @returns {Article}
   */
  made(article) {
    const node = /** @type {HTMLElement} */ (fragment(article.html).firstElementChild);
    node.tabIndex = -1;
    addCopyButtons(node);
    const made = { ...article, node };
    this.hooks.made(made);
    return made;
  }

  tellStart() {
    const isStart = this.behind === null && this.shown.length > 0;
    this.start.classList.toggle("more", !isStart && this.shown.length > 0); // what is printed says so
    this.start.textContent = isStart ? "The conversation begins here" : this.shown.length ? "Reading what came before…" : "";
  }
}

/**
 * What was unfolded stays so.
 * @param {HTMLElement} old
 * @param {HTMLElement} made
 */
function keepOpen(old, made) {
  const folds = made.querySelectorAll("details");
  old.querySelectorAll("details").forEach((fold, place) => {
    if (folds[place]) folds[place].open = fold.open;
  });
}
