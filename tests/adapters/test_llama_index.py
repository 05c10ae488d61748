"""LlamaIndex on our sessions: its messages come back, and it sees what others said.

Its source distribution has no tests. What it promises of a chat store is asked of its `SimpleChatStore` and of ours.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("llama_index.core")
from llama_index.core.base.llms.types import (
    ChatMessage,
    DocumentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.storage.chat_store import BaseChatStore, SimpleChatStore

from miniclaw_sessions.adapters import llama_index as adapter
from miniclaw_sessions.adapters.llama_index import MiniclawChatStore, from_llama_index, to_llama_index
from miniclaw_sessions.adapters.llama_index_messages import as_llama_index
from miniclaw_sessions.core.history.context import NO_RESULT, build_context
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.encoding import decode_message, encode_message
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, Role, TextPart, ThinkingPart
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.service.client import Client
from tests.adapters.examples import run_example
from tests.adapters.json_values import objects
from tests.files.formats.legal_contexts import legal_contexts
from tests.legality import is_legal
from tests.serving import asked

pytestmark = pytest.mark.anyio


def said(text: str, role: str = "user", **fields: Any) -> ChatMessage:
    return ChatMessage(text, role=role, **fields)


def texts(messages: list[ChatMessage] | None) -> list[str | None] | None:
    return None if messages is None else [message.content for message in messages]


@pytest.fixture
async def store(sessions: SessionManager | Client) -> MiniclawChatStore:
    return MiniclawChatStore(sessions, channel="telegram")


def test_the_example_runs(tmp_path: Path) -> None:
    assert run_example(adapter, tmp_path) == "['I am Ada.', 'Hello Ada!']\n"


# --- what the framework promises of a store --------------------------------------------------------------------------


class Stores:
    """Its own kind, or ours: opened again, it has what it had. Its own is only in memory."""

    def __init__(self, kind: str, directory: Path) -> None:
        self._kind, self._directory = kind, directory
        self._its_own = SimpleChatStore()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[BaseChatStore]:
        if self._kind == "its own":
            yield self._its_own
            return
        async with SessionManager(self._directory) as manager:
            if self._kind == "held":
                yield MiniclawChatStore(manager)
            else:
                async with asked(manager) as client:
                    yield MiniclawChatStore(client)


@pytest.fixture(params=["its own", "held", "asked"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    return Stores(request.param, tmp_path)


async def test_messages_are_kept_by_key_over_a_restart(stores: Stores) -> None:
    long = "a/../" + "x" * 500
    async with stores.opened() as store:
        for key in ("1", long):
            await store.async_add_message(key, said("hi"))
            await store.async_add_message(key, said(f"hello {key}", "assistant"))
    async with stores.opened() as store:
        assert sorted(await store.aget_keys()) == ["1", long]
        assert texts(await store.aget_messages("1")) == ["hi", "hello 1"]
        assert texts(await store.aget_messages(long)) == ["hi", f"hello {long}"]
        assert await store.aget_messages("another") == []


async def test_messages_are_set_as_a_whole(stores: Stores) -> None:
    async with stores.opened() as store:
        for wanted in (["a", "b"], ["a", "b", "c"], ["a", "x"], ["b", "a", "x"], [], ["a"]):
            await store.aset_messages("1", [said(text) for text in wanted])
            assert texts(await store.aget_messages("1")) == wanted


async def test_messages_are_deleted_by_place_and_returned(stores: Stores) -> None:
    async with stores.opened() as store:
        await store.aset_messages("1", [said(text) for text in "abcd"])
        taken = [await store.adelete_message("1", 1), await store.adelete_last_message("1")]
        assert texts([message for message in taken if message is not None]) == ["b", "d"]
        assert await store.adelete_message("1", 5) is None
        assert texts(await store.aget_messages("1")) == ["a", "c"]
        assert texts(await store.adelete_messages("1")) == ["a", "c"]
        assert await store.aget_messages("1") == []
        assert await store.adelete_messages("another") is None
        assert await store.adelete_message("another", 0) is None
        assert await store.adelete_last_message("another") is None


async def test_a_memory_of_the_framework_is_made_of_it(stores: Stores) -> None:
    async with stores.opened() as store:
        memory = ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="1", token_limit=1000)
        await memory.aput_messages([said("hi"), said("hello", "assistant")])
        assert texts(await memory.aget()) == ["hi", "hello"]
        await memory.areset()
        assert await memory.aget_all() == []


# --- what ours promises besides --------------------------------------------------------------------------------------


async def test_what_is_taken_out_stays_in_the_transcript(store: MiniclawChatStore, manager: SessionManager) -> None:
    await store.aset_messages("1", [said(text) for text in "abc"])
    await store.adelete_last_message("1")
    await store.async_add_message("1", said("d"))
    session = await manager.find("telegram_1")
    entries = [entry async for entry in session.tree.read_entries()]
    assert [entry.message.text for entry in entries if hasattr(entry, "message")] == ["a", "b", "c", "d"]  # once each
    assert [message.text for message in (await session.get_context()).messages] == ["a", "b", "d"]


async def test_what_others_said_stays_theirs_where_messages_are_set(
    store: MiniclawChatStore, manager: SessionManager
) -> None:
    session = await manager.get_or_create("telegram", 1)
    theirs = Message(Role.ASSISTANT, (ThinkingPart("hm", "theirs"), TextPart("hello")))
    await session.add_messages([Message.user("hi"), theirs])
    await store.aset_messages("1", [*await store.aget_messages("1"), said("and?")])
    shown = (await session.get_context()).messages
    assert [message.text for message in shown] == ["hi", "hello", "and?"]
    assert shown[1].content == theirs.content


async def test_synchronous_calls_are_for_other_threads(store: MiniclawChatStore) -> None:
    def elsewhere() -> list[ChatMessage]:
        store.set_messages("1", [said("hi")])
        store.add_message("1", said("hello", "assistant"))
        store.delete_message("1", 0)
        assert store.get_keys() == ["1"]
        return store.get_messages("1")

    assert texts(await to_thread.run_sync(elsewhere)) == ["hello"]
    with pytest.raises(RuntimeError, match="async"):
        store.get_messages("1")


# --- its messages ----------------------------------------------------------------------------------------------------

short = st.text(max_size=5)
ids = st.sampled_from(["c1", "c2", "odd|id"])
blocks = st.one_of(
    st.builds(TextBlock, text=short),
    st.just(ImageBlock(image=b"\x89PNG\r\n\x1a\n", detail="low")),
    st.just(ImageBlock(image=b"no known image")),
    st.just(ImageBlock(url="https://example.org/a.png")),
    st.just(DocumentBlock(data=b"%PDF-1.4", title="a")),
    st.builds(
        ThinkingBlock, content=short | st.none(), num_tokens=st.none() | st.just(3), additional_information=objects
    ),
    st.builds(ToolCallBlock, tool_call_id=ids | st.none(), tool_name=short, tool_kwargs=short | objects),
)
roles = st.sampled_from([role for role in MessageRole if role is not MessageRole.TOOL])
any_messages = st.one_of(
    st.builds(ChatMessage, role=roles, blocks=st.lists(blocks, max_size=3), additional_kwargs=objects),
    st.builds(
        lambda call_id, content: ChatMessage(content, role="tool", additional_kwargs={"tool_call_id": call_id}),
        ids,
        short,
    ),
)


@given(st.lists(any_messages, max_size=4))
def test_any_messages_come_back_exactly(messages: list[ChatMessage]) -> None:
    canonical = [decode_message(encode_message(message)) for message in from_llama_index(messages)]
    assert [as_llama_index(message) for message in canonical] == messages


def test_others_understand_what_llama_index_said() -> None:
    call = ToolCallBlock(tool_call_id="c1", tool_name="look", tool_kwargs={"at": "it"})
    older = {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    shown, called, result, in_fields = from_llama_index(
        [
            ChatMessage(role="user", blocks=[TextBlock(text="this?"), ImageBlock(image=b"\x89PNG\r\n\x1a\n")]),
            ChatMessage(role="assistant", blocks=[TextBlock(text="Let me look."), call]),
            ChatMessage("rain", role="tool", additional_kwargs={"tool_call_id": "c1", "name": "look"}),
            ChatMessage(role="assistant", additional_kwargs={"tool_calls": [older]}),
        ]
    )
    assert [type(part) for part in shown.content] == [TextPart, ImagePart]
    assert called.text == "Let me look."
    assert [(one.id, one.name, one.arguments) for one in called.tool_calls or ()] == [("c1", "look", '{"at":"it"}')]
    assert (result.role, result.tool_call_id, result.name, result.text) == (Role.TOOL_RESULT, "c1", "look", "rain")
    assert [(one.id, one.name, one.arguments) for one in in_fields.tool_calls or ()] == [("c2", "look", "{}")]


async def test_what_is_not_json_is_refused(store: MiniclawChatStore) -> None:
    with pytest.raises(InvalidMessage):
        await store.async_add_message("1", said("hi", additional_kwargs={"of": object()}))
    assert await store.aget_messages("1") == []


# --- what others said ------------------------------------------------------------------------------------------------


@given(legal_contexts())
def test_what_others_said_comes_legal(context: list[Message]) -> None:
    messages = to_llama_index(context)
    assert is_legal(build_context(from_llama_index(messages))) == []
    assert not any(isinstance(block, ThinkingBlock) for message in messages for block in message.blocks)


async def test_calls_that_a_kill_left_unanswered_are_answered(tmp_path: Path) -> None:
    call = ToolCallBlock(tool_call_id="c1", tool_name="look", tool_kwargs={})
    async with SessionManager(tmp_path) as manager:
        store = MiniclawChatStore(manager)
        await store.async_add_message("1", said("hi"))
        await store.async_add_message("1", ChatMessage(role="assistant", blocks=[call]))
        assert len(await store.aget_messages("1")) == 2  # its result may still come
    async with SessionManager(tmp_path) as manager:
        messages = await MiniclawChatStore(manager).aget_messages("1")
    assert (messages[-1].role, messages[-1].content) == (MessageRole.TOOL, NO_RESULT)
    assert messages[-1].additional_kwargs["tool_call_id"] == "c1"
