// The head of a conversation: its name and numbers, its model, the ways to its tree and to what can be done with it.

import { may, money } from "./access.js";
import { rename, sessionMenu } from "./actions.js";
import { icon, iconButton, make } from "./elements.js";
import { compact, count, counted, nameOf } from "./words.js";

export class Head {
  /** @param {import("./conversation.js").Conversation} conversation */
  constructor(conversation) {
    this.conversation = conversation;
    this.title = may("write") ? make("button", { type: "button", class: "title", title: "Rename", click: () => rename(conversation) }) : make("span");
    this.facts = make("p", { class: "facts" });
    this.note = make("span", { class: "lost-note", role: "status" });
    this.ways = make("span", { class: "branch-count" });
    this.tree = make("button", { type: "button", class: "to-tree", click: () => conversation.tree.toggle() }, icon("tree"), this.ways);
    const more = iconButton("more", "More", () => sessionMenu(conversation, more));
    more.setAttribute("aria-haspopup", "menu");
    this.node = make(
      "header",
      { class: "top" },
      make("a", { class: "icon back", href: "#/", "aria-label": "All sessions", title: "All sessions" }, icon("back")),
      make("div", { class: "who" }, make("h1", { dir: "auto" }, this.title), this.facts),
      this.note,
      conversation.models.button,
      this.tree,
      more,
    );
    this.countBranches(1);
  }

  draw() {
    const { session } = this.conversation;
    const { usage } = session;
    document.title = nameOf(session);
    this.title.textContent = nameOf(session);
    const facts = [
      session.channel,
      counted(session.message_count, "message"),
      usage.total_tokens ? `${compact(usage.total_tokens)} tokens` : "",
      usage.cost ? `cost ${money(usage.cost)}` : "",
    ];
    this.facts.textContent = facts.filter(Boolean).join(" · ");
    this.facts.title = `${session.session_id}\n${count(usage.input_tokens)} tokens in, ${count(usage.output_tokens)} out`;
    this.conversation.models.draw();
  }

  /** @param {boolean} isLost whether the connection is lost */
  setLost(isLost) {
    this.note.textContent = isLost ? "Connection lost. Trying again…" : "";
  }

  /** @param {number} branches the current one, and those that were left */
  countBranches(branches) {
    this.ways.textContent = branches > 1 ? counted(branches, "branch", "branches") : "Tree";
    this.tree.title = "Tree (t)";
    this.tree.setAttribute("aria-label", branches > 1 ? `Tree, ${counted(branches, "branch", "branches")}` : "Tree");
  }
}
