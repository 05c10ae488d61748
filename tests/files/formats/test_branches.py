"""A branch that is told by parents alone goes on where the program that wrote the file would go on.

Each file is written as its program writes one in which something was said, taken back, and said differently. Nothing
in such a file moves the leaf: that an entry names another parent than the entry before it is all there is.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from miniclaw_sessions import SessionManager
from miniclaw_sessions.core.history.window import keep
from miniclaw_sessions.core.manager.reading import read_transcript
from miniclaw_sessions.core.persistence.snapshot_file import decode_snapshot, encode_snapshot
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.files.transfer.importing import fork_from
from tests.files.formats import test_claude_code as claude
from tests.files.formats import test_codex as codex
from tests.files.formats.codec_files import NOW
from tests.programs import copilot_cli, open_webui

pytestmark = pytest.mark.anyio

AT = "2026-01-01T00:00:00.000Z"


# --- document 003, section 13 ----------------------------------------------------------------------------------------


def document_003(entry_id: str, parent: str | None, role: str, said: str) -> dict[str, Any]:
    message = {"role": role, "content": [{"type": "text", "text": {"content": said}}]}
    return {"type": "message", "id": entry_id, "parent_id": parent, "timestamp": AT, "message": message}


STEPS_2_TO_5 = [
    {"type": "session", "id": "sess-123", "version": 1, "timestamp": AT, "cwd": "/path/to/project"},
    document_003("msg-1", None, "user", "Hello, Agent!"),
    document_003("msg-2", "msg-1", "assistant", "Hello! How can I help?"),
    document_003("msg-3", "msg-1", "user", "Actually, tell me a joke."),
]
STEPS_2_TO_7 = [
    *STEPS_2_TO_5,
    {"type": "label", "id": "lbl-1", "parent_id": "msg-3", "target_id": "msg-1", "label": "first", "timestamp": AT},
    {
        "type": "compaction",
        "id": "comp-1",
        "parent_id": "lbl-1",
        "timestamp": AT,
        "summary": "A greeting, then a joke.",
        "first_kept_entry_id": "msg-3",
        "tokens_before": 1500,
    },
]
LEFT_WITH_ITS_STATE = [
    *STEPS_2_TO_5[:3],
    {"type": "model_change", "id": "mod-1", "parent_id": "msg-2", "timestamp": AT, "provider": "p", "model_id": "old"},
    {"type": "thinking_level", "id": "thi-1", "parent_id": "mod-1", "timestamp": AT, "thinking_level": "high"},
    {
        "type": "compaction",
        "id": "comp-0",
        "parent_id": "thi-1",
        "timestamp": AT,
        "summary": "What was taken back.",
        "first_kept_entry_id": "msg-2",
        "tokens_before": 9,
    },
    STEPS_2_TO_5[3],
]
FROM_THE_ROOT = [*STEPS_2_TO_5[:3], document_003("msg-3", None, "user", "Something else.")]


# --- pi --------------------------------------------------------------------------------------------------------------


def pi(kind: str, entry_id: str, parent: str | None, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "id": entry_id, "parentId": parent, "timestamp": AT, **fields}


def pi_said(entry_id: str, parent: str | None, role: str, said: str) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": role,
        "content": [{"type": "text", "text": said}],
        "timestamp": 1_767_225_600_000,
    }
    if role == "assistant":
        message |= {"api": "a", "provider": "anthropic", "model": f"model-of-{entry_id}", "stopReason": "stop"}
    return pi("message", entry_id, parent, message=message)


PI_TREE = [
    {"type": "session", "version": 3, "id": "s-1", "timestamp": AT, "cwd": "/home/ada"},
    pi("thinking_level_change", "00000001", None, thinkingLevel="off"),
    pi_said("00000002", "00000001", "user", "Hello."),
    pi_said("00000003", "00000002", "assistant", "How can I help?"),
    pi_said("00000004", "00000003", "user", "Sing."),
    pi("thinking_level_change", "00000005", "00000004", thinkingLevel="high"),
    pi_said("00000006", "00000005", "assistant", "La la."),
    pi("compaction", "00000007", "00000006", summary="They sang.", firstKeptEntryId="00000006", tokensBefore=99),
    pi_said("00000008", "00000003", "user", "Tell me a joke."),
    pi_said("00000009", "00000008", "assistant", "Knock, knock."),
]
PI_SUMMARY = [
    *PI_TREE[:8],
    pi("branch_summary", "0000000a", "00000003", fromId="00000007", summary="They sang for a while."),
]
PI_LABELED_ELSEWHERE = [*PI_TREE, pi("label", "0000000b", "00000009", targetId="00000006", label="song")]


# --- Claude Code -----------------------------------------------------------------------------------------------------

CLAUDE_EDIT = [
    claude.user("u1", None, "Hello.", 1),
    claude.reply("a1", "u1", "m1", claude.text("How can I help?"), 2),
    claude.user("u2", "a1", "Sing.", 3),
    claude.reply("a2", "u2", "m2", claude.text("La la."), 4, model="claude-test-2"),
    claude.line("d1", "a2", "system", 5, subtype="turn_duration", durationMs=5000),
    {"type": "file-history-snapshot", "messageId": "u3", "snapshot": {"trackedFileBackups": {}}},
    claude.user("u3", "a1", "Tell me a joke.", 6),
    claude.reply("a3", "u3", "m3", claude.text("Knock, knock."), 7),
]
CLAUDE_LATE_HOOK = [*CLAUDE_EDIT, claude.line("p1", "a2", "progress", 8, data={"type": "hook_progress"})]
CLAUDE_FIRST_PROMPT_EDITED = [*CLAUDE_EDIT[:4], claude.user("u9", None, "Tell me a joke.", 6)]
CLAUDE_SUBAGENT_LAST = [
    *CLAUDE_EDIT,
    claude.user("s1", None, "Look into it.", 8) | {"isSidechain": True},
    claude.reply("s2", "s1", "m9", claude.text("Found it."), 9) | {"isSidechain": True},
]
CLAUDE_RETRY = [  # the same prompt is answered once more
    *CLAUDE_EDIT[:2],
    claude.user("u2", "a1", "Tell me a joke.", 3),
    claude.reply("a2", "u2", "m2", claude.text("La la."), 4),
    claude.reply("a3", "u2", "m3", claude.text("Knock, knock."), 7),
]


# --- Codex -----------------------------------------------------------------------------------------------------------


def codex_turn(asked: str, answered: str, effort: str = "low", model: str = "gpt-test-5") -> list[dict[str, Any]]:
    return [
        codex.said("user", asked),
        codex.line("turn_context", cwd="/home/ada", model=model, effort=effort),
        codex.said("assistant", answered),
    ]


CODEX_ROLLBACK = [
    codex.HEADER,
    *codex_turn("Hello.", "How can I help?"),
    *codex_turn("Sing.", "La la.", effort="high", model="gpt-test-6"),
    codex.event("thread_rolled_back", num_turns=1),
    *codex_turn("Tell me a joke.", "Knock, knock.", effort="high", model="gpt-test-6"),
]
CODEX_ALL_ROLLED_BACK = [
    codex.HEADER,
    *codex_turn("Hello.", "How can I help?"),
    codex.event("thread_rolled_back", num_turns=9),
    *codex_turn("Tell me a joke.", "Knock, knock."),
]
CODEX_ENDS_ROLLED_BACK = CODEX_ROLLBACK[: CODEX_ROLLBACK.index(CODEX_ROLLBACK[7]) + 1]

# --- Copilot CLI and Open WebUI --------------------------------------------------------------------------------------


def copilot_said(number: int, after: int, asked: str, answered: str) -> list[dict[str, Any]]:
    return [
        copilot_cli.event(number, "user.message", after=after, content=asked),
        copilot_cli.event(number + 1, "assistant.message", messageId=f"m{number}", content=answered),
    ]


COPILOT_TAKEN_BACK = [
    copilot_cli.EVENTS[0],
    *copilot_said(2, 1, "Hello.", "How can I help?"),
    *copilot_said(4, 3, "Sing.", "La la."),
    *copilot_said(6, 3, "Tell me a joke.", "Knock, knock."),
]
WEBUI_EDIT = [
    open_webui.HEADER,
    *(
        {"message": open_webui.said(*fields, model="m" if fields[2] == "assistant" else None)}
        for fields in (
            ("q1", None, "user", "Hello.", 1),
            ("a1", "q1", "assistant", "How can I help?", 2),
            ("q2", "a1", "user", "Sing.", 3),
            ("a2", "q2", "assistant", "La la.", 4),
            ("q3", "a1", "user", "Tell me a joke.", 5),
            ("a3", "q3", "assistant", "Knock, knock.", 6),
        )
    ),
]

JOKE = ["Hello.", "How can I help?", "Tell me a joke.", "Knock, knock."]
GREETING = JOKE[:2]

CASES: dict[str, tuple[Sequence[dict[str, Any]], list[str], tuple[str | None, str | None]]] = {
    "document 003, steps 2 to 5": (STEPS_2_TO_5, ["Hello, Agent!", "Actually, tell me a joke."], (None, None)),
    "document 003, with its compaction": (
        STEPS_2_TO_7,
        ["A greeting, then a joke.", "Actually, tell me a joke."],
        (None, None),
    ),
    "document 003, what was left has a compaction, a model and a level": (
        LEFT_WITH_ITS_STATE,
        ["Hello, Agent!", "Actually, tell me a joke."],
        (None, None),
    ),
    "document 003, a branch from the root": (FROM_THE_ROOT, ["Something else."], (None, None)),
    "pi": (PI_TREE, JOKE, ("model-of-00000009", "off")),
    "pi, a branch summary": (PI_SUMMARY, [*GREETING, "They sang for a while."], ("model-of-00000003", "off")),
    "pi, a label on what was left": (PI_LABELED_ELSEWHERE, JOKE, ("model-of-00000009", "off")),
    "claude code, an edited prompt": (CLAUDE_EDIT, JOKE, ("claude-test-1", None)),
    "claude code, a hook of what was left ends late": (CLAUDE_LATE_HOOK, JOKE, ("claude-test-1", None)),
    "claude code, the first prompt edited": (CLAUDE_FIRST_PROMPT_EDITED, ["Tell me a joke."], (None, None)),
    "claude code, a subagent last": (CLAUDE_SUBAGENT_LAST, JOKE, ("claude-test-1", None)),
    "claude code, a retry": (CLAUDE_RETRY, JOKE, ("claude-test-1", None)),
    "codex, a rollback": (CODEX_ROLLBACK, JOKE, ("gpt-test-6", "high")),
    "codex, everything rolled back": (CODEX_ALL_ROLLED_BACK, JOKE[2:], ("gpt-test-5", "low")),
    "copilot cli, a prompt taken back": (COPILOT_TAKEN_BACK, JOKE, ("claude-sonnet-4.5", None)),
    "open webui, an edited prompt": (WEBUI_EDIT, JOKE, ("m", None)),
    "codex, a rollback last": (CODEX_ENDS_ROLLED_BACK, GREETING, ("gpt-test-5", "low")),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[str], tuple[str | None, str | None]]:
    lines, said, state = CASES[request.param]
    path = tmp_path / "session.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path, said, state


@asynccontextmanager
async def opened(workspace: Path, store: str = "sqlite:") -> AsyncIterator[SessionManager]:
    async with SessionManager(workspace, store=store) as manager:
        yield manager


async def assert_goes_on(session: Session, said: list[str], state: tuple[str | None, str | None]) -> None:
    """What a model is sent, and what is in force, are those of the branch, from memory and from the store alike."""
    assert [message.text for message in session.messages()] == said
    context = await session.get_context()
    assert [message.text.rsplit("\n\n", 1)[-1] for message in context.messages] == said
    assert context.problems == ()
    assert (context.model, context.thinking_level) == state
    assert (session.metadata.get("model"), session.metadata.get("thinking_level")) == state


async def test_an_import_goes_on_where_its_program_would(
    case: tuple[Path, list[str], tuple[str | None, str | None]], tmp_path: Path
) -> None:
    path, said, state = case
    workspace = tmp_path / "w"
    async with opened(workspace) as manager:
        session = await fork_from(manager, path)
        await assert_goes_on(session, said, state)
        await assert_goes_on(await session.fork(), said, state)
        session_id = session.session_id
    async with opened(workspace) as manager:  # from the snapshot
        await assert_goes_on(await manager.find(session_id), said, state)
        assert (await manager.check()).problems == []
    for snapshot in (workspace / "sessions").iterdir():
        snapshot.unlink()
    async with opened(workspace) as manager:  # rebuilt
        await assert_goes_on(await manager.find(session_id), said, state)


@pytest.mark.parametrize("store", ["jsonl:", "memory:"])
async def test_every_store_tells_the_branch(tmp_path: Path, store: str) -> None:
    lines, said, state = CASES["pi"]
    path = tmp_path / "session.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    async with opened(tmp_path / "w", store) as manager:
        await assert_goes_on(await fork_from(manager, path), said, state)


async def test_a_window_alone_holds_no_message_of_a_branch_that_was_left(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in CLAUDE_EDIT))
    async with opened(tmp_path / "w", "none:") as manager:
        session = await fork_from(manager, path)
        assert [message.text for message in session.messages()] == JOKE
        session_id = session.session_id
    async with opened(tmp_path / "w", "none:") as manager:
        assert [message.text for message in (await manager.find(session_id)).messages()] == JOKE


async def test_what_an_older_version_imported_wrongly_is_mended_when_it_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in STEPS_2_TO_5))
    async with opened(tmp_path / "w") as manager:
        session_id = (await fork_from(manager, path)).session_id
        every = [entry async for entry in read_transcript(manager, session_id) if isinstance(entry, MessageEntry)]
    snapshot = tmp_path / "w" / "sessions" / f"{session_id}.json"
    wrong = replace(
        decode_snapshot(snapshot.read_bytes(), stem=session_id, now=NOW, new_id=str),
        kept=[keep(entry) for entry in every],
    )
    snapshot.write_bytes(encode_snapshot(wrong))
    async with opened(tmp_path / "w") as manager:
        await assert_goes_on(await manager.find(session_id), *CASES["document 003, steps 2 to 5"][1:])
        await manager.flush()
    mended = decode_snapshot(snapshot.read_bytes(), stem=session_id, now=NOW, new_id=str)
    assert [entry.message.text for entry in mended.entries] == ["Hello, Agent!", "Actually, tell me a joke."]


async def test_the_check_finds_a_window_with_messages_of_a_branch_that_was_left(tmp_path: Path) -> None:
    lines = [
        *STEPS_2_TO_5[:3],
        {**LEFT_WITH_ITS_STATE[4], "parent_id": "msg-1"},
        {**STEPS_2_TO_5[3], "parent_id": "thi-1"},
    ]
    path = tmp_path / "session.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    async with opened(tmp_path / "w") as manager:
        session_id = (await fork_from(manager, path)).session_id
        every = [entry async for entry in read_transcript(manager, session_id) if isinstance(entry, MessageEntry)]
        snapshot = tmp_path / "w" / "sessions" / f"{session_id}.json"
        await manager.flush()
        assert (await manager.check()).problems == []
        wrong = decode_snapshot(snapshot.read_bytes(), stem=session_id, now=NOW, new_id=str)
        snapshot.write_bytes(encode_snapshot(replace(wrong, kept=[keep(entry) for entry in every])))
        (problem,) = (await manager.check()).problems
        assert "branch" in problem


async def test_what_is_said_next_follows_the_branch(
    case: tuple[Path, list[str], tuple[str | None, str | None]], tmp_path: Path
) -> None:
    path, said, _ = case
    async with opened(tmp_path / "w") as manager:
        session = await fork_from(manager, path)
        leaf_id = session.leaf_id
        entry = session.entries()[-1]
        branch = [one.id for one in await session.tree.get_branch()]
        assert branch[-1] == leaf_id
        assert entry.id in branch
        assert [message.text for message in session.messages()][-1] == said[-1]
