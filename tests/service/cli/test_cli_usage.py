"""What `usage` shows on the command line, and says of what it does not show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line import Cli

OLD = {
    "uuid": "a1",
    "parentUuid": None,
    "type": "assistant",
    "sessionId": "old",
    "timestamp": "2020-01-01T00:00:00Z",
    "message": {
        "id": "m1",
        "role": "assistant",
        "model": "claude-x",
        "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "hello"}],
        "usage": {"input_tokens": 3, "output_tokens": 4},
    },
}


@pytest.mark.usefixtures("own_home")
def test_where_all_that_was_used_is_older_than_what_is_looked_at_it_says_so_and_how_to_see_it(
    cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "old.jsonl"
    file.write_text(json.dumps(OLD) + "\n")
    assert cli("import", str(file)).status == 0
    for arguments in ((), ("--by", "model"), ("--since", "7d"), ("--channel", "import"), ("--json",)):
        told = cli("usage", *arguments).err
        assert "there is nothing; 1 reply is older: --since all shows them" in told, arguments
    assert cli("usage", "--since", "all", "--json").document["total"]["total_tokens"] == 7
    assert "older" not in cli("usage", "--since", "all").err
    assert "older" not in cli("usage", "--channel", "telegram").err
    assert "older" not in cli("usage", "--since", "0001-01-01", "--until", "0001-01-02").err


@pytest.mark.usefixtures("own_home")
def test_one_is_no_plural(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "old.jsonl"
    file.write_text(json.dumps(OLD) + "\n")
    assert cli("import", str(file)).status == 0
    assert cli("check").out == "sound: 1 session, 4 entries\n"
