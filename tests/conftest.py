"""What all tests share: the backend, the proofs that the quick round leaves out, and the watch over the event loop."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from miniclaw_sessions.log import set_log
from tests.event_loop import watching_the_event_loop
from tests.postgresql import IN_MEMORY, PostgreSQLServer, running_server
from tests.sampled import repeated

sys.dont_write_bytecode = False  # whatever the environment says: the tests start hundreds of processes, and each
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # would compile the whole package, and each worker all tests, anew

TESTS = Path(__file__).parent

PROOFS = ("adapters", "container", "crash", "systemd")
"""Folders whose tests are proofs, all of them: they take long, or need root or what the round does not install."""

_ALL_PROOFS = re.compile(r"^pytestmark = .*\bmark\.proof\b", re.MULTILINE)

_ANY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # how fast it is proves nothing
settings.register_profile("proof", _ANY_MACHINE, max_examples=repeated(200))
settings.register_profile("round", _ANY_MACHINE, max_examples=10)

_ROOM_BYTES = 2 * 2**30


def has_memory() -> bool:
    """Whether there is room to write in memory."""
    return os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > _ROOM_BYTES


@pytest.hookimpl(optionalhook=True)  # not every environment of the proofs has pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than there are cores: each waits now and then, for a process, a thread or a disk."""
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n` alone each worker gets whole files, and takes over from others at the end.

    What a file needs, such as a server or a package that takes a second to import, is made by one worker, not by all.
    """
    if config.option.dist != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling  # noqa: PLC0415 - not every environment has it

    return WorkStealingScheduling(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """A few examples of each property in the round of minutes, in memory; hundreds of the proofs', on the disk."""
    os.environ.setdefault("CROSSING_ANY_SEED", str(secrets.randbelow(2**32)))  # the same for all workers
    is_round = config.option.markexpr == "not proof"
    settings.load_profile("round" if is_round else "proof")
    if is_round and has_memory():
        os.environ["TMPDIR"] = tempfile.tempdir = str(IN_MEMORY)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of what runs in the background; the programs that the tests
        signal.signal(signal.SIGINT, signal.default_int_handler)  # start, and end with it, would inherit that
    gc.disable()  # what is imported stays


def pytest_collection_finish() -> None:
    """Let the collector never walk over all tests and their libraries again, and seldom over what a test makes."""
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


@functools.cache  # it is asked for every test, and reads the file
def is_proof(path: Path) -> bool:
    """Whether a file or folder holds nothing but proofs."""
    if not path.is_relative_to(TESTS):
        return False
    if path.relative_to(TESTS).parts[:1] in {(folder,) for folder in PROOFS}:
        return True
    is_test = path.name.startswith("test_") and path.suffix == ".py"
    return is_test and _ALL_PROOFS.search(path.read_text(encoding="utf-8")) is not None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import proofs for a round that leaves them out: what they import may not be installed."""
    named = any(is_proof(Path(argument.partition("::")[0]).resolve()) for argument in config.args)
    return True if config.option.markexpr == "not proof" and not named and is_proof(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies in a folder of proofs, and give every proof the time that a busy machine needs."""
    for item in items:
        if is_proof(item.path):
            item.add_marker(pytest.mark.proof)
        if item.get_closest_marker("proof") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture
def anyio_backend() -> str:
    """aiofiles and the gateway are asyncio only, so this is the backend that is tested."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def _watch_the_event_loop() -> Iterator[None]:
    """A coroutine of ours that blocks the event loop, by a file, a lock or a sleep, fails the test that ran it.

    One watch for all tests: nine thousand would take seven seconds.
    """
    with watching_the_event_loop():
        yield


@pytest.fixture(autouse=True)
def _the_log_as_it_was() -> Iterator[None]:
    """Whoever configures the log, as `capture_logs` does too, does so for one test; the next reads what it logs."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    set_log(None)
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose name leaves room for a Unix socket's."""
    with tempfile.TemporaryDirectory(prefix="mc") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQLServer]:
    """A PostgreSQL server for all tests of this process; it starts in a second.

    It is in memory. Tests of what survives a crash of the server start their own, on the disk: there a checkpoint that
    waits for the disk, behind the proofs' other writers, holds up whatever test comes along.
    """
    with running_server(IN_MEMORY if has_memory() else None) as server:
        yield server


@pytest.fixture
def postgresql_url(postgresql: PostgreSQLServer) -> Iterator[str]:
    """The URL of a database of the test's own; a store has made its tables there, and nothing is in them."""
    name = asyncio.run(postgresql.database_with_tables())
    yield postgresql.url(name)
    asyncio.run(postgresql.drop_database(name))


@pytest.fixture
def empty_postgresql_url(postgresql: PostgreSQLServer) -> Iterator[str]:
    """The URL of a database of the test's own without any tables."""
    name = asyncio.run(postgresql.new_database())
    yield postgresql.url(name)
    asyncio.run(postgresql.drop_database(name))


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the person who runs the tests is read."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in list(os.environ):
        if name.startswith("MINICLAW_") or name in {
            "RUNTIME_DIRECTORY",
            "CREDENTIALS_DIRECTORY",
            "NO_COLOR",
            "FORCE_COLOR",
        }:
            monkeypatch.delenv(name)
