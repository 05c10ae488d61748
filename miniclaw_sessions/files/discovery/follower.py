"""Following other programs' sessions: each becomes a session here, and gets what its source gets.

How far a file was read is stored with its session (`FOLLOWED`), in the same commit as what was read. Of a file that
only grows by lines, only the new lines are read, by a reader that stays in memory as long as the file is in use. A new
reader reads the older lines once more and leaves them out. Files that their program rewrites, and databases, are read
whole when they change. In both cases the ids of entries decide what a session has already: an entry is never stored
twice, even after a crash between two steps.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
from anyio import to_thread
from msgspec.structs import replace

from miniclaw_sessions.clock import Clock, derived_id, derived_ids
from miniclaw_sessions.core.protocol.entries import FOLLOWED, Entry, LeafMove
from miniclaw_sessions.errors import ImportRefused, SessionExists, SessionExpired, SessionNotFound, Unreachable
from miniclaw_sessions.files.discovery.databases import lines_of
from miniclaw_sessions.files.discovery.growing_file import GrowingFile
from miniclaw_sessions.files.discovery.names import Names
from miniclaw_sessions.files.discovery.open_files import BLOCK_BYTES, blocks, lines_in, opened, tail, whole_lines, why
from miniclaw_sessions.files.discovery.overview import find_sources
from miniclaw_sessions.files.discovery.program import Program, ProgramSession
from miniclaw_sessions.files.discovery.session_files import id_in
from miniclaw_sessions.files.discovery.target import ImportResult, ImportTarget
from miniclaw_sessions.files.formats.codec import IS_PART, Chain, Sample, SessionFacts
from miniclaw_sessions.files.formats.entry_line import ENTRY_LINE
from miniclaw_sessions.files.formats.registry import format_named, recognize
from miniclaw_sessions.files.transfer.exporting import in_threads
from miniclaw_sessions.files.transfer.incoming import HEAD_BYTES, MAX_LINE_BYTES, parsed_lines

POLL_S = 0.7
"""Time between two looks for changes; longer if a look takes long."""

_SHARE = 10  # a look takes at most about this fraction of the time: one part in ten
_LONGEST_S = 1.4
_HELD_BYTES = (
    4_000_000_000  # readers stay in memory for files of this size together; they hold ids: a fiftieth of it at most
)
_MOST_ENDS = 32  # behind more partial replies than this, what follows the oldest one is placed behind its first part
_RECENT_S = 3_600.0  # at a start, files that changed within this time are checked for entries that were held back
_SETTLED_S = 10.0  # a reply that does not say that it is complete is taken when nothing came for this time


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """How far a file was read.

    Attributes:
        path: the file, or the database with the session's id in it.
        program: the name of its program.
        bytes: how many of them were read, up to the end of a line.
        modified, inode: of the file at that time.
        tail: what stood before that place (`open_files.tail`).
        ends: the newest places at which entries that the reader held back were taken before they were complete. A new
            reader takes them at the same places, so that later entries follow what is stored.
    """

    path: str
    program: str = ""
    bytes: int = 0
    modified: int = 0
    inode: int = 0
    tail: str = ""
    ends: tuple[int, ...] = ()


class SourceUpdate(msgspec.Struct, kw_only=True):
    """What one look at a source brought.

    Attributes:
        program, path: which source.
        reply: what was imported; None if nothing was new, or the source could not be read.
        problem: why it could not be read.
        is_new: whether its session was created now.
        is_gone: whether its session was deleted here or has expired, and so is not imported again.
    """

    program: str
    path: str
    reply: ImportResult | None = None
    problem: str = ""
    is_new: bool = False
    is_gone: bool = False


class _FollowedSource:
    """A source: its session, what the present look found and brought, and how far it was read."""

    source: ProgramSession
    update: SourceUpdate

    def __init__(self, program: Program, session_id: str) -> None:
        self.program = program
        self.session_id = session_id
        self.is_looked_up = False
        self.is_new = True
        self.seen: ProgramSession | None = None
        self.seen_at = 0.0
        self.place: Place | None = None
        self.holds = False


class Follower:
    """Follows the sessions of some programs."""

    def __init__(  # noqa: PLR0913 - whose sessions, where from, and where to
        self,
        workspace: ImportTarget,
        programs: Sequence[Program],
        *,
        environ: Mapping[str, str],
        home: Path,
        clock: Clock,
        only: str | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            workspace: where the sessions are kept.
            programs: the programs.
            environ: the environment variables that may name the directories of the sessions.
            home: the home directory, which has them otherwise.
            clock: the time.
            only: the id of the only session that is wanted, even if it was deleted here; None: all of them.
        """
        self._only = only
        self._problems: dict[str, str] = {}  # by path: the last problem that was reported
        self._workspace = workspace
        self._programs = {program.name: program for program in programs}
        self._environ = environ
        self._home = home
        self._clock = clock
        self._followed: dict[tuple[Path, str], _FollowedSource] = {}
        self._growing: OrderedDict[Path, GrowingFile] = OrderedDict()
        self._names = Names(workspace)

    def has_source_of(self, session_id: str) -> bool:
        """Whether a source that was looked at has, or would get, the session of this id."""
        return any(one.session_id == session_id for one in self._followed.values())

    async def follow(self, on_update: Callable[[SourceUpdate], None]) -> None:
        """Follow until cancelled; `on_update` gets everything that was new, and each problem once."""
        while True:
            began = self._clock.monotonic()
            try:
                async for update in self.catch_up():
                    self._report(update, on_update)
                self._problems.pop("", None)
            except Unreachable as error:  # the process that keeps the sessions may come back
                self._report(SourceUpdate(program="", path="", problem=str(error)), on_update)
            await self._clock.sleep(min(max(POLL_S, _SHARE * (self._clock.monotonic() - began)), _LONGEST_S))

    def _report(self, update: SourceUpdate, on_update: Callable[[SourceUpdate], None]) -> None:
        if update.reply is not None or (update.problem and self._problems.get(update.path) != update.problem):
            on_update(update)
        self._problems[update.path] = update.problem

    async def catch_up(
        self,
        on_progress: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005
    ) -> AsyncIterator[SourceUpdate]:
        """Read everything that has changed since the last time; yield what was new, and what could not be read.

        `on_progress` gets the number of sessions that are done, and of all.

        Raises:
            Unreachable: the process that keeps the sessions does not answer.
        """
        sources = await to_thread.run_sync(
            partial(find_sources, list(self._programs.values()), self._environ, self._home)
        )
        present = {source.shown for source in sources}
        for done, source in enumerate(sources, 1):
            update = SourceUpdate(program=source.program, path=source.shown)
            try:
                await self._keep_up(source, update, present)
            except Unreachable:
                raise
            except Exception as error:  # noqa: BLE001 - a file that fails must not stop the others
                update.problem = why(error)
            if update.reply is not None or update.problem or update.is_gone:
                yield update
            on_progress(done, len(sources))

    async def _keep_up(self, source: ProgramSession, update: SourceUpdate, present: Collection[str]) -> None:
        if source.problem:
            raise ImportRefused(source.problem)
        one = self._followed.get((source.path, source.inner))
        if one is None:
            one = _FollowedSource(self._programs[source.program], await self._name(source, present))
            self._followed[source.path, source.inner] = one
        if self._only not in {None, one.session_id}:
            return
        one.source, one.update = source, update
        try:
            if one.seen == source:
                await self._settle(one)
            else:
                await self._read_on_as_another(one, present)
        except SessionNotFound:
            self._growing.pop(source.path, None)
            update.is_gone, one.place, one.is_looked_up = True, None, False  # it may be restored later
        except BaseException as error:
            self._growing.pop(source.path, None)  # its reader is ahead of what was taken
            one.holds = False
            if not isinstance(error, ImportRefused | SessionExists):  # those stay until it changes
                one.seen = None
            raise

    async def _read_on_as_another(self, one: _FollowedSource, present: Collection[str]) -> None:
        """Import what is new; under another name if the session of this name turns out to be of another source."""
        while True:
            try:
                return await self._read_on(one)
            except SessionExists:
                self._names.refuse(one.session_id)
                session_id = one.session_id if one.place is not None else await self._name(one.source, present)
                if session_id == one.session_id:
                    raise
                one.session_id, one.is_looked_up, one.is_new = session_id, False, True

    async def _read_on(self, one: _FollowedSource) -> None:
        """Import what is new of a source that is new itself, or has changed."""
        source = one.source
        is_first = not one.is_looked_up
        if is_first:
            await self._look_up(one)
        one.seen, one.seen_at = source, self._clock.monotonic()
        place = one.place
        is_as_before = place is not None and (place.modified, place.inode) == (source.modified, source.inode)
        age_s = self._clock.now().timestamp() - source.modified / 1e9
        # the process before this one may have ended while its reader held entries of the file back
        may_lack = place is not None and place.bytes > 0 and place.bytes not in place.ends and age_s < _RECENT_S
        if is_first and is_as_before and not may_lack:
            return
        is_growing = place is not None and not one.program.is_rewritten and source.path.suffix == ".jsonl"
        if not (is_growing and await self._grow(one)):
            await self._take_whole(one)

    async def _name(self, source: ProgramSession, present: Collection[str]) -> str:
        program = self._programs[source.program]
        own_id = await to_thread.run_sync(id_in, program, source, self._environ, self._home)
        return await self._names.name(source, program, own_id, present)

    async def _look_up(self, one: _FollowedSource) -> None:
        """Look up how far the file was read when it was followed the last time."""
        try:
            info = await self._workspace.session(one.session_id).info()
        except SessionNotFound as error:
            one.is_new = not isinstance(error, SessionExpired)
        else:
            one.is_new = False
            try:
                place = msgspec.convert(info.metadata.get(FOLLOWED), Place)
            except msgspec.ValidationError:
                place = None
            one.place = place if place is not None and place.path == one.source.shown else None
        one.is_looked_up = True

    # --- files and databases that are read whole ---------------------------------------------------------------------

    async def _take_whole(self, one: _FollowedSource) -> None:
        source, program = one.source, one.program
        place = Place(path=source.shown, program=source.program, modified=source.modified, inode=source.inode)
        if source.inner:
            await self._send(one, lines_of(program.name, source.path, source.inner), place, program.form)
            return
        with opened(source.path) as fd:
            end = source.size
            if source.path.suffix == ".jsonl" and not program.is_rewritten:
                end = await to_thread.run_sync(partial(whole_lines, fd, after=0))
                place = replace(place, bytes=end, tail=tail(fd, end), ends=(end,))
            if end:
                await self._send(one, blocks(fd, 0, end), place, program.form)

    async def _send(self, one: _FollowedSource, pieces: Iterator[bytes], place: Place, form: str | None) -> None:
        reply = await self._workspace.import_stream(
            in_threads(pieces, BLOCK_BYTES),
            name=one.source.path.stem,
            session_id=one.session_id,
            form=form,
            update=True,
            place=None if self._only is not None else msgspec.json.encode(place).decode(),
        )
        one.update.is_new = one.is_new
        one.update.reply = reply if reply.entries or one.is_new else None
        one.place, one.is_new = place, False

    # --- files that grow ---------------------------------------------------------------------------------------------

    async def _grow(self, one: _FollowedSource) -> bool:
        """Read the lines behind the last place; False if it is another file now, or was cut short."""
        source, place = one.source, one.place
        assert place is not None  # noqa: S101 - the caller looked
        with opened(source.path) as fd:
            if source.size < place.bytes or tail(fd, place.bytes) != place.tail:
                self._growing.pop(source.path, None)
                return False
            growing = self._growing.get(source.path)
            if growing is None:
                growing = await to_thread.run_sync(partial(self._read_again, fd, place, one.program.form))
            end = await to_thread.run_sync(partial(whole_lines, fd, after=place.bytes))
            if end > place.bytes:
                after = replace(place, bytes=end, modified=source.modified, inode=source.inode, tail=tail(fd, end))
                lines = lines_in(blocks(fd, place.bytes, end), MAX_LINE_BYTES)
                await self._send(one, _written(growing, map(growing.fed, lines)), after, ENTRY_LINE.name)
        growing.bytes = end
        self._growing[source.path] = growing
        self._growing.move_to_end(source.path)
        while len(self._growing) > 1 and sum(held.bytes for held in self._growing.values()) > _HELD_BYTES:
            self._growing.popitem(last=False)
        one.holds = True
        return True

    def _read_again(self, fd: int, place: Place, named: str | None) -> GrowingFile:
        """A new reader that has read what was imported before. Blocks."""
        head = next(blocks(fd, 0, min(HEAD_BYTES, place.bytes)), b"")
        form = recognize(Sample(lines=parsed_lines(head, is_whole=False))) if named is None else format_named(named)
        reader = form.reader
        assert reader is not None  # noqa: S101 - it was read before
        growing = GrowingFile(reader(Chain(new_id=derived_ids(head.partition(b"\n")[0]), now=self._clock.now())))
        start = 0
        for end in sorted({*place.ends, place.bytes}):
            for lines in lines_in(blocks(fd, start, end), MAX_LINE_BYTES):
                growing.fed(lines)
            if end in place.ends:
                growing.pending()
            start = end
        return growing

    async def _settle(self, one: _FollowedSource) -> None:
        """Import what the reader holds back, if nothing came for a while."""
        if not one.holds or one.place is None:
            return
        growing = self._growing.get(one.source.path)
        is_settled = growing is not None and growing.is_settled
        if not is_settled and self._clock.monotonic() < one.seen_at + _SETTLED_S:
            return
        one.holds = False
        if growing is None:  # others took its place in memory
            if not await self._grow(one) or one.update.reply is not None:
                return
            growing, one.holds = self._growing[one.source.path], False
        if held := growing.pending():
            after = replace(one.place, ends=(*one.place.ends, one.place.bytes)[-_MOST_ENDS:])
            await self._send(one, _written(growing, iter([held])), after, ENTRY_LINE.name)


def _written(growing: GrowingFile, batches: Iterator[list[Entry]]) -> Iterator[bytes]:
    """Entries as lines of our own format, a part of a session."""
    facts = growing.reader.facts
    about = SessionFacts(
        format=ENTRY_LINE.name,
        source_id=facts.source_id,
        title=facts.title,
        source={"format": facts.format, "id": facts.source_id or None},
        header={IS_PART: True},
    )
    assert ENTRY_LINE.writer is not None  # noqa: S101 - it is written
    writer = ENTRY_LINE.writer(about)
    yield writer.begin()
    last = None
    for entries in batches:
        yield b"".join(map(writer.feed, entries))
        last = entries[-1] if entries else last
    if last is not None and (leaf_id := growing.leaf_id) not in (None, last.id):  # the last entry is on another branch
        move_id = derived_id(f"leaf {leaf_id} {last.id}")
        yield writer.feed(LeafMove(id=move_id, parent_id=last.id, timestamp=last.timestamp, target_id=leaf_id))
    yield writer.finish()
