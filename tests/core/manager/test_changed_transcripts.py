"""Another program removes, cuts or replaces a transcript while it is open: nothing that was acknowledged is lost."""
# ruff: noqa: PT012 - a manager that fails to close is a block

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.history.conversation import REMEMBERED_KEYS
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.manager.reading import read_transcript
from miniclaw_sessions.core.persistence.mending import Mended
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.stores.jsonl.lines import entry_in, head_in, header_of, lines_of
from miniclaw_sessions.core.stores.jsonl.store import JSONLStore
from miniclaw_sessions.disk import Directory
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import SessionUnavailable, StoreCorrupt, StoreUnavailable
from miniclaw_sessions.files.transfer.backup import back_up, verify_backup
from miniclaw_sessions.testing import FakeClock, FaultyStore, sample_entries
from tests.core.persistence.encrypted_homes import OLD_KEY
from tests.sampled import sampled

pytestmark = pytest.mark.anyio

SETTINGS = SessionSettings(store="jsonl:", window=30)


class Home:
    """A workspace with one session, whose transcript can be changed behind its back."""

    def __init__(self, directory: Path) -> None:
        self.workspace = directory / "w"
        self.transcript = self.workspace / "transcripts" / "telegram_1.jsonl"
        self.aside = directory / "aside"
        self.said: list[str] = []

    def manager(self, keys: KeyRing | None = None) -> SessionManager:
        return SessionManager(self.workspace, settings=SETTINGS, clock=FakeClock(), encryption=keys)

    async def say(self, session: Session, count: int) -> None:
        for _ in range(count):
            text = f"message {len(self.said)}"
            await session.add_message(Message.user(text))
            self.said.append(text)

    async def stored(self, manager: SessionManager) -> list[str]:
        entries = [entry async for entry in read_transcript(manager, "telegram_1")]
        return [entry.message.text for entry in entries if isinstance(entry, MessageEntry)]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def replace_by_rename(transcript: Path, copy: Path) -> None:
    copy.rename(transcript)


def overwrite_in_place(transcript: Path, copy: Path) -> None:
    transcript.write_bytes(copy.read_bytes())


def cut_in_place(transcript: Path, copy: Path) -> None:
    os.truncate(transcript, copy.stat().st_size)


def cut_within_a_line(transcript: Path, copy: Path) -> None:
    os.truncate(transcript, copy.stat().st_size - 20)


def remove(transcript: Path, copy: Path) -> None:
    del copy
    transcript.unlink()


CHANGES = (replace_by_rename, overwrite_in_place, cut_in_place, cut_within_a_line)


@pytest.mark.parametrize("keys", sampled([None, OLD_KEY], every=2), ids=["plain", "encrypted"])
@pytest.mark.parametrize("change", CHANGES)
async def test_what_an_older_copy_lacks_is_written_again_from_memory(
    change: Callable[[Path, Path], None], keys: KeyRing | None, home: Home
) -> None:
    async with home.manager(keys) as manager:
        session = await manager.get_or_create("telegram", "1")
        await home.say(session, 22)
        shutil.copy(home.transcript, home.aside)
        await home.say(session, 20)
        change(home.transcript, home.aside)
        with capture_logs() as logs:
            await home.say(session, 1)
        assert next(log["action"] for log in logs if log["log_level"] == "warning") == "store.changed"
        assert [log["entries"] for log in logs if log["action"] == "session.given_back"] == [
            21 if change is cut_within_a_line else 20
        ]
        assert await home.stored(manager) == home.said
        assert manager.health().problems == []
        assert (await manager.check()).problems == []
    async with home.manager(keys) as manager:
        assert await home.stored(manager) == home.said


async def test_a_transcript_that_was_removed_is_written_again_if_all_of_it_is_in_memory(home: Home) -> None:
    async with home.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        await home.say(session, 5)
        home.transcript.unlink()
        await home.say(session, 1)
        assert await home.stored(manager) == home.said
        assert (await manager.check()).problems == []


@pytest.mark.parametrize("change", [*CHANGES, remove])
async def test_nothing_is_written_behind_a_gap_that_memory_cannot_fill(
    change: Callable[[Path, Path], None], home: Home
) -> None:
    async with home.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        await home.say(session, 2)
        shutil.copy(home.transcript, home.aside)
        await home.say(session, 40)
        kept = home.transcript.read_bytes()
        change(home.transcript, home.aside)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="put back what was there"):
                await session.add_message(Message.user("not acknowledged"), idempotency_key="again")
        health = manager.health()
        assert not health.ok
        assert any("messages of session telegram_1 are not acknowledged" in one for one in health.problems)
        assert any("another program removed or replaced" in one for one in health.problems)
        assert not (await manager.check()).sound
        assert [message.text for message in session.messages()][-2] == home.said[-1]

        home.transcript.write_bytes(kept)  # and it goes on by itself
        await session.add_message(Message.user("not acknowledged"), idempotency_key="again")
        assert await home.stored(manager) == [*home.said, "not acknowledged"]
        assert manager.health().problems == []
        assert (await manager.check()).problems == []


async def test_a_gap_that_memory_cannot_fill_is_told_as_a_loss_by_the_next_start(home: Home) -> None:
    with pytest.raises(StoreUnavailable, match="1 messages"):
        async with home.manager() as manager:
            session = await manager.get_or_create("telegram", "1")
            await home.say(session, 2)
            shutil.copy(home.transcript, home.aside)
            await home.say(session, 40)
            home.aside.rename(home.transcript)
            with pytest.raises(StoreUnavailable, match="put back what was there"):
                await session.add_message(Message.user("not acknowledged"))
    async with home.manager() as manager:
        assert {session_id: loss.messages for session_id, loss in manager.source.losses.items()} == {"telegram_1": 11}
        assert await home.stored(manager) == [*home.said[:2], *home.said[13:]]  # the window had 30, one of them new


def other_entries(transcript: Path) -> None:
    header = transcript.read_bytes().split(b"\n", 1)[0] + b"\n"
    transcript.write_bytes(header + lines_of(sample_entries(1, 7, prefix="other")))


def other_entries_of_the_same_length(transcript: Path) -> None:
    header, *lines = transcript.read_bytes().splitlines(keepends=True)
    entry = entry_in(lines[-1])
    assert entry is not None
    other = entry.entry_id[:-1] + ("a" if entry.entry_id[-1] != "a" else "b")
    encoded = entry.encoded.replace(entry.entry_id.encode(), other.encode())
    left = transcript.stat()
    transcript.write_bytes(b"".join((header, *lines[:-1], lines_of([replace(entry, entry_id=other, encoded=encoded)]))))
    assert transcript.stat().st_size == left.st_size
    os.utime(transcript, ns=(left.st_atime_ns, left.st_mtime_ns + 10_000_000))  # later than the kernel's coarse clock


def another_incarnation(transcript: Path) -> None:
    header, rest = transcript.read_bytes().split(b"\n", 1)
    head = head_in(header, "telegram_1")
    transcript.write_bytes(header_of(replace(head, incarnation="another")) + rest)


def a_directory(transcript: Path) -> None:
    transcript.unlink()
    transcript.mkdir()


def a_pipe(transcript: Path) -> None:
    transcript.unlink()
    os.mkfifo(transcript)


def another_programs_file(transcript: Path) -> None:
    transcript.write_bytes(b'{"type":"session","version":3,"id":"5f3e","cwd":"/"}\n')


def put_back(home: Home) -> None:
    if home.transcript.is_dir():
        home.transcript.rmdir()
    home.aside.rename(home.transcript)


refusals = pytest.mark.parametrize(
    "change",
    [other_entries, other_entries_of_the_same_length, another_incarnation, a_directory, a_pipe, another_programs_file],
)


@pytest.mark.parametrize("keys", sampled([None, OLD_KEY], every=2), ids=["plain", "encrypted"])
@refusals
async def test_what_something_else_has_taken_the_place_of_is_refused_and_goes_on_when_it_is_back(
    change: Callable[[Path], None], keys: KeyRing | None, home: Home
) -> None:
    async with home.manager(keys) as manager:
        session = await manager.get_or_create("telegram", "1")
        await home.say(session, 5)
        shutil.copy(home.transcript, home.aside)
        change(home.transcript)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="put something else there"):
                await session.add_message(Message.user("not acknowledged"), idempotency_key="again")
        with pytest.raises(StoreUnavailable, match="put something else there"):
            await home.stored(manager)
        assert not manager.health().ok
        assert any("put something else there" in problem for problem in (await manager.check()).problems)

        put_back(home)
        await session.add_message(Message.user("not acknowledged"), idempotency_key="again")
        home.said.append("not acknowledged")
        await home.say(session, 1)
        assert await home.stored(manager) == home.said
        assert manager.health().problems == []
        assert (await manager.check()).problems == []
    async with home.manager(keys) as manager:  # closing had nothing to say
        assert await home.stored(manager) == home.said


async def test_what_waits_is_saved_when_the_file_is_back_though_nobody_says_anything(home: Home) -> None:
    async with home.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        await home.say(session, 3)
        home.transcript.rename(home.aside)
        home.transcript.mkdir()
        with pytest.raises(StoreUnavailable):
            await home.say(session, 1)
        home.transcript.rmdir()
        home.aside.rename(home.transcript)
        await manager.flush()
        assert await home.stored(manager) == ["message 0", "message 1", "message 2", "message 3"]
        assert manager.health().problems == []


async def test_a_start_beside_a_directory_in_a_transcripts_place_is_refused_and_claims_no_loss(home: Home) -> None:
    async with home.manager() as manager:
        await home.say(await manager.get_or_create("telegram", "1"), 40)
    home.transcript.rename(home.aside)
    home.transcript.mkdir()
    with pytest.raises(StoreCorrupt, match="is not a regular file"):
        await home.manager().__aenter__()
    home.transcript.rmdir()
    home.aside.rename(home.transcript)
    async with home.manager() as manager:
        assert manager.source.losses == {}
        await home.say(await manager.get("telegram", "1"), 1)
        assert await home.stored(manager) == home.said
        assert (await manager.check()).problems == []


async def test_a_read_notices_that_a_transcript_was_replaced(home: Home) -> None:
    async with home.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        await home.say(session, 3)
        shutil.copy(home.transcript, home.aside)
        await home.say(session, 2)
        home.aside.rename(home.transcript)
        assert await home.stored(manager) == home.said[:3]
        assert "ends at entry 3, and had 5" in manager.health().problems[0]
        await home.say(session, 1)
        assert await home.stored(manager) == home.said
        assert manager.health().problems == []


async def test_a_copy_with_the_same_content_changes_nothing(home: Home) -> None:
    async with home.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        await home.say(session, 3)
        shutil.copy(home.transcript, home.aside)
        home.aside.rename(home.transcript)
        with capture_logs() as logs:
            await home.say(session, 1)
            os.utime(home.transcript)
            await home.say(session, 1)
        assert [log["action"] for log in logs] == []
        assert await home.stored(manager) == home.said


@pytest.mark.parametrize("noticed", [False, True])
@pytest.mark.parametrize("keys", sampled([None, OLD_KEY], every=2), ids=["plain", "encrypted"])
async def test_a_session_whose_transcript_was_removed_is_no_damage_any_more_when_it_is_deleted(
    keys: KeyRing | None, noticed: bool, home: Home
) -> None:
    async with home.manager(keys) as manager:
        await home.say(await manager.get_or_create("telegram", "1"), 3)
        home.transcript.unlink()
        if noticed:
            assert await home.stored(manager) == []
            assert not manager.health().ok
        await manager.delete("telegram_1")
        assert manager.health().problems == []
        assert (await manager.check()).problems == []


@pytest.mark.parametrize("keys", sampled([None, OLD_KEY], every=2), ids=["plain", "encrypted"])
async def test_what_a_check_met_is_in_health_until_each_file_is_back_and_damage_stays(
    keys: KeyRing | None, home: Home
) -> None:
    async with home.manager(keys) as manager:
        for number in (1, 2, 3):
            await home.say(await manager.get_or_create("telegram", number), 3)
        replaced = [home.transcript.with_name(f"telegram_{number}.jsonl") for number in (1, 2)]
        kept = {transcript: transcript.read_bytes() for transcript in replaced}
        for transcript in replaced:
            other_entries(transcript)
        damaged = home.transcript.with_name("telegram_3.jsonl")
        data = damaged.read_bytes()
        damaged.write_bytes(data[:-40] + b"#" + data[-39:])
        assert len((await manager.check()).problems) >= 3
        assert not manager.health().ok
        for transcript in replaced:
            transcript.write_bytes(kept[transcript])
            await manager.search("message")
        assert all("telegram_3" in one for one in manager.health().problems)
        assert not manager.health().ok
        damaged.write_bytes(data)
        assert (await manager.check()).problems == []
        assert manager.health().problems == []


# --- keys that were used long ago ------------------------------------------------------------------------------------


async def with_keys(home: Home, session: Session) -> None:
    """More keys than the session remembers, so that the store is asked for the oldest."""
    for number in range(REMEMBERED_KEYS + 20):
        session.append(Message.user(f"message {number}"), idempotency_key=f"k{number}")
        home.said.append(f"message {number}")
    await session.saved()


async def repeat(session: Session) -> tuple[int, str]:
    again = await session.add_message(Message.user("message 0"), idempotency_key="k0")
    return again.sequence, again.message.text


@pytest.mark.parametrize("keys", sampled([None, OLD_KEY], every=2), ids=["plain", "encrypted"])
async def test_a_repeated_key_is_answered_though_the_file_was_touched(keys: KeyRing | None, home: Home) -> None:
    async with home.manager(keys) as manager:
        session = await manager.get_or_create("telegram", "1")
        await with_keys(home, session)
        for _ in range(2):
            assert await repeat(session) == (1, "message 0")
            os.utime(home.transcript)
        assert await repeat(session) == (1, "message 0")
        assert await home.stored(manager) == home.said


@pytest.mark.parametrize("keys", sampled([None, OLD_KEY], every=2), ids=["plain", "encrypted"])
@pytest.mark.parametrize("change", [*CHANGES, remove])
async def test_a_key_is_not_used_again_when_a_file_that_lacked_it_is_right_again(
    change: Callable[[Path, Path], None], keys: KeyRing | None, home: Home
) -> None:
    async with home.manager(keys) as manager:
        session = await manager.get_or_create("telegram", "1")
        await home.say(session, 1)
        shutil.copy(home.transcript, home.aside)
        await with_keys(home, session)
        kept = home.transcript.read_bytes()
        change(home.transcript, home.aside)
        assert len(await home.stored(manager)) < len(home.said)
        with pytest.raises(StoreUnavailable, match="put back what was there"):
            await session.add_message(Message.user("not acknowledged"), idempotency_key="again")
        home.transcript.write_bytes(kept)
        assert await repeat(session) == (2, "message 0")
        await manager.flush()
        assert await home.stored(manager) == [*home.said, "not acknowledged"]


@pytest.mark.parametrize("keys", sampled([None, OLD_KEY], every=2), ids=["plain", "encrypted"])
async def test_the_keys_of_what_another_program_appended_are_known(keys: KeyRing | None, home: Home) -> None:
    async with home.manager(keys) as manager:
        session = await manager.get_or_create("telegram", "1")
        await home.say(session, 1)
        shutil.copy(home.transcript, home.aside)
        await with_keys(home, session)
        whole = home.transcript.read_bytes()
    home.aside.rename(home.transcript)
    async with JSONLStore(home.transcript.parent) as store:
        digest = "k0" if keys is None else keys.digests("k0", "telegram_1")[0]
        assert await store.find_by_idempotency_key("telegram_1", digest) is None
        home.transcript.write_bytes(whole)
        await store.read_newest("telegram_1", 1)
        found = await store.find_by_idempotency_key("telegram_1", digest)
        assert found is not None
        assert found.sequence == 2


# --- what goes through all sessions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("noticed", [False, True])
@pytest.mark.parametrize("keys", sampled([None, OLD_KEY], every=2), ids=["plain", "encrypted"])
@refusals
async def test_a_refused_session_keeps_no_other_from_being_searched_checked_repaired_and_backed_up(
    change: Callable[[Path], None], keys: KeyRing | None, noticed: bool, home: Home, tmp_path: Path
) -> None:
    async with home.manager(keys) as manager:
        await home.say(await manager.get_or_create("telegram", "1"), 5)
        other = await manager.get_or_create("telegram", "2")
        await other.add_message(Message.user("message of another"))
        await manager.flush()

        async def refused() -> None:
            if home.aside.exists():
                put_back(home)
                assert await home.stored(manager) == home.said
            shutil.copy(home.transcript, home.aside)
            change(home.transcript)
            if noticed:
                with pytest.raises(SessionUnavailable):
                    await home.stored(manager)

        await refused()
        assert await sessions_found(manager) == {"telegram_2"}
        await refused()
        (problem,) = (await manager.check()).problems
        assert problem.startswith("session telegram_1: cannot use")
        await refused()
        assert await manager.repair() == Mended()
        await refused()
        report = await back_up(manager, tmp_path / "b")
        left_out = "session telegram_1 cannot be read in the source, and is not in the copy; see `check`"
        assert (report.sessions, report.entries, report.problems) == (2, 1, [left_out])  # its window is there
        assert (await verify_backup(tmp_path / "b")).problems == []

        put_back(home)
        assert await sessions_found(manager) == {"telegram_1", "telegram_2"}
        assert (await manager.check()).problems == []
        assert (await back_up(manager, tmp_path / "c")).problems == []


async def sessions_found(manager: SessionManager) -> set[str]:
    return {result.session_id for result in (await manager.search("message")).results}


async def test_a_check_counts_no_failure_of_a_disk_as_damage(home: Home) -> None:
    store = FaultyStore(JSONLStore(home.transcript.parent))
    async with SessionManager(home.workspace, store=store, clock=FakeClock()) as manager:
        await home.say(await manager.get_or_create("telegram", "1"), 3)
        store.fail(StoreUnavailable("the disk refuses"), method="read")
        with pytest.raises(StoreUnavailable, match="the disk refuses"):
            await manager.check()
        store.heal()
        assert (await manager.check()).problems == []


async def test_a_check_of_a_refused_session_counts_no_failure_of_a_disk_as_damage(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(directory: Directory) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), directory.path)

    async with home.manager() as manager:
        await home.say(await manager.get_or_create("telegram", "1"), 3)
        a_directory(home.transcript)
        with pytest.raises(SessionUnavailable):
            await home.stored(manager)
        with monkeypatch.context() as patch:
            patch.setattr(Directory, "sync", fail)
            with pytest.raises(StoreUnavailable, match=os.strerror(errno.EIO)):
                await manager.check()
        home.transcript.rmdir()
