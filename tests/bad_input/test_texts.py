"""Every bad text as every id and as all content, by its name, through a restart: kept exactly, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.core.session.journal import MAX_IDEMPOTENCY_KEY
from miniclaw_sessions.errors import InvalidKey, InvalidMessage, SessionLimit, SessionNotFound
from tests.bad_input.texts import MILLION, REFUSED_AS_CONTENT, REFUSED_AS_ID, TEXTS
from tests.sampled import sampled

pytestmark = pytest.mark.anyio

NAMES = [*TEXTS, "10^6 characters"]
MANY_TEXTS = pytest.mark.parametrize("name", sampled(NAMES, every=3))


def text_named(name: str) -> str:
    return TEXTS.get(name, MILLION)


def is_id(name: str) -> bool:
    return name in TEXTS and name not in REFUSED_AS_ID


def opened(workspace: Path, store: str = "jsonl:") -> SessionManager:
    return SessionManager(workspace, settings=SessionSettings(store=store, max_message_bytes=2_000_000))


async def begin(manager: SessionManager) -> None:
    """A neighbour, who must not notice anything."""
    neighbour = await manager.get_or_create("neighbour", "1")
    await neighbour.add_message(Message.user("untouched"))


async def check_neighbour(manager: SessionManager, sessions: int) -> None:
    neighbour = await manager.get("neighbour", "1")
    assert [message.text for message in neighbour.messages()] == ["untouched"]
    assert len(await manager.list()) == sessions
    assert (await manager.check()).problems == []


@MANY_TEXTS
async def test_as_an_id(place: Path, name: str) -> None:
    text = text_named(name)
    keys = [(text, "1"), ("c", text), (text, text)]
    async with opened(place) as manager:
        await begin(manager)
        for channel, chat_id in keys:
            if is_id(name):
                session = await manager.get_or_create(channel, chat_id)
                await session.add_message(Message.user(f"in {session.session_id}"))
                continue
            with pytest.raises(InvalidKey, match="chat_id" if channel == "c" else "channel") as caught:
                await manager.get_or_create(channel, chat_id)
            assert len(str(caught.value)) < 300
    names = {path.name for path in (place / "sessions").iterdir()}
    assert all(len(name.encode()) <= 255 and name.isascii() and name[0] not in ".-" for name in names)
    async with opened(place) as manager:
        for channel, chat_id in keys if is_id(name) else ():
            session = await manager.get(channel, chat_id)
            assert (session.key.channel, session.key.chat_id) == (channel, chat_id)
            assert [message.text for message in session.messages()] == [f"in {session.session_id}"]
            assert f"{session.session_id}.json" in names
            assert await manager.find(session.session_id) is session
        await check_neighbour(manager, 4 if is_id(name) else 1)


async def test_as_a_session_id(place: Path) -> None:
    async with opened(place) as manager:
        await begin(manager)
        for name in NAMES:
            with pytest.raises((InvalidKey, SessionNotFound)) as caught:
                await manager.find(text_named(name))
            assert len(str(caught.value)) < 300, name
            assert not await manager.delete(text_named(name))
        await check_neighbour(manager, 1)


@MANY_TEXTS
async def test_as_content_title_metadata_and_idempotency_key(place: Path, name: str) -> None:
    text = text_named(name)
    async with opened(place) as manager:
        await begin(manager)
        session = await manager.get_or_create("c", "1")
        for number, message in enumerate(messages_with(text)):
            if name in REFUSED_AS_CONTENT or (number and name not in TEXTS):  # all but the first have it several times
                with pytest.raises(InvalidMessage, match=r"cannot be stored|max_message_bytes"):
                    await session.add_message(message)
            else:
                await session.add_message(message)
        if name in REFUSED_AS_CONTENT or name not in TEXTS:
            with pytest.raises(InvalidMessage):
                session.update(**metadata_with(text))
        else:
            session.update(**metadata_with(text))
        if name in REFUSED_AS_CONTENT or len(text) > MAX_IDEMPOTENCY_KEY:
            with pytest.raises(InvalidMessage):
                await session.add_message(Message.user("once"), idempotency_key=text)
        else:
            for _time in range(2):
                await session.add_message(Message.user("once"), idempotency_key=text)
            assert session.journal.find_duplicate(text) == session.entries()[-1]
        kept, metadata = session.messages(), dict(session.metadata)
    expected = [] if name in REFUSED_AS_CONTENT else messages_with(text) if name in TEXTS else messages_with(text)[:1]
    assert [message.content for message in kept if message.text != "once"] == [one.content for one in expected]
    assert ("free" in metadata) == (name in TEXTS and name not in REFUSED_AS_CONTENT)
    async with opened(place) as manager:
        session = await manager.get("c", "1")
        assert session.messages() == kept
        assert dict(session.metadata) == metadata
        stored = [entry async for entry in session.tree.read_entries()]
        assert [entry.message for entry in stored if isinstance(entry, MessageEntry)] == kept
        await check_neighbour(manager, 2)


def messages_with(text: str) -> list[Message]:
    """The text in every field that holds one."""
    calls = (ToolCall(text or "c", text or "n", text),)
    fields = {"author": text, "name": text, "model": text, "stop_reason": text, "extra": {text or "k": [text]}}
    return [
        Message.user(text),
        Message.assistant(text, calls),
        Message.tool_result(calls[0], text),
        msgspec.structs.replace(Message.assistant(text), **fields),
    ]


def metadata_with(text: str) -> dict[str, Any]:
    return {"title": text, "free": {text: {text: [text]}}, f"k{text}": 1}


async def test_all_of_them_in_one_snapshot(place: Path) -> None:
    """Without a transcript the snapshot is all there is: whatever is in it, it can be written and read."""
    good = [TEXTS[name] for name in TEXTS if name not in REFUSED_AS_CONTENT]
    said = [message for text in good for message in (messages_with(text)[0], messages_with(text)[3])]
    settings = SessionSettings(store="none:", window=len(said))
    async with SessionManager(place, settings=settings) as manager:
        session = await manager.get_or_create("c", "1")
        for number, message in enumerate(said):
            session.append(message, idempotency_key=f"{message.text[:500]} {number}")
        session.update(**{f"k{text}": text for text in good})
        kept, metadata = session.messages(), dict(session.metadata)
    assert len(kept) == len(said)
    async with SessionManager(place, settings=settings) as manager:
        session = await manager.get("c", "1")
        assert session.messages() == kept
        assert dict(session.metadata) == metadata


async def test_all_of_them_side_by_side_in_a_database(place: Path) -> None:
    """No two of them are one session, on a file system or in a database that knows only some of their letters."""
    good = [TEXTS[name] for name in TEXTS if is_id(name)]
    keys = [(text, "1") for text in good] + [("c", text) for text in good]
    keys += [("a:b", "c"), ("a", "b:c"), ("a_b", "c"), ("a", "b_c")]
    async with opened(place, "sqlite:") as manager:
        for number, key in enumerate(keys):
            session = await manager.get_or_create(*key)
            session.append(Message.user(str(number)))
    async with opened(place, "sqlite:") as manager:
        assert len(await manager.list()) == len(keys)
        for number, key in enumerate(keys):
            assert [message.text for message in (await manager.get(*key)).messages()] == [str(number)], key
        assert (await manager.check()).problems == []


@pytest.mark.proof
async def test_a_hundred_thousand_ids_at_once_meet_the_cap_and_cost_nobody_his_session(place: Path) -> None:
    settings = SessionSettings(store="none:", max_sessions=500)
    refused = 0
    async with SessionManager(place, settings=settings) as manager:
        await begin(manager)
        for number in range(100_000):
            try:
                await manager.get_or_create("flood", number)
            except SessionLimit:
                refused += 1
        assert refused == 100_000 - 499
        await check_neighbour(manager, 500)
        assert (await manager.get("flood", 498)).key.chat_id == "498"
    async with SessionManager(place, settings=settings) as manager:
        await check_neighbour(manager, 500)
