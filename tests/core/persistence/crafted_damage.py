"""Damage to a workspace as somebody could craft it: rows, pages, lines and whole files, chosen by a seed."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress

from tests.core.persistence.encrypted_homes import Home

PAGE = 4096
_VALUES = (None, 0, -1, 2**62, "x", "", "telegram_9", b"\xff\x00", b"{}", 1.5)

Harm = Callable[[Home, random.Random], str]
"""Damages something, and says what."""


def _rows(home: Home, chance: random.Random) -> tuple[sqlite3.Connection, str, int, list[str]]:
    """A random row of a random table of the database."""
    other = sqlite3.connect(home.workspace / "sessions.db", isolation_level=None)
    other.execute("PRAGMA ignore_check_constraints = ON")
    table = chance.choice(["sessions", "entries", "entries", "entries", "places", "idempotency_keys", "placed"])
    columns = [row[1] for row in other.execute(f"PRAGMA table_info({table})")]
    (count,) = other.execute(f"SELECT count(*) FROM {table}").fetchone()
    return other, table, chance.randrange(max(count, 1)), columns


def _where(table: str, columns: list[str], other: sqlite3.Connection, number: int) -> tuple[str, tuple[object, ...]]:
    row = other.execute(f"SELECT * FROM {table} LIMIT 1 OFFSET {number}").fetchone()
    return " AND ".join(f"{one} IS ?" for one in columns), tuple(row or [None] * len(columns))


def another_value(home: Home, chance: random.Random) -> str:
    """One column of one row."""
    other, table, number, columns = _rows(home, chance)
    column, value = chance.choice(columns), chance.choice(_VALUES)
    with closing(other), suppress(sqlite3.Error):
        where, row = _where(table, columns, other, number)
        other.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value, *row))
    return f"{table}.{column} of row {number} is {value!r}"


def a_row_less(home: Home, chance: random.Random) -> str:
    """One row is gone."""
    other, table, number, columns = _rows(home, chance)
    with closing(other):
        where, row = _where(table, columns, other, number)
        other.execute(f"DELETE FROM {table} WHERE {where}", row)
    return f"row {number} of {table} is gone"


def a_row_twice(home: Home, chance: random.Random) -> str:
    """An entry comes again at the end of the log."""
    with closing(sqlite3.connect(home.workspace / "sessions.db", isolation_level=None)) as other:
        (last,) = other.execute("SELECT max(position) FROM entries").fetchone()
        (count,) = other.execute("SELECT count(*) FROM entries").fetchone()
        number = chance.randrange(count)
        other.execute(
            "INSERT INTO entries SELECT ?, session, sequence, entry_id, encoded, idempotency_key, checksum FROM entries"
            f" LIMIT 1 OFFSET {number}",
            (last + 1,),
        )
    return f"entry {number} is there twice"


def two_rows_swapped(home: Home, chance: random.Random) -> str:
    """Two entries change their contents, checksums and all."""
    said = "entry_id, encoded, idempotency_key, checksum"
    with closing(sqlite3.connect(home.workspace / "sessions.db", isolation_level=None)) as other:
        places = [place for (place,) in other.execute("SELECT position FROM entries")]
        one, two = chance.sample(places, 2)
        rows = {
            place: other.execute(f"SELECT {said} FROM entries WHERE position = ?", (place,)).fetchone()
            for place in (one, two)
        }
        for place, row in ((one, rows[two]), (two, rows[one])):
            values = ", ".join(f"{name} = ?" for name in said.split(", "))
            other.execute(f"UPDATE entries SET {values} WHERE position = ?", (*row, place))
    return f"entries at {one} and {two} are swapped"


def a_page(home: Home, chance: random.Random) -> str:
    """One page of a database, or half of it."""
    path = chance.choice(sorted(home.workspace.glob("sessions*.db")))
    data = bytearray(path.read_bytes())
    if not data:
        return "nothing"
    page, half = chance.randrange(len(data) // PAGE), chance.choice((PAGE, PAGE // 2, 64))
    other = chance.randrange(len(data) // PAGE)
    kinds = {"nuls": bytes(PAGE), "ones": b"\xff" * PAGE, "chance": chance.randbytes(PAGE)}
    kinds["another page"] = bytes(data[other * PAGE : other * PAGE + PAGE])
    kind = chance.choice(sorted(kinds))
    data[page * PAGE : page * PAGE + half] = kinds[kind][:half]
    path.write_bytes(data)
    return f"{half} bytes of page {page} of {path.name} are {kind}"


def a_shorter_database(home: Home, chance: random.Random) -> str:
    """It ends too early."""
    path = home.workspace / "sessions.db"
    size = chance.randrange(path.stat().st_size)
    path.write_bytes(path.read_bytes()[:size])
    return f"{path.name} ends at {size}"


def a_log(home: Home, chance: random.Random) -> str:
    """What SQLite has written beside its database."""
    for path in sorted(home.workspace.glob("sessions.db-wal")):
        data = bytearray(path.read_bytes())
        if not data:
            continue
        kind = chance.choice(["gone", "short", "chance"])
        begin = chance.randrange(len(data))
        if kind == "gone":
            path.unlink()
        elif kind == "short":
            path.write_bytes(data[:begin])
        else:
            data[begin : begin + 100] = chance.randbytes(len(data[begin : begin + 100]))
            path.write_bytes(data)
        return f"the log is {kind} from {begin} of {len(data)}"
    return "there is no log"


def a_line(home: Home, chance: random.Random) -> str:
    """One line of a transcript, or two of them."""
    path = chance.choice(sorted((home.workspace / "transcripts").glob("*.jsonl")))
    lines = path.read_bytes().split(b"\n")[:-1]
    one, two = chance.randrange(len(lines)), chance.randrange(len(lines))
    kind = chance.choice(["gone", "twice", "swapped", "short", "hole", "bytes", "of another", "joined", "between"])
    if kind == "gone":
        del lines[one]
    elif kind == "twice":
        lines.insert(two, lines[one])
    elif kind == "swapped":
        lines[one], lines[two] = lines[two], lines[one]
    elif kind == "short":
        lines[one] = lines[one][: chance.randrange(len(lines[one]) + 1)]
    elif kind == "hole":
        begin = chance.randrange(len(lines[one]))
        lines[one] = lines[one][:begin] + bytes(min(30, len(lines[one]) - begin)) + lines[one][begin + 30 :]
    elif kind == "bytes":
        begin = chance.randrange(len(lines[one]))
        lines[one] = lines[one][:begin] + chance.randbytes(3) + lines[one][begin + 3 :]
    elif kind == "of another":
        elsewhere = chance.choice(sorted((home.workspace / "transcripts").glob("*.jsonl")))
        lines[one] = chance.choice(elsewhere.read_bytes().split(b"\n")[:-1])
    elif kind == "joined" and one + 1 < len(lines):
        lines[one : one + 2] = [lines[one] + lines[one + 1]]
    else:
        lines.insert(
            one, b'{"type":"message","id":"crafted","sequence":3,"message":{"role":"user","content":"not said"}}'
        )
    path.write_bytes(b"\n".join(lines) + (b"" if chance.random() < 0.1 else b"\n"))
    return f"line {one} of {path.name} is {kind} ({two})"


def a_snapshot(home: Home, chance: random.Random) -> str:
    """One session file."""
    paths = sorted((home.workspace / "sessions").glob("*.json"))
    path, elsewhere = chance.choice(paths), chance.choice(paths)
    data = path.read_bytes()
    kind = chance.choice(["gone", "short", "bytes", "of another"])
    begin = chance.randrange(len(data))
    if kind == "gone":
        path.unlink()
    else:
        changed = {
            "short": data[:begin],
            "bytes": data[:begin] + chance.randbytes(2) + data[begin + 2 :],
            "of another": elsewhere.read_bytes(),
        }
        path.write_bytes(changed[kind])
    return f"{path.name} is {kind} ({begin}, {elsewhere.name})"


HARMS: dict[str, list[Harm]] = {
    "sqlite:": [
        *(another_value, another_value, another_value, a_row_less, a_row_twice, two_rows_swapped),
        *(a_page, a_page, a_page, a_shorter_database, a_log, a_snapshot),
    ],
    "jsonl:": [a_line, a_line, a_line, a_snapshot],
}


def harm(home: Home, seed: str) -> list[str]:
    """Damage a workspace once, twice or three times; what was done."""
    chance = random.Random(seed)
    told = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        with suppress(sqlite3.Error, TypeError, ValueError):  # what was damaged before cannot be damaged so
            told.append(chance.choice(HARMS[home.settings.store])(home, chance))
    return told
