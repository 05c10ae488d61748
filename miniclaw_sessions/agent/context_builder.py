"""The layers of a model's context: the system prompt, the history, and the current message, exactly once.

Which older messages are worth sending is decided here; that the result is legal, in `history.context`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from miniclaw_sessions.history.context import build_context
from miniclaw_sessions.history.window import MAX_MESSAGES
from miniclaw_sessions.protocol.messages import Message, Role


class ContextBuilder:
    """Builds the context of every iteration of a turn.

    Args:
        system_prompt: what the model is told first; empty: no system message. It is never stored in a session.
        limit: how many messages from before the current one are sent at most, newest first. What the turn has said
            since the current message is always sent whole: a model that forgets its own steps repeats them. The
            summary of what was compacted does not count.
    """

    def __init__(self, system_prompt: str = "", *, limit: int = MAX_MESSAGES) -> None:
        if limit < 0:
            raise ValueError(f"the history has at least 0 messages, not {limit}")
        self.system_prompt = system_prompt
        self.limit = limit

    def __repr__(self) -> str:
        return f"<ContextBuilder limit {self.limit}>"

    def build(self, messages: Sequence[Message], current: Message) -> list[Message]:
        """The context for answering `current`.

        Args:
            messages: the conversation with the turn's steps, oldest first, as `Turn.messages` gives it.
            current: the message that is being answered. It is found by identity, because an older one may say the
                same; if it has left the window, it is put in front of what is there.
        """
        place = next((index for index in reversed(range(len(messages))) if messages[index] is current), None)
        before = [] if place is None else messages[:place]
        summary = list(takewhile(lambda message: message.role is Role.COMPACTION_SUMMARY, before))
        before = before[len(summary) :]
        steps = messages if place is None else messages[place + 1 :]
        history = before[max(0, len(before) - self.limit) :]
        context = build_context([*summary, *history, current, *steps])
        return [Message.system(self.system_prompt), *context] if self.system_prompt else context
