"""A way to a PostgreSQL server that can be cut at a chosen moment, and that may speak TLS, as a pooler does."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

_TLS_REQUEST = bytes.fromhex("00000008 04d2162f")
_READY = b"Z\0\0\0\5"


class Cut(Enum):
    """When a connection is cut that carries what is looked for."""

    BEFORE = "the statement never reaches the server"
    SENT = "the server has the statement, and nobody waits for it"
    ANSWERED = "the server has committed and answered, and the answer is lost"


class Wire:
    """Listens on a free port of this machine, and passes everything on to a server's Unix socket.

    Attributes:
        port: where it listens.
        cuts: what happens to connections that carry `marker`, the first one first; the later ones are passed on.
    """

    def __init__(self, server: Path, *, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self.marker = b""
        self.cuts: list[Cut] = []
        self._server = server / ".s.PGSQL.5432"
        self._tls = tls

    async def __aenter__(self) -> Self:
        self._serving: set[asyncio.Task[None]] = set()
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, statements = await asyncio.open_unix_connection(str(self._server))
        moment: list[Cut] = []
        try:
            statements.write(await self._greeted(reader, writer))
            there = asyncio.create_task(self._pass_on(reader, statements, moment))
            back = asyncio.create_task(self._pass_back(answers, writer, moment))
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            there.cancel()
            back.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
        except (ConnectionError, ssl.SSLError):
            pass  # it does not trust us, or we do not trust it
        finally:
            for end in (statements, writer):
                end.close()
                with suppress(OSError):
                    await end.wait_closed()

    async def _greeted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """Speak TLS if that is asked for; the first bytes of what follows."""
        first = await reader.read(len(_TLS_REQUEST))
        if first != _TLS_REQUEST:
            return first
        writer.write(b"N" if self._tls is None else b"S")
        await writer.drain()
        if self._tls is not None:
            await writer.start_tls(self._tls)
        return b""

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, moment: list[Cut]) -> None:
        while data := await reader.read(65536):
            if self.cuts and self.marker and self.marker in data:
                moment.append(self.cuts.pop(0))
            if moment == [Cut.BEFORE]:
                return
            writer.write(data)
            await writer.drain()
            if moment == [Cut.SENT]:
                return

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, moment: list[Cut]) -> None:
        while data := await reader.read(65536):
            if moment and _READY in data:
                return
            writer.write(data)
            await writer.drain()
