"""Sessions that are made of something else: another program's file, our own export, the archive."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager.reader import SessionReader
from miniclaw_sessions.core.manager.registry import SessionRegistry
from miniclaw_sessions.core.manager.source_file import source_file
from miniclaw_sessions.core.persistence.archive import Archive, followed_place, time_of
from miniclaw_sessions.core.persistence.recovery import Progress
from miniclaw_sessions.core.persistence.storage import Storage
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.encryption import DamagedSeal
from miniclaw_sessions.errors import ImportRefused, InvalidKey, NotArchived, SessionExists, SessionNotFound
from miniclaw_sessions.log import get_logger

if TYPE_CHECKING:
    from miniclaw_sessions.files.formats.codec import Format
    from miniclaw_sessions.files.transfer.importing import Import, ImportReport, KnownEntries

log = get_logger(__name__)

_DOUBT_S = 2.0
"""By so much may a file's time be wrong beside the time of an archived session: a kernel dates files by its last tick,
and some file systems by whole seconds. Within it is compared how far the file was read."""

_MOST_KNOWN = 64
"""Of so many sessions that files are added to it is remembered where their entries stand."""


class SessionMaker(SessionReader):
    """A half of the manager."""

    clock: Clock
    _registry: SessionRegistry
    _archive: Archive
    _storage: Storage
    settings: SessionSettings
    _known_entries: dict[str, KnownEntries]

    @abstractmethod
    def _require_open(self) -> None:
        """Raise ManagerClosed unless it is open."""

    @abstractmethod
    async def _missing(self, session_id: str) -> SessionNotFound:
        """What to raise of a session that there is not."""

    @abstractmethod
    def _progress(self, progress: Progress) -> None:
        """Something advanced."""

    async def import_file(
        self,
        path: str | Path,
        *,
        key: SessionKey | None = None,
        form: Format | None = None,
        dry_run: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ImportReport:
        """Make a session of another program's file, or of our own export. The file is only read.

        It is streamed: it may be larger than the memory. Until the session is complete nobody sees it, and a crash
        leaves nothing of it.

        Args:
            path: the file.
            key: the new session's key; by default what the file says, or else `import` and the file's own id.
            form: its format (`formats.registry`); by default it is recognized.
            dry_run: only read it, and report.
            on_progress: told how many bytes are done; by default the manager's own.

        Raises:
            ImportRefused: it is not a session in a known format, or cannot be read; it was not touched.
            SessionExists, SessionLimit, StoreError: the session could not be made; nothing of it is left.
        """
        async with source_file(path) as file:
            return await self.import_stream(
                file.chunks,
                name=file.name,
                key=key,
                form=form,
                dry_run=dry_run,
                on_progress=on_progress,
                size=file.size,
            )

    async def import_stream(  # noqa: PLR0913 - each can be left out
        self,
        chunks: AsyncIterator[bytes],
        *,
        name: str,
        key: SessionKey | None = None,
        form: Format | None = None,
        dry_run: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
        size: int | None = None,
        check: Callable[[SessionKey], None] = lambda _: None,
        update: bool = False,
        place: Mapping[str, Any] | None = None,
        is_archived: bool = False,
    ) -> ImportReport:
        """`import_file` for what comes in pieces: `name` stands for the file's, `size` is in bytes.

        `check` is given the key of what the file is to become, before anything is looked up or made; it may raise. With
        `update`, a session that was made of this file before gets what it lacks of it (`Import.add_to`), and `place` is
        kept with a session that keeps up with a file: one that was deleted is not made again for that; one that has
        expired comes back, if `place` says that the file was `modified` (nanoseconds since 1970) since then.
        `is_archived`: see `Import`. Raises as `import_file`, and SessionNotFound of one that stays away.
        """
        from miniclaw_sessions.files.transfer.importing import Import  # noqa: PLC0415 - loads every format

        self._require_open()
        progress = on_progress or self._progress
        transfer = Import(
            chunks,
            name=name,
            form=form,
            clock=self.clock,
            on_progress=progress,
            size=size,
            dry_run=dry_run,
            place=place,
            is_archived=is_archived,
        )
        async with transfer:
            key, report = await transfer.begin(key), transfer.report
            check(key)
            if dry_run:
                await transfer.only_read()
                if await self._registry.exists(report.session_id):
                    raise SessionExists(
                        f"session {report.session_id!r} exists already; delete it first, or choose another name"
                    )
                return report
            if place is not None:
                await self._restore_if_behind(key, place)
            if update and await self._registry.exists(report.session_id):
                await self._add_to(await self.find(report.session_id), transfer)
            else:
                if transfer.is_part or (place is not None and await self._storage.was_followed(report.session_id)):
                    raise await self._missing(report.session_id)
                await self._make(key, transfer)
            if place is not None:
                await self._storage.note_followed(report.session_id)
        return report

    async def _make(self, key: SessionKey, transfer: Import) -> None:
        async with self._registry.new_journal(key, purpose="import", created_at=transfer.created_at) as journal:
            await transfer.store(Session.of(journal))
        report = transfer.report
        counts = {"entries": report.entries, "repaired": report.repaired, "set_aside": report.set_aside}
        log.info("imported", action="session.imported", session_id=report.session_id, **counts)

    async def _restore_if_behind(self, key: SessionKey, place: Mapping[str, Any]) -> None:
        """A followed session that has expired goes on where it ended, if its program has written since."""
        if not self.settings.restore_archived or await self._registry.exists(key.session_id):
            return
        name, written_at = await self._archive.newest(key.session_id), place.get("modified")
        expired_at = None if name is None else time_of(name)
        if name is None or expired_at is None or not isinstance(written_at, int):
            return
        age_s = expired_at.timestamp() - written_at / 1e9
        if age_s > _DOUBT_S or (age_s > -_DOUBT_S and not await self._is_ahead(place, name)):
            return
        await self._restore_if_archived(key)

    async def _is_ahead(self, place: Mapping[str, Any], name: str) -> bool:
        """Whether a file was read at another place now than when its session was archived."""
        try:
            kept = await followed_place(self._archive, name)
        except DamagedSeal:
            return False  # nothing could be restored of it
        return not isinstance(kept, dict) or any(kept.get(what) != place.get(what) for what in ("bytes", "modified"))

    async def _add_to(self, session: Session, transfer: Import) -> None:
        if not transfer.is_of(session):
            raise SessionExists(
                f"session {session.session_id!r} exists already, and was not made of this file; choose another name"
            )
        incarnation = session.journal.incarnation
        known = await transfer.add_to(session, self._known_entries.pop(incarnation, None))
        self._known_entries[incarnation] = known  # the last one: it was used last
        if len(self._known_entries) > _MOST_KNOWN:
            del self._known_entries[next(iter(self._known_entries))]

    async def fork_from(self, path: str | Path, *, key: SessionKey | None = None) -> Session:
        """A session made of a file's history, in the words of document 003. Raises as `import_file`."""
        return await self.find((await self.import_file(path, key=key)).session_id)

    async def restore(self, session_id: str) -> Session:
        """Bring an expired session back from the archive, whole, under its old key; its time to live starts again.

        Raises:
            NotArchived: the archive has no such session.
            SessionExists: there is a session of this id already; rename or delete that first.
            ImportRefused, DamagedSeal, WrongKey: the archived file is damaged or another key's; it stays.
            SessionLimit, StoreError: the session could not be made; the archived file stays.
        """
        from miniclaw_sessions.files.formats.entry_line import ENTRY_LINE  # noqa: PLC0415 - only restoring needs it

        self._require_open()
        file = await self._archive.newest(session_id)
        if file is None:
            raise NotArchived(session_id)
        try:
            key = SessionKey.parse(session_id)
        except InvalidKey:
            key = None  # it is shortened: the file's first line tells it
        report = await self.import_stream(
            self._archive.read(file), name=session_id, key=key, form=ENTRY_LINE, is_archived=True
        )
        await self._archive.delete(file)
        log.info("restored from the archive", action="session.restored", session_id=report.session_id)
        return await self.find(report.session_id)

    async def _restore_if_archived(self, key: SessionKey) -> None:
        """A chat that speaks again after it has expired goes on where it ended."""
        if await self._archive.has(key.session_id):
            with suppress(SessionExists, NotArchived):  # somebody else is at it
                try:
                    await self.restore(key.session_id)
                except (ImportRefused, DamagedSeal) as error:
                    sentence = "an archived session is damaged; it stays in the archive, and the chat begins anew"
                    log.error(sentence, action="session.not_restored", session_id=key.session_id, error=str(error))
