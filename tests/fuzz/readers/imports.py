"""Session files of every format, on the way that an import takes them: in, out again in two formats, and in again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar, Self
from zlib import crc32

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.formats.codec import Format
from miniclaw_sessions.files.formats.entry_line import ENTRY_LINE
from miniclaw_sessions.files.formats.registry import all_formats
from miniclaw_sessions.files.transfer.exporting import export_session
from miniclaw_sessions.files.transfer.importing import import_stream
from miniclaw_sessions.files.transfer.incoming import ImportReport
from tests.fuzz.reader import SECRET, Reader, refused
from tests.fuzz.seeds import foreign_files
from tests.legality import is_legal

READABLE = [form for form in all_formats() if form.is_read]
WRITABLE = [form for form in all_formats() if form.is_written]

_NEIGHBOUR = "neighbour"
_COPY = SessionKey("copy", "1")


class ImportReader(Reader):
    """A file of some format; most are recognized, some are read as another format than they are."""

    name: ClassVar[str] = "imports"
    share: ClassVar[int] = 14_000

    async def __aenter__(self) -> Self:
        self.seeds = foreign_files()
        settings = SessionSettings(store="memory:")
        # the machine's clock: a FakeClock counts its ids, and the files that are damaged have such ids
        self._manager = await SessionManager(self.scratch / "imports", settings=settings).__aenter__()
        neighbour = await self._manager.get_or_create(_NEIGHBOUR, "1")
        await neighbour.add_message(Message.user("untouched"))
        return self

    async def __aexit__(self, *_: object) -> None:
        neighbour = await self._manager.get(_NEIGHBOUR, "1")
        assert [message.text for message in neighbour.messages()] == ["untouched"]
        await self._manager.__aexit__(None, None, None)

    async def read(self, case: bytes) -> bool:
        choice = crc32(case)  # the same for the same case
        form = READABLE[choice % len(READABLE)] if choice % 4 == 0 else None
        try:
            report = await self._import(case, piece=1 + choice % 5_000, form=form)
        except ImportRefused as error:
            assert self._manager.statistics().sessions == 1
            return refused(error)
        assert all(SECRET not in finding.text for finding in report.findings)
        try:
            session = await self._manager.find(report.session_id)
            assert is_legal(build_context(session.messages())) == []
            await self._export(report.session_id, WRITABLE[choice % len(WRITABLE)])
            ours = await self._export(report.session_id, ENTRY_LINE)
            again = await self._import(ours, piece=4096, form=ENTRY_LINE, key=_COPY)
            assert again.set_aside == 0, again.findings
            copy = await self._manager.find(again.session_id)
            assert copy.messages() == session.messages()
        finally:
            await self._manager.delete(report.session_id)
            await self._manager.delete(_COPY.session_id)
        return True

    async def _import(
        self, data: bytes, *, piece: int, form: Format | None, key: SessionKey | None = None
    ) -> ImportReport:
        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(data), piece):
                yield data[start : start + piece]

        return await import_stream(self._manager, pieces(), name="case", form=form, key=key)

    async def _export(self, session_id: str, form: Format) -> bytes:
        return b"".join([chunk async for chunk in export_session(self._manager, session_id, form)])
