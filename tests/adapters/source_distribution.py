"""A framework's own tests, from the source distribution of the installed version; they are no part of this project."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest


def source_distribution(name: str, directory: Path) -> Path:
    """A package's sources, unpacked; the test is skipped, with the reason, where they cannot be had."""
    wanted = f"{name}=={version(name)}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name, wanted]
    done = subprocess.run([*command, "--dest", directory], capture_output=True, text=True, timeout=240, check=False)
    archives = list(directory.glob("*.tar.gz"))
    if not archives:
        pytest.skip(f"the source distribution of {wanted} cannot be had: {done.stderr.strip()[-300:]}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(directory, filter="data")
    (sources,) = (path for path in directory.iterdir() if path.is_dir())
    return sources
