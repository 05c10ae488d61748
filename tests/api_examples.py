"""`python -m tests.api_examples [OPERATION ...]`: record the examples of the OpenAPI document from a real gateway.

Every operation needs at least one exchange in `exchanges` below: add a call of `ask` (or of `stream`) for yours, and
run this; it writes `examples/OPERATION.json` in `miniclaw_sessions/service/api` for those that have none, or for the
ones named, or with `--all` for all of them.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import anyio
import httpx2
import msgspec
import orjson
from structlog.testing import capture_logs

import miniclaw_sessions
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.provider import ModelEvent, ReasoningDelta, Reply, TextDelta
from miniclaw_sessions.agent.tools import Tool, time_tool
from miniclaw_sessions.config import ModelSettings, RetentionSettings, SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message, TextPart, ThinkingPart, ToolCall, Usage
from miniclaw_sessions.service.api.operation import Operation
from miniclaw_sessions.service.api.table import OPERATIONS
from miniclaw_sessions.service.gateway.token_file import TokenFile
from miniclaw_sessions.testing.clock import FakeClock
from tests.serving import serving

FOLDER = Path(miniclaw_sessions.__file__).parent / "service/api/examples"
_LONGEST = 6000
_VISIT_S = 600.0
_OPERATIONS = {one.name: one for one in OPERATIONS}
Exchange = dict[str, Any]


async def _delete_file(_: dict[str, Any]) -> str:
    return "deleted"


class Speaker:
    """A model for examples: it calls a tool where the text asks for something, and fails where it says so."""

    name = "example"
    model = "speaker"

    def __init__(self) -> None:
        self.speaks = anyio.Event()

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        """One reply."""
        text = messages[-1].text
        usage = Usage(input_tokens=12, output_tokens=5)
        wanted = [tool for tool in tools if tool.name in text]
        if messages[-1].is_user and wanted:
            call = ToolCall("call_1", wanted[0].name, "{}")
            yield Reply(msgspec.structs.replace(Message.assistant("", (call,)), usage=usage))
            return
        thoughts = ("It is early. ", "I greet back.") if "Think" in text else ()
        for thought in thoughts:
            yield ReasoningDelta(thought)
        yield TextDelta("Good morning")
        if "break" in text:
            raise RuntimeError
        if "story" in text:
            self.speaks.set()
            await anyio.sleep_forever()
        yield TextDelta(", Ann!")
        said = "Good morning, Ann!"
        parts = (ThinkingPart("".join(thoughts)), TextPart(said)) if thoughts else said
        yield Reply(msgspec.structs.replace(Message.assistant(parts), usage=usage, model=self.model))


class Recorder:
    """Asks a gateway, and keeps what was said, by the operation."""

    def __init__(self, client: httpx2.AsyncClient, speaker: Speaker, clock: FakeClock) -> None:
        self.client = client
        self.clock = clock
        self.speaker = speaker
        self.reached = anyio.Event()
        self.kept: dict[str, list[Exchange]] = {}

    async def ask(
        self,
        name: str,
        about: str,
        /,
        *,
        body: Any = msgspec.UNSET,
        file: bytes = b"",
        headers: Mapping[str, str] | None = None,
        until: str | None = None,
        reached: str | None = None,
        only: Collection[str] = (),
        **parameters: Any,
    ) -> Any:
        """Ask for an operation.

        Args:
            name: the operation.
            about: what the example shows, in a few words.
            body: a JSON body.
            file: the body of an upload.
            headers: such as Idempotency-Key.
            until: for a stream that does not end: leave it when this text has come.
            reached: set the event `reached` when this text has come.
            only: the fields of a large reply that are shown; by default all.
            parameters: of the path and the query.

        Returns:
            The reply, parsed where it is JSON.
        """
        one = _OPERATIONS[name]
        request = _request(one, parameters, headers or {})
        if body is not msgspec.UNSET:
            request["body"] = body
        target = one.path.format(**{key: quote(str(value), safe="") for key, value in request.get("path", {}).items()})
        query = f"?{urlencode(request['query'])}" if "query" in request else ""
        content = file if one.uploads else b"" if body is msgspec.UNSET else orjson.dumps(body)
        kind = {"Content-Type": "application/octet-stream" if one.uploads else "application/json"} if content else {}
        received, sent = b"", {**kind, **(headers or {})}
        async with self.client.stream(one.method, target + query, content=content, headers=sent) as reply:
            async for piece in reply.aiter_bytes():
                received += piece
                if reached is not None and reached.encode() in received:
                    self.reached.set()
                if until is not None and until.encode() in received:
                    break
        media_type = reply.headers.get("content-type", "").partition(";")[0]
        exchange = {"about": about, "request": request, "status": reply.status_code, "media_type": media_type}
        if media_type == "application/zip":
            received = b""
        parsed: Any = received.decode()
        if media_type == "application/json" and received:
            parsed = orjson.loads(received)
        if only:
            exchange["reply"] = {name: parsed[name] for name in only}
        elif received and len(received) <= _LONGEST:
            exchange["reply"] = parsed
        self.kept.setdefault(name, []).append(exchange)
        return parsed


def _request(one: Operation[Any, Any], parameters: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    assert parameters.keys() <= one.fields.keys(), f"{one.name} has not all of {[*parameters]}"
    found = {
        "path": {name: value for name, value in parameters.items() if name in one.in_path},
        "query": {name: value for name, value in parameters.items() if name in one.in_query},
        "header": dict(headers),
    }
    return {place: values for place, values in found.items() if values}


async def exchanges(recorder: Recorder, directory: Path) -> None:
    """A conversation that shows everything. Add yours behind the others; each has what those before it have left."""
    await _sessions(recorder)
    await _chats(recorder)
    await _trees(recorder)
    await _conversations(recorder)
    await _files(recorder)
    await _responses(recorder)
    await _completions(recorder)
    await _service(recorder, directory)


async def _sessions(recorder: Recorder) -> None:
    ask, ann = recorder.ask, "matrix_ann"
    body = {"channel": "matrix", "chat_id": "ann", "title": "Ann", "metadata": {"language": "en"}}
    await ask("create_session", "a new session", body=body)
    await ask("create_session", "one that is there", body=body)
    said = {"role": "user", "content": "Good morning"}
    await ask("add_messages", "one message", session_id=ann, body=said, headers={"Idempotency-Key": "update-17"})
    await ask("add_messages", "the same again", session_id=ann, body=said, headers={"Idempotency-Key": "update-17"})
    both = {"messages": [{"role": "user", "content": "And hello"}, {"role": "assistant", "content": "Hello, Ann!"}]}
    last = await ask("add_messages", "several as a unit", session_id=ann, body=both)
    turn = {"messages": both["messages"], "usage": {"input_tokens": 12, "output_tokens": 5}}
    await ask("save_turn", "a turn and its cost", session_id=ann, body=turn, headers={"If-Match": last["etag"]})
    await ask("save_turn", "the session went on", session_id=ann, body=turn, headers={"If-Match": last["etag"]})
    entry = {"type": "custom", "custom_type": "seen", "data": {"by": "Ben"}}
    await ask("append_entries", "one entry", session_id=ann, body=entry)
    several = {"entries": [entry, {"type": "session_info", "name": "Ann and Ben"}]}
    await ask("append_entries", "several as a unit", session_id=ann, body=several)
    page = await ask("show_messages", "the newest", session_id=ann, limit=2)
    await ask("show_messages", "the page before", session_id=ann, limit=2, before=page["messages"][0]["sequence"])
    await ask("show_entries", "the first page", session_id=ann, limit=2)
    await ask("show_entries", "the page before", session_id=ann, limit=1, before=3)
    await ask("show_entry", "one entry", session_id=ann, entry_id=page["messages"][0]["id"])
    await ask("show_entry", "none of this id", session_id=ann, entry_id="none")
    await ask("show_transcript", "all of it", session_id=ann)
    await ask("follow_session", "from the second entry on", session_id=ann, after=1, until="event: entry")
    await recorder.client.post("/v1/sessions/matrix_ben/messages", json=said)
    await _followed(recorder)
    await _everything_live(recorder)
    shown = await ask("show_session", "one session", session_id=ann, last_words="true")
    await ask("show_session", "nothing is new", session_id=ann, headers={"If-None-Match": shown["etag"]})
    await ask("show_session", "no such session", session_id="matrix_none")
    await ask("update_session", "a new title", session_id=ann, body={"title": "Ann", "metadata": {"seen": True}})
    await ask("list_sessions", "a page", channel="matrix", limit=10)
    await ask("resolve", "a part of a title", name="Ann")
    await ask("search", "what was said", query="hello")
    await ask("show_usage", "by model", by="model")
    await ask("list_models", "which there are")


async def _everything_live(recorder: Recorder) -> None:
    """Events of all sessions; the stream is left when there was one of each."""
    client, recorder.reached = recorder.client, anyio.Event()
    async with anyio.create_task_group() as tasks:
        follow = partial(recorder.ask, "follow_all", "what happens", sessions="true", until="event: deleted")
        tasks.start_soon(partial(follow, reached="event: ready"))
        await recorder.reached.wait()
        await client.post("/v1/chat", json={"channel": "web", "chat_id": "5", "message": "Good morning"})
        await client.patch("/v1/sessions/web_5", json={"title": "Greetings"})
        await client.delete("/v1/sessions/web_5")


async def _followed(recorder: Recorder) -> None:
    ask = recorder.ask
    body = {"channel": "matrix", "chat_id": "ben", "message": "Good morning"}
    async with anyio.create_task_group() as tasks:
        follow = partial(ask, "follow_session", "while an answer is made", session_id="matrix_ben", after=1)
        tasks.start_soon(partial(follow, reached=": still here", until="event: done"))
        await recorder.reached.wait()
        await recorder.client.post("/v1/chat", json=body)
    recorder.reached = anyio.Event()
    async with anyio.create_task_group() as tasks:
        follow = partial(ask, "follow_session", "an answer as HTML", session_id="matrix_ben", after=3, rendered="true")
        tasks.start_soon(partial(follow, reached=": still here", until="event: done"))
        await recorder.reached.wait()
        await recorder.client.post("/v1/chat", json={**body, "message": "Think. Good morning"})
    recorder.reached = anyio.Event()
    async with anyio.create_task_group() as tasks:
        follow = partial(ask, "follow_session", "until it is deleted", session_id="matrix_ben", after=0)
        tasks.start_soon(partial(follow, reached="event: entry"))
        await recorder.reached.wait()
        await recorder.client.delete("/v1/sessions/matrix_ben")


async def _chats(recorder: Recorder) -> None:
    ask, chat = recorder.ask, {"channel": "web", "chat_id": "7"}
    key = {"Idempotency-Key": "message-1"}
    await ask("chat", "say something", body={**chat, "message": "Good morning"}, headers=key)
    await ask("chat", "the same again", body={**chat, "message": "Good morning"}, headers=key)
    await ask("chat", "follow the answer", body={**chat, "message": "What time is it?", "stream": True})
    await ask("chat", "the model thinks", body={**chat, "message": "Think. Good morning", "stream": True})
    await ask("chat", "nobody is stopped", body={**chat, "message": "/stop", "stream": True})
    await ask("chat", "a command is obeyed", body={**chat, "message": "/new", "commands": True})
    with capture_logs():
        await ask("chat", "the model fails", body={**chat, "message": "break", "stream": True})
    async with anyio.create_task_group() as tasks:
        body = {**chat, "message": "Tell a long story", "stream": True}
        tasks.start_soon(partial(ask, "chat", "somebody stops it", body=body))
        await recorder.speaker.speaks.wait()
        await ask("stop_turn", "the answer under way", session_id="web_7")
    body = {**chat, "message": "Please delete_file notes.txt"}
    await ask("chat", "it waits for an approval", body=body)
    await ask("chat", "the same, followed", body={**chat, "message": body["message"], "stream": True})
    waiting = await ask("list_approvals", "a call that waits", session_id="web_7")
    await ask("chat", "somebody agrees", body={**chat, "approvals": {waiting["pending"][0]["id"]: True}})
    pair = [{"role": "user", "content": "And what else? " * 20}, {"role": "assistant", "content": "All this. " * 20}]
    await recorder.client.post("/v1/sessions/web_9/messages", json={"messages": pair * 8})
    body = {"channel": "web", "chat_id": "9", "message": "And then?", "stream": True}
    await ask("chat", "the conversation has grown too long for the model", body=body)


async def _trees(recorder: Recorder) -> None:
    ask, web = recorder.ask, "web_7"
    tree = await ask("show_tree", "who follows whom", session_id=web)
    await ask("show_branch", "the newest entries", session_id=web, limit=2)
    await ask("show_context", "what a model may see", session_id=web)
    await ask("show_articles", "the newest", session_id=web, limit=2)
    await ask("show_outline", "the whole tree", session_id=web)
    root = tree["roots"][0]
    await ask("set_label", "a bookmark", session_id=web, body={"entry_id": root, "label": "the beginning"})
    await ask("go_to", "go back", session_id=web, body={"entry_id": root})
    again = {"entry_id": root, "messages": [{"role": "user", "content": "Good evening"}]}
    await ask("replace_entry", "said differently", session_id=web, body=again)
    await ask("compact_session", "with a summary", session_id=web, body={"summary": "They said good morning."})
    await ask("fork_session", "another session", session_id=web, body={}, headers={"Idempotency-Key": "fork-1"})
    await ask("clear_session", "start over", session_id=web)
    said = [{"role": "user", "content": "Good morning"}, {"role": "assistant", "content": "Good morning, Ann!"}]
    await recorder.client.post("/v1/sessions/web_11/messages", json={"messages": said})
    exported = await ask("export_session", "as JSON lines", session_id="web_11")
    await ask("export_session", "as a request to OpenAI", session_id="web_11", format="openai")
    await ask("export_session", "for people", session_id="web_11", format="markdown")
    await ask("import_session", "a new session from a file", file=exported.encode(), session_id="web_8")
    await ask("import_session", "what it would become", file=exported.encode(), session_id="web_12", dry_run="true")
    file = {"filename": "notes.txt", "file_data": "data:text/plain;base64,QnV5IG1pbGsuCg=="}
    message = {"content": [{"type": "file", "file": file}]}
    await recorder.client.post("/v1/chat", json={"channel": "web", "chat_id": "20", "message": message})
    asked = (await recorder.client.get("/v1/sessions/web_20/messages")).json()["messages"][0]
    await ask("show_file", "a text", session_id="web_20", entry_id=asked["id"], place=0)
    await ask("show_damage", "nothing is damaged", session_id=web)


async def _files(recorder: Recorder) -> None:
    ask, form = recorder.ask, {"Content-Type": "multipart/form-data; boundary=b"}
    name = b"Content-Disposition: form-data; name="
    file = b"--b\r\n" + name + b'"file"; filename="notes.txt"\r\n\r\nBuy milk.\r\n'
    purpose = b"--b\r\n" + name + b'"purpose"\r\n\r\nuser_data\r\n--b--\r\n'
    made = await ask("create_file", "a text", file=file + purpose, headers=form)
    await ask("list_files", "the files", limit=1)
    await ask("retrieve_file", "one of them", file_id=made["id"])
    await ask("retrieve_file_content", "its bytes", file_id=made["id"])
    await ask("delete_file", "forgotten", file_id=made["id"])


async def _conversations(recorder: Recorder) -> None:
    ask, key = recorder.ask, {"Idempotency-Key": "conversation-1"}
    body = {"items": [{"role": "user", "content": "Good morning"}], "metadata": {"topic": "greetings"}}
    made = await ask("create_conversation", "with an item", body=body, headers=key)
    one = {"conversation_id": made["id"]}
    await ask("retrieve_conversation", "one conversation", **one)
    await ask("retrieve_conversation", "none of this id", conversation_id="conv_none")
    await ask("update_conversation", "other metadata", body={"metadata": {"topic": "weather"}}, **one)
    items = {"items": [{"role": "assistant", "content": "Good morning!"}, {"role": "user", "content": "Rain again"}]}
    added = await ask("create_items", "several items", body=items, **one)
    await ask("list_items", "the newest", limit=2, **one)
    await ask("retrieve_item", "one item", item_id=added["first_id"], **one)
    await ask("delete_item", "one item", item_id=added["last_id"], **one)
    await ask("delete_conversation", "all of it", **one)


async def _responses(recorder: Recorder) -> None:
    ask = recorder.ask
    made = await ask("create_response", "ask something", body={"input": "Good morning", "instructions": "Be kind."})
    body = {"input": "And now?", "previous_response_id": made["id"]}
    await ask("create_response", "a branch that goes on from it", body=body)
    streamed = {"stream": True, "store": False}
    await ask("create_response", "its events", body={"input": "Good morning", **streamed})
    await ask("create_response", "the model thinks", body={"input": "Think. Good morning", **streamed})
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
    await ask("create_response", "a call", body={"input": "The weather?", "tools": [tool], **streamed})
    await _stopped_response(recorder)
    await ask("retrieve_response", "one response", response_id=made["id"])
    await ask("list_input_items", "what was said", response_id=made["id"])
    await ask("cancel_response", "it is there already", response_id=made["id"])
    await ask("count_input_tokens", "before it is asked", body=body)
    await ask("compact_response", "what was said", body={"model": "any", "previous_response_id": made["id"]})
    await ask("delete_response", "one response", response_id=made["id"])


async def _completions(recorder: Recorder) -> None:
    ask, said = recorder.ask, [{"role": "user", "content": "Good morning"}]
    made = await ask("create_completion", "ask something", body={"model": "any", "messages": said})
    said += [made["choices"][0]["message"], {"role": "user", "content": "And now?"}]
    await ask("create_completion", "the same conversation goes on", body={"model": "any", "messages": said})
    thinks = [{"role": "user", "content": "Think. Good morning"}]
    streamed = {"stream": True, "stream_options": {"include_usage": True}, "store": False}
    await ask("create_completion", "its chunks", body={"messages": thinks, **streamed})
    function = {"name": "weather", "parameters": {"type": "object", "properties": {}}}
    body = {
        "messages": [{"role": "user", "content": "The weather?"}],
        "tools": [{"type": "function", "function": function}],
    }
    await ask("create_completion", "a call", body={**body, "store": False})
    (model, *_) = (await recorder.client.get("/v1/models")).json()["data"]
    await ask("get_model", "one model", model_id=model["id"])


async def _stopped_response(recorder: Recorder) -> None:
    """Stop a chat while one response of it is made, and another waits."""
    ask, body = recorder.ask, {"conversation": "conv_1", "stream": True}
    await recorder.client.post("/v1/sessions", json={"channel": "conv", "chat_id": "1"})
    async with anyio.create_task_group() as tasks:
        recorder.speaker.speaks = anyio.Event()
        story = {**body, "input": "Tell a long story"}
        tasks.start_soon(partial(ask, "create_response", "it is stopped", body=story))
        await recorder.speaker.speaks.wait()
        recorder.reached = anyio.Event()
        waits = {**body, "input": "And now?"}
        asked = partial(ask, "create_response", "it waits for another one", body=waits, reached="still here")
        tasks.start_soon(asked)
        await recorder.reached.wait()
        await recorder.client.post("/v1/sessions/conv_1/stop")


async def _service(recorder: Recorder, directory: Path) -> None:
    ask = recorder.ask
    await ask("list_formats", "all of them")
    await ask("health", "all is well")
    await ask("probe_live", "it answers")
    await ask("probe_ready", "it is ready")
    await ask("show_access", "the socket's owner")
    await ask("statistics", "the numbers")
    await ask("show_series", "nobody samples here")
    await ask("flush", "everything")
    await ask("check", "all is sound")
    await ask("repair", "there is nothing to repair")
    await ask("back_up", "a copy", body={"directory": str(directory / "backup")})
    await ask("verify_backup", "it is sound", body={"directory": str(directory / "backup")})
    await ask("show_progress", "nothing is under way")
    await ask("list_backups", "one of them")
    await ask("list_quarantine", "nothing was damaged")
    await ask(
        "create_token", "for one person's chats", body={"name": "ann", "channels": ["web"], "chat_prefix": "ann-"}
    )
    await ask("create_token", "the name is taken", body={"name": "ann"})
    await ask("list_tokens", "who has one")
    await ask("revoke_token", "it is valid no longer", name="ann")
    await ask("revoke_token", "there is none of this name", name="ann")
    await ask("sweep", "what would expire", dry_run="true")
    await ask("acknowledge_losses", "nothing was lost")
    await ask("hold_session", "it is needed", session_id="web_7", body={"reason": "case 12"})
    await ask("delete_session", "it is under legal hold", session_id="web_7")
    await ask("forget_sessions", "what would go", body={"channel": "web", "dry_run": True})
    await ask("release_session", "it may go again", session_id="web_7")
    await ask("forget_sessions", "a person", body={"user": "9"})
    await ask("forget_sessions", "nothing is said", body={})
    await ask("export_person", "everything about one person", body={"user": "nobody"})
    await ask("delete_session", "forget it", session_id="web_8", headers={"Idempotency-Key": "delete-1"})
    await ask("unarchive_session", "the archive has none", session_id="web_8")
    await recorder.client.post("/v1/sessions", json={"channel": "visit", "chat_id": "1"})
    await recorder.clock.advance(2 * _VISIT_S)
    await recorder.client.post("/v1/sweep")
    await ask("unarchive_session", "it had expired", session_id="visit_1")
    await ask("show_openapi", "the document", only=("openapi", "info"))
    await ask("show_docs", "the page")


async def recorded() -> dict[str, list[Exchange]]:
    """Every exchange, by the operation."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mc")))
        clock = FakeClock()
        settings = SessionSettings(retention={"visit": RetentionSettings(ttl_days=_VISIT_S / 86400)})
        manager = await stack.enter_async_context(SessionManager(directory / "w", settings=settings, clock=clock))
        shape = {"type": "object", "properties": {}}
        deletes = Tool("delete_file", "Deletes a file.", shape, _delete_file, needs_approval=True)
        speaker = Speaker()
        agent = Agent(speaker, tools=[time_tool(clock), deletes])
        model = ModelSettings(context_window=700, reserve_tokens=200, keep_tokens=50)
        tokens = TokenFile(directory / "tokens.json", clock)
        await stack.enter_async_context(serving(manager, directory / "s", agent, model, tokens))
        transport = httpx2.AsyncHTTPTransport(uds=str(directory / "s"), verify=False)
        client = httpx2.AsyncClient(transport=transport, base_url="http://miniclaw", timeout=30)
        recorder = Recorder(await stack.enter_async_context(client), speaker, clock)
        await exchanges(recorder, directory)
        text = re.sub(rb"mcs_[\w-]+", b"mcs_SECRET", orjson.dumps(recorder.kept))
        text = text.replace(str(directory / "backup").encode(), b"BACKUP_DIRECTORY")
        kept: dict[str, list[Exchange]] = orjson.loads(text)
        return kept


def main(names: Sequence[str]) -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for name, kept in anyio.run(recorded).items():
        file = FOLDER / f"{name}.json"
        if name in names or "--all" in names or not file.exists():
            file.write_bytes(orjson.dumps(kept, option=orjson.OPT_INDENT_2) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
