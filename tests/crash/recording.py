"""Writing down what this process does to the files below a directory, call by call.

The calls are those of `os` and the one `syncfs` of `disk`. They are carried out, except for syncs, which are only
noted: nothing here is to survive a real cut. What writes past them, as SQLite does with its own C code, cannot be
recorded; leaving the recorder compares its account with the directory, so that nothing escapes it unnoticed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import RLock
from types import SimpleNamespace, TracebackType
from typing import Any, NamedTuple, Self
from unittest.mock import patch

from miniclaw_sessions import disk
from tests.crash.acknowledgements import Acknowledgements
from tests.crash.faulty_disk import (
    ROOT,
    Disk,
    Mark,
    Name,
    Operation,
    Rename,
    State,
    Sync,
    SyncAll,
    Truncate,
    Unname,
    Write,
    contents,
    disk_after,
    read_state,
)

_REAL = {
    name: getattr(os, name)
    for name in (
        *("open", "close", "write", "pwrite", "ftruncate", "fsync", "fdatasync"),
        *("mkdir", "rmdir", "rename", "replace", "link", "unlink", "remove"),
    )
}


class Recording(NamedTuple):
    """What was done, one operation after the other, to a tree that was safe."""

    start: State
    operations: list[Operation]

    def at(self, point: int) -> Disk:
        """The disk after so many operations."""
        return disk_after(self.start, self.operations[:point])

    def marks(self, point: int) -> list[Mark]:
        """What had been told by then."""
        return [one for one in self.operations[:point] if isinstance(one, Mark)]


class _Opened(NamedTuple):
    node: int
    inode: int


class Recorder:
    """Records while it is entered; a context manager. Threads may work below the directory, other processes not."""

    def __init__(self, root: Path) -> None:
        start = read_state(root)
        self.recording = Recording(start, [])
        self._root = root.resolve()
        self._disk = Disk.holding(start)
        self._opened: dict[int, _Opened] = {}
        self._lock = RLock()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        replacements: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "close": self._close,
            "write": self._write,
            "pwrite": self._pwrite,
            "ftruncate": self._ftruncate,
            "fsync": self._fsync,
            "fdatasync": self._fsync,
            "mkdir": self._mkdir,
            "rmdir": self._unlink_with("rmdir"),
            "rename": self._rename_with("rename"),
            "replace": self._rename_with("replace"),
            "link": self._link,
            "unlink": self._unlink_with("unlink"),
            "remove": self._unlink_with("remove"),
        }
        for name, replacement in replacements.items():
            self._stack.enter_context(patch.object(os, name, replacement))
        self._stack.enter_context(patch.object(disk, "_libc", SimpleNamespace(syncfs=self._syncfs)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if error is None:
            assert contents(self._disk.now()) == contents(read_state(self._root)), "something was not recorded"

    def mark(self, line: dict[str, Any]) -> None:
        """Somebody was told this, now."""
        with self._lock:
            self._note(Mark(line))

    # --- where something is ------------------------------------------------------------------------------------------

    def _note(self, operation: Operation) -> None:
        self._disk.apply(operation)
        self.recording.operations.append(operation)

    def _place(self, path: Any, dir_fd: int | None) -> tuple[int, str] | None:
        """The directory's node and the name in it; None when it is not below our directory. The root has no name."""
        if dir_fd is not None:
            opened = self._opened_as(dir_fd)
            return None if opened is None else (opened, os.fspath(path))
        absolute = Path(os.path.abspath(os.fspath(path)))  # noqa: PTH100 - links must not be followed
        if not absolute.is_relative_to(self._root):
            return None
        *parents, name = ("", *absolute.relative_to(self._root).parts)
        node = ROOT
        for parent in parents[1:]:
            node = self._disk.folder(node).names[parent]
        return node, name

    def _node(self, place: tuple[int, str]) -> int | None:
        directory, name = place
        return self._disk.folder(directory).names.get(name) if name else directory

    def _opened_as(self, fd: int) -> int | None:
        """The node of a descriptor, unless C code has closed it and it belongs to something else meanwhile."""
        opened = self._opened.get(fd)
        return opened.node if opened is not None and os.fstat(fd).st_ino == opened.inode else None

    def _new_node(self) -> int:
        return max(self._disk.nodes) + 1

    # --- files -------------------------------------------------------------------------------------------------------

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        with self._lock:
            place = self._place(path, dir_fd)
            fd: int = _REAL["open"](path, flags, mode, dir_fd=dir_fd)
            self._opened.pop(fd, None)
            if place is not None:
                node = self._node(place)
                if node is None:
                    node = self._new_node()
                    self._note(Name(*place, node))
                elif flags & os.O_TRUNC:
                    self._note(Truncate(node, 0))
                self._opened[fd] = _Opened(node, os.fstat(fd).st_ino)
            return fd

    def _close(self, fd: int) -> None:
        with self._lock:
            self._opened.pop(fd, None)
            _REAL["close"](fd)

    def _write(self, fd: int, data: Any) -> int:
        with self._lock:
            written: int = _REAL["write"](fd, data)
            if (node := self._opened_as(fd)) is not None and written:
                offset = os.lseek(fd, 0, os.SEEK_CUR) - written
                self._note(Write(node, offset, bytes(data)[:written]))
            return written

    def _pwrite(self, fd: int, data: Any, offset: int) -> int:
        with self._lock:
            written: int = _REAL["pwrite"](fd, data, offset)
            if (node := self._opened_as(fd)) is not None and written:
                self._note(Write(node, offset, bytes(data)[:written]))
            return written

    def _ftruncate(self, fd: int, length: int) -> None:
        with self._lock:
            _REAL["ftruncate"](fd, length)
            if (node := self._opened_as(fd)) is not None:
                self._note(Truncate(node, length))

    def _fsync(self, fd: int) -> None:
        with self._lock:
            if (node := self._opened_as(fd)) is not None:
                self._note(Sync(node))

    def _syncfs(self, fd: int) -> int:
        with self._lock:
            assert self._opened_as(fd) is not None, "another file system was synced"
            self._note(SyncAll())
            return 0

    # --- names -------------------------------------------------------------------------------------------------------

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        with self._lock:
            place = self._place(path, dir_fd)
            _REAL["mkdir"](path, mode, dir_fd=dir_fd)
            if place is not None:
                self._note(Name(*place, self._new_node(), is_directory=True))

    def _link(self, source: Any, target: Any, *, src_dir_fd: int, dst_dir_fd: int, follow_symlinks: bool) -> None:
        with self._lock:
            old, new = self._place(source, src_dir_fd), self._place(target, dst_dir_fd)
            _REAL["link"](source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=follow_symlinks)
            if old is not None and new is not None:
                node = self._node(old)
                assert node is not None
                self._note(Name(*new, node))

    def _rename_with(self, call: str) -> Callable[..., None]:
        def rename(source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
            with self._lock:
                old, new = self._place(source, src_dir_fd), self._place(target, dst_dir_fd)
                _REAL[call](source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
                if old is not None or new is not None:
                    assert old is not None, "renamed from elsewhere: not modelled"
                    assert new is not None, "renamed to elsewhere: not modelled"
                    assert old[0] == new[0], "renamed from one directory to another: not modelled"
                    self._note(Rename(*old, new[1]))

        return rename

    def _unlink_with(self, call: str) -> Callable[..., None]:
        def unlink(path: Any, *, dir_fd: int | None = None) -> None:
            with self._lock:
                place = self._place(path, dir_fd)
                _REAL[call](path, dir_fd=dir_fd)
                if place is not None:
                    self._note(Unname(*place))

        return unlink


class Marks(Acknowledgements):
    """Acknowledgements that become marks in a recording instead of lines in a file."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def write(self, kind: str, **fields: Any) -> None:
        """Add a mark."""
        self._recorder.mark({"kind": kind, **fields})


@contextmanager
def without_syncs() -> Iterator[None]:
    """Let syncs do nothing: for what only looks at a crash state, and is thrown away."""
    with (
        patch.object(os, "fsync", lambda _: None),
        patch.object(os, "fdatasync", lambda _: None),
        patch.object(disk, "_libc", SimpleNamespace(syncfs=lambda _: 0)),
    ):
        yield
