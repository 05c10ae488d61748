"""No child of the process that holds a directory gives it up, whatever the child does (rule R11)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys
from pathlib import Path
from miniclaw_sessions.errors import DirectoryInUse
from miniclaw_sessions.disk import DirectoryLock
path = Path(sys.argv[1])
lock = DirectoryLock(path)
if (child := os.fork()) == 0:
    lock.release()
    os._exit(0)
os.waitpid(child, 0)
try:
    DirectoryLock(path).release()
except DirectoryInUse as error:
    print(error.pid == os.getpid())
"""


def test_a_child_that_releases_the_lock_releases_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n"
