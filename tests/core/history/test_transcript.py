"""The whole tree in memory: whatever it is fed, every entry is in it once, and nothing runs in a circle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.core.history.transcript import Transcript, TreeNode
from miniclaw_sessions.core.protocol.entries import (
    METADATA,
    Custom,
    Entry,
    Label,
    LeafMove,
    MessageEntry,
    SessionInfo,
)
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import EntryNotFound
from miniclaw_sessions.files.formats.outline import outline

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def said(entry_id: str, parent_id: str | None) -> Entry:
    return MessageEntry(id=entry_id, parent_id=parent_id, timestamp=NOW, message=Message.user(entry_id))


def labelled(entry_id: str, parent_id: str | None, target_id: str, label: str) -> Entry:
    return Label(id=entry_id, parent_id=parent_id, timestamp=NOW, target_id=target_id, label=label)


def moved(entry_id: str, target_id: str | None) -> Entry:
    return LeafMove(id=entry_id, parent_id=None, timestamp=NOW, target_id=target_id)


def ids(entries: Sequence[Entry]) -> list[str]:
    return [entry.id for entry in entries]


def described(entry_id: str, parent_id: str | None, **metadata: Any) -> Entry:
    return Custom(id=entry_id, parent_id=parent_id, timestamp=NOW, custom_type=METADATA, data=metadata)


def nodes_of(roots: Sequence[TreeNode]) -> Iterator[TreeNode]:
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children


BRANCHED = [said("1", None), said("2", "1"), said("3", "2"), moved("m", "1"), said("4", "1")]

# --- a sound tree ----------------------------------------------------------------------------------------------------


def test_an_empty_transcript() -> None:
    transcript = Transcript()
    assert (transcript.entries, transcript.roots, transcript.leaves, transcript.tree()) == ([], [], [], [])
    assert transcript.path() == []
    assert transcript.leaf_id is None
    assert len(transcript) == 0


def test_paths_children_roots_and_leaves() -> None:
    transcript = Transcript(BRANCHED)
    assert ids(transcript.path()) == ["1", "4"]
    assert ids(transcript.path("3")) == ["1", "2", "3"]
    assert ids(transcript.children("1")) == ["2", "4"]
    assert ids(transcript.children("4")) == []
    assert ids(transcript.roots) == ["1"]
    assert ids(transcript.leaves) == ["3", "4"]
    assert ids(transcript.entries) == ["1", "2", "3", "4"]
    assert ("2" in transcript, "m" in transcript) == (True, False)


def test_metadata_is_among_the_entries_and_no_root_child_or_leaf() -> None:
    metadata = [described("a", None, agent_id="bot"), described("b", "4", colour="green"), described("c", "b", x=1)]
    transcript = Transcript([*metadata[:1], *BRANCHED, *metadata[1:]])
    assert ids(transcript.entries) == ["a", "1", "2", "3", "4", "b", "c"]
    assert (ids(transcript.roots), ids(transcript.children("4")), ids(transcript.leaves)) == (["1"], [], ["3", "4"])
    assert [node.entry.id for node in nodes_of(transcript.tree())] == ["1", "4", "2", "3"]
    assert ids([row.entry for row in outline(transcript)]) == ["1", "2", "3", "4"]
    empty = Transcript(metadata[:1])
    assert (empty.roots, empty.leaves, empty.tree(), outline(empty)) == ([], [], [], [])


def test_what_follows_metadata_in_a_file_is_not_lost_from_the_tree() -> None:
    entries = [
        described("a", None, **{"session.x": 1}),
        described("b", "a", x=1),
        said("1", "b"),
        described("c", "b", x=2),
    ]
    transcript = Transcript(entries)
    assert (ids(transcript.roots), ids(transcript.leaves)) == (["a"], ["1"])
    assert [node.entry.id for node in nodes_of(transcript.tree())] == ["a", "b", "1"]
    assert ids([row.entry for row in outline(transcript)]) == ["a", "b", "1"]
    assert transcript.problems == []


@pytest.mark.parametrize("entry_id", ["nobody", "m"])
def test_an_unknown_entry_is_an_error(entry_id: str) -> None:
    transcript = Transcript(BRANCHED, session_id="telegram_1")
    for ask in (transcript.get, transcript.path):
        with pytest.raises(EntryNotFound, match="telegram_1"):
            ask(entry_id)


def test_a_move_to_the_root_empties_the_path_and_nothing_else() -> None:
    transcript = Transcript([*BRANCHED, moved("n", None)])
    assert transcript.path() == []
    assert len(transcript) == 4


def test_metadata_is_no_leaf() -> None:
    free = Custom(id="x", parent_id="1", timestamp=NOW, custom_type=METADATA, data={"a": 1})
    transcript = Transcript([said("1", None), free])
    assert transcript.leaf_id == "1"
    assert ids(transcript.path()) == ["1"]


def test_the_last_label_counts_and_an_empty_one_removes() -> None:
    labels = [("a", "1", "one"), ("b", "1", "two"), ("c", "2", "other"), ("d", "2", "")]
    transcript = Transcript([*BRANCHED, *(labelled(i, "4", target, text) for i, target, text in labels)])
    assert transcript.labels == {"1": "two"}
    assert {node.entry.id: node.label for node in nodes_of(transcript.tree()) if node.label} == {"1": "two"}
    with pytest.raises(TypeError):
        transcript.labels["1"] = "changed"  # type: ignore[index]


def test_a_conversation_is_as_deep_as_it_is_long() -> None:
    count = 50_000
    transcript = Transcript(said(str(n), str(n - 1) if n else None) for n in range(count))
    assert len(transcript.path()) == count
    assert sum(1 for _ in nodes_of(transcript.tree())) == count


def test_what_it_returns_may_be_changed_without_harm() -> None:
    transcript = Transcript(BRANCHED)
    transcript.entries.clear()
    transcript.path().clear()
    transcript.children("1").clear()
    transcript.roots.clear()
    assert ids(transcript.path()) == ["1", "4"]
    assert ids(transcript.children("1")) == ["2", "4"]


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "roots", "problem"),
    [
        ([said("1", None), said("2", "nobody")], ["1", "2"], "parent of entry 2"),
        ([said("1", "1")], ["1"], "parent of entry 1"),
        ([said("1", "2"), said("2", None)], ["1", "2"], "parent of entry 1"),
        ([said("1", "2"), said("2", "1")], ["1"], "parent of entry 1"),
        ([said("1", None), said("1", None)], ["1"], "occurs twice"),
        ([said("1", None), moved("m", "nobody")], ["1"], "moved to nobody"),
        ([said("1", None), moved("m", None), said("2", "m")], ["1", "2"], "parent of entry 2"),
        ([labelled("1", None, "nobody", "here")], ["1"], "on entry nobody"),
    ],
    ids=["missing", "itself", "after it", "circle", "twice", "lost leaf", "child of a move", "lost label"],
)
def test_damage_is_told_and_costs_only_itself(entries: list[Entry], roots: list[str], problem: str) -> None:
    transcript = Transcript(entries)
    assert ids(transcript.roots) == roots
    [told] = transcript.problems
    assert problem in told
    assert transcript.leaf_id is not None
    assert transcript.leaf_id in transcript


# --- properties ------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from("abcdef")
ANY_ENTRY = st.one_of(
    st.builds(said, NAMES, st.none() | NAMES),
    st.builds(labelled, NAMES, st.none() | NAMES, NAMES, st.sampled_from(["", "x"])),
    st.builds(moved, NAMES, st.none() | NAMES),
    st.builds(lambda i, p: SessionInfo(id=i, parent_id=p, timestamp=NOW, name="x"), NAMES, st.none() | NAMES),
)


@given(st.lists(ANY_ENTRY, max_size=12))
def test_any_entries_make_a_tree(entries: list[Entry]) -> None:
    """Ids that occur twice, parents that are missing, later, or the entry itself: all of it."""
    transcript = Transcript(entries)
    in_tree = [node.entry.id for node in nodes_of(transcript.tree())]
    assert sorted(in_tree) == sorted(ids(transcript.entries))
    assert len(in_tree) == len(set(in_tree)) == len(transcript)
    assert set(in_tree) == {entry.id for entry in entries if not isinstance(entry, LeafMove)}
    for entry_id in in_tree:
        path = ids(transcript.path(entry_id))
        assert path[-1] == entry_id
        assert path[0] in ids(transcript.roots)
        assert all(child in ids(transcript.children(parent)) for parent, child in pairwise(path))
    assert transcript.leaf_id is None or transcript.leaf_id in transcript
    assert {leaf.id for leaf in transcript.leaves} == {i for i in in_tree if not transcript.children(i)}


@given(st.lists(st.tuples(st.booleans(), st.integers(min_value=0, max_value=30)), max_size=30))
def test_a_sound_tree_has_no_problems(steps: list[tuple[bool, int]]) -> None:
    entries: list[Entry] = []
    known: list[str] = []
    leaf: Any = None
    for number, (moves, place) in enumerate(steps):
        if moves:
            leaf = known[place % len(known)] if known and place else None
            entries.append(moved(f"m{number}", leaf))
        else:
            entries.append(said(str(number), leaf))
            known.append(leaf := str(number))
    transcript = Transcript(entries)
    assert transcript.problems == []
    assert transcript.leaf_id == leaf
    assert ids(transcript.entries) == known
