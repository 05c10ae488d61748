"""What of an answer is the model's: Markdown, which becomes HTML, and images. All else is shown to the letter."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml

from miniclaw_sessions.agent.events import TurnFinished
from miniclaw_sessions.channels.base import Answered, Last
from miniclaw_sessions.core.protocol.messages import ImagePart, Message
from miniclaw_sessions.files.formats.fences import is_too_deep, keeping_words

_MARKDOWN = keeping_words(MarkdownIt("commonmark", {"html": False}))
_MARKDOWN.disable("image")  # its address would learn of its opening


def html_of(text: str) -> str:
    """HTML that runs nothing, fetches nothing and leaves out no word; as it stands, where something nests too deep."""
    tokens = _MARKDOWN.parse(text)
    if is_too_deep(tokens, _MARKDOWN):
        return f"<pre>{escapeHtml(text)}</pre>\n"
    return str(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}))


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
