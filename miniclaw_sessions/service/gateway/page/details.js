// Everything about a session but what was said in it: its key, what it cost, how large it is.

import { money } from "./access.js";
import { get, sessionPath } from "./api.js";
import { ask } from "./dialogs.js";
import { make } from "./elements.js";
import { attempt } from "./notices.js";
import { count, moment } from "./words.js";

/** @param {string} id */
export async function showDetails(id) {
  const session = await attempt(() => get(sessionPath(id), { last_words: true }));
  if (!session) return;
  const { usage } = session;
  const facts = [
    ["Session", session.session_id],
    ["Channel", session.channel],
    ["Chat", session.chat_id],
    ["Linked with", session.linked.join(", ")],
    ["Agent", session.agent_id],
    ["Model", [session.metadata.provider, session.metadata.model].filter(Boolean).join(" ")],
    ["Messages", count(session.message_count)],
    ["Entries", `${count(session.entries)}, ${count(session.committed_sequence)} of them acknowledged`],
    ["Tokens in", count(usage.input_tokens)],
    ["Tokens out", count(usage.output_tokens)],
    ["Read from the cache", usage.cache_read_tokens && count(usage.cache_read_tokens)],
    ["Written to the cache", usage.cache_write_tokens && count(usage.cache_write_tokens)],
    ["Cost", usage.cost && money(usage.cost)],
    ["Begun", moment(session.created_at)],
    ["Changed", moment(session.updated_at)],
    ["Used", moment(session.last_accessed)],
  ].filter(([, value]) => value);
  const rows = facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
  await ask({ title: "Details", cancel: null, confirm: "Close", wide: true, body: [make("dl", { class: "details" }, ...rows)] });
}
