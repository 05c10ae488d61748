"""The facades: documents 001 and 003 in their own words, by their own scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from miniclaw_sessions.core.protocol.messages import Message, Role, TextPart, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.documents import DiveSession, GoSession, KernelSession
from tests.core.session.bench import Bench
from tests.texts import texts_of

pytestmark = pytest.mark.anyio


def test_document_000_by_its_own_words() -> None:
    session, other = KernelSession.new(), KernelSession.new()
    assert UUID(session.id).version == 7
    assert session.id == session.id != other.id
    session.add_message(Message.user("hi"))
    read = session.messages()
    read.clear()
    assert texts_of(session.messages()) == ["hi"]
    session.clear()
    assert session.messages() == []
    session.add_message(Message.user("again"))
    assert texts_of(session.messages()) == ["again"]


@pytest.mark.parametrize("name", ["my-session", "01981f3c-6b1e-7c52-9f61-2f3f5d2a9b10", "with / and space", "a_b"])
async def test_a_session_in_memory_has_the_name_that_its_caller_chooses(name: str) -> None:
    """S1.17."""
    session = DiveSession.new(name)
    assert session.id == name
    assert (await session.fork("another name")).id == "another name"
    branched = await GoSession(session.session).create_branched_session(
        await GoSession(session.session).append_message("user", "hi"), "a third"
    )
    assert branched.id == "a third"


async def test_document_001_by_its_own_words() -> None:
    async def in_short(messages: Sequence[Message]) -> list[Message]:
        return [Message.user(f"{len(messages)} messages in short")]

    session = DiveSession(Session.new("my_session"))
    await session.save_turn([Message.user("q"), Message.assistant("a")], Usage(1, 2))
    await session.save_turn([Message.user("q2"), Message.assistant("a2")], Usage(3, 4))
    session.set_title("First")
    fork = await session.fork("my_fork")
    await session.compact(in_short)
    assert (session.id, session.title(), session.event_count()) == ("my_session", "First", 3)
    assert (session.total_usage().input_tokens, session.total_usage().output_tokens) == (4, 6)
    assert texts_of(await session.messages()) == ["4 messages in short"]
    assert (fork.id, texts_of(await fork.messages())) == ("my_fork", ["q", "a", "q2", "a2"])


async def test_document_003_section_13_by_its_own_words(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "workspace", "sqlite")
    async with bench.opened() as own:
        session = GoSession(own)
        first = await session.append_message("user", [TextPart("Hello, Agent!")])
        assert len((await session.get_context()).messages) == 1
        await session.append_message(Role.ASSISTANT, "Hello! How can I help?")
        await session.branch(first)
        joke = await session.append_message("user", "Actually, tell me a joke.")
        await session.set_label(first, "first-greeting")
        await session.append_compaction("User greeted and then asked for a joke.", joke, 1500)
        await session.append_model_change("openai", "gpt-4o")
        await session.append_thinking_level_change("high")
        await session.append_session_info("Jokes")
        await session.append_custom_entry("extension", {"state": 1})
    async with bench.opened() as own:
        session = GoSession(own)
        context = await session.get_context()
        assert [message.text.rpartition("\n\n")[2] for message in context.messages] == [
            "User greeted and then asked for a joke.",
            "Actually, tell me a joke.",
        ]
        assert (context.provider, context.model, context.thinking_level) == ("openai", "gpt-4o", "high")
        [root] = await session.get_tree()
        assert (root.entry.id, root.label, len(root.children)) == (first, "first-greeting", 2)
        branched = await session.create_branched_session(joke, "telegram_branched")
        assert texts_of(branched.session.messages()) == ["Hello, Agent!", "Actually, tell me a joke."]
        await session.branch_with_summary(first, "They joked.")
        assert texts_of(own.messages()) == ["Hello, Agent!", "They joked."]
