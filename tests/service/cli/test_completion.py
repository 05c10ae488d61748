"""What shells are offered: by the real bash, zsh and fish in a terminal, without rich, and never as their commands."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.service.cli.names import harmless

SHELLS = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"]}
PROGRAM = "miniclaw-sessions"
BIN = Path(sys.executable).parent
BEGIN = {
    "bash": "PS1='rea''dy> '",
    "zsh": "PS1='rea''dy> '; autoload -U compinit && compinit -u -D",
    "fish": "function fish_prompt; echo -n 'rea''dy> '; end",
}


class Terminal:
    """A shell in a terminal."""

    def __init__(self, shell: str, environ: dict[str, str]) -> None:
        self._process, self._screen = pty.fork()
        if self._process == 0:
            os.execvpe(shell, [shell, *SHELLS[shell], "-i"], environ)
        self._seen = ""

    def type(self, keys: str) -> None:
        self._seen = ""
        os.write(self._screen, keys.encode())

    def until(self, text: str) -> str:
        """What it shows, once it has shown a text."""
        end = time.monotonic() + 60
        while text not in self._seen:
            assert time.monotonic() < end, f"{text!r} is not shown, but {self._seen!r}"
            if select.select([self._screen], [], [], 0.1)[0]:
                piece = os.read(self._screen, 65_536).decode(errors="replace")
                self._seen += piece
                if "\x1b[c" in piece or "\x1b[0c" in piece:  # fish asks what terminal it is
                    os.write(self._screen, b"\x1b[?6c")
        return self._seen

    def close(self) -> None:
        os.kill(self._process, 9)
        os.waitpid(self._process, 0)
        os.close(self._screen)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    async def fill() -> None:
        async with SessionManager(tmp_path / "w") as manager:
            for name in ("one", "two"):
                session = await manager.get_or_create("web", name)
                await session.add_message(Message.user("hi"))

    anyio.run(fill)
    title = (
        rf"weather \$(touch {tmp_path}/run) \`touch {tmp_path}/run\` $(touch {tmp_path}/run) '; touch {tmp_path}/run"
    )
    subprocess.run([BIN / PROGRAM, "rename", "web_one", title], env=environ_of(tmp_path), check=True)
    return tmp_path


def environ_of(directory: Path) -> dict[str, str]:
    path = f"{BIN}:{os.environ['PATH']}"
    home = {"HOME": str(directory), "ZDOTDIR": str(directory), "XDG_CONFIG_HOME": str(directory)}
    return {**os.environ, **home, "PATH": path, "TERM": "xterm", "MINICLAW_WORKSPACE": str(directory / "w")}


@pytest.fixture(params=SHELLS)
def terminal(request: pytest.FixtureRequest, workspace: Path) -> Iterator[Terminal]:
    shell = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"NOT RUN: there is no {shell}")
    environ = environ_of(workspace)
    script = workspace / "completion"
    asked = {**environ, "_MINICLAW_SESSIONS_COMPLETE": f"source_{shell}"}
    script.write_bytes(subprocess.run([BIN / PROGRAM], env=asked, capture_output=True, check=True).stdout)
    terminal = Terminal(shell, environ)
    terminal.type(f"{BEGIN[shell]}; source {script}\n")
    terminal.until("ready> ")
    yield terminal
    terminal.close()


@pytest.mark.proof
def test_a_shell_completes_commands_and_sessions_and_runs_nothing_of_a_title(
    terminal: Terminal, workspace: Path
) -> None:
    terminal.type(f"{PROGRAM} ren\t")
    terminal.until("rename")
    terminal.type("\x15")
    terminal.type(f"{PROGRAM} show web_t\t")
    terminal.until("web_two")
    terminal.type("\x15")
    terminal.type(f"{PROGRAM} show web_\t\t")  # both are listed, where a shell does so with their titles
    terminal.until("web_one")
    terminal.type("\x15\x15 echo the''end\n")
    terminal.until("theend")
    assert not (workspace / "run").exists()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_what_a_shell_asks_at_every_key_loads_no_rich(shell: str) -> None:
    asked = {"_MINICLAW_SESSIONS_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": f"{PROGRAM} s"}
    code = (
        "import atexit, sys; atexit.register(lambda: print(sorted({'rich', 'pydantic'} & sys.modules.keys())))\n"
        "from miniclaw_sessions.service.cli.app import run; run([])"
    )
    environ = {**os.environ, **asked, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert "search" in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1].endswith("[]")


def test_a_title_has_nothing_that_a_shell_evaluates() -> None:
    assert harmless("a\\$(b) `c` \"d\" 'e'\n[f] g!") == "a··(b) ·c· ·d· ·e··n[f] g·"
