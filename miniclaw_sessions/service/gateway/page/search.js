// Searching names and words: what is found stands in the place of the list.

import { get } from "./api.js";
import { find, make } from "./elements.js";
import { counted, moment, nameOf, when } from "./words.js";

const PAUSE_MS = 180;
const NAMES = 8;
const HITS = 30;

/**
 * Listen to the search box.
 * @param {(id: string) => string | undefined} named what a session is called, where that is known
 */
export function startSearch(named) {
  const field = find("search");
  const hits = find("hits");
  const list = find("list");
  let timer = 0;
  /** @type {AbortController | null} */
  let running = null;
  /** What was found stands for this query. */
  let answered = "";

  const search = async () => {
    clearTimeout(timer);
    const query = field.value.trim();
    if (query && query === answered) return true;
    running?.abort();
    answered = "";
    hits.hidden = !query;
    list.hidden = Boolean(query);
    if (!query) return false;
    const asked = new AbortController();
    running = asked;
    const [names, said] = await Promise.all([
      get("v1/sessions", { part: query, limit: NAMES, last_words: true }, asked.signal).catch(() => ({ sessions: [] })),
      get("v1/search", { query, limit: HITS }, asked.signal).catch((error) => ({ results: [], note: error.message })),
    ]);
    if (asked.signal.aborted) return false;
    hits.replaceChildren(...shown(names.sessions, said, named));
    answered = query;
    return true;
  };
  /** @param {"click" | "focus"} act done to the first that was found for what stands in the box */
  const first = async (act) => {
    if (await search()) hits.querySelector("a")?.[act]();
  };
  field.addEventListener("input", () => {
    answered = ""; // what was found is looked for again: more may have been said
    clearTimeout(timer);
    timer = setTimeout(search, PAUSE_MS);
  });
  field.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" || event.key === "ArrowDown") {
      event.preventDefault();
      first(event.key === "Enter" ? "click" : "focus");
    }
    if (event.key === "Escape") {
      field.value = "";
      search();
      field.blur();
    }
  });
  hits.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const links = [...hits.querySelectorAll("a")];
    const at = links.indexOf(/** @type {any} */ (document.activeElement)) + (event.key === "ArrowDown" ? 1 : -1);
    event.preventDefault();
    (at < 0 ? field : links[Math.min(at, links.length - 1)]).focus();
  });
}

/**
 * @param {any[]} names
 * @param {{results: any[], next?: string | null, note?: string | null, behind?: number}} said
 * @param {(id: string) => string | undefined} named
 */
function shown(names, said, named) {
  const parts = [];
  if (names.length) {
    parts.push(make("h2", {}, "Sessions"));
    for (const row of names) parts.push(sessionLink(row));
  }
  parts.push(make("h2", {}, said.results.length ? `${counted(said.results.length, "place")}${said.next ? " and more" : ""}` : "Nothing was said like this"));
  if (said.note) parts.push(make("p", { class: "hint" }, said.note));
  for (const hit of said.results) parts.push(hitLink(hit, named(hit.session_id) ?? hit.chat_id));
  return parts;
}

/** @param {any} row */
function sessionLink(row) {
  return make(
    "a",
    { href: `#/session/${encodeURIComponent(row.session_id)}`, class: "session" },
    make("b", {}, nameOf(row)),
    make("span", { class: "where" }, `${row.channel} · ${row.chat_id}`), // which may be what was searched for
    make("span", { class: "snippet" }, row.last_words ?? ""),
  );
}

/**
 * @param {any} hit
 * @param {string} name
 */
function hitLink(hit, name) {
  const pieces = hit.snippet.map((/** @type {any} */ piece) => (piece.match ? make("mark", {}, piece.text) : piece.text.replace(/\*\*|`/g, "")));
  const who = hit.role === "title" ? "title" : (hit.author ?? hit.role.replace("_", " "));
  return make(
    "a",
    { href: `#/session/${encodeURIComponent(hit.session_id)}/${hit.sequence}` },
    make("b", {}, who),
    make("span", { class: "where" }, `${hit.channel} · ${name}`),
    make("time", { title: moment(hit.said_at) }, when(hit.said_at)),
    make("span", { class: "snippet" }, ...pieces),
  );
}
