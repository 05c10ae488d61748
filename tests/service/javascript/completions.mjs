// Ten turns of a client that keeps the conversation itself: `node completions.mjs openai|vercel URL TOKEN NAME`.
// Some turns call a tool, one shows a picture, every second one is streamed. The answers are one line of JSON.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";

const [which, url, apiKey, name] = process.argv.slice(2);
const baseURL = `${url}/v1`;
const PIXEL =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const described = { name: "weather", description: "The weather of a city.", parameters };
const messages = [];

const clients = {
  openai: () => {
    const client = new OpenAI({ baseURL, apiKey, maxRetries: 100 });
    const tools = [{ type: "function", function: described }];
    return async (text, hasPicture, stream) => {
      const content = [{ type: "text", text }];
      if (hasPicture) content.push({ type: "image_url", image_url: { url: `data:image/png;base64,${PIXEL}` } });
      messages.push({ role: "user", content });
      for (;;) {
        const wanted = { model: "any", messages, tools };
        const made = stream
          ? await client.chat.completions.stream(wanted).finalChatCompletion()
          : await client.chat.completions.create(wanted);
        const said = made.choices[0].message;
        messages.push(said);
        if (!said.tool_calls?.length) return said.content;
        for (const call of said.tool_calls) messages.push({ role: "tool", tool_call_id: call.id, content: "rain" });
      }
    };
  },
  vercel: () => {
    const model = createOpenAI({ baseURL, apiKey }).chat("any");
    const weather = tool({
      description: described.description,
      inputSchema: jsonSchema(parameters),
      execute: async () => "rain",
    });
    return async (text, hasPicture, stream) => {
      const content = [{ type: "text", text }];
      if (hasPicture) content.push({ type: "file", mediaType: "image/png", data: PIXEL });
      messages.push({ role: "user", content });
      // it sends the same again without a mark
      const wanted = { model, messages, tools: { weather }, stopWhen: stepCountIs(3), maxRetries: 8 };
      const made = stream ? streamText(wanted) : await generateText(wanted);
      const said = await made.text;
      messages.push(...(await made.responseMessages)); // of all steps
      return said;
    };
  },
};

const turn = clients[which]();
const answers = [];
for (let number = 0; number < 10; number++) {
  const about = number % 4 === 1 ? "weather " : "";
  answers.push(await turn(`${name} ${about}${number}`, number === 2, number % 2 === 0));
}
console.log(JSON.stringify(answers));
