"""File systems made for one test, and the power cut.

All mounts lie in one directory, and vanish with it when the test run ends, however it ends: together with the image
files, and with the loop devices, which clear themselves when they are unmounted.

A power cut is the file system's own shutdown call in the mode that writes nothing more, not even its log: from then on
the image has exactly what had been made durable. Unmounting and mounting it again is what the next boot does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

SHUTDOWN = 0x8004587D  # FS_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN: _IOR('X', 125, __u32)
NO_LOG_FLUSH = struct.pack("I", 2)
KINDS = ("ext4", "ext4-noauto_da_alloc", "xfs")
"""ext4 by default hides a missing sync before a rename; with `noauto_da_alloc` it does not."""

MEBIBYTE = 1024 * 1024
GIBIBYTE = 1024 * MEBIBYTE
_IMAGE_BYTES = {"ext4": 160 * MEBIBYTE, "xfs": 320 * MEBIBYTE}  # mkfs.xfs makes none below 300 MB; both are sparse
_MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"),
    "xfs": ("mkfs.xfs", "-q"),
}
_OPTIONS = {"ext4": "defaults", "ext4-noauto_da_alloc": "noauto_da_alloc", "xfs": "nouuid"}
_STOP_LIMIT_S = 10.0


def reason_not_to_mount(*kinds: str) -> str | None:
    """Why these kinds of file systems cannot be made here (none: a tmpfs), or None when they can be tried."""
    if not sys.platform.startswith("linux"):
        return "this is not Linux"
    if os.geteuid() != 0:
        return "needs root"
    programs = [
        "mount",
        "umount",
        "mountpoint",
        *(["losetup"] if kinds else []),
        *(_MAKE[kind.partition("-")[0]][0] for kind in kinds),
    ]
    missing = [program for program in dict.fromkeys(programs) if shutil.which(program) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    try:
        with MountSpace():
            pass
    except RuntimeError as error:
        return f"nothing can be mounted: {' '.join(str(error).split())}"
    try:
        os.close(os.open("/dev/loop-control" if kinds else os.devnull, os.O_RDWR))
    except OSError as error:
        return f"no loop devices: {error.strerror}"
    return None


class Space:
    """A directory for mounts.

    Attributes:
        path: the directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def new_directory(self, name: str) -> Path:
        """An empty directory, 0700, under a name of its own."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.path))

    @contextlib.contextmanager
    def memory(self, size: int, at: Path | None = None) -> Iterator[Path]:
        """A tmpfs of `size` bytes, mounted over the directory `at` or over a new one."""
        path = at or self.new_directory("tmpfs")
        run("mount", "-t", "tmpfs", "-o", f"mode=0700,size={size}", "tmpfs", str(path))
        try:
            yield path
        finally:
            run("umount", str(path))


class MountSpace(Space):
    """A directory in memory for the mounts of one test run; a context manager.

    A guardian process removes the directory and every mount in it when the block ends, and also when this process is
    killed before that.
    """

    def __init__(self) -> None:
        """Nothing is mounted yet."""

    def __enter__(self) -> Self:
        self.path = Path(tempfile.mkdtemp(prefix="crash-tests-"))
        self._guardian = subprocess.Popen(
            ["sh", "-c", _GUARD, "guardian", str(self.path)], stdin=subprocess.PIPE, start_new_session=True
        )
        try:
            run("mount", "-t", "tmpfs", "-o", "mode=0700,size=4g", "tmpfs", str(self.path))
            run("mount", "--make-private", str(self.path))
        except BaseException:
            self._dismiss()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._dismiss()

    def _dismiss(self) -> None:
        assert self._guardian.stdin is not None
        self._guardian.stdin.close()
        self._guardian.wait(timeout=60)
        assert not self.path.exists(), f"mounts were left behind in {self.path}"


# Waits for the end of its input. Lazily: what a writer that is being killed still holds must not stop it.
_GUARD = """cat > /dev/null; mountpoint -q "$1" && umount --recursive --lazy "$1"; rmdir "$1" """


def run(*command: str) -> str:
    """Run a command; what it printed.

    Raises:
        RuntimeError: it failed; the text has its output.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


class LoopFilesystem:
    """A file system in a file, whose power can be cut; a context manager.

    Args:
        space: where it is made.
        kind: one of `KINDS`.
        size: its bytes, of which only those take space that are used.

    Attributes:
        path: its root directory.
    """

    def __init__(self, space: Space, kind: str, *, size: int | None = None) -> None:
        self.kind = kind
        self._size = _IMAGE_BYTES[kind.partition("-")[0]] if size is None else size
        self._space = space
        self._type = kind.partition("-")[0]

    def __repr__(self) -> str:
        return f"<LoopFilesystem {self.kind}>"

    def __enter__(self) -> Self:
        self._image, self.path = self._new_image(), self._space.new_directory(f"{self.kind}-mounted")
        with self._image.open("wb") as image:
            image.truncate(self._size)
        run(*_MAKE[self._type], str(self._image))
        self._mount()
        return self

    def __exit__(self, *_: object) -> None:
        self._unmount()
        self._image.unlink()

    def shut_down(self) -> None:
        """The cut: from now on nothing reaches the image, and what had not reached it is gone."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, SHUTDOWN, NO_LOG_FLUSH)
        finally:
            os.close(fd)

    def remount(self) -> None:
        """The next boot: the file system replays its own log and is there again."""
        self._unmount()
        self._mount()

    def sync(self) -> None:
        """Make everything on it durable, which is what time alone would do."""
        run("sync", "--file-system", str(self.path))

    def _new_image(self) -> Path:
        return self._space.new_directory(self.kind) / "image"

    def _mount(self) -> None:
        """Always with a new loop device: another mount namespace may still have a copy of the mount that was cut."""
        device = run("losetup", "--find", "--show", str(self._image))
        try:
            run("mount", "-o", _OPTIONS[self.kind], device, str(self.path))
        finally:
            run("losetup", "--detach", device)  # takes effect when nothing has it mounted any more

    def _unmount(self) -> None:
        run("umount", str(self.path))


class FailingFilesystem(LoopFilesystem):
    """A file system in a sparse file, for which there may be less space than it needs.

    Then it takes what is written to it, and fails when that is to be synced, as a disk does that breaks.
    """

    def fail(self) -> None:
        """From now on no block of the image can be written that was not written before."""
        status = os.statvfs(self._image.parent)
        self._resize((status.f_blocks - status.f_bfree) * status.f_frsize)

    def heal(self) -> None:
        """There is space again. What failed meanwhile stays lost."""
        self._resize(GIBIBYTE)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        run("umount", "--lazy", str(self._image.parent))

    def _new_image(self) -> Path:
        backing = self._space.new_directory(f"{self.kind}-backing")
        run("mount", "-t", "tmpfs", "-o", f"mode=0700,size={GIBIBYTE}", "tmpfs", str(backing))
        return backing / "image"

    def _resize(self, size: int) -> None:
        run("mount", "-o", f"remount,size={size}", str(self._image.parent))


def stop(pid: int) -> None:
    """Stop every thread of a process, and return when they have stopped, or when it has ended.

    Without this the shutdown would race with a sync that is under way: it can return success to a writer whose data
    never arrived, which no real power cut does.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _STOP_LIMIT_S
    while not _has_stopped(pid):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} did not stop within {_STOP_LIMIT_S} s")
        time.sleep(0.001)


def _has_stopped(pid: int) -> bool:
    """Whether all threads are stopped, traced or gone."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return True
    for task in tasks:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "TtZX":
                return False
    return True
