"""The database of the command `llm`, as lines of the format `llm`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from miniclaw_sessions.files.discovery.database import (
    PAGE,
    Asked,
    Database,
    DatabaseSession,
    from_text,
    parsed_json,
    session_row,
)

_THREADS = """
SELECT t.id AS id, count(u.id) AS turns, max(coalesce(u.datetime_utc, t.datetime_utc)) AS changed
FROM threads t LEFT JOIN turns u ON u.thread_id = t.id GROUP BY t.id ORDER BY t.id
"""
_CONVERSATIONS = """
SELECT c.id AS id, count(r.id) AS turns, max(r.datetime_utc) AS changed
FROM conversations c JOIN responses r ON r.conversation_id = c.id GROUP BY c.id ORDER BY c.id
"""
_MESSAGE = "SELECT hash, parent_hash, role, provider_metadata FROM messages WHERE hash = ?"
_ABOVE = "SELECT parent_hash FROM messages WHERE hash = ?"
_PARTS = "SELECT position, type, tool_name, text, payload FROM parts WHERE message_hash = ? ORDER BY position"
_FRAGMENTS = """
SELECT content FROM prompt_fragments p JOIN fragments f ON f.id = p.fragment_id WHERE p.response_id = ? ORDER BY "order"
"""
_TURN = """
SELECT id, model, resolved_model, options_json, input_tokens, output_tokens, token_details, duration_ms, datetime_utc
FROM turns WHERE thread_id = ? AND tip_message_hash = ?
"""
_TURN_AFTER = "SELECT datetime_utc FROM turns WHERE thread_id = ? AND parent_message_hash = ?"


def _llm_sessions(database: Database) -> Iterator[DatabaseSession]:
    known = set()
    if _has_threads(database):
        for row in database.rows(_THREADS):
            known.add(row.get("id"))
            yield session_row(row.get("id"), from_text(row.get("changed")), 2 * row["turns"])
    if database.has("conversations", "responses"):
        for row in database.rows(_CONVERSATIONS):
            if row.get("id") not in known:
                yield session_row(row.get("id"), from_text(row.get("changed")), 2 * row["turns"])


def _has_threads(database: Database) -> bool:
    return database.has("threads", "turns", "messages", "parts")


def _llm_lines(database: Database, session_id: str) -> Iterator[dict[str, Any]]:
    columns = database.columns("threads") if _has_threads(database) else ""
    thread = database.first(f"SELECT {columns} FROM threads WHERE id = ?", session_id) if columns else None  # noqa: S608
    if thread is None:
        yield from _conversation_lines(database, session_id)
        return
    yield {"thread": thread}
    branch: dict[Any, None] = {}  # from the last message to the first; a message may be its own ancestor
    message_hash = thread.get("tip_message_hash")
    while message_hash not in branch and (row := database.first(_ABOVE, message_hash)) is not None:
        branch[message_hash] = None
        message_hash = row.get("parent_hash")
    for message_hash in reversed(branch):
        yield {
            "message": database.first(_MESSAGE, message_hash),
            "parts": [_llm_part(database, part) for part in database.rows(_PARTS, message_hash)],
            "turn": database.first(_TURN, session_id, message_hash)
            or database.first(_TURN_AFTER, session_id, message_hash),
        }


def _conversation_lines(database: Database, session_id: str) -> Iterator[dict[str, Any]]:
    """Before 0.36."""
    columns = database.columns("conversations")
    yield {"conversation": database.first(f"SELECT {columns} FROM conversations WHERE id = ?", session_id)}  # noqa: S608
    tables = [table for table in ("tool_calls", "tool_results") if database.has(table)]
    beside = {
        table: f"SELECT {database.columns(table)} FROM {table} WHERE response_id = ? ORDER BY id"  # noqa: S608
        for table in tables
    }
    columns = database.columns("responses", "prompt_json", "response_json")
    response = f"SELECT {columns} FROM responses WHERE id = ?"  # noqa: S608
    has_fragments = database.has("prompt_fragments", "fragments")
    after = ""
    page = "SELECT id FROM responses WHERE conversation_id = ? AND id > ? ORDER BY id LIMIT ?"
    while ids := [row["id"] for row in database.rows(page, session_id, after, PAGE)]:
        for one in ids:
            row = database.first(response, one) or {}
            if has_fragments:  # context before the prompt
                said = [fragment["content"] for fragment in database.rows(_FRAGMENTS, one)]
                row["prompt"] = "\n".join([*said, *([row["prompt"]] if row["prompt"] else [])])
            yield {"response": row, **{table: list(database.rows(query, one)) for table, query in beside.items()}}
        after = ids[-1]


def _llm_part(database: Database, part: dict[str, Any]) -> dict[str, Any]:
    """A message's part; what it has of fragments, which are stored once, is put into its text."""
    payload = parsed_json(part.get("payload"))
    if isinstance(payload, dict) and isinstance(pieces := payload.get("text_ref"), list):
        texts: list[str] = []
        for piece in pieces:
            if isinstance(piece, dict) and isinstance(literal := piece.get("literal"), str):
                texts.append(literal)
            elif isinstance(piece, dict):
                found = database.first("SELECT content FROM fragments WHERE id = ?", piece.get("fragment"))
                texts += [] if found is None else [str(found["content"])]
        part["text"] = "".join(texts)
    return part


ASKED = Asked(_llm_sessions, _llm_lines)
