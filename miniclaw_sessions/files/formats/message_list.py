"""A file that is one list of a model service's messages: what the readers and writers of such files share.

Such a file is a bare list, or the body of a request with the list in it. Its other fields (model, tools, ...) are kept
as the header and written back by the same format.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from miniclaw_sessions.core.protocol.encoding import encode_message
from miniclaw_sessions.core.protocol.entries import Entry, MessageEntry
from miniclaw_sessions.core.protocol.json_values import MAX_DEPTH, check_json
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import ImportRefused, InvalidMessage
from miniclaw_sessions.files.formats.codec import Chain, Finding, Format, Outcome, Sample, SessionFacts, without

NOTHING_TO_SHOW = "(a message without anything that can be shown here)"
"""What stands for a user's message of which nothing can be sent: services refuse empty ones."""

IMAGES_OF_RESULTS = "(images from the tool results above)"
"""What a user says with the images of tool results, where a service takes none in them."""

_DEEPEST = MAX_DEPTH - 4  # what is kept of a message lies a few levels further down in ours


class MessageReader(Protocol):
    """Reads a service's messages one after the other; one of theirs may be several of ours, or a piece of one."""

    def feed(self, fields: Mapping[str, Any]) -> Iterable[Message]:
        """The next one. Raises `InvalidMessage` for anything else; the reader is then unchanged."""
        ...

    def finish(self) -> Iterable[Message]:
        """There is nothing more."""
        return ()


class OneByOne(MessageReader):
    """A reader for services whose messages do not depend on each other."""

    def __init__(self, read: Callable[[Mapping[str, Any]], Iterable[Message]]) -> None:
        self._read = read

    def feed(self, fields: Mapping[str, Any]) -> Iterable[Message]:
        """The next one."""
        return self._read(fields)


class MessageList(msgspec.Struct, frozen=True):
    """The messages that were found in a document.

    Attributes:
        messages: the list.
        before: what the document says before them (system text), as messages.
        header: its other fields.
        field: the name of the list in the document; empty if it is all of it.
    """

    messages: Sequence[Any]
    before: Sequence[Any] = ()
    header: dict[str, Any] = {}
    field: str = ""


class MessageListReader:
    """Reads a document that is, or holds, a list of messages; what is no message is set aside, the others are taken."""

    def __init__(
        self, chain: Chain, name: str, reader: MessageReader, find: Callable[[Any], MessageList | None]
    ) -> None:
        self.facts = SessionFacts(format=name)
        self.findings: list[Finding] = []
        self._chain = chain
        self._reader = reader
        self._find = find

    def feed(self, piece: Any) -> Iterator[Entry]:
        """The document.

        Raises:
            ImportRefused: there is no list of messages in it.
        """
        found = self._find(piece)
        if found is None:
            raise ImportRefused(f"there is no list of messages in this file, as {self.facts.format!r} would have one")
        try:
            self.facts.header = check_json(found.header)
        except InvalidMessage as error:
            self.findings.append(_set_aside(0, error, found.header))
        for number, fields in enumerate([*found.before, *found.messages], 1 - len(found.before)):
            try:
                if not isinstance(check_json(fields, _DEEPEST), dict):
                    raise InvalidMessage("a message must be a JSON object")  # noqa: TRY301 - is set aside like the others
                messages = list(self._reader.feed(dict(fields)))
                for message in messages:
                    encode_message(message)  # raises for a name of theirs that only our storage uses
            except InvalidMessage as error:
                self.findings.append(_set_aside(number, error, fields))
                continue
            for message in messages:
                yield self._chain.add(MessageEntry, message=message)

    def finish(self) -> Iterator[Entry]:
        """There is nothing more."""
        for message in self._reader.finish():
            yield self._chain.add(MessageEntry, message=message)


def _set_aside(number: int, error: InvalidMessage, piece: Any) -> Finding:
    raw = json.dumps(piece, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return Finding(max(number, 0), Outcome.SET_ASIDE, str(error), raw)


class Request(Protocol):
    """Makes a service's request of a legal context, message by message."""

    def add(self, message: Message) -> Iterable[dict[str, Any]]:
        """One more message; gives those of the request that are complete."""
        ...

    def end(self) -> Iterable[dict[str, Any]]:
        """The rest of them."""
        return ()

    def system_fields(self) -> dict[str, Any]:
        """The fields with the system's text, which stand after the messages."""
        return {}

    def all_of(self, messages: Iterable[Message]) -> list[dict[str, Any]]:
        """The request's messages for a whole context."""
        return [*(written for message in messages for written in self.add(message)), *self.end()]


class RequestWriter:
    """Writes the body of a request as a document, with the header of the file that the session came from."""

    def __init__(self, request: Request, facts: SessionFacts, name: str, field: str) -> None:
        """Begin a document.

        Args:
            request: makes the messages.
            facts: of the session.
            name: of the format; the header is written if it came from such a file.
            field: where the messages are.
        """
        self._request = request
        self._header = facts.header if facts.format == name else {}
        self._field = field
        self._is_empty = True

    def begin(self) -> bytes:
        """The header."""
        header = without(self._header, self._field, *_SYSTEM_FIELDS)
        fields = b"".join(_indented(name, value) + b",\n" for name, value in header.items())
        return b'{\n%s  "%s": [' % (fields, self._field.encode())

    def feed(self, message: Message) -> bytes:
        """One more message."""
        return self._written(self._request.add(message))

    def finish(self) -> bytes:
        """The rest of the messages, and the system's fields."""
        rest = self._written(self._request.end())
        system = b"".join(b",\n" + _indented(name, value) for name, value in self._request.system_fields().items())
        return rest + (b"]" if self._is_empty else b"\n  ]") + system + b"\n}\n"

    def _written(self, messages: Iterable[dict[str, Any]]) -> bytes:
        pieces: list[bytes] = []
        for message in messages:
            pieces += [b"\n    " if self._is_empty else b",\n    ", _as_json(message).replace(b"\n", b"\n    ")]
            self._is_empty = False
        return b"".join(pieces)


_SYSTEM_FIELDS = ("system", "system_instruction")


def message_list_format(  # noqa: PLR0913 - what the formats of model services differ in
    *,
    name: str,
    about: str,
    fields: Sequence[str],
    is_ours: Callable[[MessageList], bool],
    reader: Callable[[], MessageReader],
    request: Callable[[], Request],
    before: Mapping[str, Callable[[Any], Any]] = {},
) -> Format:
    """The format of a model service's lists of messages.

    Args:
        name: as the command line has it.
        about: one sentence about it.
        fields: where the list is in a document that is not the list itself, the first that is there; the first is
            written.
        is_ours: whether a list of objects, which is not empty, is this service's.
        reader: makes a reader of its messages.
        request: makes what writes them.
        before: fields that stand for a message before the others, and what makes that message of them.
    """

    def find(document: Any) -> MessageList | None:
        if isinstance(document, list):
            return MessageList(document)
        if not isinstance(document, dict):
            return None
        field = next((field for field in fields if isinstance(document.get(field), list)), None)
        if field is None:
            return None
        first = [make(document[name]) for name, make in before.items() if document.get(name) is not None]
        return MessageList(document[field], first, without(document, field, *before), field)

    def recognize(sample: Sample) -> bool:
        found = find(sample.document)
        if found is None or not found.messages or not all(isinstance(one, dict) for one in found.messages):
            return False
        return is_ours(found)

    return Format(
        name=name,
        about=about,
        suffix=".json",
        recognize=recognize,
        reader=lambda chain: MessageListReader(chain, name, reader(), find),
        by_line=False,
        message_writer=lambda facts: RequestWriter(request(), facts, name, fields[0]),
    )


def _indented(name: str, value: Any) -> bytes:
    return b"  " + _as_json(name) + b": " + _as_json(value).replace(b"\n", b"\n  ")


def _as_json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2)
