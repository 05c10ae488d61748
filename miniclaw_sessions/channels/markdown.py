"""What of an answer is the model's: Markdown, which becomes HTML, and images. All else is shown to the letter."""

from __future__ import annotations

from markdown_it import MarkdownIt

from miniclaw_sessions.agent.events import TurnFinished
from miniclaw_sessions.channels.base import Answered, Last
from miniclaw_sessions.protocol.messages import ImagePart, Message

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).disable(
    "image"
)  # an image's address would be told of its opening


def html_of(text: str) -> str:
    """HTML that runs nothing and fetches nothing."""
    return str(_MARKDOWN.render(text))


def model_message(last: Last) -> Message | None:
    """The model's message that a chat is told; None: it is told something else.

    A question for approval is not Markdown: a person would agree to something else than what he reads.
    """
    event = last.event if isinstance(last, Answered) else None
    return event.message if isinstance(event, TurnFinished) else None


def images_in(message: Message | None) -> list[ImagePart]:
    """The images that a message holds itself."""
    content = () if message is None else message.content
    return [part for part in content if isinstance(part, ImagePart) and part.data]
