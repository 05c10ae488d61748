// The chat box: says something, stops the answer, and never loses what was written: it stays until the server has it, and
// is sent again with the same key, so that it is said once however often that takes.

import { Refused, send, sessionPath } from "./api.js";
import { icon, make } from "./elements.js";
import { attempt } from "./notices.js";

const AGAIN_MS = 700;
const LONGEST_MS = 60_000;
const SAID_ALREADY = new Set(["duplicate_message", "message_under_way"]);
const STOPPED = new Set(["message_stopped", "turn_cut_off"]);

/** What was written and not sent, by session. @type {Map<string, string>} */
const drafts = new Map();

export class Composer {
  /**
   * @param {{session_id: string, channel: string, chat_id: string}} session
   * @param {{said: (text: string) => HTMLElement, saved: () => void, failed: (message: string) => void}} hooks
   *   `said` shows what was just said until it is saved
   */
  constructor(session, hooks) {
    this.session = session;
    this.hooks = hooks;
    this.isClosed = false;
    this.isBusy = false;
    this.sending = 0;
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
        if (this.isBusy) this.stop();
        else this.field.blur();
      }
    });
    requestAnimationFrame(() => this.resized());
  }

  close() {
    this.isClosed = true;
  }

  focus() {
    this.field.focus();
  }

  /** @param {boolean} isBusy whether an answer is under way, whoever asked */
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
   */
  async say(text) {
    const shown = this.hooks.said(text);
    const key = crypto.randomUUID();
    const { channel, chat_id } = this.session;
    this.sending++;
    this.setBusy(this.isBusy);
    try {
      await this.sent({ channel, chat_id, message: text }, key);
      this.hooks.saved();
    } catch (error) {
      const refused = error instanceof Refused ? error : new Refused(0, { message: String(error) });
      if (SAID_ALREADY.has(refused.type) || STOPPED.has(refused.type)) {
        this.hooks.saved();
      } else {
        if (refused.type !== "agent_error" && refused.type !== "model_error") this.giveBack(text);
        this.hooks.failed(refused.message);
      }
    } finally {
      shown.remove();
      this.sending--;
      this.setBusy(this.isBusy);
    }
  }

  /**
   * Send until the server has an answer to it, or refuses it for good.
   * @param {any} json
   * @param {string} key
   */
  async sent(json, key) {
    for (let wait = AGAIN_MS; ; wait = Math.min(wait * 2, LONGEST_MS)) {
      try {
        return await send("POST", "v1/chat", json, { key });
      } catch (error) {
        if (!(error instanceof Refused) || !error.passes || error.type === "agent_error" || this.isClosed) throw error;
        await new Promise((resolve) => setTimeout(resolve, wait));
      }
    }
  }

  /** @param {string} text */
  giveBack(text) {
    if (!this.field.value) this.field.value = text;
    this.resized();
  }

  stop() {
    return attempt(() => send("POST", sessionPath(this.session.session_id, "stop")));
  }
}
