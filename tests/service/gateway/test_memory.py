"""How many heaps the C library keeps for the threads of a process, as it says itself."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library is not glibc")

THREADS = 8
PROGRAM = f"""
import ctypes, sys, threading
from miniclaw_sessions.service.gateway.memory import share_one_heap

def work():
    together.wait()
    bytearray(10_000)
    together.wait()

if "shared" in sys.argv:
    share_one_heap()
together = threading.Barrier({THREADS})
threads = [threading.Thread(target=work) for _ in range({THREADS})]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


def heaps(*arguments: str, **variables: str) -> int:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=True)
    return done.stdout.count("<heap nr=")


def test_all_threads_take_memory_from_one_heap() -> None:
    assert heaps() > 2
    assert heaps("shared") == 1


def test_what_the_environment_says_stands() -> None:
    assert heaps("shared", MALLOC_ARENA_MAX="2") == 2
