"""What a bot posts: its answers, each part of them once, and its questions with their buttons."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress

from anyio import to_thread

from miniclaw_sessions.channels.base import Answered, Last
from miniclaw_sessions.channels.buttons import asked_in
from miniclaw_sessions.channels.markdown import images_in, model_message
from miniclaw_sessions.channels.slack.client import BACKOFF_S, Client, Fields, Refused
from miniclaw_sessions.channels.slack.history import History
from miniclaw_sessions.channels.slack.mrkdwn import escaped, mrkdwn
from miniclaw_sessions.channels.slack.reading import ANSWER, ASKED, PICTURE, Place, Said
from miniclaw_sessions.channels.splitting import split
from miniclaw_sessions.clock import Clock
from miniclaw_sessions.errors import Unreachable

DECISIONS = {"miniclaw_yes": (True, "Yes", "primary"), "miniclaw_no": (False, "No", "danger")}
"""The buttons of a question: what each says, its word and its colour."""

_MAX_TEXT = 3_900  # Slack advises 4,000 characters, and cuts at 40,000
_MAX_QUESTION = 2_900  # a block has 3,000
_MAX_BUTTON = 2_000
_TO_THE_LETTER: Fields = {"mrkdwn": False}


class Posts:
    """Posts answers. What Slack does not confirm is looked for in the conversation before it is posted again.

    Args:
        client: calls Slack.
        history: reads the conversations.
        clock: for waiting.
    """

    def __init__(self, client: Client, history: History, clock: Clock) -> None:
        self._client = client
        self._history = history
        self._clock = clock
        self._questions: dict[Place, tuple[str, Fields, Fields]] = {}  # with buttons: where, what and its metadata

    async def answer(self, said: Said, last: Last, *, is_again: bool = False) -> None:
        """Post an answer, in as many messages as it needs; the last one says that the message is done.

        Args:
            said: what it answers.
            last: the answer.
            is_again: whether some of it may be there already.

        Raises:
            Refused: Slack does not take it.
        """
        message, text = model_message(last), last.text
        ids, images = asked_in(last), images_in(message)
        pieces = split(text, _MAX_QUESTION if ids else _MAX_TEXT, _length)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]  # another answer to the same is not taken for it
        there = await self._there(said) if is_again else {}
        post, mark, ts = {}, _mark(said, ""), ""
        for number, piece in enumerate(pieces, 1):
            is_last = number == len(pieces)
            name = f"{digest}.{number}"
            mark = _mark(said, name, is_done=is_last and not images)
            if message is None:
                post = {"text": escaped(piece), **_TO_THE_LETTER}
            else:  # in a thread: brackets by the thousand take it a second
                post = {"text": await to_thread.run_sync(mrkdwn, piece)}
            if is_last and ids:
                post["blocks"] = _question(piece, {**mark, "ids": ",".join(ids)})
            ts = there.get(name) or await self._post(said, post, mark)
        for number, image in enumerate(images, 1):
            name = f"{PICTURE}{digest}.{number}.{image.media_type.partition('/')[2] or 'png'}"
            if name not in there:
                await self._post_picture(said, name, base64.b64decode(image.data or ""))
        if images and pieces:
            await self._update(said.place.channel_id, ts, {"text": post["text"]}, {**mark, "done": True}, insist=True)
        if isinstance(last, Answered):
            await self._close_question(said.place)
        if ids and len(post["blocks"]) > 1:
            self._questions[said.place] = (ts, post, mark)

    async def note(self, said: Said, text: str) -> None:
        """Post a word about a message that is not done.

        Raises:
            Refused: Slack does not take it.
        """
        await self._post(said, {"text": escaped(text), **_TO_THE_LETTER}, _mark(said, "note"))

    async def ask(self, channel_id: str, user_id: str, text: str) -> Fields:
        """Say for a person what was written as a slash command; the message as it stands in the conversation.

        Raises:
            Refused: the bot cannot say anything there.
            Unreachable: it is not known whether it is said.
        """
        post = {"channel": channel_id, "text": f"<@{user_id}>: {escaped(text)}", **_TO_THE_LETTER}
        post["metadata"] = {"event_type": ASKED, "event_payload": {"by": user_id}}
        sent = await self._client.asked(self._client.web.chat_postMessage, needs="ts", **post)
        return {**post, "ts": sent["ts"]}

    async def announce(self, place: Place, text: str) -> None:
        """Say something that answers no message; its mark says so, for what has none counts for all before it.

        Raises:
            Unreachable: Slack does not take it, or it is not known whether it is said.
        """
        where: Fields = {"channel": place.channel_id, **({"thread_ts": place.thread_ts} if place.thread_ts else {})}
        metadata = {"event_type": ANSWER, "event_payload": {"part": "announced"}}
        post: Fields = {"text": escaped(text), "metadata": metadata, **_TO_THE_LETTER}
        try:
            await self._client.asked(self._client.web.chat_postMessage, needs="ts", **where, **post)
        except Refused as refusal:
            raise Unreachable(str(refusal)) from None

    async def decide(self, place: Place, posted: Fields, words: str, mark: Fields) -> None:
        """Write into a question, in place of its buttons, what was decided.

        Args:
            place: where it is.
            posted: the message that asks it, as Slack has it.
            words: what people read below it.
            mark: its metadata.

        Raises:
            Refused: Slack does not do it.
        """
        self._questions.pop(place, None)
        await self._update(place.channel_id, str(posted.get("ts")), _decided(posted, words), mark, insist=True)

    async def _close_question(self, place: Place) -> None:
        """Take the buttons off a question that was decided by words, as a later turn shows."""
        if place in self._questions:
            ts, post, mark = self._questions.pop(place)
            with suppress(Refused, Unreachable):  # a press would be answered that nothing waits
                await self._update(place.channel_id, ts, _decided(post, "This has been answered."), mark)

    async def _update(self, channel_id: str, ts: str, post: Fields, mark: Fields, *, insist: bool = False) -> None:
        metadata = {"event_type": ANSWER, "event_payload": mark}
        where: Fields = {"channel": channel_id, "ts": ts, "metadata": metadata}
        await self._client.asked(self._client.web.chat_update, insist=insist, **where, **post)

    async def _post(self, said: Said, post: Fields, mark: Fields) -> str:
        """Post a part of an answer; its time stamp."""
        where: Fields = {"channel": said.place.channel_id, "unfurl_links": False, "unfurl_media": False}
        if said.place.thread_ts:
            where["thread_ts"] = said.place.thread_ts
        metadata = {"event_type": ANSWER, "event_payload": mark}

        async def post_it() -> str:
            method = self._client.web.chat_postMessage
            return str((await self._client.asked(method, needs="ts", **where, **post, metadata=metadata))["ts"])

        return await self._once(said, str(mark["part"]), post_it)

    async def _post_picture(self, said: Said, name: str, data: bytes) -> None:
        web = self._client.web
        where: Fields = {"channel_id": said.place.channel_id}
        if said.place.thread_ts:
            where["thread_ts"] = said.place.thread_ts

        async def post_it() -> str:
            file: Fields = {"filename": name, "length": len(data)}
            opened = await self._client.asked(web.files_getUploadURLExternal, needs="upload_url", **file)
            await self._client.upload(str(opened["upload_url"]), data)
            files = [{"id": str(opened.get("file_id")), "title": name}]
            await self._client.asked(web.files_completeUploadExternal, files=files, **where)
            return ""

        await self._once(said, name, post_it)

    async def _once(self, said: Said, part: str, post: Callable[[], Awaitable[str]]) -> str:
        """Post a part until it is there, and look for it before it is posted again; its time stamp."""
        delay, longest = BACKOFF_S
        while True:
            try:
                return await post()
            except Unreachable as error:
                self._client.unconfirmed(error)
            await self._clock.sleep(delay)
            delay = min(2 * delay, longest)
            if (ts := (await self._there(said)).get(part)) is not None:
                return ts

    async def _there(self, said: Said) -> dict[str, str]:
        """What of an answer stands in the conversation; nothing, where the bot may not read it."""
        try:
            return await self._history.parts(said)
        except Refused:
            return {}


def _mark(said: Said, part: str, *, is_done: bool = False) -> Fields:
    return {"to": said.message_id, "part": part, "done": is_done}


def _question(text: str, mark: Fields) -> list[Fields]:
    """A question to the letter, with a button for each answer; where a button cannot hold what it is about, none."""
    question: Fields = {"type": "section", "text": {"type": "plain_text", "text": text, "emoji": False}}
    value = json.dumps(mark)
    buttons = [
        {
            "type": "button",
            "action_id": action_id,
            "style": style,
            "value": value,
            "text": {"type": "plain_text", "text": word},
        }
        for action_id, (_, word, style) in DECISIONS.items()
    ]
    return [question, {"type": "actions", "elements": buttons}] if len(value) <= _MAX_BUTTON else [question]


def _decided(posted: Fields, words: str) -> Fields:
    """A question without its buttons, and what was decided below it."""
    shown = [one for one in posted.get("blocks") or () if isinstance(one, dict) and one.get("type") != "actions"]
    below = {"type": "context", "elements": [{"type": "mrkdwn", "text": words}]}
    return {"text": f"{posted.get('text') or ''}\n{words}", "blocks": [*shown, below]}


def _length(text: str) -> int:
    """How long a text is when it is escaped."""
    return len(text) + 4 * text.count("&") + 3 * (text.count("<") + text.count(">"))
