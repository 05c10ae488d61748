// An agent of Mastra with the daemon's memory: `node out/agent.js URL TOKEN MODEL_URL KEY QUESTION...`.
// What it answered, and what it remembers then, is one line of JSON.
import { Agent } from "@mastra/core/agent";
import { InMemoryStore, MastraCompositeStore } from "@mastra/core/storage";
import { createTool } from "@mastra/core/tools";
import { Memory } from "@mastra/memory";
import { z } from "zod";
import { DaemonMemory } from "./daemon_memory.js";

const [url, token, modelUrl, apiKey, ...questions] = process.argv.slice(2) as [string, string, string, string];
const storage = new MastraCompositeStore({
  id: "daemon",
  default: new InMemoryStore(), // for what is no memory, such as workflows
  domains: { memory: new DaemonMemory(url, token) },
});
const memory = new Memory({
  storage,
  options: { lastMessages: 20, workingMemory: { enabled: true, template: "# Who it is" } },
});
const weather = createTool({
  id: "weather",
  description: "The weather of a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => ({ city, weather: "rain" }),
});
const agent = new Agent({
  id: "assistant",
  name: "assistant",
  instructions: "Answer.",
  model: { providerId: "custom", modelId: "m", url: modelUrl, apiKey },
  memory,
  tools: { weather },
});

const where = { thread: { id: "trip", title: "A trip" }, resource: "ada@example.org" };
const answers: string[] = [];
for (const question of questions as string[]) answers.push((await agent.generate(question, { memory: where })).text);
const { messages } = await memory.recall({ threadId: "trip", resourceId: where.resource });
const { threads } = await memory.listThreads({ filter: { resourceId: where.resource } });
const working = await memory.getWorkingMemory({ threadId: "trip", resourceId: where.resource });
const said = messages.map(({ role, content }) => [
  role,
  content.parts.map((part) => ("text" in part ? part.text : "")).join(""),
]);
console.log(JSON.stringify({ answers, said, threads: threads.map(({ id, title }) => [id, title]), working }));
