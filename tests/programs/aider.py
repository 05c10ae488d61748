"""Aider's chat history, after `aider/io.py` and `aider/coders/base_coder.py`."""

from __future__ import annotations

import re
from pathlib import Path

_WRITTEN = """
# aider chat started at 2026-05-01 10:00:00

> /usr/bin/aider --model sonnet
> Aider v0.86.1
> Main model: claude-sonnet-4-5 with diff edit format, infinite output
> Git repo: .git with 3 files

#### What is a tundra?
#### In one sentence.

A treeless plain.

# Tundra

It freezes.

> Tokens: 2.2k sent, 1.1k cache hit, 23 received. Cost: $0.01 message, $0.02 session.

#### /add notes.md
> Added notes.md to the chat

# aider chat started at 2026-05-02 09:30:00

> Aider v0.86.1
> Model: gpt-4o with diff edit format

#### And a taiga?

A forest of conifers.

> Tokens: 512 sent, 9 received.
"""
HISTORY = re.sub(r"(?m)^((?:>|####) .*)$", r"\1  ", _WRITTEN)


def put(home: Path, project: str = "project", text: str = HISTORY) -> int:
    """A project with a history; how many sessions there are."""
    path = home / project / ".aider.chat.history.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return 1
