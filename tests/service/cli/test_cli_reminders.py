"""Reminders on the command line, and in the terminal's chat, without a daemon."""

from __future__ import annotations

import pytest

from tests.command_line import Cli

pytestmark = pytest.mark.usefixtures("own_home")


def test_reminders_are_set_listed_paused_resumed_and_deleted(cli: Cli) -> None:
    assert cli("chat", "--chat-id", "ann", "--message", "hello").status == 0
    assert "1: " in cli("reminders", "add", "cli_ann", "every", "day", "9:00", "stretch").out
    assert ": stretch" in cli("reminders", "list", "cli_ann").out
    assert "(paused)" in cli("reminders", "pause", "cli_ann", "1").out
    assert "(paused)" not in cli("reminders", "resume", "cli_ann", "1").out
    assert cli("reminders", "list", "cli_ann", "--json").document["reply"].endswith("stretch")
    assert cli("reminders", "delete", "cli_ann", "1").out == "Reminder 1 is deleted.\n"
    assert "no reminders" in cli("reminders", "list", "cli_ann").out
    assert cli("reminders", "list", "cli_bob").status == 1


def test_what_cannot_be_done_is_an_error_as_of_any_other_command(cli: Cli) -> None:
    assert cli("chat", "--chat-id", "ann", "--message", "hello").status == 0
    for words, sentence in {
        ("delete", "cli_ann", "9"): "There is no reminder 9 here",
        ("pause", "cli_ann", "9", "--json"): "There is no reminder 9 here",
        ("add", "cli_ann", "soon", "tea"): "I do not understand the time",
    }.items():
        done = cli("reminders", *words)
        assert (done.status, done.out) == (1, "")
        assert done.err.startswith(f"error: {sentence}")


def test_the_chat_has_the_commands_too(cli: Cli) -> None:
    said = cli("chat", "--chat-id", "ann", stdin="/timezone Europe/Berlin\n/remind 20m tea\n/remind soon\n/reminders\n")
    assert "(Europe/Berlin)" in said.out
    assert said.out.count(": tea") == 2
    assert "I do not understand the time" in said.out


def test_the_agenda_is_no_conversation(cli: Cli) -> None:
    assert cli("chat", "--chat-id", "ann", "--message", "hello").status == 0
    cli("reminders", "add", "cli_ann", "20m", "tea")
    assert "reminders_" not in cli("list").out
    assert "reminders_" in cli("list", "--channel", "reminders").out
    assert "hello" in cli("chat", "--continue", stdin="/history\n").out
