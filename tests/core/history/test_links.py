"""What names an entry that no branch has, or that cannot be read, follows what that one follows."""

from __future__ import annotations

from datetime import UTC, datetime

from miniclaw_sessions.core.history.branches import BranchMap
from miniclaw_sessions.core.history.links import Links
from miniclaw_sessions.core.protocol.encoding import encode_entry
from miniclaw_sessions.core.protocol.entries import METADATA, Custom, Entry, LeafMove, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def said(entry_id: str, parent_id: str | None, sequence: int, parent: int | None = None) -> MessageEntry:
    return MessageEntry(
        id=entry_id,
        parent_id=parent_id,
        timestamp=NOON,
        sequence=sequence,
        parent_sequence=parent,
        message=Message.user(entry_id),
    )


def metadata(entry_id: str, parent_id: str, sequence: int, parent: int | None = None) -> Custom:
    return Custom(
        id=entry_id,
        parent_id=parent_id,
        timestamp=NOON,
        sequence=sequence,
        parent_sequence=parent,
        custom_type=METADATA,
        data={"x": 1},
    )


def followed(*entries: Entry | int, is_whole: bool = True) -> list[tuple[str, str | None, int | None]]:
    """Id, parent and its place of each; a number is the place of an entry that cannot be read."""
    links, seen = Links(is_whole=is_whole), []
    for entry in entries:
        if isinstance(entry, int):
            links.leave_out(entry)
        else:
            one = links.follow(entry)
            seen.append((one.id, one.parent_id, one.parent_sequence))
    return seen


def test_what_names_metadata_follows_what_these_follow() -> None:
    entries = (said("a", None, 1), metadata("m", "a", 2), metadata("n", "m", 3), said("b", "n", 4))
    assert followed(*entries)[-1] == ("b", "a", 1)


def test_what_names_a_move_follows_its_target() -> None:
    move = LeafMove(id="move", parent_id="b", timestamp=NOON, sequence=3, target_id="a", target_sequence=1)
    assert followed(said("a", None, 1), said("b", "a", 2), move, said("c", "move", 4))[-1] == ("c", "a", 1)
    gone = LeafMove(id="move", parent_id="b", timestamp=NOON, sequence=3, target_id=None)
    assert followed(said("a", None, 1), said("b", "a", 2), gone, said("c", "move", 4))[-1] == ("c", None, None)


def test_what_names_a_damaged_entry_follows_the_one_before_whatever_its_id_was() -> None:
    assert followed(said("a", None, 1), 2, said("c", "?", 3)) == [("a", None, None), ("c", "a", 1)]
    assert followed(1, said("b", "?", 2)) == [("b", None, None)]
    assert followed(8, said("c", "b", 9), is_whole=False) == [("c", "b", None)]


def test_the_map_of_the_branch_goes_from_metadata_to_what_they_follow() -> None:
    """Older versions let a conversation go on behind metadata; what stands before them may be on another branch."""
    move = LeafMove(id="move", parent_id="c", timestamp=NOON, sequence=4, target_id="a", target_sequence=1)
    before: list[Entry] = [said("a", None, 1), said("b", "a", 2), said("c", "b", 3), move]
    branches = BranchMap()
    for entry in (*before, metadata("m", "a", 5, 1), said("d", "m", 6), said("e", "d", 7)):
        branches.add(entry.sequence, encode_entry(entry))
    assert branches.path() == [(5, 7), (1, 1)]
