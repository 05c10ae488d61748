// What can be done with a session and with one of its entries.

import { may } from "./access.js";
import { get, request, send, sessionPath } from "./api.js";
import { showDetails } from "./details.js";
import { ask, askText } from "./dialogs.js";
import { make } from "./elements.js";
import { openMenu } from "./menu.js";
import { attempt, notify } from "./notices.js";
import { nameOf, titleOf } from "./words.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("./articles.js").Article} Article */

/** @param {(import("./menu.js").Choice | null)[]} choices of which a token that only reads has none */
function ofWriters(...choices) {
  return may("write") ? choices : [];
}

/** @param {Conversation} conversation */
export async function rename(conversation) {
  const title = await askText({ title: "Rename", label: "Name", value: conversation.session.title ?? "" });
  if (title === null) return;
  await attempt(async () => {
    conversation.session = await send("PATCH", sessionPath(conversation.id), { title: title.trim() || null });
    conversation.drawHead();
    conversation.hooks.changed();
  });
}

/**
 * @param {Conversation} conversation
 * @param {HTMLElement} button
 */
export function sessionMenu(conversation, button) {
  openMenu(button, [
    ...ofWriters({ text: "Rename…", act: () => rename(conversation) }),
    { text: "Details and cost", act: () => showDetails(conversation.id) },
    { text: "Export…", act: () => exportSession(conversation) },
    ...ofWriters(
      { text: "Fork into a new session", act: () => fork(conversation, null) },
      { text: "Compact", hint: "a summary stands for what is older", act: () => compactNow(conversation) },
    ),
    { text: "Copy the session's id", act: () => copy(conversation.id) },
    ...ofWriters(null, { text: "Delete…", danger: true, act: () => remove(conversation) }),
  ]);
}

/**
 * @param {Conversation} conversation
 * @param {Article} article
 * @param {HTMLElement} button
 */
export function articleMenu(conversation, article, button) {
  const isUser = article.node.classList.contains("user");
  const label = conversation.tree.labelOf(article.entry_id);
  const isUnanswered = isUser && article.entry_id === conversation.articles.leaf;
  const ways = isUser
    ? [
        ...(isUnanswered ? [{ text: "Have it answered", act: () => answer(conversation, { resume: true }) }] : []),
        { text: "Edit and send again…", act: () => edit(conversation, article) },
        { text: "Go back to before this", act: () => goOn(conversation, article.parent_id) },
      ]
    : [{ text: "Go on from here", act: () => goOn(conversation, article.entry_id) }];
  openMenu(button, [
    ...ofWriters(
      ...ways,
      { text: label ? "Change the label…" : "Label…", act: () => setLabel(conversation, article, label) },
      { text: "Fork from here", hint: "into a new session", act: () => fork(conversation, article.entry_id) },
    ),
    { text: "Copy the text", act: () => copy(textOf(article)) },
    { text: "Copy a link", act: () => copy(linkTo(conversation, article)) },
  ]);
}

/** @param {Article} article */
function textOf(article) {
  return [...article.node.children].filter((part) => part.tagName !== "HEADER" && part.tagName !== "NAV").map((part) => /** @type {HTMLElement} */ (part).innerText).join("\n").trim();
}

/**
 * @param {Conversation} conversation
 * @param {Article} article
 */
function linkTo(conversation, article) {
  return new URL(`#/session/${encodeURIComponent(conversation.id)}/${article.sequence}`, document.baseURI).href;
}

/** @param {string} text */
async function copy(text) {
  await attempt(async () => {
    await navigator.clipboard.writeText(text);
    notify("Copied.");
  });
}

/**
 * Let the answer go on that was left; it is followed as any other is.
 * @param {Conversation} conversation
 * @param {{resume: true} | {approvals: Record<string, boolean>}} how
 */
export async function answer(conversation, how) {
  const { channel, chat_id } = conversation.session;
  await attempt(() => send("POST", "v1/chat", { channel, chat_id, ...how }));
  await conversation.askApproval();
}

/**
 * Let the conversation go on from an entry; what comes after it stays in the tree.
 * @param {Conversation} conversation
 * @param {string | null} entry null: from the beginning
 */
export async function goOn(conversation, entry) {
  await attempt(async () => {
    await send("POST", sessionPath(conversation.id, "branch"), { entry_id: entry });
    await conversation.articles.showEnd();
    conversation.tree.refreshSoon();
    conversation.composer.focus();
  });
}

/**
 * Say something else in the place of what was said; both stay in the tree.
 * @param {Conversation} conversation
 * @param {Article} article
 */
async function edit(conversation, article) {
  const entry = await attempt(() => get(sessionPath(conversation.id, `entries/${encodeURIComponent(article.entry_id)}`)));
  if (!entry) return;
  const content = entry.message.content ?? "";
  const value = typeof content === "string" ? content : content.map((/** @type {any} */ part) => part.text ?? "").join("\n");
  const text = await askText({ title: "Edit and send again", label: "Message", value, confirm: "Send", long: true, required: true, hint: "What was said before stays in the tree, as a branch." });
  if (text === null || !text.trim()) return;
  await attempt(async () => {
    await send("POST", sessionPath(conversation.id, "branch"), { entry_id: article.parent_id });
    await conversation.articles.showEnd();
    conversation.tree.refreshSoon();
    conversation.composer.say(text.trim());
  });
}

/**
 * @param {Conversation} conversation
 * @param {Article} article
 * @param {string} known
 */
async function setLabel(conversation, article, known) {
  const label = await askText({ title: "Label", label: "A word to find this place by", value: known, hint: "An empty one removes the label." });
  if (label === null) return;
  await attempt(async () => {
    await send("POST", sessionPath(conversation.id, "labels"), { entry_id: article.entry_id, label: label.trim() });
    await conversation.tree.refresh();
  });
}

/**
 * @param {Conversation} conversation
 * @param {string | null} leaf
 */
async function fork(conversation, leaf) {
  await attempt(async () => {
    const made = await send("POST", sessionPath(conversation.id, "fork"), leaf === null ? {} : { leaf_id: leaf }, { key: crypto.randomUUID() });
    await send("PATCH", sessionPath(made.session_id), { title: `${titleOf(nameOf(conversation.session))} (fork)` });
    notify("This is the fork; the session that it was made of is as it was.");
    location.hash = `#/session/${encodeURIComponent(made.session_id)}`;
  });
}

/** @param {Conversation} conversation */
async function compactNow(conversation) {
  await attempt(async () => {
    const outcome = await send("POST", sessionPath(conversation.id, "compact"), {});
    notify(outcome.status === "done" ? "Compacted: a summary stands for what is older." : `Not compacted: ${outcome.detail || outcome.status}`);
    conversation.refresh();
    conversation.tree.refreshSoon();
  });
}

/**
 * @param {{about: string}} one
 * @param {{about: string}} other
 */
function forPeopleFirst(one, other) {
  return Number(other.about.includes("for people")) - Number(one.about.includes("for people"));
}

/** @param {Conversation} conversation */
async function exportSession(conversation) {
  const formats = await attempt(async () => (await get("v1/formats")).formats.filter((/** @type {any} */ one) => one.write).sort(forPeopleFirst));
  if (!formats) return;
  const choices = formats.map((/** @type {any} */ one, /** @type {number} */ place) =>
    make("label", { class: "choice" }, make("input", { type: "radio", name: "format", value: one.name, checked: place === 0 }), make("b", {}, one.name), make("span", {}, one.about)),
  );
  const list = make("fieldset", {}, make("legend", {}, "Format"), ...choices);
  const chosen = await ask({
    title: "Export", confirm: "Save the file", wide: true, body: [list],
    value: () => /** @type {HTMLInputElement} */ (list.querySelector(":checked")).value,
  });
  if (chosen === null) return;
  await attempt(async () => {
    const response = await request("GET", sessionPath(conversation.id, "export"), { query: { format: chosen } });
    const name = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition") ?? "")?.[1] ?? "session";
    const address = URL.createObjectURL(await response.blob());
    make("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  });
}

/** @param {Conversation} conversation */
async function remove(conversation) {
  const name = nameOf(conversation.session);
  const isSure = await ask({
    title: "Delete this session?", confirm: "Delete", danger: true,
    body: [make("p", {}, make("b", {}, name), " and everything that was said in it is deleted: from the store, the archive and the quarantine. This cannot be undone.")],
  });
  if (!isSure) return;
  await attempt(async () => {
    const reply = await send("DELETE", sessionPath(conversation.id), undefined, { key: crypto.randomUUID() });
    if (reply.remains?.length) await ask({ title: "Deleted", cancel: null, body: [make("p", {}, "Its words may still be in:"), make("ul", {}, ...reply.remains.map((/** @type {string} */ one) => make("li", {}, one)))] });
    else notify("Deleted.");
    conversation.hooks.gone();
  });
}
