"""`encryption.json`: says that a workspace is encrypted, with which key, and whether a change of that is under way.

It is looked at before anything else, so that a wrong or missing key is reported before a file or the store is opened,
however many there are. It guards nothing by itself: without it, every file and entry still shows what it is.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import orjson

from miniclaw_sessions.core.stores.base import Store
from miniclaw_sessions.disk import Directory
from miniclaw_sessions.encryption import KeyRing, refuse_sealed
from miniclaw_sessions.errors import ConfigError, KeyNeeded, SchemaTooNew, WrongKey

NAME = "encryption.json"
VERSION = 1
RESTORING = ".restoring"
"""The directory in a workspace of an unfinished restore; until it is complete, the workspace is not opened."""

_MAX_BYTES = 4096


class Marker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the file says.

    Attributes:
        version: of its format.
        key: the id of the key that everything is encrypted with, or some of it while a rekey is under way.
        rekeying: how far a rekey has come that is not done; empty: none is under way.
    """

    version: int = VERSION
    key: str
    rekeying: str = ""


class DamagedMarker(ConfigError):
    """The file cannot be read as a marker."""


def read_marker(workspace: Path) -> Marker | None:
    """The marker of a workspace, or None when it has none.

    Raises:
        DamagedMarker: it is damaged.
        SchemaTooNew: a newer version wrote it.
        OSError: it cannot be read.
    """
    try:
        with Directory(workspace, is_ours=False) as directory:
            data = directory.read(NAME, limit=_MAX_BYTES, tighten=False)
    except FileNotFoundError:
        return None
    try:
        fields = msgspec.json.decode(data, type=dict[str, int | str])
        version = fields.get("version")
        if isinstance(version, int) and version > VERSION:
            raise SchemaTooNew(f"{workspace / NAME} was written by a newer version of miniclaw-sessions; install that")
        return msgspec.convert(fields, Marker)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise DamagedMarker(
            f"{workspace / NAME}, which says how the workspace is encrypted, is damaged. Nothing was changed: "
            "`miniclaw-sessions rekey` rewrites it"
        ) from None


def write_marker(workspace: Path, marker: Marker) -> None:
    """Write it, durably.

    Raises:
        OSError: it could not be written; the old one is there.
    """
    with Directory(workspace) as directory:
        failure = directory.replace([(NAME, lambda: orjson.dumps(marker, default=msgspec.structs.asdict))])[0]
    if failure is not None:
        raise failure


def remove_marker(workspace: Path) -> None:
    """Remove it, durably."""
    with Directory(workspace) as directory:
        directory.remove([NAME])


def check_marker(workspace: Path, keys: KeyRing | None) -> Marker | None:
    """Refuse to open a workspace with other keys than it needs, before anything in it is touched.

    Raises:
        WrongKey, KeyNeeded: it needs a key that is not held.
        ConfigError: a rekey is not done; or the marker is damaged.
        OSError: the marker cannot be read.
    """
    marker = read_marker(workspace) if workspace.is_dir() else None
    if (workspace / RESTORING / "backup.json").exists():
        raise ConfigError(
            f"a backup is being restored to {workspace}, and that was interrupted; run `miniclaw-sessions restore` "
            "again, which goes on from there"
        )
    if marker is None:
        return None
    if marker.rekeying:
        raise ConfigError(
            f"the workspace {workspace} is being rekeyed, and that was interrupted ({marker.rekeying}); run "
            "`miniclaw-sessions rekey` again, which goes on from there"
        )
    if keys is None:
        raise KeyNeeded(f"the workspace {workspace}")
    if marker.key not in keys.ids:
        raise WrongKey(f"the workspace {workspace}", marker.key, keys.ids)
    return marker


async def check_store(store: Store, keys: KeyRing | None) -> None:
    """Look at one entry of a store: it shows whether the store is encrypted, if no marker does.

    Args:
        store: the store; an `EncryptedStore` if there are keys, which refuses what is not encrypted with one of them.
        keys: the keys that are held.

    Raises:
        WrongKey, KeyNeeded, NotEncrypted: the store and the keys do not go together.
    """
    async for stored in store.heads():
        session_id = stored.head.session_id
        for entry in await store.read(session_id, limit=1):
            if keys is None:
                refuse_sealed(entry.encoded, f"entry {entry.sequence} of session {session_id}")
            return
