"""Open WebUI's database, as lines of the format `open-webui`: the chats of all its users.

An answer that is being written, and has nothing behind it, is left out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.discovery.database import (
    Asked,
    Database,
    DatabaseSession,
    from_seconds,
    parsed_json,
    session_row,
)
from miniclaw_sessions.files.formats.message_tree import parents_first
from miniclaw_sessions.files.formats.open_webui import messages_in, without_messages

_COUNT = """SELECT (length(chat) - length(replace(chat, '"parentId"', ''))) / 10 AS messages FROM chat WHERE id = ?"""
_JSON = ("chat", "meta", "variables", "tasks")
_OF_A_ROW = ("content", "output", "files", "sources", "embeds", "meta", "status_history", "error", "usage")
_NAMES = {"parent_id": "parentId", "model_id": "model", "status_history": "statusHistory", "created_at": "timestamp"}
_LEFT_OUT = ("chat_id", "user_id", "updated_at")


def _sessions(database: Database) -> Iterator[DatabaseSession]:
    if not database.has("chat"):
        raise ImportRefused("it has not the tables that Open WebUI makes")
    for row in list(database.rows("SELECT id, updated_at FROM chat ORDER BY id")):
        database.begin_line()
        yield session_row(row.get("id"), from_seconds(row.get("updated_at")), _count(database, row.get("id")))


def _count(database: Database, session_id: Any) -> int:
    try:
        counted = database.first(_COUNT, session_id) or {}
    except sqlite3.DataError:  # it is longer than what is read of any
        return 0
    return counted["messages"] if isinstance(counted.get("messages"), int) else 0


def _lines(database: Database, session_id: str) -> Iterator[dict[str, Any]]:
    columns = database.columns("chat")
    row = database.first(f"SELECT {columns} FROM chat WHERE id = ?", session_id) or {}  # noqa: S608
    row = {name: parsed_json(value) if name in _JSON else value for name, value in row.items() if value is not None}
    chat = row["chat"] if isinstance(row.get("chat"), dict) else {}
    yield {"chat": without_messages({**row, "chat": chat})}
    messages = [message for message in messages_in(chat) if isinstance(message, dict)]
    if database.has("chat_message"):  # which newer versions have, and which may know more
        messages += _further(database, session_id, {message.get("id") for message in messages})
    parents = {message.get("parentId") for message in messages if isinstance(message.get("parentId"), str)}
    history = chat.get("history")
    current = row.get("current_message_id") or (history.get("currentId") if isinstance(history, dict) else None)
    for message in parents_first(messages, "id", "parentId", current):
        if message.get("done") is False and not message.get("error") and message.get("id") not in parents:
            continue
        yield {"message": message}


def _further(database: Database, session_id: str, known: set[Any]) -> list[dict[str, Any]]:
    columns, found = database.columns("chat_message"), []
    query = f"SELECT {columns} FROM chat_message WHERE chat_id = ? ORDER BY created_at, id"  # noqa: S608
    for row in database.rows(query, session_id):
        message_id = str(row.get("id")).removeprefix(f"{session_id}-")
        if message_id not in known:
            named = {
                _NAMES.get(name, name): parsed_json(value) if name in _OF_A_ROW else value
                for name, value in row.items()
                if value is not None and name not in _LEFT_OUT
            }
            found.append({**named, "id": message_id, "done": bool(row.get("done", True))})
    return found


ASKED = Asked(_sessions, _lines)
