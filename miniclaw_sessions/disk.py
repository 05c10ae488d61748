"""Files that survive power cuts. Nothing else syncs.

One protocol, in one order: a temporary file in the same directory, created 0600, written whole, synced; renamed;
the directory synced (rules R1-R5). `Directory.replace` does it for many files at once: write all, sync once, rename
all, sync the directory once, which is five to ten times faster than a sync per file. A failure leaves the old file
whole. Files that only grow are completed by `create`, then opened with `open_file`, written with `write_all` and synced
by `sync_files`; after a failure `cut` removes the new bytes. Everything here blocks: call it in a worker thread, a
whole durable step at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self

from miniclaw_sessions.errors import DirectoryInUse

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The errors that mean a full disk; they pass when space returns."""

SYNC_ONE_BY_ONE = 8
"""Up to this many files are synced one by one; more of them by one sync of their whole file system."""

SYNCS_TOGETHER = sys.platform == "linux"
"""Whether the system has such a sync, and waits for it; otherwise each file is synced."""

LOCK = ".lock"
"""The name of a directory's lock file."""

_TEMPORARY = re.compile(r"\.[0-9a-f]{24}\.tmp")
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_FULL_SYNC = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)  # on a disk that is not Apple's, such as a network's
_CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def sync_file(fd: int, *, data: bool = False) -> None:
    """Return when a file, or its data, is on the disk itself: macOS' fsync leaves it in the drive's cache."""
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
            os.fsync(fd)
    elif data:
        os.fdatasync(fd)
    else:
        os.fsync(fd)


class NotRegular(OSError):
    """The name is a directory, link, pipe, socket or device, not a file; it is not ours to touch."""


class TooLarge(OSError):
    """The file is larger than may be read."""


class FileContent(NamedTuple):
    """The result of reading one name: its bytes, or the error."""

    name: str
    data: bytes | None
    error: OSError | None


class Directory:
    """A directory of ours, held open so that every name is relative to it and none can be redirected.

    Attributes:
        owner: user and group of new files, for root acting for another user; None: the process's own.
    """

    owner: tuple[int, int] | None = None

    def __init__(self, path: Path, *, is_ours: bool = True) -> None:
        """Create it 0700 if needed and open it.

        Args:
            path: where it is.
            is_ours: False for a directory that the user chose: its owner and mode are not checked.

        Raises:
            OSError: it cannot be created or opened, or it is a link.
            PermissionError: it belongs to another user, or others could write to it.
        """
        self.path = path
        if not path.exists():
            _make(path)
        if path.is_symlink():
            raise NotADirectoryError(
                errno.ENOTDIR, f"{path} is a symbolic link; a directory of ours must be a real one"
            )
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if is_ours:
                self._secure()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Directory {self.path}>"

    def close(self) -> None:
        """Let go of the descriptor; safe to call twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Serialize the callers of one directory; it has nothing to do with `DirectoryLock`."""
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self.fd, fcntl.LOCK_UN)

    def names(self) -> list[str]:
        """Every name in it, sorted."""
        return sorted(os.listdir(self.fd))

    def modified(self) -> list[tuple[str, float]]:
        """The name of every regular file in it, and the time of its last write, in seconds since the epoch.

        To the microsecond: nothing is lost when it becomes a `datetime`.
        """
        found = []
        with os.scandir(self.fd) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                    if entry.is_file(follow_symlinks=False):
                        found.append((entry.name, entry.stat(follow_symlinks=False).st_mtime_ns // 1000 / 10**6))
        return found

    def read(self, name: str, *, limit: int, tighten: bool = False) -> bytes:
        """A regular file's bytes; never follows a link, never waits on a pipe (rule R21).

        Args:
            name: the file's name in this directory.
            limit: the most bytes it may have.
            tighten: remove the rights of other users.

        Raises:
            NotRegular: it is something else than a file.
            TooLarge: it has more than `limit` bytes.
            OSError: it cannot be read.
        """
        fd = self.open_file(name)
        try:
            status = os.fstat(fd)
            if status.st_size > limit:
                raise TooLarge(errno.EFBIG, f"{name} has {status.st_size} bytes, more than {limit}")
            if tighten and stat.S_IMODE(status.st_mode) != FILE_MODE:
                os.fchmod(fd, FILE_MODE)
            data = os.read(fd, status.st_size + 1)
            while len(data) < status.st_size and (piece := os.read(fd, status.st_size + 1 - len(data))):
                data += piece  # the file is changing meanwhile
            return data
        finally:
            os.close(fd)

    def open_file(self, name: str, flags: int = os.O_RDONLY) -> int:
        """A descriptor of a regular file that exists; never follows a link, never waits on a pipe (rule R21).

        Args:
            name: the file's name in this directory.
            flags: how to open it, such as `os.O_WRONLY | os.O_APPEND`.

        Raises:
            NotRegular: it is something else than a file.
            OSError: it cannot be opened.
        """
        try:
            fd = os.open(name, flags | _CAREFULLY, dir_fd=self.fd)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # a link; a socket or an idle pipe; a directory
                raise NotRegular(error.errno, f"{name} is not a regular file") from None
            raise
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise NotRegular(errno.EINVAL, f"{name} is not a regular file")
        return fd

    def read_many(self, names: Iterable[str], *, limit: int, tighten: bool = False) -> list[FileContent]:
        """`read` for many names; an error is returned beside its name instead of raised."""
        found = []
        for name in names:
            try:
                found.append(FileContent(name, self.read(name, limit=limit, tighten=tighten), None))
            except OSError as error:
                found.append(FileContent(name, None, error))
        return found

    def modified_ns(self, name: str) -> int:
        """The time of a file's last write, in nanoseconds since the epoch; raises OSError if it is missing."""
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mtime_ns

    def replace(
        self, files: Sequence[tuple[str, Callable[[], bytes]]], *, modified_ns: Mapping[str, int] = MappingProxyType({})
    ) -> list[Exception | None]:
        """Write files durably, each either old or new as a whole, and say for each whether it is safe.

        Args:
            files: name and a function that gives the bytes, called here so that encoding costs no time elsewhere.
            modified_ns: by name, the time of the last write to record, in nanoseconds since the epoch; by default now.

        Returns:
            One outcome per file: None means that the new content survives a power cut; an error means that the old
            file is untouched, or at worst that the new one is in place without being known to be safe.
        """
        return self._put(files, self._rename, modified_ns)

    def create(
        self, files: Sequence[tuple[str, Callable[[], bytes]]], *, modified_ns: Mapping[str, int] = MappingProxyType({})
    ) -> list[Exception | None]:
        """Write new files durably, each there as a whole or not at all, and say for each whether it is safe.

        The same as `replace`, but a name that is taken is a FileExistsError, and its file stays as it is.
        """
        return self._put(files, self._link, modified_ns)

    def _put(
        self,
        files: Sequence[tuple[str, Callable[[], bytes]]],
        name_it: Callable[[str, str], OSError | None],
        modified_ns: Mapping[str, int],
    ) -> list[Exception | None]:
        outcomes: list[Exception | None] = [None] * len(files)
        written: list[tuple[int, str, str]] = []
        sync_each = len(files) <= SYNC_ONE_BY_ONE or not SYNCS_TOGETHER
        for index, (name, encode) in enumerate(files):
            try:
                temporary = self._write_temporary(encode(), sync=sync_each, modified_ns=modified_ns.get(name))
                written.append((index, temporary, name))
            except Exception as error:  # noqa: BLE001 - one file that cannot be written must not stop the others
                outcomes[index] = error
        try:
            if written and not sync_each:
                self._sync_file_system()
            for index, temporary, name in written:
                outcomes[index] = name_it(temporary, name)
            if written:
                self.sync()
        except OSError as error:
            for index, temporary, _ in written:
                outcomes[index] = outcomes[index] or error
                self.discard(temporary)
        # A traceback holds this frame, and so the outcomes: a ring with the bytes of every file, until it is collected.
        return [outcome and outcome.with_traceback(None) for outcome in outcomes]

    def sync_files(self, fds: Sequence[int]) -> list[OSError | None]:
        """Make writes to files of this directory durable, and report for each whether it is safe.

        More than `SYNC_ONE_BY_ONE` are synced together; only then may their descriptors be closed already. After an
        error only the bytes that were safe before are known to be. Its descriptor must not be synced again: the sync
        could report success for bytes that never reached the disk (rule R5). Close it, and `cut` the file.
        """
        if len(fds) <= SYNC_ONE_BY_ONE or not SYNCS_TOGETHER:
            return [_outcome_of(partial(sync_file, data=True), fd) for fd in fds]
        return [_outcome_of(self._sync_file_system)] * len(fds)

    def cut(self, name: str, length: int) -> None:
        """Remove all bytes behind the first `length` of a file, durably (rule R15).

        Raises:
            OSError: it could not be done, or the file is shorter than that.
        """
        fd = self.open_file(name, os.O_WRONLY)
        try:
            size = os.fstat(fd).st_size
            if size < length:  # truncating would fill it up with NULs
                raise OSError(errno.EIO, f"{name} has {size} bytes, not the {length} that were written")
            os.ftruncate(fd, length)
            sync_file(fd)
        finally:
            os.close(fd)

    def open_temporary(self) -> tuple[str, int]:
        """A new temporary file for content that is too long for memory: its name and a descriptor to write to.

        `publish` makes it durable under its final name; until then a crash leaves only a leftover.
        """
        name = _temporary_name()
        fd = os.open(name, _CREATE, FILE_MODE, dir_fd=self.fd)
        os.fchmod(fd, FILE_MODE)  # a umask of 0777 would have taken even the owner's bits
        if self.owner is not None:
            os.fchown(fd, *self.owner)
        return name, fd

    def publish(self, temporary: str, fd: int, name: str) -> None:
        """Sync a temporary file and give it its final name, which must be free; both are durable afterwards.

        Raises:
            FileExistsError: the name is taken; the temporary file is gone.
            OSError: the file is not safe. It is gone, unless only the last sync failed, that of the directory.
        """
        try:
            sync_file(fd)
            os.link(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=False)
        finally:
            self.discard(temporary)
        self.sync()

    def remove(self, names: Iterable[str]) -> int:
        """Delete files durably; a missing name is fine. Returns how many existed.

        Syncs even if there were none: an earlier attempt may have deleted them and failed to sync, and then a power
        cut would bring them back.
        """
        removed = 0
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self.fd)
                removed += 1
        self.sync()
        return removed

    def move(self, name: str, target: Directory, new_name: str) -> None:
        """Move a file to a name that must be free: nothing is ever replaced (rule R18). Both directories are synced.

        Raises:
            FileExistsError: the new name is taken; nothing was moved.
        """
        try:
            os.link(name, new_name, src_dir_fd=self.fd, dst_dir_fd=target.fd, follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self.copy(name, target, new_name)  # the directories are on different file systems
        os.chmod(new_name, FILE_MODE, dir_fd=target.fd)
        target.sync()
        os.unlink(name, dir_fd=self.fd)
        self.sync()

    def take_all(self, source: Directory) -> int:
        """Move all files of a directory on the same file system here, each replacing the file of its name.

        Durable when it returns. If it is cut off, call it again: it moves the files that are left in `source`.
        Returns how many there were.
        """
        names = [name for name in source.names() if source._is_file(name)]
        for name in names:
            os.rename(name, name, src_dir_fd=source.fd, dst_dir_fd=self.fd)
        self.sync()
        source.sync()
        return len(names)

    def copy(self, name: str, target: Directory, new_name: str, *, start: int = 0) -> None:
        """Copy a file, from the byte `start` on, to a name that must be free; the copy is durable.

        Raises:
            FileExistsError: the new name is taken.
            OSError: it could not be copied; there is no copy.
        """
        temporary, written = target.open_temporary()
        try:
            with os.fdopen(self.open_file(name), "rb") as source:
                source.seek(start)
                while piece := source.read(1 << 20):
                    write_all(written, piece)
            target.publish(temporary, written, new_name)
        finally:
            target.discard(temporary)
            os.close(written)

    def remove_temporaries(self) -> int:
        """Delete half-written files that a crash left; only for the holder of the directory's lock."""
        found = sorted(name for name in os.listdir(self.fd) if name[0] == "." and is_temporary(name))
        return self.remove(name for name in found if self._is_file(name))

    def sync(self) -> None:
        """Make creations, renames and deletions in this directory durable."""
        sync_file(self.fd)

    def _secure(self) -> None:
        status = os.fstat(self.fd)
        if status.st_uid != os.geteuid():
            raise PermissionError(
                errno.EPERM,
                f"{self.path} belongs to user {status.st_uid}, not to {os.geteuid()}, who runs this",
            )
        if stat.S_IMODE(status.st_mode) & 0o077:
            os.fchmod(self.fd, DIRECTORY_MODE)

    def _is_file(self, name: str) -> bool:
        return stat.S_ISREG(os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode)

    def _write_temporary(self, data: bytes, *, sync: bool, modified_ns: int | None) -> str:
        name, fd = self.open_temporary()
        try:
            try:
                write_all(fd, data)
                if modified_ns is not None:
                    os.utime(fd, ns=(modified_ns, modified_ns))
                if sync:
                    sync_file(fd)
            finally:
                os.close(fd)
        except BaseException:
            self.discard(name)
            raise
        return name

    def _rename(self, temporary: str, name: str) -> OSError | None:
        try:
            os.rename(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError as error:
            self.discard(temporary)
            return error
        return None

    def _link(self, temporary: str, name: str) -> OSError | None:
        try:
            os.link(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=False)
        except OSError as error:
            return error
        finally:
            self.discard(temporary)
        return None

    def discard(self, name: str) -> None:
        """Delete a temporary file as far as possible."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self.fd)

    def _sync_file_system(self) -> None:
        """One syncfs for all written files; it reports write errors since the descriptor was opened (Linux 5.8)."""
        if _libc.syncfs(self.fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(self.path))


def remove_tree(path: Path) -> None:
    """Delete a directory of ours with all of its content, durably; a missing one is fine."""
    if not path.exists():
        return
    import shutil  # noqa: PLC0415 - loads compression, and is seldom needed

    shutil.rmtree(path)
    with _opened(path.parent) as fd:
        sync_file(fd)


class DirectoryLock:
    """The kernel's lock on a directory: one process at a time, gone with the process, never unlinked (rule R11)."""

    def __init__(self, path: Path) -> None:
        """Take the lock in `path`/.lock.

        Raises:
            DirectoryInUse: another process has it; the error names its pid.
            NotRegular: the file has another name, too; it was not changed.
        """
        self._pid = os.getpid()
        self._fd = os.open(
            path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, FILE_MODE
        )
        try:
            _refuse_other_names(self._fd, path / LOCK)
            os.fchmod(self._fd, FILE_MODE)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._fd, 32)
            os.close(self._fd)
            raise _in_use(path, holder) from None
        except BaseException:
            os.close(self._fd)
            raise
        with contextlib.suppress(OSError):  # the pid is for people; a full disk must not keep us from starting
            os.ftruncate(self._fd, 0)
            write_all(self._fd, b"%d\n" % self._pid)

    def release(self) -> None:
        """Release the lock, even from children that inherited it; safe to call twice, and no child can do it."""
        if self._fd >= 0:
            if os.getpid() == self._pid:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1


def check_unlocked(path: Path) -> None:
    """Raise if a process holds the lock on a directory; changes and creates nothing.

    Raises:
        DirectoryInUse: a process has it; the error names its pid.
        OSError: that cannot be seen.
    """
    try:
        fd = os.open(path / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    with os.fdopen(fd, "rb", buffering=0) as file:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # given back with the descriptor
        except BlockingIOError:
            raise _in_use(path, file.read(32)) from None


def lock_identity(path: Path) -> str:
    """The identity of this directory, by its lock file: a copy of the directory has another one.

    Raises:
        OSError: it cannot be seen.
    """
    status = os.stat(path / LOCK, follow_symlinks=False)
    return f"{status.st_dev:x}-{status.st_ino:x}"


def _in_use(path: Path, holder: bytes) -> DirectoryInUse:
    text = holder.decode("ascii", "replace").strip()
    return DirectoryInUse(str(path), int(text) if text.isdecimal() else None)


def _refuse_other_names(fd: int, path: Path) -> None:
    """Raise unless the file has one name only: otherwise a write would change another program's file."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise NotRegular(errno.EINVAL, f"{path} is no file of its own; remove it, then start again")


def _temporary_name() -> str:
    return f".{os.urandom(12).hex()}.tmp"


def is_temporary(name: str) -> bool:
    """Whether a name is one of our half-written files."""
    return _TEMPORARY.fullmatch(name) is not None


def is_no_space(error: BaseException | None) -> bool:
    """Whether an error means that the disk or its quota is full."""
    return isinstance(error, OSError) and error.errno in NO_SPACE


def _make(path: Path) -> None:
    """Create a directory and its parents, 0700, durably."""
    missing = [path, *(parent for parent in path.parents if not parent.exists())]
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=DIRECTORY_MODE)
            directory.chmod(DIRECTORY_MODE)  # a umask of 0777 would have taken even the owner's bits
        with _opened(directory.parent) as fd:
            sync_file(fd)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write every byte: a short write is silent on a full disk, and must not be taken for success (rule R3)."""
    view = memoryview(data)
    while view:
        written = os.write(fd, view)
        if written <= 0:
            raise OSError(errno.ENOSPC, "the disk took no more bytes")
        view = view[written:]


def _outcome_of(sync: Callable[..., None], *arguments: int) -> OSError | None:
    try:
        sync(*arguments)
    except OSError as error:
        return error
    return None


_libc = ctypes.CDLL(None, use_errno=True)
