// Saying something else in the place of what was said, where it stands; both stay in the tree, as versions.

import { send, sessionPath } from "./api.js";
import { make } from "./elements.js";
import { attempt } from "./notices.js";
import { answer, isBusy } from "./versions.js";
import { entryOfArticle, isWritten, wordsOf } from "./written.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("./articles.js").Article} Article */

/** What was changed and not sent, by entry: an article may be drawn again meanwhile. @type {Map<string, string>} */
const drafts = new Map();

/**
 * @param {Conversation} conversation
 * @param {Article} article
 */
export async function edit(conversation, article) {
  const { node, entry_id } = article;
  const entry = await attempt(() => entryOfArticle(conversation, article));
  if (!entry || node.querySelector(":scope > .editing")) return;
  const field = make("textarea", { "aria-label": "Edit the message", rows: 1 });
  field.value = drafts.get(entry_id) ?? wordsOf(entry);
  const sendButton = make("button", { type: "submit", class: "primary" }, "Send");
  const close = () => {
    drafts.delete(entry_id);
    form.remove();
    node.focus({ preventScroll: true });
  };
  const cancel = make("button", { type: "button", click: close }, "Cancel");
  const fit = () => {
    field.style.height = "auto";
    field.style.height = `${Math.min(field.scrollHeight + 2, innerHeight * 0.5)}px`;
    sendButton.disabled = !field.value.trim();
  };
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const text = field.value.trim();
    if (!text || isBusy(conversation)) return;
    sendButton.disabled = true;
    if (!(await attempt(() => say(conversation, article, withWords(entry.message.content, text))))) return fit();
    drafts.delete(entry_id);
    form.remove();
    await answer(conversation, { resume: true });
  };
  const hasFiles = Array.isArray(entry.message.content) && entry.message.content.some((/** @type {any} */ part) => !isWritten(part));
  const form = make("form", { class: "editing", submit }, field, make("div", { class: "buttons" }, make("span", { class: "hint" }, hasFiles ? "Its files stay. What was said before stays, too, as a version." : "What was said before stays, as a version."), cancel, sendButton));
  field.addEventListener("input", () => {
    drafts.set(entry_id, field.value);
    fit();
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
    if (event.key === "Escape") close();
  });
  node.append(form);
  fit();
  field.focus();
}

/**
 * @param {Conversation} conversation
 * @param {Article} article in the place of which it is said
 * @param {unknown} content
 */
async function say(conversation, article, content) {
  const { articles, tree } = conversation;
  const said = { entry_id: article.parent_id, then: [{ role: "user", content }] };
  await articles.showAfter(await articles.before(article), () => send("POST", sessionPath(conversation.id, "branch"), said));
  articles.toEnd();
  tree.refreshSoon();
  conversation.composer.focus();
  return true;
}

/**
 * A message with other words; its pictures and files stay.
 * @param {string | any[]} content
 * @param {string} text
 */
function withWords(content, text) {
  if (typeof content === "string" || !content) return text;
  return [{ type: "text", text }, ...content.filter((part) => !isWritten(part))];
}
