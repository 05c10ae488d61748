"""Taking in a session file of any known format, as a stream: a transcript may be larger than the memory.

The format is recognized by the beginning of the file; a file of no known format is refused untouched. The entries
become a new session that is visible only when it is complete. Pieces that had to be repaired or left out are reported,
and never cost their neighbours.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Self

import msgspec
from anyio import to_thread

from miniclaw_sessions.clock import Clock, derived_ids
from miniclaw_sessions.core.history.placing import Places
from miniclaw_sessions.core.persistence.recovery import Progress
from miniclaw_sessions.core.protocol.entries import (
    FOLLOWED,
    METADATA,
    OWN_METADATA,
    SOURCE,
    Custom,
    Entry,
    LeafMove,
    MessageEntry,
    OtherEntry,
    moves_leaf,
    without_wrong_texts,
)
from miniclaw_sessions.core.protocol.json_values import has_more_elements, parse_in_pieces, parse_json
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.copying import adopt_all, copy_branch, storable
from miniclaw_sessions.core.session.journal import Journal
from miniclaw_sessions.core.stores.reading import PAGE
from miniclaw_sessions.errors import EntryNotFound, ImportRefused, InvalidKey, InvalidMessage
from miniclaw_sessions.files.formats.codec import (
    IS_PART,
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
from miniclaw_sessions.files.formats.registry import recognize, recognizes

HEAD_BYTES = 262_144
"""How much of a file is looked at to recognize it."""

TEXT_BYTES = 4_096
"""How much of it where it is text."""

SAMPLE_LINES = 50
MAX_LINE_BYTES = 67_108_864
"""A line that is longer than this ends the import: it would have to be held in memory whole."""

REPORTED_FINDINGS = 1_000
"""At most this many findings are reported with their text; the rest is only counted."""

AT_ONCE = 256
"""How many entries of a document are made in one go, by a thread."""

LINES_AT_ONCE = 256
"""How many lines are read in one go, by a thread."""

NOT_TAKEN = "import.metadata"
"""The `custom_type` of metadata that only a session itself may have (`OWN_METADATA`), where a file has some."""


class ImportReport(msgspec.Struct, kw_only=True):
    """What became of a file.

    Attributes:
        session_id: the session that it became, or would become.
        format: what it was recognized as.
        entries, messages: how many were taken in.
        repaired, set_aside: how many pieces were not as they should be; `findings` has the first of them.
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


class KnownEntries(Places):
    """Where the entries of a session stand that a file is added to, again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.covered = 0

    async def bring_up(self, journal: Journal) -> None:
        """Look at what the session has got since the last time."""
        while self.covered < (final := journal.final_sequence):
            page = await journal.reader.read(journal.session_id, after=self.covered, limit=PAGE)
            for stored in page:
                self.note(stored.entry_id, stored.sequence)
            self.covered = min(page[-1].sequence, final) if page else final


class Import:
    """One file on its way in: `async with` it, `begin`, and then `store` or `only_read`.

    Everything that looks at the file's content works in a thread, a piece at a time: a document of a million elements
    does not block the event loop.
    """

    def __init__(  # noqa: PLR0913 - it works with what the manager has
        self,
        chunks: AsyncIterator[bytes],
        *,
        name: str,
        form: Format | None,
        clock: Clock,
        on_progress: Callable[[Progress], None],
        size: int | None = None,
        dry_run: bool = False,
        place: Mapping[str, Any] | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            chunks: the file's bytes, in pieces of any size.
            name: the file's name without its suffix; the session's, where the file says none.
            form: the format, where it is known; None: it is recognized.
            clock: time, for what has none.
            on_progress: gets how many bytes are done, and how many there are.
            size: how many bytes there are, where that is known.
            dry_run: what the report says of it.
            place: where the file lies and how far this reads it, as its follower wants it kept (`FOLLOWED`).
        """
        self._place = place
        self._name = name
        self._form = form
        self._clock = clock
        self._on_progress = on_progress
        self._size = size
        self._bytes = _Bytes(chunks)
        self._batches: AsyncGenerator[list[Entry], None] | None = None
        self._first: list[Entry] = []
        self._doubt = ""
        self._is_understood = False
        self.report = ImportReport(session_id="", format="", dry_run=dry_run)

    async def __aenter__(self) -> Self:
        """Nothing is read yet."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Read no more."""
        if self._batches is not None:
            await self._batches.aclose()

    async def begin(self, key: SessionKey | None) -> SessionKey:
        """Read the beginning of the file.

        Args:
            key: the new session's key; None: as the file says, or else `import` and the file's name.

        Returns:
            The key.

        Raises:
            ImportRefused: the file is not a session in a known format, or cannot be read as one.
            OSError: the file cannot be read.
        """
        head = await self._bytes.head(HEAD_BYTES)
        form = self._form
        if form is None:
            sample = await self._sample(head, None)
            self._form = form = await to_thread.run_sync(recognize, sample)
        else:
            sample = await self._sample(head, form)
            self._doubt = await self._doubted(head, form, sample)
        if form.reader is None:
            raise ImportRefused(f"{self._name} cannot be read as {form.name}: that format is only written")
        if not form.by_line and sample.document is None and self._doubt:
            raise ImportRefused(f"{self._name} is not one JSON document, as {form.name} has it; {self._doubt}")
        seed = head[:HEAD_BYTES].partition(b"\n")[0] if form.by_line else head[:HEAD_BYTES]  # it may have grown since
        self._reader = form.reader(Chain(new_id=derived_ids(seed), now=self._clock.now()))
        self._batches = self._read(form, self._reader, sample.document)
        self._first = await anext(self._batches, self._first)  # by the time there is an entry, the header has been read
        key = key or _key_of(self._reader.facts, self._name)
        self.report.session_id, self.report.format = key.session_id, form.name
        return key

    @property
    def created_at(self) -> datetime | None:
        """When the session began, as far as the file says it and the calendar has it."""
        created_at = self._reader.facts.created_at
        return created_at if created_at is None or created_at.tzinfo is UTC else None

    async def only_read(self) -> None:
        """Read the rest of the file and store nothing.

        Raises:
            ImportRefused, OSError: as for `begin`.
        """
        async with aclosing(self._entries()) as entries:
            async for _ in entries:
                pass
        self._refuse_nothing()
        self.report.title = self._reader.facts.title

    async def store(self, session: Session) -> None:
        """Read the rest of the file into a new session that no other caller has yet.

        Where the store keeps no transcript, the file is read into memory, because only its end says which branch is
        the current one; the newest messages of that branch are kept.

        Raises:
            ImportRefused, OSError: as for `begin`.
            StoreError: the session cannot be stored.
        """
        keeps_all = session.journal.home.store.keeps_entries
        whole = session if keeps_all else Session.new(window=session.journal.conversation.window.capacity)
        async with aclosing(self._entries(session.journal)) as entries:
            await adopt_all(whole.journal, entries)
        self._refuse_nothing()
        assert self._form is not None  # noqa: S101 - `begin` knows it
        if not keeps_all:
            await _go_to_leaf(whole, self._reader.facts, self.report)
            await copy_branch(whole.journal, session.journal)
            kept, total = len(session.journal.conversation.window), self.report.messages
            if kept < total:
                text = f"{kept} of {total} messages are kept: the store `none:` keeps no transcript"
                self.report.note(Finding(0, Outcome.SET_ASIDE, text))
        _describe(session, self._reader.facts, self._form, self.report)
        if keeps_all:
            await _go_to_leaf(session, self._reader.facts, self.report)
            if self._place is not None:
                session.journal.note({FOLLOWED: {**self._place, "leaf": session.leaf_id}})
        session.journal.checkpoint.touch()

    @property
    def is_part(self) -> bool:
        """Whether the file is a part of a session that is there, and makes none of its own."""
        return self._reader.facts.header.get(IS_PART) is True

    def is_of(self, session: Session) -> bool:
        """Whether a session was made of a file of the same program and id, at any path."""
        facts, form = self._reader.facts, self._form
        about = facts.source or {"format": form.name if form else "", "id": facts.source_id or None}
        known = session.metadata.get(SOURCE)
        return isinstance(known, dict) and all(known.get(name) == about.get(name) for name in ("format", "id"))

    async def add_to(self, session: Session, known: KnownEntries | None) -> KnownEntries:
        """Read the rest of the file, and store what a session lacks of it, which was made of it before.

        If the conversation went on here, it stays where it is.

        Args:
            session: which one.
            known: what this returned the last time; None: it must be looked up.

        Raises:
            ImportRefused, OSError: as for `begin`.
            TranscriptNotKept: the store is `none`, and does not know what the session has.
            LeafMoved: the session got a message meanwhile; do it again.
            StoreError: it cannot be stored.
        """
        journal, known = session.journal, known or KnownEntries()
        journal.require_transcript("what a file says more")
        async with journal.between_turns():
            await known.bring_up(journal)
            left, followed = session.leaf_id, session.metadata.get(FOLLOWED) or {}
            async with aclosing(self._entries(journal, known)) as entries:
                await adopt_all(journal, self._then_place(journal, entries), known)
            if not journal.home.ownership(journal).is_contested:  # else a sequence is only known when it is committed
                known.covered = journal.last_sequence
        if self.report.entries and left != followed.get("leaf", left):
            await session.tree.branch(left)
        if (title := self._reader.facts.title) and not session.title:
            session.update(title=title)
        self.report.title = session.title
        journal.checkpoint.touch()
        return known

    async def _then_place(self, journal: Journal, entries: AsyncIterator[Entry]) -> AsyncGenerator[Entry, None]:
        """The entries, and behind them what is kept of how far the file was read, in one commit where they are few."""
        leaf_id = None
        async for entry in entries:
            if moves_leaf(entry):
                leaf_id = entry.target_id if isinstance(entry, LeafMove) else entry.id
            yield entry
        if self._place is not None and self.report.entries:
            place = {FOLLOWED: {**self._place, "leaf": leaf_id or journal.conversation.state.leaf_id}}
            new_id, now = self._clock.new_id(), self._clock.now()
            yield Custom(id=new_id, parent_id=leaf_id, timestamp=now, custom_type=METADATA, data=place)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _doubted(self, head: bytes, form: Format, sample: Sample) -> str:
        """What a file looks like that does not look like the format it is said to have; empty where it does."""
        with suppress(ImportRefused):  # or it looks like something that is refused, as its reader will say
            if not form.is_read or await to_thread.run_sync(recognizes, form, sample):
                return ""
        with suppress(ImportRefused):
            other: Format = await to_thread.run_sync(recognize, await self._sample(head, None))
            return f"it looks like a session of {other.name}: leave --format out, or say --format {other.name}"
        return "it looks like no known format"

    async def _sample(self, head: bytes, form: Format | None) -> Sample:
        """What the file's format is recognized by: its first lines, and all of it where it is one document."""
        while b"\n" not in head and not self._bytes.at_end and len(head) < MAX_LINE_BYTES:
            head = await self._bytes.head(2 * len(head))  # the first line is long: it may hold an image
        lines = await to_thread.run_sync(partial(parsed_lines, head, is_whole=self._bytes.at_end))
        objects = sum(isinstance(line, dict) for line in lines)  # other values may be lines of a document
        has_lines = objects > 1 or (objects == 1 and not self._bytes.at_end)
        is_by_line = has_lines if form is None else form.by_line
        if is_by_line or head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"[", b"{"):
            return Sample(lines=lines, text="" if objects else head[:TEXT_BYTES].decode(errors="replace"))
        data = await self._bytes.head(MAX_DOCUMENT_BYTES)
        if not self._bytes.at_end:
            raise ImportRefused(f"{self._name} is one document of more than {MAX_DOCUMENT_BYTES} bytes")
        if await to_thread.run_sync(has_more_elements, data, MAX_ELEMENTS):
            raise ImportRefused(f"{self._name} is one document of more than {MAX_ELEMENTS} elements; send it in parts")
        try:
            document = await to_thread.run_sync(parse_in_pieces, data.removeprefix(b"\xef\xbb\xbf"))
            return Sample(lines=lines, document=document)
        except InvalidMessage as error:
            if form is not None and not has_lines:
                raise ImportRefused(f"{self._name} cannot be read as {form.name}: {error}") from None
            return Sample(lines=lines)

    async def _read(self, form: Format, reader: Reader, document: Any) -> AsyncGenerator[list[Entry], None]:
        """Everything that the reader makes of the file, some entries at a time; no batch is empty."""
        try:
            async for entries in self._read_all(form, reader, document):
                if not self._is_understood:  # what a reader does not understand, it only keeps
                    self._is_understood = not all(isinstance(entry, Custom | OtherEntry) for entry in entries)
                yield entries
        except ImportRefused as error:
            if not self._doubt:
                raise
            raise ImportRefused(f"{self._name} cannot be read as {form.name}: {error}; {self._doubt}") from None

    async def _read_all(self, form: Format, reader: Reader, document: Any) -> AsyncGenerator[list[Entry], None]:
        if form.by_line:
            async for lines in self._bytes.lines(self._name):
                if entries := await to_thread.run_sync(_fed, reader, lines):
                    yield entries
                self._report_progress()
        else:
            made = iter(reader.feed(document))
            while entries := await to_thread.run_sync(lambda: list(islice(made, AT_ONCE))):
                yield entries
        if entries := await to_thread.run_sync(lambda: list(reader.finish())):
            yield entries
        self._report_progress(done=True)

    async def _entries(
        self, journal: Journal | None = None, known: Places | None = None
    ) -> AsyncGenerator[Entry, None]:
        """All entries but those that are known, counted; with a journal, those that it could not take are replaced."""
        assert self._batches is not None  # noqa: S101 - `begin` made it
        report = self.report
        batch: list[Entry] | None = self._first
        while batch is not None:
            batch = batch if known is None else [entry for entry in batch if not known.place_of(entry.id)]
            batch = [self._without_own_metadata(entry) for entry in batch]
            for entry in batch if journal is None else await to_thread.run_sync(self._storable, journal, batch):
                report.entries += 1
                report.messages += isinstance(entry, MessageEntry)
                yield entry
            report.drain(self._reader)
            batch = await anext(self._batches, None)
        report.drain(self._reader)
        report.bytes_read = self._bytes.read

    def _storable(self, journal: Journal, entries: Sequence[Entry]) -> list[Entry]:
        """The entries; what is too large or cannot be stored leaves a note in its place, so that the tree is whole."""
        fitting, problems = storable(journal, entries)
        for problem in problems:
            self.report.note(Finding(0, Outcome.SET_ASIDE, problem))
        return fitting

    def _without_own_metadata(self, entry: Entry) -> Entry:
        """The entry; what only a session itself may say of itself is kept, and says nothing.

        A stranger's file could end a legal hold with it, or have the session removed.
        """
        if not isinstance(entry, Custom) or entry.custom_type != METADATA:
            return entry
        others = without_wrong_texts({n: value for n, value in entry.data.items() if not n.startswith(OWN_METADATA)})
        own = {name: value for name, value in entry.data.items() if name not in others}
        if not own:
            return entry
        self.report.note(Finding(0, Outcome.SET_ASIDE, f"entry {entry.id}: metadata {', '.join(own)} cannot be set"))
        kind = METADATA if others else NOT_TAKEN
        return msgspec.structs.replace(entry, custom_type=kind, data=others or own)

    def _refuse_nothing(self) -> None:
        if self._doubt and not self._is_understood:
            raise ImportRefused(f"nothing in {self._name} is as {self.report.format} has it; {self._doubt}")
        if not self.report.entries and not self._reader.facts.source_id:
            raise ImportRefused(f"{self._name} holds nothing that is an entry of a session; nothing was imported")

    def _report_progress(self, *, done: bool = False) -> None:
        if self._bytes.read >= self._bytes.reported + HEAD_BYTES or done:
            self._bytes.reported = self._bytes.read
            self._on_progress(Progress("importing", self._bytes.read, self._size or 0))


def _fed(reader: Reader, lines: Iterable[bytes]) -> list[Entry]:
    return [entry for line in lines for entry in reader.feed(line)]


class _Bytes:
    """A stream of chunks that can be looked into before it is taken line by line."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self.read = 0
        self.reported = 0
        self.at_end = False
        self._chunks = chunks
        self._held = bytearray()

    async def head(self, size: int) -> bytes:
        """The first bytes, up to about `size`; they are not taken away."""
        while len(self._held) < size and await self._more():
            pass
        return bytes(self._held)

    async def lines(self, name: str) -> AsyncGenerator[list[bytes], None]:
        """The lines without their ends, some at a time; split at byte 0x0A only (rule R13)."""
        number = searched = 0
        while True:
            end = self._held.rfind(b"\n", searched)
            if end >= 0:
                lines = bytes(self._held[:end]).split(b"\n")
                del self._held[: end + 1]
                number += len(lines)
                for start in range(0, len(lines), LINES_AT_ONCE):
                    yield lines[start : start + LINES_AT_ONCE]
            searched = len(self._held)  # a long line is not looked through again for each of its pieces
            if searched > MAX_LINE_BYTES:
                raise ImportRefused(f"line {number + 1} of {name} is longer than {MAX_LINE_BYTES} bytes")
            if not await self._more():
                break
        if self._held:
            yield [bytes(self._held)]

    async def _more(self) -> bool:
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            self.at_end = True
            return False
        self._held += chunk
        self.read += len(chunk)
        return True


def parsed_lines(head: bytes, *, is_whole: bool) -> list[Any]:
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


def _key_of(facts: SessionFacts, name: str) -> SessionKey:
    """The key of a session whose caller gave none."""
    if facts.channel and facts.chat_id:
        try:
            return SessionKey.of(facts.channel, facts.chat_id)
        except InvalidKey:
            pass  # a file from elsewhere may say anything
    try:
        return SessionKey.of("import", facts.source_id or name)
    except InvalidKey as error:
        raise ImportRefused(f"{name} names no session that could be made ({error}); choose a name for it") from None


def _describe(session: Session, facts: SessionFacts, form: Format, report: ImportReport) -> None:
    """Give a session what the file says of it as a whole."""
    known = session.metadata
    free = {name: value for name, value in facts.metadata.items() if not name.startswith(OWN_METADATA)}
    changes = without_wrong_texts({name: value for name, value in free.items() if name not in known})
    if facts.title and not session.title:
        changes["title"] = facts.title
    about = {
        "format": form.name,
        "id": facts.source_id or None,
        "parent_session": facts.parent_session,
        "header": facts.header or None,
    }
    source = facts.source or {name: value for name, value in about.items() if value is not None}
    try:
        session.update(**changes)
        session.journal.note({SOURCE: source})
    except InvalidMessage as error:
        report.note(Finding(0, Outcome.SET_ASIDE, f"the file's header could not be kept: {error}"))
        session.journal.note({SOURCE: {"format": form.name}})
    report.title = session.title


async def _go_to_leaf(session: Session, facts: SessionFacts, report: ImportReport) -> None:
    """Let the conversation go on where the file says."""
    if facts.leaf_id is not None and facts.leaf_id != session.leaf_id:
        try:
            await session.tree.branch(facts.leaf_id)
        except EntryNotFound:
            text = "the place where the conversation was to go on is missing; it goes on from the last entry"
            report.note(Finding(0, Outcome.REPAIRED, text))
