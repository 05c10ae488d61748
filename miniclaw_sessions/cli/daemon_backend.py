"""The sessions as a running daemon serves them, over its Unix socket."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import aiofiles
import httpx2

from miniclaw_sessions.cli.backend import ChatEvent, Document, Report
from miniclaw_sessions.errors import ImportRefused, SessionExists, SessionNotFound, SessionsError

if TYPE_CHECKING:
    from aiofiles.threadpool.binary import AsyncBufferedReader

CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 60.0
"""Longer than the daemon's heartbeat in a stream, and than its own limit for a request."""

PATIENT_TIMEOUT_S = 3600.0
"""For what takes as long as there is much of it, or as a model is slow: checks, imports, forks, summaries."""

PAGE = 1000
"""How many sessions are asked for at a time."""

PIECE_BYTES = 262_144
"""How much of a file is sent at a time."""

_PATIENT = httpx2.Timeout(PATIENT_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)

_KINDS: dict[str, type[SessionsError]] = {"import_refused": ImportRefused, "session_exists": SessionExists}


@asynccontextmanager
async def connect(socket: Path) -> AsyncIterator[DaemonBackend | None]:
    """The daemon behind a socket, or None when nobody answers there."""
    transport = httpx2.AsyncHTTPTransport(uds=str(socket), verify=False)  # there is no TLS: load no certificates
    timeout = httpx2.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=timeout) as client:
        try:
            health = (await client.get("/health", timeout=CONNECT_TIMEOUT_S)).json()
            daemon = DaemonBackend(client, int(health["pid"]))
        except (httpx2.TransportError, ValueError, KeyError, TypeError):  # nobody, or another program
            daemon = None
        yield daemon


class DaemonBackend:
    """Asks the daemon; `pid` is its process id."""

    def __init__(self, client: httpx2.AsyncClient, pid: int) -> None:
        self.pid = pid
        self._client = client

    async def sessions(self, channel: str | None, limit: int | None) -> list[Document]:
        """All sessions, or the newest so many, a page at a time."""
        found: list[Document] = []
        query: dict[str, str] = {} if channel is None else {"channel": channel}
        while True:
            query["limit"] = str(PAGE if limit is None else min(limit - len(found), PAGE))
            page = await self._ask("GET", "/v1/sessions", params=query)
            found += page["sessions"]
            if page["next"] is None or len(found) == limit:
                return found
            query["after"] = page["next"]

    async def session(self, session_id: str) -> Document:
        """One session's description."""
        return await self._ask("GET", _path(session_id))

    async def messages(self, session_id: str) -> list[Document]:
        """The messages of the window."""
        document = await self._ask("GET", _path(session_id, "/messages"), params={"limit": "1000"})
        return cast("list[Document]", document["messages"])

    async def transcript(self, session_id: str) -> AsyncGenerator[bytes, None]:
        """Every entry, as it arrives."""
        rest = b""
        with self._answering():
            async with self._client.stream("GET", _path(session_id, "/transcript")) as response:
                await _refuse(response)
                async for chunk in response.aiter_bytes():  # not aiter_lines: it ends lines at U+2028 too
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield line
        if rest:
            raise SessionsError(f"the transcript of {session_id} broke off in the middle; try again")

    async def clear(self, session_id: str) -> None:
        """Empty the window."""
        await self._ask("POST", _path(session_id, "/clear"))

    async def delete(self, session_id: str) -> None:
        """Forget a session."""
        await self._ask("DELETE", _path(session_id))

    async def statistics(self) -> Document:
        """The manager's numbers."""
        return await self._ask("GET", "/v1/statistics")

    async def check(self) -> Document:
        """Let the daemon compare snapshots and store."""
        return await self._ask("POST", "/v1/check", timeout=_PATIENT)

    async def chat(self, channel: str, chat_id: str, text: str | None) -> AsyncGenerator[ChatEvent, None]:
        """Say something and follow the stream of events."""
        said: Document = {"resume": True} if text is None else {"message": text}
        body = {"channel": channel, "chat_id": chat_id, **said, "stream": True}
        with self._answering():
            async with self._client.sse("/v1/chat", method="POST", json=body, max_event_size=None) as source:
                await _refuse(source.response)
                async for event in source:
                    data = cast("Document", event.json())
                    if event.event == "error":
                        raise SessionsError(data["message"])
                    yield ChatEvent(event.event, data)
                    if event.event == "done":
                        return
        raise SessionsError("the daemon ended the answer in the middle; what it had completed is saved")

    # --- the tree ----------------------------------------------------------------------------------------------------

    async def tree(self, session_id: str) -> Document:
        """Who follows whom, the labels and the leaf."""
        return await self._ask("GET", _path(session_id, "/tree"))

    async def branch(self, session_id: str, entry_id: str | None, summary: str | None) -> Document:
        """Go back to an entry, or to the root."""
        body = {"entry_id": entry_id, "summary": summary}
        return await self._ask("POST", _path(session_id, "/branch"), json=body)

    async def label(self, session_id: str, entry_id: str, label: str) -> str:
        """Bookmark an entry, or remove its bookmark."""
        body = {"entry_id": entry_id, "label": label}
        return str((await self._ask("POST", _path(session_id, "/labels"), json=body))["id"])

    async def fork(self, session_id: str, new_id: str | None, leaf_id: str | None) -> Document:
        """A new session with the whole tree, or with one branch."""
        body = {"session_id": new_id, "leaf_id": leaf_id}
        return await self._ask("POST", _path(session_id, "/fork"), json=body, timeout=_PATIENT)

    async def compact(
        self, session_id: str, keep_tokens: int, summary: str | None, first_kept_entry_id: str | None
    ) -> Document:
        """Let a summary stand for the older part of the branch."""
        body = {"keep_tokens": keep_tokens, "summary": summary, "first_kept_entry_id": first_kept_entry_id}
        return await self._ask("POST", _path(session_id, "/compact"), json=body, timeout=_PATIENT)

    # --- files -------------------------------------------------------------------------------------------------------

    async def formats(self) -> Document:
        """Every format that the daemon knows."""
        return await self._ask("GET", "/v1/formats")

    async def export(self, session_id: str, form: str) -> AsyncGenerator[bytes, None]:
        """A session in the format of this name, as it arrives."""
        with self._answering():
            request = self._client.stream("GET", _path(session_id, "/export"), params={"format": form})
            async with request as response:
                await _refuse(response)
                async for chunk in response.aiter_bytes():
                    yield chunk

    async def import_file(
        self, path: Path, form: str | None, session_id: str | None, report: Report, *, dry_run: bool
    ) -> Document:
        """Send a file, and hear what became of it."""
        name = path.stem.encode(errors="replace").decode()
        wanted = {"name": name, "format": form, "session_id": session_id, "dry_run": "1" if dry_run else None}
        query = {key: value for key, value in wanted.items() if value is not None}
        headers = {"Content-Type": "application/octet-stream"}
        try:
            async with aiofiles.open(path, "rb") as file:
                size = await file.seek(0, os.SEEK_END)
                await file.seek(0)
                body = _pieces(file, size, report)
                return await self._ask(
                    "POST", "/v1/import", params=query, content=body, headers=headers, timeout=_PATIENT
                )
        except OSError as error:
            raise ImportRefused(f"cannot read {path}: {error.strerror}") from error

    async def _ask(self, method: str, path: str, **options: Any) -> Document:
        with self._answering():
            response = await self._client.request(method, path, **options)
            await _refuse(response)
        return cast("Document", response.json())

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Turn what goes wrong on the way into one sentence."""
        try:
            yield
        except httpx2.TransportError as error:
            raise SessionsError(
                f"the daemon (process {self.pid}) does not answer ({type(error).__name__}): "
                "start it again if it has stopped, or look into its log"
            ) from error


async def _pieces(file: AsyncBufferedReader, size: int, report: Report) -> AsyncGenerator[bytes, None]:
    """A file's bytes; tells how many were sent."""
    sent = 0
    while piece := await file.read(PIECE_BYTES):
        yield piece
        sent += len(piece)
        report("importing", sent, size)


def _path(session_id: str, rest: str = "") -> str:
    return f"/v1/sessions/{quote(session_id, safe='')}{rest}"


async def _refuse(response: httpx2.Response) -> None:
    """Raise what the daemon says is wrong."""
    if response.is_success:
        return
    await response.aread()
    try:
        error = response.json()["error"]
        message, kind = str(error["message"]), error["type"]
    except (ValueError, KeyError, TypeError):
        message, kind = f"the daemon answered with HTTP status {response.status_code}", ""
    if kind == "session_not_found":
        raise _NotFoundThere(message)
    raise _KINDS.get(kind, SessionsError)(message)


class _NotFoundThere(SessionNotFound):
    """The daemon knows no such session; the text is its own."""

    def __init__(self, message: str) -> None:
        SessionsError.__init__(self, message)
