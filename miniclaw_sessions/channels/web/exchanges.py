"""Messages under way, and what became of them: a script asks by a message's id until it is known."""

from __future__ import annotations

from contextlib import ExitStack

import anyio

from miniclaw_sessions.channels.base import Answered, Last, NotAnswered, Reason, WebhookReply, comes_again, meanwhile
from miniclaw_sessions.channels.web.requests import Refused, document, refusal


class Exchange:
    """A message under way, and what became of it.

    Args:
        held: what it holds until it has ended.

    Attributes:
        comes_again: whether it ended so that it should be sent again.
        reply: the reply to its script, now that it has ended; None: it has not.
    """

    def __init__(self, held: ExitStack) -> None:
        self._held = held
        self.comes_again = False
        self.reply: WebhookReply | None = None
        self._ended = anyio.Event()

    def end(self, last: Last) -> None:
        """It is over. Only the reply is kept: the message may have files, and many messages are remembered."""
        is_busy = isinstance(last, NotAnswered) and last.reason is Reason.BUSY
        self.comes_again = is_busy or comes_again(last)
        self.reply = _reply_to(last, is_sent_again=self.comes_again)
        self._held.close()
        self._ended.set()

    async def over(self) -> None:
        """Return when it is."""
        await self._ended.wait()


def outcome(exchange: Exchange) -> WebhookReply:
    """How far a message is."""
    return exchange.reply or document(202, state="waits")


def _reply_to(last: Last, *, is_sent_again: bool) -> WebhookReply:
    """The end of a message: the text that every network shows, and what of it the chat does not show.

    The chat shows answers and questions as they are made; a sentence of ours stands beside them.
    """
    if is_sent_again:  # the browser keeps it, also where people are asked to send it again
        return refusal(Refused(503, "again", meanwhile(last), 2))
    beside = last.notice if isinstance(last, Answered) else last.text
    return document(200, state="done", text=last.text, beside=beside)
