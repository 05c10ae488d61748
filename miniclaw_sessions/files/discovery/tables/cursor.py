"""Cursor's databases (`state.vscdb`), as lines of the format `cursor`.

The one of the program has the chats of all workspaces, each bubble in a row of its own, or in older versions all of
them within the chat; those of workspaces have the chats of the first versions. Only chats in which something was said
are taken. A bubble that is being written is left out.
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
    from_text,
    parsed_json,
    session_row,
)

_KEYS = "SELECT key FROM cursorDiskKV WHERE key >= 'composerData:' AND key < 'composerData;' ORDER BY key"
_COUNT = "SELECT count(*) AS bubbles FROM cursorDiskKV WHERE key >= ? AND key < ?"
_VALUE = "SELECT CAST(value AS TEXT) AS value FROM {table} WHERE key = ?"
_TABS = "workbench.panel.aichat.view.aichat.chatdata"
_COMPOSERS = "composer.composerData"


def _sessions(database: Database) -> Iterator[DatabaseSession]:
    if not database.has("ItemTable"):
        raise ImportRefused("it has not the tables that Cursor makes")
    found: set[str] = set()
    if database.has("cursorDiskKV"):
        headers = _headers(database)
        for row in list(database.rows(_KEYS)):
            database.begin_line()
            composer_id = str(row.get("key")).partition(":")[2]
            bubbles = (database.first(_COUNT, f"bubbleId:{composer_id}:", f"bubbleId:{composer_id};") or {})["bubbles"]
            changed = headers.get(composer_id)
            if changed is None or not bubbles:
                composer = _value(database, "cursorDiskKV", f"composerData:{composer_id}")
                changed = composer.get("lastUpdatedAt") or composer.get("createdAt")
                bubbles = bubbles or len(_listed(composer, "conversation"))
            if bubbles and composer_id:
                found.add(composer_id)
                yield session_row(composer_id, _time(changed), bubbles)
    for chat in _of_a_workspace(database):
        if chat["composerId"] not in found:
            yield session_row(chat["composerId"], _time(chat.get("lastUpdatedAt")), len(chat["conversation"]))


def _lines(database: Database, session_id: str) -> Iterator[dict[str, Any]]:
    composer: dict[str, Any] = {}
    if database.has("cursorDiskKV"):
        composer = _value(database, "cursorDiskKV", f"composerData:{session_id}")
    if not composer:
        composer = next((one for one in _of_a_workspace(database) if one["composerId"] == session_id), {})
    bubbles = _listed(composer, "conversation")
    headers = _listed(composer, "fullConversationHeadersOnly")
    yield {"composer": {"composerId": session_id, **{name: composer[name] for name in composer if name not in _LONG}}}
    being_written = set(map(str, _listed(composer, "generatingBubbleIds")))
    for bubble in bubbles if not headers else ():
        yield {"bubble": bubble}
    for number, header in enumerate(headers, 1):
        bubble_id = header.get("bubbleId") if isinstance(header, dict) else None
        is_last = number == len(headers) and composer.get("status") == "generating"
        if bubble_id in being_written or (is_last and header.get("type") == 2):  # noqa: PLR2004 - the model's
            return
        bubble = _value(database, "cursorDiskKV", f"bubbleId:{session_id}:{bubble_id}")
        yield {"bubble": bubble or header}
        database.begin_line()


_LONG = ("conversation", "conversationMap", "fullConversationHeadersOnly")


def _headers(database: Database) -> dict[str, Any]:
    """When each chat changed, where newer versions say it in a table."""
    if not database.has("composerHeaders"):
        return {}
    rows = database.rows("SELECT composerId, lastUpdatedAt FROM composerHeaders")
    headers = {row["composerId"]: row.get("lastUpdatedAt") for row in rows if isinstance(row.get("composerId"), str)}
    database.begin_line()
    return headers


def _of_a_workspace(database: Database) -> Iterator[dict[str, Any]]:
    """The chats of the first versions: tabs, and composers with their bubbles in them."""
    for tab in _listed(_value(database, "ItemTable", _TABS), "tabs"):
        if isinstance(tab, dict) and isinstance(tab.get("tabId"), str) and tab["tabId"] and _listed(tab, "bubbles"):
            rest = {name: value for name, value in tab.items() if name not in ("tabId", "bubbles", "chatTitle")}
            named = {"composerId": tab["tabId"], "name": tab.get("chatTitle"), "createdAt": tab.get("lastSendTime")}
            said = [_bubble(bubble) for bubble in tab["bubbles"]]
            yield {**rest, **named, "lastUpdatedAt": tab.get("lastSendTime"), "conversation": said}
    for composer in _listed(_value(database, "ItemTable", _COMPOSERS), "allComposers"):
        is_chat = isinstance(composer, dict) and isinstance(composer.get("composerId"), str) and composer["composerId"]
        if is_chat and _listed(composer, "conversation"):
            yield composer


def _bubble(bubble: Any) -> Any:
    """A bubble of a tab: its text may stand under another name."""
    if not isinstance(bubble, dict) or isinstance(bubble.get("text"), str):
        return bubble
    return {**bubble, "text": bubble.get("rawText") or ""} if isinstance(bubble.get("rawText"), str) else bubble


def _value(database: Database, table: str, key: str) -> dict[str, Any]:
    try:
        row = database.first(_VALUE.format(table=table), key) or {}
    except sqlite3.DataError:  # it is longer than what is read of any
        return {}
    value = parsed_json(row.get("value"))
    return value if isinstance(value, dict) else {}


def _listed(fields: dict[str, Any], name: str) -> list[Any]:
    value = fields.get(name)
    return value if isinstance(value, list) else []


def _time(value: Any) -> int:
    return from_text(value) if isinstance(value, str) else from_seconds(value)


ASKED = Asked(_sessions, _lines)
