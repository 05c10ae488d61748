"""`python -m tests.terminal_picture`: take the README's picture of the terminal anew, from real commands."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parents[1] / "docs/pictures/terminal.svg"
DATA = Path(__file__).parent / "data"
WIDTH = 104
COMMANDS = (
    "import pi-v1-large-session.jsonl --as pi_themes",
    "import pi-v3-resumed-session.jsonl --as pi_resumed",
    "list",
    "tree pi_resumed",
    "usage --by model --since 5y",
    "search 'remember the number'",
)


def main() -> None:
    """Run the commands in an empty home, and draw what they wrote."""
    console = Console(record=True, width=WIDTH, file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="mc") as home:
        for command in COMMANDS:
            program = f"stty cols {WIDTH} rows 60; {sys.executable} -m miniclaw_sessions {command}"
            environment = {"HOME": home, "PATH": "/usr/bin:/bin", "TERM": "xterm-256color", "LESS": "FRX"}
            in_terminal = ["script", "-qec", program, "/dev/null"]
            done = subprocess.run(in_terminal, cwd=DATA, env=environment, capture_output=True, text=True, check=True)
            console.print(Text.assemble(("$ ", "bold green"), (f"miniclaw-sessions {command}", "bold")))
            console.print(Text.from_ansi(done.stdout.replace("\r\n", "\n").rstrip() + "\n"))
    drawn = console.export_svg(title="miniclaw-sessions")
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
