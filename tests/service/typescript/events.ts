// What a stream of the daemon says, event by event.

export type ServerSentEvent = { id: string; event: string; data: string };

export async function* events(body: ReadableStream<Uint8Array> | null): AsyncGenerator<ServerSentEvent> {
  let rest = "";
  const decoder = new TextDecoder();
  for await (const piece of body ?? []) {
    const blocks = (rest + decoder.decode(piece, { stream: true })).split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      const fields = new Map(block.split("\n").map((line) => line.split(/: (.*)/s, 2) as [string, string]));
      const event = fields.get("event");
      if (event) yield { id: fields.get("id") ?? "", event, data: fields.get("data") ?? "" };
    }
  }
}
