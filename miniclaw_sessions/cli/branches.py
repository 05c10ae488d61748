"""The branches of a session, as a list: where each ends, and where it goes off."""

from __future__ import annotations

import msgspec

from miniclaw_sessions.formats.outline import Row, outline
from miniclaw_sessions.history.transcript import Transcript
from miniclaw_sessions.protocol.entries import Entry, Label


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """One branch.

    Attributes:
        entry_id: where to go on from, to continue it.
        last: the entry that it ends with, as the tree shows it: tool results stand with their calls.
        goes_off_at: the entry of another branch that it follows; None: it is a beginning.
        entries: how many it has of its own.
        label: the bookmark on its last entry.
        is_current: whether the conversation goes on at its end.
    """

    entry_id: str
    last: Entry
    goes_off_at: str | None
    entries: int
    label: str | None
    is_current: bool


def branches_of(transcript: Transcript) -> list[Branch]:
    """All branches: the current one, then the others, the one that was written to last first."""
    runs: list[tuple[str | None, list[Row]]] = []
    open_runs: list[list[Row]] = []  # one for each column
    for row in outline(transcript):
        if row.begins:
            goes_off_at = open_runs[row.depth - 1][-1].entry.id if row.depth else None
            del open_runs[row.depth :]
            open_runs.append([])
            runs.append((goes_off_at, open_runs[-1]))
        open_runs[row.depth].append(row)
    places = {entry.id: place for place, entry in enumerate(transcript.entries)}
    found = [_branch(goes_off_at, rows) for goes_off_at, rows in runs]
    return sorted(found, key=lambda branch: (branch.is_current, places[branch.entry_id]), reverse=True)


def _branch(goes_off_at: str | None, rows: list[Row]) -> Branch:
    last = rows[-1]
    ends = [last.entry, *(entry for entry in last.folded if not isinstance(entry, Label))]
    return Branch(
        entry_id=ends[-1].id,
        last=last.entry,
        goes_off_at=goes_off_at,
        entries=sum(row.count for row in rows),
        label=last.label,
        is_current=last.is_leaf,
    )
