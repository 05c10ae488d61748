"""Every session is exported to a file of its own, and what was cut off goes on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.files.formats.registry import all_formats
from miniclaw_sessions.files.transfer.exporting import export_session
from miniclaw_sessions.files.transfer.exporting_all import export_all
from tests.core.persistence.encrypted_homes import Home

FORMATS = all_formats()

pytestmark = pytest.mark.anyio


async def test_every_session_gets_a_file_of_its_own(tmp_path: Path) -> None:
    home, target = Home(tmp_path / "w"), tmp_path / "out"
    (form,) = [form for form in FORMATS if form.name == "jsonl"]
    async with home.open(None) as manager:
        for number in range(3):
            await home.say(manager, number)

        async def export(session_id: str) -> AsyncGenerator[bytes, None]:
            async for piece in export_session(manager, session_id, form):
                yield piece

        ids = [row.session_id for row in await manager.list()]
        sizes = await export_all([*ids, "telegram_77"], export, target, ".jsonl")
        exported = {path.name: path.read_bytes() for path in sorted(target.iterdir())}
        assert exported.keys() == {f"telegram_{number}.jsonl" for number in range(3)}
        assert {f"{session_id}.jsonl": size for session_id, size in sizes.items()} == {
            name: len(data) for name, data in exported.items()
        }
        for session_id in ids:
            assert exported[f"{session_id}.jsonl"] == b"".join([piece async for piece in export(session_id)])
        (target / "telegram_1.jsonl").unlink()
        assert (await export_all(ids, export, target, ".jsonl")).keys() == {"telegram_1"}
        assert {path.name: path.read_bytes() for path in target.iterdir()} == exported
        with pytest.raises(ConfigError, match="cannot export"):
            await export_all(ids, export, target / "telegram_0.jsonl", ".jsonl")
