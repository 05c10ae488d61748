"""A person's yes over HTTP: it counts once, in its own chat, from whoever may give it, while its call is there.

The daemon is a task of this loop; its sockets, its tokens and the server of its tools are real.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from miniclaw_sessions.service.gateway.tokens import change_tokens, made_token, new_token
from tests.agent.mcp_servers.model import SETTINGS
from tests.agent.test_mcp import SERVER
from tests.service.gateway.daemons import PATIENCE_S, Here

pytestmark = pytest.mark.anyio

TOOLS = """
[mcp.bad]
command = {python}
args = ["-S", "-E", {server}, "counts", {calls}]
approve = ["delete"]
"""


class Asking:
    """A daemon whose model calls `bad_delete` when it is told to, which needs a person's yes."""

    def __init__(self, daemon: Here, client: httpx2.AsyncClient, calls: Path, port: str) -> None:
        self.daemon = daemon
        self.port = port
        self.client = client
        self._calls = calls

    def calls(self) -> int:
        """How often the tool was called."""
        return self._calls.read_text().count("delete") if self._calls.exists() else 0

    async def chat(self, chat_id: str = "1", client: httpx2.AsyncClient | None = None, **said: Any) -> Any:
        """What a request to chat is answered."""
        return await (client or self.client).post("/v1/chat", json={"channel": "web", "chat_id": chat_id, **said})

    async def asked(self, chat_id: str = "1") -> str:
        """Let the model ask for a yes; the id that it is given with."""
        reply = await self.chat(chat_id, message="bad_delete")
        assert reply.status_code == 202, reply.text
        (waiting,) = await self.waiting(chat_id)
        return str(waiting)

    async def waiting(self, chat_id: str = "1") -> list[str]:
        """The ids of what waits for a yes in a chat."""
        reply = await self.client.get(f"/v1/sessions/web_{chat_id}/approvals")
        return [one["id"] for one in reply.json()["pending"]]

    @asynccontextmanager
    async def another(self) -> AsyncIterator[httpx2.AsyncClient]:
        """A client with connections of its own."""
        async with self.daemon.client() as client:
            yield client


@asynccontextmanager
async def asking(directory: Path, *, with_tools: bool = True, **environ: str) -> AsyncIterator[Asking]:
    calls, file = directory / "calls", directory / "miniclaw.toml"
    named = {"python": sys.executable, "server": SERVER, "calls": str(calls)}
    tools = TOOLS.format(**{name: json.dumps(text) for name, text in named.items()})
    file.write_text(SETTINGS + (tools if with_tools else ""))
    async with Here(directory, MINICLAW_CONFIG=str(file), **environ) as daemon:
        ready = await daemon.notice("READY=1")
        async with daemon.client() as client:
            yield Asking(daemon, client, calls, ready.rpartition(":")[2].split(",")[0].split()[0])


async def test_a_yes_that_is_given_many_times_at_once_makes_one_call(short_path: Path) -> None:
    statuses: list[int] = []
    async with asking(short_path) as here:
        waiting = await here.asked()

        async def agree(number: int) -> None:
            async with here.another() as client:
                key = {"idempotency_key": f"k{number}"} if number % 2 else {}
                reply = await here.chat(client=client, approvals={waiting: True}, **key)
                statuses.append(reply.status_code)

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(agree, number)
        assert sorted(statuses) == [200, *[409] * 7]
        assert here.calls() == 1


async def test_a_yes_counts_in_its_own_chat_alone(short_path: Path) -> None:
    async with asking(short_path) as here:
        own, foreign = await here.asked("1"), await here.asked("2")
        for answers in ({foreign: True}, {own: True, foreign: True}, {own: False, foreign: True}):
            reply = await here.chat("1", approvals=answers)
            assert (reply.status_code, await here.waiting("1")) == (202, [own])
        assert (await here.chat("3", approvals={own: True})).status_code == 409
        assert here.calls() == 0
        assert (await here.chat("1", approvals={own: True})).status_code == 200
        assert (here.calls(), await here.waiting("2")) == (1, [foreign])


@asynccontextmanager
async def holding(here: Asking, name: str, scope: str, **bounds: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """A client by TCP with a token of its own."""
    token = new_token()
    made = made_token(token, name=name, scope=scope, created_at="2026-01-01T00:00:00Z", **bounds)
    change_tokens(here.daemon.workspace / "tokens.json", lambda before: (*before, made))
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{here.port}", headers=headers, timeout=PATIENCE_S
    ) as client:
        yield client


async def test_a_yes_is_taken_of_whoever_may_speak_in_the_chat_and_of_nobody_else(short_path: Path) -> None:
    async with asking(short_path, MINICLAW_LISTEN_TCP="127.0.0.1:0") as here:
        waiting = await here.asked("1")
        refused: list[tuple[str, str, dict[str, Any]]] = [
            ("reader", "read", {}),
            ("elsewhere", "write", {"channels": ("mail",)}),
            ("other", "admin", {"channels": ("web",), "chat_prefix": "2"}),
        ]
        for name, scope, bounds in refused:
            async with holding(here, name, scope, **bounds) as client:
                assert (await here.chat(client=client, approvals={waiting: True})).status_code == 403
                shown = await client.get("/v1/sessions/web_1/approvals")
                assert shown.status_code == (200 if scope == "read" else 404)
        assert (here.calls(), await here.waiting("1")) == (0, [waiting])
        async with holding(here, "phone", "write", channels=("web",)) as client:
            assert (await here.chat(client=client, approvals={waiting: True})).status_code == 200
        assert here.calls() == 1
        lines = (await here.client.get("/v1/sessions/web_1/transcript")).text.splitlines()
        (answer,) = [one["data"]["answer"] for one in map(json.loads, lines) if "answer" in (one.get("data") or {})]
        assert answer["author"] == "phone"


async def test_a_yes_to_what_was_deleted_or_cleared_calls_nothing(short_path: Path) -> None:
    async with asking(short_path) as here:
        cleared = await here.asked("1")
        assert (await here.client.post("/v1/sessions/web_1/clear")).status_code == 200
        deleted = await here.asked("2")
        assert (await here.client.delete("/v1/sessions/web_2")).status_code == 200
        for chat_id, former in (("1", cleared), ("2", deleted)):
            assert (await here.chat(chat_id, approvals={former: True})).status_code == 409
            again = await here.asked(chat_id)
            assert again != former
            assert (await here.chat(chat_id, approvals={former: True})).status_code == 202
            assert (here.calls(), await here.waiting(chat_id)) == (0, [again])


async def test_a_yes_that_comes_when_the_tools_are_gone_is_told_to_the_model(short_path: Path) -> None:
    async with asking(short_path) as here:
        waiting = await here.asked()
        assert await here.daemon.stopped() == 0
    async with asking(short_path, with_tools=False) as here:
        reply = await here.chat(approvals={waiting: True})
        assert reply.json()["reply"]["content"].startswith("heard: error: there is no tool 'bad_delete'")
        assert (here.calls(), await here.waiting()) == (0, [])
