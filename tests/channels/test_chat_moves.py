"""The moves of `chat`, on the files and through a daemon, and how they look at a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import Cli, Terminal, serving
from tests.sampled import sampled

SMALL = {
    "MINICLAW_MODEL_CONTEXT_WINDOW": "250",
    "MINICLAW_MODEL_RESERVE_TOKENS": "100",
    "MINICLAW_MODEL_KEEP_TOKENS": "40",
}


pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture(params=sampled(["daemon", "files"], every=2))
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Cli]:
    workspace = tmp_path / "w"
    if request.param == "files":
        yield Cli(workspace, monkeypatch)
        return
    with serving(workspace):
        yield Cli(workspace, monkeypatch)


def contents(cli: Cli) -> list[str]:
    documents = cli("chat", "--chat-id", "me", "--json", stdin="/history\n").document["messages"]
    return [document["content"] for document in documents]


def test_a_message_is_answered_once_more_and_the_former_answer_stays(cli: Cli) -> None:
    result = cli("chat", "--chat-id", "me", stdin="My name is Ada.\nWhat is my name?\n/retry\n")
    assert result.out.splitlines()[1:] == ["(offline) Your name is Ada."] * 2
    assert (result.status, len(contents(cli))) == (0, 4)
    transcript = cli("show", "cli_me", "--json").document
    assert cli("tree", "cli_me", "--json").document["leaf_id"]
    assert transcript


def test_a_message_is_said_differently(cli: Cli) -> None:
    result = cli("chat", "--chat-id", "me", stdin="My name is Ada.\nWhat is 1+1?\n/edit What is my name?\n")
    assert result.out.splitlines()[-1] == "(offline) Your name is Ada."
    assert contents(cli)[::2] == ["My name is Ada.", "What is my name?"]
    cli("chat", "--chat-id", "me", stdin="/edit My name is Bob.\n/edit My name is Eve.\nWhat is my name?\n")
    assert contents(cli)[::2] == ["My name is Ada.", "My name is Eve.", "What is my name?"]


def test_the_very_first_message_is_said_differently(cli: Cli) -> None:
    cli("chat", "--chat-id", "me", stdin="My name is Ada.\n/edit My name is Eve.\n")
    assert contents(cli)[::2] == ["My name is Eve."]


def test_going_back_by_a_label_and_looking_at_the_branches(cli: Cli) -> None:
    cli("chat", "--chat-id", "me", stdin="My name is Ada.\n")
    cli("label", "cli_me", "leaf", "known")
    result = cli("chat", "--chat-id", "me", stdin="My name is Bob.\n/branch known\nWhat is my name?\n/branch\n/tree\n")
    assert "(offline) Your name is Ada." in result.out
    assert "the conversation goes on after" in result.err
    branches = result.out.partition("ENDS WITH")[2] or result.out
    assert "My name is Bob." in branches
    drawn, _, numbered = result.out.rstrip().rpartition("◀")
    assert drawn.endswith("(offline) Your name is Ada. ")
    assert [row.partition("\t")[0] for row in numbered.splitlines()[-2:]] == ["1*", "2"]
    begun_anew = cli("chat", "--chat-id", "me", stdin="/branch root\n/history\n")
    assert "begins anew" in begun_anew.err
    assert begun_anew.out == ""


def test_what_cannot_be_done_is_told(cli: Cli) -> None:
    assert "said nothing yet" in cli("chat", "--chat-id", "me", stdin="/clear\nhello\n/clear\n/retry\n").err
    assert "has no entry 'nowhere'" in cli("chat", "--chat-id", "me", stdin="/branch nowhere\n").err
    hint = cli("chat", "--chat-id", "me", stdin="hello\n/edit\n").err
    assert hint == "say what stands in its place: /edit TEXT\n"


def test_a_conversation_is_summed_up(cli: Cli) -> None:
    said = "".join(f"My name is Ada, and this is message {number}. {'Well. ' * 3000}\n" for number in range(7))
    result = cli("chat", "--chat-id", "me", stdin=said + "/compact\n/compact\n")
    first, second = result.err.splitlines()
    assert first.startswith("done: about ")
    assert second.startswith("skipped: ")


@pytest.mark.proof
@pytest.mark.parametrize("with_daemon", [False, True])
def test_at_a_terminal_a_summary_is_mentioned_and_a_message_is_edited_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_daemon: bool
) -> None:
    for name, value in SMALL.items():
        monkeypatch.setenv(name, value)

    def converse() -> None:
        terminal = Terminal(tmp_path / "w", "chat", "--chat-id", "me")
        terminal.expect("you>")
        for number in range(6):
            terminal.type(f"My name is Ada{number}. {'Well. ' * 20}\n")
            if number == 5:
                terminal.expect("\x1b[2m(the older part of this conversation was summarized)")
            terminal.expect("you like.")
            terminal.expect("you>")
        terminal.type("What is my name?\n")
        terminal.expect("you>")
        terminal.type("/edit\n")
        terminal.expect("edit>")
        terminal.expect("What is my name?")
        terminal.type("\x7f, please?\n")
        terminal.expect("(offline)")
        terminal.expect("you>")
        terminal.type("/history\n")
        terminal.expect("What is my name, please?")
        terminal.expect("you>")  # a key that is pressed earlier is not one of the line editor yet
        terminal.type("\x04")
        assert terminal.end() == 0

    if with_daemon:
        with serving(tmp_path / "w"):
            converse()
    else:
        converse()
