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
 * What was said is grouped by the sessions that it was said in, in the order of their best hits.
 * @param {any[]} names
 * @param {{results: any[], next?: string | null, note?: string | null, behind?: number}} said
 * @param {(id: string) => string | undefined} named
 */
function shown(names, said, named) {
  const groups = Map.groupBy(said.results, (hit) => hit.session_id);
  const others = names.filter((row) => !groups.has(row.session_id));
  const parts = others.length ? [make("h2", {}, "Sessions"), ...others.map(sessionLink)] : [];
  const places = said.results.filter((hit) => hit.role !== "title").length;
  const more = said.next ? " and more" : "";
  const found = places ? `${counted(places, "place")}${more} in ${counted(groups.size, "session")}` : groups.size ? counted(groups.size, "title") : "Nothing was said like this";
  parts.push(make("h2", {}, found));
  if (said.note) parts.push(make("p", { class: "hint" }, said.note));
  for (const [id, hits] of groups) parts.push(sessionOf(id, hits, named(id) ?? nameOf(hits[0])));
  return parts;
}

/** @param {any} row */
function sessionLink(row) {
  return make(
    "a",
    { href: `#/session/${encodeURIComponent(row.session_id)}`, class: "session" },
    make("b", { dir: "auto" }, nameOf(row)),
    make("span", { class: "where" }, `${row.channel} · ${row.chat_id}`), // which may be what was searched for
    make("span", { class: "snippet", dir: "auto" }, row.last_words ?? ""),
  );
}

/**
 * A session by its name, and what was found in it. A title that was found is the name, and has no row of its own.
 * @param {string} id
 * @param {any[]} hits
 * @param {string} name
 */
function sessionOf(id, hits, name) {
  const title = hits.find((hit) => hit.role === "title");
  const places = hits.filter((hit) => hit.role !== "title");
  const words = title ? pieces(title) : [name];
  const isLink = places.length === 0 || title !== undefined;
  const heading = make("h3", { dir: "auto" }, isLink ? make("a", { href: `#/session/${encodeURIComponent(id)}` }, ...words) : make("span", {}, ...words), make("span", { class: "where" }, hits[0].channel));
  return make("section", { class: "of-session" }, heading, ...places.map(hitLink));
}

/** @param {any} hit */
function pieces(hit) {
  return hit.snippet.map((/** @type {any} */ piece) => (piece.match ? make("mark", {}, piece.text) : piece.text.replace(/\*\*|`/g, "")));
}

/** @param {any} hit */
function hitLink(hit) {
  return make(
    "a",
    { href: `#/session/${encodeURIComponent(hit.session_id)}/${hit.sequence}` },
    make("b", { dir: "auto" }, hit.author ?? hit.role.replace("_", " ")),
    make("time", { title: moment(hit.said_at) }, when(hit.said_at)),
    make("span", { class: "snippet", dir: "auto" }, ...pieces(hit)),
  );
}
