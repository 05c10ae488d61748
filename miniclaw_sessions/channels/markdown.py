"""What of an answer is the model's: Markdown, which becomes HTML, and images. All else is shown to the letter."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

from miniclaw_sessions.agent.events import TurnFinished
from miniclaw_sessions.channels.base import Answered, Last
from miniclaw_sessions.core.protocol.messages import ImagePart, Message
from miniclaw_sessions.files.formats.fences import is_too_deep, keeping_words

_FENCE = "```"
_FENCE_WITHIN = re.compile("`(?=``)")
_BROKEN_TICK = "`\N{ZERO WIDTH SPACE}"

_MARKDOWN = keeping_words(MarkdownIt("commonmark", {"html": False}))
_MARKDOWN.disable("image")  # its address would learn of its opening


def html_of(text: str) -> str:
    """HTML that runs nothing, fetches nothing and leaves out no word; as it stands, where something nests too deep."""
    tokens = _MARKDOWN.parse(text)
    if is_too_deep(tokens, _MARKDOWN):
        return f"<pre>{escapeHtml(text)}</pre>\n"
    return str(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}))


def fenced(code: str) -> str:
    """A block of code where a network knows one fence only: one within it is parted by spaces without width."""
    return f"{_FENCE}\n{_FENCE_WITHIN.sub(_BROKEN_TICK, code)}\n{_FENCE}"


def parser_with(renderer: type[RendererHTML], texts: Mapping[str, str]) -> MarkdownIt:
    """A parser of Markdown with tables whose renderer writes these texts for tokens that are always the same.

    Args:
        renderer: of the network.
        texts: by the type of the token.
    """
    parser = MarkdownIt("commonmark", {"html": False}, renderer_cls=renderer).enable(["table", "strikethrough"])
    keeping_words(parser)
    for name, text in texts.items():
        parser.add_render_rule(name, lambda *_, text=text: text)
    return parser


class ListsInText:
    """Rules of a renderer for networks that show no lists of HTML: a sign before each item, indented by its lists."""

    indent = "  "

    def bullet_list_close(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        """An empty line behind the outermost list."""
        return "" if tokens[index].level else "\n"

    ordered_list_close = bullet_list_close

    def list_item_open(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        """A bullet or a number."""
        token = tokens[index]
        sign = f"{token.info}{token.markup}" if token.info else "\N{BULLET}"
        return f"{self.indent * ((token.level - 1) // 2)}{sign} "


def model_message(last: Last) -> Message | None:
    """The model's message behind an outcome; None: its text is another one.

    A question for approval is not Markdown: a person would agree to something else than what he reads.
    """
    event = last.event if isinstance(last, Answered) else None
    return event.message if isinstance(event, TurnFinished) else None


def images_in(message: Message | None) -> list[ImagePart]:
    """The images that a message holds itself."""
    content = () if message is None else message.content
    return [part for part in content if isinstance(part, ImagePart) and part.data]
