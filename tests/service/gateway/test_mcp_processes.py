"""MCP between real processes: the commands of docs/how-to/use-mcp.md, and an approval that outlives its daemon."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from miniclaw_sessions.config import load_settings
from miniclaw_sessions.service.client.mcp import TOOLS
from tests.agent.mcp_servers.model import SETTINGS
from tests.agent.test_mcp import SERVER
from tests.service.gateway.daemons import PATIENCE_S, Process, on_tcp

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/how-to/use-mcp.md").read_text(encoding="utf-8")
pytestmark = [pytest.mark.anyio, pytest.mark.proof]


def fences(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    return [shlex.split(line) for fence in fences("sh") for line in fence.splitlines()]


def run(home: Path, *arguments: str, said: str = "", **environ: str) -> str:
    environ = {"HOME": str(home), "PATH": os.environ["PATH"], **environ}
    command = [sys.executable, "-m", "miniclaw_sessions", *arguments]
    return subprocess.run(command, env=environ, input=said, capture_output=True, text=True, check=True).stdout


async def recalled(client: Client) -> list[str]:
    """The ids of the sessions in which a word was said."""
    result = await client.call_tool("search", {"query": "xylophone", "role": "user"})
    text = result.content[0].text  # type: ignore[union-attr]
    return [one["session_id"] for one in json.loads(text)["results"]]


def program(home: Path, *arguments: str) -> StdioServerParameters:
    """The server as a client starts it."""
    return StdioServerParameters(
        command=sys.executable, args=["-m", "miniclaw_sessions", *arguments], env={"HOME": str(home)}
    )


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_settings_on_the_page_are_settings(tmp_path: Path) -> None:
    ours, theirs = fences("toml")
    file = tmp_path / "miniclaw.toml"
    file.write_text(ours)
    assert load_settings(file).settings.mcp["files"].approve == ("write_file", "edit_file", "move_*")
    assert tomllib.loads(theirs)["mcp_servers"]["recall"]["args"] == ["mcp", "--scope", "write"]


def test_the_page_has_every_tool_and_what_it_needs() -> None:
    rows = re.findall(r"^\| (`.*?`) \| (read|write) \|", PAGE, re.MULTILINE)
    assert {name: scope for names, scope in rows for name in re.findall(r"`(\w+)`", names)} == {
        one.name: one.scope for one, _ in TOOLS
    }


@pytest.mark.parametrize("running", [False, True], ids=["files", "daemon"])
async def test_what_clients_are_told_to_start_finds_what_was_said(tmp_path: Path, *, running: bool) -> None:
    run(tmp_path, "chat", "--chat-id", "1", "-m", "The xylophone is green")
    started = [words[words.index("--") + 1 :] for words in commands() if "--" in words]
    assert started == [["miniclaw-sessions", "mcp"], ["miniclaw-sessions", "mcp"]]
    workspace = tmp_path / ".miniclaw/workspace"
    async with AsyncExitStack() as stack:
        if running:
            daemon = await stack.enter_async_context(Process(tmp_path, MINICLAW_WORKSPACE=str(workspace)))
            await daemon.notice("READY=1")
        async with Client(program(tmp_path, *started[0][1:])) as client:
            assert await recalled(client) == ["cli_1"]
            assert len((await client.list_tools()).tools) == 5
            refused = await client.call_tool("save_turn", {"session_id": "x_1", "messages": []})
            assert refused.is_error
            long = await client.call_tool("search", {"query": "x" * 100_000})
            assert long.content[0].text == "the query has 100,000 characters; at most 1,000 are searched for"  # type: ignore[union-attr]


async def test_a_daemon_that_is_killed_and_started_again_is_found_again_by_the_same_client(tmp_path: Path) -> None:
    workspace = tmp_path / ".miniclaw/workspace"
    said = [{"role": "user", "content": "xylophone"}]
    async with Client(program(tmp_path, "mcp", "--scope", "write")) as client:
        missing = await client.call_tool("list_sessions", {})
        assert "there is no workspace" in missing.content[0].text  # type: ignore[union-attr]
        for number in (1, 2):
            async with Process(tmp_path, MINICLAW_WORKSPACE=str(workspace)) as daemon:
                await daemon.notice("READY=1")
                await client.call_tool("save_turn", {"session_id": f"notes_{number}", "messages": said})
                await daemon.killed()
        assert sorted(await recalled(client)) == ["notes_1", "notes_2"]
        await client.call_tool("save_turn", {"session_id": "notes_3", "messages": said})
        assert sorted(await recalled(client)) == ["notes_1", "notes_2", "notes_3"]


async def test_what_clients_are_told_to_send_over_http_finds_what_was_said(tmp_path: Path) -> None:
    create, add = (words for words in commands() if "--" not in words)
    async with on_tcp(tmp_path) as url:
        token = run(tmp_path, *create[1:], "--workspace", str(tmp_path / "w")).split()[-1]
        name, _, value = add[add.index("--header") + 1].partition(": ")
        path = "/" + next(word for word in add if word.startswith("http://")).rpartition("/")[2]
        headers = {name: value.replace("$TOKEN", next(re.finditer(r"mcs_[\w-]+", token))[0])}
        body = {"channel": "web", "chat_id": "1", "message": "The xylophone is green"}
        own = {"Authorization": "Bearer 0123456789abcdef0123456789abcdef"}
        async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE_S) as http:
            (await http.post(f"{url}/v1/chat", json=body, headers=own)).raise_for_status()
            async with Client(streamable_http_client(url + path, http_client=http)) as client:
                assert await recalled(client) == ["web_1"]


# --- an approval -----------------------------------------------------------------------------------------------------

SERVERS = """
[mcp.bad]
command = {python}
args = ["-S", "-E", {server}, "well"]
approve = ["delete"]
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, Any]:
    """Of a program with an MCP server, and a model that calls its tools."""
    file = tmp_path / "miniclaw.toml"
    file.write_text(SETTINGS + SERVERS.format(python=json.dumps(sys.executable), server=json.dumps(SERVER)))
    return {"MINICLAW_CONFIG": str(file), "PYTHONPATH": str(ROOT)}


def test_the_command_line_asks_and_is_answered_where_no_daemon_runs(tmp_path: Path, environ: dict[str, Any]) -> None:
    shown = run(tmp_path, "chat", said="bad_delete\nyes\nbad_delete\n/deny\nbad_delete\n", **environ)
    question = 'May I do this?\n- bad_delete {"path": "x"}\nAnswer yes or no.\n'
    yes, no, waits = shown.split(question)[1:]
    assert yes == 'heard: delete {"path": "x"}\n'
    assert "did not agree" in no
    assert waits == ""
    assert run(tmp_path, "chat", "-m", "yes", **environ) == yes  # after a restart


async def test_an_approval_is_asked_for_in_the_chat_and_given_after_a_kill(
    tmp_path: Path, environ: dict[str, Any]
) -> None:
    chat: dict[str, Any] = {"channel": "web", "chat_id": "1"}
    async with Process(tmp_path, **environ) as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            echoed = await client.post("/v1/chat", json={**chat, "message": "bad_echo"})
            assert echoed.json()["reply"]["content"] == 'heard: echo {"path": "x"}'
            asked = await client.post("/v1/chat", json={**chat, "message": "bad_delete"})
            assert (asked.status_code, asked.json()["suspended"]["pending"][0]["name"]) == (202, "bad_delete")
        await daemon.killed()
    async with Process(tmp_path, **environ) as daemon:
        await daemon.notice("READY=1")
        async with daemon.client() as client:
            (waiting,) = (await client.get("/v1/sessions/web_1/approvals")).json()["pending"]
            assert (waiting["name"], waiting["arguments"]) == ("bad_delete", '{"path": "x"}')
            answer = {**chat, "approvals": {waiting["id"]: True}, "idempotency_key": "k"}
            for _ in range(2):  # a client may send it again
                done = await client.post("/v1/chat", json=answer)
                assert done.json()["reply"]["content"] == 'heard: delete {"path": "x"}'
            nothing = await client.post("/v1/chat", json={**chat, "approvals": {waiting["id"]: True}})
            assert (nothing.status_code, nothing.json()["error"]["type"]) == (409, "nothing_to_resume")
            await client.post("/v1/chat", json={**chat, "message": "bad_delete"})
            no = await client.post("/v1/chat", json={**chat, "message": "no", "commands": True})
            assert "did not agree" in no.json()["reply"]["content"]
            assert (await client.get("/v1/sessions/web_1/approvals")).json() == {"pending": []}
        assert await daemon.stopped() == 0
