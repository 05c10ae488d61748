"""All transcript files of a directory, held open as one: found, appended to, mended, deleted. Everything here blocks.

An append is one write for each session, and one sync for all of them. After a failure nothing is acknowledged: the
descriptor is given up, and the file is cut back to what was safe, at once or at the latest before the next append
(rules R4, R5, R15). A session's file appears under its name only when its first line and first entries are safe in it.

Nothing that has a session's name is ever taken for "no such session", and nothing that is not ours is touched.
"""

from __future__ import annotations

import errno
import os
import secrets
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, Self

from miniclaw_sessions import disk
from miniclaw_sessions.disk import (
    SYNC_ONE_BY_ONE,
    Directory,
    DirectoryLock,
    NotRegular,
    is_no_space,
    write_all,
)
from miniclaw_sessions.errors import ConfigError, SchemaTooNew, StoreCorrupt, StoreError, StoreUnavailable
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.protocol.keys import is_session_id
from miniclaw_sessions.stores.appending import entries_to_add
from miniclaw_sessions.stores.base import Append, StoredEntry, is_damaged
from miniclaw_sessions.stores.jsonl.failures import failing, unavailable
from miniclaw_sessions.stores.jsonl.file import SUFFIX, Placing, Rest, Transcript, entries_after, examine
from miniclaw_sessions.stores.jsonl.lines import GOES_ON, MORE_FOLLOWS, NotOurs, header_of, lines_of, was_line_of
from miniclaw_sessions.stores.reading import identity

TORN = "torn"
"""The directory, beside the transcripts, of what crashes left at their ends."""

MAX_TORN_FILES = 1_000
MAX_TORN_BYTES = 256 * 1024 * 1024
"""So much of what was never acknowledged is kept; the oldest goes first."""

MAX_DESCRIPTORS = 128
"""How many files are kept open to append to; the one that was not used for longest is closed first."""

_TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)


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
            self._identity = identity(path)
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
            if len(written) >= MAX_DESCRIPTORS and not disk.SYNCS_TOGETHER:  # before the first of them is closed
                outcomes |= self._settle(written)
                written.clear()
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
                _make_room(aside)
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
        fd = self._directory.open_file(transcript.name)
        try:
            entries = takewhile(lambda entry: entry.sequence <= last, entries_after(fd, transcript, first - 1))
            return {entry.sequence: entry.entry_id for entry in entries}
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
        """Write the file anew, with right entries in the place of damaged ones; how many these were.

        Raises:
            StoreUnavailable: it could not be written; it is as it was.
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

    def open(self, session_id: str) -> tuple[int, Transcript] | None:
        """A session's file, to be read and closed; None when there is no such session. For any thread.

        Raises:
            StoreCorrupt: something else has its name, and nobody knows what it was.
            OSError: it cannot be opened.
        """
        while (transcript := self.find(session_id)) is not None:
            try:
                fd = self._directory.open_file(transcript.name)
            except FileNotFoundError:
                if self.known.get(session_id) is transcript:  # or else it was deleted just now
                    raise
                continue
            if self.known.get(session_id) is transcript:  # or else another one was opened, of the same name
                return fd, transcript
            os.close(fd)
        return None

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


def _make_room(torn: Directory) -> None:
    """Delete the oldest of what crashes left, until there is room for one more."""
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


# --- what is in a directory ------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """What a directory holds.

    Attributes:
        known: the sessions, by their id.
        refused: what has a session's name and is to be left alone, with the reason.
    """

    known: dict[str, Transcript]
    refused: dict[str, str]


def recognize(path: Path) -> None:
    """Refuse to make somebody's other directory private, and ours.

    Raises:
        ConfigError: it holds other things.
    """
    names = os.listdir(path) if path.is_dir() else []
    if names and ".lock" not in names and not any(session_ids_of(names)):
        raise ConfigError(
            f"cannot open {path} as a store: it is neither empty nor a directory of transcripts; "
            "choose another one, or one that does not exist yet"
        )


def find_transcripts(directory: Directory) -> Found:
    """Look at every file.

    Raises:
        SchemaTooNew: a newer version of this program wrote them.
        StoreCorrupt: of some files it is not known whose they are.
        OSError: a file cannot be read: it is not damaged, and not absent either (rule R20).
    """
    names = directory.names()
    found = Found({}, {})
    damaged: list[str] = []
    too_new: list[str] = []
    for session_id in session_ids_of(names):
        try:
            found.known[session_id] = examine(directory, session_id)
        except (NotRegular, NotOurs) as error:
            found.refused[session_id] = str(error)
        except StoreCorrupt as error:
            damaged.append(f"{session_id}{SUFFIX} is damaged: {error}")
        except SchemaTooNew as error:
            too_new.append(f"cannot open {directory.path / session_id}{SUFFIX}: {error}")
            found.refused[session_id] = str(error)
    if too_new and not found.known:  # among files of ours, one that says so is damaged: it alone is refused
        raise SchemaTooNew(too_new[0])
    if damaged:
        more = f", and {len(damaged) - 1} more are" if len(damaged) > 1 else ""
        raise StoreCorrupt(f"cannot open {directory.path}: {damaged[0]}{more}; set it aside and open again")
    _report(found, names)
    return found


def damaged_files(path: Path) -> list[Path]:
    """The files that keep the store from opening because it is not known whose they are.

    Raises:
        StoreUnavailable: the directory or a file cannot be read.
    """
    damaged = []
    if path.is_dir():
        with failing("read", path), Directory(path, is_ours=False) as directory:
            for session_id in session_ids_of(directory.names()):
                try:
                    examine(directory, session_id)
                except (NotRegular, NotOurs, SchemaTooNew):
                    continue
                except StoreCorrupt:
                    damaged.append(path / (session_id + SUFFIX))
    return damaged


def session_ids_of(names: Sequence[str]) -> Iterator[str]:
    """The sessions whose files these names could be."""
    for name in names:
        session_id = name.removesuffix(SUFFIX)
        if session_id != name and is_session_id(session_id):
            yield session_id


def _report(found: Found, names: Sequence[str]) -> None:
    for session_id, transcript in found.known.items():
        if transcript.header_lost:
            log.error(
                "the first line of a transcript is damaged; its name and its entries tell whose it is",
                action="store.header_lost",
                session_id=session_id,
            )
    if ignored := [name for name in names if name.endswith(SUFFIX) and name.removesuffix(SUFFIX) not in found.known]:
        log.warning("not the files of sessions of ours; left alone", action="store.ignored", files=ignored)


# --- descriptors to append with --------------------------------------------------------------------------------------


class _Open(NamedTuple):
    fd: int
    inode: int


class Descriptors:
    """At most `MAX_DESCRIPTORS` files of one directory, open for appending; a context manager that closes them."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._opened: OrderedDict[str, _Open] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._opened):
            self.close(name)

    def get(self, name: str) -> int:
        """The descriptor of a file that exists.

        Raises:
            NotRegular: it is something else than a file.
            OSError: it cannot be opened.
        """
        opened = self._opened.get(name)
        if opened is None:
            while len(self._opened) >= MAX_DESCRIPTORS:
                self._close_oldest()
            fd = self._open(name)
            opened = self._opened[name] = _Open(fd, os.fstat(fd).st_ino)
        self._opened.move_to_end(name)
        return opened.fd

    def _open(self, name: str) -> int:
        """Open a file; where the process may open no more of them, one that was not used for longest is closed."""
        while True:
            try:
                return self._directory.open_file(name, os.O_WRONLY | os.O_APPEND)
            except OSError as error:
                few = not disk.SYNCS_TOGETHER or len(self._opened) <= SYNC_ONE_BY_ONE
                if error.errno not in _TOO_MANY_OPEN or few:
                    raise
                self._close_oldest()

    def _close_oldest(self) -> None:
        os.close(self._opened.popitem(last=False)[1].fd)

    def inode(self, name: str) -> int | None:
        """Which file is open under this name; None when none is."""
        opened = self._opened.get(name)
        return None if opened is None else opened.inode

    def close(self, name: str) -> None:
        """Give a descriptor up; it is fine if there is none."""
        opened = self._opened.pop(name, None)
        if opened is not None:
            os.close(opened.fd)
