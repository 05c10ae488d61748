"""Finds the transcripts in a directory, and other files with a session's name. Everything here blocks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from miniclaw_sessions.core.protocol.keys import is_session_id
from miniclaw_sessions.core.stores.jsonl.failures import failing
from miniclaw_sessions.core.stores.jsonl.file import SUFFIX, Transcript, examine
from miniclaw_sessions.core.stores.jsonl.lines import NotOurs
from miniclaw_sessions.disk import Directory, NotRegular
from miniclaw_sessions.errors import ConfigError, SchemaTooNew, StoreCorrupt
from miniclaw_sessions.log import get_logger

log = get_logger(__name__)


class DirectoryContent(NamedTuple):
    """The content of a directory.

    Attributes:
        known: the transcripts, by session id.
        refused: files with a session's name that must be left alone, with the reasons.
    """

    known: dict[str, Transcript]
    refused: dict[str, str]


def recognize(path: Path) -> None:
    """Refuse to take over another program's directory.

    Raises:
        ConfigError: it holds other files.
    """
    names = os.listdir(path) if path.is_dir() else []
    if names and ".lock" not in names and not any(session_ids_of(names)):
        raise ConfigError(
            f"cannot open {path} as a store: it is neither empty nor a directory of transcripts; "
            "choose another one, or one that does not exist yet"
        )


def find_transcripts(directory: Directory) -> DirectoryContent:
    """Examine every file.

    Raises:
        SchemaTooNew: a newer version of this program wrote them.
        StoreCorrupt: the sessions of some files are not known.
        OSError: a file cannot be read; that does not mean that it is damaged or absent (rule R20).
    """
    names = directory.names()
    found = DirectoryContent({}, {})
    damaged: list[str] = []
    too_new: list[str] = []
    for session_id in session_ids_of(names):
        try:
            found.known[session_id] = examine(directory, session_id)
        except (NotRegular, NotOurs) as error:
            found.refused[session_id] = str(error)
        except StoreCorrupt as error:
            damaged.append(f"{session_id}{SUFFIX} is damaged: {error}")
        except SchemaTooNew as error:
            too_new.append(f"cannot open {directory.path / session_id}{SUFFIX}: {error}")
            found.refused[session_id] = str(error)
    # among files of this version, one of a newer version is damaged: it alone is refused
    if too_new and not found.known:
        raise SchemaTooNew(too_new[0])
    if damaged:
        more = f", and {len(damaged) - 1} more are" if len(damaged) > 1 else ""
        raise StoreCorrupt(f"cannot open {directory.path}: {damaged[0]}{more}; set it aside and open again")
    _report(found, names)
    return found


def damaged_files(path: Path) -> list[Path]:
    """The files that keep the store from opening because their sessions are not known.

    Raises:
        StoreUnavailable: the directory or a file cannot be read.
    """
    damaged = []
    if path.is_dir():
        with failing("read", path), Directory(path, is_ours=False) as directory:
            for session_id in session_ids_of(directory.names()):
                try:
                    examine(directory, session_id)
                except (NotRegular, NotOurs, SchemaTooNew):
                    continue
                except StoreCorrupt:
                    damaged.append(path / (session_id + SUFFIX))
    return damaged


def session_ids_of(names: Sequence[str]) -> Iterator[str]:
    """The session ids in file names."""
    for name in names:
        session_id = name.removesuffix(SUFFIX)
        if session_id != name and is_session_id(session_id):
            yield session_id


def _report(found: DirectoryContent, names: Sequence[str]) -> None:
    for session_id, transcript in found.known.items():
        if transcript.header_lost:
            log.error(
                "the first line of a transcript is damaged; its name and its entries identify its session",
                action="store.header_lost",
                session_id=session_id,
            )
    if ignored := [name for name in names if name.endswith(SUFFIX) and name.removesuffix(SUFFIX) not in found.known]:
        log.warning("not the files of sessions of ours; left alone", action="store.ignored", files=ignored)
