"""Goose's database (since its version 1.10), as lines of the format `goose`; only sessions with messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.discovery.database import (
    PAGE,
    Asked,
    Database,
    DatabaseSession,
    from_text,
    parsed_json,
    session_row,
)

_SESSIONS = """
SELECT s.id AS id, s.updated_at AS changed, count(m.id) AS messages
FROM sessions s JOIN messages m ON m.session_id = s.id GROUP BY s.id ORDER BY s.id
"""
_PAGE = "SELECT id FROM messages WHERE session_id = ? AND id > ? ORDER BY id LIMIT ?"
_JSON = ("extension_data", "recipe_json", "user_recipe_values_json", "model_config_json")


def _sessions(database: Database) -> Iterator[DatabaseSession]:
    if not database.has("sessions", "messages"):
        raise ImportRefused("it has not the tables that Goose makes")
    for row in database.rows(_SESSIONS):
        yield session_row(row.get("id"), from_text(row.get("changed")), row["messages"])


def _lines(database: Database, session_id: str) -> Iterator[dict[str, Any]]:
    columns = database.columns("sessions")
    session = database.first(f"SELECT {columns} FROM sessions WHERE id = ?", session_id) or {}  # noqa: S608
    yield {name: parsed_json(value) if name in _JSON else value for name, value in session.items() if value is not None}
    message = f"SELECT {database.columns('messages')} FROM messages WHERE id = ?"  # noqa: S608
    after = -1
    while page := [row["id"] for row in database.rows(_PAGE, session_id, after, PAGE)]:
        for one in page:
            row = database.first(message, one) or {}
            yield {
                "id": row.get("message_id"),
                "role": row.get("role"),
                "created": row.get("created_timestamp"),
                "content": parsed_json(row.get("content_json")),
                "metadata": parsed_json(row.get("metadata_json")) or {},
            }
        after = page[-1]


ASKED = Asked(_sessions, _lines)
