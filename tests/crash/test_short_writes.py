"""A shortened write really writes only a part, and whoever takes it for the whole is caught."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.short_writes import count_shortened, not_written_on, reason_not_to_shorten, shortened

CAREFUL = """
import os, sys
sys.stdin.readline()
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
data = bytes(range(100))
while data:
    data = data[os.write(fd, data):]
"""
CARELESS = CAREFUL.replace("while data:\n    data = data[os.write(fd, data):]", "os.write(fd, data)")


def trace_of(program: str, directory: Path, *, lasting: bool) -> Path:
    """Let a program write 100 bytes while its first write is shortened."""
    trace = directory / "trace"
    directory = directory / "written"
    directory.mkdir()
    command = [sys.executable, "-c", program, str(directory / "file")]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE) as writer,
        shortened(writer.pid, trace, directory, number=1, lasting=lasting),
    ):
        assert writer.stdin is not None
        writer.stdin.close()
        assert writer.wait(timeout=20) == 0
    return trace


@pytest.fixture(autouse=True)
def _shortening(tracing: None) -> None:
    del tracing
    if (reason := reason_not_to_shorten()) is not None:
        pytest.skip(f"TIER B (injected faults): {reason}")


@pytest.mark.parametrize(("lasting", "shortened_writes"), [(False, 1), (True, 7)])
def test_the_rest_of_a_short_write_is_up_to_the_writer(tmp_path: Path, lasting: bool, shortened_writes: int) -> None:
    trace = trace_of(CAREFUL, tmp_path, lasting=lasting)
    assert (tmp_path / "written/file").read_bytes() == bytes(range(100))
    assert count_shortened(trace) == shortened_writes
    assert not_written_on(trace) == []


def test_a_writer_that_ignores_how_much_was_written_is_caught(tmp_path: Path) -> None:
    trace = trace_of(CARELESS, tmp_path, lasting=False)
    assert (tmp_path / "written/file").read_bytes() == bytes(range(50))
    assert not_written_on(trace) == [str(tmp_path / "written/file")]
