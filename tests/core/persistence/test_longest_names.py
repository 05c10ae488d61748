"""A name has 255 bytes: the longest session id fits wherever a file is named after it (rule S6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from miniclaw_sessions import Message, SessionKey, SessionManager, SessionSettings
from miniclaw_sessions.core.protocol.keys import MAX_SESSION_ID_LENGTH
from miniclaw_sessions.testing import FakeClock

pytestmark = pytest.mark.anyio

DAY = 86_400.0
SETTINGS = SessionSettings(store="jsonl:", flush_interval_s=90 * DAY, sweep_interval_s=90 * DAY)


async def test_the_longest_name_fits_into_every_directory(tmp_path: Path) -> None:
    clock, workspace = FakeClock(), tmp_path / "w"
    key = SessionKey.of("é" * 500, "x" * 3000)
    assert len(key.session_id) > MAX_SESSION_ID_LENGTH - 3
    async with SessionManager(workspace, settings=SETTINGS, clock=clock) as manager:
        await (await manager.get_or_create(*key)).add_message(Message.user("kept"))
    (workspace / "sessions" / f"{key.session_id}.json").write_bytes(b"{")
    with (workspace / "transcripts" / f"{key.session_id}.jsonl").open("ab") as transcript:
        transcript.write(b'{"torn')
    async with SessionManager(workspace, settings=SETTINGS, clock=clock) as manager:
        assert [message.text for message in (await manager.get(*key)).messages()] == ["kept"]
        await clock.advance(31 * DAY)
        assert (await manager.sweep()).archived == 1
        assert len(manager) == 0
    found = {
        path.parent.relative_to(workspace).as_posix(): path.name for path in workspace.rglob("*") if "~" in path.name
    }
    assert found.keys() == {"archive"}, "what was set aside goes with its session"
    assert all(key.session_id in name for name in found.values())


async def test_what_is_set_aside_of_it_is_found_under_its_name(tmp_path: Path) -> None:
    clock, workspace = FakeClock(), tmp_path / "w"
    key = SessionKey.of("telegram", "y" * 4000)
    async with SessionManager(workspace, settings=SETTINGS, clock=clock) as manager:
        await (await manager.get_or_create(*key)).add_message(Message.user("kept"))
    (workspace / "sessions" / f"{key.session_id}.json").write_bytes(b"{")
    with (workspace / "transcripts" / f"{key.session_id}.jsonl").open("ab") as transcript:
        transcript.write(b'{"torn')
    async with SessionManager(workspace, settings=SETTINGS, clock=clock) as manager:
        assert len(manager.recovery.quarantined) == 1
    (piece,) = (workspace / "transcripts" / "torn").iterdir()
    assert piece.read_bytes() == b'{"torn'
    aside = sorted(path.name for path in (workspace / "quarantine").iterdir())
    assert [name.removesuffix(".reason").endswith(f"{key.session_id}.json") for name in aside] == [True, True]
