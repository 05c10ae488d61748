"""Making a program's SQLite database."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def make(path: Path, schema: str, rows: Sequence[tuple[str, Mapping[str, Any]]], *, is_wal: bool = False) -> Path:
    """A database with these tables, and rows as (table, columns)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    if is_wal:
        connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(schema)
    for table, row in rows:
        insert(connection, table, row)
    connection.commit()
    connection.close()
    return path


def insert(connection: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    """A row; what is no plain value becomes JSON."""
    values = [json.dumps(value) if isinstance(value, dict | list) else value for value in row.values()]
    names, marks = ", ".join(f'"{name}"' for name in row), ", ".join("?" * len(row))
    connection.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', values)
