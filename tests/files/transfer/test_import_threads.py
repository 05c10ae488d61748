"""An import keeps nobody waiting and, when it is broken off, leaves nothing and takes nothing with it."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

from miniclaw_sessions import Message, SessionKey, SessionManager
from miniclaw_sessions.core.protocol.entries import Entry, MessageEntry
from miniclaw_sessions.core.protocol.json_values import parse_in_pieces, parse_json
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats import registry
from miniclaw_sessions.files.formats.codec import Chain, Format, Sample, SessionFacts
from miniclaw_sessions.files.transfer.importing import import_file, import_stream

pytestmark = pytest.mark.anyio

KEY = SessionKey.of("import", "1")


class Recorder:
    """A reader that notes which thread it works in."""

    threads: ClassVar[set[int]] = set()

    def __init__(self, chain: Chain) -> None:
        self.facts = SessionFacts(source_id="s")
        self.findings: list[Any] = []
        self._chain = chain

    def feed(self, piece: Any) -> Iterator[Entry]:
        for said in piece if isinstance(piece, list) else [piece]:
            self.threads.add(threading.get_ident())
            yield self._chain.add(MessageEntry, message=Message.user(str(said)))

    def finish(self) -> list[Entry]:
        self.threads.add(threading.get_ident())
        return []


def recognize(sample: Sample) -> bool:
    Recorder.threads.add(threading.get_ident())
    return bool(sample.lines)


@pytest.mark.parametrize("by_line", [True, False])
async def test_nothing_of_a_file_is_looked_at_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by_line: bool
) -> None:
    form = Format(name="x", about="", suffix=".x", recognize=recognize, reader=Recorder, by_line=by_line)
    monkeypatch.setattr(registry, "OURS", ())
    monkeypatch.setattr(registry, "others", lambda: (form,))
    Recorder.threads.clear()
    path = tmp_path / "s"
    path.write_text("[1]\n[2]\n" if by_line else json.dumps(list(range(1000))))
    async with SessionManager(tmp_path / "w") as manager:
        report = await import_file(manager, path, key=KEY)
        assert report.messages == (2 if by_line else 1000)
        assert Recorder.threads
        assert threading.get_ident() not in Recorder.threads


async def slow(pieces: list[bytes], reached: anyio.Event) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
    reached.set()
    await anyio.sleep_forever()


async def test_an_import_that_is_broken_off_leaves_nothing_and_keeps_what_comes_after(tmp_path: Path) -> None:
    header = {"type": "session", "version": 3, "id": "s", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/"}
    entry = {"type": "message", "id": "00000001", "parentId": None, "timestamp": header["timestamp"]}
    entry |= {"message": {"role": "user", "content": "Half.", "timestamp": 1_767_225_600_000}}
    lines = f"{json.dumps(header)}\n{json.dumps(entry)}\n".encode() * 1
    async with SessionManager(tmp_path) as manager:
        reached = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def bring_in() -> None:
                await import_stream(manager, slow([lines], reached), name="s", key=KEY)

            tasks.start_soon(bring_in)
            await reached.wait()
            tasks.cancel_scope.cancel()
        session = await manager.get_or_create(KEY.channel, KEY.chat_id)
        await session.add_message(Message.user("After."))
        assert [message.text for message in session.messages()] == ["After."]
        session_id = session.session_id
    async with SessionManager(tmp_path) as manager:
        session = await manager.find(session_id)
        assert [message.text for message in session.messages()] == ["After."]
        assert (await manager.check()).problems == []


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", "[1, [2, [3]], {}]", '{"a": [1, {"b": [2]}], "c": {"d": []}, "e": "\\u00e9"}', " [ 1 , null ] "],
)
def test_a_document_that_is_parsed_in_pieces_is_the_same(text: str) -> None:
    assert parse_in_pieces(text.encode()) == parse_json(text.encode())


@pytest.mark.parametrize("text", ["", "7", "[1", '{"a": [1,]}', "[1] [2]", b"\xff[", "[" * 500 + "]" * 500, '["\xff"'])
def test_a_document_that_cannot_be_parsed_in_pieces_is_refused(text: str | bytes) -> None:
    with pytest.raises(InvalidMessage):
        parse_in_pieces(text if isinstance(text, bytes) else text.encode())
