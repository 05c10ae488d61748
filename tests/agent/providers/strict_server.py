"""The four model services on one local port: real sockets, their wire formats, and their refusals.

    async with StrictServer(script) as server:
        provider = OpenAIProvider("m", base_url=server.url_for("openai"), api_key="k")

It serves `/v1/chat/completions`, `/v1/responses`, `/v1/messages` and `/v1beta/models/{m}:generateContent`, with or
without streaming. Each request is checked as the service itself would (`strict_rules`), signatures of reasoning and the
schemas of tools included, and refused with its own error. What it answers is said by a script: a function from `Asked`,
the request as canonical messages, to an `Answer` or a `Refusal`.

As a process of its own: `python -m tests.agent.providers.strict_server --port 0`. It prints its port, and answers with
`talkative` unless `--script module:function` names another script; `GET /report` tells what it refused.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import anyio
import msgspec
import uvicorn
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from miniclaw_sessions.core.protocol.messages import Message
from tests.agent.providers.strict_anthropic import MessagesWire
from tests.agent.providers.strict_google import GenerationWire
from tests.agent.providers.strict_openai import ChatWire, ResponsesWire
from tests.agent.providers.strict_wires import Answer, Call, Counts, Json, Refusal, Wire

__all__ = ["Answer", "Asked", "Call", "Refusal", "Script", "StrictServer", "in_turn", "talkative"]

WIRES: dict[str, Wire] = {wire.name: wire for wire in (ChatWire(), ResponsesWire(), MessagesWire(), GenerationWire())}
"""The services by name."""

_CHARACTERS_OF_A_TOKEN = 4
_PATHS = {"openai": "/v1", "openai-responses": "/v1", "anthropic": "", "google": ""}


class Asked(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        service: "openai", "openai-responses", "anthropic" or "google".
        model: the model's name.
        messages: the conversation as canonical messages, the system prompt included.
        tools: the names of the tools on offer.
        body: the request itself.
        key: the API key that was sent.
        number: how many requests came before.
    """

    service: str
    model: str
    messages: list[Message]
    tools: list[str]
    body: Json
    key: str
    number: int


Script = Callable[[Asked], Answer | Refusal]


def in_turn(*answers: Answer | Refusal) -> Script:
    """A script that gives these answers, one for each request."""
    left = list(answers)
    return lambda _: left.pop(0)


def talkative(asked: Asked) -> Answer:
    """A script for long conversations: each answer says how many messages of the user there were.

    Every third of them is answered by two calls first, if tools are on offer.
    """
    users = sum(message.is_user for message in asked.messages)
    thinking = f"this is question {users} of the conversation"
    if users % 3 == 0 and asked.tools and asked.messages[-1].is_user:
        calls = tuple(
            Call(asked.tools[index % len(asked.tools)], {"expression": f"{users}+{index}"}) for index in (0, 1)
        )
        return Answer(text=f"let me see, {users}", thinking=thinking, calls=calls)
    return Answer(text=f"answer {users} from {asked.service}", thinking=thinking)


class StrictServer:
    """Listens on a port of its own while it is entered.

    Args:
        script: what it answers; may be exchanged at any time.
        key: the API key that it wants; "": any will do, but one must be sent.
        context_tokens: how large a conversation may be, at four characters to a token.
        check_signatures: whether reasoning must come back as the server itself gave it; conversations that were made
            up cannot have it so.
        is_lenient: whether it takes requests that are wrong: its rules know only what our own requests have.
        port: where to listen; 0: anywhere.
    """

    def __init__(
        self,
        script: Script = talkative,
        *,
        key: str = "",
        context_tokens: int = 1_000_000,
        check_signatures: bool = True,
        is_lenient: bool = False,
        port: int = 0,
    ) -> None:
        self.script = script
        self.key = key
        self.context_tokens = context_tokens
        self.check_signatures = check_signatures
        self.is_lenient = is_lenient
        self.requests: list[Asked] = []
        self.problems: list[str] = []
        """What was wrong with requests, and had them refused; stays empty for a provider that is right."""
        self.losses: list[str] = []
        """Reasoning that was given and did not come back, where the service would not mind."""
        self.streaming = anyio.Event()
        self.disconnected = anyio.Event()
        """Set when a client has closed a stream before its end."""
        self._cache = PrefixCache()
        self._port = port
        self._socket = socket.socket()
        self._tasks: TaskGroup | None = None

    # --- listening ---------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def url_for(self, service: str) -> str:
        """The `base_url` for the provider of that service."""
        return self.url + _PATHS[service]

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._bind().serve, [self._socket])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        self._server.told_to_stop.set()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            self._socket.close()

    def run(self) -> None:
        """Serve until the process is told to end."""
        server = self._bind()
        print(self._socket.getsockname()[1], flush=True)  # noqa: T201 - whoever started it waits for this
        server.run([self._socket])

    def _bind(self) -> SuddenServer:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", self._port))
        self._socket.listen()
        app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._endpoint("openai"), methods=["POST"]),
                Route("/v1/responses", self._endpoint("openai-responses"), methods=["POST"]),
                Route("/v1/messages", self._endpoint("anthropic"), methods=["POST"]),
                *(
                    Route(f"/{v}/models/{{method}}", self._endpoint("google"), methods=["POST"])
                    for v in ("v1", "v1beta")
                ),
                Route("/report", self._report),
            ]
        )
        self._server = SuddenServer(uvicorn.Config(app, log_config=None, lifespan="off", timeout_keep_alive=600))
        return self._server

    async def _report(self, _: Request) -> Response:
        return JSONResponse({"requests": len(self.requests), "problems": self.problems, "losses": self.losses})

    # --- answering ---------------------------------------------------------------------------------------------------

    def _endpoint(self, service: str) -> Callable[[Request], Any]:
        wire = WIRES[service]

        async def answer(request: Request) -> Response:
            return self._answer(wire, request, await request.json())

        return answer

    def _answer(self, wire: Wire, request: Request, body: Json) -> Response:
        sent = (request.headers.get(name, "") for name in (wire.key_header, "authorization"))
        key = next(filter(None, sent), "").removeprefix("Bearer ")
        if not key or (self.key and key != self.key):
            return JSONResponse(wire.error(401, f"Incorrect API key provided: {key}"), 401)
        model, method = _model_and_method(request, body)
        problems = [] if self.is_lenient else wire.problems(body, check_signatures=self.check_signatures)
        if wire.name == "anthropic" and "anthropic-version" not in request.headers:
            problems.append("anthropic-version: header is required")
        if problems:
            self.problems += problems
            return JSONResponse(wire.error(400, f"{problems[0]}: {body}"), 400)
        parts, marks = wire.prefix(body)
        if (tokens := sum(map(len, parts)) // _CHARACTERS_OF_A_TOKEN) > self.context_tokens:
            return JSONResponse(wire.overflow(tokens, self.context_tokens), 400)
        self.losses += wire.losses(body)
        asked = Asked(wire.name, model, wire.messages(body), wire.tools(body), body, key, len(self.requests))
        self.requests.append(asked)
        answer = self.script(asked)
        if isinstance(answer, Refusal):
            error = wire.error(answer.status, answer.sentence or f"refused, with {key}: {body}")
            return JSONResponse(error, answer.status, headers=dict(answer.headers))
        counts = self._cache.count(parts, None if wire.caches_by_itself else marks, _length(answer))
        if method == "streamGenerateContent" or body.get("stream"):
            stream = self._stream(wire, model, body, answer, counts)
            return StreamingResponse(stream, media_type="text/event-stream")
        return JSONResponse(wire.whole(model, body, answer, counts))

    async def _stream(self, wire: Wire, model: str, body: Json, answer: Answer, counts: Counts) -> AsyncIterator[bytes]:
        is_done = False
        try:
            for number, event in enumerate(wire.events(model, body, answer, counts)):
                if answer.ending != "whole" and number == answer.ending_after:
                    async for last in self._ended(wire, answer):
                        yield last
                    is_done = True
                    return
                await anyio.sleep(answer.delay_s)
                yield wire.written(event)
            yield wire.end()
            is_done = True
        finally:
            if not is_done:
                self.disconnected.set()

    async def _ended(self, wire: Wire, answer: Answer) -> AsyncIterator[bytes]:
        match answer.ending:
            case "cut":
                raise ConnectionError("the cable was cut, as the script wants it")
            case "error":
                yield wire.written(wire.error_event(wire.error(529, "Overloaded while it was said: hello")))
            case "failed":
                yield wire.written(wire.failed_event(wire.error(500, "It failed while it was said: hello")))
            case "overflow":
                yield wire.written(wire.error_event(wire.overflow(9, 8)))
            case "stall":
                self.streaming.set()
                await anyio.sleep_forever()


class SuddenServer(uvicorn.Server):
    """Ends at once: uvicorn looks each tenth of a second whether it should, and waits as long for its connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.told_to_stop = anyio.Event()

    async def main_loop(self) -> None:
        """Serve until told to stop."""
        await self.told_to_stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Break off whatever is under way."""
        for server in (*self.servers, *(sockets or ())):
            server.close()
        for task in self.server_state.tasks:
            task.cancel()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        while self.server_state.tasks or self.server_state.connections:
            await checkpoint()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """In a test, signals are the test runner's; a process of its own ends by them as any other."""
        yield


def _model_and_method(request: Request, body: Json) -> tuple[str, str]:
    if "method" in request.path_params:
        model, _, method = request.path_params["method"].partition(":")
        return model, method
    return str(body.get("model")), ""


def _length(answer: Answer) -> int:
    said = len(answer.text) + len(answer.thinking) + sum(len(call.text) for call in answer.calls)
    return said // _CHARACTERS_OF_A_TOKEN


class PrefixCache:
    """What a service has read before: the beginnings of conversations."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def count(self, parts: Sequence[str], marks: Sequence[int] | None, said: int) -> Counts:
        """The tokens of a request; None for the marks: the service keeps every beginning by itself."""
        hashes, lengths = _chained(parts)
        keeping = range(len(parts)) if marks is None else marks
        found = [index for index in range(max(keeping, default=-1) + 1) if hashes[index] in self._known]
        read = lengths[found[-1]] if found else 0
        kept = lengths[keeping[-1]] if keeping else 0
        self._known.update(hashes[index] for index in keeping)
        written = 0 if marks is None else max(kept - read, 0)
        return Counts(lengths[-1] - read - written, read, written, said)


def _chained(parts: Sequence[str]) -> tuple[list[str], list[int]]:
    """For each part a hash of everything up to it, and the tokens so far."""
    digest, characters = hashlib.sha256(), 0
    hashes, lengths = [], []
    for part in parts:
        digest.update(part.encode() + b"\0")
        characters += len(part)
        hashes.append(digest.hexdigest())
        lengths.append(characters // _CHARACTERS_OF_A_TOKEN)
    return hashes, lengths


# --- as a process ----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description="Four model services on one local port.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key", default="")
    parser.add_argument("--context-tokens", type=int, default=1_000_000)
    parser.add_argument("--script", default=f"{__spec__.name}:talkative", help="module:function")
    options = parser.parse_args()
    module, _, function = options.script.partition(":")
    script = getattr(importlib.import_module(module), function)
    StrictServer(script, key=options.key, context_tokens=options.context_tokens, port=options.port).run()


if __name__ == "__main__":
    main()
