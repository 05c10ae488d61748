"""Who looks on while messages come in and answers go out, to count them; it changes nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from miniclaw_sessions.channels.base import Last


class Watch:
    """Sees nothing; override what you need."""

    def taken(self, channel: str) -> AbstractContextManager[None]:  # noqa: ARG002 - for those who override it
        """A message was handed over, by the task that runs now.

        Returns:
            A block that will be around its answering, in another task.
        """
        return nullcontext()

    def ended(self, channel: str, last: Last) -> None:
        """This is the last that is told of a message that was handed over."""
