// What can be done with a session and with one of its entries.

import { may } from "./access.js";
import { get, send, sessionPath } from "./api.js";
import { showDetails } from "./details.js";
import { ask, askText } from "./dialogs.js";
import { edit } from "./editing.js";
import { make } from "./elements.js";
import { exportSession } from "./exporting.js";
import { askLabels, labelsIn } from "./labels.js";
import { openMenu } from "./menu.js";
import { attempt, notify } from "./notices.js";
import { answer, answerAgain, goOn } from "./versions.js";
import { nameOf, titleOf } from "./words.js";
import { copy, copyWords, quote } from "./written.js";

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
  await attempt(() => conversation.update({ title: title.trim() || null }));
}

/** @param {Conversation} conversation */
async function relabel(conversation) {
  const known = labelsIn(conversation.session.metadata);
  const changed = await askLabels([known]);
  if (changed) await attempt(() => conversation.update({ metadata: { labels: changed(known).length ? changed(known) : null } }));
}

/**
 * @param {Conversation} conversation
 * @param {HTMLElement} button
 */
export function sessionMenu(conversation, button) {
  openMenu(button, sessionChoices(conversation));
}

/**
 * What can be done with a session.
 * @param {Conversation} conversation
 * @returns {(import("./menu.js").Choice | null)[]}
 */
export function sessionChoices(conversation) {
  const isPinned = conversation.session.metadata.pinned === true;
  return [
    ...ofWriters(
      { text: "Rename…", act: () => rename(conversation) },
      { text: "Labels…", hint: "words to find the session by", act: () => relabel(conversation) },
      { text: isPinned ? "Unpin" : "Pin", act: () => attempt(() => conversation.update({ metadata: { pinned: isPinned ? null : true } })) },
    ),
    { text: "Details and cost", act: () => showDetails(conversation.id) },
    { text: "Export…", act: () => exportSession(conversation.id) },
    ...ofWriters(
      { text: "Fork into a new session", act: () => fork(conversation, null) },
      { text: "Compact", hint: "a summary stands for what is older", act: () => compactNow(conversation) },
    ),
    { text: "Copy the session's id", act: () => copy(conversation.id) },
    ...ofWriters(null, { text: "Delete…", danger: true, act: () => remove(conversation) }),
  ];
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
        isUnanswered
          ? { text: "Have it answered", act: () => answer(conversation, { resume: true }) }
          : { text: "Answer again", hint: "the answer stays, as a version", act: () => answerAgain(conversation, article) },
        { text: "Edit", act: () => edit(conversation, article) },
        { text: "Go back to before this", act: () => goOn(conversation, article.parent_id) },
      ]
    : [
        { text: "Answer again", hint: "this answer stays, as a version", act: () => answerAgain(conversation, article) },
        { text: "Go on from here", act: () => goOn(conversation, article.entry_id) },
      ];
  openMenu(button, [
    ...ofWriters(
      ...ways,
      { text: label ? "Change the label…" : "Label…", act: () => setLabel(conversation, article, label) },
      { text: "Fork from here", hint: "into a new session", act: () => fork(conversation, article.entry_id) },
    ),
    ...ofWriters({ text: "Quote", hint: "the words that are selected, or all", act: () => quote(conversation, article) }),
    { text: "Copy as Markdown", act: () => copyWords(conversation, article) },
    { text: "Copy a link", act: () => copy(linkTo(conversation, article)) },
  ]);
}

/**
 * @param {Conversation} conversation
 * @param {Article} article
 */
function linkTo(conversation, article) {
  return new URL(`#/session/${encodeURIComponent(conversation.id)}/${article.sequence}`, document.baseURI).href;
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
