// An answer while it is made: its words as they come, its tools as they run. What is saved replaces it.

import { make } from "./elements.js";

const ENDS = new Set(["done", "stopped", "suspended", "error"]);
const FAILED = ".failed:not(.lasting)";

export class Turn {
  /**
   * @param {HTMLElement} box where it is shown
   * @param {{changed: () => void, busy: (isBusy: boolean) => void, suspended: () => void}} hooks
   */
  constructor(box, hooks) {
    this.box = box;
    this.hooks = hooks;
    this.isRunning = false;
    /** @type {HTMLElement | null} */
    this.article = null;
    /** @type {Text | null} */
    this.text = null;
  }

  /**
   * Something happened, by the names of /v1/chat.
   * @param {string} kind
   * @param {any} data
   */
  onEvent(kind, data) {
    if (ENDS.has(kind)) {
      this.end();
      if (kind === "error" && !this.box.querySelector(FAILED)) this.fail(data.message);
      if (kind === "suspended") this.hooks.suspended();
      return;
    }
    if (kind === "typing" || kind === "accepted") this.begin();
    else if (kind === "text") this.say(data.text);
    else if (kind === "tool_started") this.use(data);
    else return;
    this.hooks.changed();
  }

  /** An entry was saved: its article shows it from now on. */
  saved() {
    for (const old of this.box.querySelectorAll("[data-live]")) old.classList.add("saved");
    this.text = null;
  }

  /** The saved articles are in the document. */
  settle() {
    for (const old of this.box.querySelectorAll(".saved")) old.remove();
  }

  begin() {
    if (this.isRunning) return;
    this.isRunning = true;
    for (const one of this.box.querySelectorAll(`${FAILED}, .suspended, .told`)) one.remove();
    this.article = make(
      "article",
      { class: "assistant running", "aria-busy": "true" },
      make("header", {}, make("a", {}, "Assistant"), make("span", { class: "about" }, make("span", { class: "typing", role: "img", "aria-label": "is answering" }, make("i"), make("i"), make("i")))),
      make("div"),
    );
    this.box.append(this.article);
    this.hooks.busy(true);
  }

  /** @param {string} words */
  say(words) {
    this.begin();
    if (!this.text) {
      this.text = document.createTextNode("");
      this.article?.lastElementChild?.append(make("p", { "data-live": true }, this.text));
    }
    this.text.appendData(words);
  }

  /** @param {{name: string, arguments: string}} call */
  use(call) {
    this.begin();
    this.text = null;
    const line = make("p", { class: "using", "data-live": true }, make("b", {}, call.name), " ", make("span", {}, call.arguments === "{}" ? "" : call.arguments));
    this.article?.lastElementChild?.append(line);
  }

  end() {
    const wasRunning = this.isRunning;
    this.isRunning = false;
    this.text = null;
    const article = this.article;
    this.article = null;
    if (!article) return;
    if (!article.lastElementChild?.hasChildNodes()) article.remove();
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
   * Ask about calls of tools that wait.
   * @param {{id: string, name: string, arguments: string, reason: string}[]} pending
   * @param {((id: string, isApproved: boolean) => void) | null} answer null: the reader has no say in it
   */
  suspend(pending, answer) {
    for (const one of this.box.querySelectorAll(".suspended")) one.remove();
    for (const call of pending) {
      const say = (/** @type {boolean} */ isApproved) => {
        question.remove();
        answer?.(call.id, isApproved);
      };
      const buttons = answer && [
        make("button", { type: "button", class: "primary", click: () => say(true) }, "Allow"),
        make("button", { type: "button", click: () => say(false) }, "Refuse"),
      ];
      const question = make(
        "section",
        { class: "suspended", "aria-label": `${call.name} waits for an approval` },
        make("p", {}, visible(call.reason) || "May it be done?"),
        make("pre", { class: "code", tabindex: 0 }, make("b", {}, visible(call.name)), " ", visible(call.arguments)),
        make("div", { class: "buttons" }, ...(buttons ?? ["It waits for a person who may write here."])),
      );
      this.box.append(question);
    }
    this.hooks.changed();
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
 * A text to the letter, for a person who decides by it: what cannot be seen, or turns the order of others, by its number.
 * @param {string} text
 */
function visible(text) {
  return text.replace(/(?!\n)[\p{C}\p{Zl}\p{Zp}]/gu, (one) => `\\u{${one.codePointAt(0)?.toString(16)}}`);
}
