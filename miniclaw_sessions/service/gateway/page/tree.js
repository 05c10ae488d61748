// The tree beside the conversation: the server's nested list, what its labels and parting ways add to the articles, and
// which branch an entry is on.

import { get, sessionPath } from "./api.js";
import { find, iconButton, make } from "./elements.js";
import { entryOf, fragment } from "./fragments.js";
import { attempt } from "./notices.js";
import { decorateVersions } from "./versions.js";

const SOON_MS = 350;
const WIDE = matchMedia("(min-width: 72rem)");

/** @typedef {import("./articles.js").Article} Article */

export class TreePanel {
  /** @param {import("./conversation.js").Conversation} conversation */
  constructor(conversation) {
    this.conversation = conversation;
    this.panel = find("tree");
    /** @type {any} */
    this.outline = { labels: {}, ways: {}, tips: {}, leaf_id: null };
    /** @type {Map<string, HTMLAnchorElement>} */
    this.links = new Map();
    this.list = make("div", { class: "tree branches", id: "branches" });
    this.list.addEventListener("click", (event) => this.clicked(event));
    this.list.addEventListener("toggle", (event) => attempt(() => this.unfolded(/** @type {any} */ (event.target))), { capture: true });
    this.isClosed = false;
    this.timer = 0;
    this.panel.replaceChildren(make("header", {}, make("h2", {}, "Tree"), iconButton("close", "Close the tree (t)", () => this.toggle(false))), this.list);
    this.panel.hidden = !(WIDE.matches && localStorage.getItem("tree") === "open");
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.timer);
    this.panel.hidden = true;
    this.panel.replaceChildren();
  }

  get isOpen() {
    return !this.panel.hidden;
  }

  /** @param {boolean} [isOpen] */
  toggle(isOpen = !this.isOpen) {
    if (isOpen === this.isOpen) return;
    this.panel.hidden = !isOpen;
    localStorage.setItem("tree", isOpen ? "open" : "closed");
    if (!isOpen) return this.conversation.scroll.focus();
    attempt(async () => {
      await this.refresh();
      this.list.querySelector(".here")?.closest("a")?.focus();
    });
  }

  refreshSoon() {
    this.timer ||= setTimeout(() => {
      this.timer = 0;
      if (!this.isClosed) attempt(() => this.refresh());
    }, SOON_MS);
  }

  async refresh() {
    const outline = await get(sessionPath(this.conversation.id, "outline"));
    if (this.isClosed) return;
    const isSame = outline.html === this.outline.html; // then what was unfolded stays
    this.outline = outline;
    this.conversation.head.countBranches(1 + new Set(Object.values(outline.tips)).size);
    this.conversation.map.draw(outline.marks);
    if (isSame) return;
    const top = this.list.scrollTop;
    this.list.replaceChildren(fragment(outline.html));
    this.links = new Map();
    this.learn(this.list);
    for (const article of this.conversation.articles.shown) this.decorate(article);
    this.conversation.articles.markSteps();
    this.list.scrollTop = top;
    if (!top) this.list.querySelector(".here")?.scrollIntoView({ block: "center" });
  }

  /** @param {HTMLElement} part of the tree that has come */
  learn(part) {
    for (const link of part.querySelectorAll("a")) this.links.set(entryOf(link) ?? "", link);
  }

  /**
   * What is folded is read when it is unfolded, some of it at a time.
   * @param {HTMLDetailsElement} fold
   */
  async unfolded(fold) {
    const { first, last } = fold.dataset;
    if (!fold.open || !first || fold.querySelector("ol")) return;
    const { html } = await get(sessionPath(this.conversation.id, "outline"), { first, last });
    fold.append(fragment(html));
    this.learn(fold);
  }

  /** @param {string} entry */
  labelOf(entry) {
    return this.outline.labels[entry] ?? "";
  }

  /**
   * Show the label of an article, and the ways that part there.
   * @param {Article} article
   */
  decorate(article) {
    const { node, entry_id } = article;
    const label = this.labelOf(entry_id);
    node.querySelector(":scope > header > .label")?.remove();
    if (label) node.querySelector(":scope > header > a")?.after(make("span", { class: "label" }, label));
    node.querySelector(":scope > nav.ways")?.remove();
    const ways = this.outline.ways[entry_id];
    if (ways) node.append(this.ways(ways));
    decorateVersions(this.conversation, article);
  }

  /** @param {string[]} entries */
  ways(entries) {
    const items = entries.map((entry) => {
      const link = this.links.get(entry);
      const isTaken = link?.parentElement?.classList.contains("on");
      const words = link?.lastChild?.textContent ?? "";
      return make("li", {}, make("a", { href: link?.getAttribute("href"), class: isTaken ? "taken" : null }, make("b", {}, link?.title ?? ""), ` ${words}`));
    });
    return make("nav", { class: "ways", "aria-label": "Ways on from here" }, make("p", {}, entries.length > 1 ? `${entries.length} ways on from here` : "Another way on from here"), make("ul", {}, ...items));
  }

  /** @param {Event} event */
  clicked(event) {
    const link = /** @type {HTMLElement} */ (event.target).closest?.("a");
    if (!link) return;
    event.preventDefault();
    if (!WIDE.matches) this.toggle(false);
    attempt(() => this.go(link));
  }

  /** @param {string} entry */
  async show(entry) {
    const link = this.links.get(entry);
    if (link) return this.go(link);
    const { sequence } = await get(sessionPath(this.conversation.id, `entries/${encodeURIComponent(entry)}`));
    await this.conversation.articles.showPlace(sequence);
  }

  /** @param {HTMLAnchorElement} link */
  async go(link) {
    for (const one of this.list.querySelectorAll(".chosen")) one.classList.remove("chosen");
    link.classList.add("chosen");
    for (let fold = link.closest("details"); fold; fold = fold.parentElement?.closest("details") ?? null) fold.open = true;
    const sequence = Number(link.dataset.n);
    const isCurrent = link.closest("li")?.classList.contains("on");
    const entry = entryOf(link) ?? "";
    const { articles } = this.conversation;
    if (isCurrent && articles.end !== null) await articles.showEnd();
    await articles.showPlace(sequence, isCurrent ? null : { entry, end: this.tipOf(link) });
  }

  /**
   * The end of the branch that an entry of the tree is on.
   * @param {HTMLAnchorElement} link
   */
  tipOf(link) {
    let list = link.closest("ol");
    while (list?.parentElement?.closest("li")?.classList.contains("fold")) list = list.parentElement.closest("li")?.closest("ol") ?? null;
    const first = list?.querySelector("a");
    const begin = first ? entryOf(first) : null;
    return (begin !== null && this.outline.tips[begin]) || (entryOf(link) ?? "");
  }
}
