// The chat box: says something, stops the answer, and never loses what was written: it stays until the server has it, and
// is sent again with the same key, so that it is said once however often that takes.

import { Refused, send, sessionPath } from "./api.js";
import { icon, make } from "./elements.js";
import { attempt } from "./notices.js";
import { drop, keep, outcomeOf, unsent } from "./outbox.js";

const AGAIN_MS = 700;
const LONGEST_MS = 60_000;

/** What was written and not sent, by session; it outlives a reload. @type {Map<string, string>} */
const drafts = new Map(JSON.parse(sessionStorage.getItem("drafts") ?? "[]"));
addEventListener("pagehide", () => sessionStorage.setItem("drafts", JSON.stringify([...drafts].filter(([, text]) => text))));
/** The chat boxes that are shown, by session. @type {Map<string, Composer>} */
const open = new Map();

export class Composer {
  /**
   * @param {{session_id: string, channel: string, chat_id: string}} session
   * @param {{said: (text: string, key: string) => HTMLElement, saved: () => void, told: (text: string) => void,
   *   failed: (message: string, again: (() => void) | null) => void}} hooks `said` shows what was just said until it is
   *   saved; `told` shows what a command has to say; `again` asks once more for the answer to what is saved
   */
  constructor(session, hooks) {
    this.session = session;
    this.hooks = hooks;
    this.isClosed = false;
    this.isBusy = false;
    this.sending = 0;
    /** Those that were sent, and are sent again after a while. @type {Set<AbortController>} */
    this.waiting = new Set();
    this.field = make("textarea", { id: "say", rows: 1, placeholder: "Write a message", "aria-label": "Write a message", enterkeyhint: "send" });
    this.field.value = drafts.get(session.session_id) ?? "";
    this.stopButton = make("button", { type: "button", class: "icon stop", title: "Stop (Esc)", "aria-label": "Stop the answer", click: () => this.stop(), hidden: true }, icon("stop"));
    this.sendButton = make("button", { type: "submit", class: "icon primary", title: "Send (Enter)", "aria-label": "Send" }, icon("send"));
    this.form = make("form", { class: "composer", submit: (/** @type {Event} */ event) => this.submitted(event) }, this.field, this.stopButton, this.sendButton);
    this.field.addEventListener("input", () => this.resized());
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

  /** What waits is left to the next box of this session. */
  close() {
    this.isClosed = true;
    if (open.get(this.session.session_id) === this) open.delete(this.session.session_id);
    for (const one of this.waiting) one.abort();
  }

  /** Go on with what was said before this box was there, and may not have arrived. */
  resume() {
    for (const one of unsent(this.session.session_id)) this.say(one.text, one.key);
  }

  focus() {
    this.field.focus();
  }

  /** @param {boolean} isBusy whether an answer is under way, for any client */
  setBusy(isBusy) {
    this.isBusy = isBusy;
    this.stopButton.hidden = !(isBusy || this.sending);
  }

  resized() {
    drafts.set(this.session.session_id, this.field.value);
    this.sendButton.disabled = !this.field.value.trim();
    this.field.style.height = "auto";
    this.field.style.height = `${Math.min(this.field.scrollHeight, innerHeight * 0.4)}px`;
  }

  /** @param {Event} event */
  submitted(event) {
    event.preventDefault();
    const text = this.field.value.trim();
    if (!text) return;
    this.field.value = "";
    this.resized();
    this.say(text);
  }

  /**
   * Say it, and wait until it is answered.
   * @param {string} text
   * @param {string} [key]
   */
  async say(text, key = crypto.randomUUID()) {
    const said = { session_id: this.session.session_id, text, key };
    keep(said);
    await this.ask(said, this.hooks.said(text, key));
  }

  /**
   * Ask for the answer to what was said, until there is one or it is refused for good.
   * @param {import("./outbox.js").Said} said
   * @param {HTMLElement} [shown] what stands for it until it is saved
   */
  async ask(said, shown) {
    const stopping = new AbortController();
    this.sending++;
    this.setBusy(this.isBusy);
    try {
      const reply = await this.sent(said, stopping, shown);
      this.ended(said, "saved", "");
      if (reply.told) this.hooks.told(reply.told);
    } catch (error) {
      const refused = error instanceof Refused ? error : new Refused(400, { message: stopping.signal.aborted ? "" : String(error) });
      if (!(this.isClosed && stopping.signal.aborted)) this.ended(said, outcomeOf(refused), refused.type === "message_stopped" ? "" : refused.message);
    } finally {
      shown?.remove();
      this.waiting.delete(stopping);
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
    const isKnown = unsent(said.session_id).some((one) => one.key === said.key);
    drop(said.key);
    if (outcome === "back" && isKnown) this.giveBack(said.text);
    if (outcome !== "saved" && why) this.hooks.failed(why, outcome === "unanswered" ? () => this.ask(said) : null);
    this.hooks.saved();
  }

  /**
   * Send until the server has an answer to it, or refuses it for good.
   * @param {import("./outbox.js").Said} said
   * @param {AbortController} stopping
   * @param {HTMLElement} [shown]
   */
  async sent({ text, key }, stopping, shown) {
    const { channel, chat_id } = this.session;
    const about = shown?.querySelector(".about");
    for (let wait = AGAIN_MS; ; wait = Math.min(wait * 2, LONGEST_MS)) {
      try {
        return await send("POST", "v1/chat", { channel, chat_id, message: text, commands: true }, { key, signal: stopping.signal });
      } catch (error) {
        if (!(error instanceof Refused) || outcomeOf(error) !== "again") throw error;
        if (about && error.passes) about.textContent = error.status ? "waits for the server" : "waits for the connection";
      }
      this.waiting.add(stopping);
      if (this.isClosed) stopping.abort();
      await pause(wait, stopping.signal);
    }
  }

  /** @param {string} text */
  giveBack(text) {
    const box = open.get(this.session.session_id) ?? this;
    box.field.value = [drafts.get(this.session.session_id), text].filter(Boolean).join("\n\n");
    box.resized();
    box.focus();
  }

  /** Stop the answer under way, and give back what could not be sent. */
  async stop() {
    const isAnswering = this.isBusy || this.sending > this.waiting.size;
    for (const one of this.waiting) one.abort();
    if (isAnswering) await attempt(() => send("POST", sessionPath(this.session.session_id, "stop")));
  }
}

/**
 * @param {number} time in ms
 * @param {AbortSignal} signal ends it with an error
 */
function pause(time, signal) {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    setTimeout(resolve, time);
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
}
