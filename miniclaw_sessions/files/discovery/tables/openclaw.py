"""openclaw's database (since 2026.8), which has the lines of pi's format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from miniclaw_sessions.files.discovery.database import (
    PAGE,
    Asked,
    Database,
    DatabaseSession,
    from_milliseconds,
    parsed_json,
    session_row,
)

_OPENCLAW_SESSIONS = """
SELECT g.id, g.events, e.created_at AS changed FROM
(SELECT session_id AS id, count(*) AS events, max(seq) AS last FROM transcript_events GROUP BY session_id) g
JOIN transcript_events e ON e.session_id = g.id AND e.seq = g.last ORDER BY g.id
"""
_OPENCLAW_PAGE = "SELECT seq FROM transcript_events WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?"
_OPENCLAW_EVENT = "SELECT event_json FROM transcript_events WHERE session_id = ? AND seq = ?"


def _openclaw_sessions(database: Database) -> Iterator[DatabaseSession]:
    if not database.has("transcript_events"):  # before 2026.8 it has other things in it
        return
    for row in database.rows(_OPENCLAW_SESSIONS):
        yield session_row(row.get("id"), from_milliseconds(row.get("changed")), row["events"])


def _openclaw_lines(database: Database, session_id: str) -> Iterator[Any]:
    """The lines of pi's format that its files had."""
    after = -1
    while page := list(database.rows(_OPENCLAW_PAGE, session_id, after, PAGE)):
        for row in page:
            event = database.first(_OPENCLAW_EVENT, session_id, row["seq"]) or {}
            yield parsed_json(event.get("event_json"))
        after = page[-1]["seq"]


ASKED = Asked(_openclaw_sessions, _openclaw_lines)
