"""A branch that a file tells by its parents alone is what whoever asks is told, in this process and over HTTP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from miniclaw_sessions.service.client import Client
from tests.files.formats.test_branches import CASES

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("name", ["document 003, steps 2 to 5", "claude code, an edited prompt", "codex, a rollback"])
async def test_messages_and_context_are_those_of_the_branch(client: Client, tmp_path: Path, name: str) -> None:
    lines, said, _ = CASES[name]
    path = tmp_path / "session.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = await client.import_file(path)
    session = await client.find(report.session_id)
    assert [message.text for message in await session.messages()] == said
    assert [message.text for message in (await session.get_context()).messages] == said
