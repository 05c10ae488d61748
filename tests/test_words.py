"""Words of our own that a stranger has to read twice: each has a limit, and the limits only ever fall.

A sentence with one of them is nearly always clearer with its subject first and the field's word: a program *reports*
or *sends* and does not *tell*; "the caller" and not *whoever*; "again" and not *anew*. Names in code count as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LIMITS: dict[str, int] = {
    "told": 22,
    "tells?": 7,
    "nobody": 2,
    "somebody": 0,
    "whoever": 0,
    "whatever": 2,
    "anew": 7,
    "so many": 0,
    "manieth": 0,
    "said of": 0,
    "which of them": 0,
    "is to be": 0,
    "there is none": 0,
}
"""How often each stands in what people read. Lower a number when a change takes some out; never raise one."""

PATTERNS = (
    "miniclaw_sessions/**/*.py",
    "miniclaw_sessions/service/gateway/page/*.js",
    "docs/**/*.md",
    "config/**/*.toml",
)
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "systemd/README.md")


def files() -> Iterator[Path]:
    for pattern in PATTERNS:
        yield from sorted(ROOT.glob(pattern))
    for page in PAGES:
        yield ROOT / page


TEXTS = {file.relative_to(ROOT).as_posix(): " ".join(file.read_text(encoding="utf-8").split()) for file in files()}
"""The files, each as one line, so that a phrase that a line break parts is found."""


@cache
def occurrences(word: str) -> dict[str, int]:
    """How often each file has the word, leaving out files without it."""
    pattern = re.compile(rf"(?<![.\w])(?i:{word[0]}){word[1:]}\b")  # not `file.tell()`, nor `there is None`
    found = {name: len(pattern.findall(text)) for name, text in TEXTS.items()}
    return {name: count for name, count in found.items() if count}


@pytest.mark.parametrize("word", LIMITS)
def test_no_change_adds_a_word_that_a_stranger_reads_twice(word: str) -> None:
    found = occurrences(word)
    assert sum(found.values()) <= LIMITS[word], f"write it in the field's words: {found}"


@pytest.mark.parametrize("word", LIMITS)
def test_a_limit_follows_its_count_downwards(word: str) -> None:
    count = sum(occurrences(word).values())
    assert LIMITS[word] <= count, f"lower the limit of {word!r} to {count}"
