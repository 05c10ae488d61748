"""The transcript files of a directory: find them, append to them, mend and delete them. Everything here blocks.

An append is one write for each session, and one sync for all of them. After a failure nothing is acknowledged: the
descriptor is closed, and the file is truncated to its durable part, at once or at the latest before the next append
(rules R4, R5, R15). A session's file gets its name only when its first line and first entries are durable.

A file with a session's name is never taken for "no such session", and files of other programs are never touched.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from copy import copy
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from miniclaw_sessions import disk
from miniclaw_sessions.core.protocol.keys import is_session_id
from miniclaw_sessions.core.stores.base import Append, StoredEntry, entries_to_add, is_damaged
from miniclaw_sessions.core.stores.files import identity
from miniclaw_sessions.core.stores.jsonl import descriptors
from miniclaw_sessions.core.stores.jsonl.descriptors import Descriptors
from miniclaw_sessions.core.stores.jsonl.failures import failing, unavailable
from miniclaw_sessions.core.stores.jsonl.file import SUFFIX, Placing, Rest, Stamp, Transcript, entries_after, examine
from miniclaw_sessions.core.stores.jsonl.finding import find_transcripts, recognize
from miniclaw_sessions.core.stores.jsonl.lines import GOES_ON, MORE_FOLLOWS, header_of, lines_of, was_line_of
from miniclaw_sessions.disk import Directory, DirectoryLock, NotRegular, is_no_space, write_all
from miniclaw_sessions.errors import SchemaTooNew, SessionUnavailable, StoreCorrupt, StoreError, StoreUnavailable
from miniclaw_sessions.log import get_logger

TORN = "torn"
"""The subdirectory with what crashes left at the ends of transcripts."""

MAX_TORN_FILES = 1_000
MAX_TORN_BYTES = 256 * 1024 * 1024
"""This many bytes of unacknowledged entries are kept; the oldest are removed first."""

log = get_logger(__name__)


class Changed(NamedTuple):
    """A change by another program to an open transcript, and the number of its entries before."""

    sentence: str
    entries: int


class ChangedElsewhere(SessionUnavailable):
    """A transcript has changed since it was last used; a reader must examine it again first."""


class _OtherContent(Exception):
    """The file is a transcript of the session, but not the one that was written here."""


class _Written(NamedTuple):
    transcript: Transcript
    fd: int
    length: int
    last: StoredEntry
    stamp: Stamp


class _New(NamedTuple):
    transcript: Transcript
    data: bytes


class Transcripts:
    """An open and locked directory. One thread at a time may change it; others may read `known` and call `find`.

    Attributes:
        known: the durable transcripts, by session id.
        refused: files with a session's name that are left alone, with the error. Each access examines them again: they
            may be gone.
        changed: changes by other programs to transcripts, until all their entries are there again.
    """

    def __init__(self, path: Path, on_new_content: Callable[[str], None]) -> None:
        """Open and lock the directory, create it if needed, and examine its files. Sets aside what crashes left.

        Args:
            path: the directory.
            on_new_content: called with the id of a session whose file may have another content than before.

        Raises:
            ConfigError: the directory holds other files.
            DirectoryInUse: another process has it open.
            SchemaTooNew: a newer version of this program wrote one of the files; nothing was changed.
            StoreCorrupt: the sessions of some files are not known; `damaged_files` returns these files.
            StoreUnavailable: it cannot be read.
        """
        self._path = path
        self._on_new_content = on_new_content
        self._doubtful: set[str] = set()  # sessions whose files may not be durable as they are
        with failing("open", path), ExitStack() as stack:
            recognize(path)
            self._directory = stack.enter_context(Directory(path))
            self._identity = identity(path)
            stack.callback(DirectoryLock(path).release)
            self.known, refused = find_transcripts(self._directory)
            self.refused: dict[str, StoreError] = {
                session_id: StoreCorrupt(f"cannot use {path / session_id}{SUFFIX}: {reason}")
                for session_id, reason in refused.items()
            }
            self.changed: dict[str, Changed] = {}
            self._directory.remove_temporaries()
            if (path / TORN).exists():  # unfinished copies of torn ends, which are still in the transcripts
                with suppress(OSError), Directory(path / TORN) as aside:
                    aside.remove_temporaries()
            self._descriptors = stack.enter_context(Descriptors(self._directory))
            self._stack = stack.pop_all()
        for transcript in self.known.values():
            if transcript.rest is Rest.TORN:
                with suppress(OSError):  # on a full disk it stays there until the next append
                    self._clear_rest(transcript)

    def close(self) -> None:
        """Close all files, and release the lock."""
        self._stack.close()

    # --- appending ---------------------------------------------------------------------------------------------------

    def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        """Append entries of many sessions, with one sync.

        Raises:
            StoreUnavailable, StoreFull: the disk refused all of it.
        """
        outcomes: dict[str, StoreError | OSError | None] = {item.head.session_id: None for item in appends}
        written: list[_Written] = []
        new: list[_New] = []
        for item in appends:
            try:
                self._write(item, written, new)
            except (OSError, StoreError) as error:
                outcomes[item.head.session_id] = error
            is_full = len(written) >= descriptors.MAX_DESCRIPTORS  # the next file closes the first one
            if is_full and not disk.SYNCS_TOGETHER:
                outcomes |= self._settle(written)
                written.clear()
        outcomes |= self._settle(written)
        outcomes |= self._create(new)
        refused = {session_id: error for session_id, error in outcomes.items() if isinstance(error, OSError)}
        for session_id in refused:
            self._take_back(session_id)
        if refused and len(refused) == len(outcomes):
            errors = list(refused.values())
            worst = next((error for error in errors if not is_no_space(error)), errors[0])
            raise unavailable(worst, "append to", self._path) from worst
        return [
            unavailable(error, f"append to session {session_id} in", self._path)
            if isinstance(error, OSError)
            else error
            for session_id, error in outcomes.items()
        ]

    def _write(self, item: Append, written: list[_Written], new: list[_New]) -> None:
        """Write one session's new entries to the end of its file, or prepare the content of a new file."""
        transcript = self._ready(item.head.session_id)
        entries = entries_to_add(
            item,
            incarnation=transcript.head.incarnation if transcript else None,
            last_sequence=transcript.last_sequence if transcript else 0,
            ids_between=lambda first, last: self._ids_between(transcript, first, last),
        )
        data = lines_of(entries)
        if transcript is None:
            header = header_of(item.head)
            created = Transcript(item.head, start=len(header), length=len(header) + len(data), last_sequence=0)
            if entries:
                created.last_sequence, created.last_id = entries[-1].sequence, entries[-1].entry_id
            new.append(_New(created, header + data))
        elif entries:
            fd = self._descriptors.get(transcript.name)
            transcript.rest = Rest.OURS  # until it is durable
            try:
                write_all(fd, data)
            except OSError:
                self._descriptors.close(transcript.name)
                raise
            written.append(_Written(transcript, fd, transcript.length + len(data), entries[-1], Stamp.of(os.fstat(fd))))

    def _settle(self, written: Sequence[_Written]) -> dict[str, OSError]:
        """Sync what was written, and add it to the transcripts. Returns the failures, by session."""
        failures = {}
        outcomes = self._directory.sync_files([one.fd for one in written]) if written else []
        for one, failure in zip(written, outcomes, strict=True):
            if failure is None:
                one.transcript.length, one.transcript.stamp = one.length, one.stamp
                one.transcript.last_sequence, one.transcript.last_id = one.last.sequence, one.last.entry_id
                one.transcript.rest = Rest.NOTHING
                self._is_whole_again(one.transcript)
            else:
                failures[one.transcript.head.session_id] = failure
        return failures

    def _create(self, new: Sequence[_New]) -> dict[str, OSError]:
        """Create the files of new sessions. Returns the failures, by session."""
        failures = {}
        files = [(one.transcript.name, partial(bytes, one.data)) for one in new]
        for one, failure in zip(new, self._directory.create(files), strict=True):
            session_id = one.transcript.head.session_id
            if failure is None:
                one.transcript.stamp = self._stamp(one.transcript.name)
                self.known[session_id] = one.transcript
                self._is_whole_again(one.transcript)
            elif isinstance(failure, OSError):
                self._doubtful.add(session_id)  # the file may exist nevertheless
                failures[session_id] = failure
            else:
                raise failure
        return failures

    def _take_back(self, session_id: str) -> None:
        """After a failure: close the descriptor, and truncate the file to its durable part, if the disk allows it."""
        transcript = self.known.get(session_id)
        if transcript is not None and transcript.rest is Rest.OURS:
            self._descriptors.close(transcript.name)
            with suppress(OSError):
                self._clear_rest(transcript)

    # --- before an append --------------------------------------------------------------------------------------------

    def _ready(self, session_id: str) -> Transcript | None:
        """The session's transcript, with its file truncated to its last append; None if there is no such session.

        Raises:
            StoreCorrupt: another file has its name.
            SessionUnavailable: another program replaced the file while it was open.
            OSError: the file cannot be truncated.
        """
        transcript = self.known.get(session_id)
        if transcript is None and not is_session_id(session_id):
            raise StoreError(f"cannot append to session {session_id!r}: that cannot be the name of a file")
        is_known = session_id not in self._doubtful and not self.is_refused(session_id)
        if not is_known or (transcript is not None and not self._is_as_it_was_left(transcript)):
            transcript = self._look_again(session_id)
        if transcript is not None and transcript.rest is not Rest.NOTHING:
            self._clear_rest(transcript)
        return transcript

    def _is_as_it_was_left(self, transcript: Transcript) -> bool:
        """Whether no other program moved, replaced, truncated or wrote the file since."""
        try:
            return transcript.was_left_as(self._stamp(transcript.name))
        except FileNotFoundError:
            return False

    def _stamp(self, name: str) -> Stamp:
        return Stamp.of(os.stat(name, dir_fd=self._directory.fd, follow_symlinks=False))

    def is_refused(self, session_id: str) -> bool:
        """Whether another program removed or replaced a session's file. For any thread."""
        return session_id in self.refused or (session_id in self.changed and session_id not in self.known)

    def look_again(self, session_id: str) -> None:
        """Check that a session's file is as it was last used, or is so again.

        Raises:
            StoreCorrupt, SessionUnavailable: it is another file.
        """
        with failing("read", self._path):
            self._ready(session_id)

    def _look_again(self, session_id: str) -> Transcript | None:
        """Examine a session's file again, and make its content durable."""
        before = self.known.get(session_id)
        self._doubtful.add(session_id)  # until it is examined
        self._descriptors.close(session_id + SUFFIX)
        self._directory.sync()
        try:
            transcript = self._examined(session_id, before)
        except FileNotFoundError:
            transcript = None
        except (StoreCorrupt, SchemaTooNew, NotRegular, _OtherContent) as error:
            raise self._refusal(session_id, before, str(error)) from None
        self.refused.pop(session_id, None)
        if transcript is None:
            self.known.pop(session_id, None)
        else:
            if transcript.rest is Rest.NOTHING:
                transcript.rest = Rest.OURS  # so that the next step syncs it
            self._clear_rest(transcript)
            self.known[session_id] = transcript
            self._is_whole_again(transcript)
        self._doubtful.discard(session_id)
        self._on_new_content(session_id)
        return transcript

    def _examined(self, session_id: str, before: Transcript | None) -> Transcript:
        """The current transcript in a session's file; notes a change by another program.

        Raises:
            _OtherContent: the file does not have the entries that were written.
            FileNotFoundError, NotRegular, StoreCorrupt, SchemaTooNew, OSError: as for `examine`.
        """
        try:
            transcript = examine(self._directory, session_id)
        except FileNotFoundError:
            self._note_change(session_id, before, 0)
            raise
        if before is None:
            return transcript
        if transcript.header_lost:
            transcript.head = before.head
        if transcript.head.incarnation != before.head.incarnation:
            raise _OtherContent("it is another session of this name")
        place = before.last_sequence
        if before.last_id and transcript.last_sequence >= place:
            found = next(self._entries_between(transcript, place, place), None)
            if found is None or not (found.entry_id == before.last_id or is_damaged(found.encoded)):
                raise _OtherContent(f"its entry {place} is not the one that was written")
        if transcript.stamp is None or transcript.stamp.size != before.length:
            self._note_change(session_id, before, transcript.last_sequence)
        return transcript

    def _note_change(self, session_id: str, before: Transcript | None, last: int) -> None:
        """Note and log that another program changed a transcript, which now ends at this entry."""
        if before is None:
            return
        log.warning("another program changed a transcript", action="store.changed", session_id=session_id)
        if last < before.last_sequence:
            entries = max(before.last_sequence, self.changed[session_id].entries if session_id in self.changed else 0)
            self.changed[session_id] = Changed(
                f"another program removed or replaced {self._path / before.name} while it was open: it ends at entry "
                f"{last}, and had {entries}",
                entries,
            )

    def _is_whole_again(self, transcript: Transcript) -> None:
        """Forget a change by another program, if all entries are there again."""
        session_id = transcript.head.session_id
        if session_id in self.changed and transcript.last_sequence >= self.changed[session_id].entries:
            del self.changed[session_id]

    def _refusal(self, session_id: str, before: Transcript | None, reason: str) -> StoreError:
        """The error for a file with a session's name that is not its transcript."""
        what = f"cannot use {self._path / session_id}{SUFFIX}"
        if before is None:
            self.refused[session_id] = StoreCorrupt(f"{what}: {reason}")
        else:
            sentence = (
                f"{what}: another program has put something else there while it was open ({reason}). Put back what was "
                "there, and it goes on; or start again, and the session goes on from what is there and its snapshot"
            )
            if session_id not in self.refused:
                log.warning("another program changed a transcript", action="store.changed", session_id=session_id)
            self.refused[session_id] = SessionUnavailable(sentence)
            self.changed[session_id] = Changed(sentence, before.last_sequence)
        return self.refused[session_id]

    def _clear_rest(self, transcript: Transcript) -> None:
        """Truncate the file to the last append; first copy what a crash left behind it (rules R15, R18)."""
        if transcript.rest is Rest.TORN:
            piece = f"{transcript.length}-{secrets.token_hex(4)}-{transcript.name}"
            with Directory(self._path / TORN) as aside:
                _make_room(aside)
                self._directory.copy(transcript.name, aside, piece, start=transcript.length)
            log.warning(
                "an append that was never acknowledged was cut off and set aside",
                action="store.torn",
                session_id=transcript.head.session_id,
                file=piece,
            )
        self._directory.cut(transcript.name, transcript.length)
        transcript.stamp = self._stamp(transcript.name)
        transcript.rest = Rest.NOTHING

    def _ids_between(self, transcript: Transcript | None, first: int, last: int) -> dict[int, str]:
        if transcript is None:
            return {}
        return {entry.sequence: entry.entry_id for entry in self._entries_between(transcript, first, last)}

    def _entries_between(self, transcript: Transcript, first: int, last: int) -> Iterator[StoredEntry]:
        fd = self._directory.open_file(transcript.name)
        try:
            yield from takewhile(lambda entry: entry.sequence <= last, entries_after(fd, transcript, first - 1))
        finally:
            os.close(fd)

    # --- damage ------------------------------------------------------------------------------------------------------

    def check_still_there(self) -> None:
        """Return if the directory is still the one that was opened.

        Raises:
            StoreUnavailable: it was deleted, moved or replaced.
        """
        if identity(self._path) != self._identity:
            raise StoreUnavailable(
                f"cannot use {self._path}: the directory was deleted or replaced while it was open; start again, and "
                "the sessions go on from what is there and from their snapshots"
            )

    def mend(self, session_id: str, candidates: Sequence[StoredEntry]) -> int:
        """Rewrite the file with right entries in place of damaged ones. Returns their number.

        Raises:
            StoreUnavailable: the file could not be written, and is unchanged.
        """
        with failing("mend a file in", self._path):
            transcript = self._ready(session_id)
            if transcript is None:
                return 0
            data = bytearray(self._directory.read(transcript.name, limit=sys.maxsize))
            placing = Placing(transcript.start, 0)
            placed = [*placing.feed(bytes(data[transcript.start :])), *placing.finish(transcript.last_sequence)]
            mended = 0
            for one in reversed([one for one in placed if is_damaged(one.entry.encoded)]):
                begin = data.rfind(b"\n", 0, one.end - 1) + 1
                line = bytes(data[begin : one.end])
                here = (entry for entry in candidates if entry.sequence == one.entry.sequence)
                right = next((entry for entry in here if was_line_of(entry, line)), None)
                if right is not None:
                    before = GOES_ON if line.startswith(GOES_ON) else b""
                    after = MORE_FOLLOWS if line.endswith(MORE_FOLLOWS) else b"\n"
                    data[begin : one.end] = before + lines_of([right])[:-1] + after
                    mended += 1
            if mended:
                self._descriptors.close(transcript.name)
                if failure := self._directory.replace([(transcript.name, partial(bytes, data))])[0]:
                    raise failure
                self.known[session_id] = examine(self._directory, session_id)
        return mended

    # --- the rest ----------------------------------------------------------------------------------------------------

    def find(self, session_id: str) -> Transcript | None:
        """A session's transcript, or None if there is no such session. For any thread.

        Raises:
            StoreCorrupt: another file has had its name since the start.
            SessionUnavailable: another file replaced it.
        """
        if (refused := self.refused.get(session_id)) is not None:
            raise copy(refused)
        return self.known.get(session_id)

    def delete(self, session_id: str) -> bool:
        """Remove a session's file, and what crashes had left at its end, durably. Returns whether there was a session.

        Raises:
            StoreUnavailable: the file could not be removed, or may come back after a power cut; try again.
            StoreCorrupt: another file has its name.
        """
        with failing("delete from", self._path):
            transcript = self.known.get(session_id)
            if session_id in self._doubtful or self.is_refused(session_id):
                transcript = self._look_again(session_id)
            self.changed.pop(session_id, None)  # also if another program was first
            if transcript is None:
                return False
            del self.known[session_id]  # no reader opens it from now on
            self._descriptors.close(transcript.name)
            try:
                self._remove_torn(transcript.name)
                self._directory.remove([transcript.name])
            except OSError:
                if transcript.name in self._directory.names():
                    self.known[session_id] = transcript
                else:
                    self._doubtful.add(session_id)
                raise
        return True

    def open(self, session_id: str) -> tuple[int, Transcript] | None:
        """The open file of a session, which the caller closes; None if there is no such session. For any thread.

        Raises:
            StoreCorrupt, SessionUnavailable: another file has its name.
            ChangedElsewhere: the file has changed since it was last used; call `look_again`.
            OSError: it cannot be opened.
        """
        while (transcript := self.find(session_id)) is not None:
            try:
                fd = self._directory.open_file(transcript.name)
            except (FileNotFoundError, NotRegular) as error:
                if self.known.get(session_id) is transcript:  # otherwise it was deleted just now
                    raise ChangedElsewhere(f"cannot read {self._path / transcript.name}: {error}") from error
                continue
            if self.known.get(session_id) is transcript:  # otherwise a new file of the same name was opened
                if transcript.was_left_as(Stamp.of(os.fstat(fd))):
                    return fd, transcript
                os.close(fd)
                raise ChangedElsewhere(f"cannot read {self._path / transcript.name}: it changes while it is read")
            os.close(fd)
        return None

    def _remove_torn(self, name: str) -> None:
        path = self._path / TORN
        if path.exists():
            with Directory(path) as aside:
                pieces = [piece for piece in aside.names() if piece.split("-", 2)[-1] == name]
                if pieces:
                    aside.remove(pieces)


def _make_room(torn: Directory) -> None:
    """Delete the oldest torn ends, until there is room for one more."""
    pieces = sorted((os.stat(name, dir_fd=torn.fd).st_mtime_ns, name) for name in torn.names())
    sizes = {name: os.stat(name, dir_fd=torn.fd).st_size for _, name in pieces}
    total, doomed = sum(sizes.values()), []
    for number, (_, name) in enumerate(pieces):
        if len(pieces) - number < MAX_TORN_FILES and total <= MAX_TORN_BYTES:
            break
        doomed.append(name)
        total -= sizes[name]
    if doomed:
        torn.remove(doomed)
