// Versions of what was said: an answer that was made again and a question that was edited are branches that part at one
// place. One of them is shown, and is the one that the conversation goes on from.

import { may } from "./access.js";
import { send, sessionPath } from "./api.js";
import { make } from "./elements.js";
import { attempt, notify } from "./notices.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("./articles.js").Article} Article */

const BEFORE = "Version before";
const NEXT = "Next version";

/**
 * Show in the head of an article which version it is, and the way to the others.
 * @param {Conversation} conversation
 * @param {Article} article
 */
export function decorateVersions(conversation, article) {
  const old = article.node.querySelector(":scope > header > .versions");
  const ways = versionsOf(conversation, article);
  if (ways.length < 2) {
    old?.remove();
    return;
  }
  const place = ways.indexOf(article.entry_id);
  const button = (/** @type {string} */ name, /** @type {string} */ sign, /** @type {number} */ by) =>
    make("button", { type: "button", "aria-label": name, title: name, disabled: !ways[place + by] || !may("write"), click: () => changeVersion(conversation, article, by) }, sign);
  const about = `Version ${place + 1} of ${ways.length}`;
  const group = make("span", { class: "versions", role: "group", "aria-label": about, title: about }, button(BEFORE, "‹", -1), make("span", {}, `${place + 1}/${ways.length}`), button(NEXT, "›", 1));
  if (old?.isEqualNode(group)) return; // another one would take the focus away
  const focused = old?.contains(document.activeElement) ? document.activeElement?.getAttribute("aria-label") : null;
  old?.remove();
  article.node.querySelector(":scope > header > a")?.after(group);
  /** @type {HTMLElement | null} */ (group.querySelector(`[aria-label="${focused}"]`))?.focus({ preventScroll: true });
}

/**
 * @param {Conversation} conversation
 * @param {Article} article
 * @returns {string[]}
 */
function versionsOf(conversation, article) {
  return Object.values(conversation.tree?.outline.ways ?? {}).find((/** @type {string[]} */ ways) => ways.includes(article.entry_id)) ?? [];
}

/**
 * Show another version, and let the conversation go on from it.
 * @param {Conversation} conversation
 * @param {Article} article
 * @param {number} by
 */
export async function changeVersion(conversation, article, by) {
  const { articles, tree } = conversation;
  if (!may("write") || isBusy(conversation)) return;
  if (tree.timer) await attempt(() => tree.refresh()); // what is known of the tree is from before the last change
  const ways = versionsOf(conversation, article);
  const wanted = ways[ways.indexOf(article.entry_id) + by];
  if (wanted === undefined) return;
  const tip = tree.outline.tips[wanted]; // none: it is on the branch that the conversation goes on from already
  await attempt(async () => {
    await articles.showAfter(await articles.before(article), () => tip && send("POST", sessionPath(conversation.id, "branch"), { entry_id: tip }));
    const shown = articles.of(wanted);
    if (!shown) return;
    if (article.node.classList.contains("chosen")) shown.node.classList.add("chosen");
    const [first, last] = by < 0 ? [BEFORE, NEXT] : [NEXT, BEFORE];
    const buttons = [first, last].map((name) => shown.node.querySelector(`.versions [aria-label="${name}"]:not(:disabled)`));
    /** @type {HTMLElement | null | undefined} */ (buttons.find((one) => one))?.focus({ preventScroll: true });
  });
  tree.refreshSoon();
  await conversation.askApproval();
}

/**
 * Change the version of the marked message, or of the newest one that has versions.
 * @param {Conversation} conversation
 * @param {number} by
 */
export function changeVersionByKey(conversation, by) {
  const withVersions = conversation.articles.shown.filter((one) => versionsOf(conversation, one).length > 1);
  const article = withVersions.find((one) => one.node.classList.contains("chosen")) ?? withVersions.at(-1);
  return article && changeVersion(conversation, article, by);
}

/**
 * Make another answer to the question that an article is, or answers; the one before stays a version.
 * @param {Conversation} conversation
 * @param {Article | undefined} article
 */
export async function answerAgain(conversation, article) {
  if (!article || !may("write") || isBusy(conversation)) return;
  await attempt(async () => {
    const question = await questionOf(conversation, article);
    if (question) await answerAt(conversation, question, () => send("POST", sessionPath(conversation.id, "branch"), { entry_id: question.entry_id }));
    else notify("There is no question before it that could be answered.");
  });
}

/**
 * Go on after an article, and let what is said there be answered.
 * @param {Conversation} conversation
 * @param {Article | null} kept
 * @param {() => Promise<any>} move lets the conversation go on from there
 */
export async function answerAt(conversation, kept, move) {
  await conversation.articles.showAfter(kept, move);
  conversation.articles.toEnd();
  conversation.tree.refreshSoon();
  await answer(conversation, { resume: true });
}

/**
 * @param {Conversation} conversation
 * @param {Article} article
 * @returns {Promise<Article | null>}
 */
async function questionOf({ articles }, article) {
  let one = /** @type {Article | null} */ (article);
  while (one && !one.node.classList.contains("user")) one = await articles.before(one);
  return one;
}

/**
 * Let the answer go on that was left; it is followed as any other is.
 * @param {Conversation} conversation
 * @param {{resume: true} | {approvals: Record<string, boolean>}} how
 * @param {() => void} [taken] called when the server has taken it, or refused it
 */
export async function answer(conversation, how, taken) {
  const { channel, chat_id } = conversation.session;
  await attempt(() => send("POST", "v1/chat", { channel, chat_id, ...how }));
  taken?.();
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
 * Whether an answer is under way, which must not be left while it is made; a notice says so.
 * @param {Conversation} conversation
 */
export function isBusy({ turn }) {
  if (turn.isRunning) notify("An answer is under way. Wait for it, or stop it first.");
  return turn.isRunning;
}
