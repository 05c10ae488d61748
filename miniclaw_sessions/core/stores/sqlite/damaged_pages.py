"""Reading entries around damaged pages of a database: one row at a time, so that only the rows on them are lost.

SQLite aborts a whole query at the first damaged page. Here the index gives the position of each entry in the log, and
each is read by itself; an entry that cannot be read is returned as `damaged`.
"""

from __future__ import annotations

import sqlite3

from miniclaw_sessions.core.stores.base import StoredEntry, damaged
from miniclaw_sessions.core.stores.sql.checksums import entry_of_row
from miniclaw_sessions.core.stores.sql.failures import is_damage

_PLACES = """
SELECT sequence, position FROM places WHERE session = :session AND sequence > :after AND typeof(sequence) = 'integer'
UNION ALL SELECT sequence, position FROM entries
WHERE position > (SELECT up_to FROM placed) AND session = :session AND sequence > :after
AND typeof(sequence) = 'integer'
ORDER BY 1
"""
_ROW = "SELECT * FROM entries WHERE position = ?"  # older versions have fewer columns


def read_row_by_row(
    connection: sqlite3.Connection, session_id: str, *, after: int = 0, limit: int | None = None, newest: bool = False
) -> list[StoredEntry]:
    """The entries after a sequence, oldest first. With `newest`, the limit leaves out the oldest ones.

    Raises:
        sqlite3.Error: the index is damaged too, or the database cannot be read at all.
    """
    row = connection.execute("SELECT id FROM sessions WHERE session_id = ?", (session_id,)).fetchone()
    if row is None:
        return []
    rest = "" if limit is None else f" {'DESC' if newest else 'ASC'} LIMIT {limit:d}"
    places = connection.execute(_PLACES + rest, {"session": row[0], "after": after}).fetchall()
    return [_entry(connection, sequence, position) for sequence, position in sorted(places)]


def _entry(connection: sqlite3.Connection, sequence: int, position: int) -> StoredEntry:
    try:
        row = connection.execute(_ROW, (position,)).fetchone()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if not is_damage(error):
            raise
        row = None
    if row is None:  # the index lists it
        return damaged(StoredEntry(sequence, f"damaged-{sequence}", b""))
    _, session, _, entry_id, encoded, key, checksum = (*row, None, None)[:7]
    return entry_of_row(sequence, entry_id, encoded, key, checksum, session)
