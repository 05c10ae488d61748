"""Aider's chat history (`.aider.chat.history.md` in each project), which is text; read only.

As its own source has it (`aider/io.py`, `aider/utils.py`), a chat begins with `# aider chat started at` and a time, in
local time without its zone; what people say stands behind `#### `, what Aider itself says behind `> `, and all else is
the model's. So a line of a reply that itself begins like this looks like Aider's. A file has all chats of a
project, and Aider begins each of them with nothing of the others: each is a branch of its own from the root.

The model and what a reply cost are read from what Aider says, where tokens are rounded. All of that is kept as notes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from miniclaw_sessions.core.protocol.entries import Custom, Entry, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, Role, Usage
from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.formats.codec import MAX_DOCUMENT_BYTES, Chain, Finding, Format, Outcome, SessionFacts

NAME = "aider"

_BEGINNING = re.compile(r"# aider chat started at (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\s*")
_MODEL = re.compile(r"(?:Main model|Model|Models): (\S+)")
_AMOUNT = r"(\d+(?:\.\d+)?)([kM]?)"
_COST = re.compile(rf"Tokens: {_AMOUNT} sent.*?{_AMOUNT} received\.(?:.*?Cost: \$(\d+(?:\.\d+)?) message)?")
_UNITS = {"": 1, "k": 1_000, "M": 1_000_000}
_USER, _PROGRAM, _MODEL_S = "user", "program", "model"


class _Reader:
    def __init__(self, chain: Chain) -> None:
        self.facts = SessionFacts(format=NAME)
        self.findings: list[Finding] = []
        self._chain = chain
        self._said_at: datetime | None = None
        self._model: str | None = None
        self._lines: list[str] = []  # of what is being said
        self._size = 0
        self._speaker = _PROGRAM
        self._reply: Message | None = None  # the newest, which Aider has not said the cost of
        self._number = 0
        self._is_ours = False

    def feed(self, piece: bytes) -> Iterator[Entry]:
        """The next line."""
        self._number += 1
        line = self._text(piece)
        if beginning := _BEGINNING.fullmatch(line):
            yield from self._all()
            self._begin(beginning[1])
            return
        speaker, said = _USER, line[5:]
        if line.startswith("> ") or line == ">":
            speaker, said = _PROGRAM, line[2:]
        elif not line.startswith("#### "):
            speaker, said = _MODEL_S, line
        if speaker != self._speaker and not (speaker is _MODEL_S and not line.strip() and self._speaker is _PROGRAM):
            yield from self._said()
            self._speaker = speaker
        self._is_ours |= speaker is _USER
        self._lines.append(said.rstrip() if speaker is not _MODEL_S else said)
        self._size += len(piece)
        if self._size > MAX_DOCUMENT_BYTES:
            yield from self._said()

    def finish(self) -> Iterator[Entry]:
        """The end of what was said last."""
        if not self._is_ours:
            raise ImportRefused("no chat of Aider begins in this file, and no person says anything in it")
        yield from self._all()

    def _text(self, piece: bytes) -> str:
        text = piece.removeprefix(b"\xef\xbb\xbf") if self._number == 1 else piece
        line = text.decode("utf-8", "replace").rstrip("\r").replace("\0", "")
        if line.encode() != text.rstrip(b"\r"):
            sentence = "characters that are not valid Unicode, or NUL bytes, were replaced or left out"
            self.findings.append(Finding(self._number, Outcome.REPAIRED, sentence, piece))
        return line

    def _begin(self, when: str) -> None:
        try:
            self._said_at = datetime.fromisoformat(when).replace(tzinfo=UTC)
        except ValueError:
            self.findings.append(Finding(self._number, Outcome.REPAIRED, "it is not a time, and was left out"))
        self.facts.created_at = self.facts.created_at or self._said_at
        self.facts.header = self.facts.header or {"started": when}
        self._chain.last_id, self._model, self._speaker, self._is_ours = None, None, _PROGRAM, True

    def _all(self) -> Iterator[Entry]:
        yield from self._said()
        yield from self._closed()

    def _said(self) -> Iterator[Entry]:
        """What was said up to here."""
        text, speaker = "\n".join(self._lines).strip("\n"), self._speaker
        self._lines, self._size = [], 0
        if not text.strip():
            return
        if speaker is _PROGRAM or text == "<blank>":  # as Aider writes it when nothing was asked
            self._note(text)
            if self._reply is not None and self._reply.usage is not None:
                yield from self._closed()
            yield self._chain.add(Custom, timestamp=self._said_at, custom_type=f"{NAME}.notice", data={"text": text})
            return
        yield from self._closed()
        if speaker is _USER:
            yield self._entry(Message(Role.USER, text))
        else:
            self._reply = Message(Role.ASSISTANT, text, model=self._model)

    def _note(self, text: str) -> None:
        """What Aider says about the model, and what its newest reply cost."""
        if found := _MODEL.search(text):
            self._model = found[1]
        if self._reply is not None and self._reply.usage is None and (cost := _COST.search(text)):
            sent, received = float(cost[1]) * _UNITS[cost[2]], float(cost[3]) * _UNITS[cost[4]]
            usage = Usage(int(sent), int(received), cost=float(cost[5]) if cost[5] else None)
            self._reply = replace(self._reply, usage=usage)

    def _closed(self) -> Iterator[Entry]:
        """The reply whose cost may have come behind it."""
        reply, self._reply = self._reply, None
        if reply is not None:
            yield self._entry(reply)

    def _entry(self, message: Message) -> Entry:
        fields: dict[str, Any] = {"message": replace(message, timestamp=self._said_at, model=None, usage=None)}
        entry_id = self._chain.id_of(MessageEntry, timestamp=self._said_at, **fields)  # the cost may come later
        message = replace(message, timestamp=self._said_at)
        return self._chain.add(MessageEntry, timestamp=self._said_at, entry_id=entry_id, message=message)


AIDER = Format(
    name=NAME,
    about="Aider's chat history, each chat a branch; read only",
    suffix=".md",
    recognize=lambda sample: sample.text.lstrip("\ufeff \r\n").startswith("# aider chat started at "),
    reader=_Reader,
)
