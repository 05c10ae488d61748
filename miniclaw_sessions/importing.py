"""Taking in a session file of any known format, as a stream: a transcript may be larger than the memory.

The beginning of the file tells its format; a file that is none is refused untouched. The entries become a new session
that nobody sees until it is complete. What had to be repaired or left out is reported, and never costs its neighbours.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.errors import EntryNotFound, ImportRefused, InvalidKey, InvalidMessage
from miniclaw_sessions.formats.foreign import (
    MAX_DOCUMENT_BYTES,
    MAX_ELEMENTS,
    Chain,
    Finding,
    Format,
    Outcome,
    Reader,
    Sample,
    SessionFacts,
)
from miniclaw_sessions.formats.registry import recognise
from miniclaw_sessions.history.placing import Places
from miniclaw_sessions.persistence.recovery import Progress, ids_for
from miniclaw_sessions.protocol.encoding import has_more_elements, parse_json
from miniclaw_sessions.protocol.entries import OWN_METADATA, SOURCE, Custom, Entry, MessageEntry
from miniclaw_sessions.protocol.keys import SessionKey
from miniclaw_sessions.session import Session
from miniclaw_sessions.session.copying import adopt_all

HEAD_BYTES = 262_144
"""How much of a file is looked at to recognise it."""

SAMPLE_LINES = 50
MAX_LINE_BYTES = 67_108_864
"""A line that is longer than this ends the import: it would have to be held in memory whole."""

REPORTED_FINDINGS = 1_000
"""Of so many findings the report has the text; the rest is only counted."""

NOT_STORED = "import.too_large"
"""The `custom_type` of what stands in the place of an entry that is too large to be stored."""

NewSession = Callable[[SessionKey, datetime | None], AbstractAsyncContextManager[Session]]


class ImportReport(msgspec.Struct, kw_only=True):
    """What became of a file.

    Attributes:
        session_id: the session that it became, or would become.
        format: what it was recognised as.
        entries, messages: how many were taken in.
        repaired, set_aside: how many pieces were not as they should be; `findings` tells of the first of them.
        bytes_read: the size of the file.
        dry_run: nothing was stored.
    """

    session_id: str
    format: str
    title: str | None = None
    entries: int = 0
    messages: int = 0
    repaired: int = 0
    set_aside: int = 0
    findings: list[Finding] = msgspec.field(default_factory=list)
    bytes_read: int = 0
    dry_run: bool = False

    def note(self, finding: Finding) -> None:
        """Count what was found; the piece itself is not kept, because the file still has it."""
        if finding.outcome is Outcome.REPAIRED:
            self.repaired += 1
        else:
            self.set_aside += 1
        if len(self.findings) < REPORTED_FINDINGS:
            self.findings.append(msgspec.structs.replace(finding, raw=b""))

    def drain(self, reader: Reader) -> None:
        """Take over what a reader has found so far: a damaged file may have millions of such places."""
        for finding in reader.findings:
            self.note(finding)
        reader.findings.clear()


class Import:
    """One file on its way in."""

    def __init__(  # noqa: PLR0913 - it works with what the manager has
        self,
        chunks: AsyncIterator[bytes],
        *,
        name: str,
        form: Format | None,
        clock: Clock,
        on_progress: Callable[[Progress], None],
        size: int | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            chunks: the file's bytes, in pieces of any size.
            name: the file's name without its suffix; the session's, where the file says none.
            form: the format, where it is known; None: it is recognised.
            clock: time, for what has none.
            on_progress: told how many bytes are done, and how many there are.
            size: how many bytes there are, where that is known.
        """
        self._name = name
        self._form = form
        self._clock = clock
        self._on_progress = on_progress
        self._size = size
        self._bytes = _Bytes(chunks)

    async def run(self, new_session: NewSession, key: SessionKey | None, *, dry_run: bool) -> ImportReport:
        """Read the file and store it.

        Args:
            new_session: makes the session; not called in a dry run.
            key: its key; None: as the file says, or else `import` and the file's name.
            dry_run: only read, and report.

        Raises:
            ImportRefused: the file is not a session in a known format, or cannot be read as one.
            SessionExists, SessionLimit, StoreError: the session could not be made; nothing of it is left.
            OSError: the file cannot be read.
        """
        head = await self._bytes.head(HEAD_BYTES)
        sample = await self._sample(head)
        form = self._form or recognise(sample)
        if form.reader is None:
            raise ImportRefused(f"{self._name} cannot be read as {form.name}: that format is only written")
        reader = form.reader(Chain(new_id=ids_for(head), now=self._clock.now()))
        report = ImportReport(session_id="", format=form.name, dry_run=dry_run)
        async with aclosing(self._entries(form, reader, sample.document, report)) as entries:
            begun = [entry async for entry in _first(entries)]
            key = key or _key_of(reader.facts, self._name)
            report.session_id = key.session_id
            everything = _counted(_chained(begun, entries), report)
            if dry_run:
                async for _ in everything:
                    pass
                _refuse_nothing(self._name, reader, report)
                report.title = reader.facts.title
                return report
            async with new_session(key, reader.facts.created_at) as session:
                await adopt_all(session.journal, everything, partial(_adopt, session, report))
                _refuse_nothing(self._name, reader, report)
                await _finish(session, reader.facts, form, report)
        return report

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _sample(self, head: bytes) -> Sample:
        """What the file's format is recognised by: its first lines, and all of it where it is one document."""
        while b"\n" not in head and not self._bytes.at_end and len(head) < MAX_LINE_BYTES:
            head = await self._bytes.head(2 * len(head))  # the first line is long: it may hold an image
        lines = _parsed_lines(head, is_whole=self._bytes.at_end)
        has_lines = len(lines) > 1 or (len(lines) == 1 and not self._bytes.at_end)
        is_by_line = has_lines if self._form is None else self._form.by_line
        if is_by_line or head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"[", b"{"):
            return Sample(lines=lines)
        data = await self._bytes.head(MAX_DOCUMENT_BYTES)
        if not self._bytes.at_end:
            raise ImportRefused(f"{self._name} is one document of more than {MAX_DOCUMENT_BYTES} bytes")
        if has_more_elements(data, MAX_ELEMENTS):
            raise ImportRefused(f"{self._name} is one document of more than {MAX_ELEMENTS} elements; send it in parts")
        try:
            return Sample(lines=lines, document=parse_json(data.removeprefix(b"\xef\xbb\xbf")))
        except InvalidMessage as error:
            if self._form is not None:
                raise ImportRefused(f"{self._name} cannot be read as {self._form.name}: {error}") from None
            return Sample(lines=lines)

    async def _entries(
        self, form: Format, reader: Reader, document: Any, report: ImportReport
    ) -> AsyncGenerator[Entry, None]:
        """Everything that the reader makes of the file."""
        if form.by_line:
            async for line in self._bytes.lines(self._name):
                for entry in reader.feed(line):
                    yield entry
                report.drain(reader)
                self._tell()
        else:
            for entry in reader.feed(document):
                yield entry
        for entry in reader.finish():
            yield entry
        report.drain(reader)
        report.bytes_read = self._bytes.read
        self._tell(done=True)

    def _tell(self, *, done: bool = False) -> None:
        if self._bytes.read >= self._bytes.told + HEAD_BYTES or done:
            self._bytes.told = self._bytes.read
            self._on_progress(Progress("importing", self._bytes.read, self._size or 0))


class _Bytes:
    """A stream of chunks that can be looked into before it is taken line by line."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self.read = 0
        self.told = 0
        self.at_end = False
        self._chunks = chunks
        self._held = bytearray()

    async def head(self, size: int) -> bytes:
        """The first bytes, up to about `size`; they are not taken away."""
        while len(self._held) < size and await self._more():
            pass
        return bytes(self._held)

    async def lines(self, name: str) -> AsyncIterator[bytes]:
        """The lines without their ends; split at byte 0x0A only (rule R13)."""
        number = 0
        start = searched = 0
        while True:
            end = self._held.find(b"\n", max(start, searched))
            if end >= 0:
                number += 1
                yield bytes(self._held[start:end])
                start = end + 1
                continue
            del self._held[:start]
            start, searched = 0, len(self._held)  # a long line is not looked through again for each of its pieces
            if searched > MAX_LINE_BYTES:
                raise ImportRefused(f"line {number + 1} of {name} is longer than {MAX_LINE_BYTES} bytes")
            if not await self._more():
                break
        if self._held:
            yield bytes(self._held)

    async def _more(self) -> bool:
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            self.at_end = True
            return False
        self._held += chunk
        self.read += len(chunk)
        return True


def _parsed_lines(head: bytes, *, is_whole: bool) -> list[Any]:
    """The JSON of the first lines; an incomplete last one does not count, nor what is not JSON."""
    lines = head.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not is_whole:
        lines.pop()
    parsed = []
    for line in lines[:SAMPLE_LINES]:
        text = line.strip(b"\0 \t\r\n")
        try:
            parsed += [parse_json(text, elements=MAX_ELEMENTS)] if text else []
        except InvalidMessage:
            continue
    return parsed


async def _first(entries: AsyncIterator[Entry]) -> AsyncIterator[Entry]:
    """The first entry: by the time it is known, the file's header has been read."""
    async for entry in entries:
        yield entry
        return


async def _counted(entries: AsyncIterator[Entry], report: ImportReport) -> AsyncIterator[Entry]:
    async for entry in entries:
        report.entries += 1
        report.messages += isinstance(entry, MessageEntry)
        yield entry


async def _chained(begun: Sequence[Entry], rest: AsyncIterator[Entry]) -> AsyncIterator[Entry]:
    for entry in begun:
        yield entry
    async for entry in rest:
        yield entry


def _refuse_nothing(name: str, reader: Reader, report: ImportReport) -> None:
    if not report.entries and not reader.facts.source_id:
        raise ImportRefused(f"{name} holds nothing that is an entry of a session; nothing was imported")


def _key_of(facts: SessionFacts, name: str) -> SessionKey:
    """Where a session belongs that nobody gave a key."""
    if facts.channel and facts.chat_id:
        try:
            return SessionKey.of(facts.channel, facts.chat_id)
        except InvalidKey:
            pass  # a file from elsewhere may say anything
    try:
        return SessionKey.of("import", facts.source_id or name)
    except InvalidKey as error:
        raise ImportRefused(f"{name} names no session that could be made ({error}); choose a name for it") from None


def _adopt(session: Session, report: ImportReport, batch: Sequence[Entry], places: Places) -> None:
    """Append a batch; what is too large or cannot be stored leaves an entry in its place, so that the tree is whole."""
    try:
        session.journal.adopt(batch, places)
    except InvalidMessage:
        for entry in batch:
            try:
                session.journal.adopt([entry], places)
            except InvalidMessage as error:
                report.note(Finding(0, Outcome.SET_ASIDE, f"entry {entry.id}: {error}"))
                session.journal.adopt([_in_its_place(entry, str(error))], places)


def _in_its_place(entry: Entry, reason: str) -> Entry:
    return Custom(
        id=entry.id,
        parent_id=entry.parent_id,
        timestamp=entry.timestamp,
        custom_type=NOT_STORED,
        data={"reason": reason},
    )


async def _finish(session: Session, facts: SessionFacts, form: Format, report: ImportReport) -> None:
    """What a file says of its session as a whole, and a new time to live."""
    about = {
        "format": form.name,
        "id": facts.source_id or None,
        "parent_session": facts.parent_session,
        "header": facts.header or None,
    }
    known = session.metadata
    changes: dict[str, Any] = {
        name: value for name, value in facts.metadata.items() if name not in known and not name.startswith(OWN_METADATA)
    }
    if facts.title and not session.title:
        changes["title"] = facts.title
    try:
        session.update(**changes)
        session.journal.note(
            {SOURCE: facts.source or {name: value for name, value in about.items() if value is not None}}
        )
    except InvalidMessage as error:
        report.note(Finding(0, Outcome.SET_ASIDE, f"the file's header could not be kept: {error}"))
        session.journal.note({SOURCE: {"format": form.name}})
    report.title = session.title
    if facts.leaf_id is not None and facts.leaf_id != session.leaf_id:
        try:
            await session.tree.branch(facts.leaf_id)
        except EntryNotFound:
            text = "the place where the conversation was to go on is missing; it goes on from the last entry"
            report.note(Finding(0, Outcome.REPAIRED, text))
    session.journal.touch()
