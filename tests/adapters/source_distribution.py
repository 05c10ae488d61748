"""A framework's own tests, run against our sessions; they are no part of this project.

They are taken from the source distribution of the installed version, and run by a process of their own with a plugin of
ours that puts our sessions in the place of the framework's.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run_own_suite(sources: Path, plugin: str, files: Sequence[str], *options: str, at_least: int) -> None:
    """Run some files of the framework's tests; all must pass, and so many must have run."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([f"{HERE}", f"{sources}", f"{HERE.parents[1]}"])}
    environment.pop("PYTEST_ADDOPTS", None)
    ours = ["-q", "-p", plugin, "-p", "coroutine_tests", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "."]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *ours, *options, *files],
        cwd=sources,
        env=environment,
        capture_output=True,
        text=True,
        timeout=420,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= at_least  # and not an empty selection


def source_distribution(name: str, directory: Path) -> Path:
    """A package's sources, unpacked; the test is skipped, with the reason, where they cannot be had."""
    wanted = f"{name}=={version(name)}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name, wanted]
    done = subprocess.run([*command, "--dest", directory], capture_output=True, text=True, timeout=240, check=False)
    archives = list(directory.glob("*.tar.gz"))
    if not archives:
        pytest.skip(f"the source distribution of {wanted} cannot be had: {done.stderr.strip()[-300:]}")
    with tarfile.open(archives[0]) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)  # 3.11.2 has no filters
        archive.extractall(directory)
    (sources,) = (path for path in directory.iterdir() if path.is_dir())
    return sources
