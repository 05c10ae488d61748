// The chat box: says something, stops the answer, and never loses what was written: it stays until the server has it, and
// is sent again with the same key, so that it is said once however often that takes. The messages of a session are sent one
// after the other: the server takes up an interrupted answer only while nothing newer was said.

import { Attachments, messageOf } from "./attachments.js";
import { Refused, send, sessionPath, whenAnswered } from "./api.js";
import { icon, make } from "./elements.js";
import { attempt } from "./notices.js";
import { drop, filesOf, keep, outcomeOf, unsent } from "./outbox.js";

const AGAIN_MS = 700;
const LONGEST_MS = 60_000;
const STOP = /^\/stop$/i;

/** What was written and not sent, by session; it outlives a reload. @type {Map<string, string>} */
const drafts = new Map(JSON.parse(sessionStorage.getItem("drafts") ?? "[]"));
addEventListener("pagehide", () => sessionStorage.setItem("drafts", JSON.stringify([...drafts].filter(([, text]) => text))));
/** The chat boxes that are shown, by session. @type {Map<string, Composer>} */
const open = new Map();
/** What the next message waits for, by session: all messages before it, those of closed boxes too. @type {Map<string, Promise<unknown>>} */
const lines = new Map();

/** @typedef {import("./attachments.js").Attached} Attached */

export class Composer {
  /**
   * @param {{session_id: string, channel: string, chat_id: string, chosen_model?: string | null}} session
   * @param {{said: (text: string, key: string, files: Attached[]) => HTMLElement, saved: () => void, replaced: (shown?: HTMLElement) => void, told: (text: string) => void,
   *   failed: (message: string, again: (() => void) | null, lasts: boolean) => void}} hooks `said` shows what was just
   *   said until it is saved, and `replaced` is called when it is; `told` shows what a command has to say; `again` asks once more for the answer to what is
   *   saved; what `lasts` is shown also while other messages are answered
   */
  constructor(session, hooks) {
    this.session = session;
    this.hooks = hooks;
    this.isClosed = false;
    this.isBusy = false;
    this.sending = 0;
    /** Those that are not being sent now, oldest first, and what stands for them. @type {Map<AbortController, HTMLElement | undefined>} */
    this.waiting = new Map();
    /** Why they wait, where that is not only for those before them. */
    this.why = "";
    /** Ends the pause before the next attempt. @type {(() => void) | null} */
    this.wake = null;
    this.field = make("textarea", { id: "say", dir: "auto", rows: 1, placeholder: "Write a message", "aria-label": "Write a message", enterkeyhint: "send" });
    this.field.value = drafts.get(session.session_id) ?? "";
    this.stopButton = make("button", { type: "button", class: "icon stop", title: "Stop (Esc)", "aria-label": "Stop the answer", click: () => this.stop(), hidden: true }, icon("stop"));
    this.sendButton = make("button", { type: "submit", class: "icon primary", title: "Send (Enter)", "aria-label": "Send" }, icon("send"));
    this.attachments = new Attachments(session, () => this.resized());
    const { list, said, input, button } = this.attachments;
    this.form = make("form", { class: "composer", submit: (/** @type {Event} */ event) => this.submitted(event) }, list, said, input, button, this.field, this.stopButton, this.sendButton);
    this.field.addEventListener("input", () => this.resized());
    this.field.addEventListener("paste", (event) => this.pasted(event));
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.form.requestSubmit();
      }
      if (event.key === "Escape") {
        if (!this.stopButton.hidden) this.stop();
        else this.field.blur();
      }
    });
    open.set(session.session_id, this);
    requestAnimationFrame(() => this.resized());
  }

  /** What cannot be sent now is left to the next box of this session. */
  close() {
    this.isClosed = true;
    if (open.get(this.session.session_id) === this) open.delete(this.session.session_id);
    if (this.wake) this.abortWaiting();
  }

  /** Go on with what was said before this box was there, and may not have arrived, or not been answered. */
  resume() {
    for (const one of unsent(this.session.session_id)) {
      const files = filesOf(one);
      if (one.isSaved) this.ask(one);
      else if (files) this.say(one.text, one.key, files);
      else {
        drop(one.key);
        this.giveBack(one.text);
        this.hooks.failed("The message was not sent, and its files were lost when the page was loaded again. Attach them once more.", null, false);
      }
    }
  }

  focus() {
    this.field.focus();
  }

  /** @param {boolean} isBusy whether an answer is under way, for any client */
  setBusy(isBusy) {
    if (isBusy) this.explain("");
    else if (this.isBusy) this.wake?.();
    this.isBusy = isBusy;
    this.stopButton.hidden = !(isBusy || this.sending);
  }

  resized() {
    drafts.set(this.session.session_id, this.field.value);
    const { files, problem } = this.attachments;
    this.sendButton.disabled = Boolean(problem) || !(this.field.value.trim() || files.length);
    this.field.style.height = "auto";
    this.field.style.height = `${Math.min(this.field.scrollHeight, innerHeight * 0.4)}px`;
  }

  /** @param {Event} event */
  submitted(event) {
    event.preventDefault();
    const text = this.field.value.trim();
    if (this.sendButton.disabled) return;
    this.field.value = "";
    this.say(text, undefined, this.attachments.take());
  }

  /** @param {ClipboardEvent} event */
  pasted(event) {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length || event.clipboardData?.types.includes("text/plain")) return;
    event.preventDefault();
    this.attachments.add(files);
  }

  /**
   * Say it, and wait until it is answered.
   * @param {string} text
   * @param {string} [key]
   * @param {Attached[]} [files]
   */
  async say(text, key = crypto.randomUUID(), files = []) {
    const said = { session_id: this.session.session_id, text, key, files: files.length };
    keep(said, files);
    await this.ask(said, this.hooks.said(text, key, files));
  }

  /**
   * Ask for the answer to what was said, after all that was said before it.
   * @param {import("./outbox.js").Said} said
   * @param {HTMLElement} [shown] what stands for it until it is saved
   */
  async ask(said, shown) {
    if (STOP.test(said.text)) {
      this.abortWaiting();
      return this.answered(said, undefined, shown);
    }
    const before = lines.get(said.session_id);
    const answered = this.answered(said, before, shown);
    lines.set(said.session_id, Promise.allSettled([before, answered]));
    return answered;
  }

  /**
   * @param {import("./outbox.js").Said} said
   * @param {Promise<unknown> | undefined} before
   * @param {HTMLElement} [shown]
   */
  async answered(said, before, shown) {
    const stopping = new AbortController();
    this.sending++;
    this.waiting.set(stopping, shown);
    this.explain(this.why);
    this.setBusy(this.isBusy);
    let isArticle = false;
    try {
      const reply = await this.sent(said, before, stopping, shown);
      isArticle = !reply?.told;
      this.ended(said, "saved", "");
      if (reply?.told) this.hooks.told(reply.told);
    } catch (error) {
      const refused = error instanceof Refused ? error : new Refused(400, { message: stopping.signal.aborted ? "" : String(error) });
      if (!(this.isClosed && stopping.signal.aborted)) this.ended(said, outcomeOf(refused), refused.type === "message_stopped" ? "" : refused.message);
    } finally {
      if (isArticle || shown?.dataset.sequence) this.hooks.replaced(shown);
      else shown?.remove();
      this.waiting.delete(stopping);
      this.explain("");
      this.sending--;
      this.setBusy(this.isBusy);
    }
  }

  /**
   * @param {import("./outbox.js").Said} said
   * @param {import("./outbox.js").Outcome} outcome
   * @param {string} why
   */
  ended(said, outcome, why) {
    const kept = unsent(said.session_id).find((one) => one.key === said.key);
    const box = open.get(said.session_id) ?? this;
    const files = filesOf(said) ?? [];
    const again = () => {
      keep({ ...said, isSaved: true });
      box.ask(said);
    };
    drop(said.key);
    if (outcome === "back" && kept && !kept.isSaved) this.giveBack(said.text, files);
    if (outcome === "overtaken") box.hooks.failed(`Not answered, because the conversation went on: “${said.text}”`, () => box.say(said.text, undefined, files), true);
    else if (outcome !== "saved" && why) box.hooks.failed(why, outcome === "unanswered" ? again : null, false);
    box.hooks.saved();
  }

  /**
   * Send until the server has an answer to it, or refuses it for good; null: another box of this session has done that.
   * @param {import("./outbox.js").Said} said
   * @param {Promise<unknown> | undefined} before
   * @param {AbortController} stopping
   * @param {HTMLElement} [shown]
   */
  async sent(said, before, stopping, shown) {
    const { session_id, key } = said;
    const { channel, chat_id } = this.session;
    const files = filesOf(said) ?? [];
    const progress = files.length ? (/** @type {number} */ part) => showProgress(shown, part) : undefined;
    await unlessAborted(before, stopping.signal);
    if (!unsent(session_id).some((one) => one.key === key)) return null;
    for (let wait = AGAIN_MS; ; ) {
      this.waiting.delete(stopping);
      try {
        const message = await messageOf(said.text, files);
        return await send("POST", "v1/chat", { channel, chat_id, message, commands: true }, { key, signal: stopping.signal, progress });
      } catch (error) {
        if (!(error instanceof Refused) || outcomeOf(error) !== "again") throw error;
        this.waiting = new Map([[stopping, shown], ...this.waiting]);
        this.explain(!error.passes ? "" : error.status ? "waits for the server" : "waits for the connection");
        if (this.isClosed) this.abortWaiting();
        const isWoken = await this.pause(wait, stopping.signal, error.status === 0);
        wait = isWoken ? AGAIN_MS : Math.min(wait * 2, LONGEST_MS);
      }
    }
  }

  /**
   * Wait before the next attempt. The end of an answer ends it.
   * @param {number} time in ms
   * @param {AbortSignal} signal ends it with an error
   * @param {boolean} isLost whether the server could not be reached: its next reply to anything ends the pause
   * @returns {Promise<boolean>} whether it was ended before its time
   */
  async pause(time, signal, isLost) {
    let wake = () => {};
    const over = new Promise((resolve) => {
      wake = () => resolve(true);
      setTimeout(resolve, time, false);
    });
    this.wake = wake;
    if (isLost) whenAnswered.add(wake);
    try {
      return await unlessAborted(over, signal);
    } finally {
      this.wake = null;
      whenAnswered.delete(wake);
    }
  }

  /** @param {string} why what is shown with each message that waits */
  explain(why) {
    this.why = why;
    for (const shown of this.waiting.values()) {
      const about = shown?.querySelector(".about");
      if (about) about.textContent = why;
    }
  }

  abortWaiting() {
    for (const one of this.waiting.keys()) one.abort();
  }

  /**
   * @param {string} text
   * @param {Attached[]} [files]
   */
  giveBack(text, files = []) {
    const box = open.get(this.session.session_id) ?? this;
    box.attachments.set([...box.attachments.files, ...files]);
    box.field.value = [drafts.get(this.session.session_id), text].filter(Boolean).join("\n\n");
    box.resized();
    box.focus();
  }

  /** Stop the answer under way, and give back what could not be sent. */
  async stop() {
    const isAnswering = this.isBusy || this.sending > this.waiting.size;
    this.abortWaiting();
    if (isAnswering) await attempt(() => send("POST", sessionPath(this.session.session_id, "stop")));
  }
}

/**
 * @param {HTMLElement | undefined} shown
 * @param {number} part of it that has arrived
 */
function showProgress(shown, part) {
  const about = shown?.querySelector(".about");
  if (about) about.textContent = part < 1 ? `${Math.floor(part * 100)} % sent` : "";
}

/**
 * @template T
 * @param {Promise<T> | undefined} awaited
 * @param {AbortSignal} signal ends it with an error
 * @returns {Promise<any>}
 */
function unlessAborted(awaited, signal) {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    Promise.resolve(awaited).then(resolve);
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
}
