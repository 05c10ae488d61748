// Tokens of those who may ask the daemon: listed, made and revoked by an admin; a secret is shown once.

import { get, send } from "./api.js";
import { ask } from "./dialogs.js";
import { make } from "./elements.js";
import { attempt, notify } from "./notices.js";
import { moment, when } from "./words.js";

const DAY_MS = 86_400_000;
const SCOPES = { read: "read: only look", write: "write: look, talk and change", admin: "admin: everything, also what is about all sessions" };

export class TokenList {
  constructor() {
    this.list = make("div", {});
    this.box = make("section", { class: "tokens" }, make("header", { class: "line" }, make("h2", {}, "Tokens"), make("button", { type: "button", click: () => this.create() }, "Make a token…")), this.list);
    attempt(() => this.refresh());
  }

  async refresh() {
    const { tokens } = await get("v1/tokens");
    this.list.replaceChildren(tokens.length ? make("ul", { class: "rows" }, ...tokens.map((/** @type {any} */ one) => this.row(one))) : make("p", { class: "hint" }, "There is only the one that the daemon was started with."));
  }

  /** @param {any} one */
  row(one) {
    const about = [one.scope, boundsOf(one), one.rate && `${one.rate} requests per second`, `made ${when(one.created_at)}`, one.expires_at && `${one.valid ? "until" : "over since"} ${moment(one.expires_at)}`];
    return make("li", {}, make("b", {}, one.name), make("span", {}, about.filter(Boolean).join(" · ")), make("button", { type: "button", "aria-label": `Revoke ${one.name}`, click: () => this.revoke(one.name) }, "Revoke…"));
  }

  async create() {
    const name = make("input", { id: "token-name", autocomplete: "off", required: true, pattern: "[A-Za-z0-9][A-Za-z0-9._@\\-]{0,63}", title: "Letters, digits and . _ @ -", autofocus: true });
    const scope = make("select", { id: "token-scope" }, ...Object.entries(SCOPES).map(([value, words]) => make("option", { value, selected: value === "write" }, words)));
    const channels = make("input", { id: "token-channels", autocomplete: "off" });
    const chats = make("input", { id: "token-chats", autocomplete: "off", maxlength: 200 });
    const days = make("input", { id: "token-days", type: "number", min: 1, max: 36_500, step: 1 });
    /** @type {any} */
    let made = null;
    await ask({
      title: "Make a token", confirm: "Make it",
      body: [
        make("label", { for: "token-name" }, "Name, also in the audit log"), name,
        make("label", { for: "token-scope" }, "What it may do"), scope,
        make("label", { for: "token-channels" }, "Only these channels, with commas between them"), channels,
        make("label", { for: "token-chats" }, "Only chats whose id begins with"), chats,
        make("label", { for: "token-days" }, "Days until it is over; empty: never"), days,
      ],
      act: async () => {
        const only = channels.value.split(",").map((one) => one.trim()).filter(Boolean);
        const expires = days.value ? new Date(Date.now() + Number(days.value) * DAY_MS).toISOString() : null;
        made = await send("POST", "v1/tokens", { name: name.value, scope: scope.value, channels: only.length ? only : null, chat_prefix: chats.value.trim(), expires_at: expires });
      },
    });
    if (!made) return;
    const secret = make("input", { id: "token-secret", readonly: true, value: made.token, autofocus: true, focus: () => secret.select() });
    await ask({
      title: `The token ${made.name}`, confirm: "I have it", cancel: null,
      body: [make("label", { for: "token-secret" }, "It is shown only now"), secret, make("div", { class: "buttons start" }, make("button", { type: "button", click: () => attempt(async () => { await navigator.clipboard.writeText(made.token); notify("Copied."); }) }, "Copy"))],
    });
    await attempt(() => this.refresh());
  }

  /** @param {string} name */
  async revoke(name) {
    const done = await ask({
      title: `Revoke ${name}?`, confirm: "Revoke", danger: true,
      body: [make("p", {}, "Its requests are refused at once and its open streams end. This cannot be undone.")],
      act: () => send("DELETE", `v1/tokens/${encodeURIComponent(name)}`),
    });
    if (done) await attempt(() => this.refresh());
  }
}

/** @param {any} one */
function boundsOf(one) {
  const channels = one.channels && `only ${one.channels.join(", ")}`;
  const chats = one.chat_prefix && `chats ${one.chat_prefix}…`;
  return [channels, chats].filter(Boolean).join(", ") || "all sessions";
}
