"""Searching: 1,000,000 messages in 10,000 chats; how long a first page takes, and what the index costs."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import anyio

from benchmarks.search_corpus import COMMON_CHINESE, JAPANESE, NEEDLE, PHRASE, RARE_CHINESE, texts
from benchmarks.workload import Row, fresh, in_process
from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.core.history.search import Search
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.base import Append, SessionHead, Store, StoredEntry, stored_entry
from miniclaw_sessions.core.stores.sqlite.store import SQLiteStore
from miniclaw_sessions.core.stores.wrapping import WrappingStore

CHATS = 10_000
MESSAGES = 1_000_000
TARGET_MS, SIZE_TARGET = 50.0, 1.5
ROUNDS = 40
WRITERS = 100
WRITING_S = 4.0

_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
_GROUP = 1_000

QUERIES: dict[str, tuple[Sequence[str], dict[str, Any]]] = {
    "a rare word": ((NEEDLE,), {}),
    "a common word": (("the", "object", "nicht"), {}),
    "a word that no message has": (("zzyzxquux", "thingamajigged", "verschlimmbesserung"), {}),
    "two words": (("expression statement", "argument nicht", "module sequence"), {}),
    "a phrase": ((f'"{PHRASE}"', '"the value of the"'), {}),
    "a part of a word": (("ttribut", "ügbarkei", "kkaval"), {}),
    "Chinese, two characters, common": ((COMMON_CHINESE,), {}),
    "Chinese, two characters, rare": ((RARE_CHINESE,), {}),
    "Chinese, one character, rare": ((RARE_CHINESE[1],), {}),
    "Japanese": ((JAPANESE, "タベー"), {}),
    "two letters": (("of", "ob", "xq"), {}),
    "in one chat, a common word": (("the", "nicht"), {"session_ids": frozenset({"telegram_77"})}),
    "in one channel, of one role": (("value", "object"), {"channel": "slack", "role": "assistant"}),
    "a number": (("#4711", "#99"), {}),
}


def measure(directory: Path, *, quick: bool) -> list[Row]:
    """The rows of this benchmark, on SQLite."""
    messages = MESSAGES // 20 if quick else MESSAGES
    place = fresh(directory, "search")
    rows: list[Row] = in_process(_measure_searches, place, messages)
    shutil.rmtree(place)
    rows += in_process(_measure_appends, fresh(directory, "search"))
    return rows


def _measure_searches(place: Path, messages: int) -> list[Row]:
    rows: list[Row] = anyio.run(_searches, SQLiteStore(place / "sessions.db"), messages, lambda: _size(place))
    return rows


def _size(place: Path) -> int:
    return sum(file.stat().st_size for file in place.glob("*-search*"))


async def _searches(store: Store, messages: int, size: Callable[[], int]) -> list[Row]:
    async with store:
        said = await fill(store, messages)
        started, began = time.perf_counter(), time.process_time()
        while await store.index(1_000):
            pass
        took, used = time.perf_counter() - started, time.process_time() - began
        ratio = size() / said
        rows = [
            Row("index against the text", "x", ratio, None, f"at most {SIZE_TARGET} x", ratio <= SIZE_TARGET),
            Row(f"to index {messages:,} messages", "s", took),
            Row("its processor time for each", "us", used / messages * 1e6),
        ]
        for name, (queries, filters) in QUERIES.items():
            times = [await _first_page(store, query, filters) for _ in range(ROUNDS) for query in queries]
            walls, spent = ([one[part] for one in times] for part in (0, 1))
            for quantile in (0.5, 0.99):
                value = _quantile(walls, quantile)
                what = f"first page, {name}, p{quantile * 100:g} (floor: processor time)"
                floor = _quantile(spent, quantile)
                rows.append(Row(what, "ms", value, floor, f"under {TARGET_MS:g}", value < TARGET_MS))
    return rows


async def fill(store: Store, messages: int) -> int:
    """Let the chats say this many messages, one after the other in any order; returns the bytes of their texts."""
    rnd = random.Random(7)
    ends = [0] * CHATS
    said, source = 0, texts()
    for start in range(0, messages, _GROUP):
        chats = rnd.sample(range(CHATS), _GROUP)
        appends = []
        for chat, text in zip(chats, islice(source, _GROUP), strict=True):
            ends[chat] += 1
            said += len(text.encode())
            appends.append(Append(_head(chat), [_entry(chat, ends[chat], text, start)]))
        if any(await store.append(appends)):
            raise RuntimeError("an append was refused")
    return said


def _head(chat: int) -> SessionHead:
    key = SessionKey("slack" if chat % 5 == 0 else "telegram", str(chat))
    return SessionHead(key.session_id, key, "first", _BEGAN)


def _entry(chat: int, sequence: int, text: str, second: int) -> StoredEntry:
    message = Message.assistant(text) if sequence % 2 == 0 else Message.user(text)
    return stored_entry(
        MessageEntry(
            id=f"{chat}-{sequence}",
            parent_id=None,
            timestamp=_BEGAN + timedelta(seconds=second),
            sequence=sequence,
            message=message,
        )
    )


async def _first_page(store: Store, query: str, filters: dict[str, Any]) -> tuple[float, float]:
    """How long it takes, and how much processor time: others may use the machine as well."""
    search = Search.parse(query, **filters)
    started, spent = time.perf_counter(), time.process_time()
    await store.search(search)
    return (time.perf_counter() - started) * 1e3, (time.process_time() - spent) * 1e3


def _quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


# --- what appends cost with it ---------------------------------------------------------------------------------------


class _NotIndexed(WrappingStore):
    """A store as if there were no index."""

    async def index(self, limit: int) -> int:
        """Nothing."""
        del limit
        return 0


def _measure_appends(place: Path) -> list[Row]:
    rows: list[Row] = anyio.run(_appends, place)
    return rows


async def _appends(place: Path) -> list[Row]:
    """In turns, so that a slow spell hits both."""
    runs: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    for turn in range(6):
        is_indexed = turn % 2 == 1
        store: Store = SQLiteStore(place / f"{turn}.db")
        async with SessionManager(place / str(turn), store=store if is_indexed else _NotIndexed(store)) as manager:
            runs[is_indexed].append(await _write(manager))
    without, with_it = ([sorted(run)[1] for run in zip(*runs[one], strict=True)] for one in (False, True))
    names = (("acknowledged messages of 100 writers", "/s"), ("p50 of one", "ms"), ("p99 of one", "ms"))
    return [
        Row(f"appends while indexing: {name} (floor: without an index)", unit, ours, floor)
        for (name, unit), ours, floor in zip(names, with_it, without, strict=True)
    ]


async def _write(manager: SessionManager) -> tuple[float, float, float]:
    """How many messages are acknowledged in a second, and how long one takes: half of them, and most."""
    times: list[float] = []
    source = texts()
    until = time.perf_counter() + WRITING_S

    async def write(number: int) -> None:
        session = await manager.get_or_create("telegram", str(number))
        while time.perf_counter() < until:
            started = time.perf_counter()
            await session.add_message(Message.user(next(source)))
            times.append((time.perf_counter() - started) * 1e3)

    async with anyio.create_task_group() as tasks:
        for number in range(WRITERS):
            tasks.start_soon(write, number, name=f"writer {number}")
    return len(times) / WRITING_S, _quantile(times, 0.5), _quantile(times, 0.99)
