"""A store on a server is backed up, restored and moved like any other, with all that others have beside them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from miniclaw_sessions import SessionManager
from miniclaw_sessions.core.persistence.mirrored import MirroredIds
from miniclaw_sessions.core.stores.base import Append
from miniclaw_sessions.core.stores.postgresql.store import PostgreSQLStore
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import ConfigError, KeyNeeded, StoreError, StoreUnavailable, WrongKey
from miniclaw_sessions.files.transfer.backup import back_up, back_up_closed, restore, verify_backup
from miniclaw_sessions.files.transfer.migrating import Change, location, migrate
from miniclaw_sessions.files.transfer.surroundings import InDirectory, OnServer
from miniclaw_sessions.testing import FakeClock
from tests.command_line import Cli
from tests.core.persistence.encrypted_homes import NEW_KEY, OLD_KEY, SECRET, Home, Said
from tests.files.transfer.test_migrating import everything
from tests.postgresql import PostgreSQLServer

pytestmark = pytest.mark.anyio

KEYS = pytest.mark.parametrize(
    "keys", [pytest.param(None, id="plain"), pytest.param(OLD_KEY, id="encrypted", marks=pytest.mark.proof)]
)


class Server(Home):
    """A home that is a database: the same words, no directory."""

    def __init__(self, url: str, nowhere: Path) -> None:
        super().__init__(nowhere, url)

    async def fill(self, keys: KeyRing | None, sessions: int = 3) -> None:
        async with self.open(keys) as manager:
            assert manager.workspace is None
            for number in range(sessions):
                await self.say(manager, number)


@pytest.fixture
def server(postgresql_url: str, tmp_path: Path) -> Server:
    return Server(postgresql_url, tmp_path / "nowhere")


@pytest.fixture
def another(postgresql: PostgreSQLServer, tmp_path: Path) -> Iterator[Server]:
    name = asyncio.run(postgresql.database_with_tables())
    yield Server(postgresql.url(name), tmp_path / "nowhere")
    asyncio.run(postgresql.drop_database(name))


async def archived(manager: SessionManager) -> list[str]:
    """What comes back of the archived session."""
    return [message.text for message in (await manager.restore("telegram_expired")).messages()]


EXPIRED = [f"{SECRET} expired/{number}" for number in range(6)][-4:]


@KEYS
async def test_a_workspace_moves_to_a_server_and_back_with_its_archive_and_its_encryption(
    keys: KeyRing | None, server: Server, tmp_path: Path
) -> None:
    home, back = Home(tmp_path / "w"), Home(tmp_path / "back", "jsonl:")
    await home.fill(keys)
    said = await home.said(keys)
    MirroredIds(home.workspace).note("import_deleted")
    here, there = location(str(home.workspace), tmp_path), location(server.settings.store, tmp_path)
    moved = await migrate(here, there)
    assert (moved.archived, moved.copied.different) == (1, [])
    assert (await migrate(here, there)).archived == 0
    if keys is not None:
        for wrong, error in ((None, KeyNeeded), (NEW_KEY, WrongKey)):
            with pytest.raises(error):
                await server.open(wrong).__aenter__()
    assert await server.said(keys) == said
    moved = await migrate(there, location("jsonl:", back.workspace))
    assert moved.archived == 1
    assert await back.said(keys) == said
    for one in (server, back):
        async with one.open(keys) as manager:
            assert await archived(manager) == EXPIRED
    assert keys is None or back.showing() == []
    assert list(MirroredIds(back.workspace)) == ["import_deleted"]


@KEYS
async def test_when_sessions_were_used_and_their_checkpoints_go_to_a_server_and_back(
    keys: KeyRing | None, server: Server, tmp_path: Path
) -> None:
    """Of the server's own clock only days can be asked: it is not ours."""
    home, back = Home(tmp_path / "w"), Home(tmp_path / "back")
    for one, days in ((1, 20), (2, 3)):
        home.clock = FakeClock(datetime.now(UTC) - timedelta(days=days))
        async with home.open(keys) as manager:
            await home.say(manager, one)
    await migrate(location("sqlite:", home.workspace), location(server.settings.store, tmp_path), keys)
    async with PostgreSQLStore(server.settings.store) as store:
        assert [one.session_id for one in await store.newest(limit=9)] == ["telegram_2", "telegram_1"]
        loaded = await store.load(["telegram_1", "telegram_2"])
    assert [(one.checkpoint is not None, list(one.entries)) for one in loaded] == [(True, []), (True, [])]
    assert [round((datetime.now(UTC) - one.used_at) / timedelta(days=1)) for one in loaded] == [20, 3]
    await migrate(location(server.settings.store, tmp_path), location("sqlite:", back.workspace), keys)
    async with back.open(keys) as manager:
        ages = [round((datetime.now(UTC) - row.last_accessed) / timedelta(days=1)) for row in await manager.list()]
        assert (sorted(ages), manager.recovery.rebuilt) == ([3, 20], 0)


@pytest.mark.proof
async def test_a_database_is_encrypted_and_decrypted_on_the_way_with_its_archive(
    server: Server, another: Server, tmp_path: Path
) -> None:
    home, back = Home(tmp_path / "w"), Home(tmp_path / "back")
    await home.fill(None)
    said = await home.said(None)
    places = [location(text, tmp_path) for text in (str(home.workspace), server.settings.store, another.settings.store)]
    await migrate(places[0], places[1], OLD_KEY, change=Change.ENCRYPT)
    await migrate(places[1], places[2])
    with pytest.raises(ConfigError, match="say --encrypt"):
        await migrate(places[0], places[2])
    assert await another.said(OLD_KEY) == said
    moved = await migrate(places[2], location(str(back.workspace), tmp_path), OLD_KEY, change=Change.DECRYPT)
    assert (moved.archived, moved.copied.problems) == (1, [])
    assert await back.said(None) == said
    async with back.open(None) as manager:
        assert await archived(manager) == EXPIRED


@pytest.mark.proof
@KEYS
async def test_a_database_is_backed_up_while_it_is_used_and_restored_anywhere(
    keys: KeyRing | None, server: Server, another: Server, tmp_path: Path
) -> None:
    workspace = Home(tmp_path / "w")
    await workspace.fill(keys)
    await migrate(location(str(workspace.workspace), tmp_path), location(server.settings.store, tmp_path))
    async with server.open(keys) as manager:
        await server.say(manager, "new", 2)
        made = await back_up(manager, tmp_path / "backup")
    said = await server.said(keys)
    assert (made.store, made.sessions, made.problems) == ("sqlite:", 4, [])
    assert made.key == (None if keys is None else keys.ids[0])
    assert (await back_up_closed(Path(), server.settings, tmp_path / "another")).entries == made.entries
    assert (await verify_backup(tmp_path / "backup")).problems == []
    home = Home(tmp_path / "restored", "jsonl:")
    for one in (home, another):
        await restore(tmp_path / "backup", one.workspace, one.settings)
        assert await one.said(keys) == said
        async with one.open(keys) as manager:
            assert await archived(manager) == EXPIRED
    assert not another.workspace.exists()
    first, second = (location(one.settings.store, tmp_path) for one in (server, another))
    whole = await everything(second)
    assert {name: whole[name] for name in await everything(first)} == await everything(first)


async def test_an_archived_session_that_goes_while_it_is_copied_leaves_no_part_of_it(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"20260101T000000.00000{number}Z-telegram_{number}.jsonl" for number in range(3)]
    read = PostgreSQLStore.read_archived

    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    async def read_and_delete(store: PostgreSQLStore, session_id: str, name: str) -> AsyncIterator[bytes]:
        if name == names[0]:
            await store.delete_archived("telegram_0")
        async for piece in read(store, session_id, name):
            yield piece
            if name == names[1]:
                await store.delete_archived("telegram_1")

    async with PostgreSQLStore(server.settings.store) as store:
        for number, name in enumerate(names):
            await store.write_archived(f"telegram_{number}", name, pieces())
        monkeypatch.setattr(PostgreSQLStore, "read_archived", read_and_delete)
        here, there = OnServer(store), InDirectory(tmp_path)
        assert await there.take_archived(here, None, []) == 1
        archive = tmp_path / "archive"
        assert [(file.name, file.read_bytes()) for file in archive.iterdir()] == [(names[2], b"onetwo")]
        (archive / names[0]).write_bytes(b"zero")
        listed = store.archived

        async def list_and_remove(*of: str) -> list[str]:
            (archive / names[0]).unlink()
            return await listed(*of)

        monkeypatch.setattr(store, "archived", list_and_remove)
        assert await here.take_archived(there, None, []) == 0


async def test_a_restore_to_a_server_that_was_cut_off_goes_on_and_meets_nothing_that_lives(
    server: Server, another: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.fill(None)
    await back_up_closed(Path(), server.settings, tmp_path / "backup")
    append, calls = PostgreSQLStore.append, 0

    async def failing(store: PostgreSQLStore, appends: Sequence[Append]) -> list[StoreError | None]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise StoreUnavailable("the server went away")
        return await append(store, appends)

    with monkeypatch.context() as patched:
        patched.setattr("miniclaw_sessions.core.stores.copying.GROUP", 8)
        patched.setattr(PostgreSQLStore, "append", failing)
        with pytest.raises(StoreUnavailable, match="went away"):
            await restore(tmp_path / "backup", Path(), another.settings)
    assert 0 < len(await everything(location(another.settings.store, tmp_path))) < 3
    await restore(tmp_path / "backup", Path(), another.settings)
    said: Said = await server.said(None)
    assert await another.said(None) == said
    async with another.open(None) as manager:
        await another.say(manager, "other", 1)
    with pytest.raises(ConfigError, match="there is something already; nothing was changed"):
        await restore(tmp_path / "backup", Path(), another.settings)
    with pytest.raises(ConfigError, match="is there already"):
        await back_up_closed(Path(), server.settings, tmp_path / "backup")


@pytest.fixture
async def cli(server: Server, monkeypatch: pytest.MonkeyPatch, own_home: None) -> Cli:
    del own_home
    await server.fill(None)
    monkeypatch.setenv("MINICLAW_SESSIONS_STORE", server.settings.store)
    return Cli(server.workspace, monkeypatch)


async def test_the_commands_back_a_database_up_and_put_it_back(cli: Cli, another: Server, tmp_path: Path) -> None:
    def run() -> None:
        made = cli("backup", str(tmp_path / "backup"), "--json")
        assert made.status == 0, made.err
        assert (made.status, made.document["sessions"], made.document["entries"]) == (0, 3, 21)
        restored = cli("restore", str(tmp_path / "backup"), "--json")
        assert (restored.status, restored.document["entries"]) == (0, 21)  # it has all of it already
        planned = cli("migrate", "--to", another.settings.store, "--dry-run")
        assert "3 sessions would be copied" in planned.out
        moved = cli("migrate", "--to", another.settings.store, "--json")
        assert (moved.status, moved.document["written"]) == (0, 21)
        moved = cli("migrate", "--to", str(tmp_path / "new"))
        assert f"now set workspace to '{tmp_path}/new'" in moved.out

    await asyncio.to_thread(run)
    assert json.loads((tmp_path / "backup" / "backup.json").read_bytes())["store"] == "sqlite:"
    assert not cli.workspace.exists()
