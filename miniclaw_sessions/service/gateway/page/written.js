// What was written, as it was written: copied, or quoted in the chat box.

import { get, sessionPath } from "./api.js";
import { attempt, notify } from "./notices.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("./articles.js").Article} Article */

/**
 * An entry, as the API has it.
 * @param {Conversation} conversation
 * @param {Article} article
 */
export function entryOfArticle(conversation, article) {
  return get(sessionPath(conversation.id, `entries/${encodeURIComponent(article.entry_id)}`));
}

/**
 * The words of an entry, in Markdown where they are.
 * @param {any} entry
 * @returns {string}
 */
export function wordsOf(entry) {
  const content = entry.message?.content ?? entry.summary ?? "";
  if (typeof content === "string") return content;
  return content.filter(isWritten).map((/** @type {any} */ part) => part.text).join("\n\n");
}

/**
 * Whether a part of a message was written, and is no file, nor the words of one.
 * @param {any} part
 */
export function isWritten(part) {
  return part.type === "text" && !part.file && !part.in_words;
}

/** @param {string | Promise<string>} text */
export async function copy(text) {
  await attempt(async () => {
    const blob = Promise.resolve(text).then((words) => new Blob([words], { type: "text/plain" }));
    await navigator.clipboard.write([new ClipboardItem({ "text/plain": blob })]); // at once: Safari forgets the click
    notify("Copied.");
  });
}

/**
 * @param {Conversation} conversation
 * @param {Article} article
 */
export function copyWords(conversation, article) {
  return copy(entryOfArticle(conversation, article).then((entry) => wordsOf(entry) || article.node.querySelector(":scope > div")?.textContent || ""));
}

/**
 * Put what is selected of a message, or all of it, into the chat box as a quotation.
 * @param {Conversation} conversation
 * @param {Article} article
 */
export async function quote(conversation, article) {
  const words = selectedIn(article.node) || (await attempt(async () => wordsOf(await entryOfArticle(conversation, article))));
  if (!words?.trim()) return;
  const { field } = conversation.composer;
  const quoted = words.trim().split("\n").map((line) => (line ? `> ${line}` : ">")).join("\n");
  field.value = [field.value.trimEnd(), quoted].filter(Boolean).join("\n\n") + "\n\n";
  field.dispatchEvent(new Event("input", { bubbles: true }));
  field.focus();
  field.setSelectionRange(field.value.length, field.value.length);
  field.scrollTop = field.scrollHeight;
}

/** @param {HTMLElement} node */
function selectedIn(node) {
  const selection = getSelection();
  const isWithin = selection?.rangeCount && node.contains(selection.getRangeAt(0).commonAncestorContainer);
  return isWithin ? selection.toString() : "";
}
