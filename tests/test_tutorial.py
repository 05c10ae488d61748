"""The tutorial, followed from its first file to its last command: what it shows is what happens, kill -9 included."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs/learn/first-bot.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Reader:
    """Somebody who does what the page says, in a directory of their own.

    Attributes:
        printed: what the commands between the conversations have printed.
    """

    def __init__(self, directory: Path) -> None:
        bin_directory = Path(sys.executable).parent
        self._environ = {**os.environ, "HOME": str(directory), "PATH": f"{bin_directory}:{os.environ['PATH']}"}
        self._directory = directory
        self._bot: subprocess.Popen[str] | None = None
        self.printed = ""

    def save(self, code: str) -> None:
        (self._directory / "bot.py").write_text(code)

    def run(self, commands: str) -> None:
        if "pip install" in commands:  # the environment of the tests is installed already
            return
        done = subprocess.run(
            ["bash", "-euc", commands],
            cwd=self._directory,
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (commands, done.stderr)
        self.printed += done.stdout
        if "kill -9" in commands:
            assert self._bot is not None
            assert self._bot.wait(30) == -9
            self.stop()

    def talk(self, conversation: str) -> None:
        """Say each of `you:`, and compare the answer with `bot:`; an empty one ends the bot."""
        start, *turns = conversation.splitlines()
        assert start == "$ python bot.py"
        self._bot = subprocess.Popen(
            [sys.executable, "bot.py"],
            cwd=self._directory,
            env=self._environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._bot.stdin is not None
        assert self._bot.stdout is not None
        for line in turns:
            who, _, text = line.partition(":")
            if who == "you":
                self._bot.stdin.write(f"{text.strip()}\n")
                self._bot.stdin.flush()
            else:
                assert self._bot.stdout.readline() == f"you: {line}\n"
        if turns[-1] == "you:":
            assert self._bot.wait(30) == 0
            self.stop()

    def stop(self) -> None:
        if self._bot is not None:
            self._bot.kill()
            self._bot.communicate()
            self._bot = None


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.stop()


def test_the_tutorial_does_what_it_shows(reader: Reader) -> None:
    steps = FENCE.findall(PAGE.read_text(encoding="utf-8"))
    for kind, text in steps:
        {"py": reader.save, "sh": reader.run, "text": reader.talk}[kind](text)
    assert [kind for kind, _ in steps].count("text") == 3
    assert "sound" in reader.printed
    assert reader.printed.count("What is my name?") > 2
