"""Crush's database, as lines of the format `crush`; only sessions with messages.

Its newest message is left out as long as Crush writes it: a model's, until it has a part that says that it is finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.discovery.database import (
    PAGE,
    Asked,
    Database,
    DatabaseSession,
    from_seconds,
    parsed_json,
    session_row,
)

_SESSIONS = """
SELECT s.id AS id, max(s.updated_at, max(m.updated_at)) AS changed, count(m.id) AS messages
FROM sessions s JOIN messages m ON m.session_id = s.id GROUP BY s.id ORDER BY s.id
"""
_PAGE = """
SELECT rowid AS number, created_at FROM messages WHERE session_id = ? AND (created_at, rowid) > (?, ?)
ORDER BY created_at, rowid LIMIT ?
"""


def _sessions(database: Database) -> Iterator[DatabaseSession]:
    if not database.has("sessions", "messages"):
        raise ImportRefused("it has not the tables that Crush makes")
    for row in database.rows(_SESSIONS):
        yield session_row(row.get("id"), from_seconds(row.get("changed")), row["messages"])


def _lines(database: Database, session_id: str) -> Iterator[dict[str, Any]]:
    columns = database.columns("sessions")
    yield {"session": database.first(f"SELECT {columns} FROM sessions WHERE id = ?", session_id)}  # noqa: S608
    message = f"SELECT {database.columns('messages')} FROM messages WHERE rowid = ?"  # noqa: S608
    after: tuple[Any, Any] = (-1, -1)
    while page := list(database.rows(_PAGE, session_id, *after, PAGE)):
        for one in page:
            row = database.first(message, one["number"]) or {}
            row["parts"] = parsed_json(row.get("parts"))
            is_last = len(page) < PAGE and one is page[-1]
            if is_last and row.get("role") == "assistant" and not _is_finished(row["parts"]):
                return
            yield {"message": row}
        after = (page[-1]["created_at"], page[-1]["number"])


def _is_finished(parts: Any) -> bool:
    return isinstance(parts, list) and any(isinstance(part, dict) and part.get("type") == "finish" for part in parts)


ASKED = Asked(_sessions, _lines)
