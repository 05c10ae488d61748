"""A response as the stream of typed events that the `openai` package reads, in its order and numbered.

The text of a reply is told as it comes, in an item whose id is known before the reply is: `reply_marked` gives the
reply the same one. Calls, and reasoning, are told whole, when they are stored.
"""

from __future__ import annotations

from typing import Any

import msgspec

from miniclaw_sessions.api.event_stream import encoded_event
from miniclaw_sessions.api.openai.response_shapes import Response
from miniclaw_sessions.api.openai.shapes import Item
from miniclaw_sessions.api.openai.stored_responses import message_id
from miniclaw_sessions.formats.codec import has_kept
from miniclaw_sessions.formats.openai_items import KEPT
from miniclaw_sessions.protocol.messages import Message, OtherPart, Part, TextPart

Event = dict[str, Any]


def reply_marked(reply: Message, mark_id: str, number: int) -> Message:
    """A reply whose text, as an item, has the id that it was streamed with; one of items of its own keeps theirs."""
    parts = (TextPart(reply.content),) if isinstance(reply.content, str) else reply.content
    is_of_items = any(has_kept(part.extra, KEPT) for part in parts if not isinstance(part, OtherPart))
    if is_of_items or has_kept(reply.extra, KEPT) or not any(_says(part) for part in parts):
        return reply
    begins = {"message": {"id": message_id(mark_id, number), "type": "message", "status": "completed"}}
    marked: list[Part] = []
    for part in parts:
        if isinstance(part, TextPart) and _says(part):
            extra = {**(part.extra or {}), KEPT: {"annotations": [], **begins}}
            marked.append(msgspec.structs.replace(part, extra=extra))
            begins = {}
        else:
            marked.append(part)
    return msgspec.structs.replace(reply, content=tuple(marked))


def _says(part: Part) -> bool:
    return isinstance(part, TextPart) and part.text.strip() != ""


class EventWriter:
    """Makes the events; what each method gives is to be sent in this order.

    Args:
        mark_id: the entry that the response begins with.
    """

    def __init__(self, mark_id: str) -> None:
        self._mark_id = mark_id
        self._sequence = 0
        self._replies = 0
        self._told: list[str] = []  # the ids of the items that were told, by their index
        self._text: list[str] | None = None  # of the item that is open

    def begun(self, response: Response) -> list[bytes]:
        """The response has begun."""
        return [self._event(f"response.{name}", response=response) for name in ("created", "in_progress")]

    def text(self, delta: str) -> list[bytes]:
        """A piece of the reply's text."""
        written: list[bytes] = []
        if self._text is None:
            self._text = []
            item_id = message_id(self._mark_id, self._replies)
            item = {"id": item_id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
            written.append(self._added(item))
            written.append(self._of_part("response.content_part.added", part=_part("")))
        self._text.append(delta)
        return [*written, self._of_part("response.output_text.delta", delta=delta, logprobs=[])]

    def replied(self) -> list[bytes]:
        """The reply is complete; another one may follow."""
        written = self._text_done("completed")
        self._replies += 1
        return written

    def ended(self, response: Response) -> list[bytes]:
        """The response is over, and stored."""
        status = "completed" if response.status == "completed" else "incomplete"
        written = self._text_done(status)
        for item in response.output:
            if item["id"] not in self._told:
                written += self._whole(item)
        kind = response.status if response.status in ("completed", "incomplete", "failed") else "incomplete"
        return [*written, self._event(f"response.{kind}", response=response)]

    def error(self, code: str, message: str) -> list[bytes]:
        """What failed before the response began."""
        return [self._event("error", code=code, message=message, param=None)]

    # --- items -------------------------------------------------------------------------------------------------------

    def _whole(self, item: Item) -> list[bytes]:
        kind = item.get("type")
        if kind == "function_call":
            return self._call(item)
        if kind == "message" and all(part.get("type") == "output_text" for part in item.get("content", ())):
            written = [self._added({**item, "status": "in_progress", "content": []})]
            for place, part in enumerate(item["content"]):
                written.append(self._of_part("response.content_part.added", place, part={**part, "text": ""}))
                written.append(self._of_part("response.output_text.delta", place, delta=part["text"], logprobs=[]))
                written.append(self._of_part("response.output_text.done", place, text=part["text"], logprobs=[]))
                written.append(self._of_part("response.content_part.done", place, part=part))
            return [*written, self._done(item)]
        return [self._added(item), self._done(item)]

    def _call(self, item: Item) -> list[bytes]:
        arguments = item["arguments"]
        return [
            self._added({**item, "status": "in_progress", "arguments": ""}),
            self._of_item("response.function_call_arguments.delta", delta=arguments),
            self._of_item("response.function_call_arguments.done", arguments=arguments, name=item["name"]),
            self._done(item),
        ]

    def _text_done(self, status: str) -> list[bytes]:
        if self._text is None:
            return []
        text, self._text = "".join(self._text), None
        part = _part(text)
        item = {"id": self._told[-1], "type": "message", "status": status, "role": "assistant", "content": [part]}
        return [
            self._of_part("response.output_text.done", text=text, logprobs=[]),
            self._of_part("response.content_part.done", part=part),
            self._done(item),
        ]

    # --- events ------------------------------------------------------------------------------------------------------

    def _added(self, item: Item) -> bytes:
        self._told.append(item["id"])
        return self._event("response.output_item.added", output_index=len(self._told) - 1, item=item)

    def _done(self, item: Item) -> bytes:
        return self._event("response.output_item.done", output_index=len(self._told) - 1, item=item)

    def _of_item(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, item_id=self._told[-1], output_index=len(self._told) - 1, **fields)

    def _of_part(self, kind: str, content_index: int = 0, **fields: Any) -> bytes:
        return self._of_item(kind, content_index=content_index, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._sequence = self._sequence, self._sequence + 1
        data = msgspec.json.encode({"type": kind, "sequence_number": number, **fields})
        return encoded_event(kind, data)


def _part(text: str) -> Item:
    return {"type": "output_text", "text": text, "annotations": []}
