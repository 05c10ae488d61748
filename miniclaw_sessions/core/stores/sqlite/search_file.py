"""The search index of a SQLite store: a separate file next to the database, which is rebuilt whenever it may be wrong.

The store works without it. So the database stays small, its commits do not touch the index, and damage, another
version, a database that was restored from a backup, or a deletion that must leave no trace are all handled by a
rebuild. The index holds no text, only the trigrams (`trigrams`) at each position of the log. `covered` has the indexed
positions: the newest are indexed first, then older ones, backwards. Deleted entries are removed; SQLite may keep a
trace of them in the file until it merges its segments, or the index is rebuilt.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from miniclaw_sessions.core.stores.files import identity
from miniclaw_sessions.core.stores.sql.failures import is_damage, store_error
from miniclaw_sessions.core.stores.sqlite.files import connect, create_file, database_files
from miniclaw_sessions.errors import ConfigError, StoreError, StoreUnavailable
from miniclaw_sessions.log import get_logger

FORMAT = 3
"""The version of the format; an index with another one is rebuilt."""

_MAKE = (
    # without the texts, and without the places of trigrams in a text: an entry that may match is read anyhow
    "CREATE VIRTUAL TABLE said USING fts5(text, tokenize = 'trigram', content = '', detail = 'none', columnsize = 0)",
    "CREATE TABLE covered (newest INTEGER NOT NULL, oldest INTEGER NOT NULL)",
    "CREATE TABLE anchors (position INTEGER PRIMARY KEY, entry_id TEXT NOT NULL)",
    "CREATE TABLE leaving (session_id TEXT PRIMARY KEY)",
    "INSERT INTO covered VALUES (:end, :end)",
    f"PRAGMA user_version = {FORMAT}",
)
_FORGET_ANCHORS = (
    "DELETE FROM anchors WHERE position < "
    "(SELECT min(position) FROM (SELECT position FROM anchors ORDER BY position DESC LIMIT 64))"
)
_END = "SELECT max((SELECT up_to FROM placed), (SELECT coalesce(max(position), 0) FROM entries))"

log = get_logger(__name__)


class Covered(NamedTuple):
    """The indexed positions: those after `oldest` up to `newest`."""

    newest: int
    oldest: int


NOTHING = Covered(0, 0)


class Indexed(NamedTuple):
    """The text of an entry to index; None: the entry has nothing to find."""

    position: int
    entry_id: str
    text: str | None


class Lacking(NamedTuple):
    """Entries to add to the index, in any order, and the positions that it covers before and after."""

    before: Covered
    entries: Sequence[Indexed]
    after: Covered
    deletions: int


class SearchFile:
    """The index of one database. Its calls block; any thread may make them.

    Opened read only, it is used as far as it goes, and neither created nor extended.

    Attributes:
        deletions: number of removals so far; entries that were read before a removal are not added after it.
    """

    def __init__(self, database: Path, *, read_only: bool = False) -> None:
        self.path = database.with_name(f"{database.name}-search")
        self._read_only = read_only
        self._lock = Lock()
        self._writer: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self.deletions = 0

    def __repr__(self) -> str:
        return f"<SearchFile {self.path}>"

    def covered(self, database: sqlite3.Connection) -> Covered:
        """The indexed positions, after a check that the index belongs to this database; creates a missing index.

        Raises:
            StoreUnavailable, StoreFull: it cannot be written now.
        """
        with self._lock, self._failing():
            if self._writer is not None and not self._is_in_place():
                self._close()
            if self._writer is None:
                if not self._opens(database):
                    self._discard()
                    if not self._opens(database):
                        raise sqlite3.DatabaseError("a new search index contradicts its database")
                self._identity = identity(self.path)
            assert self._writer is not None  # noqa: S101 - for the type checker
            return _covered(self._writer)

    def add(self, lacking: Lacking) -> int:
        """Index entries, unless the index changed meanwhile. Returns their number in both cases.

        Raises:
            StoreUnavailable, StoreFull: it cannot be written now.
        """
        before, entries, after, deletions = lacking
        with self._lock, self._failing():
            is_old = before == after or deletions != self.deletions
            if self._writer is None or not self._is_in_place() or is_old:
                return len(entries)
            with self._writer as writer:
                writer.execute("BEGIN IMMEDIATE")
                if _covered(writer) == before:
                    rows = sorted((entry.position, entry.text) for entry in entries if entry.text)
                    writer.executemany("INSERT INTO said (rowid, text) VALUES (?, ?)", rows)
                    writer.execute("UPDATE covered SET newest = ?, oldest = ?", after)
                    if entries:
                        position, entry_id, _ = max(entries)
                        writer.execute("INSERT OR REPLACE INTO anchors VALUES (?, ?)", (position, entry_id))
                        writer.execute(_FORGET_ANCHORS)
        return len(entries)

    def begin_to_take_out(self, session_id: str) -> None:
        """Note that a session is about to be deleted. If a later opening finds the note, it rebuilds the index.

        Raises:
            StoreUnavailable, StoreFull: it cannot be written now.
        """
        with self._lock, self._failing():
            if self._writer is not None:
                self._writer.execute("INSERT OR IGNORE INTO leaving VALUES (?)", (session_id,))

    def take_out(self, session_id: str, entries: Sequence[Indexed] | None) -> None:
        """Remove the entries of a deleted session; if that fails, the index is discarded.

        Args:
            session_id: the session.
            entries: in any order, with their indexed texts; None: these are not known.
        """
        with self._lock, suppress(OSError, StoreError):
            self.deletions += 1
            if entries is None:
                self._discard()
            elif self._writer is not None and self._is_in_place():
                try:
                    with self._writer as writer:
                        writer.execute("BEGIN IMMEDIATE")
                        newest, oldest = _covered(writer)
                        indexed = [one for one in entries if one.text and oldest < one.position <= newest]
                        writer.executemany(
                            "INSERT INTO said (said, rowid, text) VALUES ('delete', ?, ?)",
                            [(one.position, one.text) for one in sorted(indexed)],
                        )
                        writer.execute("DELETE FROM leaving WHERE session_id = ?", (session_id,))
                except sqlite3.Error:
                    self._discard()

    @contextmanager
    def reading(self, database: sqlite3.Connection) -> Iterator[sqlite3.Connection | None]:
        """A connection to the index, or None if it cannot be used now."""
        with ExitStack() as stack:
            index: sqlite3.Connection | None = None
            try:
                if self._writer is None and not self._read_only:
                    self.covered(database)
                index = stack.enter_context(closing(connect(self.path, writing=False)))
                index.execute("BEGIN")
                if self._read_only and not _is_right(database, index):
                    index = None
            except (StoreError, sqlite3.Error):
                index = None
            yield index

    def check(self) -> None:
        """Check the whole index, and discard it if it is damaged: it would miss entries."""
        with self._lock, suppress(StoreError), self._failing():
            if self.path.exists():
                with closing(connect(self.path, writing=True)) as index:
                    index.execute("INSERT INTO said (said) VALUES ('integrity-check')")

    def purge(self) -> None:
        """Leave no trace of removed entries: rewrite the rest, which takes about 10 us for each entry."""
        with self._lock, suppress(OSError, StoreError):
            if self._writer is None or not self._is_in_place():
                self._discard()
                return
            try:
                self._writer.execute("INSERT INTO said (said) VALUES ('optimize')")
                (is_busy, _, _) = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.Error:
                is_busy = True
            if is_busy:
                self._discard()

    def remove(self) -> None:
        """Remove the files of the index. It is rebuilt when it is needed.

        Raises:
            OSError: it cannot be removed.
        """
        with self._lock:
            self._discard()

    def close(self) -> None:
        """Close it."""
        with self._lock:
            self._close()

    def _opens(self, database: sqlite3.Connection) -> bool:
        """Open or create the index. Returns whether it seems sound and belongs to this database."""
        create_file(self.path)
        writer = connect(self.path, writing=True)
        try:
            writer.execute("PRAGMA synchronous = NORMAL")  # entries that a power cut takes are indexed again
            if not writer.execute("SELECT 1 FROM sqlite_master").fetchone():
                (end,) = database.execute(_END).fetchone()
                with writer:
                    writer.execute("BEGIN IMMEDIATE")
                    for statement in _MAKE:
                        writer.execute(statement, {"end": end} if ":end" in statement else {})
            elif not _is_right(database, writer):
                log.info("the search index is rebuilt: it is of another version or database", action="search.anew")
                writer.close()
                return False
        except BaseException:
            writer.close()
            raise
        self._writer = writer
        return True

    def _is_in_place(self) -> bool:
        """Whether the open file is still the one at its path."""
        return self._identity is not None and self._identity == identity(self.path)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Translate errors into those of the contract; discard a damaged index."""
        try:
            yield
        except ConfigError as error:
            raise StoreUnavailable(str(error)) from error
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            if is_damage(error):
                self._forget(error)
                raise StoreUnavailable(f"cannot use {self.path}: it was damaged, and is rebuilt") from error
            self._close()
            raise store_error(error, path=self.path, attempted="index") from error

    def met_damage(self, error: Exception) -> None:
        """Discard the index, because it is damaged."""
        if self._read_only:
            return
        with self._lock:
            self._forget(error)

    def _forget(self, error: Exception) -> None:
        log.warning("the search index is damaged and rebuilt", action="search.anew", error=str(error))
        with suppress(OSError):
            self._discard()

    def _discard(self) -> None:
        self._close()
        for file in database_files(self.path):
            file.unlink(missing_ok=True)

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(sqlite3.Error):
                writer.close()


def _covered(index: sqlite3.Connection) -> Covered:
    return Covered(*index.execute("SELECT newest, oldest FROM covered").fetchone())


def _is_right(database: sqlite3.Connection, index: sqlite3.Connection) -> bool:
    """Whether the index has this format, and the database has the last indexed entries at the same positions.

    Another database has other entries there. If all of them were deleted, that cannot be known, and the answer is no.
    """
    (version,), (end,) = index.execute("PRAGMA user_version").fetchone(), database.execute(_END).fetchone()
    if version != FORMAT or _covered(index).newest > end or index.execute("SELECT 1 FROM leaving").fetchone():
        return False
    anchors = index.execute("SELECT position, entry_id FROM anchors").fetchall()
    stored = [
        (found[0], entry_id)
        for position, entry_id in anchors
        if (found := database.execute("SELECT entry_id FROM entries WHERE position = ?", (position,)).fetchone())
    ]
    return all(found == entry_id for found, entry_id in stored) and (bool(stored) or not anchors)


# --- asking ----------------------------------------------------------------------------------------------------------


def positions_with(index: sqlite3.Connection, parts: Iterable[Sequence[str]], below: int, limit: int) -> list[int]:
    """The newest positions below `below` whose entries have at least one trigram of each part."""
    quoted = (['"' + trigram.replace('"', '""') + '"' for trigram in part] for part in parts)
    query = " AND ".join("(" + " OR ".join(part) + ")" for part in quoted)
    found = index.execute(
        "SELECT rowid FROM said WHERE said MATCH ? AND rowid < ? ORDER BY rowid DESC LIMIT ?", (query, below, limit)
    )
    return [position for (position,) in found]


def positions_beginning(index: sqlite3.Connection, term: str, below: int, limit: int) -> list[int]:
    """The newest positions below `below` whose entries have a trigram that begins with a term.

    The time grows with their number. A text that ends with the term has no such trigram.
    """
    index.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.occurrences USING fts5vocab(main, said, instance)")
    found = index.execute(
        "SELECT DISTINCT doc FROM temp.occurrences WHERE term >= ? AND term < ? AND doc < ? ORDER BY doc DESC LIMIT ?",
        (term, f"{term}\U0010ffff", below, limit),
    )
    return [position for (position,) in found]
