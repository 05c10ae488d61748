"""The style sheets and the script, as they are shipped beside this file."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

SHARED_STYLES = ("theme.css", "tree.css", "articles.css")
"""What the exported page and the daemon's look like alike, in the order in which they apply."""


@cache
def source(name: str) -> str:
    """The text of one of the files."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
