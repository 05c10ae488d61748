"""The statements that search a server's database, and extend its index.

The index needs no extension, trigger or function of the server: the client computes the numbers of an entry, and the
server keeps them in an index of arrays. The first gateway that comes indexes an entry: gateways lock the row of
`searched`, and a deletion waits for it, so that nothing of a deleted session is added afterwards. Appends do not lock
that row; only the first indexing of a session locks the session's own row.
"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import BigInteger, DateTime, Float, Integer, Text, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine

from miniclaw_sessions.core.stores.postgresql.statements import Statement, compiled

_TYPES: dict[str, TypeEngine[Any]] = {
    **{name: ARRAY(Text()) for name in ("session_ids", "numbers_of")},
    **{name: ARRAY(BigInteger()) for name in ("sequences", "ends")},
    "numbers": ARRAY(Integer()),
    "moments": ARRAY(DateTime(timezone=True)),
    **{name: DateTime(timezone=True) for name in ("after", "before", "below")},
    **{name: BigInteger() for name in ("limit", "below_sequence", "most_bytes")},
    "below_session": Text(),
    "seconds": Float(),
}


def _statement(words: str) -> Statement:
    bound = [bindparam(name, type_=kind) for name, kind in _TYPES.items() if re.search(rf":{name}\b", words)]
    return compiled(text(words).bindparams(*bound))


# --- bringing it on --------------------------------------------------------------------------------------------------

BEHIND = _statement(
    """
    SELECT s.session_id, s.last_sequence - coalesce(i.sequence, 0)
    FROM sessions AS s LEFT JOIN searched AS i ON i.session_id = s.session_id
    WHERE s.used_at > now() - :seconds * INTERVAL '1 second' AND s.last_sequence > coalesce(i.sequence, 0)
    ORDER BY s.used_at DESC, s.session_id DESC LIMIT :limit
    """
)
"""Recently used sessions with entries that are not indexed, and the number of these.

No index is used for a comparison with `clock_timestamp()`: each look would read every session.
"""

BEGIN = _statement(
    """
    INSERT INTO searched (session_id, sequence)
    SELECT s.session_id, 0 FROM sessions AS s
    WHERE s.session_id = ANY (:session_ids)
        AND NOT EXISTS (SELECT 1 FROM searched AS i WHERE i.session_id = s.session_id)
    ORDER BY s.session_id FOR KEY SHARE OF s SKIP LOCKED
    ON CONFLICT DO NOTHING
    """
)
"""Begin to index sessions that exist and are not locked at this moment."""

LOCKED = _statement(
    """
    SELECT session_id, sequence FROM searched WHERE session_id = ANY (:session_ids)
    ORDER BY session_id FOR UPDATE SKIP LOCKED
    """
)
"""The sequences up to which sessions are indexed, without sessions that another process is indexing; locks the rows."""

LACKING = _statement(
    """
    SELECT * FROM (
        SELECT *, sum(octet_length(encoded)) OVER (ORDER BY session_id, sequence) - octet_length(encoded) AS before
        FROM (
            SELECT e.session_id, e.sequence, e.entry_id, e.encoded, e.idempotency_key, e.checksum, s.channel, s.chat_id
            FROM unnest(:session_ids, :ends) AS w (session_id, indexed)
            JOIN sessions AS s ON s.session_id = w.session_id
            JOIN entries AS e ON e.session_id = w.session_id AND e.sequence > w.indexed
            ORDER BY e.session_id, e.sequence LIMIT :limit
        ) AS lacking
    ) AS measured WHERE before < :most_bytes ORDER BY session_id, sequence
    """
)
"""Some of the entries of sessions behind a sequence in each."""

ADD = _statement(
    """
    INSERT INTO search (session_id, sequence, said_at, numbers)
    SELECT session_id, sequence, said_at, CAST(numbers AS int4[])
    FROM unnest(:session_ids, :sequences, :moments, :numbers_of) AS u (session_id, sequence, said_at, numbers)
    ON CONFLICT DO NOTHING
    """
)

MOVE = _statement(
    """
    UPDATE searched AS i SET sequence = w.sequence
    FROM unnest(:session_ids, :ends) AS w (session_id, sequence) WHERE i.session_id = w.session_id
    """
)

AGAIN = _statement("UPDATE searched SET sequence = 0 WHERE session_id = ANY (:session_ids)")
"""Index a session again, with entries that were damaged before."""

DROP = (_statement("DELETE FROM searched"), _statement("DELETE FROM search"))


def array(numbers: list[int]) -> str:
    """An array as text: arrays of different lengths cannot be sent in one array."""
    return f"{{{str(numbers)[1:-1]}}}"


# --- searching -------------------------------------------------------------------------------------------------------


def search(*, numbers: bool, sessions: bool) -> Statement:
    """The newest entries below a position that may match.

    Args:
        numbers: only entries with given numbers.
        sessions: only entries of given sessions.
    """
    parts = ["(r.said_at, r.session_id, r.sequence) < (:below, :below_session, :below_sequence)"]
    parts += ["r.said_at >= :after AND r.said_at < :before"]
    parts += ["r.numbers @> :numbers"] if numbers else []
    parts += ["r.session_id = ANY (:session_ids)"] if sessions else []
    return _statement(
        f"""
        SELECT r.said_at, r.session_id, r.sequence, e.entry_id, e.encoded, e.idempotency_key, e.checksum,
            s.channel, s.chat_id
        FROM (
            SELECT r.said_at, r.session_id, r.sequence FROM search AS r WHERE {" AND ".join(parts)}
            ORDER BY r.said_at DESC, r.session_id DESC, r.sequence DESC LIMIT :limit
        ) AS r
        JOIN sessions AS s ON s.session_id = r.session_id
        JOIN entries AS e ON e.session_id = r.session_id AND e.sequence = r.sequence
        ORDER BY r.said_at DESC, r.session_id DESC, r.sequence DESC
        """  # noqa: S608 - nothing in it comes from outside
    )


_BOTH = (False, True)
SEARCH = {(one, other): search(numbers=one, sessions=other) for one in _BOTH for other in _BOTH}
