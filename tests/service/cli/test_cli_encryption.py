"""Encryption from the command line: rekey and decrypt, and every other command with a key, with another, with none."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

import pytest

from miniclaw_sessions.service.gateway.exit_status import ExitStatus
from tests.command_line import NASTY, Cli, Terminal, filled_by, running_daemon
from tests.service.cli.test_cli import fill

SECRET = "Sunny in Rome"


pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def cli(cli: Cli) -> Cli:
    filled_by(fill, cli.workspace)
    return cli


def key_file(directory: Path, *keys: bytes) -> str:
    file = directory / f"keys-{len(list(directory.glob('keys-*')))}"
    file.write_text("".join(f"{base64.b64encode(key * 32).decode()}\n" for key in keys))
    file.chmod(0o600)
    return str(file)


def showing(workspace: Path) -> list[Path]:
    return [path for path in workspace.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_a_workspace_is_encrypted_used_rekeyed_and_decrypted(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, both, new = (key_file(tmp_path, *keys) for keys in ([b"o"], [b"n", b"o"], [b"n"]))
    before = cli("show", "telegram_123", "--json").document
    assert showing(cli.workspace)

    done = cli("rekey", "--key-file", old)
    assert "encrypted with the key" in done.out
    assert "4 session files" in done.out
    assert showing(cli.workspace) == []
    assert "there is no key" in cli("list").error

    monkeypatch.setenv("MINICLAW_ENCRYPTION_KEY_FILE", old)
    assert cli("show", "telegram_123", "--json").document == before
    assert cli("check").status == 0
    assert SECRET in cli("export", "telegram_123", "--format", "markdown").out

    monkeypatch.setenv("MINICLAW_ENCRYPTION_KEY_FILE", new)
    assert "was encrypted with the key" in cli("list").error
    assert "was encrypted with the key" in cli("check").error

    rotated = cli("rekey", "--key-file", both, "--json").document
    assert (rotated["entries"] > 0, rotated["snapshots"], rotated["damaged"]) == (True, 4, [])
    assert cli("show", "telegram_123", "--json").document == before

    assert "decrypted" in cli("rekey", "--decrypt").out
    assert "run `miniclaw-sessions rekey`" in cli("list").error
    monkeypatch.delenv("MINICLAW_ENCRYPTION_KEY_FILE")
    assert cli("show", "telegram_123", "--json").document == before


def test_one_file_is_decrypted_to_standard_output(cli: Cli, tmp_path: Path) -> None:
    keys, others = key_file(tmp_path, b"o"), key_file(tmp_path, b"n")
    file = cli.workspace / "sessions" / "telegram_123.json"
    plain = file.read_text()
    cli("rekey", "--key-file", keys)
    assert cli("decrypt", str(file), "--key-file", keys).out == plain
    copy = tmp_path / "copy.json"
    copy.write_bytes(file.read_bytes())
    assert "does not open" in cli("decrypt", str(copy), "--key-file", keys).error
    assert cli("decrypt", str(copy), "--key-file", keys, "--name", "telegram_123.json").out == plain
    assert "was encrypted with the key" in cli("decrypt", str(file), "--key-file", others).error
    assert "there is no key" in cli("decrypt", str(file)).error


def test_a_decrypted_file_cannot_forge_anything_on_a_terminal(cli: Cli, tmp_path: Path) -> None:
    keys = key_file(tmp_path, b"o")
    cli("rekey", "--key-file", keys)
    file = cli.workspace / "sessions" / "telegram_123.json"
    terminal = Terminal(cli.workspace, "decrypt", str(file), "--key-file", keys)
    assert terminal.end() == 0
    assert SECRET in terminal.seen
    assert NASTY[-4:] in terminal.seen
    assert "\x9b" not in terminal.seen


def test_rekeying_needs_a_key_and_a_workspace(cli: Cli, tmp_path: Path) -> None:
    assert "there is no key" in cli("rekey").error
    assert showing(cli.workspace)
    cli.workspace = tmp_path / "elsewhere"
    assert "there is no workspace" in cli("rekey", "--key-file", key_file(tmp_path, b"o")).error
    assert not cli.workspace.exists()


@pytest.mark.proof
def test_a_daemon_serves_with_the_key_and_does_not_start_without(cli: Cli, tmp_path: Path) -> None:
    keys = key_file(tmp_path, b"o")
    cli("rekey", "--key-file", keys)
    with running_daemon(cli.workspace, "--key-file", keys):
        assert len(cli("list", "--json").document["sessions"]) == 4
        assert "holds it" in cli("rekey", "--key-file", keys).error
    command = [sys.executable, "-m", "miniclaw_sessions", "serve", "--workspace", str(cli.workspace)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == ExitStatus.CONFIG
    assert "there is no key" in done.stderr
