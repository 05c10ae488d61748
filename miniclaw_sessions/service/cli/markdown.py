"""Markdown that is shown while it is still being written.

What is complete, up to the last block, is printed for good; the block that is being written is drawn again and again
below it. So a long answer scrolls like any other output, and a table or a list is never shown half.
"""

from __future__ import annotations

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text

from miniclaw_sessions.files.formats.fences import is_too_deep, keeping_words
from miniclaw_sessions.files.formats.tasks import showing_tasks

REFRESHES_PER_S = 8

_parser = showing_tasks(
    keeping_words(MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])), as_text=True
)


class MarkdownStream:
    """One text in a terminal. Its links are shown, not made clickable: their addresses are to be seen."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._pending = ""
        self._live = Live(
            console=console,
            refresh_per_second=REFRESHES_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def write(self, text: str) -> None:
        """The next piece."""
        self._pending += text
        end = end_of_complete_blocks(self._pending)
        if end:
            self._live.update("")
            self._console.print(_rendered(self._pending[:end]))
            self._pending = self._pending[end:]
        self._live.update(_Newest(_rendered(self._pending)))

    def end(self) -> None:
        """Print what is left."""
        self._live.update("")
        self._live.stop()
        if self._pending.strip():
            self._console.print(_rendered(self._pending))
        self._pending = ""


def end_of_complete_blocks(text: str) -> int:
    """Where the last block begins: the text before it no longer changes."""
    if "\n" not in text:
        return 0
    begins = [token.map[0] for token in _parser.parse(text) if token.level == 0 and token.map]
    lines = text.splitlines(keepends=True)
    return sum(map(len, lines[: begins[-1]])) if begins else 0


def _rendered(text: str) -> Markdown | Text:
    """The text by our parser, which leaves out no words; as it stands, where something nests too deep."""
    tokens = _parser.parse(text)
    if is_too_deep(tokens, _parser):
        return Text(text)
    markdown = Markdown("", hyperlinks=False)
    markdown.markup, markdown.parsed = text, tokens
    return markdown


class _Newest:
    """As many of the last lines of something as the terminal can draw again."""

    def __init__(self, markdown: Markdown | Text) -> None:
        self._markdown = markdown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines."""
        lines = console.render_lines(self._markdown, options.update(height=None), pad=False)
        for line in lines[-max(1, console.height - 2) :]:
            yield from line
            yield Segment.line()
