// Asking the daemon: every request carries the token, every refusal is an error with the server's own sentence.

import { uploaded } from "./uploading.js";

const TOKEN = "token";

/** What the daemon refused, or that it could not be reached (`status` 0). */
export class Refused extends Error {
  /**
   * @param {number} status
   * @param {{message?: string, type?: string}} error
   * @param {any} [reply] the whole of it, where it says more
   */
  constructor(status, error, reply) {
    super(error.message ?? `the server answered ${status}`);
    this.status = status;
    this.reply = reply;
    this.type = error.type ?? "";
  }

  /** Whether the model failed, or was not asked: what was said is saved, and each repetition would be paid for. */
  get isUnanswered() {
    return /^model_|^(agent_error|context_overflow|iteration_limit|budget_spent)$/.test(this.type);
  }

  /** Whether the same request may be answered later. */
  get passes() {
    return !this.isUnanswered && [0, 502, 503, 504].includes(this.status);
  }
}

/** @type {() => void} */
let askForToken = () => {};

/** @param {() => void} ask what to do when the token is missing or wrong */
export function whenSignedOut(ask) {
  askForToken = ask;
}

/** Called whenever the server has answered something: it can be reached. @type {Set<() => void>} */
export const whenAnswered = new Set();

/**
 * The requests that were begun while the modules were loaded (early.js), by their addresses: each is answered once, with
 * as much of a `Response` as `get` needs.
 * @returns {Map<string, Promise<any>>}
 */
function begun() {
  return /** @type {any} */ (window).early;
}

/** @param {string} token */
export function signIn(token) {
  sessionStorage.setItem(TOKEN, token);
  begun().clear();
}

export function isSignedIn() {
  return sessionStorage.getItem(TOKEN) !== null;
}

/**
 * @typedef {{query?: Record<string, any>, json?: any, body?: BodyInit, headers?: Record<string, string>,
 *   key?: string, signal?: AbortSignal, progress?: import("./uploading.js").Progress}} Asked
 */

/**
 * One request; the reply's body is not read yet.
 * @param {string} method
 * @param {string} path without a slash in front
 * @param {Asked} [asked]
 * @returns {Promise<Response>}
 */
export async function request(method, path, asked = {}) {
  const url = new URL(path, document.baseURI);
  for (const [name, value] of Object.entries(asked.query ?? {})) {
    if (value !== null && value !== undefined) url.searchParams.set(name, String(value));
  }
  const headers = new Headers(asked.headers);
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.set("Authorization", `Bearer ${token}`);
  if (asked.key) headers.set("Idempotency-Key", asked.key);
  if (asked.json !== undefined) headers.set("Content-Type", "application/json");
  const body = asked.json === undefined ? asked.body : JSON.stringify(asked.json);
  let response;
  try {
    const early = method === "GET" ? begun().get(url.href) : undefined;
    begun().delete(url.href);
    const how = { method, headers, body, signal: asked.signal };
    response = await (asked.progress ? uploaded(url, how, asked.progress) : (early ?? fetch(url, { ...how, cache: "no-store", credentials: "omit" })));
  } catch (error) {
    if (asked.signal?.aborted) throw error;
    throw new Refused(0, { message: "The server cannot be reached.", type: "unreachable" });
  }
  if (response.ok) {
    for (const heard of [...whenAnswered]) heard();
    return response;
  }
  if (response.status === 401) askForToken();
  const reply = await replyIn(response);
  throw new Refused(response.status, reply?.error ?? {}, reply);
}

/** @param {Response} response */
async function replyIn(response) {
  try {
    return await response.json();
  } catch {
    return null;
  }
}

/**
 * @param {string} path
 * @param {Record<string, any>} [query]
 * @param {AbortSignal} [signal]
 */
export async function get(path, query, signal) {
  return (await request("GET", path, { query, signal })).json();
}

/**
 * @param {string} method
 * @param {string} path
 * @param {any} [json]
 * @param {Asked} [asked]
 */
export async function send(method, path, json, asked = {}) {
  return (await request(method, path, { json, ...asked })).json();
}

/**
 * The path of a session, or of something of it. An id that holds a percent sign is encoded once more.
 * @param {string} id
 * @param {string} [part]
 */
export function sessionPath(id, part) {
  return `v1/sessions/${encodeURIComponent(id)}${part ? `/${part}` : ""}`;
}
