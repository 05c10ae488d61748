// Asks twice in one conversation: `node clients.mjs openai|vercel URL TOKEN`. What came of it is one line of JSON.
import { randomUUID } from "node:crypto";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText } from "ai";
import OpenAI from "openai";

const [which, url, apiKey] = process.argv.slice(2);
const baseURL = `${url}/v1`;
const client = new OpenAI({ baseURL, apiKey, maxRetries: 100 });
const conversation = (await client.conversations.create()).id;

const ask = {
  // it marks what it sends again
  openai: async (input) => (await client.responses.create({ model: "any", input, conversation })).output_text,
  // it sends the same again without a mark, so the request has a key
  vercel: async (prompt) => {
    const model = createOpenAI({ baseURL, apiKey }).responses("any");
    const providerOptions = { openai: { conversation } };
    const headers = { "Idempotency-Key": randomUUID() };
    return (await generateText({ model, prompt, providerOptions, headers, maxRetries: 8 })).text;
  },
}[which];

const answers = [await ask("hello?"), await ask("and now?")];
const said = [];
for await (const item of client.conversations.items.list(conversation, { order: "asc" })) {
  said.push(item.content[0].text);
}
console.log(JSON.stringify({ answers, said }));
