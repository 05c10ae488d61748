// What the models' replies used and cost, by day, model, channel or chat.

import { money } from "./access.js";
import { get } from "./api.js";
import { make } from "./elements.js";
import { attempt } from "./notices.js";
import { compact, count, counted } from "./words.js";

const ROWS = 30;
const KINDS = { day: "Day", model: "Model", channel: "Channel", chat: "Chat" };

export class UsageTable {
  constructor() {
    this.table = make("div", { class: "usage", tabindex: 0, role: "region", "aria-label": "Usage" });
    const choices = Object.entries(KINDS).map(([by, name]) => make("option", { value: by }, name));
    const by = make("select", { "aria-label": "Usage by", change: () => attempt(() => this.show(by.value)) }, ...choices);
    this.box = make("section", {}, make("h2", {}, "Usage by ", by), this.table);
    attempt(() => this.show("day"));
  }

  /** @param {string} by */
  async show(by) {
    const { rows, total, left_out } = await get("v1/usage", { by, limit: ROWS });
    if (!rows.length) {
      this.table.replaceChildren(make("p", { class: "hint" }, "No model has replied yet."));
      return;
    }
    const heads = [KINDS[/** @type {keyof KINDS} */ (by)], "Replies", "Tokens in", "from the cache", "Tokens out", "Cost"];
    const more = left_out ? [make("p", { class: "hint" }, `${counted(left_out, "row")} more, of the lesser ones.`)] : [];
    this.table.replaceChildren(
      make(
        "table",
        {},
        make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
        make("tbody", {}, ...rows.map((/** @type {any} */ row) => line(row, named(row.name, by)))),
        make("tfoot", {}, line(total, "All")),
      ),
      ...more,
    );
  }
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
 */
function line(row, name) {
  const read = row.input_tokens + row.cache_write_tokens;
  const tokens = [read, row.cache_read_tokens, row.output_tokens].map((value) => make("td", { title: count(value) }, compact(value)));
  const unpriced = row.unpriced && `${count(row.unpriced)} without a price`;
  const estimated = row.estimated && `${count(row.estimated)} estimated`;
  const remark = [unpriced, estimated].filter(Boolean).join(", ");
  const cost = row.cost === null ? "" : money(row.cost);
  return make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, count(row.replies)), ...tokens, make("td", {}, cost, remark && make("span", { class: "hint" }, remark)));
}
