// The memory of Mastra's agents, kept by the daemon: a thread is a session of the channel `mastra`, and its messages
// are the session's, which pages and searches show. What a resource remembers is in the channel `mastra-resources`.
import type { MastraDBMessage, StorageThreadType } from "@mastra/core/memory";
import * as mastra from "@mastra/core/storage";
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Schemas = components["schemas"];
type Memory = mastra.MemoryStorage;
type Wanted = mastra.StorageListMessagesInput | mastra.StorageListMessagesByResourceIdInput;
type Kept = { id: string; title?: string; metadata?: Record<string, unknown>; createdAt: Date; updatedAt: Date };
/** A message of a session: its entry's id, as the daemon has it, and as Mastra has it if it is one for Mastra. */
type Stored = { entry?: string; said: Schemas["Message"]; message?: MastraDBMessage };
/** The messages of the threads that one question has read. */
type Threads = Map<string, Promise<MastraDBMessage[]>>;

const THREADS = "mastra";
const RESOURCES = "mastra-resources";

export class DaemonMemory extends mastra.MemoryStorage {
  override readonly supportsPartialThreadUpdate = true;
  readonly #daemon;
  readonly #branches = new Map<string, Stored[]>(); // of sessions, as they were read last
  readonly #places = new Map<string, string>(); // in which thread a message was seen last

  constructor(baseUrl: string, token: string) {
    super();
    this.#daemon = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${token}` } });
  }

  async dangerouslyClearAll(): Promise<void> {
    for (const channel of [THREADS, RESOURCES]) await inTurn(await this.#ids(channel), (id) => this.#delete(id));
  }

  // --- threads and resources -----------------------------------------------------------------------------------------

  async getThreadById({ threadId, resourceId }: Parameters<Memory["getThreadById"]>[0]) {
    const thread = keptBy<StorageThreadType>(await this.#session(idOf(THREADS, threadId)));
    return thread && (resourceId === undefined || thread.resourceId === resourceId) ? thread : null;
  }

  async saveThread({ thread }: { thread: StorageThreadType }) {
    return this.#keep<StorageThreadType>(THREADS, thread.id, () => thread);
  }

  async updateThread({ id, title, metadata }: Parameters<Memory["updateThread"]>[0]) {
    return this.#keep<StorageThreadType>(THREADS, id, (thread) => {
      if (!thread) throw new Error(`there is no thread ${id}`);
      const changed = { ...thread, metadata: { ...thread.metadata, ...metadata }, updatedAt: after(thread) };
      return title === undefined ? changed : { ...changed, title };
    });
  }

  async deleteThread({ threadId }: { threadId: string }): Promise<void> {
    await this.#delete(idOf(THREADS, threadId));
  }

  async listThreads({ page = 0, perPage, orderBy, filter }: mastra.StorageListThreadsInput) {
    this.validatePaginationInput(page, perPage ?? 100);
    this.validateMetadataKeys(filter?.metadata);
    const { field, direction } = this.parseOrderBy(orderBy);
    const wanted = Object.entries(filter?.metadata ?? {});
    const threads = (await this.#threads())
      .filter(({ resourceId }) => !filter?.resourceId || resourceId === filter.resourceId)
      .filter(({ metadata }) => wanted.every(([key, value]) => mastra.jsonValueEquals(metadata?.[key], value)));
    return paged("threads", inOrder(threads, field, direction), page, perPage, 100);
  }

  override async getResourceById({ resourceId }: { resourceId: string }) {
    return keptBy<mastra.StorageResourceType>(await this.#session(idOf(RESOURCES, resourceId))) ?? null;
  }

  override async saveResource({ resource }: { resource: mastra.StorageResourceType }) {
    return this.#keep<mastra.StorageResourceType>(RESOURCES, resource.id, () => resource);
  }

  override async updateResource({ resourceId: id, workingMemory, metadata }: Parameters<Memory["updateResource"]>[0]) {
    return this.#keep<mastra.StorageResourceType>(RESOURCES, id, (known) => {
      const updatedAt = known ? after(known) : new Date();
      const changed = { createdAt: updatedAt, ...known, id, metadata: { ...known?.metadata, ...metadata }, updatedAt };
      return workingMemory === undefined ? changed : { ...changed, workingMemory };
    });
  }

  // --- messages ------------------------------------------------------------------------------------------------------

  async listMessages(args: mastra.StorageListMessagesInput): Promise<mastra.StorageListMessagesOutput> {
    const ids = [args.threadId].flat();
    if (!ids.length || ids.some((id) => !id.trim())) throw new Error("threadId must be a non-empty string");
    return this.#list([...new Set(ids)], args.resourceId || undefined, args);
  }

  override async listMessagesByResourceId(args: mastra.StorageListMessagesByResourceIdInput) {
    return this.#list(
      (await this.#threads()).map(({ id }) => id),
      args.resourceId,
      args,
    );
  }

  async listMessagesById({ messageIds }: { messageIds: string[] }) {
    const threads: Threads = new Map();
    const found = await inTurn(messageIds, (id) => this.#find(id, undefined, threads));
    return {
      messages: inOrder(
        found.flatMap((one) => one?.message ?? []),
        "createdAt",
        "ASC",
      ),
    };
  }

  async saveMessages({ messages }: { messages: MastraDBMessage[] }) {
    const left = new Map<string, Set<string>>(); // by the threads that messages go away from
    for (const { id, threadId, resourceId } of messages) {
      if (!threadId || !resourceId) throw new Error(`the message ${id} belongs to no thread, or to no resource`);
      const place = this.#places.get(id);
      if (place && place !== threadId) left.set(place, (left.get(place) ?? new Set()).add(id));
    }
    for (const [threadId, said] of Map.groupBy(messages, ({ threadId }) => threadId!)) {
      await this.#change(threadId, (stored) => upserted(stored, said));
    }
    for (const [threadId, ids] of left) await this.#change(threadId, (stored) => without(stored, ids), true);
    return { messages };
  }

  async updateMessages({ messages }: Parameters<Memory["updateMessages"]>[0]) {
    const threads: Threads = new Map();
    const changed = new Map<string, MastraDBMessage>();
    for (const { content: given, ...update } of messages) {
      const known = changed.get(update.id) ?? (await this.#find(update.id, undefined, threads))?.message;
      if (!known) continue;
      const metadata = { ...known.content.metadata, ...given?.metadata };
      const content = { ...known.content, ...given, ...(Object.keys(metadata).length && { metadata }) };
      const fields = Object.entries(update).filter(([, value]) => value !== undefined);
      changed.set(update.id, { ...known, ...Object.fromEntries(fields), content });
    }
    return (await this.saveMessages({ messages: [...changed.values()] })).messages;
  }

  override async deleteMessages(messageIds: string[]): Promise<void> {
    const threads: Threads = new Map();
    const found = await inTurn(messageIds, (id) => this.#find(id, undefined, threads));
    for (const threadId of new Set(found.flatMap((one) => one?.threadId ?? []))) {
      await this.#change(threadId, (stored) => without(stored, new Set(messageIds)), true);
    }
  }

  /** A page of the messages of threads, and those that are to be included besides. */
  async #list(ids: string[], resourceId: string | undefined, { include, filter, perPage, page = 0, orderBy }: Wanted) {
    const metadata = mastra.validateStorageMetadataFilter(filter?.metadata);
    this.validatePaginationInput(page, perPage ?? 40);
    const { direction } = this.parseOrderBy(orderBy, "ASC");
    const threads: Threads = new Map();
    const isTheirs = (message: MastraDBMessage) => resourceId === undefined || message.resourceId === resourceId;
    const all = (await inTurn(ids, (id) => this.#messages(id, threads))).flat().filter(isTheirs);
    const fitting = mastra
      .filterByDateRange(all, ({ createdAt }) => createdAt, filter?.dateRange)
      .filter(({ content }) => mastra.storageMessageMatchesMetadataFilter(content, metadata));
    const listed = paged("messages", inOrder(fitting, "createdAt", direction), page, perPage, 40);
    const shown = new Map(listed.messages.map((message) => [message.id, message]));
    for (const { id, threadId, withPreviousMessages = 0, withNextMessages = 0 } of include ?? []) {
      const found = await this.#find(id, threadId, threads);
      if (!found || !isTheirs(found.message)) continue;
      const around = inOrder((await this.#messages(found.threadId, threads)).filter(isTheirs), "createdAt", "ASC");
      const place = around.findIndex((message) => message.id === id);
      const near = around.slice(Math.max(0, place - withPreviousMessages), place + withNextMessages + 1);
      for (const message of near) shown.set(message.id, message);
    }
    const seen = [...shown.values()].filter(({ threadId }) => ids.includes(threadId!)).length;
    const hasMore = listed.hasMore && (!include?.length || Boolean(metadata) || seen < listed.total);
    return { ...listed, messages: inOrder([...shown.values()], "createdAt", direction), hasMore };
  }

  /** Where a message is: in the thread that it is said to be in, or was seen in last; else in any of them. */
  async #find(id: string, said: string | undefined, threads: Threads) {
    const look = async (threadId: string | undefined) => {
      const messages = threadId ? await this.#messages(threadId, threads) : [];
      const message = messages.find((one) => one.id === id);
      return threadId && message && { threadId, message };
    };
    for (const threadId of [said, this.#places.get(id)]) {
      const found = await look(threadId);
      if (found) return found;
    }
    return (await inTurn(await this.#threads(), (thread) => look(thread.id))).find(Boolean) || undefined;
  }

  #messages(threadId: string, threads: Threads): Promise<MastraDBMessage[]> {
    const read = async () => {
      const session = await this.#session(idOf(THREADS, threadId));
      return keptBy(session) ? (await this.#read(session!)).flatMap(({ message }) => message ?? []) : [];
    };
    return remember(threads, threadId, threads.get(threadId) ?? read());
  }

  /** Has a thread say what `change` makes of its messages; what another one says meanwhile is among them. */
  async #change(threadId: string, change: (stored: Stored[]) => Stored[], mayLack = false): Promise<void> {
    const session_id = idOf(THREADS, threadId);
    for (;;) {
      const session = await this.#session(session_id);
      const thread = keptBy(session);
      if (!thread && mayLack) return;
      if (!session || !thread) throw new Error(`there is no thread ${threadId}`);
      const before = await this.#read(session);
      const wanted = change(before);
      const first = before.findIndex((one, place) => one !== wanted[place]);
      const stays = first < 0 ? before.length : first;
      const said = wanted.slice(stays).map(({ said: { usage: _, ...said } }) => said); // which was counted already
      const params = { path: { session_id }, query: { if_leaf: session.leaf_id ?? "" } };
      const updated = { type: "metadata", metadata: { mastra_updated: after(thread) } } as const;
      const entries = [...said.map(entryOf), updated];
      const { error } =
        stays === before.length
          ? await this.#daemon.POST("/v1/sessions/{session_id}/entries", { params, body: { entries } })
          : // it goes back to before the first change, and on from there; the transcript keeps what was said
            await this.#daemon.POST("/v1/sessions/{session_id}/branch", {
              params,
              body: { entry_id: before[stays - 1]?.entry ?? null, entries },
            });
      if (error?.error.type === "leaf_moved") continue;
      if (error) throw failed(error);
      for (const { message } of wanted) if (message) remember(this.#places, message.id, threadId, 100_000);
      return;
    }
  }

  /** All messages of a session's branch, oldest first; from the daemon come those behind what was read before. */
  async #read({ session_id, chat_id, leaf_id, metadata }: Schemas["SessionReply"]): Promise<Stored[]> {
    const known = this.#branches.get(session_id) ?? [];
    if (known.length && known.at(-1)!.entry === leaf_id) return known;
    const places = new Map(known.map(({ entry }, place) => [entry, place]));
    const found: Stored[] = [];
    for (let [before, limit, isWhole] = [2 ** 53, 50, false]; !isWhole; limit = 1000) {
      const params = { path: { session_id }, query: { before, limit } };
      const { data, error } = await this.#daemon.GET("/v1/sessions/{session_id}/messages", { params });
      if (error) throw failed(error);
      const page = data.messages.map((shown) => storedOf(shown, chat_id, (metadata as any).mastra.resourceId));
      const meeting = page.findLastIndex(({ entry }) => places.has(entry)); // an entry has one way to the root
      const earlier = known.slice(0, meeting < 0 ? 0 : places.get(page[meeting]!.entry)! + 1);
      found.unshift(...earlier, ...page.slice(meeting + 1));
      isWhole = meeting >= 0 || !data.earlier;
      before = data.messages[0]?.sequence ?? 0;
    }
    for (const { message } of found) if (message) remember(this.#places, message.id, chat_id, 100_000);
    return remember(this.#branches, session_id, found, 100);
  }

  // --- sessions ------------------------------------------------------------------------------------------------------

  async #session(session_id: string): Promise<Schemas["SessionReply"] | undefined> {
    const params = { path: { session_id } };
    const { data, error, response } = await this.#daemon.GET("/v1/sessions/{session_id}", { params });
    if (error && !isGone(response)) throw failed(error);
    return data;
  }

  async #threads(): Promise<StorageThreadType[]> {
    const sessions = await inTurn(await this.#ids(THREADS), (session_id) => this.#session(session_id));
    return sessions.flatMap((session) => keptBy<StorageThreadType>(session) ?? []);
  }

  async #ids(channel: string): Promise<string[]> {
    const found: string[] = [];
    for (let after: string | undefined; ;) {
      const params = { query: { channel, limit: 1000, after } };
      const { data, error } = await this.#daemon.GET("/v1/sessions", { params });
      if (error) throw failed(error);
      found.push(...data.sessions.map(({ session_id }) => session_id));
      if (!data.next) return found;
      after = data.next;
    }
  }

  /** Keeps what `change` makes of what is kept of a thread or a resource; another one's changes are not lost. */
  async #keep<T extends Kept>(channel: string, chat_id: string, change: (known: T | undefined) => T): Promise<T> {
    const session_id = idOf(channel, chat_id);
    for (;;) {
      const session = await this.#session(session_id);
      const wanted = change(keptBy<T>(session));
      const { id: _, title, metadata, updatedAt, ...fields } = wanted;
      const kept = { ...fields, ...(title === "" && { title }), metadata: JSON.stringify(metadata) ?? null };
      const body = { title: title || null, metadata: { mastra: kept, mastra_updated: updatedAt } };
      if (session && (await this.#patch(session_id, body, session.etag))) return wanted;
      if (session) continue;
      const { data, error } = await this.#daemon.POST("/v1/sessions", { body: { channel, chat_id, ...body } });
      if (error) throw failed(error);
      if (data.created) return wanted;
    }
  }

  /** Whether the session was changed: not if it is another one by now. */
  async #patch(session_id: string, body: Schemas["UpdateSession"], etag = "*"): Promise<boolean> {
    const params = { path: { session_id }, header: { "If-Match": etag } };
    const { error, response } = await this.#daemon.PATCH("/v1/sessions/{session_id}", { params, body });
    if (error && response.status !== 412 && !isGone(response)) throw failed(error);
    return !error;
  }

  async #delete(session_id: string): Promise<void> {
    const params = { path: { session_id } };
    const { error, response } = await this.#daemon.DELETE("/v1/sessions/{session_id}", { params });
    if (error && !isGone(response)) throw failed(error);
  }
}

// --- what is kept, and how -------------------------------------------------------------------------------------------

/** What is kept of a thread or a resource in the metadata of its session; nothing in one that others have made. */
function keptBy<T extends Kept>(session: Schemas["SessionReply"] | undefined): T | undefined {
  const { mastra: kept, mastra_updated } = (session?.metadata ?? {}) as Record<string, any>;
  if (!session || !kept) return undefined;
  const { metadata, createdAt, ...fields } = kept;
  const dates = { createdAt: new Date(createdAt), updatedAt: new Date(mastra_updated) };
  const titled = session.title === null ? {} : { title: session.title };
  return { id: session.chat_id, ...fields, ...titled, ...dates, ...(metadata && { metadata: JSON.parse(metadata) }) };
}

/** A message for the daemon: its words and calls for all to read, and the whole of it for Mastra. */
function saidBy(message: MastraDBMessage): Schemas["Message"] {
  const { role, createdAt, resourceId, content } = message;
  const parts = content.parts ?? [];
  const calls = parts.flatMap((part) => (part.type === "tool-invocation" ? [callOf(part.toolInvocation)] : []));
  const texts = parts.flatMap((part) => (part.type === "text" ? [part.text] : []));
  const said = {
    role: role as Schemas["Role"], // one that the daemon does not know is to it a user's
    content: readable(texts.join("\n")),
    timestamp: createdAt.toISOString(),
    ...(role === "user" && { name: resourceId }),
    ...(role === "assistant" && { tool_calls: calls }),
  };
  return Object.assign(said, { mastra: { json: JSON.stringify(message) } });
}

function callOf({ toolCallId, toolName: name, args, state, result }: Record<string, any>): Schemas["ToolCall"] {
  const output = typeof result === "string" ? result : (JSON.stringify(result) ?? "");
  const answered = state === "result" ? { output: readable(output) } : {};
  return { id: toolCallId, name, arguments: JSON.stringify(args ?? {}), ...answered };
}

/** A message as Mastra saved it; of what was said in the session otherwise, the words of user and assistant. */
function storedOf(shown: Schemas["ShownMessage"], threadId: string, resourceId: string): Stored {
  const { id, sequence: _, ...said } = shown as Schemas["ShownMessage"] & { id: string; mastra?: { json: string } };
  if (said.mastra) {
    const message = JSON.parse(said.mastra.json);
    return { entry: id, said, message: { ...message, createdAt: new Date(message.createdAt) } };
  }
  const { role, content = "", timestamp } = said;
  const text =
    typeof content === "string" ? content : content.map((part) => ("text" in part ? part.text : "")).join("");
  if ((role !== "user" && role !== "assistant") || !text) return { entry: id, said };
  const createdAt = new Date(timestamp!);
  const parts = [{ type: "text" as const, text }];
  return { entry: id, said, message: { id, threadId, resourceId, role, createdAt, content: { format: 2, parts } } };
}

const entryOf = (message: Schemas["Message"]) =>
  ({ type: "message", message, continues: message.role !== "user" }) as const;

/** What is stored, with messages: one with a known id takes the place of the stored one, the others follow. */
function upserted(stored: Stored[], messages: MastraDBMessage[]): Stored[] {
  const plain = (value: unknown) => JSON.parse(JSON.stringify(value));
  const left = new Map(messages.map((message) => [message.id, message]));
  const changed = stored.map((one) => {
    const message = one.message && left.get(one.message.id);
    if (message) left.delete(message.id);
    const isNew = message && !mastra.jsonValueEquals(plain(one.message), plain(message));
    return isNew ? { said: saidBy(message), message } : one;
  });
  return [...changed, ...[...left.values()].map((message) => ({ said: saidBy(message), message }))];
}

function without(stored: Stored[], ids: Set<string>): Stored[] {
  return stored.filter(({ message }) => !message || !ids.has(message.id));
}

// --- small things ----------------------------------------------------------------------------------------------------

const readable = (text: string) => text.toWellFormed();
const isGone = ({ status }: Response) => status === 404 || status === 410;
const after = ({ updatedAt }: Kept) => new Date(Math.max(Date.now(), updatedAt.getTime() + 1));
const failed = ({ error }: Schemas["Error"]) => new Error(`${error.type}: ${error.message}`);

/** In the order of a date; of one date, in the order that they have. */
function inOrder<T, K extends keyof T>(all: T[], field: K, direction: string): T[] {
  const sorted = all.toSorted((one, other) => Number(one[field]) - Number(other[field]));
  return direction === "ASC" ? sorted : sorted.reverse();
}

function paged<K extends string, T>(
  name: K,
  all: T[],
  page: number,
  perPage: number | false | undefined,
  usual: number,
) {
  const size = mastra.normalizePerPage(perPage, usual);
  const { offset, perPage: shown } = mastra.calculatePagination(page, perPage, size);
  const total = size === 0 ? 0 : all.length;
  const items = { [name]: all.slice(offset, offset + size) } as Record<K, T[]>;
  return { ...items, total, page, perPage: shown, hasMore: offset + size < total };
}

/** A few at a time, so that the daemon is not asked a thousand things at once. */
async function inTurn<T, R>(all: T[], ask: (one: T) => Promise<R>): Promise<R[]> {
  const answers: R[] = [];
  while (answers.length < all.length) {
    answers.push(...(await Promise.all(all.slice(answers.length, answers.length + 16).map(ask))));
  }
  return answers;
}

/** Puts a value in a map, which forgets the oldest ones. */
function remember<K, V>(map: Map<K, V>, key: K, value: V, most = Infinity): V {
  map.delete(key);
  map.set(key, value);
  if (map.size > most) map.delete(map.keys().next().value!);
  return value;
}

/** The id of a session, in which all but these characters are escaped. */
function idOf(channel: string, chatId: string): string {
  const escaped = [...new TextEncoder().encode(chatId)].map((byte) => {
    const character = String.fromCharCode(byte);
    return /[\w.@+=,-]/.test(character) ? character : `%${byte.toString(16).toUpperCase().padStart(2, "0")}`;
  });
  const id = `${channel}_${escaped.join("")}`;
  if (id.length > 200) throw new Error(`an id is too long: ${chatId.slice(0, 50)}...`);
  return id;
}
