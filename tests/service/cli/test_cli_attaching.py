"""Files that are said in a terminal: attached by their paths, kept by an edit, and refused before they are sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from miniclaw_sessions.service.cli.attaching import path_in, path_of
from tests.command_line import Cli

pytestmark = pytest.mark.usefixtures("own_home")
SOUND = b"OggS\0 a talk \xff"


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    path = tmp_path / "my talk.ogg"
    path.write_bytes(SOUND)
    return path


def contents(cli: Cli) -> list[Any]:
    """What the user said, on every branch."""
    entries = cli("export", "cli_me", "--format", "json").document["entries"]
    return [one["message"]["content"] for one in entries if one.get("message", {}).get("role") == "user"]


def test_a_file_goes_with_the_next_message_and_with_its_edit(cli: Cli, talk: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("Buy milk.\n")
    lines = f"/attach {talk}\n/attach '{talk}'\n/attach\n/attach {talk}\n/attach {tmp_path}/notes.md\nWhat is it?\n"
    result = cli("chat", "--chat-id", "me", stdin=f"{lines}/edit What are they?\n/retry\nthanks\n")
    assert result.status == 0
    assert "attached my talk.ogg (14 bytes)" in result.err
    assert "took back 2 files" in result.err
    assert result.out.count("You sent my talk.ogg") == 3
    asked, edited, thanks = contents(cli)
    assert [part["type"] for part in asked] == ["text", "file", "text"]
    assert asked[2]["text"] == "\n\n[File: notes.md]\nBuy milk.\n"
    assert edited == [{"type": "text", "text": "What are they?"}, *asked[1:]]
    assert thanks == "thanks"
    assert cli("chat", "--chat-id", "me", "--message", "And this?", "--attach", str(talk)).status == 0
    assert contents(cli)[-1][1] == asked[1]


def test_what_cannot_go_with_a_message_is_told_before_it_is_sent(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.zip").write_bytes(b"PK\3\4\0\0\xff\xfe")
    (tmp_path / "a.ogg").write_bytes(b"OggS\0\xff")
    monkeypatch.setenv("MINICLAW_MODEL_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("MINICLAW_MODEL_MODEL", "deaf")
    for given, sentence in (
        (
            tmp_path / "a.ogg",
            "a.ogg was not attached: deaf takes texts, pictures, PDF, Excel files",
        ),
        (tmp_path / "a.zip", "a.zip is of a kind that no model reads"),
        (tmp_path / "none", "No such file"),
        (tmp_path, "Is a directory"),
    ):
        result = cli("chat", "--chat-id", "me", stdin=f"/attach {given}\nhello\n")
        assert result.status == 1
        assert sentence in result.error
    assert cli("show", "cli_me").status != 0


def test_a_path_that_a_terminal_writes_when_a_file_is_dropped_on_it_is_found(talk: Path) -> None:
    escaped = str(talk).replace(" ", "\\ ")
    for line in (escaped, f"'{talk}'", f'"{talk}"'):
        assert path_in(line) == path_of(line) == talk
    for words in ("hello", str(talk), f"see {escaped}", "/nowhere/at/all", "'", "", f"{talk.parent}"):
        assert path_in(words) is None
    assert path_of(str(talk)) == talk
