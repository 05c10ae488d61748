// How the daemon is: whether everything is saved, what to do where not, its numbers, usage, backups and tokens.

import { isBounded, may } from "./access.js";
import { problem } from "./advice.js";
import { Refused, get, send } from "./api.js";
import { Backups } from "./backups.js";
import { icon, make } from "./elements.js";
import { attempt, notify } from "./notices.js";
import { Plots } from "./plots.js";
import { TokenList } from "./tokens.js";
import { UsageTable } from "./usage.js";
import { counted, count, duration } from "./words.js";

const AGAIN_MS = 5_000;

export class ServiceView {
  /** @param {HTMLElement} main */
  constructor(main) {
    document.title = "Service";
    this.tiles = make("dl", { class: "tiles" });
    this.state = make("section", {});
    this.more = make("section", {});
    this.body = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Service" }, this.state);
    const head = make("header", { class: "top" }, make("a", { class: "icon back", href: "#/", "aria-label": "All sessions" }, icon("back")), make("div", { class: "who" }, make("h1", {}, "Service")));
    main.replaceChildren(make("div", { class: "page" }, head, this.body));
    if (isBounded()) {
      this.state.replaceChildren(make("p", { class: "hint" }, "How the service is, is not shown to this token."));
      return;
    }
    this.plots = new Plots();
    this.backups = new Backups();
    this.body.append(this.tiles, this.plots.box, new UsageTable().box, this.more, this.backups.box, this.backups.quarantine);
    this.timer = setInterval(() => this.refresh(), AGAIN_MS);
    if (may("admin")) {
      this.drawUpkeep();
      this.body.append(new TokenList().box);
    }
    this.refresh();
  }

  close() {
    clearInterval(this.timer);
    this.plots?.close();
  }

  async refresh() {
    await attempt(async () => {
      const [health, numbers] = await Promise.all([this.health(), get("v1/statistics")]);
      this.drawState(health);
      this.drawTiles(health, numbers);
      await this.plots?.refresh();
    });
  }

  /** A daemon that is not well replies with 503. */
  async health() {
    try {
      return await get("health");
    } catch (error) {
      if (error instanceof Refused && error.status === 503) return error.reply?.problems ? error.reply : { status: "failing", problems: [error.message], losses: [] };
      throw error;
    }
  }

  /** @param {any} health */
  drawState(health) {
    const shown = JSON.stringify([health.status, health.problems, health.losses]);
    if (shown === this.shown) return; // what is drawn again loses the focus
    this.shown = shown;
    const isWell = health.status === "ok";
    const acts = may("admin") ? { flush: () => this.flush(), check: () => this.check() } : {};
    const losses = health.losses.length > 0 && [
      make("h2", {}, "Losses"),
      make("ul", { class: "problems" }, ...health.losses.map((/** @type {string} */ one) => problem(one, {}))),
      may("admin") && make("button", { type: "button", click: () => this.act("v1/losses/acknowledge", (reply) => `${counted(reply.acknowledged, "session")} acknowledged.`) }, "Acknowledge"),
    ];
    this.state.replaceChildren(
      make("p", { class: isWell ? "state ok" : "state failing" }, isWell ? "Messages are accepted and saved." : "Something is wrong."),
      make("ul", { class: "problems" }, ...health.problems.map((/** @type {string} */ one) => problem(one, acts))),
      ...(losses || []).filter((one) => one !== false),
    );
  }

  /**
   * @param {any} health
   * @param {any} numbers
   */
  drawTiles(health, numbers) {
    const tiles = [
      ["Sessions", count(numbers.sessions), `${count(numbers.cached)} in memory`],
      ["New messages", count(numbers.appended), `${count(numbers.unsaved_entries)} not yet on the disk`],
      ["Store", numbers.store, numbers.store_state],
      ["Up for", health.uptime_s === undefined ? "…" : duration(health.uptime_s), health.version ? `version ${health.version}` : ""],
      ["Last flush", `${Math.round(numbers.last_flush_seconds * 1000)} ms`, `${counted(numbers.snapshots_written, "file")} written`],
      ["Quarantine", count(numbers.quarantined), numbers.quarantined ? make("button", { type: "button", class: "plain", click: () => this.toQuarantine() }, "damaged, set aside: look") : "no damage"],
    ];
    this.tiles.replaceChildren(...tiles.map(([name, value, about]) => make("div", {}, make("dt", {}, name), make("dd", {}, make("b", {}, value), make("span", {}, about)))));
  }

  drawUpkeep() {
    const buttons = make(
      "div",
      { class: "buttons start" },
      make("button", { type: "button", click: () => this.check() }, "Check everything"),
      make("button", { type: "button", click: () => this.flush() }, "Write all files now"),
    );
    this.more.replaceChildren(make("h2", {}, "Upkeep"), buttons);
  }

  /**
   * @param {string} path
   * @param {(reply: any) => string} sentenceOf
   */
  act(path, sentenceOf) {
    return attempt(async () => {
      notify(sentenceOf(await send("POST", path)));
      await this.refresh();
    });
  }

  check() {
    return this.act("v1/check", (reply) => (reply.sound ? `Sound: ${counted(reply.entries, "entry", "entries")} of ${counted(reply.sessions, "session")}.` : `Not sound: ${reply.problems.join("; ")}`));
  }

  flush() {
    return this.act("v1/flush", (reply) => `${counted(reply.written, "file")} written.`);
  }

  toQuarantine() {
    this.backups?.quarantine.scrollIntoView({ block: "start" });
    this.backups?.quarantine.focus();
  }
}
