"""The memory that the C library holds for the daemon's threads."""

from __future__ import annotations

import ctypes
import os

_ARENA_MAX = -8  # of <malloc.h>


def share_one_heap() -> None:
    """Let all threads take memory from one heap.

    Else glibc gives each thread a heap of its own, and each keeps what was freed in it: with all that a daemon does at
    once, two thirds of them lay idle, and they grew by the minute. They are there so that threads do not wait for each
    other, which those of Python do anyway. What the environment says (`MALLOC_ARENA_MAX`) stands. Without glibc nothing
    is done.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None and "MALLOC_ARENA_MAX" not in os.environ:
        set_option(_ARENA_MAX, 1)
