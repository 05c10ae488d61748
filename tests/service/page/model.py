"""A model's service for the daemon of these tests: it streams word by word, and stops where a test wants it to.

What it answers follows from the last message: `slowly ...` waits behind its first words until the test opens the gate,
`calculate ...` calls the calculator, `erase ...` a tool that asks first, `refuse ...` is an error for as long as
`fails`, `vary ...` gets another answer each time, everything else is repeated with some Markdown around it.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATIENCE_S = 60.0
TOOLS = {"calculate": ("calculator", "expression"), "erase": ("erase", "what")}


class ModelService:
    """OpenAI's chat completions, as much of them as the daemon needs; in a thread.

    Attributes:
        gate: opened by the test to let an answer go on that waits.
        waiting: set while an answer waits at the gate.
        asked: what was asked so far, newest last.
        wanted: the requests for it, whole.
        fails: whether what begins with `refuse` is refused.
    """

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.waiting = threading.Event()
        self.asked: list[list[dict[str, Any]]] = []
        self.wanted: list[dict[str, Any]] = []
        self.fails = True
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                service.answer(self, json.loads(self.rfile.read(length)))

            def log_message(self, *_: Any) -> None:
                """Nothing on the screen."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """What the daemon's `model.base_url` is."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, handler: BaseHTTPRequestHandler, wanted: dict[str, Any]) -> None:
        self.asked.append(wanted["messages"])
        self.wanted.append(wanted)
        if self.fails and str(wanted["messages"][-1]["content"]).startswith("refuse"):
            handler.send_error(500)
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.close_connection = True
        try:
            for delta, finish in self._pieces(wanted["messages"]):
                self._write(handler, {"index": 0, "delta": delta, "finish_reason": finish})
            usage = {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}
            handler.wfile.write(b"data: " + json.dumps(_chunk([], usage)).encode() + b"\n\ndata: [DONE]\n\n")
        except OSError:
            return  # the daemon has stopped the answer, or was killed

    def _write(self, handler: BaseHTTPRequestHandler, choice: dict[str, Any]) -> None:
        handler.wfile.write(b"data: " + json.dumps(_chunk([choice])).encode() + b"\n\n")
        handler.wfile.flush()

    def _pieces(self, messages: list[dict[str, Any]]) -> Any:
        last = messages[-1]
        text = last["content"] if isinstance(last["content"], str) else last["content"][0]["text"]
        tool, _, argument = text.partition(" ")
        if last["role"] == "user" and tool in TOOLS:
            name, field = TOOLS[tool]
            call = {"name": name, "arguments": json.dumps({field: argument}, ensure_ascii=False)}
            calls = [{"index": 0, "id": f"c{len(messages)}", "type": "function", "function": call}]
            yield {"role": "assistant", "tool_calls": calls}, None
            yield {}, "tool_calls"
            return
        words = f"You said **{text}**, and I heard it." if last["role"] == "user" else f"It is {text}."
        if text.startswith("vary"):
            words = f"Answer {len(self.asked)} to **{text}**."
        for place, word in enumerate(words.split(" ")):
            yield {"role": "assistant", "content": word if place == 0 else f" {word}"}, None
            if place == 2 and text.startswith("slowly"):
                self.waiting.set()
                self.gate.wait(PATIENCE_S)
                self.waiting.clear()
        yield {}, "stop"


def _chunk(choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "echo",
        "choices": choices,
        **({"usage": usage} if usage else {}),
    }
