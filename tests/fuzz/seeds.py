"""Healthy inputs, which fuzzing damages: one conversation that has everything in it, in every form it is kept in."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec
import orjson

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, TextPart, ToolCall, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.files.formats.registry import all_formats
from miniclaw_sessions.files.transfer.exporting import export_session
from miniclaw_sessions.testing.clock import FakeClock
from tests.core.persistence.test_snapshot_file import RUST_FILE, SAMPLE, without_checksum
from tests.files.formats.entry_line_files import FLAT
from tests.files.formats.entry_line_files import HEADER as ENTRY_HEADER
from tests.files.formats.entry_line_files import entry as entry_line
from tests.files.formats.pi_files import RESUMED, SESSION
from tests.files.formats.test_claude_code import COMPACTED as CLAUDE_COMPACTED
from tests.files.formats.test_claude_code import PRESERVED
from tests.files.formats.test_codex import COMPACTED as CODEX_COMPACTED
from tests.files.formats.test_codex import OLD as CODEX_OLD
from tests.files.formats.test_dive import SESSION as DIVE_SESSION
from tests.files.formats.test_nanobot import NEWEST, OLDEST
from tests.files.formats.test_rust_miniclaw import DOCUMENT
from tests.fuzz.reader import SECRET

WRITABLE = [form for form in all_formats() if form.is_written]

CHANNEL = "fuzz"
CHAT = "chat00000"  # replaced by another number where many such sessions lie side by side
SESSION_ID = f"{CHANNEL}_{CHAT}"


class Seeds(NamedTuple):
    """One conversation in every form.

    Attributes:
        snapshot, transcript: its two files in a workspace with the store `jsonl:`; the snapshot without its checksum,
            which would keep every mutation of it from being read at all.
        entries: its entries, each as JSON.
        exports: the file that each format makes of it, by the format's name.
    """

    snapshot: bytes
    transcript: bytes
    entries: list[bytes]
    exports: dict[str, bytes]


@cache
def conversation() -> Seeds:
    """The conversation; made once, in an event loop of its own, because those who ask may be in one."""
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(1) as thread:
        return thread.submit(anyio.run, _seeds, Path(name)).result()


async def _seeds(workspace: Path) -> Seeds:
    settings = SessionSettings(store="jsonl:", window=8)
    async with SessionManager(workspace, settings=settings, clock=FakeClock()) as manager:
        session = await manager.get_or_create(CHANNEL, CHAT, agent_id="agent-1")
        await _talk(session)
        exports = {
            form.name: b"".join([chunk async for chunk in export_session(manager, session.session_id, form)])
            for form in WRITABLE
        }
    transcript = (workspace / "transcripts" / f"{SESSION_ID}.jsonl").read_bytes()
    snapshot = without_checksum((workspace / "sessions" / f"{SESSION_ID}.json").read_bytes())
    return Seeds(snapshot, transcript, [line.strip() for line in transcript.splitlines()[1:]], exports)


async def _talk(session: Session) -> None:
    """Something of every kind."""
    image = ImagePart(media_type="image/png", data="QUJD")
    await session.add_message(Message.system(f"{SECRET} is kind"))
    first = (await session.add_message(Message.user(f"{SECRET}, hello!"), idempotency_key="update-1")).id
    reply = Message.assistant(f"{SECRET} says hi")
    await session.tree.append_message(msgspec.structs.replace(reply, usage=Usage(input_tokens=3, output_tokens=2)))
    await session.tree.append_message(Message.user((TextPart(f"what does {SECRET} see?"), image)))
    calls = (ToolCall("call_1", "look", f'{{"at": "{SECRET}"}}'), ToolCall("call_2", "wait", "{}"))
    await session.tree.append_message(Message.assistant("", calls))
    await session.tree.append_message(Message.tool_result(calls[0], f"a {SECRET}"))
    kept = await session.tree.append_message(Message.tool_result(calls[1], "done", is_error=True))
    await session.tree.append_message(Message.assistant(f"I see {SECRET}."))
    await session.tree.set_label(first, "beginning")
    await session.tree.append_model_change("test", "model-1")
    await session.tree.append_custom_entry("note", {"n": 1, "deep": [{"a": None}]})
    await session.tree.branch(kept)
    await session.tree.append_message(Message.user(f"and without {SECRET}?"))
    session.update(title="A title")
    session.update(mood="calm")
    await session.saved()


def _lines(*pieces: Any) -> bytes:
    return b"".join((piece if isinstance(piece, bytes) else orjson.dumps(piece)) + b"\n" for piece in pieces)


@cache
def foreign_files() -> list[bytes]:
    """Files of every format that is read, ours and those of other programs."""
    ours = [data for name, data in conversation().exports.items() if name not in ("markdown", "html")]
    lines = [entry_line(kind, kind, None, **payload) for kind, payload in FLAT.items()]
    return [
        *ours,
        _lines(*SESSION),
        _lines(*RESUMED),
        _lines(*CLAUDE_COMPACTED),
        _lines(*PRESERVED),
        _lines(*CODEX_COMPACTED),
        _lines(*CODEX_OLD),
        _lines(*DIVE_SESSION),
        _lines(*OLDEST),
        _lines(*NEWEST),
        _lines(ENTRY_HEADER, *lines),
        orjson.dumps(DOCUMENT),
        conversation().snapshot,
    ]


def snapshots() -> list[bytes]:
    """Snapshot files: ours, document 004's sample, and the Rust original's, all of one session."""
    others = (SAMPLE, RUST_FILE)
    renamed = [text.replace("telegram", CHANNEL).replace("123456789", CHAT).encode() for text in others]
    return [conversation().snapshot, *renamed]
