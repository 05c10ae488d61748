// A chat of the Vercel AI SDK that the daemon keeps: the route that `useChat` posts to, and what a page begins with.
import { createOpenAI } from "@ai-sdk/openai";
import { convertToModelMessages, streamText } from "ai";

const { DAEMON_URL, DAEMON_TOKEN } = process.env;
const daemon = createOpenAI({ baseURL: `${DAEMON_URL}/v1`, apiKey: DAEMON_TOKEN });

/** Answers the newest message of a chat; the daemon knows the others. */
export async function POST(request) {
  const { id, messages } = await request.json();
  const result = streamText({
    model: daemon.chat("any"),
    messages: await convertToModelMessages(messages.slice(-1)),
    providerOptions: { openai: { metadata: { session: `page_${id}` } } },
  });
  return result.toUIMessageStreamResponse();
}

/** The `messages` for `useChat({ id, messages })`: what was said in a chat so far. */
export async function loadChat(id) {
  const headers = { authorization: `Bearer ${DAEMON_TOKEN}` };
  const reply = await fetch(`${DAEMON_URL}/v1/sessions/page_${id}/messages`, { headers });
  if (reply.status === 404) return []; // nothing was said yet
  if (!reply.ok) throw new Error((await reply.json()).error.message);
  const { messages } = await reply.json();
  return messages.filter(({ role }) => role === "user" || role === "assistant").map(shown);
}

/** A message as the page has it; a picture is shown, and other files are not. */
function shown({ id, role, content }) {
  const parts = typeof content === "string" ? [{ type: "text", text: content }] : content.flatMap(partOf);
  return { id, role, parts };
}

function partOf({ type, text, media_type: mediaType, data }) {
  if (type === "text") return [{ type, text }];
  return type === "image" && data ? [{ type: "file", mediaType, url: `data:${mediaType};base64,${data}` }] : [];
}
