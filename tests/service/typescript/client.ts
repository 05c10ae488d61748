// Chats, pages and tails with a client whose types are all generated: `node out/client.js URL TOKEN`.
// What it saw is printed as one line of JSON, for the test to look at.
import createClient from "openapi-fetch";
import { events } from "./events.js";
import type { components, paths } from "./schema.js";

type Schemas = components["schemas"];

const [baseUrl, token] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${token}` } });
const session_id = "web_7";

async function chat(message: string): Promise<string> {
  const { data, error } = await client.POST("/v1/chat", { body: { channel: "web", chat_id: "7", message } });
  if (error) throw new Error(error.error.message);
  const content = (data as Schemas["ChatReply"]).reply?.content;
  return typeof content === "string" ? content : "";
}

async function chatStreamed(message: string): Promise<{ text: string; answer: unknown }> {
  const { data } = await client.POST("/v1/chat", {
    body: { channel: "web", chat_id: "7", message, stream: true },
    parseAs: "stream",
  });
  let text = "";
  for await (const { event, data: encoded } of events(data as unknown as ReadableStream<Uint8Array> | null)) {
    if (event === "text") text += (JSON.parse(encoded) as Schemas["TextEvent"]).text;
    if (event === "done") return { text, answer: (JSON.parse(encoded) as Schemas["DoneEvent"]).message.content };
  }
  throw new Error("the stream ended without an answer");
}

async function pageBackwards(limit: number): Promise<unknown[]> {
  const found: unknown[] = [];
  let before: number | undefined;
  for (;;) {
    const { data, error } = await client.GET("/v1/sessions/{session_id}/messages", {
      params: { path: { session_id }, query: { limit, before } },
    });
    if (error) throw new Error(error.error.message);
    found.unshift(...data.messages.map((message) => message.content));
    before = data.messages[0]?.sequence;
    if (!data.earlier) return found;
  }
}

async function tail(after: number, wanted: number): Promise<unknown[]> {
  const stop = new AbortController();
  const { data } = await client.GET("/v1/sessions/{session_id}/follow", {
    params: { path: { session_id }, query: { after } },
    parseAs: "stream",
    signal: stop.signal,
  });
  const found: unknown[] = [];
  for await (const { event, data: encoded } of events(data as unknown as ReadableStream<Uint8Array> | null)) {
    if (event !== "entry") continue;
    const entry = JSON.parse(encoded) as Schemas["Entry"];
    if (entry.type === "message") found.push(entry.message.content);
    if (found.length === wanted) break;
  }
  stop.abort();
  return found;
}

const answer = await chat("Good morning");
const streamed = await chatStreamed("And again");
const { data: session } = await client.GET("/v1/sessions/{session_id}", { params: { path: { session_id } } });
const tailing = tail(session?.entries ?? 0, 2);
const appended = await client.POST("/v1/sessions/{session_id}/messages", {
  params: { path: { session_id }, header: { "If-Match": session?.etag } },
  body: { messages: [{ role: "user", content: "one" }, { role: "assistant", content: "two" }] },
});
const refused = await client.PATCH("/v1/sessions/{session_id}", {
  params: { path: { session_id }, header: { "If-Match": session?.etag } },
  body: { title: "too late" },
});
const missing = await client.GET("/v1/sessions/{session_id}", { params: { path: { session_id: "web_none" } } });
console.log(
  JSON.stringify({
    answer,
    streamed,
    appended: appended.data?.entries.length,
    refused: [refused.response.status, refused.error?.error.type],
    missing: [missing.response.status, missing.error?.error.type],
    tailed: await tailing,
    paged: await pageBackwards(2),
  }),
);
