// Asks the daemon's memory and Mastra's own the same things: `node out/same_answers.js URL TOKEN`.
// What each of them answered is one line of JSON: by the name of a case, the two answers.
import type { MastraDBMessage } from "@mastra/core/memory";
import { InMemoryDB, InMemoryMemory, type MemoryStorage, type StorageMetadataFilter } from "@mastra/core/storage";
import { DaemonMemory } from "./daemon_memory.js";

type Case = (memory: MemoryStorage) => Promise<unknown>;
type Options = {
  thread?: string;
  resource?: string;
  role?: "user" | "assistant";
  at?: number;
  metadata?: Record<string, unknown>;
};

const NOON = Date.UTC(2026, 0, 31, 12);
const minute = (number: number) => new Date(NOON + number * 60_000);

function message(id: string, at: number, { thread = "one", resource = "ada", role = "user", metadata }: Options = {}) {
  const content = {
    format: 2 as const,
    parts: [{ type: "text" as const, text: `says ${id}` }],
    ...(metadata && { metadata }),
  };
  return {
    id,
    threadId: thread,
    resourceId: resource,
    role,
    type: "text",
    createdAt: minute(at),
    content,
  } satisfies MastraDBMessage;
}

async function thread(
  memory: MemoryStorage,
  id: string,
  at = 0,
  resourceId = "ada",
  metadata?: Record<string, unknown>,
) {
  const dates = { createdAt: minute(at), updatedAt: minute(at) };
  return memory.saveThread({
    thread: { id, resourceId, title: `about ${id}`, ...dates, ...(metadata && { metadata }) },
  });
}

/** Two threads of Ada and one of Bob, with five, two and two messages. */
async function threads(memory: MemoryStorage): Promise<void> {
  await thread(memory, "one", 1);
  await thread(memory, "two", 2);
  await thread(memory, "bob", 3, "bob");
  const first = [1, 2, 3, 4, 5].map((number) =>
    message(`m${number}`, number, { role: number % 2 ? "user" : "assistant" }),
  );
  const others = [6, 7].flatMap((number) => [
    message(`t${number}`, number, { thread: "two" }),
    message(`b${number}`, number + 2, { thread: "bob", resource: "bob" }),
  ]);
  await memory.saveMessages({ messages: [...first, ...others] });
}

/** A part of a content, which Mastra's own callers give where its types want all of it. */
const part = (content: Partial<MastraDBMessage["content"]>) => content as MastraDBMessage["content"];
const ids = <T extends { id: string }>(all: T[]) => all.map(({ id }) => id);
const refused = async (asked: Promise<unknown>) =>
  asked.then(
    () => "taken",
    () => "refused",
  );
const ASC = { field: "createdAt", direction: "ASC" } as const;
const DESC = { field: "createdAt", direction: "DESC" } as const;

const CASES: Record<string, Case> = {
  "messages come in the order of their dates": async (memory) => {
    await thread(memory, "one");
    await memory.saveMessages({ messages: [message("late", 9), message("early", 1), message("later", 12)] });
    await memory.saveMessages({ messages: [message("between", 5)] });
    const { messages } = await memory.listMessages({ threadId: "one" });
    const reversed = await memory.listMessages({ threadId: "one", orderBy: DESC });
    return [messages, ids(reversed.messages)];
  },
  "a page has what belongs to it": async (memory) => {
    await threads(memory);
    const pages = [0, 1, 2, 3].map((page) => memory.listMessages({ threadId: "one", page, perPage: 2 }));
    const newest = memory.listMessages({ threadId: "one", perPage: 2, orderBy: DESC });
    const both = memory.listMessages({ threadId: ["one", "two"], perPage: 6 });
    return Promise.all(
      [...pages, newest, both].map(async (asked) => {
        const { messages, ...about } = await asked;
        return [ids(messages), about];
      }),
    );
  },
  "without pages all come": async (memory) => {
    await thread(memory, "one");
    const many = Array.from({ length: 60 }, (_, number) => message(`m${number}`, number));
    await memory.saveMessages({ messages: many });
    const asked = [false, undefined, 0].map(async (perPage) => {
      const { messages, ...about } = await memory.listMessages({ threadId: "one", perPage } as { threadId: string });
      return [ids(messages), about];
    });
    return Promise.all(asked);
  },
  "messages are chosen by their dates and metadata": async (memory) => {
    await threads(memory);
    await memory.saveMessages({ messages: [message("marked", 10, { metadata: { topic: "rain", loud: true } })] });
    const ranges = [
      { start: minute(3) },
      { end: minute(3) },
      { start: minute(2), end: minute(4), startExclusive: true, endExclusive: true },
    ].map((dateRange) => ({ dateRange }));
    const marks: StorageMetadataFilter[] = [{ topic: "rain" }, { topic: "rain", loud: false }];
    const filters = [...ranges, ...marks.map((metadata) => ({ metadata }))];
    const asked = filters.map(async (filter) => {
      const { messages, total } = await memory.listMessages({ threadId: "one", filter });
      return [ids(messages), total];
    });
    return Promise.all(asked);
  },
  "what is included comes with its neighbours": async (memory) => {
    await threads(memory);
    const near = { withPreviousMessages: 1, withNextMessages: 1 };
    const wanted = [
      { threadId: "one", perPage: 0, include: [{ id: "m3", ...near }] },
      {
        threadId: "one",
        perPage: 1,
        include: [
          { id: "m4", withPreviousMessages: 1 },
          { id: "m5", withPreviousMessages: 9 },
        ],
      },
      { threadId: "two", perPage: 0, include: [{ id: "m3", threadId: "one", withPreviousMessages: 2 }] },
      { threadId: "two", include: [{ id: "m3", threadId: "bob", ...near }] }, // the thread is wrong
      { threadId: "bob", resourceId: "bob", include: [{ id: "m3", ...near }] }, // another resource's
      { threadId: "bob", include: [{ id: "nobody's", ...near }] },
    ];
    return Promise.all(
      wanted.map(async (args) => {
        const { messages, total, hasMore } = await memory.listMessages(args);
        return [ids(messages), total, hasMore];
      }),
    );
  },
  "threads are listed by resource, metadata and date": async (memory) => {
    await threads(memory);
    await thread(memory, "three", 0, "ada", { kind: { deep: [1, 2] }, open: true });
    await memory.updateThread({ id: "two", metadata: { open: true } });
    const wanted = [
      {},
      { filter: { resourceId: "ada" }, orderBy: ASC },
      { filter: { resourceId: "ada", metadata: { open: true } } },
      { filter: { metadata: { kind: { deep: [1, 2] } } } },
      { perPage: 2, page: 1 },
      { perPage: false as const },
    ];
    const listed = wanted.map(async (args) => {
      const { threads: found, ...about } = await memory.listThreads(args);
      return [ids(found), about];
    });
    for (const [at, id] of ["c2", "c3", "c1"].entries()) await thread(memory, id, Number(id[1]) * 10 + at, "carl");
    const used = await memory.listThreads({ filter: { resourceId: "carl" }, orderBy: { field: "updatedAt" } });
    return [await Promise.all(listed), ids(used.threads)];
  },
  "a message with a known id takes the place of the other": async (memory) => {
    await threads(memory);
    const before = await memory.getThreadById({ threadId: "one" });
    const changed = {
      ...message("m2", 2, { role: "assistant" }),
      content: { format: 2 as const, parts: [{ type: "text" as const, text: "no" }] },
    };
    await memory.saveMessages({ messages: [changed, message("new", 11), message("m5", 5)] });
    await memory.saveMessages({ messages: [changed] });
    const now = await memory.getThreadById({ threadId: "one" });
    await memory.saveMessages({ messages: [message("m4", 4, { thread: "two" })] });
    const { messages } = await memory.listMessages({ threadId: "one" });
    const moved = await memory.listMessages({ threadId: "two" });
    return [messages, ids(moved.messages), now!.updatedAt > before!.updatedAt];
  },
  "messages of a resource are found in all threads": async (memory) => {
    await threads(memory);
    await memory.saveMessages({ messages: [message("guest", 10, { resource: "bob" })] });
    const inThread = await memory.listMessages({ threadId: "one", resourceId: "ada" });
    const everywhere = await memory.listMessagesByResourceId({ resourceId: "bob", perPage: 2, orderBy: ASC });
    const { messages } = await memory.listMessagesById({ messageIds: ["b6", "m1", "nobody's", "t7"] });
    return [ids(inThread.messages), { ...everywhere, messages: ids(everywhere.messages) }, messages];
  },
  "messages are changed, moved and deleted": async (memory) => {
    await threads(memory);
    await memory.saveMessages({ messages: [message("marked", 10, { metadata: { topic: "rain" } })] });
    const changed = await memory.updateMessages({
      messages: [
        { id: "m1", role: "assistant" },
        { id: "marked", content: part({ metadata: { loud: true } }) },
        { id: "m2", content: part({ content: "a text" }) },
        { id: "m3", threadId: "two" },
        { id: "nobody's", role: "assistant" },
      ],
    });
    await memory.deleteMessages(["m4", "b6", "b8", "nobody's"]);
    await memory.deleteMessages([]);
    const left = await Promise.all(["one", "two", "bob"].map((threadId) => memory.listMessages({ threadId })));
    return [changed, left.map(({ messages }) => messages)];
  },
  "a thread is changed and deleted": async (memory) => {
    await thread(memory, "one", 0, "ada", { kept: 1, changed: 1 });
    await thread(memory, "two", 0);
    await memory.saveMessages({ messages: [message("m1", 1)] });
    await memory.updateThread({ id: "one", metadata: { changed: 2 } });
    await memory.updateThread({ id: "one", title: "another" });
    await memory.updateThread({ id: "two", title: "" });
    const { updatedAt, ...changed } = (await memory.getThreadById({ threadId: "one", resourceId: "ada" }))!;
    const others = await memory.getThreadById({ threadId: "one", resourceId: "bob" });
    const updated = await memory.updateThreadMetadata({
      id: "one",
      update: ({ metadata }) => ({ ...metadata, more: 1 }),
    });
    const empty = await memory.getThreadById({ threadId: "two" });
    await memory.saveThread({ thread: { id: "two", resourceId: "bob", createdAt: minute(2), updatedAt: minute(3) } });
    const again = await memory.getThreadById({ threadId: "two" });
    await memory.deleteThread({ threadId: "one" });
    await memory.deleteThread({ threadId: "nobody's" });
    const { messages } = await memory.listMessages({ threadId: "one" });
    const gone = await memory.getThreadById({ threadId: "one" });
    return [changed, updatedAt > minute(0), others, updated!.metadata, empty!.title, again, messages, gone];
  },
  "a resource has its working memory": async (memory) => {
    const dates = { createdAt: minute(0), updatedAt: minute(0) };
    const saved = await memory.saveResource({
      resource: { id: "ada", workingMemory: "# Ada", metadata: { a: 1 }, ...dates },
    });
    await memory.updateResource({ resourceId: "ada", metadata: { b: { deep: null } } });
    await memory.updateResource({ resourceId: "ada", workingMemory: "" });
    await memory.updateResource({ resourceId: "new", workingMemory: "# New" });
    const { updatedAt, ...ada } = (await memory.getResourceById({ resourceId: "ada" }))!;
    const made = await memory.getResourceById({ resourceId: "new" });
    return [
      saved,
      updatedAt > minute(0),
      ada,
      made!.workingMemory,
      made!.metadata,
      await memory.getResourceById({ resourceId: "no" }),
    ];
  },
  "strange contents and ids come back as they are": async (memory) => {
    const strange = "a/b_%~?#ä 😀";
    const deep = Array.from({ length: 90 }).reduce<unknown>((inner) => [inner], "deep");
    await thread(memory, strange, 0, strange, { large: 2 ** 70, deep, "": null, title: "taken?" });
    const toolInvocation = {
      state: "result" as const,
      toolCallId: "c1",
      toolName: "count",
      args: { large: 2 ** 70, deep },
      result: { deep },
    };
    const parts = [
      { type: "step-start" as const },
      { type: "reasoning" as const, reasoning: "hm", details: [{ type: "text" as const, text: "hm", signature: "s" }] },
      { type: "tool-invocation" as const, toolInvocation },
      { type: "text" as const, text: "a half \ud800 and a zero \u0000" },
      { type: "file" as const, data: "AAAA", mimeType: "image/png" },
    ];
    const said = {
      ...message(strange, 1, { thread: strange, resource: strange, role: "assistant" }),
      content: { format: 2 as const, parts },
    };
    await memory.saveMessages({ messages: [said, message("empty", 2, { thread: strange, resource: strange })] });
    const { messages } = await memory.listMessages({ threadId: strange, resourceId: strange });
    const found = await memory.getThreadById({ threadId: strange, resourceId: strange });
    return [messages, found!.metadata];
  },
  "what makes no sense is refused": async (memory) => {
    await threads(memory);
    return Promise.all([
      refused(memory.listMessages({ threadId: " " })),
      refused(memory.listMessages({ threadId: "one", page: -1 })),
      refused(memory.listThreads({ page: -1 })),
      refused(memory.listThreads({ perPage: false, page: 1 })),
      refused(memory.listThreads({ filter: { metadata: { "a b": 1 } } })),
      refused(memory.updateThread({ id: "nobody's", title: "t" })),
      refused(memory.saveMessages({ messages: [{ ...message("x", 1), resourceId: null as unknown as string }] })),
    ]);
  },
  "all that is said at once is there": async (memory) => {
    await thread(memory, "one");
    const each = Array.from({ length: 30 }, (_, number) => message(`m${number}`, number));
    await Promise.all(each.map((one) => memory.saveMessages({ messages: [one] })));
    await Promise.all(each.map(({ id }, number) => memory.updateThread({ id: "one", metadata: { [id]: number } })));
    const { messages } = await memory.listMessages({ threadId: "one", perPage: false });
    return [ids(messages), Object.keys((await memory.getThreadById({ threadId: "one" }))!.metadata!).length];
  },
  "any two hundred steps lead to the same": async (memory) => {
    let state = 20260131;
    const below = (limit: number) => (state = (state * 1103515245 + 12345) % 2 ** 31) % limit; // the same for both
    const names = ["one", "two", "bob"];
    const seen: unknown[] = [];
    for (const name of names) await thread(memory, name, names.indexOf(name), name === "bob" ? "bob" : "ada");
    for (let step = 0; step < 200; step++) {
      const [name, id] = [names[below(3)]!, `m${below(25)}`];
      const at = Number(id.slice(1));
      const kind = below(6);
      if (kind < 3) await memory.saveMessages({ messages: [message(id, at, { thread: name, metadata: { step } })] });
      if (kind === 3)
        await memory.updateMessages({
          messages: [{ id, content: part({ metadata: { changed: step } }), ...(below(2) && { threadId: name }) }],
        });
      if (kind === 4) await memory.deleteMessages([id, `m${below(25)}`]);
      const { messages, ...about } = await memory.listMessages({
        threadId: name,
        perPage: 1 + below(9),
        page: below(2),
        orderBy: below(2) ? ASC : DESC,
      });
      seen.push([messages, about]);
    }
    return seen;
  },
};

const [url, token] = process.argv.slice(2) as [string, string];
const answers: Record<string, unknown> = {};
for (const [name, asked] of Object.entries(CASES)) {
  const daemons = new DaemonMemory(url, token);
  await daemons.dangerouslyClearAll();
  const ours = await asked(daemons).catch((error: Error) => error.stack);
  const theirs = await asked(new InMemoryMemory({ db: new InMemoryDB() }));
  answers[name] = { ours, theirs };
}
console.log(JSON.stringify(answers));
