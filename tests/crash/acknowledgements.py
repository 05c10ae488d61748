"""What a writer was promised, as it was promised: one JSON line for each acknowledgement, on another file system.

A line is written when the acknowledgement has arrived, never before, so whatever has a line must survive. Lines are
written with `writev`, a call that nothing else uses, so that faults can be injected into every other write.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Acknowledgements:
    """The writer's side."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, kind: str, **fields: Any) -> None:
        """Add a line."""
        os.writev(self._fd, [json.dumps({"kind": kind, **fields}).encode() + b"\n"])


def read_acknowledgements(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a file that may not exist yet; the last one may have been cut by a kill."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def count_acknowledgements(path: Path) -> int:
    """How many whole lines there are."""
    return path.read_bytes().count(b"\n") if path.exists() else 0
