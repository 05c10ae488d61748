// The first screen: what to do when there is nothing yet, and when nothing is chosen.

import { may } from "./access.js";
import { find, icon, make } from "./elements.js";

/**
 * @param {{isEmpty: boolean, begin: () => void, bringIn: () => void}} how
 */
export function showWelcome({ isEmpty, begin, bringIn }) {
  document.title = "Sessions";
  const address = document.baseURI.replace(/#.*/, "").replace(/\/$/, "");
  const example = `curl ${address}/v1/chat \\
  -H "Authorization: Bearer $TOKEN" \\
  -H "Content-Type: application/json" \\
  -d '{"channel": "demo", "chat_id": "1", "message": "Hello!"}'`;
  const steps = [
    step("plus", "Start a conversation", "Say something here. Every word is saved before it is answered.", make("button", { type: "button", class: "primary", click: begin }, "New conversation")),
    step("upload", "Bring one in", "Drop files of Claude Code, Codex, pi and others anywhere on this page; what they would become is shown first.", make("button", { type: "button", click: bringIn }, "Choose files…")),
    step("tree", "Let a program talk", "Anything that speaks HTTP, or the OpenAI SDK with this base URL:", make("code", { class: "address" }, `${address}/v1`), make("pre", { class: "code" }, example), make("p", {}, make("a", { class: "button", href: "docs" }, "API reference"))),
  ];
  steps.length = may("write") ? (isEmpty ? 3 : 2) : 0; // who has sessions has a program that talks
  const title = isEmpty ? "Nothing here yet" : "Sessions";
  const ways = steps.length ? " Three ways to a first one:" : "";
  const lead = isEmpty ? `This server keeps conversations: with people, of agents, of any program.${ways}` : `Choose a conversation on the left${steps.length ? ", or:" : "."}`;
  find("main").replaceChildren(make("div", { class: "welcome" }, make("h1", {}, title), make("p", { class: "lead" }, lead), ...steps));
}

/**
 * @param {string} picture
 * @param {string} title
 * @param {string} text
 * @param {...Node} more
 */
function step(picture, title, text, ...more) {
  return make("section", { class: "step" }, make("span", { class: "badge" }, icon(picture)), make("div", {}, make("h2", {}, title), make("p", {}, text), ...more));
}
