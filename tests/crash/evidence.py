"""What a failed trial leaves for people to look at: everything as it was found, before anybody opened it again."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path


class Evidence:
    """A directory with one more directory for each trial that failed; it is made when there is something to keep.

    Args:
        directory: where; it need not exist.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def secure(self, workspace: Path, copy: Path) -> None:
        """Copy a workspace as it was found: the verification that follows heals it."""
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(workspace, copy, symlinks=True)

    def keep(self, name: str, copy: Path, files: Iterable[Path], problems: Iterable[str]) -> Path:
        """Keep what was secured, the files that tell how it came to be, and the problems; where they are."""
        kept = self._directory / "".join(letter if letter.isalnum() or letter in "-.," else "_" for letter in name)
        kept.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(kept / "workspace", ignore_errors=True)
        shutil.move(copy, kept / "workspace")
        for file in files:
            if file.exists():
                shutil.copy(file, kept)
        (kept / "problems.txt").write_text("\n".join(problems))
        return kept
