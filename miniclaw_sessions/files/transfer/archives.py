"""The archive on its way: from directory to directory, and to and from a database that several processes share.

The bytes stay what they are, unless they are to be sealed otherwise; a file that is there already is left as it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import orjson
from anyio import CancelScope

from miniclaw_sessions.core.persistence.archive import SUFFIX, session_of, write_archived_file
from miniclaw_sessions.core.persistence.marker import Marker, read_marker, write_marker
from miniclaw_sessions.core.persistence.mirrored import PROPERTY as MIRRORED
from miniclaw_sessions.core.persistence.mirrored import MirroredIds
from miniclaw_sessions.core.sharing.database import ENCRYPTION
from miniclaw_sessions.core.stores.shared_store import SharedStore
from miniclaw_sessions.disk import Directory
from miniclaw_sessions.errors import StoreCorrupt
from miniclaw_sessions.files.transfer.copying import in_thread
from miniclaw_sessions.files.transfer.files import Sealing, copy_files, files_in

ARCHIVE = "archive"
_PIECE_BYTES = 1 << 18

Beside = Path | SharedStore
"""Where it is: a workspace's directory, or a database that has everything in itself."""


async def copy_archive(source: Beside, target: Beside, sealing: Sealing | None, problems: list[str]) -> int:
    """Copy the archived sessions that the target lacks; how many.

    Args:
        source: what has them.
        target: what gets them.
        sealing: what they are to be sealed with; None: they stay as they are.
        problems: what does not open is added to it, one sentence each; it is kept.

    Raises:
        OSError, StoreError: they could not be read or written.
    """
    if isinstance(source, Path) and isinstance(target, Path):
        return await in_thread(_copy_files, source / ARCHIVE, target / ARCHIVE, sealing, problems)
    if isinstance(source, SharedStore) and isinstance(target, Path) and sealing is None:
        return await _to_files(source, target / ARCHIVE)
    if isinstance(source, Path) and isinstance(target, SharedStore) and sealing is None:
        return await _from_files(source / ARCHIVE, target)
    made = await in_thread(lambda: TemporaryDirectory(prefix="miniclaw-"))  # private
    try:
        between, is_read = Path(made.name), isinstance(source, SharedStore)
        await copy_archive(source, between, None if is_read else sealing, problems)
        return await copy_archive(between, target, sealing if is_read else None, problems)
    finally:
        with CancelScope(shield=True):
            await in_thread(made.cleanup)


def _copy_files(source: Path, target: Path, sealing: Sealing | None, problems: list[str]) -> int:
    names = files_in(source)
    if not names:
        return 0
    with Directory(source, is_ours=False) as here, Directory(target) as there:
        missing = sorted(set(names).difference(there.names()))
        copy_files(here, missing, there, sealing, problems)
    return len(missing)


async def _to_files(store: SharedStore, target: Path) -> int:
    names = await store.archived()
    missing = sorted(set(names).difference(await in_thread(files_in, target)))
    for name in missing:
        await write_archived_file(target, name, store.read_archived(session_of(name), name))
    return len(missing)


async def _from_files(source: Path, store: SharedStore) -> int:
    names = [name for name in await in_thread(files_in, source) if name.endswith(SUFFIX)]
    missing = sorted(set(names).difference(await store.archived()))
    for name in missing:
        await store.write_archived(session_of(name), name, _pieces(source / name))
    return len(missing)


async def copy_mirrored(source: Beside, target: Beside) -> None:
    """Copy the ids of sessions that mirror another program's, so that deleted ones are not made again there."""
    if isinstance(source, Path):
        mirrored = await in_thread(lambda: list(MirroredIds(source)))
    else:
        mirrored = [name.removeprefix(MIRRORED) for name in await source.properties(MIRRORED)]
    known = MirroredIds(target) if isinstance(target, Path) else None
    for session_id in mirrored:
        if known is not None:
            await in_thread(known.note, session_id)
        elif isinstance(target, SharedStore):
            await target.write_property(MIRRORED + session_id, b"true")


async def _pieces(file: Path) -> AsyncIterator[bytes]:
    with await in_thread(lambda: file.open("rb")) as data:
        while piece := await in_thread(data.read, _PIECE_BYTES):
            yield piece


# --- how it is encrypted ---------------------------------------------------------------------------------------------


async def marker_of(place: Beside) -> Marker | None:
    """What says how everything is encrypted; None: nothing does. One with an empty key says that nothing is.

    Raises:
        StoreError, ConfigError: it cannot be read.
    """
    if isinstance(place, Path):
        return await in_thread(read_marker, place)
    data = await place.read_property(ENCRYPTION)
    try:
        return None if data is None else msgspec.json.decode(data, type=Marker)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise StoreCorrupt(f"{place.place.shown} is damaged: it does not say whether it is encrypted") from None


async def write_marker_to(place: Beside, key: str) -> None:
    """Say with which key everything is encrypted, unless something is said already.

    Args:
        place: of what.
        key: its id; empty: nothing is encrypted, which a workspace says by saying nothing.
    """
    if isinstance(place, SharedStore):
        marker = orjson.dumps(Marker(key=key), default=msgspec.structs.asdict)
        await place.write_property(ENCRYPTION, marker)
    elif key and await marker_of(place) is None:
        await in_thread(write_marker, place, Marker(key=key))
