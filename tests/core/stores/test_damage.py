"""Whatever bit of whatever file flips: the start serves all others, and no wrong word is served unnoticed.

The quick round flips a few bits of each file, chosen by a seed, `pytest -m proof` sixty, and DAMAGE_BITS as many as
you like: all of them take hours. One that does not hold can be tried again by its file and bit, which the failure
names.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import SessionsError, StoreError
from tests.core.persistence.encrypted_homes import OLD_KEY, Home
from tests.sampled import repeated, sampled

pytestmark = pytest.mark.anyio
SEED = int(os.environ.get("DAMAGE_SEED", "1"))
QUICK = 4
MANY = int(os.environ.get("DAMAGE_BITS", repeated(60)))
"""How many bits of each file the proof flips; a database has a quarter of a million."""

Texts = dict[str, list[str]]


async def made(home: Home, keys: KeyRing | None) -> Texts:
    """Two sessions, each with messages inside and outside of its window."""
    async with home.open(keys) as manager:
        for number in (1, 2):
            await home.say(manager, number)
    return await home.said(keys)


def bits(home: Home, count: int) -> Iterator[tuple[Path, int]]:
    """The files and bits to be flipped: those of the store, the snapshots, and whatever else is there."""
    chosen = random.Random(SEED)
    files = [
        path
        for path in sorted(home.workspace.rglob("*"))
        if path.is_file() and path.name not in (".lock", "encryption.json")
    ]
    for path in files:
        data = path.read_bytes()
        told = [bit for byte, value in enumerate(data) if value for bit in range(8 * byte, 8 * byte + 8)]
        for bit in told if count >= len(told) else sorted(chosen.sample(told, count)):
            yield path, bit


async def check(home: Home, keys: KeyRing | None, expected: Texts) -> str:
    """Start, and read everything; what is wrong, or nothing."""
    try:
        async with home.open(keys) as manager:
            problems = (await manager.check()).problems
            noticed = bool(problems or manager.recovery.quarantined or any((home.workspace / "quarantine").glob("*")))
            served: Texts = {}
            for session_id in expected:
                told: list[str] = []
                shown: list[str] = []
                try:
                    session = await manager.find(session_id)
                    if session is not None:
                        history = (await session.tree.get_transcript()).entries
                        told = [entry.message.text for entry in history if hasattr(entry, "message")]
                        shown = [message.text for message in session.messages()]
                except StoreError:
                    noticed = True
                served[session_id] = told
                if strange := [text for text in (*told, *shown) if text not in expected[session_id]]:
                    return f"{session_id} serves {strange}"
    except SessionsError as error:
        return f"the start or the check is refused: {type(error).__name__}: {error}"
    if any(not texts for texts in served.values()) and not noticed:
        return f"a session is gone, and nobody says so: {served}"
    whole = [session_id for session_id in expected if served[session_id] == expected[session_id]]
    if not whole and not noticed:
        return f"no session is whole: {served}"
    if len(whole) < len(expected) and not noticed:
        return f"something is missing, and nobody says so: {served}"
    return ""


async def flip_all(home: Home, keys: KeyRing | None, count: int) -> None:
    expected = await made(home, keys)
    sound = home.workspace.with_name("sound")
    shutil.copytree(home.workspace, sound)
    wrong = []
    for path, bit in bits(home, count):
        name = path.relative_to(home.workspace)
        data = bytearray((sound / name).read_bytes())
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        if problem := await check(home, keys, expected):
            wrong.append(f"{name} bit {bit}: {problem}")
        shutil.rmtree(home.workspace)
        shutil.copytree(sound, home.workspace)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("store", "keys"),
    sampled([("sqlite:", OLD_KEY), ("jsonl:", OLD_KEY), ("jsonl:", None), ("sqlite:", None)], every=2),
)
async def test_a_few_flipped_bits(store: str, keys: KeyRing | None, tmp_path: Path) -> None:
    await flip_all(Home(tmp_path / "w", store), keys, QUICK)


@pytest.mark.proof
@pytest.mark.parametrize("keys", [None, OLD_KEY], ids=["plain", "encrypted"])
@pytest.mark.parametrize("store", sampled(["sqlite:", "jsonl:"], every=2))
async def test_many_flipped_bits(store: str, keys: KeyRing | None, tmp_path: Path) -> None:
    await flip_all(Home(tmp_path / "w", store), keys, MANY)
