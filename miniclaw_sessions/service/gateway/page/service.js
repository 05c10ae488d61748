// How the daemon is: whether everything is saved, what was lost, its numbers as plots, backups.

import { isBounded, may } from "./access.js";
import { Refused, get, send } from "./api.js";
import { askText } from "./dialogs.js";
import { icon, make } from "./elements.js";
import { attempt, notify } from "./notices.js";
import { Plots } from "./plots.js";
import { UsageTable } from "./usage.js";
import { bytes, counted, count, duration, moment } from "./words.js";

const AGAIN_MS = 5_000;

export class ServiceView {
  /** @param {HTMLElement} main */
  constructor(main) {
    document.title = "Service";
    this.tiles = make("dl", { class: "tiles" });
    this.state = make("section", {});
    this.more = make("section", {});
    this.kept = make("section", {});
    this.plots = new Plots();
    const head = make("header", { class: "top" }, make("a", { class: "icon back", href: "#/", "aria-label": "All sessions" }, icon("back")), make("div", { class: "who" }, make("h1", {}, "Service")));
    main.replaceChildren(make("div", { class: "page" }, head, make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Service" }, this.state, this.tiles, this.plots.box, new UsageTable().box, this.more, this.kept)));
    if (isBounded()) {
      this.state.replaceChildren(make("p", { class: "hint" }, "How the service is, is not shown to this token."));
      return;
    }
    this.timer = setInterval(() => this.refresh(), AGAIN_MS);
    if (may("admin")) this.drawUpkeep();
    this.refresh();
    attempt(() => this.drawKept());
  }

  close() {
    clearInterval(this.timer);
    this.plots.close();
  }

  async refresh() {
    await attempt(async () => {
      const [health, numbers] = await Promise.all([this.health(), get("v1/statistics")]);
      this.drawState(health);
      this.drawTiles(health, numbers);
      await this.plots.refresh();
    });
  }

  /** A daemon that is not well replies with 503. */
  async health() {
    try {
      return await get("health");
    } catch (error) {
      if (error instanceof Refused && error.status === 503) return { status: "failing", problems: [error.message], losses: [] };
      throw error;
    }
  }

  /** @param {any} health */
  drawState(health) {
    const isWell = health.status === "ok";
    const losses = health.losses.length > 0 && [
      make("h2", {}, "Losses"),
      make("ul", {}, ...health.losses.map((/** @type {string} */ one) => make("li", {}, one))),
      may("admin") && make("button", { type: "button", click: () => this.act("v1/losses/acknowledge", (reply) => `${counted(reply.acknowledged, "session")} acknowledged.`) }, "Acknowledge"),
    ];
    this.state.replaceChildren(
      make("p", { class: isWell ? "state ok" : "state failing" }, isWell ? "Messages are accepted and saved." : "Something is wrong."),
      make("ul", { class: "problems" }, ...health.problems.map((/** @type {string} */ one) => make("li", {}, one))),
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
      ["Quarantine", count(numbers.quarantined), numbers.quarantined ? "damaged, set aside" : "no damage"],
    ];
    this.tiles.replaceChildren(...tiles.map(([name, value, about]) => make("div", {}, make("dt", {}, name), make("dd", {}, make("b", {}, value), make("span", {}, about)))));
  }

  async drawKept() {
    const [{ backups }, { files }] = await Promise.all([get("v1/backups"), get("v1/quarantine")]);
    const copies = backups.map((/** @type {any} */ one) => make("li", {}, make("code", {}, one.path), make("span", {}, moment(one.made_at))));
    const damaged = files.map((/** @type {any} */ one) =>
      make("li", {}, make("code", {}, one.file || one.name), make("span", {}, [one.reason, one.at && moment(one.at), bytes(one.bytes)].filter(Boolean).join(" · "))),
    );
    this.kept.replaceChildren(
      make("h2", {}, "Backups"),
      copies.length ? make("ul", { class: "rows" }, ...copies.reverse()) : make("p", { class: "hint" }, "There are none."),
      ...(damaged.length ? [make("h2", {}, "Quarantine"), make("ul", { class: "rows" }, ...damaged)] : []),
    );
  }

  drawUpkeep() {
    const buttons = make(
      "div",
      { class: "buttons start" },
      make("button", { type: "button", click: () => this.backUp() }, "Make a backup…"),
      make("button", { type: "button", click: () => this.act("v1/check", (reply) => (reply.sound ? `Sound: ${counted(reply.entries, "entry", "entries")} of ${counted(reply.sessions, "session")}.` : `Not sound: ${reply.problems.join("; ")}`)) }, "Check everything"),
      make("button", { type: "button", click: () => this.act("v1/flush", (reply) => `${counted(reply.written, "file")} written.`) }, "Write all files now"),
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

  async backUp() {
    await askText({
      title: "Make a backup", label: "Directory on the server, by its whole path", confirm: "Back up", required: true,
      hint: "It must not be there yet, or be empty. The daemon goes on meanwhile.",
      act: async (directory) => {
        const made = await send("POST", "v1/backup", { directory: directory.trim() });
        notify(`${counted(made.sessions, "session")} copied to ${made.directory}, as of ${moment(made.made_at)}.`);
      },
    });
    await attempt(() => this.drawKept());
  }
}
