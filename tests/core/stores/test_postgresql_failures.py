"""What a server, a network or an administrator does to the store: one clear sentence, and it goes on by itself."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import anyio
import asyncpg
import msgspec
import pytest
import structlog
from anyio import to_thread
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.config import PostgreSQLSettings, SessionSettings, masked
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message, Role
from miniclaw_sessions.core.stores.base import Append
from miniclaw_sessions.core.stores.postgresql.connections import Connections
from miniclaw_sessions.core.stores.postgresql.server import address, store_error
from miniclaw_sessions.core.stores.postgresql.store import PostgreSQLStore
from miniclaw_sessions.errors import ConfigError, StoreUnavailable
from miniclaw_sessions.testing import sample_entries, sample_head
from tests.core.stores.wire import Cut, Wire
from tests.postgresql import OWNER, PostgreSQLServer, cut_connections, name_of, open_transaction

pytestmark = pytest.mark.anyio

HASTY = PostgreSQLSettings(statement_timeout_s=3)  # what is not held up is done well within it, on a busy machine too


def first_of(*numbers: int, sequence: int = 1) -> list[Append]:
    return [Append(sample_head(number), sample_entries(sequence, sequence)) for number in numbers]


# --- a server that is slow -------------------------------------------------------------------------------------------


async def test_sessions_that_another_connection_has_locked_hold_nobody_else_up(
    postgresql: PostgreSQLServer, postgresql_url: str
) -> None:
    async with PostgreSQLStore(postgresql_url, HASTY) as store:
        assert await store.append(first_of(*range(20))) == [None] * 20
        locking = "SELECT * FROM sessions WHERE session_id IN ('telegram_3', 'telegram_4', 'telegram_5') FOR UPDATE"
        async with open_transaction(postgresql, postgresql_url, locking):
            outcomes = await store.append(first_of(*range(20), sequence=2))
            late = [number for number, outcome in enumerate(outcomes) if outcome is not None]
            assert late == [3, 4, 5]
            assert all(type(outcomes[number]) is StoreUnavailable for number in late), outcomes
            assert "another connection holds" in str(outcomes[3])
        assert await store.append(first_of(*range(20), sequence=2)) == [None] * 20
        assert await store.check() == []


async def test_a_session_that_somebody_else_begins_and_does_not_finish_holds_nobody_else_up(
    postgresql: PostgreSQLServer, postgresql_url: str
) -> None:
    async with PostgreSQLStore(postgresql_url, HASTY) as store:
        begun = (
            "INSERT INTO sessions "
            "(session_id, channel, chat_id, incarnation, created_at, last_sequence, used_at, fence) "
            "VALUES ('telegram_1', 'telegram', '1', 'other', now(), 0, now(), 0)"
        )
        async with open_transaction(postgresql, postgresql_url, begun):
            first, second, third = await store.append(first_of(0, 1, 2))
            assert (first, third) == (None, None)
            assert isinstance(second, StoreUnavailable)


@asynccontextmanager
async def standing_still(server: PostgreSQLServer, database: str, doing: str = "") -> AsyncIterator[None]:
    """The server's processes that work for a database, and did such a statement last, do nothing meanwhile."""
    find = f"SELECT pid FROM pg_stat_activity WHERE datname = '{name_of(database)}' AND query LIKE '{doing}%'"
    backends = [pid for (pid,) in await server.execute(find)]
    assert backends
    for pid in backends:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in backends:
            os.kill(pid, signal.SIGCONT)


async def test_a_backend_that_stands_still_costs_one_time_out_and_the_next_connection_goes_on(
    postgresql: PostgreSQLServer, postgresql_url: str
) -> None:
    async with PostgreSQLStore(postgresql_url, HASTY) as store:
        assert await store.append(first_of(1)) == [None]
        async with standing_still(postgresql, postgresql_url):
            with pytest.raises(StoreUnavailable, match="whether it was done is not known"):
                await store.append(first_of(1, sequence=2))
            assert await store.append(first_of(1, sequence=2)) == [None]
            assert await store.append(first_of(2)) == [None]
        assert await store.read("telegram_1") == sample_entries(1, 2)
        assert await store.check() == []


async def test_a_server_that_gives_no_answer_is_told_of_in_our_words_and_not_in_the_drivers(
    postgresql: PostgreSQLServer, postgresql_url: str
) -> None:
    async with PostgreSQLStore(postgresql_url, HASTY) as store:
        assert await store.append(first_of(1)) == [None]
        async with standing_still(postgresql, postgresql_url):
            with pytest.raises(StoreUnavailable, match="no answer in time; whether it was done is not known") as told:
                await store.delete("telegram_1")  # in a transaction, which a silent server is not asked to take back
        assert isinstance(told.value.__cause__, TimeoutError)
        assert await store.delete("telegram_1") in (True, False)
        assert await store.check() == []


@pytest.mark.parametrize("kind", [asyncpg.InterfaceError, asyncpg.InternalClientError])
def test_what_the_driver_says_of_its_own_state_is_not_repeated(kind: type[Exception]) -> None:
    inner = kind("cannot call Connection.terminate(): connection has been released back to the pool")
    error = store_error(inner, address("postgresql://db.example/chat", HASTY), "append to")
    assert isinstance(error, StoreUnavailable)
    assert str(error) == (
        "cannot append to postgresql://db.example/chat: the connection was lost; nothing that was acknowledged is "
        "lost, and it is tried again"
    )


async def test_who_waits_for_a_connection_in_vain_is_told_so_and_appends_have_their_own(
    postgresql: PostgreSQLServer, postgresql_url: str
) -> None:
    settings = PostgreSQLSettings(read_connections=1, acquire_timeout_s=1)
    async with PostgreSQLStore(postgresql_url, settings) as store, anyio.create_task_group() as tasks:
        assert await store.append(first_of(1)) == [None]
        assert await store.head("telegram_1") is not None
        async with standing_still(postgresql, postgresql_url, doing="SELECT"):
            tasks.start_soon(store.read, "telegram_1", name="read")
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(StoreUnavailable, match="no connection was to be had in time, of the 1"):
                await store.read("telegram_1")
            assert await store.append(first_of(1, sequence=2)) == [None]
        assert await store.read("telegram_1") == sample_entries(1, 2)


# --- a connection that is cut ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", Cut)
@pytest.mark.parametrize("sequence", [1, 2], ids=["begins", "goes on"])
async def test_an_append_whose_connection_is_cut_is_there_once_wherever_it_is_cut(
    postgresql: PostgreSQLServer, postgresql_url: str, moment: Cut, sequence: int
) -> None:
    async with Wire(postgresql.directory) as wire:
        url = f"postgresql://{OWNER}@127.0.0.1:{wire.port}/{name_of(postgresql_url)}"
        async with PostgreSQLStore(url) as store:
            for one in range(1, sequence):
                assert await store.append(first_of(1, sequence=one)) == [None]
            (appended,) = first_of(1, sequence=sequence)
            wire.marker, wire.cuts = appended.entries[0].entry_id.encode(), [moment]
            assert await store.append([appended]) == [None]
            assert wire.cuts == []
            wire.cuts = [moment, moment]  # and twice in a row: who is told so may send it again
            (appended,) = first_of(1, sequence=sequence + 1)
            wire.marker = appended.entries[0].entry_id.encode()
            with pytest.raises(StoreUnavailable):
                await store.append([appended])
            assert await store.append([appended]) == [None]
            assert await store.read("telegram_1") == sample_entries(1, sequence + 1)
            assert await store.check() == []


@pytest.mark.parametrize("moment", Cut)
async def test_a_connection_that_is_cut_within_a_transaction_is_told_of_in_our_words_and_not_in_the_drivers(
    postgresql: PostgreSQLServer, postgresql_url: str, moment: Cut
) -> None:
    async with Wire(postgresql.directory) as wire:
        url = f"postgresql://{OWNER}@127.0.0.1:{wire.port}/{name_of(postgresql_url)}"
        async with PostgreSQLStore(url) as store:
            assert await store.append(first_of(1)) == [None]
            wire.marker, wire.cuts = b"DELETE FROM entries", [moment]
            with pytest.raises(StoreUnavailable, match="connection was closed in the middle of operation") as told:
                await store.delete("telegram_1")
            assert "cannot call" not in str(told.value)
            assert wire.cuts == []
            assert await store.delete("telegram_1")
            assert await store.check() == []


# --- what an administrator does --------------------------------------------------------------------------------------


@pytest.fixture
def role(postgresql: PostgreSQLServer) -> Iterator[str]:
    """A role that may do nothing yet."""
    name = "clerk"
    anyio.run(postgresql.execute, f"CREATE ROLE {name} LOGIN")
    yield name
    anyio.run(postgresql.execute, f"DROP ROLE {name}")


async def test_a_missing_privilege_is_said_at_the_start_with_the_statement_that_grants_it(
    postgresql: PostgreSQLServer, empty_postgresql_url: str, role: str
) -> None:
    name, url = name_of(empty_postgresql_url), empty_postgresql_url.replace(f"user={OWNER}", f"user={role}")
    with pytest.raises(ConfigError, match="permission denied for schema public; let its owner run GRANT"):
        await PostgreSQLStore(url).__aenter__()
    async with PostgreSQLStore(empty_postgresql_url) as store:
        assert await store.append(first_of(1)) == [None]
    with pytest.raises(ConfigError, match="GRANT"):  # it does not even see that there are tables
        await PostgreSQLStore(url).__aenter__()
    await postgresql.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}", name)
    async with PostgreSQLStore(url) as store:
        assert await store.append(first_of(1, sequence=2)) == [None]
        for privilege, table in (("SELECT", "entries"), ("INSERT", "idempotency_keys"), ("UPDATE", "sessions")):
            await postgresql.execute(f"REVOKE {privilege} ON {table} FROM {role}", name)
            with pytest.raises(ConfigError, match=f"GRANT {privilege} ON {table} TO {role}"):
                await PostgreSQLStore(url).__aenter__()
        with pytest.raises(StoreUnavailable, match=r"permission denied for table .*; let its owner run GRANT"):
            await store.append(first_of(1, sequence=3))
        await postgresql.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}", name)
        assert await store.append(first_of(1, sequence=3)) == [None]
    await postgresql.execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {role}", name)


async def test_a_server_without_connections_left_says_so_and_is_tried_again(
    postgresql: PostgreSQLServer, postgresql_url: str, role: str
) -> None:
    name, url = name_of(postgresql_url), postgresql_url.replace(f"user={OWNER}", f"user={role}")
    async with PostgreSQLStore(postgresql_url):
        pass
    await postgresql.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}", name)
    async with PostgreSQLStore(url) as store:
        await postgresql.execute(f"ALTER ROLE {role} CONNECTION LIMIT 0")
        with pytest.raises(StoreUnavailable, match=r"too many connections .*; it has no connection left; raise"):
            await store.append(first_of(1))
        with pytest.raises(StoreUnavailable, match="no connection left"):
            await PostgreSQLStore(url).__aenter__()
        await postgresql.execute(f"ALTER ROLE {role} CONNECTION LIMIT -1")
        assert await store.append(first_of(1)) == [None]
    await postgresql.execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {role}", name)


@pytest.mark.proof
async def test_a_server_that_comes_to_promise_less_takes_no_more_until_it_promises_again(
    postgresql: PostgreSQLServer, postgresql_url: str
) -> None:
    name = name_of(postgresql_url)
    async with PostgreSQLStore(postgresql_url) as store:
        assert await store.append(first_of(1)) == [None]
        await postgresql.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
        await cut_connections(postgresql, postgresql_url)
        with pytest.raises(StoreUnavailable, match="may lose what it has acknowledged: synchronous_commit is off"):
            await store.append(first_of(1, sequence=2))
        with pytest.raises(StoreUnavailable, match="synchronous_commit is off"):
            await store.still_there()
        await postgresql.execute(f'ALTER DATABASE "{name}" RESET synchronous_commit')
        await store.still_there()
        assert await store.append(first_of(1, sequence=2)) == [None]


async def test_a_misspelt_option_of_the_url_is_answered_with_the_right_one(postgresql_url: str) -> None:
    with pytest.raises(ConfigError, match=r"did you mean statement_timeout_s\?"):
        await PostgreSQLStore(f"{postgresql_url}&statment_timeout_s=5").__aenter__()
    with pytest.raises(ConfigError, match='read_connections is "0"'):
        PostgreSQLStore(f"{postgresql_url}&read_connections=0")


async def test_without_a_standby_the_start_says_what_is_at_risk(postgresql_url: str) -> None:
    with structlog.testing.capture_logs() as logged:
        async with PostgreSQLStore(postgresql_url):
            pass
    (record,) = [one for one in logged if one.get("action") == "store.at_risk"]
    assert record["log_level"] == "warning"
    assert "if the disk of this server is lost, so are the messages" in record["event"]


async def test_a_host_that_says_nothing_does_not_keep_us_from_the_next_one(
    postgresql: PostgreSQLServer, postgresql_url: str, short_path: Path
) -> None:
    name = name_of(postgresql_url)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(short_path / ".s.PGSQL.5432"))
        silent.listen(100)
        hosts = quote(f"{short_path},{postgresql.directory}", safe="")
        url = f"postgresql:///{name}?host={hosts}&user={OWNER}&connect_timeout_s=3600&acquire_timeout_s=3600"
        async with PostgreSQLStore(url) as store:
            assert await store.append(first_of(1)) == [None]
            assert await store.read("telegram_1") == sample_entries(1, 1)


async def test_a_role_that_may_not_even_see_tables_is_told_what_to_grant(
    postgresql: PostgreSQLServer, postgresql_url: str, role: str
) -> None:
    name, url = name_of(postgresql_url), postgresql_url.replace(f"user={OWNER}", f"user={role}")
    async with PostgreSQLStore(postgresql_url):
        pass
    await postgresql.execute(f"GRANT CREATE, USAGE ON SCHEMA public TO {role}", name)
    with pytest.raises(ConfigError, match=f"GRANT DELETE, INSERT, SELECT, UPDATE ON sessions TO {role}"):
        await PostgreSQLStore(url).__aenter__()
    await postgresql.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}", name)
    await postgresql.execute(f"REVOKE ALL ON properties FROM {role}", name)
    with pytest.raises(ConfigError, match=f"GRANT DELETE, INSERT, SELECT, UPDATE ON properties TO {role}"):
        await PostgreSQLStore(url).__aenter__()
    await postgresql.execute(f"DROP OWNED BY {role}", name)


async def test_health_says_which_privilege_was_taken_away_and_is_well_again_with_it(
    postgresql: PostgreSQLServer, postgresql_url: str, role: str
) -> None:
    name, url = name_of(postgresql_url), postgresql_url.replace(f"user={OWNER}", f"user={role}")
    async with PostgreSQLStore(postgresql_url):
        pass
    await postgresql.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}", name)
    async with SessionManager(store=url, settings=SessionSettings(flush_interval_s=3600)) as manager:
        await postgresql.execute(f"REVOKE INSERT ON sessions FROM {role}", name)
        with pytest.raises(StoreUnavailable, match="let its owner run"):
            await (await manager.get_or_create("telegram", 1)).add_message(Message.user("hello"))
        assert "permission denied for table sessions" in str(manager.health().problems)
        with suppress(StoreUnavailable):
            await manager.flush()
        assert f"GRANT INSERT ON sessions TO {role}" in str(manager.health().problems)
        await postgresql.execute(f"GRANT INSERT ON sessions TO {role}", name)
        await manager.flush()
        assert manager.health().ok
    await postgresql.execute(f"DROP OWNED BY {role}", name)


# --- TLS -------------------------------------------------------------------------------------------------------------


class Certificates:
    """An authority and what it has signed, in files."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.root = self._write(f"{name}.crt", self._signed(self._name, self._key.public_key(), is_authority=True))

    def make(self, name: str) -> tuple[str, str]:
        """A certificate for a name, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._write(f"{name}.crt", self._signed(subject, key.public_key(), is_authority=False))
        secret = self._directory / f"{name}.key"
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        secret.chmod(0o600)
        return certificate, str(secret)

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool) -> bytes:
        now = SystemClock().now()
        name = subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(str(name))]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    def _write(self, name: str, data: bytes) -> str:
        path = self._directory / name
        path.write_bytes(data)
        return str(path)


async def test_tls_is_as_strict_as_it_is_set_and_says_what_is_wrong(
    postgresql: PostgreSQLServer, postgresql_url: str, tmp_path: Path
) -> None:
    ours, other = Certificates(tmp_path, "ours"), Certificates(tmp_path, "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*ours.make("localhost"))
    wrong, right = {"sslrootcert": other.root}, {"sslrootcert": ours.root}
    async with Wire(postgresql.directory, tls=context) as wire, Wire(postgresql.directory) as plain:
        for settings, host, port, says in (
            ({"sslmode": "verify-full", **right}, "localhost", wire.port, None),
            ({"sslmode": "verify-ca", **right}, "127.0.0.1", wire.port, None),
            ({"sslmode": "verify-full", **right}, "127.0.0.1", wire.port, "IP address mismatch.*see sslmode"),
            ({"sslmode": "verify-full", **wrong}, "localhost", wire.port, "certificate verify failed.*see sslmode"),
            ({"sslmode": "verify-full"}, "localhost", wire.port, "root certificate file"),
            ({"sslmode": "verify-full", "sslrootcert": "gone"}, "localhost", wire.port, "cannot read gone, which"),
            ({"sslmode": "require"}, "localhost", plain.port, "rejected SSL upgrade; see sslmode"),
            ({"sslmode": "prefer"}, "localhost", plain.port, None),
        ):
            url = f"postgresql://{OWNER}@{host}:{port}/{name_of(postgresql_url)}"
            store = PostgreSQLStore(url, PostgreSQLSettings(**settings))  # type: ignore[arg-type]
            if says is None:
                async with store:
                    assert await store.append(first_of(1)) == [None]
            else:
                with pytest.raises(ConfigError, match=says):
                    await store.__aenter__()


async def test_a_client_certificate_is_shown_to_a_server_that_asks_for_one(
    postgresql: PostgreSQLServer, postgresql_url: str, tmp_path: Path
) -> None:
    ours = Certificates(tmp_path, "ours")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*ours.make("localhost"))
    context.load_verify_locations(ours.root)
    context.verify_mode = ssl.CERT_REQUIRED
    certificate, key = ours.make("gateway")
    async with Wire(postgresql.directory, tls=context) as wire:
        url = f"postgresql://{OWNER}@localhost:{wire.port}/{name_of(postgresql_url)}"
        with pytest.raises((ConfigError, StoreUnavailable), match="cannot open"):
            await PostgreSQLStore(url, PostgreSQLSettings(sslmode="verify-full", sslrootcert=ours.root)).__aenter__()
        settings = PostgreSQLSettings(sslmode="verify-full", sslrootcert=ours.root, sslcert=certificate, sslkey=key)
        async with PostgreSQLStore(url, settings) as store:
            assert await store.append(first_of(1)) == [None]


# --- secrets ---------------------------------------------------------------------------------------------------------


async def test_a_connection_that_comes_too_late_for_its_caller_is_closed(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, is_ending = list[asyncpg.Connection](), anyio.Event()
    connect = asyncpg.connect

    async def connected(dsn: str, **options: object) -> object:
        if "nowhere" not in dsn:
            found.append(await connect(dsn, **options))
            return found[0]
        try:
            await anyio.sleep_forever()
        finally:
            is_ending.set()
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.1)
        raise AssertionError

    monkeypatch.setattr(asyncpg, "connect", connected)
    place = address(postgresql_url, PostgreSQLSettings())
    two = msgspec.structs.replace(place, dsns=(*place.dsns, "postgresql://nowhere/x"))
    connecting = asyncio.create_task(Connections(two)._connect())
    await is_ending.wait()
    connecting.cancel()  # as the pool does when its caller's patience ends
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert found[0].is_closed()


async def test_a_password_file_that_cannot_be_read_for_a_while_makes_the_store_unavailable(
    postgresql_url: str, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    await to_thread.run_sync(secret.write_text, "open sesame")
    await to_thread.run_sync(secret.chmod, 0o600)
    async with PostgreSQLStore(postgresql_url, PostgreSQLSettings(password_file=str(secret))) as store:
        await to_thread.run_sync(secret.rename, tmp_path / "new")
        for call in (store.read, store.head, store.delete):
            with pytest.raises(StoreUnavailable, match="cannot read the secret"):
                await call("telegram_1")
        with pytest.raises(StoreUnavailable, match="cannot read the secret"):
            await store.append(first_of(1))
        await to_thread.run_sync((tmp_path / "new").rename, secret)
        assert await store.append(first_of(1)) == [None]


async def test_a_password_is_in_no_error_log_or_health_of_a_manager(postgresql_url: str, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    await to_thread.run_sync(secret.write_text, "open sesame")
    await to_thread.run_sync(secret.chmod, 0o640)
    settings = SessionSettings(
        store=postgresql_url, postgresql=PostgreSQLSettings(password_file=str(secret)), flush_interval_s=3600
    )
    with structlog.testing.capture_logs() as logged:
        async with SessionManager(tmp_path / "workspace", settings=settings) as manager:
            session = await manager.get_or_create("telegram", "1")
            await session.add_message(Message(Role.USER, "hello"))
            shown = f"{manager!r} {manager.store!r} {manager.health()} {manager.settings} {manager.statistics()}"
        await to_thread.run_sync(secret.chmod, 0o644)
        with pytest.raises(ConfigError, match="run chmod 600 on it") as caught:
            await SessionManager(tmp_path / "workspace", settings=settings).__aenter__()
    assert "sesame" not in f"{shown} {logged} {caught.value!r}"
    assert "postgresql://" in f"{logged}"


@pytest.mark.parametrize("between", ["/", "@", "?", "#", " ", ":", "[", "&", "%"])
def test_a_password_in_a_url_is_refused_and_masked_whatever_is_in_it(between: str) -> None:
    url = f"postgresql://user:s3cr3t{between}Tail@localhost/database"
    with pytest.raises(ConfigError, match="a password in its URL") as caught:
        PostgreSQLStore(url)
    for shown in (masked(url), str(caught.value)):
        assert "s3cr3t" not in shown
        assert "Tail" not in shown
        assert "localhost/database" in shown


async def test_whoever_only_indexes_a_session_is_in_no_appends_way(
    postgresql: PostgreSQLServer, postgresql_url: str
) -> None:
    async with PostgreSQLStore(postgresql_url) as store:
        assert await store.append(first_of(1)) == [None]
        async with open_transaction(postgresql, postgresql_url, "SELECT * FROM sessions FOR KEY SHARE"):
            assert await store.append(first_of(1, sequence=2)) == [None]
