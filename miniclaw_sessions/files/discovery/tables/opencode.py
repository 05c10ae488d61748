"""opencode's database, as lines of the format `opencode`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.discovery.database import (
    PAGE,
    Asked,
    Database,
    DatabaseSession,
    from_milliseconds,
    parsed_json,
    session_row,
)

_OPENCODE_SESSIONS = """
SELECT s.id, max(s.time_updated, coalesce(max(m.time_updated), 0)) AS changed, count(m.id) AS messages
FROM session s LEFT JOIN message m ON m.session_id = s.id GROUP BY s.id ORDER BY s.id
"""
_OPENCODE_PAGE = """
SELECT id, time_created FROM message WHERE session_id = ? AND (time_created, id) > (?, ?)
ORDER BY time_created, id LIMIT ?
"""
_OPENCODE_PARTS = "SELECT id, data FROM part WHERE message_id = ? ORDER BY id"


def _opencode_sessions(database: Database) -> Iterator[DatabaseSession]:
    if not database.has("session", "message", "part"):
        raise ImportRefused("it has not the tables that opencode makes")
    for row in database.rows(_OPENCODE_SESSIONS):
        yield session_row(row.get("id"), from_milliseconds(row.get("changed")), row["messages"])


def _opencode_lines(database: Database, session_id: str) -> Iterator[dict[str, Any]]:
    """The session and its messages; not the last one, as long as it may get more parts."""
    columns = database.columns("session")
    if (row := database.first(f"SELECT {columns} FROM session WHERE id = ?", session_id)) is not None:  # noqa: S608
        parsed = {
            name: parsed_json(value) if name in ("model", "revert", "permission") else value
            for name, value in row.items()
        }
        yield {"info": parsed}
    after: tuple[Any, Any] = (-1, "")
    while page := list(database.rows(_OPENCODE_PAGE, session_id, *after, PAGE)):
        for row in page:
            said = database.first("SELECT data FROM message WHERE id = ?", row["id"]) or {}
            info = parsed_json(said.get("data"))
            is_last = len(page) < PAGE and row is page[-1]
            if is_last and not _is_complete(info):
                return
            yield {
                "info": {"id": row["id"], **info} if isinstance(info, dict) else info,
                "parts": [
                    {"id": part.get("id"), **data} if isinstance(data := parsed_json(part.get("data")), dict) else data
                    for part in database.rows(_OPENCODE_PARTS, row["id"])
                ],
            }
        after = (page[-1]["time_created"], page[-1]["id"])


def _is_complete(info: Any) -> bool:
    """Whether a message gets no more parts: a model's says so, a user's has them when the model's is begun."""
    match info:
        case {"role": "assistant", "error": _} | {"role": "assistant", "time": {"completed": _}}:
            return True
        case _:
            return False


ASKED = Asked(_opencode_sessions, _opencode_lines)
