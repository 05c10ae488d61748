// Server-sent events, read with fetch because an EventSource cannot send the token. A stream that ends is opened again
// behind the last event; while the page is hidden it is closed, because a browser opens few connections.

import { Refused, request, whenAnswered } from "./api.js";

const FIRST_WAIT_MS = 250;
const SOON_MS = 2 * FIRST_WAIT_MS;
const LONGEST_WAIT_MS = 8_000;
const HIDDEN_MS = 20_000;

/** @typedef {"connecting" | "open" | "lost"} LiveState */

/** One stream, for as long as it is wanted. */
export class Live {
  /**
   * @param {string} path
   * @param {Record<string, any>} query of the first request; later ones say the last event's id
   * @param {{event: (kind: string, data: any) => void, state?: (state: LiveState) => void,
   *   gone?: (error: Refused) => any}} hooks `state` gets each change: "open" says that the stream goes on behind what
   *   came before, "connecting" that it is not open, but that the server has answered something else
   */
  constructor(path, query, hooks) {
    this.path = path;
    this.query = query;
    this.hooks = hooks;
    /** @type {string | null} */
    this.last = null;
    this.isWanted = true;
    /** @type {LiveState} */
    this.state = "connecting";
    this.waitMs = FIRST_WAIT_MS;
    /** @type {AbortController | null} */
    this.connection = null;
    this.hiddenTimer = 0;
    this.retryTimer = 0;
    this.onVisibility = () => this.visibilityChanged();
    this.onOnline = () => this.hurry();
    this.onAnswer = () => this.answered();
    document.addEventListener("visibilitychange", this.onVisibility);
    addEventListener("online", this.onOnline);
    whenAnswered.add(this.onAnswer);
    this.open();
  }

  /** End it for good. */
  close() {
    this.isWanted = false;
    document.removeEventListener("visibilitychange", this.onVisibility);
    removeEventListener("online", this.onOnline);
    whenAnswered.delete(this.onAnswer);
    clearTimeout(this.hiddenTimer);
    clearTimeout(this.retryTimer);
    this.connection?.abort();
  }

  /** Try again now, where it waits to do so. */
  hurry() {
    if (!this.connection && this.isWanted && !document.hidden) {
      clearTimeout(this.retryTimer);
      this.open();
    }
  }

  /** It is cut off: open it again, behind its last event. */
  cut() {
    this.connection?.abort();
  }

  /** The server has answered: nothing is lost any more, and the stream need not wait for long to be opened. */
  answered() {
    if (this.state !== "lost" || !this.isWanted) return;
    this.become("connecting");
    if (this.waitMs > SOON_MS) this.hurry(); // or else one that is cut off again and again would never rest
  }

  /** @param {LiveState} state */
  become(state) {
    if (state === this.state) return;
    this.state = state;
    this.hooks.state?.(state);
  }

  visibilityChanged() {
    clearTimeout(this.hiddenTimer);
    if (document.hidden) this.hiddenTimer = setTimeout(() => this.connection?.abort(), HIDDEN_MS);
    else this.hurry();
  }

  async open() {
    const connection = new AbortController();
    this.connection = connection;
    try {
      /** @type {Record<string, string>} */
      const headers = { Accept: "text/event-stream" };
      if (this.last !== null) headers["Last-Event-ID"] = this.last;
      const response = await request("GET", this.path, { query: this.query, headers, signal: connection.signal });
      this.waitMs = FIRST_WAIT_MS;
      this.become("open");
      await this.read(/** @type {ReadableStream<Uint8Array>} */ (response.body));
    } catch (error) {
      if (error instanceof Refused && error.status > 0 && !error.passes) {
        this.isWanted = false;
        this.hooks.gone?.(error);
      }
    }
    this.connection = null;
    if (!this.isWanted) return;
    this.become("lost");
    if (document.hidden) return; // it is opened again when the page is visible
    this.retryTimer = setTimeout(() => this.open(), this.waitMs);
    this.waitMs = Math.min(this.waitMs * 2, LONGEST_WAIT_MS);
  }

  /** @param {ReadableStream<Uint8Array>} body */
  async read(body) {
    const reader = body.pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
    let rest = "";
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      const blocks = (rest + piece.value).split("\n\n");
      rest = blocks.pop() ?? "";
      for (const block of blocks) this.emit(block);
    }
  }

  /** @param {string} block */
  emit(block) {
    let kind = "message";
    let data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) kind = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
      else if (line.startsWith("id: ")) this.last = line.slice(4);
    }
    if (data && this.isWanted) this.hooks.event(kind, JSON.parse(data));
  }
}
