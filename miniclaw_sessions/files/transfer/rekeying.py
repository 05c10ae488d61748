"""Encrypting a workspace, changing its key, and decrypting it, while no other process has it open.

Everything is copied, sealed with the new key, before anything is changed. Then the marker says that the new files take
the places of the old ones; until they have, the workspace cannot be opened. After an interruption it can be run again,
with the same keys or others.

The disk must have room for the workspace twice. It may keep the old bytes of what was deleted until it uses their place
again, and a flash drive for longer: only encryption from the beginning, or of the whole disk, prevents that.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec
from anyio import CancelScope

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.persistence.marker import DamagedMarker, Marker, read_marker, remove_marker, write_marker
from miniclaw_sessions.core.persistence.own_task import in_own_task
from miniclaw_sessions.core.stores import open_store, store_place, stores_in
from miniclaw_sessions.core.stores.base import StoredEntry, mark_damaged
from miniclaw_sessions.core.stores.encrypted import open_entry
from miniclaw_sessions.core.stores.reading import Transcripts
from miniclaw_sessions.encryption import KeyRing, is_sealed
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.files.transfer.copying import Copy, Report, held, in_thread
from miniclaw_sessions.files.transfer.files import Sealing

BESIDE = ".rekeyed"
"""What follows the name of the store, in the name of the directory in which its copy is; and where the files' is."""

SWAPPING = "putting the new files in their places"
"""What the marker says of a rekey that is under way."""


class RekeyReport(msgspec.Struct, kw_only=True):
    """What was changed.

    Attributes:
        key: the id of the key that everything is encrypted with; None: nothing is.
        entries: how many entries of the store.
        snapshots: how many session files.
        files: how many archives, and files that were set aside.
        damaged: what did not open, one sentence each; it is kept, and stays damaged.
        left: other stores in the workspace, such as one from before a migration: they are as they were.
    """

    key: str | None = None
    entries: int = 0
    snapshots: int = 0
    files: int = 0
    damaged: list[str] = msgspec.field(default_factory=list)
    left: list[str] = msgspec.field(default_factory=list)


class Rekey:
    """One run of it."""

    def __init__(
        self, workspace: Path, settings: SessionSettings, keys: KeyRing, *, decrypt: bool, on_progress: Report
    ) -> None:
        """Nothing is touched yet.

        Args:
            workspace: the directory.
            settings: which store it has.
            keys: all that are needed to read what is there; the first one encrypts.
            decrypt: leave nothing encrypted instead.
            on_progress: gets the progress, on the event loop.
        """
        self._workspace = workspace
        self._url = settings.store
        self._keys = keys
        self._sealing = Sealing(keys, None if decrypt else keys)
        self._on_progress = on_progress
        self._place = place = store_place(settings.store, workspace)
        beside = place if place.path is None else place.moved(place.path.with_name(place.path.name + BESIDE))
        self._copy = Copy(workspace / BESIDE, beside)

    @in_own_task
    async def run(self) -> RekeyReport:
        """Change everything that is not as it should be.

        Raises:
            NotAWorkspace: the directory is another program's; it was not touched.
            DirectoryInUse: a process has the workspace.
            WrongKey: something needs a key that is not held; nothing was changed.
            StoreError: the store cannot be read or written.
            ConfigError: the workspace cannot be changed, has its transcripts in another store than was said, or some of
                them are still to be salvaged.
        """
        if self._place.durable and self._place.path is None:
            raise ConfigError(f"{self._url} has no files that could be rekeyed; `migrate --encrypt` to a new one")
        try:
            async with held(self._workspace, self._url, create=True):
                await in_thread(self._finish_swap)
                return await self._change()
        except OSError as error:
            raise ConfigError(
                f"the workspace {self._workspace} cannot be changed: {error.strerror or error}. Nothing is lost; mend "
                "the directory or the disk, and run this again"
            ) from error

    def _finish_swap(self) -> None:
        """What an earlier run had decided is done first: the workspace may be in two pieces."""
        marker = None
        with suppress(DamagedMarker):  # nothing but a person's hand damages it
            marker = read_marker(self._workspace)
        if marker is not None and marker.rekeying == SWAPPING:
            self._copy.take_places(self._workspace, self._place)
        self._copy.remove()

    async def _change(self) -> RekeyReport:
        key = None if self._sealing.seals is None else self._keys.ids[0]
        others = [other for other in await in_thread(stores_in, self._workspace) if other.path != self._place.path]
        wrong, copied = await self._make_copy(), self._copy.report
        report = RekeyReport(
            key=key,
            entries=wrong,
            snapshots=copied.resealed_snapshots,
            files=copied.resealed_files,
            damaged=copied.problems,
            left=[str(other.path) for other in others],
        )
        if report.entries or report.snapshots or report.files:
            await in_thread(write_marker, self._workspace, Marker(key=self._keys.ids[0], rekeying=SWAPPING))
            self._on_progress(SWAPPING, 0, None)
            await in_thread(self._copy.take_places, self._workspace, self._place)
        else:
            await in_thread(self._copy.remove)
        if key is None:
            await in_thread(remove_marker, self._workspace)
        else:
            await in_thread(write_marker, self._workspace, Marker(key=key))
        return report

    async def _make_copy(self) -> int:
        """Copy everything, sealed as it should be; how many entries were not. If that fails, nothing is left of it."""
        torn, sealing = self._place.torn, self._sealing
        try:
            async with AsyncExitStack() as stack:
                source = None
                if await in_thread(self._place.files):
                    store = await stack.enter_async_context(open_store(self._place, self._workspace))
                    await store.drop_index()  # it has in plain words what must be sealed
                    source = Opened(store, sealing)
                await self._copy.make(self._workspace, source, torn, sealing=sealing, on_progress=self._on_progress)
                return 0 if source is None else source.wrong
        except BaseException:
            with CancelScope(shield=True):
                await in_thread(self._copy.remove)
            raise


class Opened:
    """A store whose entries come out opened, whether they were sealed or not.

    Attributes:
        wrong: how many of the entries that were read are not sealed as they should be.
    """

    def __init__(self, store: Transcripts, sealing: Sealing) -> None:
        self.wrong = 0
        self.heads = store.heads
        self.session_ids = store.session_ids
        self._store = store
        self._sealing = sealing

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """A page of entries, opened."""
        opens, seals = self._sealing
        page: list[StoredEntry] = []
        for stored in await self._store.read(session_id, after=after, limit=limit):
            opened = stored
            if is_sealed(stored.encoded):
                opened = open_entry(opens, session_id, stored)
                is_shut = opened.encoded == mark_damaged(stored.encoded)
                self.wrong += seals is None or is_shut or not seals.is_current(stored.encoded)
            else:
                self.wrong += seals is not None
            page.append(opened)
        return page
