// An answer while it is made: its words as they come, its tools as they run. What is saved replaces it.

import { addCopyButtons } from "./copying.js";
import { make } from "./elements.js";
import { fragment } from "./fragments.js";

const ENDS = new Set(["done", "stopped", "suspended", "error"]);
const STILL_MS = 1_200;
const FAILED = ".failed:not(.lasting)";

export class Turn {
  /**
   * @param {HTMLElement} box where it is shown
   * @param {{changed: () => void, busy: (isBusy: boolean) => void, ended: () => void, suspended: () => void, decided: () => void}} hooks
   */
  constructor(box, hooks) {
    this.box = box;
    this.hooks = hooks;
    this.isRunning = false;
    /** @type {HTMLElement | null} */
    this.article = null;
    /** What of it is not saved yet. @type {Element[]} */
    this.live = [];
    /** What is saved, as which entry, until its article is in the document. @type {{node: Element, sequence: number}[]} */
    this.done = [];
    /** The block whose text goes on. @type {Element[]} */
    this.open = [];
    /** @type {Text | null} */
    this.text = null;
    /** Whether the reader has just answered a question here. */
    this.isDeciding = false;
    /** The calls that the reader has answered, and the server does not know of yet. @type {Set<string>} */
    this.decided = new Set();
  }

  /**
   * Something happened, by the names of /v1/chat.
   * @param {string} kind
   * @param {any} data
   */
  onEvent(kind, data) {
    if (ENDS.has(kind)) {
      this.end();
      if (kind !== "suspended") this.leaveQuestions();
      if (kind === "error" && !this.box.querySelector(FAILED)) this.fail(data.message);
      if (kind === "suspended") this.hooks.suspended();
      return;
    }
    if (kind === "typing") this.repeat();
    if (kind === "typing" || kind === "accepted") this.begin();
    else if (kind === "thinking") this.think(data.text);
    else if (kind === "prose") this.say(data);
    else if (kind === "tool_started") this.use(data);
    else return;
    this.hooks.changed();
  }

  /**
   * An entry was saved: its article shows it from now on.
   * @param {number} sequence
   */
  saved(sequence) {
    this.done.push(...this.live.map((node) => ({ node, sequence })));
    this.live = [];
    this.open = [];
  }

  /**
   * The saved articles are in the document. A block that streamed takes its place in them, so that what is marked or
   * scrolled in it stays so.
   * @param {Element} articles
   * @param {number} reached the newest entry that they show
   */
  settle(articles, reached) {
    const due = this.done.filter((one) => one.sequence <= reached).map((one) => one.node);
    this.done = this.done.filter((one) => one.sequence > reached);
    const all = due.length ? [...articles.children] : [];
    const answers = all.slice(all.findLastIndex((one) => one.matches(".user")) + 1);
    const made = answers.flatMap((one) => [...one.querySelectorAll(":scope > div > *")]);
    for (const old of due) {
      const isThinking = old instanceof HTMLDetailsElement;
      const at = made.findIndex((one) => (isThinking ? one.matches("details.thinking") : one.isEqualNode(old)));
      if (at !== -1 && isThinking) made.splice(0, at + 1)[at].toggleAttribute("open", old.open);
      if (at === -1 || isThinking) old.remove();
      else made.splice(0, at + 1)[at].replaceWith(old);
    }
    for (const old of /** @type {NodeListOf<HTMLElement>} */ (this.box.querySelectorAll(".saved"))) {
      const isLeft = this.done.some((one) => old.contains(one.node)) || Number(old.dataset.sequence ?? 0) > reached;
      if (!isLeft) old.remove();
    }
  }

  /** An answer begins; if it has begun already, the stream was too slow, and repeats it. */
  repeat() {
    for (const old of this.live) old.remove();
    this.live = [];
    this.open = [];
  }

  begin() {
    if (this.isRunning) return;
    this.isRunning = true;
    for (const one of this.box.querySelectorAll(`${FAILED}, .told`)) one.remove();
    if (this.isDeciding) this.focusNext();
    else this.leaveQuestions();
    this.article = make(
      "article",
      { class: "assistant running", "aria-busy": "true" },
      make("header", {}, make("a", {}, "Assistant"), make("span", { class: "about" }, make("span", { class: "typing", role: "img", "aria-label": "is answering" }, make("i"), make("i"), make("i")))),
      make("div"),
    );
    this.box.insertBefore(this.article, this.box.querySelector(".suspended")); // what is moved loses the focus
    this.hooks.busy(true);
  }

  /**
   * More of what the model thinks: folded, as a saved article has it.
   * @param {string} text
   */
  think(text) {
    this.begin();
    const last = this.live.at(-1);
    const fold = last?.matches("details.thinking") ? last : make("details", { class: "thinking" }, make("summary", {}, "Thinking"), make("p", { dir: "auto" }));
    if (fold !== last) this.add(fold);
    this.open = [];
    const words = fold.lastElementChild?.lastChild;
    if (words instanceof Text) words.appendData(text);
    else fold.lastElementChild?.append(text);
  }

  /**
   * More of its text: the blocks that have closed stand as they will stay, the open one grows.
   * @param {{closed: string, open: string | null, text: string}} piece
   */
  say(piece) {
    this.begin();
    if (piece.open !== null) {
      for (const old of this.open) old.remove();
      this.live = this.live.filter((one) => !this.open.includes(one));
      const [closed, open] = [piece.closed, piece.open].map((/** @type {string} */ html) => {
        const made = fragment(html);
        addCopyButtons(made); // as the saved article has them: `settle` looks for equal nodes
        return [...made.children];
      });
      this.open = open;
      this.text = document.createTextNode("");
      innermost(this.open.at(-1))?.append(this.text);
      this.add(...closed, ...this.open);
    }
    if (piece.text) this.text?.appendData(piece.text);
    this.flow();
  }

  /** Its words move: the sign that it is under way stands still until they stop. */
  flow() {
    const { article } = this;
    article?.classList.add("flows");
    clearTimeout(this.timer);
    this.timer = setTimeout(() => article?.classList.remove("flows"), STILL_MS);
  }

  timer = 0;

  /** @param {...Element} blocks */
  add(...blocks) {
    this.live.push(...blocks);
    this.article?.lastElementChild?.append(...blocks);
  }

  /** @param {{name: string, arguments: string}} call */
  use(call) {
    this.begin();
    this.open = [];
    const line = make("p", { class: "using" }, make("b", {}, call.name), " ", make("span", {}, call.arguments === "{}" ? "" : call.arguments));
    this.add(line);
  }

  end() {
    const wasRunning = this.isRunning;
    this.isRunning = false;
    this.saved(0); // what is left was not saved, and nothing will show it
    const article = this.article;
    this.article = null;
    if (!article) return;
    if (!article.lastElementChild?.hasChildNodes()) article.remove();
    else this.hooks.ended(); // its entry may have been read before this stream began: no other event would settle it
    article.classList.add("saved");
    article.querySelector(".about")?.remove();
    if (wasRunning) this.hooks.busy(false);
    this.hooks.changed();
  }

  /**
   * @param {string} message
   * @param {(() => void) | null} [again] asks for the answer once more
   * @param {boolean} [lasts] whether it stays there while other messages are answered
   */
  fail(message, again = null, lasts = false) {
    const line = make("p", { class: lasts ? "failed lasting" : "failed", role: "alert" }, message);
    const ask = () => {
      line.remove();
      again?.();
    };
    if (again) line.append(" ", make("button", { type: "button", click: ask }, "Ask again"));
    this.box.querySelector(FAILED)?.remove();
    this.box.append(line);
  }

  /**
   * Show what a command had to say, which is not part of the conversation.
   * @param {string} text
   */
  note(text) {
    this.box.querySelector(".told")?.remove();
    this.box.append(make("p", { class: "told", role: "status" }, text));
    this.hooks.changed();
  }

  /**
   * Ask about calls of tools that wait. A question that stands there already stays as it is, with its focus.
   * @param {{id: string, name: string, arguments: string, reason: string}[]} pending
   * @param {((id: string, isApproved: boolean) => Promise<unknown>) | null} answer null: the reader has no say in it
   */
  suspend(pending, answer) {
    const waiting = pending.filter((call) => !this.decided.has(call.id));
    const known = new Map(this.questions.map((one) => [one.dataset.call, one]));
    for (const [id, one] of known) if (!waiting.some((call) => call.id === id)) one.remove();
    for (const call of waiting) {
      if (known.has(call.id)) continue;
      const say = (/** @type {boolean} */ isApproved) => {
        question.remove();
        this.isDeciding = true;
        this.decided.add(call.id);
        this.focusNext();
        answer?.(call.id, isApproved);
      };
      const buttons = answer && [
        make("button", { type: "button", class: "primary", click: () => say(true) }, "Allow"),
        make("button", { type: "button", click: () => say(false) }, "Refuse"),
      ];
      const question = make(
        "section",
        { class: "suspended", "aria-label": `${call.name} waits for an approval`, "data-call": call.id },
        make("p", {}, visible(call.reason) || "May it be done?"),
        make("pre", { class: "code", tabindex: 0 }, make("b", {}, visible(call.name)), " ", visible(call.arguments)),
        make("div", { class: "buttons" }, ...(buttons ?? ["It waits for a person who may write here."])),
      );
      this.box.append(question);
    }
    if (this.isDeciding && waiting.length) this.focusNext();
    this.hooks.changed();
  }

  get questions() {
    return /** @type {HTMLElement[]} */ ([...this.box.querySelectorAll(".suspended")]);
  }

  /** The questions are over. */
  leaveQuestions() {
    this.isDeciding = false;
    for (const one of this.questions) one.remove();
  }

  /** The reader goes on with the next question, or writes; the focus is never taken from elsewhere, nor from a question. */
  focusNext() {
    const { activeElement: focused } = document;
    if (this.questions.some((one) => one.contains(focused))) return;
    const isFree = !focused || focused === document.body || this.box.contains(focused) || focused.matches(".composer textarea");
    const next = /** @type {HTMLElement | null} */ (this.box.querySelector(".suspended button"));
    if (isFree && next) next.focus();
    else if (isFree) this.hooks.decided();
  }

  /** Forget it: the stream was cut off, and repeats what is under way. Messages sent here still wait. */
  reset() {
    this.end();
    for (const one of [...this.box.children]) {
      if (!one.matches(".said, .lasting")) one.remove();
    }
  }
}

/**
 * Where the text of an open block goes on.
 * @param {Element | undefined} block
 */
function innermost(block) {
  return block?.querySelector("pre code") ?? block?.querySelector("pre") ?? block;
}

/**
 * A text to the letter, for a person who decides by it: what cannot be seen, or turns the order of others, by its number.
 * @param {string} text
 */
function visible(text) {
  return text.replace(/(?!\n)[\p{C}\p{Zl}\p{Zp}]/gu, (one) => `\\u{${one.codePointAt(0)?.toString(16)}}`);
}
