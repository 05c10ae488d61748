// The page: signs in, keeps the list, and shows in the middle what the address names.

import { learnAccess, may } from "./access.js";
import { Refused, get, isSignedIn, sessionPath, signIn, whenSignedOut } from "./api.js";
import { showBeginning } from "./beginning.js";
import { Channels } from "./channels.js";
import { commandsOf } from "./commands.js";
import { Conversation } from "./conversation.js";
import { find, make } from "./elements.js";
import { listenForFiles } from "./importing.js";
import { listenToKeys, showKeys } from "./keys.js";
import { Live } from "./live.js";
import { Marking } from "./marking.js";
import { attempt } from "./notices.js";
import { guardUnsent } from "./outbox.js";
import { PALETTE_KEY, listenForPalette, openPalette } from "./palette.js";
import { readAgain } from "./pins.js";
import { startSearch } from "./search.js";
import { see } from "./seen.js";
import { ServiceView } from "./service.js";
import { SessionList } from "./sessions.js";
import { answerAgain, changeVersionByKey } from "./versions.js";
import { showWelcome } from "./welcome.js";
import { count, nameOf } from "./words.js";

const HEALTH_MS = 15_000;
const SOON_MS = 400;
const COUNTED = new Set(["created", "deleted", "expired"]);

/** @type {SessionList} */
let list;
/** @type {Marking} */
let marking;
/** @type {Channels} */
let channels;
/** @type {Conversation | null} */
let conversation = null;
/** @type {ServiceView | null} */
let service = null;
/** @type {Live | null} */
let events = null;
/** @type {import("./composer.js").Composer | null} */
let beginning = null;
/** @type {ReturnType<typeof listenForFiles>} */
let files;
let navigation = 0;
/** Whether keys open sessions one after the other: then they are not to be written into a chat box. */
let isStepping = false;
let healthTimer = 0;

// --- the address ---

/** Show what the address names. */
async function navigate() {
  const [, kind = "", id = "", place = ""] = location.hash.split("/");
  const mine = ++navigation;
  const session = kind === "session" ? decoded(id) : "";
  document.body.dataset.view = kind || "list";
  list.choose(session);
  if (conversation && session === conversation.id) {
    if (place) await attempt(() => /** @type {Conversation} */ (conversation).articles.showPlace(Number(place)));
    return;
  }
  conversation?.close();
  conversation = null;
  service?.close();
  service = null;
  beginning = null;
  if (kind === "session") await openSession(session, place ? Number(place) : null, mine);
  else if (kind === "new" && may("write")) beginning = showBeginning(begun);
  else if (kind === "service") service = new ServiceView(find("main"));
  else welcome();
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/**
 * @param {string} id
 * @param {number | null} place
 * @param {number} mine
 */
async function openSession(id, place, mine) {
  try {
    const session = await get(sessionPath(id), { last_words: true });
    if (mine !== navigation) return;
    see(session);
    conversation = new Conversation(session, { changed: () => list.refreshSoon(), gone: left });
    await conversation.open(place);
    if (place === null && !isStepping && matchMedia("(hover: hover)").matches) conversation?.composer.focus();
    isStepping = false;
  } catch (error) {
    if (mine !== navigation || !(error instanceof Error)) return;
    const isGone = error instanceof Refused && error.status === 404;
    const text = isGone ? "There is no such session, or this token may not see it." : error.message;
    find("main").replaceChildren(make("div", { class: "welcome" }, make("h1", {}, isGone ? "Not found" : "It could not be shown"), make("p", { class: "lead" }, text), make("a", { class: "button", href: "#/" }, "All sessions")));
  }
}

function left() {
  list.refreshSoon();
  location.hash = "#/";
}

function welcome() {
  showWelcome({ isEmpty: list.isLoaded && !list.rows.length && list.channel === null, begin, bringIn: () => files.choose() });
}

// --- a new conversation ---

function begin() {
  if (may("write")) location.hash = "#/new";
}

/**
 * @param {string} id
 * @param {string} text
 * @param {import("./attachments.js").Attached[]} files
 */
async function begun(id, text, files) {
  list.refreshSoon();
  history.replaceState(null, "", `#/session/${encodeURIComponent(id)}`);
  await navigate();
  if (conversation?.id === id) conversation.composer.say(text, undefined, files);
}

// --- what happens in all sessions ---

/**
 * @param {string} kind
 * @param {any} data
 */
function onEvent(kind, data) {
  if (kind === "ready") {
    list.answering = new Set(data.turns ?? []);
    list.refreshSoon();
  } else if (kind === "turn_started" || kind === "turn_ended") {
    list.setAnswering(data.session_id, kind === "turn_started");
  } else if (kind !== "session") {
    readAgain(data.session_id);
    list.refreshSoon();
    if (COUNTED.has(kind)) healthTimer ||= setTimeout(checkHealth, SOON_MS);
  }
}

/** @param {import("./live.js").LiveState} state */
function stateChanged(state) {
  document.body.classList.toggle("offline", state === "lost");
  if (state === "open") list.refreshSoon();
  checkHealth();
}

/** The light at the foot of the list. */
async function checkHealth() {
  healthTimer = 0;
  const link = find("service");
  let [kind, text, title] = ["failing", "Not reachable", ""];
  try {
    const { losses = [], problems = [], ...health } = await get("health"); // to a token with bounds only the status
    kind = health.status === "ok" ? (losses.length ? "warned" : "ok") : "failing";
    text = { ok: "All is saved", warned: "Losses to look at", failing: "Something is wrong" }[kind] ?? "";
    title = [...problems, ...losses].join("\n");
    channels.learn(Object.keys(health.channels ?? {}));
    find("total").textContent = health.sessions === undefined ? "" : count(health.sessions);
  } catch (error) {
    if (error instanceof Refused && error.status === 503) [text, title] = ["Something is wrong", error.message];
  }
  link.className = `service ${kind}`;
  link.title = title;
  link.lastElementChild.textContent = text;
}

// --- the beginning ---

function askForToken() {
  document.documentElement.classList.remove("has-token");
  find("app").hidden = true;
  find("sign-in").hidden = false;
  const error = find("sign-in-error");
  error.hidden = !isSignedIn();
  error.textContent = "The server does not know this token.";
  find("notices").replaceChildren();
  find("token").focus();
}

function toggleTheme() {
  const isDark = getComputedStyle(document.documentElement).colorScheme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  const theme = isDark ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("theme", theme);
}

/** @type {import("./keys.js").Key[]} */
const keys = [
  { key: "/", name: "/", about: "search names and words", act: () => showSearch() },
  { key: "n", name: "n", about: "new conversation", act: begin },
  { key: "c", name: "c", about: "write a message", act: () => (conversation?.composer ?? beginning)?.focus() },
  { key: "j", name: "j", about: "next message", act: () => conversation?.step(1) },
  { key: "k", name: "k", about: "message before", act: () => conversation?.step(-1) },
  { key: "o", name: "o", about: "unfold what the message has folded", act: () => conversation?.toggleFolds() },
  { key: "h", name: "h", about: "version before of the message or answer", act: () => conversation && changeVersionByKey(conversation, -1) },
  { key: "l", name: "l", about: "its next version", act: () => conversation && changeVersionByKey(conversation, 1) },
  { key: "r", name: "r", about: "answer again", act: () => conversation && answerAgain(conversation, conversation.articles.marked) },
  { key: "t", name: "t", about: "the tree; Esc closes it", act: () => conversation?.tree.toggle() },
  { key: "x", name: "x", about: "mark the session, to do something with several", act: () => marking.toggle() },
  { key: "J", name: "Shift J", about: "next session", act: () => openBeside(1) },
  { key: "K", name: "Shift K", about: "session before", act: () => openBeside(-1) },
  { key: "Escape", act: () => conversation?.tree.toggle(false) },
  { key: "palette", name: PALETTE_KEY, about: "sessions and commands, also while writing", act: () => {} },
  { key: "?", name: "?", about: "these keys", act: () => showKeys(keys) },
];

function showPalette() {
  const always = keys.filter((one) => "/x?".includes(one.key) || (one.key === "n" && may("write")));
  const commands = commandsOf(conversation, always.map(({ key, about = "", act }) => ({ text: `${about[0].toUpperCase()}${about.slice(1)}`, key, act })));
  openPalette({ recent: list.shape.ordered, commands, named });
}

/** @param {string} id */
function named(id) {
  const row = list.rowOf(id);
  return row && nameOf(row);
}

function showSearch() {
  if (!find("side").offsetHeight) location.hash = "#/";
  find("search").focus();
  find("search").select();
}

/** @param {number} by */
function openBeside(by) {
  const row = list.neighbour(by);
  if (!row || row.session_id === list.chosen) return;
  isStepping = true;
  location.hash = `#/session/${encodeURIComponent(row.session_id)}`;
}

async function start() {
  find("sign-in").hidden = true;
  find("app").hidden = false;
  const isAtOne = location.hash.startsWith("#/session/");
  const shown = learnAccess().then(offered);
  if (isAtOne) await shown; // then the list comes behind what was asked for
  await Promise.all([shown, list.refresh()]);
  events?.close();
  events = new Live("v1/events", {}, { event: onEvent, state: stateChanged });
}

/** Show what the token may do, and what the address names. */
function offered() {
  for (const id of ["new", "import"]) find(id).hidden = !may("write");
  return navigate();
}

async function main() {
  whenSignedOut(askForToken);
  list = new SessionList(() => {
    channels.learn(list.rows.map((row) => row.channel));
    if (document.body.dataset.view === "list") welcome();
  });
  channels = new Channels(list);
  marking = new Marking(list, (id) => {
    if (conversation?.id === id) location.hash = "#/";
    list.refreshSoon();
  });
  files = listenForFiles((id) => {
    list.refreshSoon();
    if (id) location.hash = `#/session/${encodeURIComponent(id)}`;
  }, () => (conversation?.composer ?? beginning)?.attachments ?? null);
  startSearch(named);
  listenToKeys(keys);
  listenForPalette(showPalette);
  guardUnsent();
  addEventListener("hashchange", () => {
    if (location.hash.startsWith("#token=")) location.reload();
    else navigate();
  });
  find("new").addEventListener("click", begin);
  find("palette").addEventListener("click", showPalette);
  find("palette").title = `Sessions and commands (${PALETTE_KEY})`;
  find("import").addEventListener("click", () => files.choose());
  find("theme").addEventListener("click", toggleTheme);
  find("keys").addEventListener("click", () => showKeys(keys));
  find("sign-in").querySelector("form").addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    signIn(find("token").value.trim());
    attempt(start);
  });
  const side = find("side"); // where there is no room for both, it takes the main part's place
  new ResizeObserver(() => side.setAttribute("role", find("main").offsetParent ? "navigation" : "main")).observe(find("main"));
  setInterval(checkHealth, HEALTH_MS);
  await attempt(start);
}

main();
