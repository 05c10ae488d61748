"""Environments of their own for packages that cannot be installed beside what the other tests need."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest


def python_with(
    packages: Sequence[str], *, name: str, config: pytest.Config, base: str = sys.executable, depends_on: str = ""
) -> Path:
    """The Python of an environment with these packages, or the test is skipped where they cannot be installed.

    It is made once and kept beside pytest's own cache, and made again when what it was made from changes. Workers that
    want it at the same time wait for the one that makes it.

    Args:
        packages: what pip installs, and its options.
        name: of the environment.
        config: whose cache it is in.
        base: the interpreter that it is made from.
        depends_on: what else it was made from: the text of the files that pip reads.
    """
    assert config.cache is not None
    directory = Path(config.cache.mkdir(name))
    complete, python = directory / "complete", directory / "environment/bin/python"
    wanted = f"{base}\n{sys.version}\n{packages}\n{depends_on}"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if complete.exists() and complete.read_text() == wanted:
            return python
        pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
        for command in (
            [base, "-m", "venv", "--clear", "--without-pip", str(directory / "environment")],
            [*pip, "install", "--quiet", "--no-compile", *packages],
        ):
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            if made.returncode:
                pytest.skip(f"{name} cannot be installed here: {made.stderr.strip()[-500:]}")
        complete.write_text(wanted)
    return python
