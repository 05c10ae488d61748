"""How Google writes its replies and its errors."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.files.formats.google import from_google
from tests.agent.providers.strict_rules import (
    rejects_generation,
    signature_of_call,
    signature_of_text,
    signatures_lost_by,
    snake,
)
from tests.agent.providers.strict_wires import Answer, Counts, Event, Json, Wire, dumped, pieces

_GOOGLE_ERRORS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


class GenerationWire(Wire):
    name = "google"
    key_header = "x-goog-api-key"
    line_end = "\r\n\r\n"

    def problems(self, body: Json, *, check_signatures: bool) -> list[str]:
        return rejects_generation(body, check_signatures=check_signatures)

    def losses(self, body: Json) -> list[str]:
        return list(signatures_lost_by(body))

    def messages(self, body: Json) -> list[Message]:
        return from_google(body["contents"], body.get("systemInstruction"))

    def tools(self, body: Json) -> list[str]:
        return [function["name"] for tool in snake(body).get("tools", []) for function in tool["function_declarations"]]

    def prefix(self, body: Json) -> tuple[list[str], list[int]]:
        return dumped([body.get("tools", []), body.get("systemInstruction"), *body["contents"]]), []

    def events(self, model: str, body: Json, answer: Answer, counts: Counts) -> Iterator[Event]:
        if answer.blocked:
            yield None, {"promptFeedback": {"blockReason": "SAFETY"}, "modelVersion": model}
            return
        streamed = [piece for part in self._parts(body, answer) for piece in self._streamed(part)]
        for index, part in enumerate(streamed):
            is_last = index == len(streamed) - 1
            yield None, self._chunk(model, [part], answer, counts, is_last=is_last)
        if not streamed:
            yield None, self._chunk(model, [], answer, counts, is_last=True)

    def _streamed(self, part: Json) -> list[Json]:
        if "functionCall" in part:
            return [part]
        return [{**part, "text": piece} for piece in pieces(part["text"])] or [part]

    def whole(self, model: str, body: Json, answer: Answer, counts: Counts) -> Json:
        return self._chunk(model, self._parts(body, answer), answer, counts, is_last=True)

    def _chunk(self, model: str, parts: Sequence[Json], answer: Answer, counts: Counts, *, is_last: bool) -> Json:
        candidate: Json = {"content": {"role": "model", "parts": parts}, "index": 0}
        if is_last:
            candidate["finishReason"] = "MAX_TOKENS" if answer.cut_short else "STOP"
        thought = min(len(answer.thinking) // 4, counts.said)
        given = counts.fresh + counts.read + counts.written
        usage = {
            "promptTokenCount": given,
            "cachedContentTokenCount": counts.read,
            "candidatesTokenCount": counts.said - thought,
            "thoughtsTokenCount": thought,
            "totalTokenCount": given + counts.said,
        }
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": model, "responseId": "r-1"}

    def _parts(self, body: Json, answer: Answer) -> list[Json]:
        thinking = snake(body).get("generation_config", {}).get("thinking_config", {})
        shows = thinking.get("include_thoughts") is True
        parts: list[Json] = [{"text": answer.thinking, "thought": True}] if answer.thinking and shows else []
        if answer.text:
            parts.append({"text": answer.text})
            if not answer.calls:
                parts.append({"text": "", "thoughtSignature": signature_of_text(answer.text)})
        mark = secrets.token_hex(8)
        for index, call in enumerate(answer.calls):
            function: Json = {"name": call.name, "args": call.arguments}
            signature = {"thoughtSignature": signature_of_call(function)} if index == 0 else {}
            named = {**({"id": f"g{mark}_{index}"} if answer.with_ids else {}), **function}
            parts.append({"functionCall": named, **signature})
        return parts

    def error(self, status: int, message: str) -> Json:
        return {"error": {"code": status, "message": message, "status": _GOOGLE_ERRORS.get(status, "INTERNAL")}}

    def overflow(self, tokens: int, limit: int) -> Json:
        text = f"The input token count ({tokens}) exceeds the maximum number of tokens allowed ({limit})."
        return self.error(400, text)
