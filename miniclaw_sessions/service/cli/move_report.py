"""What `migrate` says of a move."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from miniclaw_sessions.service.cli.output import counted

if TYPE_CHECKING:
    from miniclaw_sessions.files.transfer.migrating import Moved


def as_document(moved: Moved) -> dict[str, object]:
    """For programs."""
    rest = msgspec.structs.asdict(moved)
    ends = {"from": rest.pop("source"), "to": rest.pop("target")}
    copied = msgspec.structs.asdict(rest.pop("copied"))
    del copied["alike"]
    return {**ends, **copied, **rest}


def sentences(moved: Moved) -> Iterator[tuple[str, str]]:
    """For people: each with its style, in the order of how much it matters to them."""
    copied = moved.copied
    sessions, written = counted(copied.sessions, "session", "sessions"), counted(copied.written, "entry", "entries")
    if moved.is_dry:
        yield f"{sessions} would be copied to {moved.target}: {written} of {copied.entries:,} are not there", "bold"
    else:
        entries = counted(copied.entries, "entry", "entries")
        yield f"{moved.target} has {sessions}, {entries}, all checksums agree; {written} written now", "bold green"
    if moved.archived:
        yield f"copied {counted(moved.archived, 'archived session', 'archived sessions')} too", "green"
    if copied.meanwhile:
        yield f"{counted(copied.meanwhile, 'session', 'sessions')} changed meanwhile; that is in the copy", "dim"
    for damage in copied.problems:
        yield f"damaged, and kept as it is: {damage}", "yellow"
    for difference in copied.different:
        yield f"left as it is: {difference}", "red"
    if copied.others:
        told = counted(copied.others, "session is", "sessions are")
        yield f"{told} in the target only, and left alone; --delete-others if the source had them once", "yellow"
    if not moved.is_dry:
        yield from _what_next(moved)


def _what_next(moved: Moved) -> Iterator[tuple[str, str]]:
    if moved.held_by is not None:
        holder = f"process {moved.held_by}" if moved.held_by else "a process"
        yield f"{holder} uses the source: stop it and run this again, which copies what was said since", "yellow"
    elif moved.is_shared:
        yield "if gateways use the source still, stop them and run this again, which copies what was said since", "dim"
    if not moved.copied.different:
        is_url = ":" in moved.target.partition("/")[0]
        told = f"set sessions.store to {moved.target!r}" if is_url else f"set workspace to {moved.target!r}"
        yield f"now {told}", "dim"
