"""What two gateways on one database reply is as it is in there: where an entry stands, the leaf, and the ETag."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from miniclaw_sessions import SessionManager
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.core.history.transcript import Transcript
from miniclaw_sessions.core.stores.base import Store, decode_stored
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.core.stores.postgresql.store import PostgreSQLStore
from miniclaw_sessions.testing import FaultyStore, ScriptedProvider
from tests.serving import serving

pytestmark = pytest.mark.anyio

ONE = "/v1/sessions/a_1"
HELLO = {"role": "user", "content": "hello"}
APPENDS: list[tuple[str, Any]] = [
    ("messages", HELLO),
    ("messages", {"messages": [HELLO] * 3}),
    ("entries", {"type": "message", "message": HELLO}),
    ("entries", {"type": "session_info", "name": "title"}),
    ("entries", {"type": "custom", "custom_type": "note", "data": {}}),
    (
        "entries",
        {
            "entries": [
                {"type": "message", "message": HELLO},
                {"type": "thinking_level", "thinking_level": "low"},
            ]
        },
    ),
    ("turns", {"messages": [HELLO, {"role": "assistant", "content": "hi"}]}),
]
CHANGES: list[tuple[str, str, Any]] = [
    ("PATCH", ONE, {"title": "x", "metadata": {"colour": "green"}}),
    ("POST", f"{ONE}/clear", None),
]


class Gateways:
    """Gateways on one store, and what the store has of the session."""

    def __init__(self, store: Store, clients: list[httpx2.AsyncClient]) -> None:
        self.clients = clients
        self._store = store

    async def ask(self, client: httpx2.AsyncClient, method: str, path: str, body: Any, **options: Any) -> Any:
        """The reply's document; its ETag is that of the header."""
        reply = await client.request(method, path, json=body, **options)
        assert reply.is_success, reply.text
        assert reply.headers["etag"] == reply.json()["etag"]
        return reply.json()

    async def transcript(self, up_to: int | None = None) -> Transcript:
        """The session as it is stored, or as it was when an entry was its newest."""
        found = Transcript(session_id="a_1")
        for stored in await self._store.read("a_1"):
            if up_to is None or stored.sequence <= up_to:
                found.add(decode_stored(stored))
        return found

    async def check(self, replies: Sequence[Any]) -> None:
        """Assert that these replies to appends are what is stored."""
        places = {entry.id: entry.sequence for entry in (await self.transcript()).entries}
        for reply in replies:
            if isinstance(reply["entries"], list):
                told = {one["id"]: one["sequence"] for one in reply["entries"]}
                assert told == {entry_id: places[entry_id] for entry_id in told}
                assert not any(one["duplicate"] for one in reply["entries"])
                assert reply["etag"].strip('"').split(".")[1:] == [str(max(told.values()))]
            last = int(reply["etag"].strip('"').split(".")[1])
            assert reply["leaf_id"] == (await self.transcript(last)).leaf_id


@asynccontextmanager
async def gateways(directory: Path, *stores: Store) -> AsyncIterator[Gateways]:
    async with AsyncExitStack() as stack:
        clients = []
        for number, store in enumerate(stores):
            manager = await stack.enter_async_context(SessionManager(directory / f"w{number}", store=store))
            socket = directory / f"s{number}"
            await stack.enter_async_context(serving(manager, socket, Agent(ScriptedProvider([]))))
            transport = httpx2.AsyncHTTPTransport(uds=str(socket), verify=False)
            client = httpx2.AsyncClient(transport=transport, base_url="http://miniclaw", trust_env=False)
            clients.append(await stack.enter_async_context(client))
        yield Gateways(stores[-1], clients)


@asynccontextmanager
async def two(directory: Path, url: str) -> AsyncIterator[Gateways]:
    async with gateways(directory, PostgreSQLStore(url), PostgreSQLStore(url)) as both:
        await both.clients[0].post(f"{ONE}/messages", json=HELLO)
        yield both


async def test_in_turns_each_reply_says_what_is_stored(postgresql_url: str, short_path: Path) -> None:
    async with two(short_path, postgresql_url) as both:
        first, second = both.clients
        for where, body in APPENDS:
            replies = [await both.ask(client, "POST", f"{ONE}/{where}", body) for client in (first, second, first)]
            await both.check(replies)


async def test_at_once_each_reply_says_what_is_stored(postgresql_url: str, short_path: Path) -> None:
    async with two(short_path, postgresql_url) as both:
        replies = []

        async def append(client: httpx2.AsyncClient, where: str, body: Any) -> None:
            replies.append(await both.ask(client, "POST", f"{ONE}/{where}", body))

        async with anyio.create_task_group() as tasks:
            for client in both.clients * 2:
                for where, body in APPENDS:
                    tasks.start_soon(append, client, where, body)
        assert len(replies) == 4 * len(APPENDS)
        await both.check(replies)


async def test_a_change_by_one_gateway_has_the_etag_that_the_other_one_gives(
    postgresql_url: str, short_path: Path
) -> None:
    async with two(short_path, postgresql_url) as both:
        first, second = both.clients
        for method, path, body in CHANGES:
            await second.post(f"{ONE}/messages", json=HELLO)
            changed = await both.ask(first, method, path, body)
            shown = await both.ask(second, "GET", ONE, None)
            assert (shown["etag"], shown["entries"]) == (changed["etag"], changed["entries"])


async def test_a_reply_s_etag_is_that_of_the_next_request_s_precondition(postgresql_url: str, short_path: Path) -> None:
    async with two(short_path, postgresql_url) as both:
        first, second = both.clients
        said = await both.ask(first, "POST", f"{ONE}/messages", HELLO)
        followed = await both.ask(second, "POST", f"{ONE}/messages", HELLO, headers={"If-Match": said["etag"]})
        refused = await first.post(f"{ONE}/messages", json=HELLO, headers={"If-Match": said["etag"]})
        assert refused.status_code == 412
        assert followed["entries"][0]["sequence"] == said["entries"][0]["sequence"] + 1


async def test_the_same_request_to_both_is_answered_with_the_same_entries(
    postgresql_url: str, short_path: Path
) -> None:
    async with two(short_path, postgresql_url) as both:
        for number, (where, body) in enumerate(APPENDS):
            headers = {"Idempotency-Key": f"key {number}"}
            asked = [await both.ask(client, "POST", f"{ONE}/{where}", body, headers=headers) for client in both.clients]
            if where == "turns":
                assert [reply["duplicate"] for reply in asked] == [False, True]
                continue
            first, again = [reply["entries"] for reply in asked]
            assert [{**one, "duplicate": True} for one in first] == again
            await both.check(asked[:1])


async def test_one_conversation_is_made_of_a_request_that_came_to_both_at_once(
    postgresql_url: str, short_path: Path
) -> None:
    async with two(short_path, postgresql_url) as both:
        body = {"items": [{"type": "message", "role": "user", "content": "hello"}]}
        made: list[str] = []

        async def create(client: httpx2.AsyncClient) -> None:
            reply = await client.post("/v1/conversations", json=body, headers={"Idempotency-Key": "key"})
            made.append(reply.json()["id"])

        async with anyio.create_task_group() as tasks:
            for client in both.clients * 3:
                tasks.start_soon(create, client)
        assert len(set(made)) == 1
        for client in both.clients:
            items = (await client.get(f"/v1/conversations/{made[0]}/items")).json()["data"]
            assert [item["content"][0]["text"] for item in items] == ["hello"]


READS = [f"{ONE}/messages", f"{ONE}/messages?before=1000", f"{ONE}/messages?after=1", f"{ONE}/entries"]
READS += [f"{ONE}/entries?before=1000", f"{ONE}/transcript", f"{ONE}/branch", f"{ONE}/articles", f"{ONE}/outline"]


NEWEST = [f"{ONE}/messages?limit=1", f"{ONE}/messages?before=1000&limit=1", f"{ONE}/entries?before=1000&limit=1"]
NEWEST += [f"{ONE}/branch?limit=1", f"{ONE}/articles?limit=1"]


async def check_that_none_is_shown(client: httpx2.AsyncClient) -> None:
    """Assert that everything can be read, and that what waits is in none of it, and in the place of nothing."""
    for path in READS + NEWEST:
        reply = await client.get(path)
        assert reply.is_success, (path, reply.text)
        assert "waiting" not in reply.text, path
        assert path not in NEWEST or "hello" in reply.text or "theirs" in reply.text, path


async def test_what_waits_for_its_place_is_not_shown_with_one(postgresql_url: str, short_path: Path) -> None:
    slow = FaultyStore(PostgreSQLStore(postgresql_url))
    async with gateways(short_path, slow, PostgreSQLStore(postgresql_url)) as both:
        first, second = both.clients
        await first.post(f"{ONE}/messages", json=HELLO)
        before = await both.ask(first, "GET", ONE, None)
        hold = slow.hold()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: first.post(f"{ONE}/messages", json={**HELLO, "content": "waiting"}))
            await hold.reached.wait()
            await check_that_none_is_shown(first)
            theirs = await both.ask(second, "POST", f"{ONE}/messages", {**HELLO, "content": "theirs"})
            shown = await both.ask(first, "GET", ONE, None)
            await check_that_none_is_shown(first)
            slow.heal()
        assert shown["etag"] not in (before["etag"], theirs["etag"])
        assert shown["entries"] in (1, 2)
        for path in READS:
            text = (await first.get(path)).text
            assert 0 < text.index("theirs") < text.index("waiting"), path


@pytest.mark.parametrize("waits", [("messages", HELLO), ("clear", None), ("labels", None)])
async def test_who_demands_the_leaf_that_he_was_shown_leaves_nothing_behind_unseen(
    postgresql_url: str, short_path: Path, waits: tuple[str, Any]
) -> None:
    slow, (where, body) = FaultyStore(PostgreSQLStore(postgresql_url)), waits
    async with gateways(short_path, slow) as alone:
        (client,) = alone.clients
        said = await alone.ask(client, "POST", f"{ONE}/messages", HELLO)
        hold = slow.hold()
        async with anyio.create_task_group() as tasks:
            body = {"entry_id": said["leaf_id"], "label": "here"} if where == "labels" else body
            tasks.start_soon(lambda: client.post(f"{ONE}/{where}", json=body))
            await hold.reached.wait()
            shown = await alone.ask(client, "GET", ONE, None)
            branch = (await client.get(f"{ONE}/branch")).json()["entries"]
            tree = (await client.get(f"{ONE}/tree")).json()
            refused = await client.post(f"{ONE}/branch?if_leaf={shown['leaf_id']}", json={"entry_id": None})
            slow.heal()
        assert shown["leaf_id"] == branch[-1]["id"] == tree["leaf_id"] == said["leaf_id"]
        assert refused.status_code == 409
        shown = await alone.ask(client, "GET", ONE, None)
        assert shown["leaf_id"] != said["leaf_id"]
        moved = await client.post(f"{ONE}/branch?if_leaf={shown['leaf_id'] or ''}", json={"entry_id": said["leaf_id"]})
        assert moved.json()["leaf_id"] == said["leaf_id"]


async def test_what_others_store_while_one_waits_is_read_to_its_end(postgresql_url: str, short_path: Path) -> None:
    slow = FaultyStore(PostgreSQLStore(postgresql_url))
    async with gateways(short_path, slow, PostgreSQLStore(postgresql_url)) as both:
        first, second = both.clients
        await first.post(f"{ONE}/messages", json=HELLO)
        hold = slow.hold()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: first.post(f"{ONE}/messages", json={**HELLO, "content": "waiting"}))
            await hold.reached.wait()
            for _ in range(3):
                await both.ask(second, "POST", f"{ONE}/messages", HELLO)
            places: list[int] = []
            after: int | None = 0
            while after is not None:
                page = (await first.get(f"{ONE}/entries?after={after}&limit=1")).json()
                places += [one["sequence"] for one in page["entries"]]
                after = page["next"]
            lines = (await first.get(f"{ONE}/transcript")).text.splitlines()
            slow.heal()
    assert places == [1, 2, 3, 4], "a client that follows takes the end of a page for the end of what is stored"
    assert len(lines) == 4


async def test_where_nobody_else_writes_what_waits_is_shown_and_replies_are_the_same(short_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with gateways(short_path, store) as alone:
        (client,) = alone.clients
        await client.post(f"{ONE}/messages", json=HELLO)
        await alone.check([await alone.ask(client, "POST", f"{ONE}/{where}", body) for where, body in APPENDS])
        hold = store.hold()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.post(f"{ONE}/messages", json={**HELLO, "content": "waiting"}))
            await hold.reached.wait()
            waiting = await alone.ask(client, "GET", ONE, None)
            for path in READS:
                assert "waiting" in (await client.get(path)).text, path
            store.heal()
        shown = await alone.ask(client, "GET", ONE, None)
        assert shown["entries"] == waiting["entries"]
        assert shown["etag"] != waiting["etag"], (
            "what is not acknowledged may be lost, and another entry have its place"
        )
