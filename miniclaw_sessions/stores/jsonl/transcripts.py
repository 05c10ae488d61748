"""All transcript files of a directory, held open as one: found, appended to, deleted. Everything here blocks.

An append is one write for each session, and one sync for all of them. After a failure nothing is acknowledged: the
descriptor is given up, and the file is cut back to what was safe, at once or at the latest before the next append
(rules R4, R5, R15). A session's file appears under its name only when its first line and first entries are safe in it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from miniclaw_sessions.disk import Directory, DirectoryLock, NotRegular, is_no_space, write_all
from miniclaw_sessions.errors import SchemaTooNew, StoreCorrupt, StoreError
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.protocol.keys import is_session_id
from miniclaw_sessions.stores.appending import entries_to_add
from miniclaw_sessions.stores.base import Append
from miniclaw_sessions.stores.jsonl.descriptors import Descriptors
from miniclaw_sessions.stores.jsonl.failures import failing, unavailable
from miniclaw_sessions.stores.jsonl.file import SUFFIX, Rest, Transcript, entries_after, examine
from miniclaw_sessions.stores.jsonl.finding import find_transcripts, recognize
from miniclaw_sessions.stores.jsonl.lines import header_of, lines_of

TORN = "torn"
"""The directory, beside the transcripts, of what crashes left at their ends."""

log = get_logger(__name__)


class _Written(NamedTuple):
    transcript: Transcript
    fd: int
    length: int
    last_sequence: int


class _New(NamedTuple):
    transcript: Transcript
    data: bytes


class Transcripts:
    """A directory that is open and locked. One thread at a time may change it, others may look at `known` and `find`.

    Attributes:
        known: the sessions by their id; what it says of them is safe.
        refused: what has a session's name and is left alone, with the reason.
    """

    def __init__(self, path: Path) -> None:
        """Take the directory, creating it if needed, and find what is in it. What crashes left behind is set aside.

        Raises:
            ConfigError: it is somebody's directory of other things.
            DirectoryInUse: another process has it.
            SchemaTooNew: a newer version of this program wrote one of the files; nothing was changed.
            StoreCorrupt: of some files it is not known whose they are; `damaged_files` tells which.
            StoreUnavailable: it cannot be read.
        """
        self._path = path
        self._doubtful: set[str] = set()  # sessions of which it is not known what a power cut would leave
        with failing("open", path), ExitStack() as stack:
            recognize(path)
            self._directory = stack.enter_context(Directory(path))
            stack.callback(DirectoryLock(path).release)
            self.known, self.refused = find_transcripts(self._directory)
            self._directory.remove_temporaries()
            self._remove_half_copies()
            self._descriptors = stack.enter_context(Descriptors(self._directory))
            self._stack = stack.pop_all()
        for transcript in self.known.values():
            if transcript.rest is Rest.TORN:
                with suppress(OSError):  # on a full disk it stays where it is, until something is appended
                    self._clear_rest(transcript)

    def close(self) -> None:
        """Let go of everything."""
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
        outcomes |= self._settle(written)
        outcomes |= self._create(new)
        refused = [error for error in outcomes.values() if isinstance(error, OSError)]
        if refused and len(refused) == len(outcomes):
            for session_id in outcomes:
                self._take_back(session_id)
            worst = next((error for error in refused if not is_no_space(error)), refused[0])
            raise unavailable(worst, "append to", self._path) from worst
        return [self._outcome(session_id, failure) for session_id, failure in outcomes.items()]

    def _outcome(self, session_id: str, failure: StoreError | OSError | None) -> StoreError | None:
        """What is told of one session; what the disk refused of it is taken back."""
        if not isinstance(failure, OSError):
            return failure
        self._take_back(session_id)
        return unavailable(failure, f"append to session {session_id} in", self._path)

    def _write(self, item: Append, written: list[_Written], new: list[_New]) -> None:
        """Write one session's new entries to the end of its file, or prepare what its new file is to hold."""
        transcript = self._ready(item.head.session_id)
        entries = entries_to_add(
            item,
            incarnation=transcript.head.incarnation if transcript else None,
            last_sequence=transcript.last_sequence if transcript else 0,
            ids_between=lambda first, last: self._ids_between(transcript, first, last),
        )
        data = lines_of(entries)
        last_sequence = entries[-1].sequence if entries else 0
        if transcript is None:
            header = header_of(item.head)
            length = len(header) + len(data)
            created = Transcript(item.head, start=len(header), length=length, last_sequence=last_sequence)
            new.append(_New(created, header + data))
        elif entries:
            fd = self._descriptors.get(transcript.name)
            transcript.rest = Rest.OURS  # until it is safe
            try:
                write_all(fd, data)
            except OSError:
                self._descriptors.close(transcript.name)
                raise
            written.append(_Written(transcript, fd, transcript.length + len(data), last_sequence))

    def _settle(self, written: Sequence[_Written]) -> dict[str, OSError]:
        """Sync what was written; what is safe then belongs to the transcripts. Returns what is not, by session."""
        failures = {}
        outcomes = self._directory.sync_files([one.fd for one in written]) if written else []
        for one, failure in zip(written, outcomes, strict=True):
            if failure is None:
                one.transcript.length, one.transcript.last_sequence = one.length, one.last_sequence
                one.transcript.rest = Rest.NOTHING
            else:
                failures[one.transcript.head.session_id] = failure
        return failures

    def _create(self, new: Sequence[_New]) -> dict[str, OSError]:
        """Make the files of new sessions. Returns what could not be made, by session."""
        failures = {}
        files = [(one.transcript.name, partial(bytes, one.data)) for one in new]
        for one, failure in zip(new, self._directory.create(files), strict=True):
            session_id = one.transcript.head.session_id
            if failure is None:
                self.known[session_id] = one.transcript
            elif isinstance(failure, OSError):
                self._doubtful.add(session_id)  # it may be there all the same
                failures[session_id] = failure
            else:
                raise failure
        return failures

    def _take_back(self, session_id: str) -> None:
        """After a failure: no longer trust the descriptor, and cut off what is not safe, if the disk lets us."""
        transcript = self.known.get(session_id)
        if transcript is not None and transcript.rest is Rest.OURS:
            self._descriptors.close(transcript.name)
            with suppress(OSError):
                self._clear_rest(transcript)

    # --- before an append --------------------------------------------------------------------------------------------

    def _ready(self, session_id: str) -> Transcript | None:
        """The session's transcript, its file ending where its last append ends; None when there is no such session.

        Raises:
            StoreCorrupt: something else has its name.
            OSError: what lies behind its last append cannot be cut off.
        """
        transcript = self.find(session_id)
        if transcript is None and not is_session_id(session_id):
            raise StoreError(f"cannot append to session {session_id!r}: that cannot be the name of a file")
        if session_id in self._doubtful or (transcript is not None and not self._is_as_it_was_left(transcript)):
            transcript = self._look_again(session_id)
        if transcript is not None and transcript.rest is not Rest.NOTHING:
            self._clear_rest(transcript)
        return transcript

    def _is_as_it_was_left(self, transcript: Transcript) -> bool:
        """Whether nobody moved, replaced, cut or wrote the file meanwhile."""
        try:
            status = os.stat(transcript.name, dir_fd=self._directory.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if self._descriptors.inode(transcript.name) not in (None, status.st_ino):
            return False
        if transcript.rest is Rest.NOTHING:
            return status.st_size == transcript.length
        return status.st_size >= transcript.length

    def _look_again(self, session_id: str) -> Transcript | None:
        """Find out anew what is in a session's file, and make that safe."""
        self._doubtful.add(session_id)  # until it is known
        if self.known.pop(session_id, None) is not None:
            log.warning("another program changed a transcript", action="store.changed", session_id=session_id)
        self._descriptors.close(session_id + SUFFIX)
        self._directory.sync()
        try:
            transcript = examine(self._directory, session_id)
        except FileNotFoundError:
            self._doubtful.discard(session_id)
            return None
        except (StoreCorrupt, SchemaTooNew, NotRegular) as error:
            self.refused[session_id] = str(error)
            return self.find(session_id)
        if transcript.rest is Rest.NOTHING:
            transcript.rest = Rest.OURS  # so that it is synced
        self._clear_rest(transcript)
        self._doubtful.discard(session_id)
        self.known[session_id] = transcript
        return transcript

    def _clear_rest(self, transcript: Transcript) -> None:
        """Cut off what lies behind the last append, and keep a copy of it if a crash left it (rules R15, R18)."""
        if transcript.rest is Rest.TORN:
            piece = f"{transcript.length}-{secrets.token_hex(4)}-{transcript.name}"
            with Directory(self._path / TORN) as aside:
                self._directory.copy(transcript.name, aside, piece, start=transcript.length)
            log.warning(
                "an append that was never acknowledged was cut off and set aside",
                action="store.torn",
                session_id=transcript.head.session_id,
                file=piece,
            )
        self._directory.cut(transcript.name, transcript.length)
        transcript.rest = Rest.NOTHING

    def _ids_between(self, transcript: Transcript | None, first: int, last: int) -> dict[int, str]:
        if transcript is None:
            return {}
        fd = self.open_to_read(transcript.name)
        try:
            entries = takewhile(lambda entry: entry.sequence <= last, entries_after(fd, transcript, first - 1))
            return {entry.sequence: entry.entry_id for entry in entries}
        finally:
            os.close(fd)

    # --- the rest ----------------------------------------------------------------------------------------------------

    def find(self, session_id: str) -> Transcript | None:
        """A session's transcript, or None when there is no such session; for any thread.

        Raises:
            StoreCorrupt: something else has its name, and nobody knows what it was.
        """
        if (reason := self.refused.get(session_id)) is not None:
            raise StoreCorrupt(f"cannot use {self._path / session_id}{SUFFIX}: {reason}")
        return self.known.get(session_id)

    def delete(self, session_id: str) -> bool:
        """Remove a session's file, and what crashes had left at its end, durably; whether there was a session.

        Raises:
            StoreUnavailable: it could not be removed, or may come back; try again.
            StoreCorrupt: something else has its name.
        """
        with failing("delete from", self._path):
            transcript = self.find(session_id)
            if session_id in self._doubtful:
                transcript = self._look_again(session_id)
            if transcript is None:
                return False
            del self.known[session_id]  # nobody begins to read it any more
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

    def open_to_read(self, name: str, flags: int = os.O_RDONLY) -> int:
        """A descriptor to read a file, in the form that `open` wants its opener; for any thread."""
        return self._directory.open_file(name, flags)

    def _remove_half_copies(self) -> None:
        """Remove what a crash left of copies that were being made of torn ends; these still are where they were."""
        if (self._path / TORN).exists():
            with suppress(OSError), Directory(self._path / TORN) as aside:
                aside.remove_temporaries()

    def _remove_torn(self, name: str) -> None:
        path = self._path / TORN
        if path.exists():
            with Directory(path) as aside:
                pieces = [piece for piece in aside.names() if piece.split("-", 2)[-1] == name]
                if pieces:
                    aside.remove(pieces)
