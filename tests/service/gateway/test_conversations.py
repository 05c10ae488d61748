"""OpenAI's Conversations, asked for by the `openai` package as it is, over both of the daemon's sockets."""

from __future__ import annotations

import hashlib
import io
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, redirect_stdout
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
import msgspec
import openai
import pytest
from anyio import to_thread
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.protocol.entries import original_id
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, TextPart, ThinkingPart, ToolCall, Usage
from tests.legality import is_legal
from tests.service.gateway.conftest import TOKEN
from tests.service.gateway.lossy import lossy

pytestmark = pytest.mark.anyio

Item = dict[str, Any]
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def user(text: Any, **fields: Any) -> Any:
    return {"role": "user", "content": text, **fields}


def told(text: str, usage: Usage) -> Message:
    return msgspec.structs.replace(Message.assistant(text), usage=usage)


def texts(items: Any) -> list[str]:
    """What messages say, calls call, and results are."""
    return [text_of(item.model_dump(exclude_unset=True)) for item in items]


def text_of(item: Item) -> str:
    match item:
        case {"content": [*parts], "type": "message"}:
            return "".join(part.get("text", "") for part in parts)
        case {"name": name, "type": "function_call"}:
            return f"{name}()"
        case {"output": output}:
            return str(output)
        case {"summary": [*parts]}:
            return "".join(part["text"] for part in parts)
    raise AssertionError(item)


@asynccontextmanager
async def package_by_tcp(served: Any, key: str = TOKEN) -> AsyncIterator[AsyncOpenAI]:
    """The package's client; nothing but its address is ours."""
    http = DefaultAsyncHttpxClient(verify=NO_TLS)
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key=key, http_client=http) as client:
        yield client


@asynccontextmanager
async def package_at(socket: Path, **options: Any) -> AsyncIterator[AsyncOpenAI]:
    """The package's client on a Unix socket."""
    http = DefaultAsyncHttpxClient(transport=httpx2.AsyncHTTPTransport(uds=str(socket), verify=False))
    async with AsyncOpenAI(base_url="http://miniclaw/v1", api_key="any", http_client=http, **options) as client:
        yield client


@pytest.fixture
async def client(served: Any) -> AsyncIterator[AsyncOpenAI]:
    async with package_at(served.socket) as made:
        yield made


async def every(client: AsyncOpenAI, conversation: str, **options: Any) -> list[Any]:
    return [item async for item in client.conversations.items.list(conversation, **options)]


# --- conversations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_tcp", [False, True], ids=["unix", "tcp"])
async def test_the_package_does_everything_with_conversations_and_items(served: Any, *, by_tcp: bool) -> None:
    strictly = package_at(served.socket, _strict_response_validation=True)  # every answer has the package's types
    async with package_by_tcp(served) if by_tcp else strictly as client:
        made = await client.conversations.create(items=[user("hello")], metadata={"topic": "demo"})
        assert made.id.startswith("conv_")
        assert (len(made.id), made.object, made.metadata) == (53, "conversation", {"topic": "demo"})
        assert isinstance(made.created_at, int)
        assert await client.conversations.retrieve(made.id) == made

        changed = await client.conversations.update(made.id, metadata={"topic": "other"})
        assert changed.metadata == {"topic": "other"}

        added = await client.conversations.items.create(
            made.id,
            items=[{"role": "assistant", "content": "Hi."}, user("and?")],
            include=["reasoning.encrypted_content"],
        )
        assert (added.object, added.has_more, len(added.data)) == ("list", False, 2)
        assert (added.first_id, added.last_id) == (added.data[0].id, added.data[1].id)
        assert texts(await every(client, made.id)) == ["and?", "Hi.", "hello"]
        assert texts(await every(client, made.id, order="asc")) == ["hello", "Hi.", "and?"]

        one = await client.conversations.items.retrieve(added.first_id, conversation_id=made.id)
        assert one == added.data[0]
        after = await client.conversations.items.delete(added.first_id, conversation_id=made.id)
        assert after == changed
        assert texts(await every(client, made.id, order="asc")) == ["hello", "and?"]

        gone = await client.conversations.delete(made.id)
        assert (gone.id, gone.object, gone.deleted) == (made.id, "conversation.deleted", True)
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve(made.id)


async def test_the_synchronous_client_does_the_same(served: Any) -> None:
    def work() -> list[str]:
        http = DefaultHttpxClient(transport=httpx2.HTTPTransport(uds=str(served.socket), verify=False))
        with OpenAI(base_url="http://miniclaw/v1", api_key="any", http_client=http) as client:
            made = client.conversations.create(metadata=None)
            for start in range(0, 120, 20):
                client.conversations.items.create(made.id, items=[user(f"{n}") for n in range(start, start + 20)])
            listed = texts(client.conversations.items.list(made.id, order="asc", limit=7))
            client.conversations.delete(made.id)
            return listed

    assert await to_thread.run_sync(work) == [f"{number}" for number in range(120)]


async def test_metadata_is_replaced_and_has_its_limits(served: Any, client: AsyncOpenAI) -> None:
    made = await client.conversations.create(metadata={"model": "mine", "self": "x", "title": "Trip", "session.a": "b"})
    assert made.metadata == {"model": "mine", "self": "x", "title": "Trip", "session.a": "b"}
    session = await served.manager.find(made.id)
    assert (session.title, session.metadata.get("model")) == ("Trip", None)  # its model is no label

    changed = await client.conversations.update(made.id, metadata={"metadata.x": "1", "model": "2"})
    assert changed.metadata == {"metadata.x": "1", "model": "2"}
    assert (await client.conversations.update(made.id, metadata=None)).metadata == {}
    for wrong in cast("Any", ({f"{n}": "" for n in range(17)}, {"k" * 65: ""}, {"k": "v" * 513}, {"k": 5})):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.conversations.create(metadata=wrong)
        assert "metadata" in str(refused.value.param)
    assert len(await served.manager.list()) == 1


async def test_a_repeated_creation_with_the_same_key_makes_one_conversation(served: Any, client: AsyncOpenAI) -> None:
    key = {"Idempotency-Key": "k1"}
    made = await client.conversations.create(items=[user("hello")], extra_headers=key)
    assert await client.conversations.create(items=[user("hello")], extra_headers=key) == made
    assert texts(await every(client, made.id)) == ["hello"]
    assert len(await served.manager.list()) == 1
    async with package_by_tcp(served) as somebody_else:  # whose keys are his own
        assert (await somebody_else.conversations.create(extra_headers=key)).id != made.id


# --- items -----------------------------------------------------------------------------------------------------------

EVERYTHING: list[Any] = [
    user("text"),
    user(
        [{"type": "input_text", "text": "parts"}, {"type": "input_image", "detail": "auto", "image_url": "https://a/b"}]
    ),
    {"role": "developer", "content": "be brief", "type": "message"},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"},
    {"role": "assistant", "content": "Let me see.", "phase": "commentary"},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":  "Paris"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "18 degrees"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "19"}]},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
    {"type": "mcp_call", "id": "mcp_1", "arguments": "{}", "name": "f", "server_label": "s", "novel": {"deep": [1.5]}},
    {"type": "of_tomorrow", "id": "t_1", "what": [None, True]},
    {"role": "critic", "content": [{"type": "input_text", "text": "no"}]},
    {"role": "assistant", "id": "msg_odd", "content": [{"type": "summary_text", "text": "?"}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "Sunny.", "annotations": [], "logprobs": []}]},
]


async def test_items_come_back_as_they_were_given_completed_as_the_service_does(client: AsyncOpenAI) -> None:
    made = await client.conversations.create()
    added = await client.conversations.items.create(made.id, items=EVERYTHING)
    shown = [item.model_dump(exclude_unset=True) for item in await every(client, made.id, order="asc")]
    assert shown == [item.model_dump(exclude_unset=True) for item in added.data]
    assert [item["id"].partition("_")[0] for item in shown] == [
        *("msg", "msg", "msg", "rs", "msg", "fc", "fco", "fco", "ws", "mcp", "t", "msg", "msg", "msg"),
    ]
    assert len({item["id"] for item in shown}) == len(EVERYTHING)
    for given, item in zip(EVERYTHING, shown, strict=True):
        expected = {"type": "message", **given, "id": given.get("id", item["id"])}
        if isinstance(content := given.get("content"), str):
            is_answer = given["role"] == "assistant"
            part = {"type": "output_text", "annotations": []} if is_answer else {"type": "input_text"}
            expected["content"] = [{**part, "text": content}]
        if "status" in item:
            assert item["status"] == "completed"
            expected["status"] = "completed"
        assert item == expected
        assert ("status" in item) == (item["type"] not in ("reasoning", "mcp_call", "of_tomorrow"))


async def test_every_item_is_found_and_deleted_by_its_id_and_the_others_keep_theirs(
    served: Any, client: AsyncOpenAI
) -> None:
    made = await client.conversations.create(items=EVERYTHING)
    left = [item.id for item in await every(client, made.id, order="asc")]
    while left:
        item_id = left.pop(len(left) // 2)  # in the middle, of whatever message it is a part
        assert (await client.conversations.items.retrieve(item_id, conversation_id=made.id)).id == item_id
        assert (await client.conversations.items.delete(item_id, conversation_id=made.id)).id == made.id
        with pytest.raises(openai.NotFoundError, match=f"Item with id '{item_id}' not found"):
            await client.conversations.items.retrieve(item_id, conversation_id=made.id)
        assert [item.id for item in await every(client, made.id, order="asc")] == left
        for one in left:
            assert (await client.conversations.items.retrieve(one, conversation_id=made.id)).id == one
    session = await served.manager.find(made.id)
    said = {original_id(entry) async for entry in session.tree.read_entries()}
    assert len(said) > 4  # the transcript keeps what was taken out
    assert (await served.manager.check()).problems == []


async def test_items_that_are_deleted_and_added_at_once_are_what_was_asked_for(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[user(f"{number}") for number in range(20)])
    items = await every(client, made.id, order="asc")
    async with anyio.create_task_group() as tasks:
        for item in items[::2]:
            tasks.start_soon(lambda one: client.conversations.items.delete(one, conversation_id=made.id), item.id)
            more = [user(f"more {item.id}")]
            tasks.start_soon(lambda added: client.conversations.items.create(made.id, items=added), more)
    left = await every(client, made.id, order="asc")
    assert [item.id for item in left if "more" not in texts([item])[0]] == [item.id for item in items[1::2]]
    assert sorted(text for text in texts(left) if "more" in text) == sorted(f"more {item.id}" for item in items[::2])


async def test_what_is_deleted_is_not_told_to_a_model_and_costs_nothing_twice(served: Any, client: AsyncOpenAI) -> None:
    session = await served.manager.get_or_create("telegram", 5)
    await session.add_messages([Message.user("one"), told("1", Usage(3, 4)), Message.user("secret")])
    await session.tree.append_model_change("test", "echo-2")
    await session.add_messages([told("2", Usage(5, 6)), Message.user("three")])
    entries = [item.id for item in await every(client, session.session_id, order="asc")]
    cost = session.total_usage
    await client.conversations.items.delete(entries[2], conversation_id=session.session_id)

    context = await session.get_context()
    assert [message.text for message in context.messages] == ["one", "1", "2", "three"]
    assert (context.provider, context.model) == ("test", "echo-2")
    assert session.total_usage == cost


async def test_a_compaction_stands_where_it_stood_when_something_before_or_behind_it_is_deleted(
    served: Any, client: AsyncOpenAI
) -> None:
    session = await served.manager.get_or_create("telegram", 6)
    said = await session.add_messages([Message.user(f"{number}") for number in range(6)])
    await session.tree.append_compaction("what was said", said[3].id)
    await session.add_messages([Message.user("6"), Message.user("7")])
    items = await every(client, session.session_id, order="asc")
    assert texts(items) == [f"{number}" for number in range(8)]  # nothing is hidden by it
    for number in (6, 4, 3, 1):
        await client.conversations.items.delete(items[number].id, conversation_id=session.session_id)
    assert texts(await every(client, session.session_id, order="asc")) == ["0", "2", "5", "7"]
    told = [message.text for message in (await session.get_context()).messages]
    assert told[0].endswith("what was said")
    assert told[1:] == ["5", "7"]


async def test_pages_hold_still_while_items_are_added(client: AsyncOpenAI) -> None:
    made = await client.conversations.create()
    for start in range(0, 60, 20):
        await client.conversations.items.create(made.id, items=[user(f"{n}") for n in range(start, start + 20)])
    for order in ("asc", "desc"):
        expected = texts(await every(client, made.id, order=order))
        seen: list[str] = []
        page: Any = await client.conversations.items.list(made.id, order=order, limit=7)
        for _ in range(7):
            assert (page.has_more, len(page.data), page.last_id) == (True, 7, page.data[-1].id)
            seen += texts(page.data)
            await client.conversations.items.create(made.id, items=[user("more")])
            page = await page.get_next_page()
        assert seen == expected[:49]
    last = await client.conversations.items.list(made.id, after=(await every(client, made.id))[-1].id)
    assert (last.data, last.has_more, last.last_id) == ([], False, None)
    exact = await client.conversations.items.list(made.id, limit=74)
    assert (len(exact.data), exact.has_more) == (74, False)


async def test_parts_of_one_message_may_be_on_different_pages(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=EVERYTHING)
    for order in ("asc", "desc"):
        whole = [item.id for item in await every(client, made.id, order=order)]
        assert len(whole) == len(EVERYTHING)
        for limit in (1, 2, 5):
            assert [item.id for item in await every(client, made.id, order=order, limit=limit)] == whole


# --- once and for all ------------------------------------------------------------------------------------------------


async def test_an_item_whose_id_is_there_is_done_and_another_with_this_id_is_refused(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[user("hello", id="msg_mine")])
    again = await client.conversations.items.create(made.id, items=[user("hello", id="msg_mine"), user("more")])
    assert texts(again.data) == ["hello", "more"]
    assert texts(await every(client, made.id, order="asc")) == ["hello", "more"]
    reference: Any = {"type": "item_reference", "id": "msg_mine"}
    assert texts((await client.conversations.items.create(made.id, items=[reference])).data) == ["hello"]
    for wrong in (user("other", id="msg_mine"), user("hello", id="msg_2"), user("hello", id="msg_2", name="x")):
        with pytest.raises(openai.BadRequestError, match="Duplicate item found with id") as refused:
            await client.conversations.items.create(made.id, items=[user("hello", id="msg_2", name="y"), wrong])
        assert (refused.value.param, refused.value.code) == ("items[1].id", "duplicate_item")
    assert texts(await every(client, made.id, order="asc")) == ["hello", "more"]  # all or none

    await client.conversations.items.delete("msg_mine", conversation_id=made.id)
    await client.conversations.items.create(made.id, items=[user("anew", id="msg_mine")])
    assert texts(await every(client, made.id, order="asc")) == ["more", "anew"]


async def test_items_added_at_once_with_the_same_ids_are_there_once(client: AsyncOpenAI) -> None:
    made = await client.conversations.create()
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            for number in range(4):
                item = user(f"{number}", id=f"msg_{number}")
                tasks.start_soon(lambda one: client.conversations.items.create(made.id, items=[one]), item)
    assert sorted(texts(await every(client, made.id))) == ["0", "1", "2", "3"]


async def test_the_same_words_said_twice_are_two_items(client: AsyncOpenAI) -> None:
    made = await client.conversations.create()
    for _ in range(2):
        await client.conversations.items.create(made.id, items=[user("ok")])
    assert texts(await every(client, made.id)) == ["ok", "ok"]


async def test_an_idempotency_key_is_honoured(client: AsyncOpenAI) -> None:
    made = await client.conversations.create()
    key = {"Idempotency-Key": "k2"}
    batch = [user("a"), user("b")]
    first = await client.conversations.items.create(made.id, items=batch, extra_headers=key)
    await client.conversations.items.create(made.id, items=[user("c")])
    again = await client.conversations.items.create(made.id, items=batch, extra_headers=key)
    assert again == first
    assert texts(await every(client, made.id, order="asc")) == ["a", "b", "c"]


@pytest.mark.parametrize("is_cut", [False, True], ids=["500", "cut"])
async def test_an_answer_that_is_lost_doubles_nothing(served: Any, *, is_cut: bool) -> None:
    async with lossy(served.socket, is_cut=is_cut) as (address, way), package_at(address) as client:
        made = await client.conversations.create()
        batch = [user("ok"), {"role": "assistant", "content": "Fine."}, user("with id", id="msg_1")]
        for _ in range(2):  # the second time they are meant
            batch[2] = {**batch[2], "id": f"msg_{way.losses}"}
            added = await client.conversations.items.create(made.id, items=batch)
            assert texts(added.data) == ["ok", "Fine.", "with id"]
        items = await every(client, made.id, order="asc")
        assert texts(items) == ["ok", "Fine.", "with id"] * 2
        assert len({item.id for item in items}) == 6
        await client.conversations.items.delete(items[1].id, conversation_id=made.id)
        assert [item.id for item in await every(client, made.id, order="asc")] == [
            item.id for place, item in enumerate(items) if place != 1
        ]
        await client.conversations.update(made.id, metadata={"a": "b"})
        assert (await client.conversations.delete(made.id)).deleted
        assert way.losses == 6
        with pytest.raises(openai.NotFoundError):
            await client.conversations.delete(made.id, extra_headers={"x-stainless-retry-count": "0"})


async def test_a_request_that_was_refused_and_is_repeated_is_not_taken_for_the_one_before(
    served: Any, client: AsyncOpenAI
) -> None:
    """The first try of the second "ok" never reached the store: it is no repetition of the first "ok"."""
    made = await client.conversations.create()
    await client.conversations.items.create(made.id, items=[user("ok")])
    path = f"/v1/conversations/{made.id}/items"
    body = {"items": [user("ok")]}
    served.faults.fail()
    assert (await served.unix.post("/v1/sessions/a_1/messages", json=user("x"))).status_code == 503
    refused = await served.unix.post(path, json=body, headers={"x-stainless-retry-count": "0"})
    assert refused.status_code == 503
    served.faults.heal()
    await served.manager.flush()
    repeated = await served.unix.post(path, json=body, headers={"x-stainless-retry-count": "1"})
    assert repeated.status_code == 200
    assert texts(await every(client, made.id)) == ["ok", "ok"]


# --- errors ----------------------------------------------------------------------------------------------------------


async def test_errors_are_the_packages_exceptions(served: Any, client: AsyncOpenAI) -> None:
    made = await client.conversations.create()
    nobody = "conv_" + "0" * 48
    for call in (
        lambda: client.conversations.retrieve(nobody),
        lambda: client.conversations.retrieve("nothing:of/ours"),
        lambda: client.conversations.update(nobody, metadata={}),
        lambda: client.conversations.delete(nobody),
        lambda: client.conversations.items.create(nobody, items=[user("x")]),
        lambda: every(client, nobody),
        lambda: client.conversations.items.retrieve("msg_1", conversation_id=made.id),
        lambda: client.conversations.items.delete("msg_1", conversation_id=made.id),
        lambda: every(client, made.id, after="msg_1"),
        lambda: client.conversations.items.create(made.id, items=[{"type": "item_reference", "id": "msg_1"}]),
    ):
        with pytest.raises(openai.NotFoundError) as missing:
            await call()
        assert (missing.value.type, missing.value.code) == ("invalid_request_error", None)
        assert "not found." in missing.value.message
    for wrong, param in (
        ({"items": []}, "items"),
        ({"items": [user("x")] * 21}, "items"),
        ({"items": "x"}, "items"),
        ({"items": [{"content": "x"}]}, "items[0].role"),
        ({"items": [user("x"), {"type": 5}]}, "items[1].type"),
        ({"items": [user("x", id="a/b")]}, "items[0].id"),
        ({"items": [user("x", id=5)]}, "items[0].id"),
        ({"items": [user("x", big=2**70)]}, "body"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.conversations.items.create(made.id, items=[], extra_body=wrong)
        assert (refused.value.type, refused.value.param) == ("invalid_request_error", param)
        assert refused.value.code is not None
    for query in ({"limit": 0}, {"limit": 101}, {"order": "up"}):
        with pytest.raises(openai.BadRequestError):
            await client.conversations.items.list(made.id, **query)
    assert await every(client, made.id) == []
    async with package_by_tcp(served, "wrong") as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.conversations.retrieve(made.id)


class TestBounded:
    @pytest.fixture
    def session_settings(self) -> SessionSettings:
        return SessionSettings(store="memory:", max_message_bytes=1_000)

    async def test_a_refused_creation_makes_nothing(self, served: Any, client: AsyncOpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match="max_message_bytes"):
            await client.conversations.create(items=[user("fine"), user("x" * 2_000)])
        assert await served.manager.list() == []
        made = await client.conversations.create(items=[user("fine")])
        with pytest.raises(openai.BadRequestError, match="max_message_bytes"):
            await client.conversations.items.create(made.id, items=[user("fine"), user("x" * 2_000)])
        assert texts(await every(client, made.id)) == ["fine"]

    async def test_a_refused_creation_takes_nothing_away_that_another_one_of_its_key_made(self, served: Any) -> None:
        digits = hashlib.sha256(b"owner k3").hexdigest()[:48]
        journal = (await served.manager.get_or_create("conv", digits)).journal
        statuses: list[int] = []

        async def create(text: str) -> None:
            body, key = {"items": [user(text)]}, {"Idempotency-Key": "k3"}
            statuses.append((await served.unix.post("/v1/conversations", json=body, headers=key)).status_code)

        async with anyio.create_task_group() as tasks, journal.between_turns():
            tasks.start_soon(create, "x" * 2_000)
            with anyio.fail_after(60):
                while not journal.turn_lock.waiting:  # noqa: ASYNC110 - nothing says so
                    await anyio.sleep(0.001)
            await create("hello")
        assert statuses == [200, 400]
        items = await served.unix.get(f"/v1/conversations/conv_{digits}/items")
        assert [text_of(item) for item in items.json()["data"]] == ["hello"]


class TestWithoutTranscript:
    @pytest.fixture
    def session_settings(self) -> SessionSettings:
        return SessionSettings(store="none:")

    async def test_the_window_is_listed_and_nothing_can_be_taken_out(self, client: AsyncOpenAI) -> None:
        made = await client.conversations.create(items=[user("a"), user("b", id="msg_b")])
        items = await every(client, made.id, order="asc")
        assert texts(items) == ["a", "b"]
        for item in items:
            assert await client.conversations.items.retrieve(item.id, conversation_id=made.id) == item
        with pytest.raises(openai.ConflictError) as refused:
            await client.conversations.items.delete("msg_b", conversation_id=made.id)
        assert refused.value.response.headers["x-should-retry"] == "false"


# --- the same thing seen twice ---------------------------------------------------------------------------------------


async def test_what_a_chat_wrote_appears_as_items_and_items_are_what_the_model_is_sent_next(
    served: Any, client: AsyncOpenAI, provider: Any
) -> None:
    chat = {"channel": "telegram", "chat_id": 9, "message": "tool please"}
    assert (await served.unix.post("/v1/chat", json=chat)).status_code == 200
    items = [item.model_dump(exclude_unset=True) for item in await every(client, "telegram_9", order="asc")]
    assert [item["type"] for item in items] == ["message", "function_call", "function_call_output", "message"]
    assert items[1]["call_id"] == items[2]["call_id"]
    assert (items[0]["role"], items[3]["role"]) == ("user", "assistant")

    added = [
        user("And in Oslo?"),
        {"role": "assistant", "content": "Rain."},
        {"role": "system", "content": "Be brief."},
    ]
    await client.conversations.items.create("telegram_9", items=added)
    heard: list[list[str]] = []
    answer = provider.generate

    def listened(messages: Any, tools: Any) -> Any:
        heard.append([f"{message.role.value}: {message.text}" for message in messages])
        return answer(messages, tools)

    provider.generate = listened
    assert (await served.unix.post("/v1/chat", json={**chat, "message": "thanks"})).status_code == 200
    assert heard[0][-4:] == ["user: And in Oslo?", "assistant: Rain.", "system: Be brief.", "user: thanks"]
    assert texts(await every(client, "telegram_9"))[:2] == ["echo: thanks", "thanks"]


async def test_what_other_frameworks_wrote_has_items_too(served: Any, client: AsyncOpenAI) -> None:
    session = await served.manager.get_or_create("a/b c", "x:ä")
    calls = (ToolCall("toolu_1", "look.up", '{"q": 1}'), ToolCall("toolu_2", "look.up", ""))
    thought = (ThinkingPart("Let me think.", "signature"), ThinkingPart("", "only sealed"), TextPart("I look."))
    picture = (TextPart("see"), ImagePart(data="aGk=", media_type="image/png"))
    await session.add_messages(
        [
            Message.user(picture),
            Message.assistant(thought, calls),
            Message.tool_result(calls[0], "found"),
            Message.tool_result(calls[1], "failed", is_error=True),
        ]
    )
    await session.tree.branch_with_summary(session.entries()[0].id, "it went wrong")
    await session.add_message(Message.assistant(thought, calls))
    items = [item.model_dump(exclude_unset=True) for item in await every(client, session.session_id, order="asc")]
    assert [item["type"] for item in items] == ["message", "message", "reasoning", "message", *["function_call"] * 2]
    assert items[0]["content"][1]["image_url"] == "data:image/png;base64,aGk="
    assert "it went wrong" in text_of(items[1])
    assert items[2]["content"] == [{"type": "reasoning_text", "text": "Let me think."}]
    assert [(item["call_id"], item["name"], item["arguments"]) for item in items[4:]] == [
        ("toolu_1", "look_up", '{"q": 1}'),
        ("toolu_2", "look_up", "{}"),
    ]
    for item in items:
        found = await client.conversations.items.retrieve(item["id"], conversation_id=session.session_id)
        assert found.model_dump(exclude_unset=True) == item
    await client.conversations.items.delete(items[4]["id"], conversation_id=session.session_id)  # one call of two
    left = await every(client, session.session_id, order="asc")
    assert [item.id for item in left] == [item["id"] for item in items if item is not items[4]]
    assert is_legal(build_context(session.messages())) == []


async def test_a_branch_is_what_is_listed_wherever_it_goes(served: Any, client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[user("a", id="msg_a"), user("b", id="msg_b"), user("c")])
    session = await served.manager.find(made.id)
    entries = [entry async for entry in session.tree.walk()][::-1]
    await session.tree.branch(entries[0].id, then=[Message.user("other")])
    assert texts(await every(client, made.id)) == ["other", "a"]
    with pytest.raises(openai.NotFoundError):
        await client.conversations.items.retrieve("msg_b", conversation_id=made.id)
    await client.conversations.items.create(made.id, items=[user("b", id="msg_b")])  # here it is not said yet
    assert texts(await every(client, made.id)) == ["b", "other", "a"]
    await session.tree.branch(entries[2].id)
    assert texts(await every(client, made.id)) == ["c", "b", "a"]
    session.clear()
    await session.saved()
    assert await every(client, made.id) == []


CRAFTED: list[Item] = [
    {"role": "custom", "content": "", "openai-items": {"json": "no json"}},
    {"role": "custom", "content": "", "openai-items": {"json": "[1]"}},
    {"role": "custom", "content": "", "openai-items": {"json": '{"type": [], "id": {}}'}},
    {"role": "custom", "content": "", "openai-items": {"json": "[" * 100_000}},
    {"role": "custom", "content": "text", "openai-items": 5},
    {"role": "user", "content": [{"type": "openai_item", "item": {"type": {"a": 1}, "id": "same"}}]},
    {"role": "user", "content": [{"type": "openai_item", "item": {"type": "x", "id": "same"}}]},
    {"role": "user", "content": [{"type": "openai_content", "content": {}}], "openai-items": {"id": "same"}},
    {"role": "assistant", "content": [{"type": "openai_item", "item": {"id": "same", "role": "user"}}]},
    {"role": "assistant", "content": [{"type": "openai_content", "content": {}, "message": {"id": "same"}}]},
    {"role": "assistant", "content": [{"type": "text", "text": "t", "openai-items": {"message": 5, "type": []}}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "openai-items": {"summary": 5}}]},
    {"role": "tool_result", "tool_call_id": "c", "content": "r", "openai-items": {"status": [], "output": 5}},
]


async def test_messages_that_were_made_to_look_like_items_break_nothing(served: Any, client: AsyncOpenAI) -> None:
    for message in CRAFTED:
        reply = await served.unix.post("/v1/sessions/a_1/messages", json=message)
        assert reply.status_code == 201, reply.text
    path = "/v1/conversations/a_1/items"
    for order in ("asc", "desc"):
        seen = 0
        after: dict[str, str] = {}
        for _ in range(2 * len(CRAFTED)):  # pages come to an end, though several items have one id
            reply = await served.unix.get(path, params={"order": order, "limit": 1, **after})
            assert reply.status_code == 200, reply.text
            page = reply.json()
            seen += len(page["data"])
            after = {"after": page["last_id"]}
            if not page["has_more"]:
                break
        assert 0 < seen <= len(CRAFTED)
    whole = (await served.unix.get(path)).json()["data"]
    assert len(whole) >= 7
    for item in whole:
        if isinstance(item["id"], str):
            assert (await served.unix.get(f"{path}/{item['id']}")).status_code == 200
            assert (await served.unix.delete(f"{path}/{item['id']}")).status_code == 200
    assert await every(client, "a_1") == []


async def test_an_item_that_a_client_gave_is_not_read_as_anothers_id(client: AsyncOpenAI) -> None:
    one = await client.conversations.create(items=[user("here")])
    (item,) = await every(client, one.id)
    other = await client.conversations.create(items=[item.model_dump(exclude_unset=True)])  # moved, with its id
    assert await every(client, other.id) == [item]
    assert await client.conversations.items.retrieve(item.id, conversation_id=other.id) == item


PAGE = (
    (Path(__file__).parents[3] / "docs/how-to/use-the-openai-sdk.md")
    .read_text(encoding="utf-8")
    .partition("\n## Responses\n")[0]
)


@pytest.mark.parametrize("code", re.findall(r"^```py\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
async def test_the_examples_of_the_page_run_where_only_the_address_is_another(served: Any, code: str) -> None:
    here = code.replace("127.0.0.1:8080", f"127.0.0.1:{served.port}").replace("the daemon's token", TOKEN)
    printed = io.StringIO()

    def run() -> None:
        with redirect_stdout(printed):
            exec(here, {})

    await to_thread.run_sync(run)
    assert printed.getvalue().splitlines() == re.findall(r"# prints: (.*)$", code, re.MULTILINE)
