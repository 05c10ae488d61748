// One conversation: its head, what was said, the answer under way, the chat box; it follows what others say there.

import { may } from "./access.js";
import { articleMenu } from "./actions.js";
import { get, send, sessionPath } from "./api.js";
import { chip } from "./attachments.js";
import { Articles } from "./articles.js";
import { Composer } from "./composer.js";
import { find, icon, iconButton, make } from "./elements.js";
import { entryOf } from "./fragments.js";
import { Head } from "./head.js";
import { Live } from "./live.js";
import { ConversationMap } from "./map.js";
import { ModelMenu } from "./models.js";
import { attempt } from "./notices.js";
import { markSaved } from "./outbox.js";
import { addRow } from "./row.js";
import { showFiles } from "./shown_files.js";
import { TreePanel } from "./tree.js";
import { Turn } from "./turn.js";
import { answer, goOn } from "./versions.js";
import { clockTime, moment } from "./words.js";
import { wordsOf } from "./written.js";

const SILENT_MS = 5_000; // what another gateway has written comes a moment later
const OF_TURN = new Set(["typing", "accepted", "thinking", "prose", "tool_started", "done", "stopped", "suspended", "error"]);

export class Conversation {
  /**
   * @param {any} session the API's reply
   * @param {{changed: () => void, gone: () => void}} hooks
   */
  constructor(session, hooks) {
    this.session = session;
    this.hooks = hooks;
    this.id = session.session_id;
    this.isClosed = false;
    this.models = new ModelMenu(() => this.session, (change) => this.update(change));
    this.head = new Head(this);
    this.map = new ConversationMap(this);
    this.scroll = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "What was said" });
    this.articles = new Articles(this.scroll, this.id, {
      made: (article) => this.decorate(article),
      moved: () => this.moved(),
      shown: () => this.turn.settle(this.articles.box, this.articles.reached), // before it is drawn: or else it would stand there twice
      known: () => this.known,
    });
    this.pending = make("div", { class: "pending", "aria-live": "polite" });
    this.scroll.append(this.pending);
    this.aside = make("p", { class: "aside", hidden: true });
    this.toNewest = make("button", { type: "button", class: "newest", hidden: true, click: () => attempt(() => this.articles.showEnd()) }, icon("down"), make("span", {}, "Newest"));
    this.articles.observer.observe(this.pending);
    this.turn = new Turn(this.pending, {
      changed: () => this.moved(),
      busy: (isBusy) => this.composer.setBusy(isBusy),
      ended: () => this.refresh(),
      suspended: () => this.askApproval(),
      decided: () => this.composer.focus(),
    });
    this.composer = new Composer(session, {
      said: (text, key, files) => this.said(text, key, files),
      saved: () => this.refresh(),
      replaced: (shown) => this.replaced(shown),
      told: (text) => this.turn.note(text),
      failed: (message, again, lasts) => this.turn.fail(message, again, lasts),
    });
    this.composer.form.hidden = !may("write");
    this.tree = new TreePanel(this);
    this.root = make("div", { class: "conversation" }, this.head.node, this.aside, this.scroll, this.map.node, make("div", { class: "bottom" }, this.toNewest, this.composer.form));
    this.scroll.addEventListener("click", (event) => this.clicked(event));
    this.drawHead();
  }

  /**
   * Show it.
   * @param {number | null} place the sequence of an entry
   */
  async open(place) {
    find("main").replaceChildren(this.root);
    await (place === null ? this.articles.showEnd() : this.articles.showPlace(place));
    if (this.isClosed) return;
    this.live = new Live(sessionPath(this.id, "follow"), { after: this.session.entries, rendered: true }, {
      event: (kind, data) => this.onEvent(kind, data),
      state: (state) => this.stateChanged(state),
      gone: (error) => error.status === 404 && this.hooks.gone(),
    });
    this.tree.refreshSoon();
    this.models.learn();
    this.askApproval();
    this.composer.resume();
  }

  close() {
    this.isClosed = true;
    this.live?.close();
    this.articles.observer.disconnect();
    this.composer.close();
    this.tree.close();
  }

  // --- what happens elsewhere ---

  /**
   * @param {string} kind
   * @param {any} data
   */
  onEvent(kind, data) {
    if (kind === "gone") this.hooks.gone();
    else if (kind === "entry") this.saved(data);
    else if (OF_TURN.has(kind)) this.turn.onEvent(kind, data);
  }

  /** @param {any} entry */
  saved(entry) {
    const role = entry.message?.role;
    if (role && role !== "user") this.turn.saved(entry.sequence);
    if (role === "user") this.arrived(entry);
    const goesOn = entry.parent_id === this.newest; // or else ways part there, and a version is new
    if (!goesOn || entry.type === "label" || entry.type === "leaf" || this.tree.isOpen) this.tree.refreshSoon();
    this.newest = entry.id;
    this.refresh();
  }

  /** The entry that was saved last, as far as was heard here. @type {string | null} */
  newest = null;

  /**
   * What was said here is saved, and is shown by its article from now on.
   * @param {any} entry
   */
  arrived(entry) {
    const words = wordsOf(entry);
    const said = [.../** @type {NodeListOf<HTMLElement>} */ (this.pending.querySelectorAll(".said:not(.saved)"))];
    const found = said.find((one) => one.querySelector("p")?.textContent === words);
    if (!found) return;
    found.classList.add("saved");
    found.dataset.sequence = entry.sequence;
    markSaved(found.dataset.key);
  }

  /**
   * What was said here is among what can be read now; it stands there until its article does.
   * @param {HTMLElement} [shown]
   */
  async replaced(shown) {
    await this.refresh();
    const { articles } = this;
    if (!shown) return;
    shown.classList.add("saved");
    shown.dataset.sequence ??= String(articles.entries);
    this.turn.settle(articles.box, articles.reached);
  }

  /**
   * The newest entry that may be shown: while something stands below the articles, the last that the stream has had,
   * because until then that may be the same.
   */
  get known() {
    const { live, pending } = this;
    return live?.state === "open" && live.last !== null && pending.hasChildNodes() ? Number(live.last) : Infinity;
  }

  /** @param {import("./live.js").LiveState} state */
  stateChanged(state) {
    const isLost = state === "lost";
    if (isLost === this.root.classList.contains("lost")) return;
    this.root.classList.toggle("lost", isLost);
    this.head.setLost(isLost);
    if (isLost) this.turn.reset();
    else Promise.all([this.refresh(), this.askApproval()]);
  }

  /** Show the tool calls that wait for a person's yes or no, and pass the answer on. */
  askApproval() {
    return attempt(async () => {
      const { pending } = await get(sessionPath(this.id, "approvals"));
      if (!this.isClosed && !this.turn.isRunning) this.turn.suspend(pending, may("write") ? (id, isApproved) => this.approve(id, isApproved) : null);
    });
  }

  /**
   * Pass a yes or no on, after those before it: each lets the answer go on.
   * @param {string} id
   * @param {boolean} isApproved
   */
  approve(id, isApproved) {
    this.approving = this.approving.then(() => answer(this, { approvals: { [id]: isApproved } }, () => this.turn.decided.delete(id)));
    return this.approving;
  }

  /** @type {Promise<unknown>} */
  approving = Promise.resolve();

  /** Read what has come; several wishes at once are one. */
  refresh() {
    this.wish ||= Promise.resolve().then(async () => {
      this.wish = null;
      await attempt(async () => {
        await this.articles.refresh();
        this.listenAgain();
        this.session = await get(sessionPath(this.id), { last_words: true });
      });
      if (!this.isClosed) this.drawHead();
    });
    return this.wish;
  }

  /** @type {Promise<void> | null} */
  wish = null;

  /** A stream without what could be read a while ago has been cut off, though it looks open. */
  listenAgain() {
    const { entries } = this.articles;
    const isBehind = () => this.live?.state === "open" && entries > Number(this.live.last);
    if (isBehind()) this.silence ||= setTimeout(() => {
      this.silence = 0;
      if (isBehind()) this.live?.cut();
    }, SILENT_MS);
  }

  silence = 0;

  // --- what is shown ---

  drawHead() {
    this.head.draw();
    this.composer.session.chosen_model = this.session.chosen_model; // which takes other files
  }

  /**
   * Change its metadata.
   * @param {any} change as `PATCH` takes it
   */
  async update(change) {
    this.session = { ...this.session, ...(await send("PATCH", sessionPath(this.id), change)) };
    this.drawHead();
    this.hooks.changed();
  }

  /** @param {import("./articles.js").Article} article */
  decorate(article) {
    const button = iconButton("more", "What can be done from here", (event) => articleMenu(this, article, /** @type {HTMLElement} */ (event.currentTarget)));
    button.setAttribute("aria-haspopup", "menu");
    addRow(this, article, button);
    for (const time of article.node.querySelectorAll("time")) {
      time.title = moment(time.dateTime);
      time.textContent = clockTime(time.dateTime);
    }
    showFiles(this.id, article.node);
    this.tree?.decorate(article);
    article.node.classList.toggle("name-only", isNameOnly(article, this.session.title));
  }

  moved() {
    const { articles } = this;
    this.map.lookSoon();
    const isFar = articles.later || articles.scroll.scrollHeight - articles.scroll.scrollTop - articles.scroll.clientHeight > 600;
    this.toNewest.hidden = !isFar && !articles.isAside;
    const isAside = articles.isAside;
    if (this.aside.hidden === !isAside) return;
    this.aside.hidden = !isAside;
    this.composer.field.placeholder = isAside ? "Goes on where the conversation is now" : "Write a message";
    this.aside.replaceChildren(
      may("write") ? "This branch was left; what you write goes on where the conversation is now. " : "This branch was left. ",
      may("write") ? make("button", { type: "button", click: () => goOn(this, articles.end) }, "Go on from here instead") : "",
      make("button", { type: "button", click: () => attempt(() => this.articles.showEnd()) }, "Back to where the conversation goes on"),
    );
  }

  /**
   * @param {string} text
   * @param {string} key
   * @param {import("./attachments.js").Attached[]} files
   */
  said(text, key, files) {
    const header = make("header", {}, make("a", {}, "User"), make("span", { class: "about" }));
    const chips = files.length > 0 && make("ul", { class: "chips" }, ...files.map((one) => chip(one, null)));
    const article = make("article", { class: "user said", "data-key": key }, header, make("div", {}, make("p", { dir: "auto" }, text), chips));
    this.pending.append(article);
    if (this.articles.end !== null || this.articles.later) attempt(() => this.articles.showEnd());
    this.articles.toEnd();
    return article;
  }

  /** @param {Event} event */
  clicked(event) {
    const link = /** @type {HTMLElement} */ (event.target).closest?.("a");
    if (!link) return;
    const entry = entryOf(link);
    if (entry === null) return;
    event.preventDefault();
    attempt(() => this.goTo(entry));
  }

  /**
   * Show an entry, wherever in the tree it is.
   * @param {string} entry
   */
  async goTo(entry) {
    const shown = this.articles.of(entry);
    if (shown) return this.articles.point(shown);
    await this.tree.show(entry);
  }

  /**
   * Move the mark by some articles.
   * @param {number} by
   */
  step(by) {
    const { scroll } = this.articles;
    const shown = this.articles.shown.filter((one) => one.node.checkVisibility());
    const marked = shown.findIndex((one) => one.node.classList.contains("chosen"));
    const top = scroll.getBoundingClientRect().top;
    const inView = shown.findIndex((one) => one.node.getBoundingClientRect().bottom > top + 40);
    const article = shown[Math.min(Math.max(marked === -1 ? inView : marked + by, 0), shown.length - 1)];
    if (article) this.articles.point(article);
  }

  /** Unfold everything in the marked article, or fold it. */
  toggleFolds() {
    const folds = [...this.scroll.querySelectorAll(".chosen details")];
    const open = folds.some((fold) => !(/** @type {HTMLDetailsElement} */ (fold).open));
    for (const fold of folds) /** @type {HTMLDetailsElement} */ (fold).open = open;
  }
}

/**
 * Whether a conversation begins with its name, which stands in the head already.
 * @param {import("./articles.js").Article} article
 * @param {string | null} title
 */
function isNameOnly({ node, parent_id }, title) {
  const isFirst = parent_id === null && node.matches(".note") && node.querySelector(":scope > header > a")?.textContent === "Title";
  return isFirst && title !== null && (node.querySelector(":scope > p, :scope > div")?.textContent ?? "").trim() === title.trim();
}
