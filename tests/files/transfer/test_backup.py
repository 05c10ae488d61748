"""A backup is made while the workspace is used, tells when it is damaged, and restores what was acknowledged."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any

import anyio
import pytest

from miniclaw_sessions import Message
from miniclaw_sessions.core.manager import open_readonly
from miniclaw_sessions.core.persistence.backups import MOST, known_backups, note_backup
from miniclaw_sessions.core.persistence.losses import Loss, Losses
from miniclaw_sessions.core.stores.base import Append, Store
from miniclaw_sessions.core.stores.jsonl.store import JSONLStore
from miniclaw_sessions.core.stores.sqlite.store import SQLiteStore
from miniclaw_sessions.disk import Directory
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import ConfigError, DirectoryInUse, StoreError
from miniclaw_sessions.files.transfer.backup import MANIFEST, back_up, back_up_closed, restore, verify_backup
from tests.core.persistence.encrypted_homes import OLD_KEY, Home
from tests.fuzz.every_step import Cancelled
from tests.sampled import sampled

pytestmark = pytest.mark.anyio


@pytest.fixture(params=sampled(["sqlite:", "jsonl:", "none:"], every=3))
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    return Home(tmp_path / "w", request.param)


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    return tmp_path / "backup"


def restored_home(home: Home) -> Home:
    return Home(home.workspace.with_name("restored"), home.settings.store)


async def restored(home: Home, backup: Path, **options: Any) -> Home:
    other = restored_home(home)
    await restore(backup, other.workspace, other.settings, **options)
    return other


@pytest.mark.parametrize("keys", sampled([OLD_KEY, None], every=2), ids=["encrypted", "plain"])
async def test_what_was_backed_up_is_restored_whole(home: Home, backup: Path, keys: KeyRing | None) -> None:
    await home.fill(keys)
    said, contents = await home.said(keys), home.contents()
    stages: dict[str, int] = {}
    report = await back_up_closed(
        home.workspace, home.settings, backup, lambda stage, done, _: stages.update({stage: done})
    )
    assert (report.key, report.problems) == (None if keys is None else keys.ids[0], [])
    assert report.snapshots == report.sessions == len(said)
    assert report.entries == (0 if home.settings.store == "none:" else 3 * 7)
    assert stages["copying sessions"] == len(said)
    verified = await verify_backup(backup)
    assert verified.problems == []
    assert verified == report
    other = await restored(home, backup)
    assert await other.said(keys) == said
    kept = {name for name in contents if name.startswith(("archive/", "quarantine/"))}
    assert kept
    assert {name: other.contents()[name] for name in kept} == {name: contents[name] for name in kept}
    assert not [name for name in other.contents() if "restoring" in name or name == MANIFEST]
    if keys is not None:
        assert home.showing() == other.showing() == []


@pytest.mark.parametrize("keys", sampled([OLD_KEY, None], every=2), ids=["encrypted", "plain"])
async def test_what_a_workspace_has_lost_is_known_after_restoring_too(
    home: Home, backup: Path, keys: KeyRing | None
) -> None:
    await home.fill(keys)
    loss = Loss(7, datetime(2026, 1, 2, tzinfo=UTC))
    Losses(home.workspace).note({"telegram_1": loss})
    await back_up_closed(home.workspace, home.settings, backup)
    assert (await verify_backup(backup)).problems == []
    async with (await restored(home, backup)).open(keys) as manager:
        assert manager.source.losses == {"telegram_1": loss}
        assert [loss.sentence("telegram_1")] == (await manager.check()).problems


def test_no_more_than_the_newest_backups_are_remembered(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    for number in range(MOST + 5):
        (tmp_path / str(number)).mkdir()
        note_backup(tmp_path / "w", tmp_path / str(number), datetime(2026, 1, 2, tzinfo=UTC))
    assert [Path(one.path).name for one in known_backups(tmp_path / "w")] == [str(n) for n in range(5, MOST + 5)]


@pytest.mark.parametrize("keys", sampled([None, OLD_KEY], every=2), ids=["plain", "encrypted"])
async def test_a_backup_under_load_is_sound_and_has_all_that_was_acknowledged_before(
    home: Home, backup: Path, keys: KeyRing | None
) -> None:
    async with home.open(keys) as manager:
        for number in range(5):
            await home.say(manager, number, 60)
        before = {row.session_id: row for row in await manager.list()}
        stopped = False

        async def go_on(number: int) -> None:
            session = await manager.get_or_create("telegram", number)
            for count in itertools.count():
                if stopped:
                    return
                await session.add_message(Message.user(f"more {count}"))

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(go_on, number)
            report = await back_up(manager, backup)
            stopped = True
    assert report.problems == (await verify_backup(backup)).problems == []
    other = await restored(home, backup)
    async with other.open(keys) as manager:
        assert (await manager.check()).problems == []
        for session_id in before:
            session = await manager.find(session_id)
            texts = [message.text for message in session.messages()]
            if home.settings.store != "none:":
                texts = [e.message.text for e in (await session.tree.get_transcript()).entries if hasattr(e, "message")]
                assert len([text for text in texts if not text.startswith("more")]) == 60
            more = [text for text in texts if text.startswith("more")]
            first = int(more[0].split()[1]) if more else 0
            assert more == [f"more {number}" for number in range(first, first + len(more))]


async def test_a_session_that_is_deleted_meanwhile_does_not_come_back(
    tmp_path: Path, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "w", "sqlite:")
    async with home.open(None) as manager:
        for number in range(3):
            await home.say(manager, number)
        await manager.flush()
        read_all = SQLiteStore.heads

        async def delete_first(store: Any) -> Any:
            await manager.delete("telegram_1")
            async for stored in read_all(store):
                yield stored

        monkeypatch.setattr(SQLiteStore, "heads", delete_first)
        await back_up(manager, backup)
        monkeypatch.undo()
    assert (await restored(home, backup)) is not None
    assert set(await restored_home(home).said(None)) == {"telegram_0", "telegram_2"}


async def test_a_file_that_goes_while_it_is_copied_is_left_out(
    tmp_path: Path, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "w", "sqlite:")
    async with home.open(None) as manager:
        await home.say(manager, 1)
        await home.say(manager, 2)
        await manager.flush()
        read = Directory.read

        def read_and_remove(directory: Directory, name: str, **options: Any) -> bytes:
            data = read(directory, name, **options)
            if name == "telegram_1.json":
                (directory.path / name).unlink()
            return data

        monkeypatch.setattr(Directory, "read", read_and_remove)
        report = await back_up(manager, backup)
        monkeypatch.undo()
    assert [Path(name).name for name in report.files if "telegram_" in name] == ["telegram_2.json"]
    await restored(home, backup)
    said = await restored_home(home).said(None)
    assert {session_id: len(texts) for session_id, texts in said.items()} == {"telegram_1": 6, "telegram_2": 6}


@pytest.mark.parametrize(("store", "kind"), [("sqlite:", SQLiteStore), ("jsonl:", JSONLStore)])
async def test_a_session_that_is_replaced_meanwhile_is_backed_up_as_one_of_both(
    tmp_path: Path, backup: Path, monkeypatch: pytest.MonkeyPatch, store: str, kind: type[Store]
) -> None:
    home = Home(tmp_path / "w", store)
    async with home.open(None) as manager:
        await home.say(manager, 1)
        await home.say(manager, 2)
        await manager.flush()
        append = kind.append

        async def replace(copy: Store, appends: Sequence[Append]) -> list[StoreError | None]:
            monkeypatch.undo()  # the copy has read the session, and writes now what it was
            await manager.delete("telegram_1")
            await home.say(manager, 1, count=1)
            return await append(copy, appends)

        monkeypatch.setattr(kind, "append", replace)
        await back_up(manager, backup)
    await restored(home, backup)
    async with restored_home(home).open(None) as manager:
        assert manager.recovery.quarantined == []
        assert (await manager.check()).problems == []
    said = await restored_home(home).said(None)
    assert {session_id: len(texts) for session_id, texts in said.items()} == {"telegram_1": 1, "telegram_2": 6}


async def test_every_damage_to_a_backup_is_told(home: Home, backup: Path) -> None:
    await home.fill(None)
    report = await back_up_closed(home.workspace, home.settings, backup)
    for name in report.files:
        file = backup / name
        sound = file.read_bytes()
        if sound:
            file.write_bytes(bytes([sound[0] ^ 1]) + sound[1:])
            assert (await verify_backup(backup)).problems == [f"{name} is damaged: it is not what was backed up"]
        file.unlink()
        assert (await verify_backup(backup)).problems == [f"{name} is missing"]
        with pytest.raises(ConfigError, match="is missing"):
            await restored(home, backup)
        file.write_bytes(sound)
    (backup / "sessions" / "strange.json").write_text("{}")
    assert (await verify_backup(backup)).problems == ["sessions/strange.json does not belong to the backup"]
    (backup / MANIFEST).unlink()
    with pytest.raises(ConfigError, match="not a complete one"):
        await verify_backup(backup)
    assert not restored_home(home).workspace.exists()


async def test_nothing_that_lives_is_written_over(home: Home, backup: Path) -> None:
    await home.fill(None)
    await back_up_closed(home.workspace, home.settings, backup)
    before = home.contents()
    with pytest.raises(ConfigError, match="there is a workspace already"):
        await restore(backup, home.workspace, home.settings)
    with pytest.raises(ConfigError, match="there already"):
        await back_up_closed(home.workspace, home.settings, backup)
    async with home.open(None):
        with pytest.raises(DirectoryInUse):
            await restore(backup, home.workspace, home.settings)
        with pytest.raises(DirectoryInUse):
            await back_up_closed(home.workspace, home.settings, backup.with_name("another"))
    assert home.contents().keys() == before.keys()
    assert not backup.with_name("another").exists()


@pytest.mark.parametrize("inside", ["", "backup", "sessions/backup"])
async def test_no_backup_is_made_into_the_workspace_itself(home: Home, inside: str) -> None:
    await home.fill(None)
    before = home.contents()
    with pytest.raises(ConfigError, match="in the workspace itself"):
        await back_up_closed(home.workspace, home.settings, home.workspace / inside)
    assert home.contents().keys() == before.keys()


@pytest.mark.parametrize("keys", sampled([OLD_KEY, None], every=2), ids=["encrypted", "plain"])
@pytest.mark.parametrize("store", ["sqlite:", "jsonl:", "sqlite-elsewhere"])
async def test_a_backup_is_restored_with_any_store(
    home: Home, backup: Path, tmp_path: Path, store: str, keys: KeyRing | None
) -> None:
    await home.fill(keys)
    said = await home.said(keys)
    await back_up_closed(home.workspace, home.settings, backup)
    other = Home(tmp_path / "restored", store.replace("sqlite-elsewhere", f"sqlite://{tmp_path}/elsewhere.db"))
    await restore(backup, other.workspace, other.settings)
    async with other.open(keys) as manager:
        found = [await manager.find(row.session_id) for row in await manager.list()]
        assert {one.session_id: [message.text for message in one.messages()] for one in found} == {
            session_id: texts[-home.settings.window :] for session_id, texts in said.items()
        }
    if home.settings.store != "none:":
        assert await other.said(keys) == said


async def test_a_backup_with_entries_is_not_restored_where_they_would_be_lost(tmp_path: Path, backup: Path) -> None:
    home = Home(tmp_path / "w", "jsonl:")
    await home.fill(None)
    await back_up_closed(home.workspace, home.settings, backup)
    for store in ("none:", "memory:"):
        other = Home(tmp_path / "restored", store)
        with pytest.raises(ConfigError, match="migrate afterwards"):
            await restore(backup, other.workspace, other.settings)
    assert not (tmp_path / "restored").exists()


async def test_a_store_that_is_in_no_file_is_backed_up_into_one(tmp_path: Path, backup: Path) -> None:
    home = Home(tmp_path / "w", "memory:")
    async with home.open(None) as manager:
        await home.say(manager, 1)
        report = await back_up(manager, backup)
    assert (report.store, report.sessions, report.entries) == ("sqlite:", 1, 7)
    other = Home(tmp_path / "restored", "jsonl:")
    await restore(backup, other.workspace, other.settings)
    assert len((await other.said(None))["telegram_1"]) == 6


class CutError(BaseException):
    """The process ends here, as far as files are concerned."""


@contextmanager
def cut_at(step: int) -> Iterator[None]:
    done: list[str] = []
    originals = {name: getattr(Directory, name) for name in ("create", "publish", "take_all", "copy")}

    def cutting(name: str) -> Any:
        @wraps(originals[name])
        def step_or_cut(*arguments: Any, **named: Any) -> Any:
            if len(done) >= step:
                raise CutError
            done.append(name)
            return originals[name](*arguments, **named)

        return step_or_cut

    for name in originals:
        setattr(Directory, name, cutting(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(Directory, name, original)


@pytest.mark.proof
async def test_a_restore_that_is_cut_off_anywhere_is_run_again(tmp_path: Path, backup: Path) -> None:
    home = Home(tmp_path / "w", "jsonl:")
    await home.fill(OLD_KEY)
    said = await home.said(OLD_KEY)
    await back_up_closed(home.workspace, home.settings, backup)
    other = restored_home(home)
    for step in itertools.count():
        with cut_at(step):
            try:
                await restored(home, backup)
            except CutError:
                is_done = False
            else:
                is_done = True
        if is_done:
            break
        if (other.workspace / ".restoring" / MANIFEST).exists():
            with pytest.raises(ConfigError, match="run `miniclaw-sessions restore` again"):
                await other.said(OLD_KEY)
        await restored(home, backup)
        assert await other.said(OLD_KEY) == said
        shutil.rmtree(other.workspace)
    assert step > 8


async def test_whoever_is_cancelled_while_a_thread_takes_the_lock_leaves_it_free(home: Home, backup: Path) -> None:
    """asyncio's own cancellation: what the thread returns then, nobody gets."""
    await home.fill(None)
    for step in range(4):
        cancelled = Cancelled("native, on arrival", step)
        await cancelled.run(back_up_closed(home.workspace, home.settings, backup / str(step)))
        assert cancelled.is_reached
        await home.said(None)


async def test_a_workspace_is_backed_up_that_was_begun_after_half_a_restore(
    home: Home, backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with home.open(None) as manager:
        await home.say(manager, 1)
    await back_up_closed(home.workspace, home.settings, backup)
    other = restored_home(home)
    other.workspace.mkdir()

    def cut_off(*_: object, **__: object) -> None:  # before the list of files is there
        raise EOFError

    monkeypatch.setattr(Directory, "copy", cut_off)
    with pytest.raises(EOFError):
        await restored(home, backup)
    monkeypatch.undo()
    async with other.open(None) as manager:
        await home.say(manager, 2)
    report = await back_up_closed(other.workspace, other.settings, tmp_path / "another")
    assert (report.sessions, report.problems) == (1, [])


@pytest.mark.parametrize("store", ["none:", "jsonl:", "sqlite:"])
async def test_the_backup_of_a_workspace_without_sessions_is_one_like_any_other(
    store: str, tmp_path: Path, backup: Path
) -> None:
    home = Home(tmp_path / "w", store)
    async with home.open(None):
        pass
    made = await back_up_closed(home.workspace, home.settings, backup)
    other = Home(tmp_path / "restored", made.store)
    await restore(backup, other.workspace, other.settings)
    for place in (backup, other.workspace):
        async with open_readonly(place, settings=other.settings) as sessions:
            assert await sessions.list() == []
    assert (await verify_backup(backup)).problems == []
