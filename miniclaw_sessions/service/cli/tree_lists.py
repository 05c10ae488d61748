"""The branches and the labels of a session as lists: as documents for programs, as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from miniclaw_sessions.core.history.first_words import first_words, speaker
from miniclaw_sessions.core.history.transcript import Transcript
from miniclaw_sessions.core.protocol.entries import Entry, Label, MessageEntry
from miniclaw_sessions.core.protocol.messages import message_from_dict
from miniclaw_sessions.files.formats.outline import Branches, outline
from miniclaw_sessions.service.cli.entry_names import ShortIds
from miniclaw_sessions.service.cli.output import counted, one_line
from miniclaw_sessions.service.cli.tables import Rows

Document = dict[str, Any]


def counts(transcript: Transcript) -> str:
    """How many entries, branches and labels a session has."""
    return ", ".join(
        (
            counted(len(transcript), "entry", "entries"),
            counted(len(branches_of(transcript)), "branch", "branches"),
            counted(len(transcript.labels), "label", "labels"),
        )
    )


# --- branches --------------------------------------------------------------------------------------------------------


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


def branch_documents(transcript: Transcript) -> list[Document]:
    """Every branch: the current one first, then the one that was written to last."""
    return [
        {
            "entry_id": branch.entry_id,
            "goes_off_at": branch.goes_off_at,
            "entries": branch.entries,
            "is_current": branch.is_current,
            "label": branch.label,
            **_facts_of(branch.last),
        }
        for branch in branches_of(transcript)
    ]


def branch_table(branches: Sequence[Document], short: ShortIds, now: datetime, *, is_numbered: bool = False) -> Rows:
    """Where each branch ends and where it goes off; the current one has a star, and each its number if it is wanted."""
    table = Rows(
        *("", "ENTRY", "WHO", "ENDS WITH", "FROM", "ENTRIES", "AGE"),
        now=now,
        numeric={"ENTRIES"},
        cut={"ENDS WITH"},
        title="ENDS WITH",
    )
    for number, branch in enumerate(branches, 1):
        star = "*" if branch["is_current"] else ""
        label = "" if branch["label"] is None else f"[{one_line(branch['label'])}] "
        table.add(
            f"{number}{star}" if is_numbered else star,
            short.brief(branch["entry_id"]),
            branch["speaker"],
            label + branch["first_words"],
            "" if branch["goes_off_at"] is None else short.brief(branch["goes_off_at"]),
            f"{branch['entries']:,}",
            datetime.fromisoformat(branch["timestamp"]),
            style="" if branch["is_current"] else "dim",
        )
    return table


# --- labels ----------------------------------------------------------------------------------------------------------


def label_documents(transcript: Transcript) -> list[Document]:
    """Every bookmark, in the order of the entries that they are on."""
    current = {entry.id for entry in transcript.path()}
    labelled = ((entry, transcript.labels.get(entry.id)) for entry in transcript.entries)
    return [
        {"entry_id": entry.id, "label": label, "is_current": entry.id in current, **_facts_of(entry)}
        for entry, label in labelled
        if label is not None
    ]


def label_table(labels: Sequence[Document], short: ShortIds, now: datetime) -> Rows:
    """A table of contents; what is not on the current branch is dim."""
    table = Rows("LABEL", "ENTRY", "WHO", "BEGINS WITH", "AGE", now=now, cut={"LABEL", "BEGINS WITH"}, title="LABEL")
    for label in labels:
        table.add(
            label["label"],
            short.brief(label["entry_id"]),
            label["speaker"],
            label["first_words"],
            datetime.fromisoformat(label["timestamp"]),
            style="" if label["is_current"] else "dim",
        )
    return table


# --- entries ---------------------------------------------------------------------------------------------------------


def message_line(document: Document) -> str:
    """A message of the window on one line."""
    message = message_from_dict({name: value for name, value in document.items() if name not in ("id", "sequence")})
    entry = MessageEntry(id="", parent_id=None, timestamp=datetime.fromtimestamp(0, UTC), message=message)
    return f"{speaker(entry)}  {first_words(entry)}"


def _facts_of(entry: Entry) -> Document:
    return {"speaker": speaker(entry), "first_words": first_words(entry), "timestamp": entry.timestamp.isoformat()}
