"""The branches of a session, as a list: where each ends, and where it goes off."""

from __future__ import annotations

import msgspec

from miniclaw_sessions.core.history.transcript import Transcript
from miniclaw_sessions.core.protocol.entries import Entry, Label
from miniclaw_sessions.files.formats.outline import Branches, outline


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
    rows = outline(transcript)
    branches = Branches(rows)
    places = {entry.id: place for place, entry in enumerate(transcript.entries)}
    found: list[Branch] = []
    for numbers in filter(None, (branches.current, *branches.left)):
        fork, own = branches.parents[numbers[0]], [rows[number] for number in numbers]
        last = own[-1]
        ends = [last.entry, *(entry for entry in last.folded if not isinstance(entry, Label))]
        branch = Branch(
            entry_id=ends[-1].id,
            last=last.entry,
            goes_off_at=None if fork < 0 else rows[fork].entry.id,
            entries=sum(row.count for row in own),
            label=last.label,
            is_current=last.is_leaf,
        )
        found.append(branch)
    return sorted(found, key=lambda branch: (branch.is_current, places[branch.entry_id]), reverse=True)
