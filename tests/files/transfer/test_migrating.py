"""Sessions move from one store to another, of any kinds, and none is lost, doubled or changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from miniclaw_sessions import Message
from miniclaw_sessions.core.manager import open_readonly
from miniclaw_sessions.core.stores import open_store
from miniclaw_sessions.core.stores.base import Append, StoredEntry, damaged
from miniclaw_sessions.core.stores.copying import copy_store
from miniclaw_sessions.core.stores.jsonl.store import JSONLStore
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.core.stores.sqlite.store import SQLiteStore
from miniclaw_sessions.disk import DirectoryLock
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import ConfigError, DirectoryInUse, StoreError, StoreUnavailable
from miniclaw_sessions.files.transfer.backup import back_up_closed
from miniclaw_sessions.files.transfer.migrating import Change, Location, location, migrate
from miniclaw_sessions.testing.store_kit import sample_entries, sample_head
from tests.core.persistence.encrypted_homes import BOTH, DAY, NEW, NEW_KEY, OLD, OLD_KEY, SECRET, Home
from tests.sampled import sampled

pytestmark = pytest.mark.anyio

ENTRIES = 3 * 7

Everything = dict[str, tuple[str, Sequence[StoredEntry]]]


async def everything(place: Location) -> Everything:
    """What a store says of every session: its incarnation, and each entry with its key and its bytes."""
    async with open_store(place.place, place.workspace or Path()) as store:
        return {
            stored.head.session_id: (stored.head.incarnation, await store.read(stored.head.session_id))
            async for stored in store.heads()
        }


def place_of(kind: str, home: Home, postgresql_url: str) -> Location:
    return location(postgresql_url if kind == "postgresql:" else kind, home.workspace)


async def fill(home: Home) -> None:
    """All that a transcript may have: metadata, labels, branches, compactions, keys, tool calls, gone sessions."""
    await home.fill(None)
    async with home.open(None) as manager:
        session = await manager.get_or_create("telegram", "tree")
        first = await session.tree.append_message(Message.user("first"))
        await session.add_message(Message.assistant("second"), idempotency_key="k1")
        await session.tree.set_label(first, "here")
        await session.tree.branch(first)
        third = await session.tree.append_message(Message.assistant("another second"))
        await session.tree.append_compaction("a summary", third, 10)
        await session.tree.append_custom_entry("mine", {"a": [1, None, "\U0001f980"]})
        session.update(title="A title", agent_id="agent")
        await manager.get_or_create("telegram", "empty")
        await (await manager.get_or_create("telegram", "gone")).add_message(Message.user("gone"))
        await manager.delete("telegram_gone")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("sqlite:", "postgresql:"),
        ("postgresql:", "jsonl:"),
        pytest.param("sqlite:", "jsonl:", marks=pytest.mark.proof),
        pytest.param("jsonl:", "sqlite:", marks=pytest.mark.proof),
        pytest.param("jsonl:", "postgresql:", marks=pytest.mark.proof),
        pytest.param("postgresql:", "sqlite:", marks=pytest.mark.proof),
    ],
)
async def test_every_session_moves_to_the_other_store_and_back_with_the_same_bytes(
    before: str, after: str, home: Home, postgresql_url: str
) -> None:
    await fill(home)
    source, target = (place_of(kind, home, postgresql_url) for kind in (before, after))
    if before != "sqlite:":
        await migrate(location("sqlite:", home.workspace), source)
        (home.workspace / "sessions.db").unlink()
    whole = await everything(source)
    assert len(whole) >= 4
    moved = await migrate(source, target)
    assert (moved.copied.problems, moved.copied.different, moved.copied.others) == ([], [], 0)
    assert moved.copied.sessions == len(whole)
    assert await everything(target) == whole
    again = await migrate(source, target)
    assert (again.copied.written, again.copied.sessions) == (0, len(whole))
    back = location(str(home.workspace / "back"), home.workspace)
    assert (await migrate(target, back)).copied.entries == moved.copied.entries
    assert await everything(back) == whole


async def test_what_lies_beside_the_store_goes_from_directory_to_directory(home: Home, tmp_path: Path) -> None:
    await home.fill(None)
    said = await home.said(None)
    (home.workspace / "losses.json").write_text('{"telegram_1":{"messages":3,"at":"2026-01-01T00:00:00Z"}}')
    moved = await migrate(location(str(home.workspace), tmp_path), location(str(tmp_path / "new"), tmp_path))
    assert (moved.copied.entries, moved.archived, moved.held_by) == (ENTRIES, 1, None)
    new = Home(tmp_path / "new")
    async with new.open(None) as manager:
        assert (await manager.restore("telegram_expired")).messages()[-1].text == f"{SECRET} expired/5"
        assert list(manager.source.losses) == ["telegram_1"]
        assert await manager.acknowledge_losses() == 1
        await manager.delete("telegram_expired")
    shutil.rmtree(home.workspace)
    assert {key: value for key, value in (await new.said(None)).items() if key != "telegram_expired"} == said


@pytest.mark.parametrize("failing", [1, 5])
async def test_a_move_that_is_cut_off_goes_on_where_it_was(
    failing: int, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's disk fails at the nth group; what was written by then is not written again."""
    monkeypatch.setattr("miniclaw_sessions.core.stores.copying.GROUP", 2)
    await home.fill(None)
    source, target = location("sqlite:", home.workspace), location(f"jsonl://{tmp_path}/t", home.workspace)
    append, groups = JSONLStore.append, 0

    async def counted(store: JSONLStore, appends: Sequence[Append]) -> list[StoreError | None]:
        nonlocal groups
        groups += 1
        if groups == failing:
            raise StoreUnavailable("the disk refuses a write")
        return await append(store, appends)

    monkeypatch.setattr(JSONLStore, "append", counted)
    with pytest.raises(StoreUnavailable, match="the disk refuses"):
        await migrate(source, target)
    moved = await migrate(source, target)
    assert moved.copied.written == ENTRIES - 2 * (failing - 1)
    assert await everything(target) == await everything(source)


async def used_and_begun(home: Home, keys: KeyRing | None, *names: str) -> tuple[dict[str, datetime], int]:
    """When each session was used last, as its list says; and how many were put together from their entries."""
    async with home.open(keys) as manager:
        found = {row.session_id: row.last_accessed for row in await manager.list()}
        return {name: found[name] for name in names}, manager.recovery.rebuilt


@pytest.mark.parametrize("keys", sampled([None, OLD_KEY], every=2), ids=["plain", "encrypted"])
async def test_when_sessions_were_used_and_what_they_lead_to_goes_along(
    keys: KeyRing | None, home: Home, tmp_path: Path
) -> None:
    async with home.open(keys) as manager:
        for number in (1, 2):
            await home.say(manager, number)
        await home.clock.advance(20 * DAY)
        await manager.get_or_create("telegram", 1)  # read, and nothing said
    before, _ = await used_and_begun(home, keys, "telegram_1", "telegram_2")
    assert before["telegram_1"] - before["telegram_2"] > timedelta(days=19)
    new = Home(tmp_path / "new", "jsonl:")
    new.clock = home.clock
    await migrate(location("sqlite:", home.workspace), location("jsonl:", new.workspace), keys)
    after, rebuilt = await used_and_begun(new, keys, "telegram_1", "telegram_2")
    assert after == before
    assert rebuilt == 0


async def test_what_is_deleted_from_the_target_does_not_come_back_from_its_file(home: Home, tmp_path: Path) -> None:
    await home.fill(None)
    new = Home(tmp_path / "new")
    source, target = location("sqlite:", home.workspace), location("sqlite:", new.workspace)
    await migrate(source, target)
    assert new.file(1).exists()
    async with home.open(None) as manager:
        await manager.delete("telegram_1")
    moved = await migrate(source, target, delete_others=True)
    assert (moved.copied.others, new.file(1).exists()) == (0, False)
    assert sorted(await new.said(None)) == ["telegram_0", "telegram_2"]


# --- used meanwhile --------------------------------------------------------------------------------------------------


async def test_what_changes_while_a_store_is_moved_is_in_the_copy(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message is added, a session deleted, one replaced and one begun, all of them after they were passed."""
    target = location(str(tmp_path / "new"), home.workspace)
    async with home.open(None) as manager:
        for number in range(4):
            await home.say(manager, number, 3)
        add, is_done = SQLiteStore.append, False

        async def meanwhile(store: SQLiteStore, appends: Sequence[Append]) -> list[StoreError | None]:
            nonlocal is_done
            outcome = await add(store, appends)
            if store.place == target.place and not is_done:
                is_done = True
                await home.say(manager, 0, 2)
                for number in (1, 2):
                    await manager.delete(f"telegram_{number}")
                for number in (2, 4):
                    await home.say(manager, number, 1)
            return outcome

        monkeypatch.setattr(SQLiteStore, "append", meanwhile)
        moved = await migrate(location("sqlite:", home.workspace), target)
        assert moved.held_by == os.getpid()
        assert moved.copied.meanwhile == 4
        assert (moved.copied.different, moved.copied.others) == ([], 0)
        now = await everything(target)
    assert now == await everything(location("sqlite:", home.workspace))
    assert sorted(now) == [f"telegram_{number}" for number in (0, 2, 3, 4)]


async def test_what_is_said_after_a_move_is_carried_over_by_the_next_one(home: Home, postgresql_url: str) -> None:
    source, target = location("sqlite:", home.workspace), location(postgresql_url, home.workspace)
    await home.fill(None)
    await migrate(source, target)
    async with home.open(None) as manager:
        await home.say(manager, 1, 2)
        await home.say(manager, "new", 1)
        await manager.delete("telegram_2")
    moved = await migrate(source, target)
    assert (moved.copied.written, moved.copied.others) == (3 + 2, 1)
    assert set(await everything(target)) - set(await everything(source)) == {"telegram_2"}
    moved = await migrate(source, target, delete_others=True)
    assert (moved.copied.written, moved.copied.others) == (0, 0)
    assert await everything(target) == await everything(source)


async def test_sessions_of_the_target_are_never_touched_and_told(home: Home, tmp_path: Path) -> None:
    await home.fill(None)
    source, target = location("sqlite:", home.workspace), location(f"sqlite://{tmp_path}/t.db", home.workspace)
    copies = await everything(source)
    async with open_store(target.place, tmp_path) as store:
        others = [Append(sample_head(name), sample_entries(1, 3)) for name in ("0", "other")]
        assert await store.append(others) == [None, None]
    planned = await migrate(source, target, dry_run=True)
    moved = await migrate(source, target)
    for report in (planned, moved):
        assert (report.copied.sessions, report.copied.written, report.copied.others) == (2, 14, 1)
        (difference,) = report.copied.different
        assert difference.startswith("session telegram_0 is another one in the target")
    async with open_store(target.place, tmp_path) as store:
        last = (await store.head("telegram_1") or pytest.fail("it is gone")).last_sequence
        more = sample_entries(last + 1, last + 1)
        head = sample_head("1", incarnation=copies["telegram_1"][0])
        assert await store.append([Append(head, more)]) == [None]
    whole = await everything(target)
    assert {name: whole[name] for name in ("telegram_2",)} == {"telegram_2": copies["telegram_2"]}
    moved = await migrate(source, target)
    assert [text.partition(" in the target")[0] for text in moved.copied.different] == [
        "session telegram_0 is another one",
        "session telegram_1 has gone on",
    ]
    assert await everything(target) == whole


@pytest.mark.parametrize("keys", sampled([None, OLD_KEY], every=2), ids=["plain", "encrypted"])
async def test_nothing_is_written_behind_what_was_said_in_the_new_house_meanwhile(
    keys: KeyRing | None, home: Home, tmp_path: Path
) -> None:
    new = Home(tmp_path / "new", "jsonl:")
    source, target = location("sqlite:", home.workspace), location("jsonl:", new.workspace)
    await home.fill(keys)
    await migrate(source, target)
    for one, count in ((new, 1), (home, 3)):
        async with one.open(keys) as manager:
            await one.say(manager, 1, count)
    whole = await everything(target)
    for is_dry in (True, False):
        copied = (await migrate(source, target, dry_run=is_dry)).copied
        (difference,) = copied.different
        assert difference.startswith("session telegram_1 is not the same in the target")
        assert copied.written == 0
    assert await everything(target) == whole


async def test_a_copy_that_is_not_what_was_read_is_told() -> None:
    """One byte, one id and one key of the target are others: only a checksum finds that."""
    source, target = MemoryStore(), MemoryStore()
    for place, text in ((source, "hello"), (target, "hallo")):
        await place.append([Append(sample_head(1), sample_entries(1, 3, text=text))])
    entry = sample_entries(1, 1)[0]
    keyed = StoredEntry(1, entry.entry_id, entry.encoded, "a key")
    await source.append([Append(sample_head(2), [entry]), Append(sample_head(3), [entry])])
    await target.append([Append(sample_head(2), [keyed]), Append(sample_head(3), [damaged(entry)])])
    copied = await copy_store(source, target)
    assert copied.sessions == 0
    assert copied.different == [
        f"session telegram_{number} is not the same in the target: its checksum is another one" for number in (1, 2, 3)
    ]


# --- encryption ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target_kind", ["a directory", pytest.param("postgresql:", marks=pytest.mark.proof)])
async def test_what_is_encrypted_stays_so_without_a_key(
    target_kind: str, home: Home, tmp_path: Path, postgresql_url: str
) -> None:
    await home.fill(OLD_KEY)
    new = str(tmp_path / "new") if target_kind == "a directory" else postgresql_url
    source, target = location("sqlite:", home.workspace), location(new, home.workspace)
    await migrate(source, target)
    assert await everything(target) == await everything(source)
    back = Home(tmp_path / "back", "jsonl:")
    await migrate(target, location("jsonl:", back.workspace))
    assert await back.said(OLD_KEY) == await home.said(OLD_KEY)
    assert back.showing() == []


async def test_everything_is_encrypted_rekeyed_and_decrypted_on_the_way(home: Home, tmp_path: Path) -> None:
    await home.fill(None)
    said = await home.said(None)
    houses = [home, *(Home(tmp_path / name) for name in ("sealed", "rekeyed", "plain"))]
    steps: list[tuple[KeyRing, Change]] = [(OLD_KEY, Change.ENCRYPT), (BOTH, Change.ENCRYPT), (NEW_KEY, Change.DECRYPT)]
    for before, after, (keys, change) in zip(houses, houses[1:], steps, strict=False):
        place = location(str(after.workspace), tmp_path)
        moved = await migrate(location("sqlite:", before.workspace), place, keys, change=change)
        assert (moved.copied.entries, moved.copied.written, moved.archived) == (ENTRIES, ENTRIES, 1)
        assert moved.copied.different == []
    for one, key in zip(houses, (None, OLD_KEY, NEW_KEY, None), strict=True):
        assert await one.said(key) == said
        assert one.showing() == [] or key is None


async def test_what_is_plain_does_not_come_among_what_is_encrypted(home: Home, tmp_path: Path) -> None:
    await home.fill(None)
    other = Home(tmp_path / "other")
    async with other.open(OLD_KEY) as manager:
        await other.say(manager, "sealed")
    plain, sealed = location("sqlite:", home.workspace), location("sqlite:", other.workspace)
    for source, target, wanted in ((plain, sealed, "--encrypt"), (sealed, plain, "--decrypt")):
        before = await everything(target)
        with pytest.raises(ConfigError, match=f"say {wanted}"):
            await migrate(source, target)
        with pytest.raises(ConfigError, match="name its file with --key-file"):
            await migrate(source, target, change=Change.ENCRYPT)
        assert await everything(target) == before
    moved = await migrate(plain, sealed, OLD_KEY, change=Change.ENCRYPT)
    assert (moved.copied.sessions, moved.copied.others) == (3, 1)
    assert other.showing() == []


async def test_the_encryption_is_not_changed_within_a_workspace_whose_files_would_stay_as_they_are(home: Home) -> None:
    await home.fill(None)
    before = home.contents()
    with pytest.raises(ConfigError, match="use `miniclaw-sessions rekey` first"):
        await migrate(
            location("sqlite:", home.workspace), location("jsonl:", home.workspace), OLD_KEY, change=Change.ENCRYPT
        )
    assert home.contents() == before


@pytest.mark.parametrize("keys", [None, NEW_KEY], ids=["plain", "with another key"])
async def test_what_an_empty_workspace_says_of_its_encryption_holds(
    keys: KeyRing | None, home: Home, tmp_path: Path
) -> None:
    await home.fill(keys)
    other = Home(tmp_path / "other")
    async with other.open(OLD_KEY):
        pass  # it is marked as encrypted, and has nothing yet
    source, target = location("sqlite:", home.workspace), location(str(other.workspace), tmp_path)
    with pytest.raises(ConfigError, match="say --encrypt"):
        await migrate(source, target)
    rings = OLD_KEY if keys is None else KeyRing([OLD, NEW])
    assert (await migrate(source, target, rings, change=Change.ENCRYPT)).copied.sessions == 3
    assert await other.said(OLD_KEY) == await home.said(keys)


# --- without transcripts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", sampled([None, OLD_KEY], every=2), ids=["plain", "encrypted"])
async def test_session_files_alone_move_into_a_store(keys: KeyRing | None, tmp_path: Path, postgresql_url: str) -> None:
    home = Home(tmp_path / "w", "none:")
    await home.fill(keys)
    said = await home.said(keys)
    source = location("none:", home.workspace)
    for target in (location(postgresql_url, tmp_path), location(str(tmp_path / "new"), tmp_path)):
        moved = await migrate(source, target, keys, settings=home.settings)
        assert (moved.copied.sessions, moved.copied.problems, moved.copied.different) == (len(said), [], [])
        again = await migrate(source, target, keys, settings=home.settings)
        assert (again.copied.written, again.copied.different) == (0, [])
    assert await Home(tmp_path / "new").said(keys) == said
    assert keys is None or SECRET.encode() not in (tmp_path / "new" / "sessions.db").read_bytes()
    lock = DirectoryLock(home.workspace)
    with pytest.raises(DirectoryInUse):  # its files say less than its daemon knows
        await migrate(source, location(str(tmp_path / "newer"), tmp_path), keys)
    lock.release()


# --- what cannot be read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"no transcript\n"], ids=["empty", "no transcript"])
async def test_a_session_that_cannot_be_read_is_told_and_its_good_copy_stays(content: bytes, tmp_path: Path) -> None:
    home = Home(tmp_path / "w", "jsonl:")
    await home.fill(None)
    source, target = location("jsonl:", home.workspace), location(str(tmp_path / "new"), tmp_path)
    await migrate(source, target)
    whole = await everything(target)
    (home.workspace / "transcripts" / "telegram_1.jsonl").write_bytes(content)
    anew = location(f"{tmp_path}/anew", tmp_path)
    for place, deletes in ((target, False), (target, True), (anew, False)):
        for is_dry in (True, False):
            moved = await migrate(source, place, dry_run=is_dry, delete_others=deletes)
            assert [text.partition(", ")[0] for text in moved.copied.problems] == [
                "session telegram_1 cannot be read in the source"
            ]
            assert (moved.copied.others, moved.copied.different) == (0, [])
    assert await everything(target) == whole


async def test_an_empty_source_is_no_reason_to_delete_everything(home: Home, tmp_path: Path) -> None:
    await home.fill(None)
    async with Home(tmp_path / "empty").open(None):
        pass
    before = await everything(location("sqlite:", home.workspace))
    with pytest.raises(ConfigError, match="everything would be deleted"):
        await migrate(
            location(str(tmp_path / "empty"), tmp_path), location("sqlite:", home.workspace), delete_others=True
        )
    assert await everything(location("sqlite:", home.workspace)) == before


# --- a store that lies elsewhere -------------------------------------------------------------------------------------


async def test_a_store_that_lies_elsewhere_belongs_to_its_workspace(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/elsewhere/chats.db"
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    home = Home(tmp_path / "w", url)
    await home.fill(None)
    source, target = location(url, home.workspace, url), location(str(tmp_path / "new"), tmp_path)
    assert location(str(home.workspace), home.workspace, url).place == source.place
    async with home.open(None):
        moved = await migrate(source, target)
        assert (moved.held_by, moved.archived) == (os.getpid(), 1)
        for named in (source, location(url, tmp_path / "another")):  # also where nobody knows whose it is
            with pytest.raises(DirectoryInUse):
                await migrate(target, named, delete_others=True)
        assert (await migrate(location(url, tmp_path / "another"), target)).held_by == 0
    assert (await migrate(source, target)).held_by is None


# --- what is refused, and what comes after ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("sqlite:", "name two different stores"),
        ("none:", "keeps no transcripts"),
        ("memory:", "keeps no transcripts"),
        ("nosuch:", "is no store"),
        ("nonsense", "for a new one say './nonsense'"),
    ],
)
async def test_a_move_that_makes_no_sense_is_refused(
    to: str, why: str, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    await home.fill(None)
    monkeypatch.chdir(home.workspace)
    before = home.contents()
    with pytest.raises(ConfigError, match=why):
        await migrate(location("sqlite:", home.workspace), location(to, home.workspace))
    with pytest.raises(ConfigError, match="there is no"):
        await migrate(
            location(f"sqlite://{home.workspace}/nothing.db", home.workspace), location("jsonl:", home.workspace)
        )
    assert home.contents() == before


def test_a_directory_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    for text, name in (("./new", "new"), ("there", "there"), ("a/b", "a/b")):
        named = location(text, tmp_path / "w")
        assert (named.url, named.workspace) == (str(tmp_path / name), tmp_path / name)


async def test_a_workspace_with_two_stores_is_asked_for_one(home: Home, tmp_path: Path) -> None:
    await home.fill(None)
    await migrate(location("sqlite:", home.workspace), location("jsonl:", home.workspace))
    with pytest.raises(ConfigError, match="more than one store; say which one: sqlite://"):
        location(str(home.workspace), tmp_path)
    named = location(f"sqlite://{home.workspace}/sessions.db", tmp_path)
    assert named.workspace == home.workspace


async def test_salvaging_that_was_cut_off_goes_on_beside_the_old_store(tmp_path: Path) -> None:
    home = Home(tmp_path / "w", "jsonl:")
    await home.fill(None)
    await migrate(location("jsonl:", home.workspace), location("sqlite:", home.workspace))
    said = await home.said(None)
    (home.workspace / ".salvage").mkdir(mode=0o700)
    (home.workspace / "sessions.db").rename(home.workspace / ".salvage" / "sessions.db")
    assert await Home(home.workspace, "sqlite:").said(None) == said
    (home.workspace / "sessions.db").unlink()
    with pytest.raises(ConfigError, match="to 'jsonl:'"):
        await Home(home.workspace, "sqlite:").said(None)


@pytest.mark.parametrize("sessions", [0, 2], ids=["which was empty", "which was emptied"])
async def test_a_store_without_a_session_is_used_beside_the_old_one(sessions: int, tmp_path: Path) -> None:
    before, after = Home(tmp_path / "w", "sqlite:"), Home(tmp_path / "w", "jsonl:")
    async with before.open(None) as manager:
        for number in range(sessions):
            await before.say(manager, number)
    await migrate(location("sqlite:", before.workspace), location("jsonl:", before.workspace))
    async with after.open(None) as manager:
        for number in range(sessions):
            await manager.delete(f"telegram_{number}")
    assert await after.said(None) == {}
    async with open_readonly(after.workspace, settings=after.settings) as sessions_only_read:
        assert await sessions_only_read.list() == []
    report = await back_up_closed(after.workspace, after.settings, tmp_path / "backup")
    assert (report.sessions, report.problems) == (0, [])
    assert (await after.rekey(OLD_KEY)).entries == 0
    assert await after.said(OLD_KEY) == {}


async def test_a_directory_of_transcripts_that_is_gone_is_not_begun_anew(tmp_path: Path) -> None:
    home = Home(tmp_path / "w", "sqlite:")
    await home.fill(None)
    await migrate(location("sqlite:", home.workspace), location("jsonl:", home.workspace))
    shutil.rmtree(home.workspace / "transcripts")
    assert "to 'sqlite:'" in str(await Home(home.workspace, "jsonl:").refusal(None))
