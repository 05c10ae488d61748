"""A reply that comes in parts, with pauses between them: every word of it once, and what it cost once."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from miniclaw_sessions.clock import derived_ids
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.files.discovery.growing_file import GrowingFile
from miniclaw_sessions.files.formats.codec import Chain
from miniclaw_sessions.files.formats.registry import format_named
from tests.agents import file_of
from tests.files.discovery.test_follower import Following, block, claude_file, following, line, put, user

pytestmark = pytest.mark.anyio


async def pause(ours: Following, *, restarts: bool) -> None:
    """Nothing comes for so long that what is there is taken; perhaps the follower begins anew afterwards."""
    await ours.look()
    await ours.look()
    await ours.clock.advance(11)
    await ours.look()
    if restarts:
        ours.begin()


async def cost(ours: Following) -> tuple[int, int]:
    total = (await ours.client.usage()).total
    return total.input_tokens, total.output_tokens


async def found(ours: Following, word: str) -> int:
    page = await ours.client.search(word)
    return len(page.results)


def claude(uuid: str, parent: str, content: dict[str, Any], output: int, stop: str | None = None) -> dict[str, Any]:
    usage = {"input_tokens": 1000, "output_tokens": output}
    return line(uuid, parent, "assistant", [content], id="r", model="m", stop_reason=stop, usage=usage)


def call(name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": name, "input": {}}


def result(uuid: str, parent: str, name: str) -> dict[str, Any]:
    return line(uuid, parent, "user", [{"type": "tool_result", "tool_use_id": name, "content": f"of {name}"}])


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_reply_of_claude_code_that_comes_in_parts_is_there_once(tmp_path: Path, *, restarts: bool) -> None:
    async with following(tmp_path) as ours:
        file = put(claude_file(ours.home), [user("u1", None, "begin")])
        await pause(ours, restarts=restarts)
        for uuid, parent, content, output in (
            ("b1", "u1", {"type": "thinking", "thinking": "hm", "signature": "s"}, 1),
            ("b2", "b1", {"type": "text", "text": "glaciers"}, 20),
            ("b3", "b2", call("first"), 50),
        ):
            put(file, [claude(uuid, parent, content, output)])
            await pause(ours, restarts=restarts)
        put(file, [result("r1", "b3", "first")])
        await pause(ours, restarts=restarts)
        put(file, [claude("b4", "b3", call("second"), 60, "tool_use"), result("r2", "b4", "second")])
        await pause(ours, restarts=restarts)
        put(file, [block("a2", "r2", "done", stop="end_turn")])
        await pause(ours, restarts=restarts)
        put(file, [user("u2", "b3", "instead")])  # a rewind to that reply
        await pause(ours, restarts=restarts)
        page = list(await ours.client.session("import_s").messages())
        assert [message.text for message in page][-1] == "instead"
        calls = [one.name for message in page for one in message.tool_calls or ()]
        assert calls == ["first", "second"]
        assert "".join(await ours.said("import_s")) == "beginglaciersof firstof seconddoneinstead"
        assert await found(ours, "glaciers") == 1
        assert await cost(ours) == (1000, 60)


@pytest.mark.parametrize("restarts", [False, True])
async def test_results_between_the_blocks_of_a_reply_stay_on_one_branch(tmp_path: Path, *, restarts: bool) -> None:
    async with following(tmp_path) as ours:
        file = put(claude_file(ours.home), [user("u1", None, "begin"), claude("b1", "u1", call("first"), 10)])
        await pause(ours, restarts=restarts)
        put(file, [result("r1", "b1", "first")])
        await pause(ours, restarts=restarts)
        put(file, [claude("b2", "b1", call("second"), 20, "tool_use")])
        await pause(ours, restarts=restarts)
        put(
            file, [result("r2", "b2", "second"), block("a2", "r2", "done", stop="end_turn"), user("u2", "a2", "thanks")]
        )
        await ours.look()
        assert await ours.branch("import_s") == ["begin", "", "of first", "", "of second", "done", "thanks"]
        assert await cost(ours) == (1000, 20)


@pytest.mark.parametrize("names", [("s", "t"), ("t", "s")])
async def test_what_a_branched_off_session_repeats_is_paid_for_once(tmp_path: Path, names: tuple[str, str]) -> None:
    async with following(tmp_path) as ours:
        said = [user("u1", None, "begin"), claude("b1", "u1", {"type": "text", "text": "hi"}, 50, "end_turn")]
        put(claude_file(ours.home, names[0]), [{**one, "sessionId": names[0]} for one in said])
        copied = [{**one, "forkedFrom": {"sessionId": names[0], "messageUuid": one["uuid"]}} for one in said]
        own = [user("u2", "b1", "more"), claude("b2", "u2", {"type": "text", "text": "hm"}, 20, "end_turn")]
        own[1]["message"]["id"] = "another"
        put(claude_file(ours.home, names[1]), [{**one, "sessionId": names[1]} for one in [*copied, *own]])
        assert await ours.taken() == 6
        assert await cost(ours) == (2000, 70)
        forked = f"import_{names[1]}"
        assert await ours.branch(forked) == ["begin", "hi", "more", "hm"]
        info = await ours.client.session(forked).info()
        assert info.metadata["session.source"]["parent_session"] == names[0]
        document = json.loads(b"".join([chunk async for chunk in ours.client.export(forked, "json")]))
        (copy,) = (one for one in document["entries"] if one["id"] == "b1")
        assert copy["message"]["claude-code"]["usage"] == {"input_tokens": 1000, "output_tokens": 50}


def codex(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00Z", "type": kind, "payload": payload}


def spent(total: int) -> dict[str, Any]:
    last = {"input_tokens": 1000, "output_tokens": 50, "total_tokens": 1050}
    info = {"last_token_usage": last, "total_token_usage": {"total_tokens": total}}
    return codex("event_msg", type="token_count", info=info)


def says(role: str, text: str) -> dict[str, Any]:
    content = [{"type": "output_text" if role == "assistant" else "input_text", "text": text}]
    return codex("response_item", type="message", role=role, content=content)


CODEX_ID = "01a205fe-d2da-7663-abb2-f4433b1deb32"


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_reply_of_codex_that_comes_in_parts_is_there_once(tmp_path: Path, *, restarts: bool) -> None:
    async with following(tmp_path) as ours:
        file = ours.home / f".codex/sessions/2026/01/01/rollout-2026-01-01T00-00-00-{CODEX_ID}.jsonl"
        put(file, [codex("session_meta", id=CODEX_ID), says("user", "begin")])
        await pause(ours, restarts=restarts)
        put(file, [codex("response_item", type="reasoning", summary=[{"type": "summary_text", "text": "hm"}])])
        await pause(ours, restarts=restarts)
        put(file, [codex("event_msg", type="item_completed"), says("assistant", "estuaries")])
        await pause(ours, restarts=restarts)
        put(file, [spent(1050), says("user", "thanks"), says("assistant", "bye"), spent(2100)])
        await pause(ours, restarts=restarts)
        session_id = f"import_{CODEX_ID}"
        assert "".join(await ours.branch(session_id)) == "".join(await ours.said(session_id))
        assert "".join(await ours.said(session_id)) == "beginestuariesthanksbye"
        assert await found(ours, "estuaries") == 1
        assert await cost(ours) == (2000, 100)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_reply_of_gemini_cli_that_comes_in_parts_is_there_once(tmp_path: Path, *, restarts: bool) -> None:
    async with following(tmp_path) as ours:
        file = ours.home / ".gemini/tmp/project/chats/session-2026-01-01T00-00-s.jsonl"
        at = {"timestamp": "2026-01-01T00:00:00Z"}
        reply: dict[str, Any] = {"id": "m", "type": "gemini", "content": "volcanoes", **at}
        tokens = {"input": 1000, "output": 50, "total": 1050}
        put(file, [{"sessionId": "s", "projectHash": "x"}, {"id": "u", "type": "user", "content": "begin", **at}])
        await pause(ours, restarts=restarts)
        put(file, [reply])
        await pause(ours, restarts=restarts)
        reply["tokens"] = tokens
        reply["toolCalls"] = [{"id": "c", "name": "ls", "args": {}, "result": "a file", "status": "success"}]
        put(file, [reply])
        await pause(ours, restarts=restarts)
        put(file, [{"id": "v", "type": "user", "content": "thanks", **at}])
        await pause(ours, restarts=restarts)
        assert "".join(await ours.said("import_s")).startswith("beginvolcanoes")
        assert await ours.said("import_s") == await ours.branch("import_s")
        assert await found(ours, "volcanoes") == 1
        assert await cost(ours) == (1000, 50)


def read_in(lines: list[bytes], form: str, pauses: set[int]) -> list[MessageEntry]:
    """The messages of a file that is read with pauses behind some of its lines."""
    make = format_named(form).reader
    assert make is not None
    growing = GrowingFile(make(Chain(new_id=derived_ids(lines[0]), now=datetime(2026, 1, 1, tzinfo=UTC))))
    entries = []
    for number, one in enumerate(lines):
        entries += growing.fed([one])
        entries += growing.pending() if number in pauses else []
    entries += growing.pending()
    known: set[str | None] = {None}
    for entry in entries:
        assert entry.parent_id in known, "it hangs on what was not stored"
        assert entry.id not in known, "it is there already"
        known.add(entry.id)
    return [entry for entry in entries if isinstance(entry, MessageEntry)]


def told(messages: list[MessageEntry]) -> tuple[str, list[str], int, int]:
    """What is said, called and paid in all."""
    said = "".join(one.message.text for one in messages)
    calls = [call.id for one in messages for call in one.message.tool_calls or ()]
    usages = [one.message.usage for one in messages if one.message.usage is not None]
    return said, calls, sum(one.input_tokens for one in usages), sum(one.output_tokens for one in usages)


@pytest.mark.parametrize(
    ("directory", "form"), [(".claude", "claude-code"), (".codex", "codex"), (".gemini", "gemini-cli")]
)
def test_wherever_a_program_pauses_its_file_says_and_costs_the_same(directory: str, form: str) -> None:
    lines = file_of(directory).read_bytes().splitlines()
    whole = told(read_in(lines, form, set()))
    assert whole[0]
    chosen = Random(7)
    places = range(len(lines))
    for pauses in ({place} for place in places):
        assert told(read_in(lines, form, pauses)) == whole
    for _ in range(15):
        assert told(read_in(lines, form, set(chosen.sample(places, chosen.randrange(len(lines)))))) == whole
    assert told(read_in(lines, form, set(places))) == whole
