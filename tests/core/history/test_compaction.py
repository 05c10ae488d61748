"""Where histories may be cut: pi's cases, the cuts that broke other programs, random branches, and a real session."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import msgspec
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from miniclaw_sessions.core.history.branch import resolve, shown_message
from miniclaw_sessions.core.history.compaction import (
    KEEP_TOKENS,
    CompactionPlan,
    TokenCounter,
    check_cut,
    count_by_characters,
    count_tokens,
    has_open_calls,
    plan_compaction,
    tiktoken_counter,
    tokens_of,
    tokens_with,
)
from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.protocol.entries import (
    BranchSummary,
    Compaction,
    Custom,
    Entry,
    Label,
    MessageEntry,
    ModelChange,
    ThinkingLevelChange,
)
from miniclaw_sessions.core.protocol.messages import (
    ImagePart,
    Message,
    OtherPart,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
    Usage,
)
from miniclaw_sessions.errors import ConfigError, UnsafeCompaction
from tests.core.history.calls import calling, result
from tests.legality import is_legal

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
USER = Message.user("user")
DONE = Message.assistant("done")


def place(number: int) -> dict[str, object]:
    """The identity of the entry at one place of a path: its id is e0, e1, ..."""
    return {"id": f"e{number}", "parent_id": f"e{number - 1}" if number else None, "timestamp": NOW}


def path_of(*said: Message | Entry) -> list[Entry]:
    """A branch of these messages and entries; the entries get their ids here."""
    return [
        MessageEntry(**place(number), message=each)  # type: ignore[arg-type]
        if isinstance(each, Message)
        else msgspec.structs.replace(each, **place(number))
        for number, each in enumerate(said)
    ]


def compaction(first_kept: str | None, summary: str = "summary", messages: tuple[Message, ...] = ()) -> Compaction:
    identity = {"id": "", "parent_id": None, "timestamp": NOW}
    return Compaction(**identity, summary=summary, first_kept_entry_id=first_kept, messages=messages)  # type: ignore[arg-type]


def branch_summary(summary: str) -> BranchSummary:
    return BranchSummary(id="", parent_id=None, timestamp=NOW, summary=summary)


MODEL = ModelChange(id="", parent_id=None, timestamp=NOW, provider="p", model_id="m")
THINKING = ThinkingLevelChange(id="", parent_id=None, timestamp=NOW, thinking_level="high")
LABEL = Label(id="", parent_id=None, timestamp=NOW, target_id="e0", label="here")
NOTE = Custom(id="", parent_id=None, timestamp=NOW, custom_type="note")


def long(message: Message, tokens: int) -> Message:
    return msgspec.structs.replace(message, content="x" * (4 * tokens))


def planned(path: Sequence[Entry], keep_tokens: int, count: TokenCounter = count_by_characters) -> CompactionPlan:
    plan = plan_compaction(path, keep_tokens=keep_tokens, count=count)
    assert plan is not None
    return plan


def kept(path: Sequence[Entry], first_kept_entry_id: str) -> list[Message]:
    """What of a branch stays when the cut comes before this entry."""
    ids = [entry.id for entry in path]
    messages = (shown_message(entry) for entry in path[ids.index(first_kept_entry_id) :])
    return [message for message in messages if message is not None]


def compacted(path: Sequence[Entry], plan: CompactionPlan, summary: str = "summary") -> list[Entry]:
    """The branch with the plan carried out."""
    return path_of(*as_said(path), compaction(plan.first_kept_entry_id, summary))


def as_said(path: Sequence[Entry]) -> list[Message | Entry]:
    return [entry.message if isinstance(entry, MessageEntry) else entry for entry in path]


def shown(messages: Sequence[Message]) -> list[Message]:
    """What a model sees of a part of a history, wherever it begins."""
    return build_context([USER, *messages])[1:]


# --- counting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        (Message.user(""), 0),
        (Message.user("x"), 1),
        (Message.user("xxxx"), 1),
        (Message.user("xxxxx"), 2),
        (Message.user((TextPart("xxxx"), ImagePart("image/png", "Q" * 99_999))), 1_201),
        (Message.user((OtherPart({"type": "input_audio", "data": "Q" * 99_999}),)), 1_200),
        (Message.assistant((ThinkingPart("xxxx", "a signature"), TextPart("xxxx"))), 2),
        (Message.assistant("", (ToolCall("id", "read", '{"a":123}'), ToolCall("id", "ls"))), 4),
        (Message.assistant("", (ToolCall("id", "read", "", output="xxxx"),)), 2),
        (Message.tool_result(ToolCall("id", "read"), "xxxx"), 1),
    ],
)
def test_four_characters_are_a_token(message: Message, tokens: int) -> None:
    assert count_by_characters(message) == tokens


def test_what_no_model_is_shown_costs_nothing() -> None:
    hidden = Message(Role.BASH_EXECUTION, "", extra={"command": "ls", "output": "x" * 999, "excludeFromContext": True})
    plain = Message(Role.BASH_EXECUTION, "", extra={"command": "ls", "output": "x" * 400})
    assert count_tokens([hidden]) == 0
    assert 100 < count_tokens([plain]) < 110  # the output, and "Ran `ls`:"


def test_a_summary_costs_what_a_model_reads_of_it() -> None:
    summary = Message(Role.COMPACTION_SUMMARY, "x" * 400)
    assert count_tokens([summary, USER]) == count_by_characters(shown([summary])[0]) + 1 > 101


def test_each_message_is_rounded_up_alone() -> None:
    assert count_tokens([Message.user("x")] * 10) == 10


# --- tiktoken --------------------------------------------------------------------------------------------------------


def register(monkeypatch: pytest.MonkeyPatch, name: str, constructor: Callable[[], dict[str, object]]) -> None:
    """Offer tiktoken one more encoding, as its plugins do."""
    registry = pytest.importorskip("tiktoken.registry")
    registry.list_encoding_names()  # finds the others first
    monkeypatch.setitem(registry.ENCODING_CONSTRUCTORS, name, constructor)


def one_token_per_byte() -> dict[str, object]:
    ranks = {bytes([byte]): byte for byte in range(256)}
    return {
        "name": "bytes",
        "pat_str": r"\S+|\s+",
        "mergeable_ranks": ranks,
        "special_tokens": {"<|endoftext|>": 256},
    }


def test_tiktoken_counts_its_own_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, "bytes", one_token_per_byte)
    count = tiktoken_counter("bytes")
    call = ToolCall("id", "read", '{"a":1}')
    assert count(Message.user("grüezi")) == 7
    assert count(Message.assistant((ThinkingPart("hm"), TextPart("yes")), (call,))) == 2 + 3 + 4 + 7
    assert count(Message.user((ImagePart("image/png", "QQ=="), TextPart("?")))) == 1_201


def test_tiktoken_counts_what_looks_like_its_marks_and_what_is_no_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, "bytes", one_token_per_byte)
    count = tiktoken_counter("bytes")
    assert count(Message.user("<|endoftext|>")) == 13
    assert count(Message.user("\ud800")) == 3  # replaced by U+FFFD


def test_a_plan_counts_with_the_counter_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, "bytes", one_token_per_byte)
    path = path_of(USER, DONE, USER, DONE)
    plan = planned(path, 5, tiktoken_counter("bytes"))
    assert (plan.first_kept_entry_id, plan.tokens_kept, plan.tokens_before) == ("e2", 8, 16)


def test_without_tiktoken_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(ConfigError, match="pip install tiktoken"):
        tiktoken_counter()


def test_an_encoding_that_nobody_knows_is_a_wrong_setting() -> None:
    pytest.importorskip("tiktoken")
    with pytest.raises(ConfigError, match="encoding 'nonsense'"):
        tiktoken_counter("nonsense")


def test_an_encoding_whose_table_cannot_be_had_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load = pytest.importorskip("tiktoken.load")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    register(monkeypatch, "far away", lambda: load.load_tiktoken_bpe("http://127.0.0.1:9/table"))
    with pytest.raises(ConfigError, match="TIKTOKEN_CACHE_DIR"):
        tiktoken_counter("far away")


# --- the size of a context -------------------------------------------------------------------------------------------


def reply(total: int, *, stop_reason: str | None = None) -> Message:
    usage = Usage(input_tokens=total - 10, output_tokens=10)
    return msgspec.structs.replace(DONE, usage=usage, stop_reason=stop_reason)


def test_without_usage_everything_is_counted() -> None:
    assert tokens_of(path_of(USER, MODEL, DONE, branch_summary("x" * 4))) == 2 + count_tokens(
        [Message(Role.BRANCH_SUMMARY, "x" * 4)]
    )


def test_the_newest_usage_counts_and_what_follows_it() -> None:
    assert tokens_of(path_of(USER, reply(500), USER, reply(900), long(USER, 30))) == 930


@pytest.mark.parametrize("stop_reason", ["aborted", "error"])
def test_the_usage_of_a_reply_that_broke_off_does_not_count(stop_reason: str) -> None:
    assert tokens_of(path_of(USER, reply(500), USER, reply(90, stop_reason=stop_reason))) == 500 + 1 + 1


def test_a_usage_without_the_input_does_not_count() -> None:
    silent = msgspec.structs.replace(DONE, usage=Usage(output_tokens=7))
    assert tokens_of(path_of(USER, silent, USER, msgspec.structs.replace(DONE, usage=Usage()))) == 4


def test_a_usage_from_before_the_compaction_does_not_count() -> None:
    path = path_of(USER, DONE, USER, reply(90_000), compaction("e2"))
    summary = count_tokens([Message(Role.COMPACTION_SUMMARY, "summary")])
    assert tokens_of(path) == summary + 2
    assert tokens_of(path_of(*as_said(path), USER, reply(700), USER)) == 701


def test_the_messages_of_a_compaction_are_part_of_the_context() -> None:
    path = path_of(USER, DONE, compaction(None, "", (long(USER, 40), long(DONE, 50))), USER)
    assert tokens_of(path) == 91


@given(
    st.lists(st.sampled_from([USER, DONE, reply(500), reply(90, stop_reason="error")])),
    st.lists(st.sampled_from([USER, DONE, reply(700), reply(90, stop_reason="aborted"), branch_summary("x" * 8)])),
)
def test_what_follows_a_branch_is_counted_as_if_it_had_been_there(before: list[Message], after: list[Message]) -> None:
    known = path_of(USER, *before, compaction("e0"))
    path = path_of(*as_said(known), *after)
    assert tokens_with(tokens_of(known), path[len(known) :]) == tokens_of(path)


def test_an_empty_branch_has_no_tokens() -> None:
    assert tokens_of([]) == 0


# --- pi's findCutPoint cases -----------------------------------------------------------------------------------------


def test_no_valid_cut_gives_start() -> None:
    """Which means that nothing is summarized, and so there is no plan."""
    assert plan_compaction(path_of(Message.assistant("a"))) is None
    assert plan_compaction(path_of(Message.assistant("a")), keep_tokens=0) is None
    assert plan_compaction(path_of(result("a"), result("b")), keep_tokens=0) is None


def test_all_fits_gives_keep_everything() -> None:
    path = path_of(Message.user("1"), Message.assistant("a"), Message.user("2"), Message.assistant("b"))
    assert plan_compaction(path, keep_tokens=50_000) is None
    assert plan_compaction(path, keep_tokens=5) is None
    assert plan_compaction(path, keep_tokens=4) is None  # exactly


def test_the_cut_depends_on_the_tokens() -> None:
    path = path_of(*(long(each, 100) for each in [USER, DONE] * 10))
    assert [planned(path, keep).first_kept_entry_id for keep in (0, 100, 101, 250, 1_899)] == [
        *("e19", "e19", "e18", "e17", "e1")
    ]


def test_split_turn_flagged() -> None:
    path = path_of(
        *(Message.user("Turn 1"), Message.assistant("A1")),
        *(Message.user("Turn 2"), *(long(Message.assistant(), 100) for _ in range(3))),
    )
    plan = planned(path, 150)
    assert plan.first_kept_entry_id == "e4"
    assert [message.text for message in plan.messages] == ["Turn 1", "A1"]
    assert [message.text[:6] for message in plan.turn_prefix] == ["Turn 2", "xxxxxx"]


def test_a_cut_at_a_user_message_splits_nothing() -> None:
    plan = planned(path_of(USER, DONE, long(USER, 100), DONE), 50)
    assert plan.first_kept_entry_id == "e2"
    assert plan.messages == (USER, DONE)
    assert plan.turn_prefix == ()


# --- pi's prepareCompaction cases, and those of a path that was compacted before -------------------------------------


def test_kept_messages_stay_when_they_still_fit() -> None:
    path = path_of(USER, DONE, USER, DONE, USER, DONE, compaction("e2"), USER, DONE)
    assert plan_compaction(path) is None


def test_kept_messages_are_summarized_when_the_budget_moves_past_them() -> None:
    turns = [long(Message.user(""), 100), long(Message.assistant(), 100)]
    path = path_of(USER, DONE, *turns, *turns, compaction("e2", "First summary"), *turns)
    plan = planned(path, 100)
    assert plan.first_kept_entry_id == "e8"
    assert plan.messages == (Message(Role.COMPACTION_SUMMARY, "First summary", NOW), *turns, *turns)
    assert plan.turn_prefix == (turns[0],)


def test_only_the_newest_compaction_counts() -> None:
    first, second = compaction("e1", "First"), compaction("e4", "Second")
    path = path_of(USER, DONE, USER, first, DONE, USER, second, long(USER, 9), long(DONE, 9))
    plan = planned(path, 9)
    assert [message.text for message in plan.messages] == ["Second", "done", "user"]
    assert plan.turn_prefix == (long(USER, 9),)


def test_a_path_may_begin_where_its_newest_compaction_does() -> None:
    path = path_of(USER, DONE, USER, DONE, compaction("e2"), USER, DONE, USER, DONE)
    assert planned(path[2:], 3) == planned(path, 3)


def test_the_messages_of_a_compaction_are_summarized_again() -> None:
    path = path_of(USER, compaction(None, "", (DONE, USER)), DONE, USER, DONE)
    assert planned(path, 2).messages == (DONE, USER, DONE)


def test_right_after_a_compaction_there_is_nothing_to_compact() -> None:
    path = path_of(USER, DONE, USER, DONE, compaction("e0"))
    assert plan_compaction(path, keep_tokens=1) is None
    assert plan_compaction(path_of(*as_said(path), LABEL, MODEL), keep_tokens=1) is None
    assert plan_compaction(path_of(*as_said(path), USER), keep_tokens=1) is not None


def test_a_compaction_that_keeps_what_is_not_there_keeps_what_follows_it() -> None:
    path = path_of(USER, DONE, compaction("elsewhere"), USER, DONE, USER, DONE)
    assert planned(path, 2).messages == (Message(Role.COMPACTION_SUMMARY, "summary", NOW), USER, DONE)


def test_a_turn_whose_beginning_was_summarized_is_not_split_again() -> None:
    path = path_of(USER, DONE, DONE, DONE, compaction("e1"), DONE)
    plan = planned(path, 1)
    assert plan.first_kept_entry_id == "e5"
    assert plan.turn_prefix == ()
    assert [message.text for message in plan.messages] == ["summary", "done", "done", "done"]


# --- where a cut may come --------------------------------------------------------------------------------------------


def test_the_newest_turn_is_kept_whole_if_it_fits() -> None:
    path = path_of(USER, long(DONE, 100), USER, calling("a"), result("a"), DONE)
    assert planned(path, 5).first_kept_entry_id == "e2"
    assert planned(path, 6).first_kept_entry_id == "e1"


def test_a_call_and_its_results_stay_together() -> None:
    """B24: the place before an assistant's message with calls is safe; document 003 is stricter than it needs to be."""
    path = path_of(USER, DONE, calling("a", "b"), LABEL, result("b"), MODEL, long(result("a"), 50), DONE)
    assert [planned(path, keep).first_kept_entry_id for keep in (1, 2, 51, 52)] == ["e7", "e2", "e2", "e2"]


def test_a_result_that_came_late_holds_what_came_between() -> None:
    """pi#1764, pi#4570, pi#6832: an orphaned result, and no request was accepted any more."""
    path = path_of(USER, calling("a"), USER, DONE, result("a"), USER)
    assert planned(path, 1).first_kept_entry_id == "e5"
    assert planned(path, 2).first_kept_entry_id == "e1"


def test_results_without_ids_belong_to_the_newest_calls() -> None:
    path = path_of(USER, calling("a"), result(None), calling("b", "c"), result(None), result(None), DONE)
    assert [planned(path, keep).first_kept_entry_id for keep in (1, 2, 6, 7)] == ["e6", "e3", "e3", "e1"]


def test_an_id_that_is_used_again_belongs_to_the_nearest_call() -> None:
    path = path_of(USER, calling("a"), result("a"), calling("a"), result("a"), DONE)
    assert planned(path, 2).first_kept_entry_id == "e3"


def test_a_result_without_a_call_is_never_the_first_that_is_kept() -> None:
    path = path_of(USER, DONE, result("gone"), USER)
    assert [planned(path, keep).first_kept_entry_id for keep in (1, 2, 3)] == ["e3", "e1", "e1"]


def test_a_result_for_the_messages_of_a_compaction_holds_the_cut() -> None:
    path = path_of(USER, compaction(None, "", (USER, calling("a"))), DONE, result("a"), USER)
    assert planned(path, 1).first_kept_entry_id == "e4"
    assert plan_compaction(path, keep_tokens=2) is None


def test_what_says_nothing_is_no_reason_to_compact() -> None:
    hidden = Message(Role.BASH_EXECUTION, "", extra={"command": "ls", "excludeFromContext": True})
    silent = [Message.system("be kind"), hidden, Message.assistant(" "), result("gone")]
    path = path_of(*silent, long(USER, 100), DONE)
    assert plan_compaction(path, keep_tokens=50) is None
    assert planned(path, 1).messages == tuple(silent)
    assert planned(path, 1).turn_prefix == (long(USER, 100),)


@pytest.mark.parametrize("turn", [Message(Role.BASH_EXECUTION, "ls"), Message(Role.CUSTOM, "!"), branch_summary("!")])
def test_what_a_model_is_told_as_the_user_begins_a_turn(turn: Message | Entry) -> None:
    plan = planned(path_of(USER, DONE, turn, MODEL, calling("a"), result("a"), long(DONE, 50)), 50)
    assert plan.messages == (USER, DONE)
    assert [message.role for message in plan.turn_prefix[1:]] == [Role.ASSISTANT, Role.TOOL_RESULT]
    assert planned(path_of(USER, DONE, turn, long(DONE, 50)), 51).turn_prefix == ()


def test_the_default_keeps_twenty_thousand_tokens() -> None:
    path = path_of(*(long(each, 1_000) for each in [USER, DONE] * 20))
    assert KEEP_TOKENS == 20_000
    plan = plan_compaction(path)
    assert plan is not None
    assert (plan.first_kept_entry_id, plan.tokens_kept, plan.tokens_before) == ("e20", 20_000, 40_000)


def test_a_plan_tells_what_the_provider_said() -> None:
    assert planned(path_of(USER, DONE, USER, reply(90_000), USER), 1).tokens_before == 90_001


# --- open calls ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        [USER, calling("a")],
        [USER, calling("a", "b"), result("b")],
        [USER, calling("a"), LABEL, MODEL],
        [USER, calling("a"), result("b")],
        [USER, calling("a"), Message(Role.CUSTOM, "a notice"), Message.system("hurry")],
        [USER, calling("a"), result("a"), calling("a")],
        [USER, calling("a", "b"), result(None)],
        [USER, calling("a"), compaction("e0")],  # pi#8667: logged between call and result
        [USER, compaction(None, "summary", (calling("a"),))],
    ],
)
def test_calls_without_results_are_open(said: list[Message | Entry]) -> None:
    path = path_of(*said)
    assert has_open_calls(path)
    assert plan_compaction(path, keep_tokens=0) is None
    with pytest.raises(UnsafeCompaction, match="wait for their results"):
        check_cut(path, path[-1].id)


@pytest.mark.parametrize(
    "said",
    [
        [],
        [result("a")],
        [USER, calling("a"), result("a")],
        [USER, calling("a", "b"), result("b"), LABEL, result("a"), Message(Role.CUSTOM, "a notice")],
        [USER, calling("a", "b"), result(None), result(None)],
        [USER, calling("a"), USER],  # interrupted: nobody waits any more
        [USER, calling("a"), DONE],
        [USER, calling("a"), branch_summary("elsewhere")],
        [USER, Message.assistant("", (ToolCall("a", "read", "", extra={"partialJson": "{"}),))],
        [USER, Message.assistant("", (ToolCall("a", "read", output="kept on the call"),))],
        [USER, calling("a"), compaction(None)],
        [USER, msgspec.structs.replace(result(None), tool_calls=(ToolCall("a", "read"),))],
    ],
)
def test_other_calls_are_not_open(said: list[Message | Entry]) -> None:
    assert not has_open_calls(path_of(*said))


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("each", [USER, DONE, calling("a"), MODEL, THINKING, LABEL, NOTE, branch_summary("!")])
def test_a_cut_may_come_before_anything_but_a_result(each: Message | Entry) -> None:
    answers = [result("a")] if isinstance(each, Message) and each.tool_calls else []
    check_cut(path_of(USER, DONE, each, *answers, DONE), "e2")


def test_a_cut_may_come_before_everything() -> None:
    check_cut(path_of(USER, DONE), "e0")


@pytest.mark.parametrize("first_kept", ["e2", "e3", "e4", "e5"])
def test_a_cut_between_a_call_and_its_result_is_refused(first_kept: str) -> None:
    path = path_of(USER, calling("a", "b"), LABEL, result("a"), USER, result("b"), DONE)
    check_cut(path, "e1")
    check_cut(path, "e6")
    with pytest.raises(UnsafeCompaction, match=f"'{first_kept}'.*part a tool call from its result"):
        check_cut(path, first_kept)


def test_an_entry_that_is_not_on_the_branch_cannot_be_kept() -> None:
    with pytest.raises(UnsafeCompaction, match=r"'elsewhere'.*not on the current branch"):
        check_cut(path_of(USER, DONE), "elsewhere")
    with pytest.raises(UnsafeCompaction, match="not on the current branch"):
        check_cut([], "e0")


def test_an_entry_that_was_summarized_before_cannot_be_kept() -> None:
    path = path_of(USER, DONE, USER, DONE, compaction("e2"), USER, DONE)
    check_cut(path, "e2")
    with pytest.raises(UnsafeCompaction, match=r"'e1'.*compaction e4 stands for it already"):
        check_cut(path, "e1")


@pytest.mark.parametrize(("length", "first_kept"), [(3, "e2"), (2, "e1"), (3, "e9")])
def test_no_refusal_tells_what_was_said(length: int, first_kept: str) -> None:
    path = path_of(Message.user("secret"), calling("a", text="secret"), result("a", "secret"))
    with pytest.raises(UnsafeCompaction) as refusal:
        check_cut(path[:length], first_kept)
    assert "secret" not in str(refusal.value)


# --- random branches -------------------------------------------------------------------------------------------------

ids = st.sampled_from(["", "a", "b", "c"])
calls = st.builds(
    ToolCall,
    id=ids,
    name=st.sampled_from(["", "read", "read"]),
    arguments=st.sampled_from(["", "{}", '{"a":1}', '{"a":']),
    output=st.sampled_from([None, None, None, "kept on the call"]),
    extra=st.sampled_from([None, None, None, {"partialJson": '{"a'}, {"$place": 0}]),
)
messages = st.builds(
    Message,
    role=st.sampled_from([*Role, *[Role.ASSISTANT] * 4, *[Role.TOOL_RESULT] * 4, Role.USER, Role.USER]),
    content=st.sampled_from(["", " ", "text", "x" * 40, "x" * 400, (TextPart("text"), ThinkingPart("hm"))]),
    tool_calls=st.one_of(st.none(), st.none(), st.lists(calls, max_size=3).map(tuple)),
    tool_call_id=st.one_of(st.none(), ids),
    name=st.sampled_from([None, "read"]),
    usage=st.sampled_from([None, None, None, Usage(input_tokens=500)]),
    extra=st.sampled_from([None, None, {"summary": "was"}, {"excludeFromContext": True}, {"$place": 1}]),
)
good_turns = st.builds(
    lambda count, order, texts: [
        Message.user("x" * texts[0]),
        calling(*(f"c{number}" for number in range(count)), text="x" * texts[1]),
        *(result(f"c{number}", "x" * texts[2]) for number in order if number < count),
    ],
    count=st.integers(1, 4),
    order=st.permutations(range(4)),
    texts=st.tuples(*[st.integers(0, 200)] * 3),
)
entries: st.SearchStrategy[Entry] = st.one_of(
    st.sampled_from([MODEL, THINKING, LABEL, NOTE, branch_summary("was"), branch_summary("")]),
    st.builds(
        compaction,
        first_kept=st.one_of(st.none(), st.integers(0, 30).map("e{}".format)),
        summary=st.sampled_from(["", "summary"]),
        messages=st.lists(messages, max_size=2).map(tuple),
    ),
)
pieces = st.one_of(messages.map(lambda message: [message]), good_turns, entries.map(lambda entry: [entry]))
paths = st.lists(pieces, max_size=12).map(lambda drawn: path_of(*(each for piece in drawn for each in piece)))
budgets = st.one_of(st.integers(0, 400), st.integers(0, 40))


def is_seamless(path: Sequence[Entry], first_kept: str) -> bool:
    """Whether a model sees the same of both parts together as of the whole: nothing was parted."""
    whole, rest = resolve(path).messages(), kept(path, first_kept)
    return shown(whole[: len(whole) - len(rest)]) + shown(rest) == shown(whole)


@given(paths, budgets)
def test_every_plan_is_safe(path: list[Entry], keep_tokens: int) -> None:
    plan = plan_compaction(path, keep_tokens=keep_tokens)
    if plan is not None:
        check_cut(path, plan.first_kept_entry_id)
        assert is_seamless(path, plan.first_kept_entry_id)


def told_apart(path: Sequence[Entry]) -> list[Entry]:
    """The same with no two messages alike: else nobody could see that one stands for the other."""
    return [
        msgspec.structs.replace(
            entry, message=msgspec.structs.replace(entry.message, content=f"{number} {entry.message.text}")
        )
        if isinstance(entry, MessageEntry)
        else entry
        for number, entry in enumerate(path)
    ]


BROKEN = Message.assistant("", (ToolCall("", "", ""), ToolCall("", "", ""), ToolCall("a", "read", "")))


@given(paths)
@example(path_of(USER, calling("a"), calling("a"), result("a"), result("a")))
@example(path_of(USER, calling("", "", "a"), result(None, ""), result("a", "")))
@example(path_of(USER, BROKEN, result(None, ""), result("a", "")))
def test_a_cut_is_refused_exactly_when_it_parts_something(path: list[Entry]) -> None:
    path = told_apart(path)
    for entry in resolve(path).entries:
        try:
            check_cut(path, entry.id)
        except UnsafeCompaction:
            assert has_open_calls(path) or not is_seamless(path, entry.id)
        else:
            assert is_seamless(path, entry.id)


@given(paths, budgets)
def test_the_context_behind_a_cut_is_legal_and_loses_nothing(path: list[Entry], keep_tokens: int) -> None:
    plan = plan_compaction(path, keep_tokens=keep_tokens)
    if plan is None:
        return
    before = shown(resolve(path).messages())
    after = build_context(resolve(compacted(path, plan)).messages())
    assert is_legal(after) == []
    assert after[0].text.endswith("summary")
    assert after[1:] == before[len(before) - len(after) + 1 :]


@given(paths, budgets)
def test_a_plan_says_where_every_message_goes(path: list[Entry], keep_tokens: int) -> None:
    plan = plan_compaction(path, keep_tokens=keep_tokens)
    if plan is None:
        return
    stays = kept(path, plan.first_kept_entry_id)
    assert [*plan.messages, *plan.turn_prefix, *stays] == resolve(path).messages()
    assert plan.tokens_kept == count_tokens(stays)
    assert plan.tokens_before == tokens_of(path)
    within = (Role.SYSTEM, Role.ASSISTANT, Role.TOOL_RESULT)
    if plan.turn_prefix:
        assert stays[0].role in within
        assert [message.role not in within for message in plan.turn_prefix] == [True] + [False] * (
            len(plan.turn_prefix) - 1
        )


@given(paths, budgets)
def test_a_plan_keeps_enough_and_no_more_than_is_safe(path: list[Entry], keep_tokens: int) -> None:
    plan = plan_compaction(path, keep_tokens=keep_tokens)
    if plan is None:
        return
    assert plan.tokens_kept >= keep_tokens
    ids = [entry.id for entry in path]
    for entry in path[ids.index(plan.first_kept_entry_id) + 1 :]:
        message = shown_message(entry)
        if message is not None and not message.is_tool_result and is_seamless(path, entry.id):
            assert count_tokens(kept(path, entry.id)) < keep_tokens


@given(paths, st.lists(budgets, min_size=2, max_size=6).map(sorted))
def test_a_larger_budget_never_cuts_later(path: list[Entry], growing: list[int]) -> None:
    """And where a small one finds nothing to compact, a larger one does not either."""
    number = {entry.id: place for place, entry in enumerate(path)}
    plans = [plan_compaction(path, keep_tokens=budget) for budget in growing]
    cuts = [-1 if plan is None else number[plan.first_kept_entry_id] for plan in plans]
    assert all(later <= earlier for earlier, later in pairwise(cuts))


@given(paths, budgets)
def test_a_plan_carried_out_leaves_nothing_to_compact(path: list[Entry], keep_tokens: int) -> None:
    plan = plan_compaction(path, keep_tokens=keep_tokens)
    assert plan == plan_compaction(path, keep_tokens=keep_tokens)
    if plan is not None:
        assert plan_compaction(compacted(path, plan), keep_tokens=keep_tokens) is None


@given(paths, budgets)
def test_what_is_summarized_does_not_change_a_plan(path: list[Entry], keep_tokens: int) -> None:
    """A path may begin with the newest compaction's first kept entry: what stands before it does not matter."""
    of_all = plan_compaction(path, keep_tokens=keep_tokens)
    assert plan_compaction(resolve(path).entries, keep_tokens=keep_tokens) == of_all


@given(st.lists(good_turns, min_size=2, max_size=8), budgets, st.integers(50, 400))
def test_compactions_in_a_chain_only_move_on(turns: list[list[Message]], keep_tokens: int, limit: int) -> None:
    path: list[Entry] = []
    cuts = [-1]
    for turn in turns:
        for message in turn:
            path = path_of(*as_said(path), message)
            plan = plan_compaction(path, keep_tokens=keep_tokens) if tokens_of(path) > limit else None
            if plan is not None:
                check_cut(path, plan.first_kept_entry_id)
                cuts.append([entry.id for entry in path].index(plan.first_kept_entry_id))
                path = compacted(path, plan)
                assert is_legal(build_context(resolve(path).messages())) == []
    assert all(later > earlier for earlier, later in pairwise(cuts))


@given(paths)
def test_open_calls_are_closed_by_their_results_and_by_nothing_less(path: list[Entry]) -> None:
    if not has_open_calls(path):
        return
    asking = next(message for message in reversed(resolve(path).messages()) if message.is_assistant)
    answers = [result(call.id) for call in asking.tool_calls or ()]
    assert has_open_calls(path_of(*as_said(path), LABEL))
    assert not has_open_calls(path_of(*as_said(path), *answers))
    assert not has_open_calls(path_of(*as_said(path), USER))


# --- a real session --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def large_path(large_session: list[Message]) -> list[Entry]:
    """The real session as a branch, with its changes of model and thinking level, and what the replies cost."""
    file = Path(__file__).parents[2] / "data" / "pi-v1-large-session.jsonl"
    remaining = iter(large_session)
    said: list[Message | Entry] = []
    for line in map(orjson.loads, file.read_bytes().splitlines()[1:]):
        if line["type"] != "message":
            said.append(MODEL if line["type"] == "model_change" else THINKING)
        elif usage := line["message"].get("usage"):
            cost = Usage(usage["input"], usage["output"], usage["cacheRead"], usage["cacheWrite"])
            said.append(msgspec.structs.replace(next(remaining), usage=cost))
        else:
            said.append(next(remaining))
    return path_of(*said)


def test_the_real_session_is_as_large_as_its_provider_said(large_path: list[Entry]) -> None:
    replies = [entry.message for entry in large_path if isinstance(entry, MessageEntry) and entry.message.usage]
    last = next(message for message in reversed(replies) if message.stop_reason not in ("aborted", "error"))
    assert last.usage is not None
    after = kept(large_path, next(e.id for e in large_path if isinstance(e, MessageEntry) and e.message is last))[1:]
    assert tokens_of(large_path) == last.usage.total + count_tokens(after) > 100_000


def largest_unit(path: Sequence[Entry]) -> int:
    """The tokens of the largest message together with its results: no cut comes nearer to a budget."""
    sizes = [0]
    for message in resolve(path).messages():
        sizes.append(count_by_characters(message) + (sizes.pop() if message.is_tool_result else 0))
    return max(sizes)


@pytest.mark.parametrize("keep_tokens", [0, 1, 1_000, 5_000, 20_000, 50_000, 90_000])
def test_the_real_session_is_cut_well(large_path: list[Entry], keep_tokens: int) -> None:
    plan = planned(large_path, keep_tokens)
    check_cut(large_path, plan.first_kept_entry_id)
    assert is_seamless(large_path, plan.first_kept_entry_id)
    assert keep_tokens <= plan.tokens_kept < keep_tokens + largest_unit(large_path)
    assert [*plan.messages, *plan.turn_prefix, *kept(large_path, plan.first_kept_entry_id)] == [
        entry.message for entry in large_path if isinstance(entry, MessageEntry)
    ]


def test_the_real_session_fits_a_budget_of_its_size(large_path: list[Entry]) -> None:
    size = count_tokens(resolve(large_path).messages())
    assert plan_compaction(large_path, keep_tokens=size) is None
    assert plan_compaction(large_path, keep_tokens=size + 1) is None
    assert planned(large_path, size - 10).messages != ()


def test_every_cut_of_the_real_session_between_a_call_and_its_result_is_refused(large_path: list[Entry]) -> None:
    results = [entry for entry in large_path if isinstance(entry, MessageEntry) and entry.message.is_tool_result]
    assert len(results) == 373
    for entry in results[::25]:
        with pytest.raises(UnsafeCompaction):
            check_cut(large_path, entry.id)


def test_the_real_session_lived_through_with_compactions(large_path: list[Entry]) -> None:
    """As a gateway would: when more than 20,000 tokens are there, 5,000 are kept."""
    path: list[Entry] = []
    plans: list[CompactionPlan] = []
    largest = largest_unit(large_path)
    for entry in large_path:
        path = [*path, msgspec.structs.replace(entry, id=f"e{len(path)}")]
        if isinstance(entry, MessageEntry) and entry.message.is_user and counted(path) > 20_000:
            plan = planned(path, 5_000)
            check_cut(path, plan.first_kept_entry_id)
            path.append(msgspec.structs.replace(compaction(plan.first_kept_entry_id), id=f"e{len(path)}"))
            plans.append(plan)
            assert is_legal(build_context(resolve(path).messages())) == []
            assert plan.tokens_kept < 5_000 + largest
    assert len(plans) > 5
    assert all(plan.messages[0].role is Role.COMPACTION_SUMMARY for plan in plans[1:])
    first_kept = [int(re.sub("e", "", plan.first_kept_entry_id)) for plan in plans]
    assert first_kept == sorted(set(first_kept))


def counted(path: Sequence[Entry]) -> int:
    """Without what the provider said, which was of a session that was not compacted."""
    return count_tokens(resolve(path).messages())


# --- speed -----------------------------------------------------------------------------------------------------------


def test_twenty_thousand_entries_are_planned_in_one_pass() -> None:
    """Anything quadratic here would take minutes."""
    turn = [long(USER, 10), calling("a", "b"), result("a"), result("b"), DONE]
    path = path_of(*turn * 4_000)
    asked = 0

    def count(message: Message) -> int:
        nonlocal asked
        asked += 1
        return count_by_characters(message)

    plan = planned(path, 50_000, count)
    check_cut(path, plan.first_kept_entry_id)
    assert plan.tokens_kept >= 50_000
    assert asked <= 2 * len(path)
