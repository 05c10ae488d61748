"""Command lines, run in this process. A case is the arguments, each on its line.

Paths lead nowhere but below the scratch directory, and commands that would not end (`serve`, `chat`) are left out.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import ClassVar, NamedTuple, Self

import structlog
from anyio import to_thread

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.service.cli import main
from tests.fuzz.mutations import damaged
from tests.fuzz.reader import SECRET, Reader, tree_of
from tests.fuzz.seeds import conversation

_STATUSES = (0, 1, 2, 3)
_NOT_ONE = 0.3
_STORE = "jsonl:"  # it opens faster than a database
_ENDLESS = ("serve", "chat")
_SEEDS = (
    *("list --json", "list --channel fuzz", "show fuzz_1", "show fuzz_1 --json", "stats", "stats --json", "check"),
    *("tree fuzz_1", "tree fuzz_1 --json", "branch fuzz_1", "branch fuzz_1 %3", "label fuzz_1", "label fuzz_1 %3 text"),
    *("fork fuzz_1 copy_1", "compact fuzz_1 --keep-tokens 1", "delete fuzz_1 --yes", "formats", "formats --json"),
    *("import file.jsonl", "import file.jsonl --format jsonl --dry-run --json", "import file.jsonl --name x"),
    *("export fuzz_1 --format pi", "export fuzz_1 --format html", "config show", "config show --json", "--version"),
    *("--help", "show --help", "--workspace workspace list", "list --config file.toml", "--json --debug list"),
)


class _Ran(NamedTuple):
    """How a command line ended."""

    status: int
    says_something: bool
    error: str


class ArgumentReader(Reader):
    """The command line: whatever it is, it ends with a status of the table and one line that says why."""

    name: ClassVar[str] = "arguments"
    share: ClassVar[int] = 1_500

    async def __aenter__(self) -> Self:
        self.seeds = [line.replace(" ", "\n").encode() for line in _SEEDS]
        self._home = self.scratch / "a" / "b" / "home"  # some steps up are still within the scratch directory
        self._home.mkdir(parents=True)
        self._template = self.scratch / "template"
        async with SessionManager(self._template, settings=SessionSettings(store=_STORE)) as manager:
            session = await manager.get_or_create("fuzz", "1")
            for number in range(4):
                await session.add_message(Message.user(f"{SECRET} {number}"))
            neighbour = await manager.get_or_create("neighbour", "1")
            await neighbour.add_message(Message.user("untouched"))
        (self._home / "file.jsonl").write_bytes(conversation().exports["jsonl"])
        (self._home / "file.toml").write_bytes(b"[sessions]\nwindow = 20\n")
        self._file = tree_of(self._home)
        return self

    def case(self, random: Random, number: int) -> bytes:
        """Mostly one argument is damaged, and the others are as they should be."""
        if random.random() < _NOT_ONE:
            return super().case(random, number)
        arguments = random.choice(self.seeds).split(b"\n")
        place = random.randrange(len(arguments))
        arguments[place] = damaged(random, arguments[place], self.seeds)
        return b"\n".join(arguments)

    async def read(self, case: bytes) -> bool:
        shutil.rmtree(self._home / "workspace", ignore_errors=True)
        shutil.copytree(self._template, self._home / "workspace")
        arguments = _arguments(case)
        with _surroundings(self._home):
            ran = await to_thread.run_sync(_run, arguments)
        assert ran.status in _STATUSES, ran
        assert "Traceback" not in ran.error or "--debug" in arguments, ran.error
        assert "error: unexpected" not in ran.error, (arguments, ran.error)
        assert SECRET not in ran.error
        assert ran.status == 0 or ran.says_something, arguments
        now = tree_of(self._home)
        assert {name: now.get(name) for name in self._file} == self._file
        if "delete" not in arguments:
            snapshot = self._home / "workspace" / "sessions" / "neighbour_1.json"
            assert b"untouched" in snapshot.read_bytes()
        return ran.status == 0


def _arguments(case: bytes) -> list[str]:
    """What is handed over: text as the system decodes it, without NUL, and no path out of the scratch directory."""
    arguments = []
    for line in case.replace(b"\0", b"").split(b"\n")[:50]:
        text = os.fsdecode(line[:5_000]).replace("/", "_").replace("~", "-")
        if text not in _ENDLESS:
            arguments.append(text)
    return arguments


@contextmanager
def _surroundings(home: Path) -> Iterator[None]:
    """A home and a workspace of our own, and nothing of the person who runs this."""
    before, directory = dict(os.environ), Path.cwd()
    for name in [name for name in os.environ if name.startswith("MINICLAW_")]:
        del os.environ[name]
    os.environ.update(
        HOME=str(home), MINICLAW_WORKSPACE="workspace", MINICLAW_SESSIONS_STORE=_STORE, TERM="dumb", COLUMNS="80"
    )
    os.chdir(home)
    configuration, handlers = structlog.get_config(), list(logging.getLogger().handlers)
    try:
        yield
    finally:
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(before)
        structlog.configure(**configuration)
        logging.getLogger().handlers[:] = handlers
        logging.captureWarnings(capture=False)


def _run(arguments: Sequence[str]) -> _Ran:
    streams = sys.stdin, sys.stdout, sys.stderr
    out, error = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(""), out, error
    try:
        status = main(arguments)
        texts = [_written(stream) for stream in (out, error)]
        return _Ran(status, any(map(str.strip, texts)), texts[1])
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode(errors="replace")
