// The map beside a long conversation: a mark for what people said and where ways part, each at its place on the branch.

import { make } from "./elements.js";
import { attempt } from "./notices.js";

const LONG = 12; // marks; a shorter conversation is seen at a glance
const SOON_MS = 120;

/** @typedef {{sequence: number, at: number, kind: "said" | "fork", words: string}} Mark */

export class ConversationMap {
  /** @param {import("./conversation.js").Conversation} conversation */
  constructor(conversation) {
    this.conversation = conversation;
    this.node = make("nav", { class: "map", "aria-label": "Map of the conversation", hidden: true, keydown: (/** @type {KeyboardEvent} */ event) => this.moved(event) });
    /** @type {Mark[]} */
    this.marks = [];
    this.timer = 0;
  }

  /** @param {Mark[]} marks of the branch that the conversation goes on from, in order */
  draw(marks) {
    const had = this.links.indexOf(/** @type {any} */ (document.activeElement));
    this.marks = marks;
    this.node.hidden = marks.length < LONG;
    this.node.replaceChildren(...(this.node.hidden ? [] : marks.map((mark) => this.link(mark))));
    if (had !== -1) this.links[Math.min(had, marks.length - 1)]?.focus();
    this.look();
  }

  get links() {
    return /** @type {HTMLElement[]} */ ([...this.node.children]);
  }

  /** @param {Mark} mark */
  link({ sequence, at, kind, words }) {
    const { id, articles } = this.conversation;
    const name = kind === "fork" ? `Ways part: ${words}` : words;
    const go = (/** @type {Event} */ event) => {
      event.preventDefault();
      attempt(() => articles.showPlace(sequence));
    };
    const link = make("a", { href: `#/session/${encodeURIComponent(id)}/${sequence}`, class: kind, title: name, "aria-label": name, tabindex: -1, click: go });
    link.style.top = `${at * 100}%`;
    return link;
  }

  /** Show soon where the reader is. */
  lookSoon() {
    this.timer ||= this.node.hidden ? 0 : setTimeout(() => this.look(), SOON_MS);
  }

  look() {
    this.timer = 0;
    if (this.node.hidden) return;
    const { scroll, articles } = this.conversation;
    const box = scroll.getBoundingClientRect();
    const seen = /** @type {HTMLElement | null} */ (document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2)?.closest("article[data-n]"));
    const place = seen ? Number(seen.dataset.n) : (articles.shown.at(-1)?.sequence ?? 0);
    const isAtBeginning = articles.behind === null && scroll.scrollTop < 60;
    const found = this.marks.findLastIndex((mark) => mark.sequence <= place);
    const at = articles.isAtEnd ? this.marks.length - 1 : isAtBeginning ? 0 : Math.max(0, found);
    this.links.forEach((link, number) => {
      link.toggleAttribute("aria-current", number === at);
      if (number === at) link.setAttribute("aria-current", "location");
      link.tabIndex = number === at ? 0 : -1;
    });
  }

  /** @param {KeyboardEvent} event arrows go from mark to mark */
  moved(event) {
    const { links } = this;
    const at = links.indexOf(/** @type {any} */ (document.activeElement));
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: links.length - 1 }[event.key];
    if (to === undefined || at === -1) return;
    event.preventDefault();
    links[Math.min(Math.max(to, 0), links.length - 1)].focus();
  }
}
