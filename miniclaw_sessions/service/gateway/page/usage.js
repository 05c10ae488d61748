// What the models' replies used and cost, by day, model, channel or chat: a table whose rows have a bar each.

import { money } from "./access.js";
import { get } from "./api.js";
import { make } from "./elements.js";
import { attempt } from "./notices.js";
import { compact, count, counted } from "./words.js";

const ROWS = 31;
const DAY_MS = 86_400_000;
const KINDS = { day: "Day", model: "Model", channel: "Channel", chat: "Chat" };
const RANGES = { 7: "last 7 days", 30: "last 30 days", 90: "last 90 days", 0: "from the beginning" };
const NUMBERS = ["Replies", "Tokens in", "from the cache", "Tokens out"];

export class UsageTable {
  constructor() {
    this.table = make("div", { class: "usage", tabindex: 0, role: "region", "aria-label": "Usage" });
    const draw = () => attempt(() => this.show(by.value, Number(range.value)));
    const choose = (/** @type {Record<string, string>} */ choices, /** @type {string} */ label, /** @type {string} */ chosen) =>
      make("select", { "aria-label": label, change: draw }, ...Object.entries(choices).map(([value, name]) => make("option", { value, selected: value === chosen }, name)));
    const by = choose(KINDS, "Usage by", "day");
    const range = choose(RANGES, "Time of usage", "30");
    this.box = make("section", {}, make("h2", {}, "Usage by ", by, " ", range), this.table);
    draw();
  }

  /**
   * @param {string} by
   * @param {number} days 0: all
   */
  async show(by, days) {
    const since = days ? new Date(Date.now() - (days - 1) * DAY_MS).toISOString().slice(0, 10) : null;
    const { rows, total, left_out } = await get("v1/usage", { by, since, limit: ROWS });
    if (!rows.length) {
      this.table.replaceChildren(make("p", { class: "hint" }, days ? "No model has replied in this time." : "No model has replied yet."));
      return;
    }
    const measure = total.cost ? "cost" : "total_tokens";
    const most = Math.max(...rows.map((/** @type {any} */ row) => row[measure] ?? 0), Number.MIN_VALUE);
    const heads = [KINDS[/** @type {keyof KINDS} */ (by)], measure === "cost" ? "Share of the cost" : "Share of the tokens", ...NUMBERS, "Cost"];
    const more = left_out ? [make("p", { class: "hint" }, `${counted(left_out, "row")} more, of the ${by === "day" ? "older" : "lesser"} ones.`)] : [];
    this.table.replaceChildren(
      make(
        "table",
        { role: "table" }, // the roles, because a phone has no table layout
        make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...heads.map((head) => make("th", { role: "columnheader", scope: "col" }, head)))),
        make("tbody", { role: "rowgroup" }, ...rows.map((/** @type {any} */ row) => line(row, named(row.name, by), bar(row[measure] ?? 0, most, total[measure])))),
        make("tfoot", { role: "rowgroup" }, line(total, "All", "")),
      ),
      ...more,
    );
  }
}

/**
 * How much of all it is: drawn against the greatest, and said in words.
 * @param {number} value
 * @param {number} most
 * @param {number} all
 */
function bar(value, most, all) {
  const drawn = make("i", { class: "bar", "aria-hidden": "true" });
  drawn.style.setProperty("--share", `${(100 * value) / most}%`);
  return make("span", { class: "share" }, drawn, `${all ? Math.round((100 * value) / all) : 0} %`);
}

/**
 * @param {string} name
 * @param {string} by
 */
function named(name, by) {
  return by === "chat" ? make("a", { href: `#/session/${encodeURIComponent(name)}` }, name) : name || "not said";
}

/**
 * @param {any} row
 * @param {Node | string} name
 * @param {Node | string} share
 */
function line(row, name, share) {
  const read = row.input_tokens + row.cache_write_tokens;
  const numbers = [row.replies, read, row.cache_read_tokens, row.output_tokens].map((value, place) =>
    make("td", { role: "cell", title: count(value), "data-of": NUMBERS[place] }, place ? compact(value) : count(value)),
  );
  const unpriced = row.unpriced && `${count(row.unpriced)} without a price`;
  const estimated = row.estimated && `${count(row.estimated)} estimated`;
  const remark = [unpriced, estimated].filter(Boolean).join(", ");
  const cost = row.cost === null ? "" : money(row.cost);
  return make(
    "tr",
    { role: "row" },
    make("th", { role: "rowheader", scope: "row", dir: "auto" }, name),
    make("td", { role: "cell" }, share),
    ...numbers,
    make("td", { role: "cell" }, cost, remark && make("span", { class: "hint" }, remark)),
  );
}
