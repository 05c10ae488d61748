"""Everything about one person as one ZIP archive: a page that says what is in it, and each session twice.

Once to read (HTML), once whole (JSON Lines, which `import` takes). It is made while it is sent; nothing is held.
"""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import datetime
from html import escape
from typing import Any
from urllib.parse import quote
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import msgspec
from anyio import to_thread

from miniclaw_sessions.errors import SessionNotFound
from miniclaw_sessions.files.formats.entry_line import ENTRY_LINE
from miniclaw_sessions.files.formats.html import HTML
from miniclaw_sessions.files.transfer.exporting import export_session
from miniclaw_sessions.files.transfer.forgetting import Archiving, SelectedSession

PIECE_BYTES = 65_536

_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em}}
table{{border-collapse:collapse}}td,th{{padding:.3em .8em;text-align:left;border-bottom:1px solid #8884}}</style>
<h1>{title}</h1><p>{sessions} sessions. Each is here to read, and whole as JSON Lines, with the words of all who took
part in it.</p><table><tr><th>Session<th>Title<th>Last used<th>Messages of this person<th>Entries<th>Files"""


class _Taken(io.RawIOBase):
    """Takes what the ZIP archive is made of, and gives it away."""

    def __init__(self) -> None:
        self.held = bytearray()

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """Keep it until it is taken."""
        self.held += data
        return len(data)

    def take(self) -> bytes:
        """What has come since the last time."""
        taken = bytes(self.held)
        self.held.clear()
        return taken


async def person_archive(sessions: Archiving, user: str, found: list[SelectedSession]) -> AsyncGenerator[bytes, None]:
    """A ZIP archive of the sessions that were found of a person, piece by piece.

    Raises:
        StoreUnavailable: a session cannot be read.
        WrongKey, DamagedSeal: an archived file does not open.
    """
    taken = _Taken()
    with ZipFile(taken, "w", ZIP_DEFLATED) as made:
        made.writestr("index.html", _index(user, found))
        made.writestr("index.json", msgspec.json.encode({"user": user, "sessions": found}))
        for one in found:
            contents = (
                [(f"archive/{one.archived}", sessions.archive.read(one.archived))]
                if one.archived is not None
                else [
                    (f"sessions/{one.session_id}{form.suffix}", export_session(sessions, one.session_id, form))
                    for form in (HTML, ENTRY_LINE)
                ]
            )
            for name, pieces in contents:
                entry = ZipInfo(name, _zip_time(one.last_used))
                entry.compress_type = ZIP_DEFLATED
                with made.open(entry, "w", force_zip64=True) as file, suppress(SessionNotFound):  # deleted meanwhile
                    async for piece in pieces:
                        await to_thread.run_sync(file.write, piece)
                        if len(taken.held) >= PIECE_BYTES:
                            yield taken.take()
    yield taken.take()


def _zip_time(moment: datetime) -> tuple[int, int, int, int, int, int]:
    """The nearest time that a ZIP archive can have."""
    parts = (moment.year, moment.month, moment.day, moment.hour, moment.minute, moment.second)
    return min(max(parts, (1980, 1, 1, 0, 0, 0)), (2107, 12, 31, 23, 59, 58))


def _index(user: str, found: list[SelectedSession]) -> str:
    lines = [_HEAD.format(title=escape(f"Everything about {user}"), sessions=len(found))]
    for one in found:
        names = (
            [f"archive/{one.archived}"]
            if one.archived is not None
            else [f"sessions/{one.session_id}{suffix}" for suffix in (".html", ".jsonl")]
        )
        links = " ".join(f'<a href="{quote(name)}">{escape(name.rpartition(".")[2])}</a>' for name in names)
        facts = (one.session_id, one.title or "", f"{one.last_used:%Y-%m-%d %H:%M} UTC", one.messages, one.entries)
        lines.append("<tr>" + "".join(f"<td>{escape(str(fact))}" for fact in facts) + f"<td>{links}")
        lines += [f'<tr><td colspan="6">not readable: {escape(problem)}' for problem in one.problems]
    return "\n".join([*lines, "</table></html>\n"])
