"""The example of many machines under Patroni: its primary dies, and nothing that was acknowledged is lost or doubled.

It needs etcd (`apt-get install etcd-server`) and PostgreSQL's own programs with TLS. Patroni has an environment of its
own, which is made once and kept beside pytest's cache. `pytest -s` says how long nothing was acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from miniclaw_sessions import Message
from miniclaw_sessions.errors import SessionsError
from miniclaw_sessions.service.client import Client, connect
from tests.environments import python_with
from tests.here import HERE, free_ports, make_certificate
from tests.postgresql import unprivileged_user
from tests.sampled import in_part
from tests.test_many_machines import EXAMPLE, PASSWORD, REPLICATION, SERVERS, TOKEN, Example, programs

pytestmark = [
    pytest.mark.proof,
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("etcd") is None, reason="NOT RUN: there is no etcd (apt-get install etcd-server)"),
    in_part(0),
]

PACKAGES = ["patroni[etcd3]==4.1.5", "psycopg[binary]==3.3.4"]
PATIENCE_S = 120.0
SUPERUSER = "superuser"
CHATS = 4
AFTERWARDS = 5
"""Acknowledgements of each chat before and after the primary's death."""


def patroni_python(config: pytest.Config) -> Path:
    """The Python of an environment with Patroni, which the system's user of the servers may run too."""
    base = sys.executable if os.geteuid() else "/usr/bin/python3"
    return python_with(PACKAGES, name="patroni", config=config, base=base)


class UnderPatroni(Example):
    """The example's machines, whose servers Patroni starts, watches and promotes."""

    def __init__(self, directory: Path, python: Path) -> None:
        super().__init__(directory)
        self._python = python
        self._etcd_port, self._peer_port, *self._rest_ports = free_ports(2 + SERVERS)
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start etcd, and Patroni on each machine, by the example's own file."""
        assert self.tls, "the example has TLS"
        make_certificate(self.directory)
        client, peer = (f"http://{HERE}:{port}" for port in (self._etcd_port, self._peer_port))
        etcd = ["etcd", "--name=etcd1", f"--data-dir={self.directory / 'etcd'}", f"--initial-cluster=etcd1={peer}"]
        etcd += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        etcd += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        self._run(etcd, self.directory / "etcd.log")
        for number in range(SERVERS):
            self._start_machine(number)

    def _start_machine(self, number: int) -> None:
        home = self.directory / f"db{number + 1}"
        home.mkdir(exist_ok=True)
        file = home / "patroni.yml"
        file.write_text(self._patroni_file(number, home))
        user = unprivileged_user()
        if user is not None:
            for path in (home, file, *self.directory.glob("*.*")):
                os.chown(path, user.pw_uid, user.pw_gid)
        (self.directory / "server.key").chmod(0o600)
        environ = {"PATRONI_SUPERUSER_PASSWORD": SUPERUSER, "PATRONI_REPLICATION_PASSWORD": REPLICATION}
        identity: dict[str, Any] = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid}
        if user is not None:
            identity["extra_groups"] = []
        command = [str(self._python), "-m", "patroni", str(file)]
        self._run(command, home / "log", cwd=home, env={"PATH": os.defpath, "HOME": str(home), **environ}, **identity)

    def _patroni_file(self, number: int, home: Path) -> str:
        """The example's file, with this machine's places in it."""
        text = (EXAMPLE / "patroni.yml").read_text().replace("name: db1", f"name: db{number + 1}")
        rest, port = self._rest_ports[number], self.ports[number]
        text = text.replace("0.0.0.0:8008", f"{HERE}:{rest}").replace("db1.example.net:8008", f"{HERE}:{rest}")
        text = text.replace("0.0.0.0:5432", f"{HERE}:{port}").replace("db1.example.net:5432", f"{HERE}:{port}")
        text = re.sub(r"hosts: \[etcd1.*\]", f"hosts: [{HERE}:{self._etcd_port}]", text)
        text = text.replace("/var/lib/postgresql/miniclaw", f"{home}/data").replace("10.0.0.0/24", f"{HERE}/32")
        text = re.sub(r"bin_dir: .*", f"bin_dir: {programs()}", text)
        text = text.replace("/etc/postgresql", f"{self.directory}")
        assert "example.net" not in text
        return text.replace('    ssl: "on"', f'    ssl: "on"\n    unix_socket_directories: {home}')

    def _run(self, command: list[str], log: Path, **options: Any) -> None:
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, **options)
        self._processes.append(process)

    # --- what Patroni says -------------------------------------------------------------------------------------------

    def members(self) -> dict[str, tuple[str, str]]:
        """The role and the state of each machine, as one that answers sees it."""
        for port in self._rest_ports:
            with suppress(OSError), urllib.request.urlopen(f"http://{HERE}:{port}/cluster", timeout=5) as reply:
                return {one["name"]: (one["role"], one["state"]) for one in json.load(reply)["members"]}
        return {}

    async def is_whole(self, standbys: int) -> str:
        """The leader, once so many standbys confirm what it commits."""
        patient_until = time.monotonic() + PATIENCE_S
        while True:
            members = await asyncio.to_thread(self.members)
            confirming = [one for one in members.values() if one == ("quorum_standby", "streaming")]
            leaders = [name for name, one in members.items() if one == ("leader", "running")]
            if len(confirming) == standbys and len(leaders) == 1:
                return leaders[0]
            assert time.monotonic() < patient_until, self.logs()
            await asyncio.sleep(0.2)

    def logs(self) -> str:
        return "\n".join((self.directory / f"db{number}/log").read_text()[-1500:] for number in range(1, SERVERS + 1))

    async def make_roles(self, leader: str) -> None:
        """Run the example's statements; Patroni has made the role of the standbys."""
        tls = ssl.create_default_context(cafile=str(self.directory / "ca.crt"))
        port = self.ports[int(leader.removeprefix("db")) - 1]
        connection = await asyncpg.connect(
            host=HERE, port=port, user="postgres", password=SUPERUSER, database="postgres", ssl=tls
        )
        script = re.sub(r"^--.*$", "", (EXAMPLE / "roles.sql").read_text(), flags=re.MULTILINE)
        script += f"ALTER ROLE sessions PASSWORD '{PASSWORD}'"
        for statement in script.split(";"):
            if statement.strip() and "ROLE replicator" not in statement:
                await connection.execute(statement)
        await connection.close()

    def kill(self, name: str) -> None:
        """A machine dies, with Patroni and all of its server."""
        number = int(name.removeprefix("db"))
        self._processes[number].kill()
        for pid in self._server_processes(number):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._processes[number].wait()

    def _server_processes(self, number: int) -> list[int]:
        with suppress(FileNotFoundError):
            pid = int((self.directory / f"db{number}/data/postmaster.pid").read_text().split()[0])
            return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        return []

    def stop(self) -> None:
        for number in range(1, len(self._processes)):
            self.kill(f"db{number}")
        for process in self._processes[:1]:
            process.kill()
            process.wait()


@pytest.fixture
def example(pytestconfig: pytest.Config) -> Iterator[UnderPatroni]:
    python = patroni_python(pytestconfig)
    with tempfile.TemporaryDirectory(prefix="pg") as name:
        Path(name).chmod(0o755)  # the servers run as another user
        made = UnderPatroni(Path(name), python)
        try:
            made.start()
            yield made
        finally:
            made.stop()


class Writer:
    """Says numbered messages in one chat, each until it is acknowledged."""

    def __init__(self, chat: int) -> None:
        self.chat = chat
        self.acknowledged: list[tuple[str, float]] = []

    async def say(self, client: Client, count: int) -> None:
        for _ in range(count):
            text = f"{self.chat}: {len(self.acknowledged)}"
            patient_until = time.monotonic() + PATIENCE_S
            while True:
                try:
                    session = await client.get_or_create("telegram", self.chat)
                    await session.add_message(Message.user(text), idempotency_key=text)
                    break
                except SessionsError:
                    assert time.monotonic() < patient_until
                    await asyncio.sleep(0.1)
            self.acknowledged.append((text, time.monotonic()))


async def test_a_primary_that_dies_costs_some_seconds_and_no_message(example: UnderPatroni) -> None:
    leader = await example.is_whole(standbys=2)
    await example.make_roles(leader)
    with example.gateway("a"), example.gateway("b"):
        async with connect(example.url("a"), token=TOKEN) as one, connect(example.url("b"), token=TOKEN) as other:
            writers = [Writer(chat) for chat in range(CHATS)]
            clients = [one, other] * CHATS
            await asyncio.gather(*(who.say(at, AFTERWARDS) for who, at in zip(writers, clients, strict=False)))
            died = time.monotonic()
            await asyncio.to_thread(example.kill, leader)
            await asyncio.gather(*(who.say(at, AFTERWARDS) for who, at in zip(writers, clients, strict=False)))
            first = min(at for who in writers for _, at in who.acknowledged if at > died)
            sys.stdout.write(f"\n{first - died:.1f} s from the primary's death to the next acknowledgement\n")
            assert await example.is_whole(standbys=1) != leader
            for writer, client in zip(writers, reversed(clients[:CHATS]), strict=True):  # as the other gateway sees it
                session = await client.get_or_create("telegram", writer.chat)
                said = [message.text for message in await session.messages()]
                assert Counter(said) == Counter(text for text, _ in writer.acknowledged)
                assert said == [text for text, _ in writer.acknowledged]
