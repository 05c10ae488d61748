// Appends and chats, and follows what is said, while the daemon is killed again and again: `node out/killed.js URL TOKEN`.
// A request that got no reply is repeated with its key. What was acknowledged, heard and read is printed as JSON.
import createClient from "openapi-fetch";
import { events } from "./events.js";
import type { components, paths } from "./schema.js";

type Schemas = components["schemas"];

const [baseUrl, token] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${token}` } });
const path = { session_id: "web_9" };
const TIMES = 90;

const pause = () => new Promise((resolve) => setTimeout(resolve, 20));

/** Asks until there is a reply other than "not now". */
async function persisted<T extends { response: Response }>(ask: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      const reply = await ask();
      if (![409, 503].includes(reply.response.status)) return reply; // 409: the answer is still being made
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // fetch says so of a connection that broke, or cannot be made
    }
    await pause();
  }
}

const heard: number[] = [];
const done = new AbortController();

/** Every entry, over every connection; each goes on behind the last entry that was heard. */
async function follow(): Promise<void> {
  while (!done.signal.aborted) {
    try {
      const { data } = await client.GET("/v1/sessions/{session_id}/follow", {
        params: { path, query: { after: heard.at(-1) ?? 0 } },
        parseAs: "stream",
        signal: done.signal,
      });
      for await (const { id, event } of events(data as unknown as ReadableStream<Uint8Array> | null)) {
        if (event === "entry") heard.push(Number(id.split(".").at(-1)));
      }
    } catch {
      if (!done.signal.aborted) await pause();
    }
  }
}

const acknowledged: string[] = [];
const following = follow();
for (let number = 1; number <= TIMES; number++) {
  const text = `message ${number}`;
  const header = { "Idempotency-Key": text };
  const { response } =
    number % 3
      ? await persisted(() => client.POST("/v1/sessions/{session_id}/messages", { params: { path, header }, body: { role: "user", content: text } }))
      : await persisted(() => client.POST("/v1/chat", { params: { header }, body: { channel: "web", chat_id: "9", message: text } }));
  if (!response.ok) throw new Error(`${text}: ${response.status} ${await response.text()}`);
  acknowledged.push(text);
  await pause(); // so that it meets several lives of the daemon, however fast it is
}
const { data: session } = await persisted(() => client.GET("/v1/sessions/{session_id}", { params: { path } }));
while ((heard.at(-1) ?? 0) < (session?.entries ?? 0)) await pause();
done.abort();
await following;
const { data: page } = await persisted(() => client.GET("/v1/sessions/{session_id}/entries", { params: { path, query: { limit: 1000 } } }));
const read = (page?.entries as Schemas["Entry"][]).flatMap((entry) => (entry.type === "message" ? [[entry.message.role, entry.message.content]] : []));
console.log(JSON.stringify({ acknowledged, heard, read, entries: session?.entries }));
