"""What somebody does to a workspace as a whole, ended at one of its system calls: the actor, and what must hold after.

Each work says how its beginning is made, what is done, and what is wrong with what a kill or a power cut left; looking
includes doing it once more. The actor waits for a byte in a pipe before it begins, as `tests.crash.actor` does, so that
strace watches the work alone.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from miniclaw_sessions import Message
from miniclaw_sessions.core.history.search import Search
from miniclaw_sessions.core.stores import open_store
from miniclaw_sessions.core.stores.base import Append
from miniclaw_sessions.core.stores.sqlite.search_file import SearchFile
from miniclaw_sessions.core.stores.sqlite.store import SQLiteStore
from miniclaw_sessions.errors import ConfigError, NotArchived, SessionExists
from miniclaw_sessions.files.transfer.backup import back_up_closed, restore, verify_backup
from miniclaw_sessions.files.transfer.migrating import location, migrate
from miniclaw_sessions.testing import FakeClock
from miniclaw_sessions.testing.store_kit import sample_entries, sample_head
from tests.core.persistence.encrypted_homes import DAY, OLD_KEY, SECRET, Home, Said
from tests.core.persistence.test_mending import flip, flip_line
from tests.crash.acknowledgements import Acknowledgements
from tests.crash.writer import log_past_the_injected_calls

GONE = "telegram_1"
"""The session that is deleted."""

INDEXED = 60

Told = list[str]
"""What the actor had told by its end."""

Step = Callable[[Path, str], Awaitable[None]]
Tell = Callable[[str], None]


class Work(NamedTuple):
    """One kind of work, on a directory and with a kind of store.

    Attributes:
        prepare: makes the beginning.
        do: does it, and tells what somebody may rely on from then on.
        problems: what is wrong with what it left.
    """

    prepare: Step
    do: Callable[[Path, str, Tell], Awaitable[None]]
    problems: Callable[[Path, str, Told], Awaitable[list[str]]]


def main(orders: Mapping[str, Any]) -> int:
    """Do one work between `ready` and `acted`, and wait for the end."""
    log_past_the_injected_calls()
    told = Acknowledgements(Path(orders["acknowledgements"]))

    async def act() -> None:
        go = os.open(orders["go"], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        told.write("ready")
        await anyio.wait_readable(go)
        await WORKS[orders["work"]].do(Path(orders["root"]), orders["store"], told.write)

    anyio.run(act)
    told.write("acted")
    while True:
        signal.pause()


# --- what is there ---------------------------------------------------------------------------------------------------


def home(root: Path, store: str, name: str = "w") -> Home:
    """A workspace; its clock goes on from now, or its ids would be those of the process before."""
    found = Home(root / name, store)
    found.clock = FakeClock(datetime.now(UTC))
    return found


def said_in(count: int, *chats: int | str) -> Said:
    """What `Home.say` says."""
    return {f"telegram_{chat}": [f"{SECRET} {chat}/{number}" for number in range(count)] for chat in chats}


def differences(expected: Said, found: Said) -> list[str]:
    """A sentence for each session that is not as it should be."""
    return [
        f"{name}: {len(found.get(name, ()))} of {len(expected.get(name, ()))} messages"
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    ]


async def fill(root: Path, store: str) -> None:
    """Three sessions, one in the archive, one damaged file set aside."""
    await Home(root / "w", store).fill(None)


FILLED = said_in(6, 0, 1, 2)


async def fill_plainly(root: Path, store: str) -> None:
    """Three sessions, and nothing else."""
    async with home(root, store).open(None) as manager:
        for number in range(3):
            await home(root, store).say(manager, number)


# --- migrate ---------------------------------------------------------------------------------------------------------


def other(store: str) -> str:
    """A store of the other kind."""
    return "jsonl:" if store == "sqlite:" else "sqlite:"


async def _migrate(root: Path, store: str, _: Tell) -> None:
    await migrate(location(str(root / "w"), root), location(other(store), root / "new"))


async def _after_migrating(root: Path, store: str, _: Told) -> list[str]:
    problems = differences(FILLED, await home(root, store).said(None))
    await _migrate(root, store, print)
    new = home(root, other(store), "new")
    async with new.open(None) as manager:
        await manager.restore("telegram_expired")
    return problems + differences(FILLED | said_in(6, "expired"), await new.said(None))


# --- rekey -----------------------------------------------------------------------------------------------------------


async def _encrypt(root: Path, store: str, _: Tell) -> None:
    await home(root, store).rekey(OLD_KEY)


async def _after_encrypting(root: Path, store: str, _: Told) -> list[str]:
    problems = []
    with suppress(ConfigError):  # nobody may use it, or it is done
        problems += differences(FILLED, await home(root, store).said(None))
    await _encrypt(root, store, print)
    problems += differences(FILLED, await home(root, store).said(OLD_KEY))
    problems += [f"{name} shows what was said" for name in home(root, store).showing()]
    return problems + [f"{name} was left" for name in home(root, store).contents() if "rekeyed" in name]


# --- backup and restore ----------------------------------------------------------------------------------------------


async def _back_up(root: Path, store: str, tell: Tell) -> None:
    one = home(root, store)
    await back_up_closed(one.workspace, one.settings, root / "backup")
    tell("backed up")


async def _after_backing_up(root: Path, store: str, told: Told) -> list[str]:
    problems = differences(FILLED, await home(root, store).said(None))
    try:
        problems += (await verify_backup(root / "backup")).problems
    except ConfigError as error:  # it says of itself that it is none
        return [*problems, *([str(error)] if "backed up" in told else [])]
    return problems + await _restored(root, store)


async def _restored(root: Path, store: str) -> list[str]:
    new = home(root, store, "new")
    with suppress(ConfigError):  # it was restored to its end, and lives
        await restore(root / "backup", new.workspace, new.settings)
    return differences(FILLED, await new.said(None))


async def _fill_and_back_up(root: Path, store: str) -> None:
    await fill(root, store)
    await _back_up(root, store, print)


async def _restore(root: Path, store: str, _: Tell) -> None:
    await restore(root / "backup", root / "new", home(root, store).settings)


async def _after_restoring(root: Path, store: str, _: Told) -> list[str]:
    return await _restored(root, store)


# --- delete and purge ------------------------------------------------------------------------------------------------


async def _purge(root: Path, store: str, tell: Tell) -> None:
    async with home(root, store).open(None) as manager:
        if not await manager.delete(GONE):
            return
        tell("deleted")
        assert await manager.purge(GONE) == []
        tell("purged")


async def _after_purging(root: Path, store: str, told: Told) -> list[str]:
    problems = _traces(root) if "purged" in told else []
    there = await home(root, store).said(None)
    if "deleted" in told and GONE in there:
        problems.append(f"{GONE} came back")
    problems += differences(FILLED if GONE in there else _but_for_gone(FILLED), there)
    async with home(root, store).open(None) as manager:
        await manager.delete(GONE)
        problems += await manager.purge(GONE)
        problems += _traces(root)
        return problems + differences(_but_for_gone(FILLED), await read(manager))


def _but_for_gone(said: Said) -> Said:
    return {name: texts for name, texts in said.items() if name != GONE}


def _traces(root: Path) -> list[str]:
    files = [path for path in (root / "w").rglob("*") if path.is_file()]
    return [f"{path.name} has its words" for path in files if f"{SECRET} 1/".encode() in path.read_bytes()]


# --- expire, and come back -------------------------------------------------------------------------------------------


async def _sweep(root: Path, store: str, _: Tell) -> None:
    one = home(root, store)
    async with one.open(None) as manager:
        await one.clock.advance(9 * DAY + 1)  # nobody came before the start: people get a while to come back
        await one.clock.advance(31 * DAY)
        await manager.sweep()  # unless one has come by itself meanwhile
        assert await manager.list() == []


async def _after_sweeping(root: Path, store: str, _: Told) -> list[str]:
    one = home(root, store)
    async with one.open(None) as manager:
        for name in FILLED:
            with suppress(NotArchived, SessionExists):
                await manager.restore(name)
    return differences(FILLED, await one.said(None))


async def _fill_and_sweep(root: Path, store: str) -> None:
    await fill_plainly(root, store)
    await _sweep(root, store, print)


async def _come_back(root: Path, store: str, tell: Tell) -> None:
    async with home(root, store).open(None) as manager:
        await manager.restore(GONE)
        await (await manager.find(GONE)).add_message(Message.user("back"))
        tell("spoken")


async def _after_coming_back(root: Path, store: str, told: Told) -> list[str]:
    problems = []
    async with home(root, store).open(None) as manager:
        with suppress(NotArchived, SessionExists):
            await manager.restore(GONE)
        spoken = (await read(manager)).get(GONE, [])
        if "spoken" in told and spoken[-1:] != ["back"]:
            problems.append("what was said behind it is lost")
        if spoken[-1:] != ["back"]:
            await (await manager.find(GONE)).add_message(Message.user("back"))
        for name in FILLED:
            with suppress(NotArchived, SessionExists):
                await manager.restore(name)
        return problems + differences(FILLED | {GONE: [*FILLED[GONE], "back"]}, await read(manager))


async def read(manager: Any) -> Said:
    """What the transcripts say."""
    found = {}
    for one in await manager.list():
        history = (await (await manager.find(one.session_id)).tree.get_transcript()).entries
        found[one.session_id] = [entry.message.text for entry in history if hasattr(entry, "message")]
    return found


# --- check --repair --------------------------------------------------------------------------------------------------


async def _fill_and_damage(root: Path, store: str) -> None:
    await fill_plainly(root, store)
    harm = flip if store == "sqlite:" else flip_line
    for chat in range(3):
        for sequence in (5, 6):
            harm(home(root, store), sequence, chat, 0.7)


async def _repair(root: Path, store: str, _: Tell) -> None:
    async with home(root, store).open(None) as manager:
        await manager.repair()


async def _after_repairing(root: Path, store: str, _: Told) -> list[str]:
    await _repair(root, store, print)
    return differences(FILLED, await home(root, store).said(None))


# --- the search's index ----------------------------------------------------------------------------------------------


async def _fill_and_forget_the_index(root: Path, _: str) -> None:
    (root / "w").mkdir()
    path = root / "w/sessions.db"
    async with open_store("sqlite:", root / "w") as store:
        for first in range(1, INDEXED, 20):
            some = sample_entries(first, first + 19, text="a needle in the hay")
            assert await store.append([Append(sample_head(1), some)]) == [None]
    SearchFile(path).remove()


async def _index(root: Path, _: str, tell: Tell) -> None:
    del tell
    async with SQLiteStore(root / "w/sessions.db") as store:
        while await store.index(7):
            pass


async def _after_indexing(root: Path, _: str, told: Told) -> list[str]:
    del told
    problems = []
    async with SQLiteStore(root / "w/sessions.db") as store:
        for moment in ("before", "after"):
            found = await store.search(Search.parse("needle", limit=100))
            if len({hit.entry_id for hit in found.hits}) != INDEXED:
                problems.append(f"{len(found.hits)} of {INDEXED} are found {moment}")
            while await store.index(7):
                pass
        problems += await store.check()
    with closing(sqlite3.connect(SearchFile(root / "w/sessions.db").path)) as index:
        index.execute("INSERT INTO said (said) VALUES ('integrity-check')")
    return problems


WORKS: Mapping[str, Work] = {
    "migrate": Work(fill, _migrate, _after_migrating),
    "encrypt": Work(fill, _encrypt, _after_encrypting),
    "back up": Work(fill, _back_up, _after_backing_up),
    "restore": Work(_fill_and_back_up, _restore, _after_restoring),
    "purge": Work(fill_plainly, _purge, _after_purging),
    "sweep": Work(fill_plainly, _sweep, _after_sweeping),
    "come back": Work(_fill_and_sweep, _come_back, _after_coming_back),
    "repair": Work(_fill_and_damage, _repair, _after_repairing),
    "index": Work(_fill_and_forget_the_index, _index, _after_indexing),
}
