"""How Anthropic writes its replies and its errors."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.files.formats.anthropic import from_anthropic
from tests.agent.providers.strict_rules import anthropic_blocks, rejects_messages, signature_of_blocks, thinking_lost_by
from tests.agent.providers.strict_wires import Answer, Counts, Event, Json, Wire, dumped, halves, pieces

_ANTHROPIC_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class MessagesWire(Wire):
    name = "anthropic"
    key_header = "x-api-key"
    caches_by_itself = False

    def problems(self, body: Json, *, check_signatures: bool) -> list[str]:
        return rejects_messages(body, check_signatures=check_signatures)

    def losses(self, body: Json) -> list[str]:
        return list(thinking_lost_by(body))

    def messages(self, body: Json) -> list[Message]:
        return from_anthropic(body["messages"], body.get("system"))

    def tools(self, body: Json) -> list[str]:
        return [tool["name"] for tool in body.get("tools", [])]

    def prefix(self, body: Json) -> tuple[list[str], list[int]]:
        blocks = [*body.get("tools", []), *anthropic_blocks(body)]
        marks = [index for index, block in enumerate(blocks) if block.get("cache_control")]
        return dumped([{**block, "cache_control": None} for block in blocks]), marks

    def events(self, model: str, body: Json, answer: Answer, counts: Counts) -> Iterator[Event]:
        reply = self.whole(model, body, answer, counts)
        begun = {**reply, "content": [], "stop_reason": None, "usage": {**reply["usage"], "output_tokens": 1}}
        for event in self._events(reply, begun, answer):
            yield event["type"], event

    def _events(self, reply: Json, begun: Json, answer: Answer) -> Iterator[Json]:
        yield {"type": "message_start", "message": begun}
        yield {"type": "ping"}
        texts = iter([call.text for call in answer.calls])
        for index, block in enumerate(reply["content"]):
            empty: dict[str, Json] = {
                "text": {"text": ""},
                "thinking": {"thinking": "", "signature": ""},
                "tool_use": {"input": {}},
            }
            yield {
                "type": "content_block_start",
                "index": index,
                "content_block": {**block, **empty.get(block["type"], {})},
            }
            for delta in self._deltas(block, texts):
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        stop = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
        usage = {"output_tokens": reply["usage"]["output_tokens"], "input_tokens": None}
        yield {"type": "message_delta", "delta": stop, "usage": usage}
        yield {"type": "message_stop"}

    def _deltas(self, block: Json, texts: Iterator[str]) -> Iterator[Json]:
        match block["type"]:
            case "text":
                yield from ({"type": "text_delta", "text": piece} for piece in pieces(block["text"]))
            case "thinking":
                yield from ({"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"]))
                yield {"type": "signature_delta", "signature": block["signature"]}
            case "tool_use":
                yield {"type": "input_json_delta", "partial_json": ""}
                yield from ({"type": "input_json_delta", "partial_json": half} for half in halves(next(texts)))

    def whole(self, model: str, body: Json, answer: Answer, counts: Counts) -> Json:
        blocks = self._blocks(body, answer)
        signature = signature_of_blocks(blocks)
        for block in blocks:
            if block["type"] in ("thinking", "redacted_thinking"):
                block["data" if block["type"] == "redacted_thinking" else "signature"] = signature
        return {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": blocks,
            "stop_reason": "max_tokens" if answer.cut_short else "tool_use" if answer.calls else "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": counts.fresh,
                "cache_creation_input_tokens": counts.written,
                "cache_read_input_tokens": counts.read,
                "output_tokens": counts.said,
                "service_tier": "standard",
            },
        }

    def _blocks(self, body: Json, answer: Answer) -> list[Json]:
        thinks = bool(answer.thinking) and body.get("thinking", {}).get("type", "disabled") != "disabled"
        blocks: list[Json] = []
        if thinks:
            blocks.append({"type": "thinking", "thinking": answer.thinking})
            blocks += [{"type": "redacted_thinking"}] if answer.redacted else []
        if answer.text:
            blocks.append({"type": "text", "text": answer.text})
        for index, call in enumerate(answer.calls):
            call_id = f"toolu_{'t' if thinks else 'p'}{secrets.token_hex(8)}_{index}"
            blocks.append({"type": "tool_use", "id": call_id, "name": call.name, "input": call.arguments})
        return blocks

    def error(self, status: int, message: str) -> Json:
        fields = {"type": _ANTHROPIC_ERRORS.get(status, "api_error"), "message": message}
        return {"type": "error", "error": fields, "request_id": "req_1"}

    def overflow(self, tokens: int, limit: int) -> Json:
        return self.error(400, f"prompt is too long: {tokens} tokens > {limit} maximum")

    def error_event(self, body: Json) -> Event:
        return "error", body
