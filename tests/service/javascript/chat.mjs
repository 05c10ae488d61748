// What a page does with the route of `chat_route.mjs`: a chat is opened, two questions are asked, and it is opened again.
import { readUIMessageStream, uiMessageChunkSchema, parseJsonEventStream } from "ai";
import { loadChat, POST } from "./chat_route.mjs";

const before = await loadChat("ada");
const chat = [...before];
for (const text of ["I am Ada.", "Who am I?"]) {
  chat.push({ id: `m${chat.length}`, role: "user", parts: [{ type: "text", text }] });
  const request = new Request("http://page/api/chat", { method: "POST", body: JSON.stringify({ id: "ada", messages: chat }) });
  const answer = await POST(request);
  const chunks = parseJsonEventStream({ stream: answer.body, schema: uiMessageChunkSchema }).pipeThrough(
    new TransformStream({ transform: (chunk, out) => out.enqueue(chunk.value) }),
  );
  let said;
  for await (const message of readUIMessageStream({ stream: chunks })) said = message;
  chat.push(said);
}
const words = (messages) => messages.map(({ role, parts }) => [role, parts.map(({ text = "" }) => text).join("")]);
console.log(JSON.stringify({ before: words(before), said: words(chat), after: words(await loadChat("ada")) }));
