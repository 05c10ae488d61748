"""What cannot be read where a program keeps its sessions: each is named, and costs nothing else."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from miniclaw_sessions.files.discovery.overview import overview
from miniclaw_sessions.files.discovery.programs import programs_named
from tests.bad_input.file_damage import without_privilege
from tests.files.discovery.test_follower import TALK, claude_file, following, put, user

pytestmark = pytest.mark.anyio

DEEP = 1_200  # more than calls may be nested


def fill(home: Path) -> None:
    """One session in each of two places that can be read, and everything that cannot."""
    project = claude_file(home).parent
    put(claude_file(home), TALK)
    put(project / "directory.jsonl/inner.jsonl", TALK)
    put(claude_file(home, "forbidden"), TALK).chmod(0)
    put(project / "closed/inner.jsonl", TALK).parent.chmod(0)
    put(project / "blind/inner.jsonl", TALK).parent.chmod(0o444)
    os.mkfifo(claude_file(home, "pipe"))
    with socket.socket(socket.AF_UNIX) as bound:
        here = Path.cwd()
        os.chdir(project)  # the name of a socket is short
        try:
            bound.bind("socket.jsonl")
        finally:
            os.chdir(here)
    claude_file(home, "link").symlink_to(claude_file(home))
    claude_file(home, "dangling").symlink_to(home / "nothing.jsonl")
    claude_file(home, "loop").symlink_to(claude_file(home, "loop"))
    (project / "circle").symlink_to(project)


WHY = {
    "forbidden.jsonl": "Permission denied",
    "closed": "Permission denied",
    "inner.jsonl": "Permission denied",
    "pipe.jsonl": "it is not a regular file",
    "socket.jsonl": "it is not a regular file",
    "link.jsonl": "it is a link, and links are not followed",
    "dangling.jsonl": "it is a link, and links are not followed",
    "loop.jsonl": "Too many levels of symbolic links",
    "circle": "it is a link, and links are not followed",
}


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that whoever is not root may come to, and that is removed however deep it is."""
    with tempfile.TemporaryDirectory(prefix="mc") as name:
        yield Path(name)
        subprocess.run(["chmod", "-R", "u+rwx", name], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["rm", "-rf", f"{name}/home"], check=True)


async def test_whatever_cannot_be_read_is_named_and_costs_nothing_else(place: Path) -> None:
    async with following(place) as ours:
        put(claude_file(ours.home, "first"), [{**user("x", None, "hi"), "sessionId": "first"}])
        assert await ours.taken() == 1  # nobody may not load what is loaded late
        fill(ours.home)
        (program,) = programs_named(["claude-code"])
        with without_privilege(place):
            found = overview(program, {}, ours.home)
            kept = await ours.look()
            again = await ours.look()
        assert {Path(one["path"]).name: one["reason"] for one in found.unread} == WHY
        assert found.sessions == 3
        assert {Path(one.path).name: one.problem for one in kept if one.problem} == WHY
        assert {one.reply.session_id for one in kept if one.reply} == {"import_s", "import_inner"}
        assert {Path(one.path).name for one in again} == WHY.keys()


async def test_directories_may_be_nested_deeper_than_calls(place: Path) -> None:
    async with following(place) as ours:
        directory = put(claude_file(ours.home), TALK).parent
        inner = os.open(directory, os.O_RDONLY)
        for _ in range(DEEP):
            os.mkdir("d", dir_fd=inner)
            inner, outer = os.open("d", os.O_RDONLY, dir_fd=inner), inner
            os.close(outer)
        os.close(inner)
        put(directory / ("d/" * DEEP) / "deep.jsonl", [{**user("x", None, "deep down"), "sessionId": "deep"}])
        assert await ours.taken() == 3
        assert await ours.branch("import_deep") == ["deep down"]
