"""Short writes, for real: the kernel writes a part of what was asked, and says so.

strace can only make a call claim that it wrote something. So this file, run as a program, traces a process itself: at
the N-th write to a file in a directory it halves the number of bytes before the kernel sees it, and puts the register
right afterwards. `shortened` is the side of the test.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SHORT = "a short write"
PROJECT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0


@contextmanager
def shortened(pid: int, trace: Path, directory: Path, *, number: int, lasting: bool) -> Iterator[None]:
    """Shorten the `number`-th write of a process to a file in a directory; if `lasting`, each one from then on.

    From before this returns until the block ends, or the process. The trace has a JSON line for each write from the
    first one that was shortened on.
    """
    tracer = subprocess.Popen(
        [sys.executable, "-m", __name__, str(pid), str(trace), str(directory), str(number), "lasting" * lasting],
        stdout=subprocess.PIPE,
        cwd=PROJECT,
        start_new_session=True,
    )
    assert tracer.stdout is not None
    try:
        said = tracer.stdout.readline()
        assert said == b"attached\n", f"the tracer did not attach: {said!r}; its error is above"
        yield
    finally:
        tracer.terminate()  # the kernel lets go of what it traced
        tracer.wait(timeout=LIMIT_S)
        tracer.stdout.close()


def count_shortened(trace: Path) -> int:
    """How many writes were shortened."""
    return sum(write["asked"] != write["given"] for write in _writes(trace))


def not_written_on(trace: Path) -> list[str]:
    """The files to which the rest of a shortened write was not written next."""
    rests: dict[str, int] = {}
    found = []
    for write in _writes(trace):
        path, asked = write["path"], write["asked"]
        if rests.pop(path, asked) != asked:
            found.append(path)
        if rest := asked - write["given"]:
            rests[path] = rest
    return [*found, *rests]


def _writes(trace: Path) -> list[dict[str, Any]]:
    if not trace.exists():
        return []
    lines = trace.read_text(errors="replace").splitlines()
    return [json.loads(line) for line in lines if re.match(r'\{"path"', line)]


# --- the program -----------------------------------------------------------------------------------------------------

_SYSCALL, _GETREGSET, _SETREGSET, _SEIZE, _INTERRUPT, _LISTEN, _GET_SYSCALL_INFO = (
    *(24, 0x4204, 0x4205, 0x4206, 0x4207, 0x4208, 0x420E),
)
_GOOD_SYSCALL_STOPS, _TRACE_CLONES, _GENERAL_REGISTERS, _EVENT_STOP, _EVERY_THREAD = 1, 8, 1, 128, 0x40000000
_ENTRY = 1
_GROUP_STOPS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_MACHINES = {"x86_64": ({1, 18}, 12), "aarch64": ({64, 68}, 2)}
"""For each machine: the numbers of `write` and `pwrite64`, and the register that holds how many bytes to write."""

_libc = ctypes.CDLL(None, use_errno=True)


class _Registers(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint64 * 64)]


class _Span(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class _SystemCall(ctypes.Structure):
    _fields_ = [
        ("operation", ctypes.c_uint8),
        ("padding", ctypes.c_uint8 * 3),
        ("architecture", ctypes.c_uint32),
        ("instruction", ctypes.c_uint64),
        ("stack", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 6),
    ]


def reason_not_to_shorten() -> str | None:
    """Why writes cannot be shortened here, or None when they can."""
    machine = platform.machine()
    return None if machine in _MACHINES else f"the registers of {machine} are not known"


class Shortener:
    """Traces every thread of one process until it ends."""

    def __init__(self, pid: int, trace: Path, directory: str, *, number: int, lasting: bool) -> None:
        self._pid = pid
        self._trace = trace.open("w", buffering=1)
        self._directory = directory
        self._number = number
        self._lasting = lasting
        self._seen = 0
        self._asked: dict[int, int] = defaultdict(int)
        self._calls, self._length_register = _MACHINES[platform.machine()]

    def attach(self) -> None:
        """To every thread there is; those that come later are traced from their beginning."""
        for task in Path(f"/proc/{self._pid}/task").iterdir():
            _ptrace(_SEIZE, int(task.name), 0, _GOOD_SYSCALL_STOPS | _TRACE_CLONES)
            _ptrace(_INTERRUPT, int(task.name))

    def run(self) -> None:
        """Until the process has ended."""
        while True:
            try:
                thread, status = os.waitpid(-1, _EVERY_THREAD)
            except ChildProcessError:
                return
            if os.WIFSTOPPED(status):
                try:
                    self._go_on(thread, os.WSTOPSIG(status), status >> 16)
                except ProcessLookupError:
                    continue  # it was killed just now

    def _go_on(self, thread: int, stopped_by: int, event: int) -> None:
        if stopped_by == signal.SIGTRAP | 0x80:
            self._system_call(thread)
            _ptrace(_SYSCALL, thread)
        elif event == _EVENT_STOP and stopped_by in _GROUP_STOPS:
            _ptrace(_LISTEN, thread)
        else:
            _ptrace(_SYSCALL, thread, 0, 0 if event else stopped_by)

    def _system_call(self, thread: int) -> None:
        call = _SystemCall()
        _ptrace(_GET_SYSCALL_INFO, thread, ctypes.sizeof(call), ctypes.addressof(call))
        if call.operation != _ENTRY:
            if asked := self._asked.pop(thread, 0):
                self._set_length(thread, asked)  # a program may rely on its registers
            return
        if call.number not in self._calls:
            return
        path, asked = _path_of(self._pid, call.arguments[0]), call.arguments[2]
        if not path.startswith(self._directory):
            return
        self._seen += asked > 1
        if self._seen < self._number:
            return
        is_struck = asked > 1 and (self._lasting or self._seen == self._number)
        given = asked // 2 if is_struck else asked
        if is_struck:
            self._asked[thread] = asked
            self._set_length(thread, given)
        self._trace.write(json.dumps({"path": path, "asked": asked, "given": given}) + "\n")

    def _set_length(self, thread: int, length: int) -> None:
        registers = _Registers()
        span = _Span(ctypes.addressof(registers), ctypes.sizeof(registers))
        _ptrace(_GETREGSET, thread, _GENERAL_REGISTERS, ctypes.addressof(span))
        registers.words[self._length_register] = length
        _ptrace(_SETREGSET, thread, _GENERAL_REGISTERS, ctypes.addressof(span))


def _path_of(pid: int, descriptor: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
    except OSError:
        return ""


def _ptrace(request: int, thread: int, address: int = 0, data: int = 0) -> None:
    arguments = (ctypes.c_long(request), ctypes.c_long(thread), ctypes.c_void_p(address), ctypes.c_void_p(data))
    if _libc.ptrace(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main(pid: str, trace: str, directory: str, number: str, lasting: str) -> None:
    """Attach, say so, and trace."""
    shortener = Shortener(int(pid), Path(trace), directory, number=int(number), lasting=bool(lasting))
    shortener.attach()
    os.write(1, b"attached\n")
    shortener.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
