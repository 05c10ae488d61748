"""What a model is told of a branch: gathered from the leaf, it is what a plain reading from the root gives."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.core.history.branch import (
    Branch,
    BranchCollector,
    as_message_entry,
    rejoined,
    resolve,
    shown_message,
    summary_messages,
)
from miniclaw_sessions.core.history.transcript import Transcript
from miniclaw_sessions.core.protocol.entries import (
    METADATA,
    BranchSummary,
    Compaction,
    Custom,
    Entry,
    Label,
    MessageEntry,
    ModelChange,
    SessionInfo,
    ThinkingLevelChange,
    place_of_parent,
)
from miniclaw_sessions.core.protocol.messages import Message, Role, provider_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def texts(branch: Branch) -> list[str]:
    return [message.text for message in branch.messages()]


def chain(*makers: Any) -> list[Entry]:
    """A branch: each maker is given what every entry has, and named after its place, from 1 on."""
    entries: list[Entry] = []
    for number, make in enumerate(makers, 1):
        base = {"id": str(number), "parent_id": str(number - 1) if number > 1 else None, "sequence": number}
        entries.append(make(timestamp=NOW, **base))
    return entries


def user(**base: Any) -> Entry:
    return MessageEntry(message=Message.user(base["id"]), **base)


def assistant(model: str | None = None, provider: str | None = None) -> Any:
    extra = {"pi": {"provider": provider}} if provider else None

    def make(**base: Any) -> Entry:
        return MessageEntry(message=Message(Role.ASSISTANT, base["id"], model=model, extra=extra), **base)

    return make


def compacted(first_kept: int | None, *messages: Message) -> Any:
    def make(**base: Any) -> Entry:
        kept = None if first_kept is None else str(first_kept)
        return Compaction(
            summary=f"summary {base['id']}",
            first_kept_entry_id=kept,
            first_kept_sequence=first_kept,
            messages=messages,
            **base,
        )

    return make


def change(provider: str, model: str) -> Any:
    return lambda **base: ModelChange(provider=provider, model_id=model, **base)


def thinking(level: str) -> Any:
    return lambda **base: ThinkingLevelChange(thinking_level=level, **base)


def left(summary: str) -> Any:
    return lambda **base: BranchSummary(summary=summary, from_id="x", **base)


def label(**base: Any) -> Entry:
    return Label(target_id="1", label="here", **base)


def title(**base: Any) -> Entry:
    return SessionInfo(name="title", **base)


def custom(**base: Any) -> Entry:
    return Custom(custom_type="x", data={"a": 1}, **base)


def collected(path: Sequence[Entry], collector: BranchCollector) -> tuple[Branch, int]:
    """What a collector makes of a branch that it is fed until it has enough, and how many entries that took."""
    fed = 0
    for entry in reversed(path):
        collector.feed(entry)
        fed += 1
        if collector.has_enough:
            break
    return collector.branch(), fed


# --- compactions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ([], []),
        ([user, assistant(), user], ["1", "2", "3"]),
        ([user, user, compacted(2), user], ["summary 3", "2", "4"]),
        ([user, user, compacted(1), user], ["summary 3", "1", "2", "4"]),
        ([user, user, compacted(None), user], ["summary 3", "4"]),
        ([user, user, compacted(None)], ["summary 3"]),
        ([user, compacted(1), user, compacted(3), user], ["summary 4", "3", "5"]),
        ([user, compacted(None), user, compacted(None), user], ["summary 4", "5"]),
        ([user, user, compacted(2), user, compacted(2), user], ["summary 5", "2", "4", "6"]),
        ([user, label, compacted(2), user], ["summary 3", "4"]),
        ([user, left("tried"), user], ["1", "tried", "3"]),
        ([user, left(""), user], ["1", "3"]),
        ([label, title, custom, change("p", "m"), thinking("high")], []),
    ],
)
def test_the_newest_compaction_stands_for_what_comes_before_what_it_keeps(path: list[Any], expected: list[str]) -> None:
    assert texts(resolve(chain(*path))) == expected


def test_the_summarizers_messages_follow_the_summary() -> None:
    branch = resolve(chain(user, compacted(None, Message.user("in short"), Message.assistant("yes")), user))
    assert texts(branch) == ["summary 2", "in short", "yes", "3"]


def test_a_compaction_without_a_summary_says_nothing_itself() -> None:
    [entry] = chain(compacted(None, Message.user("in short")))
    assert isinstance(entry, Compaction)
    silent = msgspec.structs.replace(entry, summary="")
    assert [message.text for message in summary_messages(silent)] == ["in short"]
    assert summary_messages(None) == []


def test_what_is_kept_and_not_on_the_branch_is_told() -> None:
    """Defect O1: what followed the compaction vanished silently."""
    branch = resolve(chain(user, user, compacted(99), user, user))
    assert texts(branch) == ["summary 3", "4", "5"]
    assert len(branch.problems) == 1


# --- what is in force ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ([user], (None, None, None)),
        ([change("p", "m"), user, thinking("high")], ("p", "m", "high")),
        ([change("p", "m"), change("q", "n"), thinking("high"), thinking("low")], ("q", "n", "low")),
        ([change("p", "m"), change("", ""), thinking("high"), thinking("")], (None, None, None)),
        ([change("p", "m"), assistant("n")], ("p", "n", None)),
        ([change("p", "m"), assistant("n", "q")], ("q", "n", None)),
        ([change("p", "m"), assistant("n", "q"), assistant("o")], ("q", "o", None)),
        ([change("p", "m"), assistant()], ("p", "m", None)),
        ([change("p", "m"), compacted(None), user], ("p", "m", None)),
        ([assistant("m", "p"), change("", "n")], (None, "n", None)),
    ],
)
def test_the_newest_change_is_in_force(path: list[Any], expected: tuple[str | None, ...]) -> None:
    branch, _ = collected(chain(*path), BranchCollector(needs_state=True))
    assert (branch.provider, branch.model, branch.thinking_level) == expected


def test_who_served_a_model_may_be_said_in_two_places() -> None:
    assert provider_of(Message(Role.ASSISTANT, extra={"provider": "p"})) == "p"
    assert provider_of(Message(Role.ASSISTANT, extra={"pi": {"provider": "p"}})) == "p"
    assert provider_of(Message(Role.ASSISTANT, extra={"provider": 1, "pi": {"provider": None}, "x": [1]})) is None
    assert provider_of(Message.assistant("x")) is None


# --- how an entry is told --------------------------------------------------------------------------------------------


def test_only_messages_and_summaries_are_shown() -> None:
    shown = [
        shown_message(entry) for entry in chain(user, label, title, custom, change("p", "m"), left("tried"), left(""))
    ]
    assert [message and message.role for message in shown] == [
        Role.USER,
        *[None] * 4,
        Role.BRANCH_SUMMARY,
        None,
    ]


def test_a_summary_stands_in_the_window_as_a_message() -> None:
    [entry] = chain(left("tried"))
    assert isinstance(entry, BranchSummary)
    shown = as_message_entry(entry)
    assert shown is not None
    assert (shown.id, shown.sequence, shown.message.text) == (entry.id, entry.sequence, "tried")
    assert as_message_entry(msgspec.structs.replace(entry, summary="")) is None


# --- no more than is needed ------------------------------------------------------------------------------------------


def test_the_newest_messages_go_back_to_a_users() -> None:
    branch, fed = collected(
        chain(user, user, assistant(), assistant(), assistant()), BranchCollector(at_most=2, needs_compaction=False)
    )
    assert texts(branch) == ["2", "3", "4", "5"]
    assert (fed, branch.is_whole) == (4, False)


def test_the_compaction_is_looked_for_beyond_the_newest_messages() -> None:
    branch, fed = collected(chain(user, user, compacted(2), *[user] * 5), BranchCollector(at_most=2))
    assert texts(branch) == ["summary 3", "7", "8"]
    assert (fed, branch.is_whole, branch.problems) == (6, False, ())


def test_a_compaction_that_keeps_nothing_ends_the_search() -> None:
    branch, fed = collected(chain(*[user] * 50, compacted(None), user), BranchCollector(at_most=10))
    assert texts(branch) == ["summary 51", "52"]
    assert (fed, branch.is_whole) == (2, True)


def test_as_many_tokens_as_were_asked_for_back_to_a_users() -> None:
    branch, fed = collected(chain(*[user] * 20), BranchCollector(at_most=30, size=lambda _: 10, needs_compaction=False))
    assert texts(branch) == ["18", "19", "20"]
    assert fed == 3


KINDS = st.lists(
    st.sampled_from(
        [
            user,
            user,
            assistant(),
            assistant("m"),
            assistant("n", "q"),
            label,
            title,
            change("p", "m"),
            change("", ""),
            thinking("high"),
            left("tried"),
            compacted(None),
            "keeps",
        ]
    ),
    max_size=20,
)


def made(kinds: list[Any], places: list[int]) -> list[Entry]:
    """A branch of these kinds, with compactions that keep what comes from any earlier place on."""
    makers = []
    for number, (kind, place) in enumerate(zip(kinds, places, strict=False)):
        keeps = compacted(place % number + 1) if number else compacted(None)
        makers.append(keeps if kind == "keeps" else kind)
    return chain(*makers)


PLACES = st.lists(st.integers(min_value=0, max_value=100), min_size=20, max_size=20)


def plainly(path: Sequence[Entry]) -> tuple[list[str], tuple[str | None, ...]]:
    """Section 8.2 as it stands there, from the root to the leaf, and what is in force at the end."""
    newest = max((n for n, entry in enumerate(path) if isinstance(entry, Compaction)), default=None)
    said = [(n, message.text) for n, entry in enumerate(path) if (message := shown_message(entry)) is not None]
    provider = model = level = None
    for entry in path:
        match entry:
            case ModelChange():
                provider, model = entry.provider or None, entry.model_id or None
            case ThinkingLevelChange():
                level = entry.thinking_level or None
            case MessageEntry() if entry.message.model:
                provider, model = provider_of(entry.message) or provider, entry.message.model
            case _:
                pass
    if newest is None:
        return [text for _, text in said], (provider, model, level)
    compaction = path[newest]
    assert isinstance(compaction, Compaction)
    ids = [entry.id for entry in path]
    first = newest if compaction.first_kept_entry_id is None else ids.index(compaction.first_kept_entry_id)
    return [compaction.summary, *(text for n, text in said if n >= first)], (provider, model, level)


@given(KINDS, PLACES)
def test_from_the_leaf_it_is_what_it_is_from_the_root(kinds: list[Any], places: list[int]) -> None:
    path = made(kinds, places)
    branch = resolve(path)
    expected, state = plainly(path)
    assert texts(branch) == expected
    assert (branch.provider, branch.model, branch.thinking_level) == state
    assert branch.is_whole
    assert branch.problems == ()
    assert texts(resolve(Transcript(path).path())) == expected


@given(KINDS, PLACES, st.integers(min_value=1, max_value=8))
def test_a_part_is_the_end_of_the_whole_with_the_same_summary_and_state(
    kinds: list[Any], places: list[int], newest: int
) -> None:
    path = made(kinds, places)
    part, _ = collected(path, BranchCollector(at_most=newest, needs_state=True))
    expected, state = plainly(path)
    assert (part.provider, part.model, part.thinking_level) == state
    whole = resolve(path)
    assert part.compaction is whole.compaction
    summary = [message.text for message in summary_messages(part.compaction)]
    kept, all_kept = texts(part)[len(summary) :], expected[len(summary) :]
    assert kept == all_kept[len(all_kept) - len(kept) :]
    assert len(kept) >= min(newest, len(all_kept))
    if part.is_whole:
        assert kept == all_kept
    if len(kept) < len(all_kept):
        assert not part.is_whole
    assert part.problems == ()


# --- what is left of a branch ----------------------------------------------------------------------------------------


@given(KINDS, PLACES, st.data())
def test_what_is_left_of_a_branch_is_a_branch_again(kinds: list[Any], places: list[int], data: st.DataObject) -> None:
    path = made(kinds, places)
    left_over = [entry for entry in path if data.draw(st.booleans())]
    joined = rejoined(left_over)
    assert [entry.id for entry in joined] == [entry.id for entry in left_over]
    transcript = Transcript(joined)
    assert [problem for problem in transcript.problems if not problem.startswith("label")] == []
    assert [entry.id for entry in transcript.path()] == [entry.id for entry in left_over]
    assert all(place_of_parent(b) == a.sequence for a, b in pairwise(joined))
    branch = resolve(joined)
    assert branch.problems == ()
    if len(left_over) == len(path):
        assert joined == path


def test_what_is_in_the_store_keeps_its_parent() -> None:
    path = chain(user, user, user, user, user)
    joined = rejoined([path[1], path[4]], stored=2)
    assert [(entry.parent_id, place_of_parent(entry)) for entry in joined] == [("1", 1), ("2", 2)]
    joined = rejoined([path[3], path[4]], stored=3)
    assert [(entry.parent_id, place_of_parent(entry)) for entry in joined] == [("3", 3), ("4", 4)]
    joined = rejoined([path[3], path[4]], stored=1)
    assert [(entry.parent_id, place_of_parent(entry)) for entry in joined] == [(None, 0), ("4", 4)]


@pytest.mark.parametrize(
    ("left_over", "stored", "expected"),
    [([2, 3, 4], 0, "3"), ([2, 3, 4], 2, "2"), ([3, 4], 0, None), ([3, 4], 2, None)],
    ids=["lost", "in the store", "all of it is lost", "out of reach"],
)
def test_a_compaction_keeps_what_is_left_of_what_it_kept(
    left_over: list[int], stored: int, expected: str | None
) -> None:
    path = chain(user, user, user, compacted(2), user)
    joined = rejoined([path[place] for place in left_over], stored=stored)
    [compaction] = [entry for entry in joined if isinstance(entry, Compaction)]
    assert compaction.first_kept_entry_id == expected


def test_metadata_is_never_told() -> None:
    entry = Custom(id="1", parent_id=None, timestamp=NOW, custom_type=METADATA, data={"a": 1})
    assert shown_message(entry) is None
