"""Whoever deletes a session finds its words in no file of the workspace any more, or is told where they may be."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import SessionNotFound
from miniclaw_sessions.service.api import sessions
from miniclaw_sessions.service.client import Client
from tests.sampled import sampled

pytestmark = pytest.mark.anyio
WORD = "xylophonist"


@pytest.fixture(params=sampled(["sqlite:", "jsonl:"], every=2))
def session_settings(request: pytest.FixtureRequest) -> SessionSettings:
    return SessionSettings(store=request.param)


def files_with(word: str, workspace: Path) -> list[str]:
    files = (path for path in sorted(workspace.rglob("*")) if path.is_file())
    return [path.name for path in files if word.encode() in path.read_bytes()]


async def fill(client: Client, workspace: Path) -> None:
    """Two sessions, one of which has said the word, in its file, its archive and its quarantined copies."""
    for chat_id, text in (("1", WORD), ("2", "something else")):
        session = await client.get_or_create("a", chat_id, title=text)
        for number in range(60):
            await session.add_message(Message.user(f"{number} {text}"))
    await client.flush()
    for place, name in (
        ("archive", "20260101T000000.000000Z-a_1.jsonl"),
        ("quarantine", "20260101T000000.000000Z-00000000-a_1.json"),
        ("quarantine", "20260101T000000.000000Z-00000000-a_1.jsonl"),
    ):
        (workspace / place).mkdir(mode=0o700, exist_ok=True)
        (workspace / place / name).write_text(WORD)
    assert len(files_with(WORD, workspace)) >= 5


async def test_what_was_deleted_is_in_no_file_when_the_reply_comes(client: Client, short_path: Path) -> None:
    workspace = short_path / "w"
    await fill(client, workspace)
    assert await client.delete("a_1")
    assert files_with(WORD, workspace) == []
    assert len(await client.session("a_2").messages()) == 50
    assert (await client.session("a_2").add_message(Message.user("goes on"))) is not None
    assert (await client.check()).sound
    with pytest.raises(SessionNotFound):
        await client.erase("a_1")


async def test_a_deletion_that_is_to_look_after_nothing_else_says_where_the_words_may_be(
    client: Client, short_path: Path
) -> None:
    await fill(client, short_path / "w")
    reply = await client.transport.call(sessions.delete_session, sessions.DeleteSession("a_1", everywhere=False))
    (sentence,) = reply.remains
    assert sentence.startswith("the store's log, if it has one, may have its words until it is used again")


async def test_what_may_still_hold_the_words_is_named(client: Client, short_path: Path) -> None:
    workspace = short_path / "w"
    await fill(client, workspace)
    set_aside = "20260101T000000.000000Z-00000000-sessions.db"
    (workspace / "quarantine" / set_aside).write_text(WORD)
    remains = await client.erase("a_1")
    assert [set_aside in sentence for sentence in remains] == [True]
    assert files_with(WORD, workspace) == [set_aside]


async def test_backups_that_are_still_there_are_named(client: Client, short_path: Path) -> None:
    workspace = short_path / "w"
    await fill(client, workspace)
    for name in ("kept", "removed"):
        await client.back_up(short_path / name)
    shutil.rmtree(short_path / "removed")
    remains = await client.erase("a_1")
    assert [str(short_path / "kept") in sentence for sentence in remains] == [True]
    assert files_with(WORD, workspace) == []
