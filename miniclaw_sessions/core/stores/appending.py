"""What an append may add: the rules of order, idempotence and conflict, as one function for every store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from miniclaw_sessions.core.stores.base import Append, StoredEntry
from miniclaw_sessions.errors import StoreConflict


def entries_to_add(
    append: Append, *, incarnation: str | None, last_sequence: int, ids_between: Callable[[int, int], Mapping[int, str]]
) -> Sequence[StoredEntry]:
    """The entries of an append that the store does not have yet.

    Args:
        append: the entries to append.
        incarnation: of the session in the store; None if there is no such session.
        last_sequence: the sequence of its newest entry; 0 without one.
        ids_between: returns the stored entry ids from one sequence to another, both included; only called if the
            append begins at or before `last_sequence`.

    Raises:
        StoreConflict: another entry is stored at one of the sequences, the session is another incarnation, or the
            sequences do not follow each other and what is stored.
    """
    session_id, entries = append.head.session_id, append.entries
    if incarnation is not None and incarnation != append.head.incarnation:
        raise StoreConflict(
            f"cannot append to session {session_id}: the store has another session of this name, made after this one "
            "was deleted or by another program; get_or_create gives the one that is stored"
        )
    expected = last_sequence + 1
    for entry in entries:
        if entry.sequence != expected:
            break
        expected += 1
    else:  # the usual case: all of them are new
        return entries
    _check_ascending(session_id, entries)
    if not append.after_loss:
        _check_no_gap(session_id, entries, last_sequence)
    known = [entry for entry in entries if entry.sequence <= last_sequence]
    stored = ids_between(known[0].sequence, known[-1].sequence) if known else {}
    for entry in known:
        if stored.get(entry.sequence) != entry.entry_id:
            raise StoreConflict(
                f"cannot append entry {entry.entry_id} to session {session_id} at sequence {entry.sequence}: the store "
                f"is at {last_sequence} and has {stored.get(entry.sequence, 'no entry')} there; read the session again"
            )
    return entries[len(known) :]


def _check_no_gap(session_id: str, entries: Sequence[StoredEntry], last_sequence: int) -> None:
    """Refuse a gap: the caller believes that the store has the entries in it, so nothing would ever fill it."""
    previous = min(entries[0].sequence - 1, last_sequence)
    for entry in entries:
        if entry.sequence != previous + 1:
            raise StoreConflict(
                f"cannot append to session {session_id} at sequence {entry.sequence}: the store ends at {previous}, "
                "and what should lie between is not in it. It has lost entries, or its file was replaced; open the "
                "session again, which writes back what its snapshot has"
            )
        previous = entry.sequence


def _check_ascending(session_id: str, entries: Sequence[StoredEntry]) -> None:
    previous = 0
    for entry in entries:
        if entry.sequence <= previous:
            raise StoreConflict(
                f"cannot append to session {session_id}: sequence {entry.sequence} follows {previous}; "
                "sequences begin at 1 and ascend"
            )
        previous = entry.sequence
