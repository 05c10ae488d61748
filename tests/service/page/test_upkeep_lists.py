"""What the page shows of backups and of the quarantine."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.persistence.quarantine import Quarantine
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.disk import Directory
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.files.transfer import backup
from miniclaw_sessions.service.api.context import Context
from miniclaw_sessions.service.api.service import Nothing
from miniclaw_sessions.service.api.upkeep import (
    BackUp,
    BackUpRequest,
    ProgressRow,
    back_up,
    list_backups,
    list_quarantine,
    show_progress,
    verify_backup,
)

pytestmark = pytest.mark.anyio
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


async def test_a_backup_is_listed_for_as_long_as_it_is_there(tmp_path: Path) -> None:
    async with SessionManager(tmp_path / "w") as manager:
        context = Context(manager)
        await back_up.handler(context, BackUpRequest(BackUp(directory=str(tmp_path / "copy"))))
        reply = await list_backups.handler(context, Nothing())
        assert [row.path for row in reply.backups] == [str(tmp_path / "copy")]  # type: ignore[union-attr]
        (tmp_path / "copy").rename(tmp_path / "elsewhere")
        assert (await list_backups.handler(context, Nothing())).backups == []  # type: ignore[union-attr]


async def test_what_was_set_aside_is_listed_with_its_reason_and_what_somebody_else_put_there_without(
    tmp_path: Path,
) -> None:
    (tmp_path / "w").mkdir(mode=0o700)
    (tmp_path / "w" / "telegram_1.json").write_bytes(b"damaged")
    quarantine = Quarantine(tmp_path / "w" / "quarantine", max_files=10, max_bytes=1_000_000)
    with Directory(tmp_path / "w") as directory:
        quarantine.take(directory, "telegram_1.json", f"{tmp_path / 'w'}/telegram_1.json is no JSON", at=AT)
    (tmp_path / "w" / "quarantine" / "0-foreign").write_bytes(b"x")
    async with SessionManager(tmp_path / "w") as manager:
        reply = await list_quarantine.handler(Context(manager), Nothing())
    found = [(row.file, row.reason, row.at, row.bytes) for row in reply.files]  # type: ignore[union-attr]
    assert found == [("telegram_1.json", "<workspace>/telegram_1.json is no JSON", AT, 7), ("", "", None, 1)]


async def test_a_backup_is_verified_says_how_far_it_is_and_what_is_wrong_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = BackUpRequest(BackUp(directory=str(tmp_path / "copy")))
    async with SessionManager(tmp_path / "w") as manager:
        await (await manager.get_or_create("demo", "1")).add_message(Message.user("kept"))
        context = Context(manager)
        seen: list[ProgressRow] = []
        await back_up.handler(context, request)
        look = backup.verify_backup

        async def looking(path: Path, note: Any) -> Any:
            seen.extend((await show_progress.handler(context, Nothing())).under_way)  # type: ignore[union-attr]
            return await look(path, note)

        monkeypatch.setattr(backup, "verify_backup", looking)
        sound = await verify_backup.handler(context, request)
        assert (sound.problems, sound.sessions) == ([], 1)  # type: ignore[union-attr]
        assert [one.operation for one in seen] == ["verify_backup"]
        assert (await show_progress.handler(context, Nothing())).under_way == []  # type: ignore[union-attr]
        (tmp_path / "copy" / "sessions" / "demo_1.json").write_bytes(b"{}")
        (problem,) = (await verify_backup.handler(context, request)).problems  # type: ignore[union-attr]
        assert problem.startswith("sessions/demo_1.json is damaged")
        with pytest.raises(ConfigError):
            await verify_backup.handler(context, BackUpRequest(BackUp(directory=str(tmp_path / "w"))))
