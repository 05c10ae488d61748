"""`tokens create`, `list` and `revoke`, as people and scripts use them."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from miniclaw_sessions.service.gateway.tokens import read_tokens
from tests.command_line import Cli, serving

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    (tmp_path / "workspace").mkdir()
    return Cli(tmp_path / "workspace", monkeypatch)


def test_a_token_is_shown_once_and_only_its_digest_is_kept(cli: Cli) -> None:
    made = cli("tokens", "create", "phone")
    token = made.out.strip()
    assert (made.status, made.out.count("\n")) == (0, 1)
    assert "shown only now" in made.err
    file = cli.workspace / "tokens.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token not in file.read_text()
    listed = cli("tokens", "list")
    assert token not in listed.out
    assert "phone" in listed.out
    assert "everything" in listed.out
    (row,) = cli("tokens", "list", "--json").document["tokens"]
    assert (row["name"], row["scope"], row["valid"], row["channels"]) == ("phone", "write", True, None)


def test_scope_bounds_rate_and_end_are_kept(cli: Cli) -> None:
    bounds = ["--channel", "web", "--channel", "mail", "--chats", "a-"]
    flags = ["--scope", "read", *bounds, "--rate", "2.5", "--expires", "90d"]
    made = cli("tokens", "create", "alice", *flags, "--json").document
    (kept,) = read_tokens(cli.workspace / "tokens.json")
    assert made["token"].startswith("mcs_")
    assert (kept.scope, kept.channels, kept.chat_prefix, kept.rate) == ("read", ("web", "mail"), "a-", 2.5)
    assert kept.expires_at is not None
    assert 89 <= (kept.expires_at - kept.created_at).days <= 90
    assert "channel mail or web, chats a-..." in cli("tokens").out


def test_what_is_revoked_is_gone_and_nothing_is_revoked_where_one_name_is_wrong(cli: Cli) -> None:
    for name in ("phone", "tablet"):
        cli("tokens", "create", name)
    wrong = cli("tokens", "revoke", "phone", "fone")
    assert (wrong.status, "no token 'fone'; there are: phone, tablet" in wrong.error) == (1, True)
    assert cli("tokens", "revoke", "phone", "--json").document["revoked"] == ["phone"]
    assert [one.name for one in read_tokens(cli.workspace / "tokens.json")] == ["tablet"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["phone"], "there is a token named phone already"),
        (["admin"], "there is a token named admin already"),
        (["a b"], "name"),
        (["x", "--scope", "root"], "'root' is not one of 'read', 'write', 'admin'"),
        (["x", "--expires", "soon"], "'soon' is no time"),
        (["x", "--expires", "2001-01-01"], "is over already"),
        (["x", "--rate", "0"], "rate"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_changes_nothing(cli: Cli, arguments: list[str], said: str) -> None:
    cli("tokens", "create", "phone")
    before = (cli.workspace / "tokens.json").read_bytes()
    result = cli("tokens", "create", *arguments)
    assert result.status == (2 if "--scope" in arguments else 1)
    assert said in result.error
    assert (cli.workspace / "tokens.json").read_bytes() == before


def test_without_a_workspace_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = Cli(tmp_path / "nowhere", monkeypatch)("tokens", "create", "phone")
    assert (result.status, "`serve` makes a workspace" in result.error) == (1, True)


def test_a_workspace_that_has_nothing_but_tokens_can_be_used(cli: Cli) -> None:
    cli("tokens", "create", "phone", "--scope", "read")
    with serving(cli.workspace, listen__tcp="127.0.0.1:0"):
        said = cli("stats", "--json").out  # the daemon, in this process, may say there where it is
        assert json.loads(said[said.index("{") :])["sessions"] == 0
        assert cli("tokens", "create", "tablet").status == 0
    assert len(read_tokens(cli.workspace / "tokens.json")) == 2
