"""What the tests of the durable stores share."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from miniclaw_sessions.core.stores.base import Append, Store
from miniclaw_sessions.errors import StoreError
from miniclaw_sessions.testing import sample_entries, sample_head


async def append(store: Store, chat_id: int, first: int, last: int, *, text: str = "hello") -> StoreError | None:
    """Append the entries from one sequence to another; the outcome."""
    (outcome,) = await store.append([Append(sample_head(chat_id), sample_entries(first, last, text=text))])
    return outcome


def run_python(program: str, *arguments: object) -> str:
    """Run a program in a process of its own, and return what it prints."""
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
