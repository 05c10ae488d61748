"""How OpenAI writes its replies and its errors, in chat completions and in Responses."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.files.formats.openai_chat import from_openai
from miniclaw_sessions.files.formats.openai_items import from_items
from tests.agent.providers.strict_rules import (
    NO_REASONING,
    NO_SUMMARY,
    rejects_chat,
    rejects_responses,
    signature_of_reasoning,
)
from tests.agent.providers.strict_wires import Answer, Counts, Event, Json, Wire, dumped, halves, pieces


class ChatWire(Wire):
    name = "openai"
    key_header = "authorization"

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def problems(self, body: Json, *, check_signatures: bool) -> list[str]:  # noqa: ARG002 - it signs nothing
        return rejects_chat(body, self._shown)

    def messages(self, body: Json) -> list[Message]:
        return from_openai(body["messages"])

    def tools(self, body: Json) -> list[str]:
        return [tool["function"]["name"] for tool in body.get("tools", [])]

    def prefix(self, body: Json) -> tuple[list[str], list[int]]:
        return dumped([body.get("tools", []), *body["messages"]]), []

    def events(self, model: str, body: Json, answer: Answer, counts: Counts) -> Iterator[Event]:
        if answer.raw is not None:
            yield from ((None, data) for data in answer.raw)
            return
        yield None, self._chunk(model, {"role": "assistant", "content": "" if answer.text else None})
        self._shown.add(answer.thinking)
        for piece in pieces(answer.thinking):  # not OpenAI itself: DeepSeek, vLLM and others
            yield None, self._chunk(model, {"content": None, "reasoning_content": piece})
        for piece in pieces(answer.text):
            yield None, self._chunk(model, {"content": piece})
        for index, call in enumerate(self._calls(answer)):
            first, second = halves(call["function"]["arguments"])
            begun = {**call, "index": index, "function": {**call["function"], "arguments": first}}
            yield None, self._chunk(model, {"tool_calls": [begun]})
            yield None, self._chunk(model, {"tool_calls": [{"index": index, "function": {"arguments": second}}]})
        yield None, self._chunk(model, {}, self._reason(answer))
        if body.get("stream_options", {}).get("include_usage"):
            yield None, {**self._chunk(model, {}), "choices": [], "usage": self._usage(answer, counts)}

    def whole(self, model: str, body: Json, answer: Answer, counts: Counts) -> Json:  # noqa: ARG002 - as the others
        calls = self._calls(answer)
        message = {"role": "assistant", "content": answer.text or None, **({"tool_calls": calls} if calls else {})}
        choice = {"index": 0, "message": message, "finish_reason": self._reason(answer), "logprobs": None}
        chunk = {**self._chunk(model, {}), "object": "chat.completion"}
        return {**chunk, "choices": [choice], "usage": self._usage(answer, counts)}

    def _chunk(self, model: str, delta: Json, reason: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [choice]}

    def _calls(self, answer: Answer) -> list[Json]:
        return [
            {
                "id": f"call_{secrets.token_hex(12)}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.text},
            }
            for call in answer.calls
        ]

    def _reason(self, answer: Answer) -> str:
        return "length" if answer.cut_short else "tool_calls" if answer.calls else "stop"

    def _usage(self, answer: Answer, counts: Counts) -> Json:
        given = counts.fresh + counts.read + counts.written
        return {
            "prompt_tokens": given,
            "completion_tokens": counts.said,
            "total_tokens": given + counts.said,
            "prompt_tokens_details": {"cached_tokens": counts.read},
            "completion_tokens_details": {"reasoning_tokens": len(answer.thinking) // 4},
        }

    def error(self, status: int, message: str) -> Json:
        kind = "invalid_request_error" if status < 500 else "server_error"
        return {"error": {"message": message, "type": kind, "param": None, "code": None}}

    def overflow(self, tokens: int, limit: int) -> Json:
        text = f"This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens}."
        return {"error": {"message": text, "type": "invalid_request_error", "code": "context_length_exceeded"}}

    def end(self) -> bytes:
        return b"data: [DONE]\n\n"


# --- OpenAI Responses ------------------------------------------------------------------------------------------------


class ResponsesWire(ChatWire):
    name = "openai-responses"

    def problems(self, body: Json, *, check_signatures: bool) -> list[str]:
        return rejects_responses(body, check_signatures=check_signatures)

    def messages(self, body: Json) -> list[Message]:
        return from_items(self._items(body))

    def tools(self, body: Json) -> list[str]:
        return [tool["name"] for tool in body.get("tools", [])]

    def prefix(self, body: Json) -> tuple[list[str], list[int]]:
        return dumped([body.get("tools", []), *self._items(body)]), []

    def _items(self, body: Json) -> list[Json]:
        return [{"role": "user", "content": body["input"]}] if isinstance(body["input"], str) else body["input"]

    def events(self, model: str, body: Json, answer: Answer, counts: Counts) -> Iterator[Event]:
        response = self.whole(model, body, answer, counts)
        begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
        for number, event in enumerate(self._events(response, begun)):
            yield event["type"], {**event, "sequence_number": number}

    def _events(self, response: Json, begun: Json) -> Iterator[Json]:
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        for index, item in enumerate(response["output"]):
            place = {"item_id": item["id"], "output_index": index}
            empty = {name: [] if isinstance(value, list) else value for name, value in item.items()}
            empty |= {"arguments": ""} if item["type"] == "function_call" else {}
            yield {"type": "response.output_item.added", "output_index": index, "item": empty}
            yield from self._deltas(item, place)
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        yield {"type": f"response.{response['status']}", "response": response}

    def _deltas(self, item: Json, place: Json) -> Iterator[Json]:
        if item["type"] == "function_call":
            for half in halves(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", **place, "delta": half}
            whole = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **place, **whole}
        for number, part in enumerate(item.get("content") or []):
            place |= {"content_index": number}
            yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
            for piece in pieces(part["text"]):
                yield {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
            yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
            yield {"type": "response.content_part.done", **place, "part": part}
        for number, part in enumerate(item.get("summary") or []):
            delta = {**place, "summary_index": number, "delta": part["text"]}
            yield {"type": "response.reasoning_summary_text.delta", **delta}

    def whole(self, model: str, body: Json, answer: Answer, counts: Counts) -> Json:
        status = "incomplete" if answer.cut_short else "completed"
        given = counts.fresh + counts.read + counts.written
        return {
            "id": f"resp_{secrets.token_hex(12)}",
            "object": "response",
            "created_at": 1,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if answer.cut_short else None,
            "model": model,
            "output": self._output(body, answer, status),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": body.get("tools", []),
            "store": body.get("store", True),
            "usage": {
                "input_tokens": given,
                "input_tokens_details": {"cached_tokens": counts.read},
                "output_tokens": counts.said,
                "output_tokens_details": {"reasoning_tokens": len(answer.thinking) // 4},
                "total_tokens": given + counts.said,
            },
        }

    def _output(self, body: Json, answer: Answer, status: str) -> list[Json]:
        mark = f"{'r' if answer.thinking else 'p'}{secrets.token_hex(8)}"
        output: list[Json] = []
        if answer.thinking:
            item: Json = {"id": f"rs_{mark}", "type": "reasoning"}
            item |= {"summary": [{"type": "summary_text", "text": answer.thinking}]}
            asked = "reasoning.encrypted_content" in body.get("include", [])
            output.append({**item, "encrypted_content": signature_of_reasoning(item) if asked else None})
        if answer.text:
            part = {"type": "output_text", "annotations": [], "logprobs": [], "text": answer.text}
            fields = {"id": f"msg_{mark}", "type": "message", "role": "assistant"}
            output.append({**fields, "status": status, "content": [part]})
        for index, call in enumerate(answer.calls):
            ids = {"id": f"fc_{mark}_{index}", "call_id": f"call_{mark}_{index}"}
            fields = {"type": "function_call", "status": status, "name": call.name, "arguments": call.text}
            output.append({**fields, **ids})
        return output

    def error(self, status: int, message: str) -> Json:
        error = super().error(status, message)
        params = {NO_REASONING: "include", NO_SUMMARY: "reasoning.summary"}
        param = next((param for begins, param in params.items() if message.startswith(begins)), None)
        return {"error": {**error["error"], "param": param}} if param else error

    def overflow(self, tokens: int, limit: int) -> Json:  # noqa: ARG002 - it does not say
        text = "Your input exceeds the context window of this model. Please adjust your input and try again."
        code = "context_length_exceeded"
        return {"error": {"message": text, "type": "invalid_request_error", "param": "input", "code": code}}

    def error_event(self, body: Json) -> Event:
        """Overflows come nested, as they are seen, other errors flat, as they are documented."""
        fields = body["error"]
        if fields["code"] is not None:
            return "error", {"type": "error", "sequence_number": 9, "error": fields}
        flat = {"code": "server_error", "message": fields["message"], "param": None}
        return "error", {"type": "error", "sequence_number": 9, **flat}

    def failed_event(self, body: Json) -> Event:
        failed = {"id": "resp_1", "object": "response", "status": "failed", "output": []}
        error = {"code": "server_error", "message": body["error"]["message"]}
        response = {**failed, "error": error}
        return "response.failed", {"type": "response.failed", "sequence_number": 9, "response": response}

    def end(self) -> bytes:
        return b""
