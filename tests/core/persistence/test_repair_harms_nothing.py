"""`check --repair` on crafted damage: whatever could be read before it can be read after it, and nothing else was said.

The round damages a few workspaces, chosen by a seed; the proofs many more, REPAIRED as many as you like.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from miniclaw_sessions import Message
from miniclaw_sessions.core.manager import open_readonly
from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.stores import open_store
from miniclaw_sessions.core.stores.base import is_damaged
from miniclaw_sessions.errors import SessionsError
from tests.core.persistence.crafted_damage import harm
from tests.core.persistence.encrypted_homes import Home
from tests.sampled import repeated

pytestmark = pytest.mark.anyio

QUICK = 3
MANY = int(os.environ.get("REPAIRED", repeated(150)))
SESSIONS, MESSAGES = 3, 14

Read = dict[tuple[str, str], bytes]
"""What can be read: of each session and entry, its bytes."""


async def stored(home: Home) -> Read:
    """Every entry that the store gives to whoever only reads."""
    found: Read = {}
    with suppress(SessionsError):
        async with open_store(home.settings.store, home.workspace, read_only=True) as store:
            for session_id in await store.session_ids():
                with suppress(SessionsError):
                    for entry in await store.read(session_id):
                        if not is_damaged(entry.encoded):
                            found[session_id, entry.entry_id] = entry.encoded
    return found


async def shown(home: Home) -> dict[str, list[str]]:
    """The newest messages of every session, as whoever only reads is shown them."""
    found = {}
    with suppress(SessionsError):
        async with open_readonly(home.workspace, settings=home.settings, clock=home.clock) as sessions:
            for one in await sessions.list():
                with suppress(SessionsError):
                    session = await sessions.find(one.session_id)
                    found[one.session_id] = [message.text for message in session.messages()]
    return found


async def repaired(home: Home) -> None:
    """As `check --repair` does it, and one start more."""
    for _ in range(3):
        async with home.open(None) as manager:
            await manager.repair()


async def made(home: Home, *, killed: bool) -> Path:
    """A workspace of some sessions with keys of their senders; as a close leaves it, or a kill."""
    copy = home.workspace.with_name(f"{'killed' if killed else 'closed'}")
    async with home.open(None) as manager:
        for number in range(SESSIONS):
            await home.say(manager, number, MESSAGES // 2)
        await manager.flush()
        for number in range(SESSIONS):
            session = await manager.get_or_create("telegram", number)
            await session.add_message(Message.user(f"keyed {number}"), idempotency_key=f"key {number}")
            await home.say(manager, number, MESSAGES // 2)
        if killed:
            shutil.copytree(home.workspace, copy)
    if not killed:
        shutil.copytree(home.workspace, copy)
    return copy


def was_said(key: tuple[str, str], encoded: bytes, whole: Read) -> bool:
    """Whether an entry that is there again says what it said; a session's file keeps less of it than the store."""
    text, was = text_of(encoded), whole.get(key)
    return text is None or (was is not None and text == text_of(was))


def text_of(encoded: bytes) -> str | None:
    entry = decode_entry(encoded)
    return entry.message.text if isinstance(entry, MessageEntry) else None


async def harmed_and_repaired(home: Home, times: int, *, killed: bool) -> list[str]:
    """What became worse, of so many damages."""
    base = await made(home, killed=killed)
    whole = await stored(Home(base, home.settings.store))
    wrong = []
    for number in range(times):
        seed = f"{home.settings.store} {killed} {number}"
        one = Home(base.with_name(f"{base.name}-{number}"), home.settings.store)
        shutil.copytree(base, one.workspace)
        told = harm(one, seed)
        before, texts = await stored(one), await shown(one)
        try:
            await repaired(one)
        except SessionsError as error:
            if before != await stored(one):
                wrong.append(f"{seed!r} {told}: it is refused, and something was changed: {error}")
        else:
            after, later = await stored(one), await shown(one)
            lost = [key for key, encoded in before.items() if whole.get(key) == encoded and after.get(key) != encoded]
            strange = [key for key, encoded in after.items() if key not in before and not was_said(key, encoded, whole)]
            silent = [name for name, said in texts.items() if said and not later.get(name)]
            if lost or strange or silent:
                wrong.append(f"{seed!r} {told}: lost {lost[:3]} of {len(lost)}, new {strange[:3]}, silent {silent}")
        shutil.rmtree(one.workspace)
    return wrong


@pytest.mark.parametrize("store", ["sqlite:", "jsonl:"])
async def test_a_few_damages_are_made_no_worse(tmp_path: Path, store: str) -> None:
    wrong = await harmed_and_repaired(Home(tmp_path / "w", store), QUICK, killed=store == "jsonl:")
    assert wrong == [], "\n".join(wrong)


@pytest.mark.proof
@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("store", ["sqlite:", "jsonl:"])
async def test_no_damage_is_made_worse(tmp_path: Path, store: str, *, killed: bool) -> None:
    wrong = await harmed_and_repaired(Home(tmp_path / "w", store), MANY, killed=killed)
    assert wrong == [], "\n".join(wrong)
