"""Every place where bytes from outside come in."""

from __future__ import annotations

from tests.fuzz.reader import Reader
from tests.fuzz.readers.arguments import ArgumentReader
from tests.fuzz.readers.files import DatabaseReader, RecoveryReader, TranscriptReader
from tests.fuzz.readers.http import RawRequestReader, RequestReader
from tests.fuzz.readers.imports import ImportReader
from tests.fuzz.readers.lock import LockReader, QuarantineReader
from tests.fuzz.readers.settings import EnvironmentReader, FlagReader, TomlReader
from tests.fuzz.readers.values import EntryReader, SnapshotReader

READERS: dict[str, type[Reader]] = {
    reader.name: reader
    for reader in (
        EntryReader,
        SnapshotReader,
        RecoveryReader,
        TranscriptReader,
        DatabaseReader,
        LockReader,
        QuarantineReader,
        ImportReader,
        RequestReader,
        RawRequestReader,
        TomlReader,
        EnvironmentReader,
        FlagReader,
        ArgumentReader,
    )
}
