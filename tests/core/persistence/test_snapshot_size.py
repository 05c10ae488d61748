"""`snapshot_max_bytes`: a session's file is never larger, and nothing is lost by it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.persistence.snapshot_file import decode_snapshot, encode_snapshot
from miniclaw_sessions.core.persistence.snapshots import SNAPSHOT_REST
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.encryption import KeyRing
from tests.sampled import sampled

pytestmark = pytest.mark.anyio

SMALL = 1_000
LEAST = 2 * SMALL * 1024 + SNAPSHOT_REST  # with the limits of `settings`
DEFAULT = SessionSettings().snapshot_max_bytes
TEXT = "x" * 1_000_000
"""Of so large messages five do not fit into `LEAST`."""


def settings(max_bytes: int, store: str = "sqlite:") -> SessionSettings:
    return SessionSettings(
        store=store, snapshot_max_bytes=max_bytes, max_message_bytes=SMALL * 1024, max_metadata_bytes=SMALL * 1024
    )


async def said(manager: SessionManager) -> list[str]:
    return [message.text[:9] for message in (await manager.get("telegram", 1)).messages()]


def file_of(workspace: Path) -> Path:
    return workspace / "sessions" / "telegram_1.json"


@pytest.mark.parametrize("store", ["sqlite:", "jsonl:"])
@pytest.mark.parametrize("encrypted", sampled([False, True], every=2))
async def test_what_does_not_fit_into_the_file_comes_back_from_the_store(
    tmp_path: Path, store: str, *, encrypted: bool
) -> None:
    keys = KeyRing([bytes(range(32))]) if encrypted else None
    expected = [f"{number:9}" for number in range(7)]
    async with SessionManager(tmp_path, settings=settings(1, store), encryption=keys) as manager:
        session = await manager.get_or_create("telegram", 1)
        for text in expected:
            await session.add_message(Message.user(text + TEXT))
        assert (await manager.flush()).failed == 0
        assert await said(manager) == expected
    assert 2 * len(TEXT) < file_of(tmp_path).stat().st_size <= LEAST + 100
    for _ in range(2):
        async with SessionManager(tmp_path, settings=settings(1, store), encryption=keys) as manager:
            assert manager.recovery.quarantined == []
            assert await said(manager) == expected
            assert (await manager.check()).problems == []


async def test_a_file_that_is_as_large_as_allowed_is_whole_and_one_byte_less_leaves_a_message_out(
    tmp_path: Path,
) -> None:
    async with SessionManager(tmp_path / "1", settings=settings(DEFAULT)) as manager:
        session = await manager.get_or_create("telegram", 1)
        for number in range(7):
            await session.add_message(Message.user(f"{number:9}" + TEXT))
    whole = file_of(tmp_path / "1").read_bytes()
    assert LEAST < len(whole) < DEFAULT
    assert len(json.loads(whole)["messages"]) == 7
    snapshot = decode_snapshot(whole, stem="telegram_1", now=datetime.now(UTC), new_id=str)
    assert encode_snapshot(snapshot, max_bytes=len(whole)) == whole
    shorter = encode_snapshot(snapshot, max_bytes=len(whole) - 1)
    assert len(shorter) < len(whole)
    said = json.loads(shorter)
    assert (len(said["messages"]), said["complete"], said["newest_evicted"]) == (6, False, 1)


async def test_a_window_that_was_cut_begins_with_no_orphan_result(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, settings=settings(1)) as manager:
        session = await manager.get_or_create("telegram", 1)
        await session.add_message(Message.user("question"))
        calls = tuple(ToolCall(id=str(number), name="read", arguments="{}") for number in range(6))
        await session.add_message(Message.assistant("", tool_calls=calls))
        for call in calls:
            await session.add_message(Message.tool_result(call, TEXT))
        await session.add_message(Message.assistant("answer"))
    assert [message["role"] for message in json.loads(file_of(tmp_path).read_bytes())["messages"]] == ["assistant"]
    async with SessionManager(tmp_path, settings=settings(1)) as manager:
        assert len(await said(manager)) == 9


async def test_without_a_store_the_newest_messages_that_fit_are_kept(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, settings=settings(1, "none:")) as manager:
        session = await manager.get_or_create("telegram", 1)
        for number in range(7):
            session.append(Message.user(f"{number:9}" + TEXT))
    for _ in range(2):
        async with SessionManager(tmp_path, settings=settings(1, "none:")) as manager:
            assert await said(manager) == [f"{number:9}" for number in (3, 4, 5, 6)]
            (await manager.get("telegram", 1)).update(title="changed")
            assert (await manager.flush()).failed == 0


async def test_a_larger_file_from_elsewhere_is_set_aside_and_made_anew_from_the_store(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, settings=settings(DEFAULT)) as manager:
        session = await manager.get_or_create("telegram", 1)
        for number in range(7):
            await session.add_message(Message.user(f"{number:9}" + TEXT))
    async with SessionManager(tmp_path, settings=settings(1)) as manager:
        assert len(manager.recovery.quarantined) == 1
        assert len(await said(manager)) == 7
    assert file_of(tmp_path).stat().st_size <= LEAST
