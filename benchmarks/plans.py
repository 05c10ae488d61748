"""How the statements on a message's way find their rows among a million entries: `python -m benchmarks.plans`.

Each is run as a gateway runs it, in a transaction that is rolled back. The server says along which indexes it went, how
many pages of 8 KiB it looked at, and how long it took. The table is that of docs/explanation/many-machines.md.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import asyncpg

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.base import Append, Checkpoint, SessionHead, StoredEntry, TurnClaim
from miniclaw_sessions.core.stores.postgresql import catalog_sql, changes, search_sql, statements
from miniclaw_sessions.core.stores.postgresql.statements import Keys, Part, Statement
from miniclaw_sessions.core.stores.postgresql.store import PostgreSQLStore
from miniclaw_sessions.core.stores.shared_store import Use
from tests.postgresql import OWNER, PostgreSQLServer, running_server

ENTRIES = 1_000_000
LENGTH = 20
"""Entries of a session."""

GROUP = 100
CHECKPOINT = b"x" * 2_000
ENTRY = b"x" * 300

_MAKE = """
INSERT INTO sessions (session_id, channel, chat_id, incarnation, created_at, last_sequence, used_at, fence)
    SELECT 'many_' || n, 'many', n, 'first', now(), {length}, now() - n * INTERVAL '10 s', 0
    FROM generate_series(1, {sessions}) n;
INSERT INTO entries (session_id, sequence, entry_id, encoded, checksum)
    SELECT 'many_' || 1 + n / {length}, 1 + n % {length}, md5(n::text), '{entry}', 1
    FROM generate_series(0, {entries} - 1) n;
INSERT INTO idempotency_keys (session_id, idempotency_key, sequence)
    SELECT 'many_' || 1 + n / {length}, 'key ' || n, 1 + n % {length} FROM generate_series(0, {entries} - 1, 2) n;
INSERT INTO checkpoints (session_id, incarnation, sequence, encoded, checksum)
    SELECT 'many_' || n, 'first', {length} - 10, '{checkpoint}', 1 FROM generate_series(1, {sessions}) n;
INSERT INTO searched (session_id, sequence) SELECT 'many_' || n, {length} FROM generate_series(1, {sessions}) n;
INSERT INTO search (session_id, sequence, said_at, numbers)
    SELECT 'many_' || 1 + n / {length}, 1 + n % {length}, now() - n * INTERVAL '1 s',
        ARRAY[n % 5000, n % 977, n % 31, 10000 + n % 20000] FROM generate_series(0, {entries} - 1) n;
INSERT INTO properties (name, value) VALUES ('encryption', '{{}}');
"""


class Plan(NamedTuple):
    """How a statement was run.

    Attributes:
        what: it does, in words.
        indexes: that it used, in order of their names.
        scanned: tables that it read from end to end.
        pages: that it looked at.
        milliseconds: it took.
    """

    what: str
    indexes: list[str]
    scanned: list[str]
    pages: int
    milliseconds: float


async def fill(server: PostgreSQLServer, database: str, entries: int) -> None:
    """Make the tables in an empty database, and so many entries."""
    async with PostgreSQLStore(server.url(database)):
        pass
    facts = {"entries": entries, "length": LENGTH, "sessions": entries // LENGTH}
    values = {"entry": ENTRY.decode(), "checkpoint": CHECKPOINT.decode()}
    connection = await asyncpg.connect(host=str(server.directory), user=OWNER, database=database)
    try:
        await connection.execute(_MAKE.format(**facts, **values))
        await connection.execute("VACUUM ANALYZE")
    finally:
        await connection.close()


def hot(now: datetime) -> Iterator[tuple[str, Statement, Mapping[str, Any]]]:
    """The statements on a message's way, in its order, each with parameters that find something."""
    one, group, new = [5], range(2, 2 + GROUP), [-1]
    yield "a message with an idempotency key", statements.GO_ON[Keys.NEW, False], appended(one, keyed=True)
    yield f"{GROUP} messages of as many sessions", statements.GO_ON[Keys.NONE, False], appended(group)
    yield "a message that claims a turn", statements.GO_ON[Keys.NEW, True], appended(one, keyed=True, claims=True)
    yield "the first message of a session", statements.BEGIN, appended(new, last=0)
    yield "a turn that is prolonged", statements.CLAIM, appended(one, claims=True)
    yield "a commit that has to be settled", statements.LOCKED_HEAD, {"session_id": "many_5"}
    yield (
        "a key, used long ago",
        statements.WITH_KEY,
        {"session_id": "many_5", "key": f"key {4 * LENGTH}"},
    )
    ids = [f"many_{number}" for number in group]
    yield f"{GROUP} fresh reads", statements.VERSIONS, {"session_ids": ids}
    yield "a session that is loaded", catalog_sql.LOAD, {"session_ids": ["many_5"], "limit": 500}
    yield (
        "a page of older messages",
        statements.OLDEST_FIRST,
        {"session_id": "many_5", "after": LENGTH // 2, "limit": 50},
    )
    yield "the newest messages", statements.NEWEST_FIRST, {"session_id": "many_5", "limit": 50}
    yield "the poll for what others did", changes.CHANGES, {"since": now}
    kept = [Checkpoint(one, "first", LENGTH, CHECKPOINT) for one in ids]
    yield f"{GROUP} checkpoints", catalog_sql.WRITE_CHECKPOINTS, catalog_sql.values_of_checkpoints(kept)
    used = [Use(one, "first", 0.0) for one in ids]
    yield f"{GROUP} uses", catalog_sql.USED[False], catalog_sql.values_of_uses(used)
    first = {"channel": None, "pattern": "%", "used_at": catalog_sql.LAST, "behind": "", "limit": 100}
    yield "the first page of the list", catalog_sql.NEWEST, first
    yield "what is not indexed for the search", search_sql.BEHIND, {"seconds": 600.0, "limit": 1000}
    ends = {"session_ids": ids, "ends": [LENGTH - 1] * GROUP}
    yield f"{GROUP} entries that lack in the index", search_sql.LACKING, {**ends, "limit": 1000, "most_bytes": 4 << 20}
    idle: dict[str, Any] = {"idle_s": 1e9, "limit": 100, "channel": None, "but_channels": []}
    yield "what has expired", catalog_sql.IDLE, idle
    for statement in statements.DELETE:
        yield "a session that is deleted", statement, {"session_id": "many_5"}


def appended(chats: Iterable[int], *, keyed: bool = False, claims: bool = False, last: int = LENGTH) -> dict[str, Any]:
    """The parameters of an append to each of these sessions."""
    parts = []
    for chat in chats:
        head = SessionHead(f"many_{chat}", SessionKey.of("many", chat), "first", datetime.now(UTC))
        new = [StoredEntry(last + 1, f"new {chat}", ENTRY, f"key {chat}" if keyed else None)]
        turn = TurnClaim(1, "owner", 30.0) if claims else None
        parts.append(Part(Append(head, new, turn=turn), new, last))
    return dict(statements.values_of(parts))


async def plans(connection: Any) -> list[Plan]:
    """How each of the statements is run now; what takes several is one plan."""
    found: dict[str, Plan] = {}
    for what, statement, values in hot(SystemClock().now()):
        text = ""
        for _ in range(2):  # the first time reads what is not in memory yet
            running = connection.transaction()
            await running.start()
            explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement.text}"
            text = await connection.fetchval(explained, *statement.arguments(values))
            await running.rollback()
        (said,) = json.loads(text)
        nodes = list(_nodes(said["Plan"]))
        pages = sum(said["Plan"][kind] for kind in ("Shared Hit Blocks", "Shared Read Blocks"))
        before = found.get(what, Plan(what, [], [], 0, 0.0))
        found[what] = Plan(
            what,
            sorted({*before.indexes, *(node["Index Name"] for node in nodes if "Index Name" in node)}),
            [*before.scanned, *(node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan")],
            before.pages + pages,
            before.milliseconds + said["Planning Time"] + said["Execution Time"],
        )
    return list(found.values())


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for one in plan.get("Plans", ()):
        yield from _nodes(one)


async def _main(entries: int) -> None:
    with running_server() as server:
        await fill(server, "postgres", entries)
        connection = await asyncpg.connect(host=str(server.directory), user=OWNER, database="postgres")
        print("| Statement | Along | Pages | ms |\n|---|---|---|---|")
        for plan in await plans(connection):
            along = ", ".join(f"`{name}`" for name in plan.indexes)
            along += "".join(f", all of `{name}`" for name in plan.scanned)
            print(f"| {plan.what} | {along} | {plan.pages} | {plan.milliseconds:.1f} |")
        await connection.close()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]) if len(sys.argv) > 1 else ENTRIES))
