"""Three servers on one disk: a primary, and two standbys of which one must confirm each commit.

What happens to them is what happens to machines: the primary dies and the standby that has received most is promoted;
or the power of all three is cut at once.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import asyncpg

from tests.crash.filesystem import GIBIBYTE, LoopFilesystem, stop
from tests.postgresql import OWNER, PostgreSQLServer

SERVERS = 3
RACK_BYTES = 2 * GIBIBYTE
"""For the file system of three servers, of which only what they use takes space."""

PATIENCE_S = 120.0
_SETTINGS = {
    "shared_buffers": "32MB",
    "max_wal_size": "64MB",
    "min_wal_size": "32MB",
    "wal_keep_size": "64MB",
    "wal_retrieve_retry_interval": "100ms",
    "dynamic_shared_memory_type": "mmap",  # in the data directory, so that nothing is left of a server that was killed
}
_STREAMING = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
_HAS_WRITTEN = "SELECT greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) - '0/0'"
_SHARED_MEMORY_LINE = 6


def nothing() -> None:
    """Do nothing."""


class Rack:
    """A context manager; its servers run within the block.

    Args:
        home: a directory, or a file system whose power can be cut.
        settings: further ones of all servers.

    Attributes:
        servers: all of them, the primary anywhere among them.
        primary: the one that writes.
    """

    def __init__(self, home: LoopFilesystem | Path, settings: Mapping[str, str] = {}) -> None:
        self._filesystem = home if isinstance(home, LoopFilesystem) else None
        directory = home.path if isinstance(home, LoopFilesystem) else home
        for parent in (directory, *directory.parents):  # the servers run as somebody else
            if parent.stat().st_uid == os.geteuid() and parent.stat().st_mode & 0o011 == 0:
                parent.chmod(0o711)
        self._directories = [directory / f"n{number}" for number in range(SERVERS)]
        everywhere = ",".join(map(str, self._directories))
        names = ", ".join(one.name for one in self._directories)
        self.servers = [
            PostgreSQLServer(
                one,
                settings={
                    **_SETTINGS,
                    "synchronous_standby_names": f"ANY 1 ({names})",
                    "primary_conninfo": f"host={everywhere} user={OWNER} application_name={one.name} "
                    "target_session_attrs=read-write connect_timeout=5",
                    **settings,
                },
            )
            for one in self._directories
        ]
        self.primary = self.servers[0]

    @property
    def url(self) -> str:
        """How a store reaches whoever writes."""
        hosts = ",".join(map(str, self._directories))
        return f"postgresql:///postgres?host={quote(hosts, safe='')}&user={OWNER}"

    @property
    def standbys(self) -> list[PostgreSQLServer]:
        """All but the primary."""
        return [server for server in self.servers if server is not self.primary]

    def __enter__(self) -> Self:
        self.primary.make()
        self.primary.start()
        for standby in self.standbys:
            self._follow(standby)
        self.wait_until_whole()
        if self._filesystem is not None:
            self._filesystem.sync()  # the directories were made in haste
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            if server.pid:
                kill(server)
                clean_up_after(server)

    def promote(self) -> None:
        """The primary dies with all processes, a standby takes over, and a new one follows in the place of the dead."""
        dead = self.primary
        kill(dead)
        self.primary = max(self.standbys, key=lambda standby: self._execute(_HAS_WRITTEN, standby))
        assert self._execute("SELECT pg_promote()", self.primary) is True
        clean_up_after(dead)
        shutil.rmtree(dead.data)
        self._follow(dead)
        self.wait_until_whole()

    def cut_power(self, meanwhile: Callable[[], None] = nothing) -> None:
        """The power of all servers is cut, and comes back; `meanwhile` is called while it is gone."""
        assert self._filesystem is not None, "only a file system's power can be cut"
        for server in self.servers:
            freeze(server)
        self._filesystem.shut_down()
        for server in self.servers:
            kill(server)
        meanwhile()
        self._filesystem.remount()
        for server in self.servers:
            server.start()
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        """Return when both standbys follow."""
        wait_for(lambda: self._execute(_STREAMING, self.primary) == SERVERS - 1, "the standbys to follow")

    def _follow(self, server: PostgreSQLServer) -> None:
        server.make_standby_of(self.primary, server.directory.name)
        server.start()

    def _execute(self, statement: str, server: PostgreSQLServer) -> Any:
        """What a statement says; None while the server takes no connections."""
        with suppress(asyncpg.CannotConnectNowError, ConnectionError):
            ((said,),) = asyncio.run(server.execute(statement))
            return said
        return None


def processes_of(server: PostgreSQLServer) -> list[int]:
    """A server's processes, the one that starts the others first."""
    try:
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [server.pid, *map(int, children)]


def freeze(server: PostgreSQLServer) -> None:
    """Let all processes of a server stand still, and return when they do."""
    stop(server.pid)  # first, so that it starts no others
    for pid in processes_of(server):
        stop(pid)


def kill(server: PostgreSQLServer) -> None:
    """End all processes of a server at once, and return when they are gone."""
    freeze(server)
    processes = processes_of(server)
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    server.stop(signal.SIGKILL)
    wait_for(lambda: not any(map(_is_alive, processes)), "a server's processes to end")


def clean_up_after(server: PostgreSQLServer) -> None:
    """Remove what a server that was killed leaves in the kernel, unless it is started again from the same directory."""
    with suppress(OSError, IndexError):
        segment = (server.data / "postmaster.pid").read_text().splitlines()[_SHARED_MEMORY_LINE].split()[1]
        subprocess.run(["ipcrm", "-m", segment], check=False, stderr=subprocess.DEVNULL)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Return when something holds.

    Raises:
        TimeoutError: it does not, for a long time.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE_S:.0f} s in vain for {what}")
        time.sleep(0.02)
