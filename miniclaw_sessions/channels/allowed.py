"""Who may speak to a bot, and when it answers in a group: one list for all networks.

A bot that answers strangers costs money, so only named people are allowed.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from miniclaw_sessions.log import get_logger

log = get_logger(__name__)

_REMEMBERED = 1_000  # ids that were refused and are not logged again


class AllowSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who may speak; the settings of a channel extend it.

    Attributes:
        allow: ids of users and chats that are answered; "*": all. Empty: none, and the log names the ids that
            were refused.
        groups: what is answered in chats of several people: what is "addressed" to the bot, by its name or as a reply
            to it; "all"; or "none".
    """

    allow: tuple[str | int, ...] = ()
    groups: Literal["addressed", "all", "none"] = "addressed"


class Allowed:
    """Decides whom a channel answers.

    Args:
        channel: the channel's name.
        settings: who may speak.
    """

    def __init__(self, channel: str, settings: AllowSettings) -> None:
        self._channel = channel
        self._settings = settings
        self._allowed = {str(one).strip().casefold() for one in settings.allow}
        self._refused: set[tuple[str, str]] = set()

    def knows(self, *, user_id: str, chat_id: str) -> bool:
        """Whether `allow` names a person or a chat, or all; nothing is logged."""
        return not self._allowed.isdisjoint({"*", user_id.casefold(), chat_id.casefold()})

    def admits(self, *, user_id: str, chat_id: str, is_group: bool = False, is_addressed: bool = True) -> bool:
        """Whether to answer a message; a person who is not allowed is logged once, with the entry for `allow`.

        Args:
            user_id: who speaks.
            chat_id: where.
            is_group: whether others read along there.
            is_addressed: whether the bot is spoken to, by its name or as a reply.
        """
        if is_group and not (self._settings.groups == "all" or (self._settings.groups == "addressed" and is_addressed)):
            return False
        if self.knows(user_id=user_id, chat_id=chat_id):
            return True
        if (user_id, chat_id) not in self._refused:
            if len(self._refused) >= _REMEMBERED:
                self._refused.clear()
            self._refused.add((user_id, chat_id))
            log.warning(
                "a person who is not allowed has written, and gets no answer; `allow` would have to name them",
                action="channel.refused",
                channel=self._channel,
                user_id=user_id,
                chat_id=chat_id,
            )
        return False
