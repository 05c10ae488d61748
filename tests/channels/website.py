"""A visitor of a website, as the chat's script behaves: real requests, each message kept until it is done."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2

SITE = "https://www.example.org"
PATIENCE_S = 120.0
"""How long a slow machine may take; nothing waits this long when all is well."""


class Browser:
    """The script of one visitor, without a screen.

    Attributes:
        visitor: his pass.
        rows: the messages that he was shown, the oldest first.
        lines: all that the stream said.
    """

    def __init__(self, address: str, origin: str = SITE, **headers: str) -> None:
        self.visitor = ""
        self.rows: list[dict[str, Any]] = []
        self.lines: list[dict[str, Any]] = []
        self._headers = {"Origin": origin, **headers}
        self._http = httpx2.AsyncClient(base_url=address, timeout=PATIENCE_S, verify=False)
        self._changed = anyio.Event()

    def go_to(self, address: str) -> None:
        """Ask there from now on."""
        self._http.base_url = httpx2.URL(address)

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        return await self._http.post(f"/{path}", json=body or {}, headers=self._with_pass() | headers)

    def _with_pass(self) -> dict[str, str]:
        return self._headers | ({"Authorization": f"Bearer {self.visitor}"} if self.visitor else {})

    async def enter(self, **user: Any) -> dict[str, Any]:
        try:
            reply = await self.post("enter", user)
        except httpx2.TransportError:  # the daemon is away
            await anyio.sleep(0.02)
            return await self.enter(**user)
        assert reply.status_code == 200, reply.text
        known: dict[str, Any] = reply.json()
        self.visitor = known["visitor"]
        return known

    async def say(self, text: str, message_id: str | None = None, **more: Any) -> str:
        """Say something until it is done, whatever happens to the daemon; returns the sentence beside it."""
        said = {"id": message_id or uuid.uuid4().hex, "text": text, **more}
        return await self.send(said)

    async def send(self, said: dict[str, Any]) -> str:
        is_kept = False
        with anyio.fail_after(PATIENCE_S):
            while True:
                try:
                    reply = await self.post("say", {"id": said["id"]} if is_kept else said)
                except httpx2.TransportError:
                    await anyio.sleep(0.02)  # the daemon is away
                    continue
                if reply.status_code == 202:
                    is_kept = True
                elif reply.status_code == 404:
                    is_kept = False
                elif reply.status_code == 503:
                    await anyio.sleep(0.02)
                else:
                    assert reply.status_code == 200, reply.text
                    return str(reply.json()["beside"])

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """See the chat for as long as the block lasts."""
        self.lines.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow)
            await self.until(lambda: any(one["kind"] == "page" for one in self.lines))
            yield
            tasks.cancel_scope.cancel()

    async def _follow(self) -> None:
        while True:
            try:
                async with self._http.stream("POST", "/follow", json={}, headers=self._with_pass()) as reply:
                    assert reply.status_code == 200, await reply.aread()
                    async for line in reply.aiter_lines():
                        if line:
                            self._take(json.loads(line))
            except httpx2.TransportError:
                pass
            await anyio.sleep(0.02)

    def _take(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        if line["kind"] == "page":
            self.rows = list(line["rows"])
        elif line["kind"] == "row":
            self.rows.append(line)
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, is_so: Any) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not is_so():
                await self._changed.wait()

    async def shows(self, *texts: str) -> None:
        """Return when the newest messages are these."""
        await self.until(lambda: self.texts[-len(texts) :] == list(texts))

    @property
    def texts(self) -> list[str]:
        """What is shown, without its tags where it is a paragraph."""
        return [row["html"].strip().removeprefix('<p dir="auto">').removesuffix("</p>") for row in self.rows]

    async def aclose(self) -> None:
        await self._http.aclose()
