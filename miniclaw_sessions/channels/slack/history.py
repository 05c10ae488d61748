"""The conversations of a bot, as Slack keeps them: what was missed, and what of an answer has arrived."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from miniclaw_sessions.channels.slack.client import Client, Fields
from miniclaw_sessions.channels.slack.reading import Bot, Read, Said, parts_of, read
from miniclaw_sessions.clock import Clock

MISSED_S = 24 * 3600.0
"""What is older than that is not answered after a start."""

THREADS_S = 7 * 24 * 3600.0
"""What is missed in threads that began earlier than that is not looked for: nothing lists them."""

_KINDS = "im,mpim,public_channel,private_channel"
_PAGE = 200


class History:
    """Reads conversations; Slack is asked until it replies, except for what was missed.

    Args:
        client: calls Slack.
        bot: who the bot is.
        clock: says how late it is.
    """

    def __init__(self, client: Client, bot: Bot, clock: Clock) -> None:
        self._client = client
        self._bot = bot
        self._clock = clock

    async def conversations(self) -> list[str]:
        """All conversations that the bot is in, those with one person first.

        Raises:
            Refused: the bot may not list them.
        """
        pages = self._pages(self._client.web.users_conversations, types=_KINDS, exclude_archived=True)
        found = [str(one.get("id")) async for page in pages for one in page.get("channels") or ()]
        return sorted(found, key=lambda one: not one.startswith("D"))

    async def read(self, channel_id: str) -> Read:
        """What was said in a conversation and its threads within a day.

        Raises:
            Refused: the bot may not read it.
            Unreachable: Slack cannot say it now.
        """
        now = self._clock.now().timestamp()
        since, threads_since = f"{now - MISSED_S:.6f}", f"{now - THREADS_S:.6f}"
        messages = await self._messages(channel_id, "", threads_since, insist=False)
        threads = [str(one.get("ts")) for one in messages if str(one.get("latest_reply") or "") >= since]
        for thread_ts in threads:
            messages += await self._messages(channel_id, thread_ts, since, insist=False)
        return read({str(one.get("ts")): one for one in messages}.values(), channel_id, self._bot, since)

    async def parts(self, said: Said) -> dict[str, str]:
        """What of the answer to a message stands there; see `parts_of`.

        Raises:
            Refused: the bot may not read it.
        """
        messages = await self._messages(said.place.channel_id, said.place.thread_ts, said.ts)
        return parts_of(messages, said.message_id, self._bot)

    async def _messages(self, channel_id: str, thread_ts: str, since: str, *, insist: bool = True) -> list[Fields]:
        """The messages of a conversation outside of its threads, or those of a thread."""
        web = self._client.web
        method: Callable[..., Awaitable[Any]] = web.conversations_replies if thread_ts else web.conversations_history
        where = {"channel": channel_id, **({"ts": thread_ts} if thread_ts else {})}
        wanted = {"oldest": since, "inclusive": True, "include_all_metadata": True}
        pages = self._pages(method, insist=insist, **where, **wanted)
        return [one async for page in pages for one in page.get("messages") or () if isinstance(one, dict)]

    async def _pages(
        self, method: Callable[..., Awaitable[Any]], *, insist: bool = True, **arguments: Any
    ) -> AsyncIterator[Fields]:
        cursor = None
        while cursor != "":
            page = await self._client.asked(method, insist=insist, **arguments, limit=_PAGE, cursor=cursor)
            yield page
            cursor = str((page.get("response_metadata") or {}).get("next_cursor") or "")
