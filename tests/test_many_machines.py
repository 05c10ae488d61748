"""The example of many machines is run as it stands: its servers, its roles, its gateways, and a failover.

Only names, ports, paths and addresses are put in place of the example's, and TLS is left out where the server at hand
was built without it.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from miniclaw_sessions import Message
from miniclaw_sessions.config import load_settings
from miniclaw_sessions.errors import SessionsError, StoreUnavailable, Unreachable
from miniclaw_sessions.service.client import connect
from tests.here import HERE, free_ports, make_certificate
from tests.postgresql import OWNER, PostgreSQLServer, server_programs

pytestmark = [pytest.mark.proof, pytest.mark.anyio]

EXAMPLE = Path(__file__).parents[1] / "config/many-machines"
SERVERS = 3
PASSWORD, REPLICATION, TOKEN = "sesame", "streams", "a-token-of-the-example"
PATIENCE_S = 60.0


def programs() -> Path:
    """Those of a server with TLS, if there is one."""
    found = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), server_programs()]
    return next((one for one in found if has_tls(one)), found[-1])


def has_tls(directory: Path) -> bool:
    return (directory / "postgres").exists() and b"libssl.so" in (directory / "postgres").read_bytes()


class Example:
    """The machines of the example, all of them here.

    Attributes:
        servers: db1, db2 and db3; the first one is the primary.
        ports: theirs.
        tls: whether the servers were built with it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tls = has_tls(programs())
        *self.ports, gateway_a, gateway_b = free_ports(SERVERS + 2)
        self.gateway_ports = {"a": gateway_a, "b": gateway_b}
        self.servers = [
            PostgreSQLServer(
                directory / f"db{number}",
                programs(),
                settings={
                    "listen_addresses": HERE,
                    "port": str(port),
                    "max_connections": self.setting("max_connections"),
                },
            )
            for number, port in enumerate(self.ports, 1)
        ]

    def text(self, name: str) -> str:
        """A file of the example, as it is here."""
        text = (EXAMPLE / name).read_text()
        hosts = ",".join(f"db{number}.example.net" for number in range(1, SERVERS + 1))
        ports = ",".join(map(str, self.ports))
        places = ",".join(f"{HERE}:{port}" for port in self.ports)
        text = text.replace(f"@{hosts}/", f"@{places}/").replace(
            f"host={hosts}", f"host={','.join([HERE] * SERVERS)} port={ports}"
        )
        for gateway, port in self.gateway_ports.items():
            text = text.replace("127.0.0.1:8081" if gateway == "a" else "127.0.0.1:8082", f"{HERE}:{port}")
        text = re.sub(r"/etc/(postgresql|miniclaw-sessions)/", f"{self.directory}/", text)
        text = text.replace("10.0.0.0/24", f"{HERE}/32").replace(
            "listen_addresses = '*'", f"listen_addresses = '{HERE}'"
        )
        if not self.tls:
            text = text.replace("hostssl", "host").replace("verify-full", "disable").replace("ssl = on", "ssl = off")
            text = re.sub(r"sslrootcert=\S+ ", "", text)
        assert "example.net" not in text
        return text

    def setting(self, name: str) -> str:
        """What the example says of a setting of the server."""
        found = re.search(rf"^{name} = '?([^'#\s]*)", (EXAMPLE / "postgresql.conf").read_text(), re.MULTILINE)
        assert found is not None
        return found[1]

    def start(self) -> None:
        """Make and start the servers as a person would, from the example's files."""
        if self.tls:
            make_certificate(self.directory)
        (self.directory / "replicator.pgpass").write_text(f"*:*:*:replicator:{REPLICATION}\n")
        primary = self.servers[0]
        primary.make()
        trusted = "local all,replication all trust\n"  # their administrator has no account on this machine
        hba = trusted + self.text("pg_hba.conf")
        (primary.data / "pg_hba.conf").write_text(hba)
        self._configure(primary, "db1")
        self._hand_over(primary)
        primary.start()
        asyncio.run(self._make_roles(primary))
        for number, standby in enumerate(self.servers[1:], 2):
            standby.make_standby_of(primary, f"db{number}")
            (standby.data / "postgresql.auto.conf").write_text("")  # the example's own line finds the primary
            self._configure(standby, f"db{number}")
            self._hand_over(standby)
            standby.start()

    def _configure(self, server: PostgreSQLServer, name: str) -> None:
        (server.data / "conf.d").mkdir(exist_ok=True)
        text = self.text("postgresql.conf").replace("cluster_name = 'db1'", f"cluster_name = '{name}'")
        (server.data / "conf.d/miniclaw.conf").write_text(text)
        if "conf.d'" not in (conf := server.data / "postgresql.conf").read_text().splitlines()[-1]:
            conf.write_text(conf.read_text() + "\ninclude_dir = 'conf.d'\n")

    def _hand_over(self, server: PostgreSQLServer) -> None:
        """Keys and passwords belong to whom the server runs as, and nobody else reads them."""
        owner = server.data.stat()
        for file in (*self.directory.glob("*.*"), *(server.data / "conf.d").iterdir(), server.data / "conf.d"):
            os.chown(file, owner.st_uid, owner.st_gid)
            file.chmod(0o700 if file.is_dir() else 0o644 if file.suffix == ".crt" else 0o600)

    async def _make_roles(self, primary: PostgreSQLServer) -> None:
        """Run the example's statements; the primary waits for standbys that are made of it only afterwards."""
        connection = await asyncpg.connect(
            host=str(primary.directory), port=self.ports[0], user=OWNER, database="postgres"
        )
        await connection.execute("SET synchronous_commit = local")
        passwords = [
            f"ALTER ROLE {role} PASSWORD '{word}'"
            for role, word in (("sessions", PASSWORD), ("replicator", REPLICATION))
        ]
        script = re.sub(r"^--.*$", "", (EXAMPLE / "roles.sql").read_text(), flags=re.MULTILINE)
        for statement in (*script.split(";"), *passwords):
            if statement.strip():
                await connection.execute(statement)
        await connection.close()

    async def asked(self, server: PostgreSQLServer, statement: str) -> list[asyncpg.Record]:
        """A question to a server, as its administrator."""
        port = self.ports[self.servers.index(server)]
        connection = await asyncpg.connect(host=str(server.directory), port=port, user=OWNER, database="postgres")
        try:
            return list(await connection.fetch(statement))
        finally:
            await connection.close()

    @contextmanager
    def gateway(self, name: str) -> Iterator[None]:
        """A daemon with the example's file, its credentials where systemd would put them."""
        home = self.directory / f"gateway-{name}"
        (home / "credentials").mkdir(parents=True)
        for credential, secret in (("postgresql_password", PASSWORD), ("token", TOKEN)):
            (home / "credentials" / credential).write_text(secret)
            (home / "credentials" / credential).chmod(0o400)
        file = home / f"gateway-{name}.toml"
        file.write_text(self.text(f"gateway-{name}.toml"))
        command = [sys.executable, "-m", "miniclaw_sessions", "serve", "--config", str(file)]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MINICLAW_")}
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env={**kept, "HOME": str(home), "CREDENTIALS_DIRECTORY": str(home / "credentials")},
                stdout=log,
                stderr=log,
            )
        try:
            self._wait_for(process, self.gateway_ports[name], home / "log")
            yield
        finally:
            process.terminate()
            assert process.wait(PATIENCE_S) == 0, (home / "log").read_text()
            left = {path.name for path in home.iterdir()} - {"credentials", "log", file.name, ".miniclaw"}
            assert left == set()
            assert not list((home / ".miniclaw").glob("workspace/*")), "it keeps files"

    def _wait_for(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        patient_until = time.monotonic() + PATIENCE_S
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < patient_until, log.read_text()
            try:
                socket.create_connection((HERE, port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return

    def url(self, name: str) -> str:
        """Where a gateway answers."""
        return f"http://{HERE}:{self.gateway_ports[name]}"


@pytest.fixture
def example() -> Iterator[Example]:
    # not below pytest's own directory: each other run of pytest closes that to other users, whom the servers run as
    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        made = Example(Path(name))
        try:
            made.start()
            yield made
        finally:
            for server in made.servers:
                server.stop()


async def check_servers(example: Example) -> None:
    """The servers are as the example says, and both standbys confirm."""
    primary = example.servers[0]
    wrong = "SELECT * FROM pg_file_settings WHERE error IS NOT NULL AND sourcefile LIKE '%miniclaw.conf'"
    assert await example.asked(primary, wrong) == []
    said = set(re.findall(r"^(\w+) =", (EXAMPLE / "postgresql.conf").read_text(), re.MULTILINE))
    found = await example.asked(
        primary, "SELECT name, setting FROM pg_file_settings WHERE sourcefile LIKE '%miniclaw.conf'"
    )
    assert {name for name, _ in found} == said
    rules = await example.asked(primary, "SELECT error FROM pg_hba_file_rules WHERE error IS NOT NULL")
    assert rules == []
    statement = "SELECT application_name, sync_state FROM pg_stat_replication ORDER BY 1"
    confirming = [("db2", "quorum"), ("db3", "quorum")]
    patient_until = time.monotonic() + PATIENCE_S
    while [
        tuple(one) for one in await example.asked(primary, statement)
    ] != confirming:  # as soon as they have all of it
        assert time.monotonic() < patient_until, example.servers[1].log
        await asyncio.sleep(0.1)


async def test_two_gateways_share_their_chats_and_a_failover_loses_nothing(example: Example) -> None:
    await check_servers(example)
    with example.gateway("a"), example.gateway("b"):
        async with connect(example.url("a"), token=TOKEN) as one, connect(example.url("b"), token=TOKEN) as other:
            first = await one.get_or_create("telegram", "1")
            await first.add_message(Message.user("said to a"))
            second = await other.get_or_create("telegram", "1")
            await second.add_message(Message.assistant("said by b"))
            assert [message.text for message in await first.messages()] == ["said to a", "said by b"]
            users = await example.asked(
                example.servers[0],
                "SELECT DISTINCT usename, ssl FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) WHERE usename <> ''",
            )
            assert ("sessions", example.tls) in [tuple(user) for user in users]
            assert ("sessions", not example.tls) not in [tuple(user) for user in users]
            assert (await one.health()).status == "ok"

            example.servers[0].stop(signal.SIGKILL)
            await example.asked(example.servers[1], "SELECT pg_promote()")
            for client, text in ((one, "said to a afterwards"), (other, "said to b afterwards")):
                await say(client, text)
            assert [message.text for message in await second.messages()][2:] == [
                "said to a afterwards",
                "said to b afterwards",
            ]
            standbys = await example.asked(example.servers[1], "SELECT application_name FROM pg_stat_replication")
            assert [name for (name,) in standbys] == ["db3"]  # which has found the new primary by itself


async def say(client: object, text: str) -> None:
    """Say it, with a key of its own, until it is acknowledged."""
    patient_until = time.monotonic() + PATIENCE_S
    while True:
        try:
            session = await client.get_or_create("telegram", "1")  # type: ignore[attr-defined]
            await session.add_message(Message.user(text), idempotency_key=text)
        except (StoreUnavailable, Unreachable, SessionsError):
            assert time.monotonic() < patient_until
            await asyncio.sleep(0.2)
        else:
            return


@pytest.mark.parametrize("name", ["a", "b"])
def test_the_gateways_settings_are_known_and_have_no_password(name: str) -> None:
    loaded = load_settings(EXAMPLE / f"gateway-{name}.toml", {}, {})
    assert loaded.settings.sessions.store.startswith("postgresql://sessions@db1.example.net,")
    assert loaded.settings.sessions.postgresql.sslmode == "verify-full"
    assert (EXAMPLE / f"gateway-{name}.toml").read_text().count("password") == 3  # where it is, never what it is


def test_patroni_is_told_to_lose_nothing() -> None:
    """That it takes the file, and does so, is shown by `test_patroni.py`."""
    text = (EXAMPLE / "patroni.yml").read_text()
    found = dict(re.findall(r"^ {4}(\w+): (\w+)$", text, re.MULTILINE))
    assert (found["synchronous_mode"], found["synchronous_mode_strict"]) == ("quorum", "true")
    assert int(found["ttl"]) >= int(found["loop_wait"]) + 2 * int(found["retry_timeout"])
    assert found["maximum_lag_on_failover"] == "0"
