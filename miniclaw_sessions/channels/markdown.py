"""A model's Markdown as HTML, for networks that show it."""

from __future__ import annotations

from markdown_it import MarkdownIt

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).disable(
    "image"
)  # an image's address would be told of its opening


def html_of(text: str) -> str:
    """HTML that runs nothing and fetches nothing."""
    return str(_MARKDOWN.render(text))
