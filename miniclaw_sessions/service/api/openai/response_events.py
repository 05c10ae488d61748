"""A response as the stream of typed events that the `openai` package reads, in its order and numbered.

The text of a reply, and what its model shows of its thinking, are sent as they come, in items whose ids are known
before the reply is: `reply_marked` gives the reply the same ones. Everything else is sent whole, when it is stored.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from miniclaw_sessions.core.protocol.messages import Message, OtherPart, Part, TextPart, ThinkingPart
from miniclaw_sessions.files.formats.codec import has_kept
from miniclaw_sessions.files.formats.openai_items import KEPT
from miniclaw_sessions.service.api.event_stream import encoded_event
from miniclaw_sessions.service.api.openai.items import STREAMED_AS
from miniclaw_sessions.service.api.openai.shapes import Item, Response
from miniclaw_sessions.service.api.openai.stored_responses import streamed_id

Event = dict[str, Any]


def reply_marked(reply: Message, mark_id: str, number: int, thought: str = "") -> Message:
    """A reply whose items have the ids that they were streamed with; one of items of its own keeps theirs.

    Args:
        reply: what the model has said.
        mark_id: the entry that the response begins with.
        number: how many replies came before it.
        thought: what was streamed of its thinking. Thinking that is not the same, as after a model that failed in the
            middle, is another item.
    """
    parts = (TextPart(reply.content),) if isinstance(reply.content, str) else reply.content
    is_of_items = any(has_kept(part.extra, KEPT) for part in parts if not isinstance(part, OtherPart))
    if is_of_items or has_kept(reply.extra, KEPT):
        return reply
    is_streamed = thought == "".join(part.thinking for part in parts if isinstance(part, ThinkingPart))
    places: Counter[str] = Counter()
    marked: list[Part] = []
    follows_text = False
    for part in parts:
        if isinstance(part, TextPart) and part.text.strip():
            kept: dict[str, Any] = {"annotations": []}
            if not follows_text:
                item_id = streamed_id("msg", mark_id, number, places["msg"])
                kept["message"] = {"id": item_id, "type": "message", "status": "completed"}
                places["msg"] += 1
            follows_text = True
            marked.append(msgspec.structs.replace(part, extra={**(part.extra or {}), KEPT: kept}))
        elif isinstance(part, ThinkingPart) and is_streamed and part.thinking:
            item_id = streamed_id("rs", mark_id, number, places["rs"])
            places["rs"] += 1
            follows_text = False
            marked.append(msgspec.structs.replace(part, extra={**(part.extra or {}), STREAMED_AS: item_id}))
        else:
            marked.append(part)
    return msgspec.structs.replace(reply, content=tuple(marked)) if places else reply


class EventWriter:
    """Makes the events; the results of its methods are sent in the order of the calls.

    Args:
        mark_id: the entry that the response begins with.
    """

    def __init__(self, mark_id: str) -> None:
        self._mark_id = mark_id
        self._sequence = 0
        self._replies = 0
        self._sent: list[str] = []  # the ids of the items that were sent, by their index
        self._open: tuple[str, list[str]] | None = None  # the kind of the part that is open, and its text
        self._places: Counter[str] = Counter()  # the items of this reply, by their kind

    def begun(self, response: Response) -> list[bytes]:
        """The response has begun."""
        return [self._event(f"response.{name}", response=response) for name in ("created", "in_progress")]

    def text(self, delta: str) -> list[bytes]:
        """A piece of the reply's text."""
        return self._piece("output_text", delta)

    def reasoning(self, delta: str) -> list[bytes]:
        """A piece of what the model thinks."""
        return self._piece("reasoning_text", delta)

    def replied(self) -> list[bytes]:
        """The reply is complete; another one may follow."""
        written = self._part_done("completed")
        self._replies += 1
        self._places.clear()
        return written

    def ended(self, response: Response) -> list[bytes]:
        """The response is over, and stored.

        There is no event for a response that was cancelled: the stream ends with one that is incomplete.
        """
        if response.status == "cancelled":
            response = msgspec.structs.replace(response, status="incomplete")
        status = "completed" if response.status == "completed" else "incomplete"
        written = self._part_done(status)
        for item in response.output:
            if item["id"] not in self._sent:
                written += self._whole(item)
        return [*written, self._event(f"response.{response.status}", response=response)]

    def error(self, code: str, message: str) -> list[bytes]:
        """What failed before the response began."""
        return [self._event("error", code=code, message=message, param=None)]

    # --- items -------------------------------------------------------------------------------------------------------

    def _whole(self, item: Item) -> list[bytes]:
        kind = item.get("type")
        if kind == "function_call":
            arguments = item["arguments"]
            return [
                self._added({**item, "status": "in_progress", "arguments": ""}),
                self._of_item("response.function_call_arguments.delta", delta=arguments),
                self._of_item("response.function_call_arguments.done", arguments=arguments, name=item["name"]),
                self._done(item),
            ]
        if kind == "message" and all(part.get("type") == "output_text" for part in item.get("content", ())):
            return [
                self._added({**item, "status": "in_progress", "content": []}),
                *self._parts(item),
                self._done(item),
            ]
        if kind == "reasoning" and all(part.get("type") == "reasoning_text" for part in item.get("content") or ()):
            return [
                self._added({**item, "content": []} if "content" in item else item),
                *self._parts(item),
                self._done(item),
            ]
        return [self._added(item), self._done(item)]

    def _parts(self, item: Item) -> list[bytes]:
        written = []
        for place, part in enumerate(item.get("content") or ()):
            kind, text = part["type"], part["text"]
            written.append(self._of_part("response.content_part.added", place, part={**part, "text": ""}))
            written.append(self._of_part(f"response.{kind}.delta", place, delta=text, **_beside(kind)))
            written.append(self._of_part(f"response.{kind}.done", place, text=text, **_beside(kind)))
            written.append(self._of_part("response.content_part.done", place, part=part))
        return written

    def _piece(self, kind: str, delta: str) -> list[bytes]:
        written: list[bytes] = []
        if self._open is None or self._open[0] != kind:
            written = self._part_done("completed")
            prefix = "msg" if kind == "output_text" else "rs"
            item_id = streamed_id(prefix, self._mark_id, self._replies, self._places[prefix])
            self._places[prefix] += 1
            written.append(self._added(_item(item_id, kind, "in_progress")))
            written.append(self._of_part("response.content_part.added", part=_part(kind, "")))
            self._open = (kind, [])
        self._open[1].append(delta)
        return [*written, self._of_part(f"response.{kind}.delta", delta=delta, **_beside(kind))]

    def _part_done(self, status: str) -> list[bytes]:
        if self._open is None:
            return []
        (kind, texts), self._open = self._open, None
        text = "".join(texts)
        part = _part(kind, text)
        return [
            self._of_part(f"response.{kind}.done", text=text, **_beside(kind)),
            self._of_part("response.content_part.done", part=part),
            self._done(_item(self._sent[-1], kind, status, part)),
        ]

    # --- events ------------------------------------------------------------------------------------------------------

    def _added(self, item: Item) -> bytes:
        self._sent.append(item["id"])
        return self._event("response.output_item.added", output_index=len(self._sent) - 1, item=item)

    def _done(self, item: Item) -> bytes:
        return self._event("response.output_item.done", output_index=len(self._sent) - 1, item=item)

    def _of_item(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, item_id=self._sent[-1], output_index=len(self._sent) - 1, **fields)

    def _of_part(self, kind: str, content_index: int = 0, **fields: Any) -> bytes:
        return self._of_item(kind, content_index=content_index, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._sequence = self._sequence, self._sequence + 1
        data = msgspec.json.encode({"type": kind, "sequence_number": number, **fields})
        return encoded_event(kind, data)


def _item(item_id: str, kind: str, status: str, *content: Item) -> Item:
    """An item with parts of this kind."""
    if kind == "reasoning_text":
        return {"id": item_id, "type": "reasoning", "summary": [], "content": [*content]}
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": [*content]}


def _part(kind: str, text: str) -> Item:
    return {"type": kind, "text": text, **({"annotations": []} if kind == "output_text" else {})}


def _beside(kind: str) -> dict[str, Any]:
    """What the events of a part of this kind have beside its text."""
    return {"logprobs": []} if kind == "output_text" else {}
