"""The tree of a session on the command line: looked at, gone back in, bookmarked, forked, compacted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions import Message, SessionManager, ToolCall
from miniclaw_sessions.core.history import compaction as planner
from miniclaw_sessions.core.history.transcript import Transcript
from miniclaw_sessions.errors import SessionsError
from miniclaw_sessions.service.api.tree import TreeReply
from miniclaw_sessions.service.cli.entry_names import LONGEST, SHORTEST, EntryNames, ShortIds
from miniclaw_sessions.service.cli.tree import KEEP_TOKENS
from miniclaw_sessions.service.cli.tree_lists import branches_of
from tests.command_line import NASTY, UNSAFE, Cli, Terminal, filled_by, serving, shape
from tests.growing import Growing, grown_at_random
from tests.sampled import sampled

WIDTH = 80
_STYLES = re.compile(r"\x1b\[[0-9;]*m")


pytestmark = pytest.mark.usefixtures("own_home")


def grow(workspace: Path) -> None:
    """A conversation that went back once and has two labels."""

    async def run() -> None:
        async with SessionManager(workspace) as manager:
            session = await manager.get_or_create("telegram", 1)
            session.update(title=f"Logins {NASTY}")
            await session.add_message(Message.user("Why do logins fail?"))
            call = ToolCall("c1", "grep", '{"pattern": "utcnow"}')
            asked = await session.add_message(Message.assistant("I'll search.", (call,)))
            found = await session.add_message(Message.tool_result(call, "token.py:41"))
            await session.tree.set_label(asked.id, "start")
            await session.add_message(Message.assistant("It might be the cache."))
            await session.add_message(Message.user(f"No {NASTY}"))
            await session.tree.branch(found.id)
            cause = await session.add_message(Message.assistant("Found it."))
            await session.tree.set_label(cause.id, f"cause {NASTY}")
            await session.add_message(Message.user("Thank you."))
            await manager.get_or_create("telegram", 2)

    anyio.run(run)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    cli = Cli(tmp_path / "workspace", monkeypatch)
    filled_by(grow, cli.workspace)
    return cli


@pytest.fixture(params=sampled(["daemon", "files"], every=2))
def cli(files: Cli, request: pytest.FixtureRequest) -> Iterator[Cli]:
    """The command line on the files, and on a daemon that holds them."""
    with serving(files.workspace) if request.param == "daemon" else nullcontext():
        yield files


def said(cli: Cli) -> list[str]:
    """What a model is reminded of."""
    return [message["content"] for message in cli("show", "telegram_1", "--json").document["messages"]]


def entry_id(cli: Cli, words: str) -> str:
    """The id of the message with this text."""
    entries = cli("tree", "telegram_1", "--json").document["entries"]
    found = [entry["id"] for entry in entries if entry.get("message", {}).get("content") == words]
    assert len(found) == 1
    return str(found[0])


# --- the tree --------------------------------------------------------------------------------------------------------


def test_the_tree_is_drawn_with_short_ids_branches_labels_and_the_leaf(cli: Cli) -> None:
    result = cli("tree", "telegram_1")
    assert (result.status, result.err) == (0, "")
    title, counts, _, *lines = result.out.splitlines()
    assert title.startswith("Logins red")
    assert counts == "telegram_1 · 10 entries, 2 branches, 2 labels"
    ids, drawn = zip(*(line.split(" ", maxsplit=1) for line in lines), strict=True)
    known = {entry["id"][-SHORTEST:] for entry in cli("tree", "telegram_1", "--json").document["entries"]}
    assert set(ids) <= known
    assert [line.split("  ")[0].split()[0] for line in drawn] == ["·", "●", "●", "├─○", "│", "●", "●"]
    assert "I'll search. → grep utcnow [start] " in drawn[2]
    assert "Thank you. ◀ " in drawn[-1]


def test_the_tree_of_a_session_without_a_title_has_its_name_once(cli: Cli) -> None:
    assert cli("rename", "telegram_1", "").status == 0
    assert cli("tree", "telegram_1").out.count("telegram_1") == 1


def test_the_tree_with_all_has_every_entry(cli: Cli) -> None:
    out = cli("tree", "telegram_1", "--all").out
    assert len(out.splitlines()) == 3 + 10
    assert "token.py:41" in out


def test_the_trees_document_has_the_shape_and_the_entries(cli: Cli) -> None:
    document = cli("tree", "telegram_1", "--json").document
    assert list(document) == ["session_id", "leaf_id", "labels", "problems", "roots", "children", "entries"]
    ids = {*document["roots"], *(child for children in document["children"].values() for child in children)}
    assert ids == {entry["id"] for entry in document["entries"] if entry["type"] != "leaf"}
    assert document["leaf_id"] == entry_id(cli, "Thank you.")
    assert document["labels"][entry_id(cli, "I'll search.")] == "start"


@pytest.mark.proof
def test_in_a_terminal_the_tree_has_colours_and_keeps_to_the_width(files: Cli) -> None:
    terminal = Terminal(files.workspace, "tree", "telegram_1", columns=WIDTH)
    assert terminal.end() == 0
    lines = [line.rstrip("\r") for line in terminal.seen.split("\n")]
    assert "\x1b[1;36m" in terminal.seen  # the current branch's user: bold cyan
    plain = [_STYLES.sub("", line) for line in lines]
    assert max(map(len, plain)) == WIDTH
    assert not any(UNSAFE.search(line) for line in plain)
    assert sum("◀" in line for line in plain) == 1


# --- going back ------------------------------------------------------------------------------------------------------


def test_the_branches_are_listed_with_the_current_one_first(cli: Cli) -> None:
    current, other = cli("branch", "telegram_1").out.splitlines()
    assert re.fullmatch(r"\*\t[0-9a-f-]{36}\tuser\tThank you\.\t\t\d\t\S.*", current)
    assert re.fullmatch(r"\t[0-9a-f-]{36}\tuser\tNo red \\x1b.*\t[0-9a-f-]{36}\t2\t\S.*", other)
    document = cli("branch", "telegram_1", "--json").document
    assert [branch["is_current"] for branch in document["branches"]] == [True, False]
    assert document["branches"][0]["entry_id"] == document["leaf_id"]
    assert document["branches"][1]["goes_off_at"] == entry_id(cli, "I'll search.")


def test_the_conversation_goes_on_from_where_it_is_told_to(cli: Cli) -> None:
    left = entry_id(cli, "It might be the cache.")
    result = cli("branch", "telegram_1", left[-SHORTEST:])
    assert result.status == 0
    assert result.out == "assistant  It might be the cache.\n"
    assert result.err == "telegram_1 goes on after\n"
    assert said(cli)[-1] == "It might be the cache."
    assert cli("branch", "telegram_1", left, "--json").document["leaf_id"] == left


def test_a_branch_may_be_left_with_a_summary(cli: Cli) -> None:
    result = cli("branch", "telegram_1", "start", "--summary", "The cache is not it.")
    assert result.status == 0, result.err
    assert said(cli) == ["Why do logins fail?", "I'll search.", "The cache is not it."]


def test_going_back_to_a_call_tells_that_its_results_are_elsewhere(files: Cli) -> None:
    result = files("branch", "telegram_1", "start")
    assert result.out == "assistant  I'll search. → grep utcnow\n"
    assert "its calls have no results here" in result.err


def test_going_back_to_the_root_begins_anew(cli: Cli) -> None:
    assert "begins anew" in cli("branch", "telegram_1", "root").err
    assert said(cli) == []
    listed = cli("branch", "telegram_1")
    assert "none is current" in listed.err
    assert "*" not in listed.out
    assert "has no leaf" in cli("fork", "telegram_1", "--at", "leaf").error


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("zzzz", "has no entry 'zzzz': `tree telegram_1 --all` shows the ids of all; its labels are 'start', "),
        ("abc", "at least 4 characters are needed"),
        ("0", "has no entry '0': "),
        ("", "has no entry ''"),
    ],
)
def test_an_entry_that_nobody_knows_is_told_with_the_labels(files: Cli, name: str, told: str) -> None:
    result = files("branch", "telegram_1", name)
    assert result.status == 1
    assert told in result.error


def test_a_name_of_several_entries_is_told_with_candidates(files: Cli) -> None:
    beginning = entry_id(files, "Thank you.")[:4]
    error = files("branch", "telegram_1", beginning).error
    assert f"'{beginning}' begins or ends the ids of 10 entries: " in error
    assert error.endswith(" and 5 more; name one")
    before = said(files)
    assert files("label", "telegram_1", entry_id(files, "Found it."), "start").status == 0
    assert "the label 'start' is on 2 entries: " in files("branch", "telegram_1", "start").error
    assert said(files) == before


# --- bookmarks -------------------------------------------------------------------------------------------------------


def test_the_labels_are_a_table_of_contents(cli: Cli) -> None:
    first, second = cli("label", "telegram_1").out.splitlines()
    assert first.startswith("start\t")
    assert "\tassistant\tI'll search. → grep utcnow" in first
    assert second.startswith("cause red \\x1b[31mtext")
    labels = cli("label", "telegram_1", "--json").document["labels"]
    assert [label["entry_id"] for label in labels] == [entry_id(cli, "I'll search."), entry_id(cli, "Found it.")]


def test_a_label_is_set_and_removed(cli: Cli) -> None:
    assert cli("label", "telegram_1", "leaf", "the end").err == "leaf is called 'the end'\n"
    assert cli("label", "telegram_1", "leaf", "the very end").status == 0  # of the message, not of the bookmark
    labels = cli("label", "telegram_1", "--json").document["labels"]
    assert [(label["label"], label["first_words"]) for label in labels][-1] == ("the very end", "Thank you.")
    removed = cli("label", "telegram_1", "the very end", "--remove", "--json").document
    assert removed == {"session_id": "telegram_1", "entry_id": entry_id(cli, "Thank you."), "label": None}
    assert len(cli("label", "telegram_1", "--json").document["labels"]) == 2


# --- copies and summaries --------------------------------------------------------------------------------------------


def test_a_fork_has_everything_and_leads_its_own_life(cli: Cli) -> None:
    result = cli("fork", "telegram_1", "telegram_9")
    assert (result.status, result.out) == (0, "telegram_9\n")
    assert cli("branch", "telegram_9", "root").status == 0
    assert said(cli)[-1] == "Thank you."
    assert cli("label", "telegram_9", "--json").document["labels"][0]["label"] == "start"
    assert "exists already" in cli("fork", "telegram_1", "telegram_9").error


def test_a_fork_may_have_one_branch(cli: Cli) -> None:
    left = entry_id(cli, "It might be the cache.")
    made = cli("fork", "telegram_1", "--at", left[-8:], "--json").document
    assert made["channel"] == "telegram"
    messages = cli("show", made["session_id"], "--json").document["messages"]
    assert [message["content"] for message in messages][-1] == "It might be the cache."
    assert len(cli("branch", made["session_id"], "--json").document["branches"]) == 1


def test_a_compaction_by_the_configured_model(cli: Cli) -> None:
    result = cli("compact", "telegram_1", "--keep-tokens", "1")
    assert result.status == 0, result.err
    assert re.fullmatch(r"done: about \d+ tokens before, \d+ after\n", result.out)
    assert "■ compaction (offline)" in cli("tree", "telegram_1").out


def test_a_compaction_in_ones_own_words(cli: Cli) -> None:
    outcome = cli("compact", "telegram_1", "--summary", "It was utcnow.", "--keep-from", "leaf", "--json").document
    assert outcome["status"] == "done"
    assert 0 < outcome["tokens_after"] < outcome["tokens_before"]
    compaction = next(
        entry for entry in cli("tree", "telegram_1", "--json").document["entries"] if entry["type"] == "compaction"
    )
    assert compaction["id"] == outcome["entry_id"]
    assert compaction["summary"] == "It was utcnow."
    assert compaction["first_kept_entry_id"] == entry_id(cli, "Thank you.")


def test_nothing_to_summarize_is_no_failure(cli: Cli) -> None:
    assert cli("compact", "telegram_2").out == "skipped: there is nothing to summarize now\n"


def test_a_summary_that_cannot_be_made_ends_with_1_and_changes_nothing(
    files: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINICLAW_MODEL_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("MINICLAW_MODEL_MODEL", "nobody")
    before = files("tree", "telegram_1").out
    result = files("compact", "telegram_1", "--keep-tokens", "1")
    assert result.status == 1
    assert result.out.startswith("failed: the summary could not be made: ")
    assert files("tree", "telegram_1").out == before


def test_what_is_kept_by_default_is_what_the_planner_keeps() -> None:
    assert KEEP_TOKENS == planner.KEEP_TOKENS


def test_a_cut_between_a_call_and_its_result_is_refused(cli: Cli) -> None:
    result = cli("compact", "telegram_1", "--summary", "x", "--keep-from", entry_id(cli, "token.py:41"))
    assert result.status == 1
    assert "would part a tool call from its result" in result.error


# --- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["branch", "telegram_1", "--summary", "x"],
        ["label", "telegram_1", "leaf"],
        ["label", "telegram_1", "leaf", "x", "--remove"],
        ["label", "telegram_1", "--remove"],
        ["compact", "telegram_1", "--keep-from", "leaf"],
        ["compact", "telegram_1", "--summary", "x", "--keep-tokens", "5"],
        ["compact", "telegram_1", "--summary", " "],
        ["compact", "telegram_1", "--keep-tokens", "-1"],
    ],
)
def test_what_makes_no_sense_is_wrong_usage(files: Cli, arguments: list[str]) -> None:
    result = files(*arguments)
    assert result.status == 2
    assert "--help explains" in result.error


@pytest.mark.parametrize(
    "arguments",
    [
        ["tree", "telegram_1", "--all"],
        ["branch", "telegram_1"],
        ["label", "telegram_1"],
        ["branch", "telegram_1", "start"],
    ],
)
def test_what_strangers_wrote_is_shown_and_not_obeyed(files: Cli, arguments: list[str]) -> None:
    result = files(*arguments)
    assert result.status == 0
    assert not UNSAFE.search(result.out + result.err)


@pytest.mark.parametrize("command", ["tree", "branch", "label", "fork", "compact"])
def test_a_session_that_nobody_knows_is_told(files: Cli, command: str) -> None:
    result = files(command, "nobody_1")
    assert result.status == 1
    assert "no session 'nobody_1'" in result.error


@pytest.mark.parametrize("command", ["tree", "branch", "label"])
def test_an_empty_session_is_no_error(files: Cli, command: str) -> None:
    assert files(command, "telegram_2").status == 0
    assert files(command, "telegram_2", "--json").document["session_id"] == "telegram_2"


@pytest.mark.parametrize("arguments", [["tree"], ["branch"], ["branch", "-", "root"], ["label"], ["fork"], ["compact"]])
def test_a_daemon_and_the_files_answer_with_documents_of_the_same_form(
    files: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    command = [arguments[0], "telegram_1", *arguments[2:], "--json"]
    other = Cli(tmp_path / "copy", monkeypatch)
    grow(other.workspace)
    with serving(other.workspace):
        with_daemon = other(*command).document
    for document in (with_files := files(*command).document, with_daemon):
        for names_ids in ("children", "labels"):
            document[names_ids] = _values(document.get(names_ids))
    assert shape(with_files) == shape(with_daemon)


def _values(document: Any) -> Any:
    return list(document.values()) if isinstance(document, dict) else document


# --- names and branches ----------------------------------------------------------------------------------------------


def tree_of(ids: list[str], labels: dict[str, str] | None = None, leaf_id: str | None = None) -> TreeReply:
    children = {parent: [child] for parent, child in pairwise(ids)}
    return TreeReply(
        session_id="a_1", leaf_id=leaf_id, labels=labels or {}, problems=[], roots=ids[:1], children=children
    )


@given(st.lists(st.text(st.sampled_from("0123456789abcdef"), min_size=8, max_size=12), min_size=1, unique=True))
def test_what_is_shown_of_an_id_finds_its_entry_unless_it_begins_another(ids: list[str]) -> None:
    names, short = EntryNames(tree_of(ids)), ShortIds(ids)
    assert len({short(one) for one in ids}) == len(ids)
    for one in ids:
        assert SHORTEST <= len(short(one)) <= LONGEST
        if not any(other != one and other.startswith(short(one)) for other in ids):
            assert names.find(short(one)) == one
        assert names.find(one) == one


def test_an_exact_id_wins_over_a_label_and_a_label_over_a_part_of_an_id() -> None:
    names = EntryNames(tree_of(["e1", "e10", "aaaa1111", "bbbb2222"], {"e1": "e10", "e10": "1111"}, "bbbb2222"))
    assert names.find("e10") == "e10"
    assert names.find("1111") == "e10"
    assert names.find("aaaa") == "aaaa1111"
    assert names.find("2222") == "bbbb2222"
    assert names.find("leaf") == "bbbb2222"
    with pytest.raises(SessionsError, match="has no entry 'E10'"):
        names.find("E10")


def test_ids_of_strangers_are_shown_safely_and_in_line() -> None:
    ids = ["\x1b[31m\n", "漢字漢字漢字漢字", "e1", "e2"]
    short = ShortIds(ids)
    assert not any(UNSAFE.search(short(one)) for one in ids)
    assert {len(short.cell(one)) for one in ("e1", "e2")} == {short.width}
    assert ShortIds([]).width == 0


@given(seed=st.integers(0, 2**32))
def test_every_entry_is_on_one_branch_and_only_the_leaf_makes_one_current(seed: int) -> None:
    transcript = Transcript(grown_at_random(seed, 60))
    branches = branches_of(transcript)
    assert sum(branch.is_current for branch in branches) == (transcript.leaf_id is not None)
    assert not any(branch.is_current for branch in branches[1:])
    assert sum(branch.entries for branch in branches) <= len(transcript)
    assert len({branch.entry_id for branch in branches}) == len(branches)
    for branch in branches:
        path = [entry.id for entry in transcript.path(branch.entry_id)]
        assert branch.last.id in path
        assert branch.goes_off_at is None or branch.goes_off_at in path


def test_a_branch_that_ends_with_results_goes_on_behind_them() -> None:
    session = Growing()
    call = ToolCall("c1", "look", "{}")
    session.assistant("Let me look.", call)
    seen = session.result(call, "seen")
    (branch,) = branches_of(Transcript(session.entries))
    assert (branch.entry_id, branch.entries, branch.is_current) == (seen, 2, True)
